"""Finding: the result of one check, with a remedy. `cdc status` and `cdc doctor` consist of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

__all__ = ["Finding", "Level", "Section", "as_bytes", "as_duration", "failure", "level_of", "ok", "warning"]


class Level(StrEnum):
    """A failure is a problem now. A warning is not a problem yet, or it is not known whether there is a problem."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


_ORDER: Final = tuple(Level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a check.

    `subject`: the part that was checked. `text`: its state. `remedy`: what the user can do; empty if nothing is needed.
    """

    level: Level
    subject: str
    text: str
    remedy: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    """The numbers, for programs."""

    def as_object(self) -> dict[str, object]:
        """The finding as an object for JSON."""
        return {
            "level": self.level.value,
            "subject": self.subject,
            "text": self.text,
            "remedy": self.remedy,
            **({"facts": dict(self.facts)} if self.facts else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Findings of one kind, with a heading."""

    title: str
    findings: Sequence[Finding]


def ok(subject: str, text: str, **facts: object) -> Finding:
    """A finding without a problem."""
    return Finding(level=Level.OK, subject=subject, text=text, facts=facts)


def warning(subject: str, text: str, remedy: str, **facts: object) -> Finding:
    """A finding that is not a problem yet, or is not known."""
    return Finding(level=Level.WARNING, subject=subject, text=text, remedy=remedy, facts=facts)


def failure(subject: str, text: str, remedy: str, **facts: object) -> Finding:
    """A finding that is a problem now."""
    return Finding(level=Level.FAILURE, subject=subject, text=text, remedy=remedy, facts=facts)


def level_of(findings: Iterable[Finding]) -> Level:
    """The worst level of these findings; OK without a finding."""
    return max((each.level for each in findings), key=_ORDER.index, default=Level.OK)


def as_bytes(count: float) -> str:
    """A number of bytes as text, such as `5.0 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"


def as_duration(seconds: float) -> str:
    """A duration as text, such as `4 min`."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 6_000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
