"""Gaps that agents reported. Only changes in a gap may be missing on the topics."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Gap", "gap_of", "in_a_gap", "unexplained"]

_END = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A range of one node's commit log, behind `first` and up to `last`, in which changes of a table may be lost.

    `first` and `last` are segment and position; `reason` is a text for the report.
    """

    node: str
    table: str
    table_id: str
    first: tuple[int, int]
    last: tuple[int, int]
    reason: str = ""

    def has(self, place: tuple[int, int]) -> bool:
        """Return whether a change at this segment and position may be missing."""
        return self.first < place <= self.last


def gap_of(record: Mapping[str, Any]) -> Gap:
    """Return the gap of a decoded record of the gaps topic."""
    end = record.get("last_position")
    return Gap(
        node=record["node_id"],
        table=record["table"],
        table_id=record["table_id"],
        first=(record["first_segment_id"], record["first_position"]),
        last=(record["last_segment_id"], _END if end is None else end),
        reason=record["reason"],
    )


def in_a_gap(gaps: Iterable[Gap], node: str, table_id: str, place: tuple[int, int]) -> bool:
    """Return whether one of the gaps says that this change may be missing."""
    return any(gap.node == node and gap.table_id == table_id and gap.has(place) for gap in gaps)


def unexplained(gaps: Iterable[Gap], taken_away: Collection[str]) -> list[str]:
    """Describe the gaps of tables that are not in `taken_away`: no fault removed their events topic or its
    subscription."""
    return [
        f"{gap.table}: node {gap.node} reported a gap, and no strike took its events topic away: {gap.reason}"
        for gap in gaps
        if gap.table not in taken_away
    ]
