"""Recognizes reads that are too early to show the write of their event. Pure.

Cassandra first appends a mutation to the commit log and then applies it to the memtable; with `commitlog_sync: batch`
the log is on the disk before. So an event may arrive while the node that wrote it still answers reads without the
change, and even an answer from all replicas proves nothing. This lasts until the writing thread continues:
microseconds, or seconds on a node that is suspended. Within the time that Cassandra allows for a write, a row that
cannot be the result of its event is read again.

Cassandra source: o.a.c.db.Keyspace.applyInternal, o.a.c.db.commitlog.BatchCommitLogService.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from schemas.mutation_event import MutationEvent, MutationKind
from source_connector.encoding.selection import Selection
from source_connector.events.events_message import PendingEvent
from source_connector.rows.read_request import RawRow

__all__ = ["WITHIN_S", "LaterDeletions", "Outcome", "is_young", "outcome_of", "outcome_of_scope", "pause_s"]

WITHIN_S: Final = 2.0
"""`write_request_timeout` of Cassandra: after that a write has failed for whoever sent it."""

_SHORTEST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.25
_NEVER: Final = 2**63


class Outcome(Enum):
    """Whether a row may be what an event made of it."""

    POSSIBLE = "possible"
    UNKNOWN = "unknown"
    """No write time shows it: collections, rows of keys only."""
    IMPOSSIBLE = "impossible"
    """The event's write is not there, unless somebody has undone it since."""


def is_young(pending: PendingEvent, now_s: float) -> bool:
    """True when the event's write may still be under way at this time since the epoch.

    By its write time. An event of DataStax's agents does not say what was written, a snapshot's that anything was.
    """
    written_us = pending.event.writetime_us
    return pending.message.raw is None and written_us is not None and now_s - written_us / 1e6 < WITHIN_S


def pause_s(reads: int) -> float:
    """How long to wait after so many reads that came early."""
    return min(_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S * 2.0**reads)


class LaterDeletions:
    """What the events of a row delete that are behind the one that is looked at."""

    __slots__ = ("_columns", "_is_of_row")

    def __init__(self, later: Iterable[MutationEvent] = ()) -> None:
        self._columns: set[str] = set()
        self._is_of_row = False
        for each in later:
            self.add(each)

    def add(self, event: MutationEvent) -> None:
        """One more of them; one that only writes a row of keys deletes nothing."""
        if event.kind is MutationKind.ROW_DELETION:
            self._is_of_row = True
        elif event.live_cell_writetime_us is None:
            self._columns.update(event.columns)

    def cover(self, columns: Iterable[str]) -> bool:
        """True when the row is deleted, or some of these columns."""
        return self._is_of_row or not self._columns.isdisjoint(columns)


def outcome_of(
    event: MutationEvent, later: LaterDeletions, selection: Selection, row: RawRow | None, now_s: float
) -> Outcome:
    """The result of a read of the event's row for the event; `later` is of the events of the same row behind it."""
    if event.kind is MutationKind.ROW_DELETION:
        return _of_row_deletion(event, selection, row)
    if later.cover(event.columns):
        return Outcome.POSSIBLE
    if event.expiry_time_s is not None and event.expiry_time_s <= now_s:
        return Outcome.POSSIBLE
    times = {} if row is None else selection.writetimes_us(row)
    timed = [name for name in event.columns if name in selection.timed_columns]
    if event.live_cell_writetime_us is None:
        return _of_deleted_columns(event, timed, times, row)
    if row is None:
        return Outcome.IMPOSSIBLE
    if not timed:
        return Outcome.UNKNOWN
    return _one_of(any(times.get(name, 0) >= event.live_cell_writetime_us for name in timed))


def outcome_of_scope(event: MutationEvent, selection: Selection, rows: Sequence[RawRow]) -> Outcome:
    """The result of a page of the rows in a deletion's scope for the deletion."""
    outcomes = {_of_row_deletion(event, selection, row) for row in rows}
    return next((each for each in (Outcome.IMPOSSIBLE, Outcome.UNKNOWN) if each in outcomes), Outcome.POSSIBLE)


def _of_row_deletion(event: MutationEvent, selection: Selection, row: RawRow | None) -> Outcome:
    if row is None:
        return Outcome.POSSIBLE
    times = selection.writetimes_us(row)
    if not times:
        return Outcome.UNKNOWN
    return _one_of(min(times.values()) > (event.deletion_time_us or 0))


def _of_deleted_columns(
    event: MutationEvent, timed: list[str], times: Mapping[str, int], row: RawRow | None
) -> Outcome:
    if not event.columns:  # a row of keys only was written
        return _one_of(row is not None)
    if any(times.get(name, _NEVER) <= (event.writetime_us or 0) for name in timed):
        return Outcome.IMPOSSIBLE
    # Without a row: they were its last cells, or the row's marker, written beside nulls, is still to come.
    return Outcome.POSSIBLE if row is not None and len(timed) == len(event.columns) else Outcome.UNKNOWN


def _one_of(is_possible: bool) -> Outcome:
    return Outcome.POSSIBLE if is_possible else Outcome.IMPOSSIBLE
