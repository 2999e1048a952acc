"""InflightPositions: entries that are read but not acknowledged, and how far each segment is done without a gap."""

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

    `done`: the segment is read to its end, and all of it is acknowledged. `is_lost`: it is done although it was not read
    in full, because its file is gone. `keep`: the file must stay although the segment is done. `fault` describes the
    first part of it that could not be read.
    """

    position: int
    read_to_end: bool
    done: bool
    is_lost: bool
    keep: bool
    fault: str | None


class Place(NamedTuple):
    """A place in the commit log up to which everything is acknowledged, or read (`read_place`).

    The same holds for everything that was synced before `until_ms` (0: unknown).
    """

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
        # The last place of the newest segment that was forgotten.
        self._last_place = (0, 0)
        # The last place of the positions from which this agent continues.
        self._stored_place = (0, 0)
        # The last result of `progress`, which is called several times a second; None after a change.
        self._progress: dict[SegmentKey, SegmentProgress] | None = None
        self._read_until_ms = 0
        self._acknowledged_until_ms = 0

    @property
    def events(self) -> int:
        """The number of unacknowledged events."""
        return self._events

    @property
    def bytes(self) -> int:
        """The size of the unacknowledged events, as estimated when room was taken."""
        return self._bytes

    @property
    def waits_for_room(self) -> bool:
        """True while the reader's next batch does not fit beside the unacknowledged events."""
        return self._waits_for_room

    @property
    def acknowledged_until_ms(self) -> int:
        """Everything that Cassandra synced before this time (since the epoch) is acknowledged; 0 when unknown."""
        return self._acknowledged_until_ms

    @property
    def acknowledged_place(self) -> Place:
        """The place in the log before which everything is acknowledged, in all segments."""
        with self._changed:
            unfinished = [
                (segment_id_of(key), each.acknowledged)
                for key, each in self._segments.items()
                if not is_read_again(key) and (each.entries or not each.read_to_end)
            ]
            return Place(*min(unfinished, default=self._last_place), self._acknowledged_until_ms)

    @property
    def read_place(self) -> Place:
        """The place in the log after which nothing was handed over, apart from events that are handed over again."""
        with self._changed:
            read = [(key, each.read_position) for key, each in self._segments.items()]
            return Place(*max(self._stored_place, self._last_place, *read), self._read_until_ms)

    def go_on_from(self, place: tuple[int, int]) -> None:
        """Note that an earlier agent was done with the log up to this segment id and position."""
        with self._changed:
            self._stored_place = place

    def note_read_until(self, time_ms: int) -> None:
        """Note that everything that Cassandra synced before this time (since the epoch) was read, and is tracked."""
        with self._changed:
            self._read_until_ms = max(self._read_until_ms, time_ms)
            if self._events == 0:
                self._acknowledged_until_ms = self._read_until_ms

    def open(self, segment: SegmentKey, position: int) -> None:
        """Begin to keep account of a segment whose entries up to `position` are done."""
        with self._changed:
            self._progress = None
            self._segments.setdefault(segment, SegmentAccount(position))

    def take_room(self, events: int, size: int, timeout_s: float) -> bool:
        """Wait for room and take it; False when there is none in time. A batch alone always has room."""
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
        """Give back room that :meth:`take_room` has taken."""
        with self._changed:
            self._events -= events
            self._bytes -= size
            self._changed.notify_all()

    def track(self, entries: Iterable[TrackedEntry]) -> None:
        """Add entries whose events are about to be published, in the order of the log."""
        with self._changed:
            self._progress = None
            for entry in entries:
                assert entry.segment is not None
                self._segments[entry.segment].track(entry)

    def track_again(self, segment: SegmentKey, events: int) -> TrackedEntry:
        """Add an entry whose events are about to be published again, behind all that was read of its segment.

        So the segment is not done before they are acknowledged. If its account is closed, nothing waits for the entry.
        """
        with self._changed:
            account = self._segments.get(segment)
            if account is None:
                return TrackedEntry(None, 0, events)
            self._progress = None
            entry = TrackedEntry(segment, account.read_position, events)
            account.track(entry)
            return entry

    def advance(self, segment: SegmentKey, position: int) -> None:
        """Note that everything up to `position` was read. Entries that are not tracked have no events."""
        with self._changed:
            self._progress = None
            account = self._segments[segment]
            account.read_position = max(account.read_position, position)
            account.move()

    def finish(self, *segments: SegmentKey) -> None:
        """Note that nothing more will be read of these segments."""
        with self._changed:
            self._progress = None
            for segment in segments:
                self._segments[segment].read_to_end = True

    def abandon(self, *segments: SegmentKey) -> None:
        """Note that these segments are gone, and that it was reported that they were not read in full.

        So no file has to be kept, and a fault is of no importance any more.
        """
        with self._changed:
            self._progress = None
            for account in filter(None, map(self._segments.get, segments)):
                account.read_to_end = account.is_lost = True
                account.keep, account.fault = False, None

    def keep(self, segment: SegmentKey) -> None:
        """Note that the segment's file must stay, because a part of it could not be published."""
        with self._changed:
            self._progress = None
            self._segments[segment].keep = True

    def note_fault(self, segment: SegmentKey, fault: str) -> None:
        """Note that a part of the segment could not be read. Only the first fault is kept."""
        with self._changed:
            self._progress = None
            account = self._segments[segment]
            account.fault = account.fault or fault

    def acknowledge(self, entries: Iterable[TrackedEntry], events: int, size: int) -> None:
        """Note one acknowledged event for each of `entries`, which has an entry once per event, and free their room."""
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
        """The progress of each segment that is accounted for."""
        with self._changed:
            if self._progress is None:
                self._progress = {
                    segment: SegmentProgress(
                        position=account.acknowledged,
                        read_to_end=account.read_to_end,
                        done=account.read_to_end and not account.entries,
                        is_lost=account.is_lost,
                        keep=account.keep,
                        fault=account.fault,
                    )
                    for segment, account in self._segments.items()
                }
            return self._progress

    def forget(self, segment: SegmentKey) -> None:
        """Remove the account of a segment that is done and stored as done."""
        with self._changed:
            self._progress = None
            account = self._segments.pop(segment, None)
            if account is not None:
                self._last_place = max(self._last_place, (segment, account.read_position))

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Wait until every event is acknowledged; False when that takes longer than `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._events == 0, timeout_s)
