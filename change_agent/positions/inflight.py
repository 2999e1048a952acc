"""InflightPositions: entries that are read and not acknowledged, and how far each segment is done without a gap."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from change_agent.cdc_raw.segment_key import SegmentKey, is_read_again, segment_id_of
from change_agent.positions.accounts import SegmentAccount, TrackedEntry, settle

__all__ = ["InflightPositions", "Place", "SegmentProgress", "TrackedEntry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentProgress:
    """`position`: everything before it is acknowledged. `read_to_end`: nothing more will be read of this segment.

    `done` says that both hold for all of it; `keep` that the file must stay although it is done. `fault` is the first
    thing in it that could not be read.
    """

    position: int
    read_to_end: bool
    done: bool
    keep: bool
    fault: str | None


class Place(NamedTuple):
    """Everything before it in the commit log was acknowledged; everything that was synced before `until_ms`, too (0: unknown)."""

    segment_id: int
    position: int
    until_ms: int


class InflightPositions:
    """Shared by the reader (tracks, advances, waits for room), the publisher (acknowledges) and the positions' writer.

    The position of a segment only moves over an unbroken prefix of acknowledged entries. Room is bounded by events and
    by bytes, over all tables: the reader waits when either is used up.
    """

    def __init__(self, *, max_events: int, max_bytes: int) -> None:
        self._max_events: Final = max_events
        self._max_bytes: Final = max_bytes
        self._changed: Final = threading.Condition()
        self._segments: Final[dict[SegmentKey, SegmentAccount]] = {}
        self._events = 0
        self._bytes = 0
        self._waits_for_room = False
        # Of the last segment that was forgotten.
        self._last_place = (0, 0)
        # Of the positions that were stored when the agent started.
        self._stored_place = (0, 0)
        # What `progress` said, until something changes: it is asked several times a second.
        self._progress: dict[SegmentKey, SegmentProgress] | None = None
        self._read_until_ms = 0
        self._acknowledged_until_ms = 0

    @property
    def events(self) -> int:
        """Events that are not acknowledged."""
        return self._events

    @property
    def bytes(self) -> int:
        """Their size, as estimated when room was taken."""
        return self._bytes

    @property
    def waits_for_room(self) -> bool:
        """True while what comes next does not fit beside what is not acknowledged."""
        return self._waits_for_room

    @property
    def acknowledged_until_ms(self) -> int:
        """Everything that Cassandra synced before this time (since the epoch) is with the broker; 0 when unknown."""
        return self._acknowledged_until_ms

    @property
    def acknowledged_place(self) -> Place:
        """Everything before it is acknowledged, in whatever segment."""
        with self._changed:
            unfinished = [
                (segment_id_of(key), each.acknowledged)
                for key, each in self._segments.items()
                if not is_read_again(key) and (each.entries or not each.read_to_end)
            ]
            return Place(*min(unfinished, default=self._last_place), self._acknowledged_until_ms)

    @property
    def read_place(self) -> Place:
        """Nothing after it was handed over yet, or it is handed over again."""
        with self._changed:
            read = [(key, each.read_position) for key, each in self._segments.items()]
            return Place(*max(self._stored_place, self._last_place, *read), self._read_until_ms)

    def go_on_from(self, place: tuple[int, int]) -> None:
        """An earlier agent was done with the log up to this segment id and position."""
        with self._changed:
            self._stored_place = place

    def note_read_until(self, time_ms: int) -> None:
        """Everything that Cassandra synced before this time (since the epoch) was read, and is tracked."""
        with self._changed:
            self._read_until_ms = max(self._read_until_ms, time_ms)
            if self._events == 0:
                self._acknowledged_until_ms = self._read_until_ms

    def open(self, segment: SegmentKey, position: int) -> None:
        """Begin to account for a segment whose entries up to `position` are done."""
        with self._changed:
            self._progress = None
            self._segments.setdefault(segment, SegmentAccount(position))

    def take_room(self, events: int, size: int, timeout_s: float) -> bool:
        """Wait for room and take it; False when there was none in time. One batch may always travel alone."""
        with self._changed:
            self._waits_for_room = not self._has_room(events, size)
            if self._waits_for_room and not self._changed.wait_for(lambda: self._has_room(events, size), timeout_s):
                return False
            self._waits_for_room = False
            self._events += events
            self._bytes += size
            return True

    def _has_room(self, events: int, size: int) -> bool:
        if self._events == 0:
            return True
        return self._events + events <= self._max_events and self._bytes + size <= self._max_bytes

    def give_room_back(self, events: int, size: int) -> None:
        """Room that :meth:`take_room` gave is free again."""
        with self._changed:
            self._events -= events
            self._bytes -= size
            self._changed.notify_all()

    def track(self, entries: Iterable[TrackedEntry]) -> None:
        """Entries whose events are about to be published, in the order of the log."""
        with self._changed:
            self._progress = None
            for entry in entries:
                assert entry.segment is not None
                self._segments[entry.segment].track(entry)

    def advance(self, segment: SegmentKey, position: int) -> None:
        """Everything up to `position` was read; what is not tracked has no events."""
        with self._changed:
            self._progress = None
            account = self._segments[segment]
            account.read_position = max(account.read_position, position)
            account.move()

    def finish(self, *segments: SegmentKey) -> None:
        """Nothing more will be read of these segments."""
        with self._changed:
            self._progress = None
            for segment in segments:
                self._segments[segment].read_to_end = True

    def keep(self, segment: SegmentKey) -> None:
        """The segment's file must stay: something in it could not be published."""
        with self._changed:
            self._progress = None
            self._segments[segment].keep = True

    def note_fault(self, segment: SegmentKey, fault: str) -> None:
        """Something in the segment could not be read; the first fault is remembered."""
        with self._changed:
            self._progress = None
            account = self._segments[segment]
            account.fault = account.fault or fault

    def acknowledge(self, entries: Iterable[TrackedEntry], events: int, size: int) -> None:
        """One event of each given entry is with the broker (an entry is named once per event)."""
        with self._changed:
            self._progress = None
            for segment in settle(entries):
                if (account := self._segments.get(segment)) is not None:
                    account.move()
            self._events -= events
            self._bytes -= size
            if self._events == 0:
                self._acknowledged_until_ms = self._read_until_ms
            self._changed.notify_all()

    def progress(self) -> Mapping[SegmentKey, SegmentProgress]:
        """How far each open segment is."""
        with self._changed:
            if self._progress is None:
                self._progress = {
                    segment: SegmentProgress(
                        position=account.acknowledged,
                        read_to_end=account.read_to_end,
                        done=account.read_to_end and not account.entries,
                        keep=account.keep,
                        fault=account.fault,
                    )
                    for segment, account in self._segments.items()
                }
            return self._progress

    def forget(self, segment: SegmentKey) -> None:
        """A segment that is done and stored as done needs no account any more."""
        with self._changed:
            self._progress = None
            account = self._segments.pop(segment, None)
            if account is not None:
                self._last_place = max(self._last_place, (segment, account.read_position))

    def wait_until_empty(self, timeout_s: float) -> bool:
        """True when every event was acknowledged in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._events == 0, timeout_s)
