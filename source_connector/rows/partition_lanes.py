"""Decides which waiting events may be processed now: in order per key, and per partition around deletions. Pure.

Events of one key keep their order: while one is processed, later ones wait. A single read settles all that have
gathered meanwhile, because a read returns the current row. The same holds for static events of one partition, up to the
next deletion of many rows in it.

Events of different keys are processed in parallel, except those that concern a whole partition (static row, range and
partition deletion). Such an event waits for everything before it in its partition, and delays everything after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, final

from schemas.mutation_event import EXPIRY_SEGMENT_ID, MutationKind
from source_connector.events.events_message import PendingEvent

__all__ = ["PartitionLanes", "Work"]

_ROW: Final = MutationKind.ROW
_ROW_DELETION: Final = MutationKind.ROW_DELETION
_STATIC_ROW: Final = MutationKind.STATIC_ROW


def _is_of_one_row(pending: PendingEvent) -> bool:
    kind = pending.kind
    return kind is _ROW or kind is _ROW_DELETION


@final
class Work:
    """Events of one key that are settled together, oldest first. A deletion of many rows is always alone.

    `lanes` is the `PartitionLanes` that the work came from and goes back to.
    """

    __slots__ = ("behind", "events", "key", "lanes", "partition_key")

    def __init__(self, events: list[PendingEvent], lanes: PartitionLanes | None = None) -> None:
        first = events[0]
        self.events = events
        self.lanes = lanes
        self.key = first.key
        self.partition_key = first.partition_key
        self.behind: list[PendingEvent] | None = None
        """Later events of the key, which wait for this work. The lanes use it; it is created for the first event."""

    @property
    def newest(self) -> PendingEvent:
        """The last of the events."""
        return self.events[-1]

    @property
    def place(self) -> str:
        """The key, and the newest event's position in the commit log, for log lines."""
        return f"key {self.newest.key.hex()} of {self.log_place}"

    @property
    def log_place(self) -> str:
        """The newest event's position in the commit log, for log lines without keys."""
        newest = self.newest
        return f"{newest.message.segment_id}:{newest.event.position}"

    def with_newest(self, pending: PendingEvent) -> Work:
        """The same work, with this event in place of its newest one."""
        return Work([*self.events[:-1], pending], self.lanes)

    @property
    def is_of_one_row(self) -> bool:
        """False when the whole partition is concerned."""
        return _is_of_one_row(self.newest)


@final
class _Lane:
    """One partition: the events that may not start yet, and the work that is not finished, which later events wait for."""

    __slots__ = ("_first", "_others", "held_back", "is_exclusive")

    def __init__(self) -> None:
        self.held_back: deque[PendingEvent] | None = None
        """Created for the first event, because most partitions never hold one back."""
        self.is_exclusive = False
        # Most partitions have work on one key. A dictionary for it would cost more than all the rest of a lane, so only
        # the work on further keys is in one.
        self._first: Work | None = None
        self._others: dict[bytes, Work] | None = None

    @property
    def is_idle(self) -> bool:
        """True when no work is to be finished."""
        return self._first is None and not self._others

    def work_on(self, key: bytes) -> Work | None:
        """The unfinished work on the key."""
        first = self._first
        if first is not None and first.key == key:
            return first
        return None if self._others is None else self._others.get(key)

    def begin(self, work: Work) -> None:
        """Add work on a key that no other work is on."""
        if self._first is None:
            self._first = work
            return
        if self._others is None:
            self._others = {}
        self._others[work.key] = work

    def finish(self, key: bytes) -> list[PendingEvent] | None:
        """Remove the work on the key. Return the events that waited for it. Raises KeyError if there is none."""
        first = self._first
        if first is not None and first.key == key:
            self._first = None
            return first.behind
        if self._others is None:
            raise KeyError(key)
        return self._others.pop(key).behind

    def waiting(self) -> list[PendingEvent]:
        """All events that wait, for work or in the order of the partition."""
        works = [] if self._first is None else [self._first]
        if self._others is not None:
            works += self._others.values()
        found = [pending for work in works for pending in work.behind or ()]
        found += self.held_back or ()
        return found


def _is_static(pending: PendingEvent) -> bool:
    """True when the event is surely about a static row. An event of DataStax's agents may be a partition deletion."""
    return pending.kind is _STATIC_ROW and pending.message.raw is None


def _take_static(lane: _Lane) -> list[PendingEvent]:
    """Take the static events that are held back, up to the next deletion of many rows.

    One read settles them, although events of rows may have come between them.
    """
    held_back = lane.held_back
    if not held_back:
        return []
    taken: list[PendingEvent] = []
    rest: deque[PendingEvent] = deque()
    while held_back and (_is_static(held_back[0]) or _is_of_one_row(held_back[0])):
        pending = held_back.popleft()
        (taken if _is_static(pending) else rest).append(pending)
    held_back.extendleft(reversed(rest))
    return taken


class PartitionLanes:
    """All partitions with events that are not settled; the caller that adds events bounds the memory."""

    def __init__(self) -> None:
        self._lanes: dict[bytes, _Lane] = {}
        self._startable: deque[Work] = deque()

    def __len__(self) -> int:
        return len(self._lanes)

    def add(self, pending: PendingEvent) -> None:
        """Add an event. Events come in the order of their topic partition."""
        partition_key = pending.partition_key
        lane = self._lanes.get(partition_key)
        if lane is None:
            lane = self._lanes[partition_key] = _Lane()
        if not lane.held_back and not lane.is_exclusive and _is_of_one_row(pending):
            self._place(lane, pending)
            return
        if lane.held_back is None:
            lane.held_back = deque()
        lane.held_back.append(pending)
        self._advance(lane)

    @property
    def startable(self) -> int:
        """How much work `next_startable` would give."""
        return len(self._startable)

    def next_startable(self) -> Work:
        """Take the next work that may start. It must come back by `finished`."""
        return self._startable.popleft()

    def waiting(self) -> list[PendingEvent]:
        """All events, except those of work that was started."""
        found = [pending for work in self._startable for pending in work.events]
        for lane in self._lanes.values():
            found += lane.waiting()
        return found

    def hand_over(
        self, work: Work, events: Sequence[PendingEvent], is_published: Callable[[PendingEvent], bool]
    ) -> bool:
        """Let the events that wait behind the work settle these of its events, too.

        False if no waiting event is sure to read the row: an expiry may end without a record, a copy of a change is not
        read, and an event of the whole partition may not read the row. Events of DataStax's agents are not settled
        together with these.
        """
        digests = {pending.digest for pending in work.events}
        behind = self._behind(self._lanes[work.partition_key], work)
        reads = any(
            each.digest not in digests and each.message.segment_id != EXPIRY_SEGMENT_ID and not is_published(each)
            for each in behind
        )
        if not reads or any(each.message.raw is not None for each in behind):
            return False
        behind[:0] = events
        handed_over = set(map(id, events))
        work.events = [each for each in work.events if id(each) not in handed_over]
        return True

    def take_behind(self, work: Work) -> None:
        """Add the events that wait for this work to the work, unless some are of DataStax's agents.

        For a static row, also add its events that wait behind rows of its partition. Events after a deletion of many
        rows are not added, because the deletion's marker would erase the record.
        """
        lane = self._lanes[work.partition_key]
        behind = self._behind(lane, work)
        if all(each.message.raw is None for each in behind):
            work.events += behind
            behind.clear()
        if _is_static(work.newest):
            work.events += _take_static(lane)

    def finished(self, work: Work) -> None:
        """Note that the work is settled. The events that waited for it may start."""
        lane = self._lanes[work.partition_key]
        behind = lane.finish(work.key)
        lane.is_exclusive = False
        if behind:
            self._begin(lane, behind)
        if lane.held_back:
            self._advance(lane)
        if lane.is_idle and not lane.held_back:
            del self._lanes[work.partition_key]

    def _behind(self, lane: _Lane, work: Work) -> list[PendingEvent]:
        """The events that wait for this work; an empty list, which may be changed, if none waits yet."""
        unfinished = lane.work_on(work.key)
        if unfinished is None:
            raise KeyError(work.key)
        if unfinished.behind is None:
            unfinished.behind = []
        return unfinished.behind

    def _advance(self, lane: _Lane) -> None:
        while lane.held_back and not lane.is_exclusive:
            pending = lane.held_back[0]
            if not _is_of_one_row(pending):
                if not lane.is_idle:
                    return
                lane.is_exclusive = True
            lane.held_back.popleft()
            if _is_static(pending):
                self._begin(lane, [pending, *_take_static(lane)])
            else:
                self._place(lane, pending)

    def _place(self, lane: _Lane, pending: PendingEvent) -> None:
        """Put the event behind the work on its key, or make it work of its own."""
        unfinished = None if lane.is_idle else lane.work_on(pending.key)
        if unfinished is None:
            self._begin(lane, [pending])
        elif unfinished.behind is None:
            unfinished.behind = [pending]
        else:
            unfinished.behind.append(pending)

    def _begin(self, lane: _Lane, events: list[PendingEvent]) -> None:
        work = Work(events, self)
        lane.begin(work)
        self._startable.append(work)
