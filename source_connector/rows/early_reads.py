"""Recognizes reads that are too early to show the write of their event. Pure.

Cassandra first appends a mutation to the commit log and then applies it to the memtable; with `commitlog_sync: batch`
the log is on the disk before. So an event may arrive while the node that wrote it still answers reads without the
change, and even an answer from all replicas proves nothing. This lasts until the writing thread continues: for
microseconds, or for seconds on a node that is suspended. Within the time that Cassandra allows for a write, a row that
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
"""Cassandra's default `write_request_timeout`: after this time a write has failed for its client."""

_SHORTEST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.25
_NEVER: Final = 2**63


class Outcome(Enum):
    """Tells if a row that was read may be the result of an event."""

    POSSIBLE = "possible"
    UNKNOWN = "unknown"
    """No write time tells: the event is about collections, or about a row that has only a key."""
    IMPOSSIBLE = "impossible"
    """The event's write is missing, unless a later change has undone it."""


def is_young(pending: PendingEvent, now_s: float) -> bool:
    """True when the event's write may still be under way at `now_s` (since the epoch).

    The event's write time decides. False for events of DataStax's agents, which do not say what was written, and for
    events without a write time, such as those of a snapshot.
    """
    written_us = pending.event.writetime_us
    return pending.message.raw is None and written_us is not None and now_s - written_us / 1e6 < WITHIN_S


def pause_s(reads: int) -> float:
    """How long to wait after this number of reads that came too early."""
    return min(_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S * 2.0**reads)


class LaterDeletions:
    """The deletions in the events of a row that follow the judged event.

    A deletion removes nothing that was written after its own time, even if its event comes later: clients set write
    times, and their clocks differ.
    """

    __slots__ = ("_columns_us", "_row_us")

    def __init__(self, later: Iterable[MutationEvent] = ()) -> None:
        self._columns_us: dict[str, int] = {}
        self._row_us: int | None = None
        for each in later:
            self.add(each)

    def add(self, event: MutationEvent) -> None:
        """Add a later event. An event that only wrote a row without values deletes nothing."""
        if event.kind is MutationKind.ROW_DELETION:
            self._row_us = _later(self._row_us, event.deletion_time_us)
        elif event.live_cell_writetime_us is None:
            for name in event.columns:
                self._columns_us[name] = _later(self._columns_us.get(name), event.writetime_us)

    def cover(self, event: MutationEvent) -> bool:
        """True when the later events delete what the event wrote: the row, or any of its columns."""
        written_us = event.writetime_us if event.live_cell_writetime_us is None else event.live_cell_writetime_us
        times = [self._row_us, *[self._columns_us.get(name) for name in event.columns]]
        return any(each is not None and each >= (written_us or 0) for each in times)


def outcome_of(
    event: MutationEvent, later: LaterDeletions, selection: Selection, row: RawRow | None, now_s: float
) -> Outcome:
    """Judge whether the row that was read may be the event's result. `later` covers later events of the same row."""
    if event.kind is MutationKind.ROW_DELETION:
        return _of_row_deletion(event, selection, row)
    if later.cover(event):
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
    """Judge whether the rows of a page in a deletion's scope may be what the deletion left."""
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
    # Without a row: these were its last cells, or the event also wrote a row marker, which is not visible yet.
    return Outcome.POSSIBLE if row is not None and len(timed) == len(event.columns) else Outcome.UNKNOWN


def _later(known_us: int | None, time_us: int | None) -> int:
    """The later one of the times of two deletions. One whose time is not known may remove everything."""
    given_us = _NEVER if time_us is None else time_us
    return given_us if known_us is None else max(known_us, given_us)


def _one_of(is_possible: bool) -> Outcome:
    return Outcome.POSSIBLE if is_possible else Outcome.IMPOSSIBLE
