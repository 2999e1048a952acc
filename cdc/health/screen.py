"""Puts findings on a terminal of any width, by words and signs; colours are an addition only."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cdc.health.findings import Finding, Level, Section, level_of

__all__ = ["console", "print_sections", "verdict"]

_SIGNS: Final = {Level.OK: "ok", Level.WARNING: "!", Level.FAILURE: "X"}
_STYLES: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "bold red"}
_NARROW: Final = 60


def console() -> Console:
    """As wide as the terminal; 80 columns where there is none."""
    made = Console(highlight=False)
    return made if sys.stdout.isatty() or made.width != 80 else Console(highlight=False, width=80)


def section_table(section: Section, width: int) -> Table:
    """The heading, then a row for each finding: sign, subject, text with the remedy behind it."""
    table = Table(box=None, show_header=False, pad_edge=False, expand=False, title_justify="left", title_style="bold")
    table.title = section.title
    table.add_column(width=2, no_wrap=True)
    if width >= _NARROW:
        table.add_column(max_width=width // 3, overflow="fold")
    table.add_column(overflow="fold", ratio=1)
    for finding in section.findings:
        table.add_row(*_row(finding, width))
    return table


def _row(finding: Finding, width: int) -> Sequence[Text]:
    sign = Text(_SIGNS[finding.level], style=_STYLES[finding.level])
    said = Text(finding.text)
    if width < _NARROW and finding.subject:
        said = Text(f"{finding.subject}: ").append_text(said)
    if finding.remedy:
        said.append(f"\n-> {finding.remedy}", style="" if finding.level is Level.OK else "italic")
    return [sign, said] if width < _NARROW else [sign, Text(finding.subject), said]


def verdict(findings: Iterable[Finding]) -> Text:
    """One line for all."""
    every = list(findings)
    failures = sum(each.level is Level.FAILURE for each in every)
    warnings = sum(each.level is Level.WARNING for each in every)
    level = level_of(every)
    counts = [
        f"{count} {word}{'' if count == 1 else 's'}" for count, word in ((failures, "failure"), (warnings, "warning")) if count
    ]  # fmt: skip
    words = {Level.OK: "all is well", Level.WARNING: "it works", Level.FAILURE: "TROUBLE"}
    return Text(": ".join([words[level], ", ".join(counts)]) if counts else words[level], style=_STYLES[level])


def print_sections(target: Console, sections: Sequence[Section]) -> None:
    """All of it, a blank line between sections."""
    for section in sections:
        target.print(Padding(section_table(section, target.width), (0, 0, 1, 0)))
