"""From the events of one key to one record: read, prove that the read has the changes, publish, wait for the answer.

A read is *proven* for an event when it cannot be older than the event. One of these must hold:

- a cell that the event wrote is there with the event's write time;
- everything that it wrote is there with that time or a later one (not for a counter: a later increment does not
  replace an earlier one);
- all replicas were asked, among them the event's own node.

A write time proves nothing if two changes have it (`source_connector.rows.write_times`).

If the first level cannot prove an event, the row is read once more at the higher level, and then published in any case.
Only proven events are remembered. So a record that may lack the change never suppresses another replica's copy.

While the event's write may still be in progress (`source_connector.rows.early_reads`), even all replicas prove
nothing. A row that cannot be the event's result is read again before it is published. A row that may or may not be
the result is read again after it is published.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from typing import Final

from schemas.mutation_event import MutationEvent, MutationKind
from source_connector.encoding.projection import Projection
from source_connector.encoding.selection import Selection
from source_connector.events.events_message import STALE_AFTER_S, PendingEvent
from source_connector.host.record import SourceRecord
from source_connector.rows.early_reads import WITHIN_S, LaterDeletions, Outcome, is_young, outcome_of, pause_s
from source_connector.rows.partition_lanes import Work
from source_connector.rows.publication import event_time_of, latest_writetime_us, row_properties
from source_connector.rows.read_request import RawRow, ReadLevel, ReadRequest, Rows
from source_connector.rows.row_expiry import GONE, NextExpiry, add_expiry, after_expiry, is_of_expiry
from source_connector.rows.task import Reading, Task, TaskOwner

__all__ = ["RowTask", "may_be_overtaken"]

# How often to check whether a newer event of the key is waiting, which makes a second read unnecessary.
_LOOK_S: Final = 0.2
# How often a row that should have expired is read. Each pause lasts until it expires by the clock of the last node.
_EXPIRY_READS: Final = 4
_FIRST: Final = ReadLevel.FIRST
_HIGHER: Final = ReadLevel.HIGHER
_ROW_DELETION: Final = MutationKind.ROW_DELETION
_NO_DELETIONS: Final = LaterDeletions()
_NONE: Final[frozenset[PendingEvent]] = frozenset()
_NO_OTHERS: Final[Sequence[tuple[PendingEvent, Outcome]]] = ()
_WRITETIME: Final = struct.Struct(">q")


class RowTask(Task):
    """One row or one static row."""

    def __init__(self, work: Work, owner: TaskOwner) -> None:
        super().__init__(work, owner)
        self._projection: Projection
        self._schema_id: int
        self._selection: Selection
        self._reading: Reading
        self._read_at = self._started_at = 0.0
        self._early_reads = self._expiry_reads = 0
        self._is_second_read = self._was_late = False
        self._proven: list[PendingEvent]
        # Events whose write may be missing in the row that was read, because no write time tells.
        self._unsure: Sequence[PendingEvent] = ()
        # Events that the read does not prove, with its outcome for each of them.
        self._others: Sequence[tuple[PendingEvent, Outcome]]
        self._tied: frozenset[PendingEvent] = _NONE
        self._published: SourceRecord | None = None

    def start(self) -> None:
        """Read at the first level if that can prove every event, else at the higher level."""
        owner = self.owner
        self._projection, self._schema_id, self._reading = owner.projection, owner.schema_id, owner.reading
        self._selection = self._projection.selection_for(self.work.newest.kind)
        self._published, self.refused_bytes = None, 0
        self._early_reads, self._expiry_reads = 0, 0
        self._is_second_read = self._was_late = False
        if not self._selection.value_columns:  # a static row, and no static column is published
            owner.settle(self, ())
            return
        self._find_tied()
        provable = not self._reading.proves or (
            not self._tied and all(is_provable(pending.event, self._selection) for pending in self.work.events)
        )
        self._read(_FIRST if provable else _HIGHER)
        self._started_at = self._read_at

    def _find_tied(self) -> None:
        tied = self.owner.write_times.tied(self.work.events)
        self._tied = frozenset(tied) if tied else _NONE

    def on_rows(self, rows: Rows) -> None:
        """Publish the row, unless another read is needed first."""
        row = rows.rows[0] if rows.rows else None
        self._judge(rows, row)
        self._unsure = ()
        if self._reading.proves and self._others and self._asks_again(rows):
            return
        if self._is_second_read and row is None and self.work.newest.event.live_cell_writetime_us is not None:
            # The row was deleted since the first read, and the event of the deletion is still to come. So no null is
            # needed: a proven change would have shown at the first read, and the copies of an unproven one are not
            # suppressed.
            self._settle()
            return
        events = self.work.events
        if row is not None and is_of_expiry(events) and not self._has_expired(row):
            return
        properties = row_properties(self._projection, events)
        expiries: Sequence[NextExpiry] = ()
        if row is not None:
            expiries = add_expiry(properties, self._projection, self._selection, row, events)
        record = SourceRecord(
            self._schema_id,
            self._projection.event_key(self.work.newest.event, self.work.newest.message.key_schema),
            self._projection.deleted if row is None else self._value(row),
            properties,
            event_time_of(latest_writetime_us(events)),
        )
        # Also if the topic has this row already: a record does not say when an element of a collection expires.
        for expiry in expiries:
            self.owner.schedule(self, self.work.newest, self.work.newest.clustering, expiry)
        if self._published is not None and record.equals(self._published):
            self._settle()
            return
        last_rows = self.owner.last_rows
        if last_rows is not None:
            if last_rows.holds(record):
                self._settle()
                return
            last_rows.is_on_its_way(record)
        self._published = record
        self.owner.publish(self, record)

    def _has_expired(self, row: RawRow) -> bool:
        """True when a part of the row has expired, so that the row is to be published.

        Otherwise the part is still there, or was written again. Then the row is read again later, or the task is
        settled.
        """
        wait_s = after_expiry(self._projection, self._selection, row, self.work.events, self._expiry_reads)
        if wait_s == GONE:
            return True
        self._expiry_reads += 1
        if wait_s > 0.0 and self._expiry_reads < _EXPIRY_READS:
            self._published = None  # after a truncation the same row is to be published again
            step = self._look_at_expiry_again
            self.owner.later(self, wait_s, step, counted_as="expiries_looked_at_again", is_long=True)
        else:
            self._settle()
        return False

    def _look_at_expiry_again(self) -> None:
        """Read again, with the waiting events. One of them may be so new that a replica does not show its write yet.

        So the task counts as just begun.
        """
        self._started_at, self._early_reads = time.monotonic(), 0
        self._read_with_what_waits()

    def _judge(self, rows: Rows, row: RawRow | None) -> None:
        """Find the events that the read proves, and its outcome for the others.

        The newest event comes first, because a later deletion explains why the write of an earlier event is missing.
        """
        events = self.work.events
        if len(events) == 1:  # nearly always
            only = events[0]
            doubt = self._doubt(only, _NO_DELETIONS, rows, row)
            self._proven, self._others = ([only], _NO_OTHERS) if doubt is None else ([], [(only, doubt)])
            return
        later = LaterDeletions()
        proven: list[PendingEvent] = []
        others: list[tuple[PendingEvent, Outcome]] = []
        for pending in reversed(events):
            doubt = self._doubt(pending, later, rows, row)
            if doubt is None:
                proven.append(pending)
            else:
                others.append((pending, doubt))
            later.add(pending.event)
        self._proven, self._others = proven[::-1], others[::-1]

    def _doubt(self, pending: PendingEvent, later: LaterDeletions, rows: Rows, row: RawRow | None) -> Outcome | None:
        """The read's outcome for an event that the read does not prove; None if it proves the event."""
        if self._is_shown(pending, rows, row):
            return None
        outcome = self._outcome(pending, later, row)
        return None if outcome is Outcome.POSSIBLE and self._is_of_all(pending, rows) else outcome

    def _asks_again(self, rows: Rows) -> bool:
        """Read again if that may prove the other events: from more replicas, or later. True if a read follows."""
        if rows.request.level is _FIRST and not rows.is_fallback:
            self._read(_HIGHER)
            return True
        if any(outcome is Outcome.IMPOSSIBLE for _, outcome in self._others):
            self._early_reads += 1
            pause = pause_s(self._early_reads)
            self.owner.later(self, pause, self._read_with_what_waits, counted_as="reads_too_early")
            return True
        self._unsure = [each for each, outcome in self._others if outcome is Outcome.UNKNOWN]
        for each in self._unsure:
            each.unsure_since = each.unsure_since or self._started_at
        return False

    def on_all_acknowledged(self) -> None:
        """Settle. If the record came so late that another instance may have published a newer row, read again first.

        That happens only once, because later changes have their own events. So a busy row on a slow topic is settled,
        too.
        """
        if not self._was_late and may_be_overtaken(self.work, self._read_at):
            self._was_late = True
            self._read(_FIRST)
            return
        last_rows = self.owner.last_rows
        if last_rows is not None and self._published is not None:
            last_rows.is_published(self._published)
        self._settle()

    def _settle(self) -> None:
        if self._unsure:
            self._settle_when_sure()
        else:
            self.owner.settle(self, self._proven)

    def _settle_when_sure(self) -> None:
        """Read once more when the events' writes are surely visible.

        That is not necessary if a waiting event causes a read: then that read settles these events, too.
        """
        lanes = self.work.lanes
        if lanes is not None and lanes.hand_over(self.work, self._unsure, self.owner.is_published):
            self.owner.settle(self, self._proven)
        elif time.monotonic() - self._read_at < WITHIN_S:
            self.owner.later(self, _LOOK_S, self._settle_when_sure)
        else:
            self._is_second_read = True
            self._read_higher()

    def _read_with_what_waits(self) -> None:
        """Read again, with the waiting events: one may be the deletion that explains why the write is not visible.

        After a change of the table's definition they keep waiting, for they may have columns that this read does not
        select.
        """
        owner, lanes = self.owner, self.work.lanes
        if lanes is not None and owner.may_read_waiting and owner.projection is self._projection:
            before = len(self.work.events)
            lanes.take_behind(self.work)
            for each in self.work.events[before:]:
                each.unsure_since = each.unsure_since or time.monotonic()
            self._find_tied()
        self._read_higher()

    def _read_higher(self) -> None:
        self._read(_HIGHER)

    def _outcome(self, pending: PendingEvent, later: LaterDeletions, row: RawRow | None) -> Outcome:
        """The outcome of the read for an event; `POSSIBLE` if the event's write is surely visible by now."""
        # The time of the read counts, not that of its answer: the answer may be late.
        read_s = self.owner.cluster_time_s() - (time.monotonic() - self._read_at)
        # The nodes' clocks may differ. The monotonic time sees to it that a wrong clock delays no event for longer than
        # a right one.
        if self._read_at - (pending.unsure_since or self._started_at) > WITHIN_S or not is_young(pending, read_s):
            return Outcome.POSSIBLE
        outcome = outcome_of(pending.event, later, self._selection, row, read_s)
        return Outcome.UNKNOWN if outcome is Outcome.POSSIBLE and self._may_lack(pending, row) else outcome

    def _may_lack(self, pending: PendingEvent, row: RawRow | None) -> bool:
        """True when the row may lack the event's change in spite of its write times: they do not replace the change."""
        event = pending.event
        if pending in self._tied:
            return True
        is_increment = self._projection.table.is_counter and event.live_cell_writetime_us is not None
        return is_increment and row is not None and not _has_its_write_time(event, self._selection, row)

    def _value(self, row: RawRow) -> bytes:
        newest = self.work.newest
        return self._projection.row_value(self._selection, row, newest.partition_key, newest.clustering)

    def _read(self, level: ReadLevel) -> None:
        newest = self.work.newest
        self._read_at = time.monotonic()
        request = ReadRequest(
            self._projection, newest.kind, self.work.partition_key, level, newest.message.node_id, newest.clustering
        )
        self.owner.read(self, request)

    def _is_shown(self, pending: PendingEvent, rows: Rows, row: RawRow | None) -> bool:
        """True when write times prove the event's change, or no proof is required."""
        if not self._may_prove(pending, rows):
            return False
        if not self._reading.proves:
            return True
        event = pending.event
        if row is None or event.live_cell_writetime_us is None or pending in self._tied:
            return False
        if _has_its_write_time(event, self._selection, row):
            return True
        return not self._projection.table.is_counter and holds_change(event, self._selection.writetimes_us(row))

    def _is_of_all(self, pending: PendingEvent, rows: Rows) -> bool:
        """True when all replicas answered, among them the event's node."""
        is_of_all = rows.consistency == "ALL" and self.owner.knows(pending.message.node_id)
        return is_of_all and self._may_prove(pending, rows)

    def _may_prove(self, pending: PendingEvent, rows: Rows) -> bool:
        is_by_another = self._reading.only_by_event_node and rows.coordinator != pending.message.node_id
        return not rows.is_fallback and not is_by_another


def may_be_overtaken(work: Work, read_at: float) -> bool:
    """True when a record of this work, which the broker has now, may follow a newer record of another instance.

    `read_at` is when the record's row was read, by `time.monotonic`.
    """
    now = time.monotonic()
    return now - read_at > STALE_AFTER_S or now > work.events[0].message.overtaken_after


def is_provable(event: MutationEvent, selection: Selection) -> bool:
    """True when write times can show that a read holds the event's change."""
    if event.live_cell_writetime_us is None or event.kind is _ROW_DELETION:
        return False
    places = selection.timed_places
    return any(name in places for name in event.columns)


def _has_its_write_time(event: MutationEvent, selection: Selection, row: RawRow) -> bool:
    """True when one of the event's columns has exactly the event's write time. A fast check for the usual case."""
    places, wanted = selection.timed_places, _WRITETIME.pack(event.live_cell_writetime_us)
    for name in event.columns:
        at = places.get(name)
        if at is not None and row[at] == wanted:
            return True
    return False


def holds_change(event: MutationEvent, writetimes: Mapping[str, int]) -> bool:
    """True when a row with these write times of its live cells cannot be older than the event.

    A later write of one column alone proves nothing: it may have reached a replica that has not seen the event. Not for
    counters: each replica that was leader of an increment has its own shard, and the cell has the latest time of all.
    """
    live = event.live_cell_writetime_us
    if live is None:
        return False
    times = [writetimes.get(name) for name in event.columns]
    return live in times or (bool(times) and all(time is not None and time >= live for time in times))
