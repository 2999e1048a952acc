"""Prints findings on a terminal of any width. Words and signs say everything; colours only repeat it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from cdc.health.findings import Finding, Level, Section, level_of

__all__ = ["console", "print_sections", "verdict"]

_SIGNS: Final = {Level.OK: "ok", Level.WARNING: "!", Level.FAILURE: "X"}
_STYLES: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "bold red"}
_SIGN_WIDTH: Final = 4
_NARROWEST: Final = 30
# On a narrower terminal, subjects have no column of their own, because too little would be left for the text.
_NARROW: Final = 60
# A row may have megabytes, which would take minutes and hide everything else.
_LONGEST: Final = 2_000
_BEGINNING: Final = 1_000
_END: Final = 300


def console() -> Console:
    """A console as wide as the terminal, or of 80 columns without a terminal."""
    return Console(highlight=False, soft_wrap=True)


def print_sections(target: Console, sections: Sequence[Section]) -> None:
    """Print each section: a heading, then sign, subject and text of each finding, with the remedy below."""
    width = max(_NARROWEST, target.width)
    subjects = [finding.subject for section in sections for finding in section.findings]
    widest = max((len(each) + 2 for each in subjects if len(each) + 2 <= width // 3), default=0)
    column = widest if width >= _NARROW else 0
    for section in sections:
        target.print(Text(section.title, style="bold"))
        for finding in section.findings:
            for line in _lines(finding, width, column):
                target.print(line)
        target.print()


def _lines(finding: Finding, width: int, column: int) -> Iterator[Text]:
    indent = _SIGN_WIDTH + column
    subject, text = finding.subject, _shortened(finding.text)
    if len(subject) + 2 > column:  # no room for it, or no column at all
        text, subject = f"{subject}: {text}" if subject else text, ""
    first = True
    for words in (text, f"-> {finding.remedy}" if finding.remedy else ""):
        for part in textwrap.wrap(words, max(_NARROWEST, width) - indent, break_on_hyphens=False):
            line = Text()
            line.append((_SIGNS[finding.level] if first else "").ljust(_SIGN_WIDTH), style=_STYLES[finding.level])
            yield line.append((subject if first else "").ljust(column)).append(part)
            first = False


def _shortened(text: str) -> str:
    """A text without the middle if it is very long."""
    if len(text) <= _LONGEST:
        return text
    left_out = len(text) - _BEGINNING - _END
    return f"{text[:_BEGINNING]} ... ({left_out:,} characters left out; --json has them) ... {text[-_END:]}"


def verdict(findings: Iterable[Finding]) -> Text:
    """One line with the worst level, and the numbers of failures and warnings."""
    every = list(findings)
    level = level_of(every)
    counts = []
    for each, word in ((Level.FAILURE, "failure"), (Level.WARNING, "warning")):
        if count := sum(finding.level is each for finding in every):
            counts.append(f"{count} {word}{'' if count == 1 else 's'}")
    words = {Level.OK: "all is well", Level.WARNING: "it works", Level.FAILURE: "TROUBLE"}
    return Text().append(": ".join([words[level], ", ".join(counts)]) if counts else words[level], style=_STYLES[level])
