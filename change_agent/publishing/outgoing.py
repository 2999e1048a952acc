"""Events between the reader and their messages.

Every event passes through here, so it is compiled. Pure: it uses no threads, files or clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, final
from uuid import UUID

from change_agent.events.mutation_events import EventKeys, TableEvent
from change_agent.positions.accounts import TrackedEntry
from schemas.mutation_event import MutationEvent
from schemas.topics import partition_of_token

__all__ = [
    "CollectedEvents",
    "MessageHeader",
    "OutgoingEvent",
    "WaitingEvents",
    "event_size",
    "header_of",
    "route",
    "runs_by_table",
    "size_of",
]

# Bytes of an event beside its keys, estimated.
_EVENT_BYTES = 64


class MessageHeader(NamedTuple):
    """What the events of one message have in common."""

    node_id: UUID
    segment_id: int
    keyspace: str
    table: str
    table_id: UUID
    key_schema: str


@final
class OutgoingEvent:
    """An event, the log entry that waits for it, and its size (estimated bytes in a message).

    `entry` is None when the log does not wait any more: the event is held on disk.
    """

    __slots__ = ("entry", "event", "header", "size")

    def __init__(self, header: MessageHeader, event: MutationEvent, entry: TrackedEntry | None, size: int) -> None:
        self.header = header
        self.event = event
        self.entry = entry
        self.size = size


def header_of(keys: EventKeys, node_id: UUID, segment_id: int) -> MessageHeader:
    """The header of a table's events of one segment."""
    table = keys.table
    return MessageHeader(node_id, segment_id, table.keyspace, table.name, table.table_id, keys.schema)


def event_size(event: MutationEvent) -> int:
    """About how many bytes of a message an event takes: its key stands there twice, as Avro and as CQL bytes."""
    return _EVENT_BYTES + 2 * len(event.key)


def size_of(events: Sequence[OutgoingEvent]) -> int:
    """The size of all of them."""
    size = 0
    for event in events:
        size += event.size
    return size


@final
class CollectedEvents:
    """Events of one segment that come together before they are handed over, and the entries that they are of."""

    __slots__ = ("_headers", "entries", "events", "size")

    def __init__(self) -> None:
        self._headers: dict[EventKeys, MessageHeader] = {}
        self.events: list[OutgoingEvent] = []
        self.entries: list[TrackedEntry] = []
        self.size = 0

    def begin_segment(self) -> None:
        """What is added from now on is of one segment, up to the next call."""
        self._headers.clear()

    def add(self, segment_id: int, position: int, node_id: UUID, events: Sequence[TableEvent]) -> None:
        """The events of the entry that ends at `position`."""
        tracked = TrackedEntry(segment_id, position, len(events))
        self.entries.append(tracked)
        for each in events:
            keys = each.keys
            event = each.event
            header = self._headers.get(keys)
            if header is None:
                header = self._headers[keys] = header_of(keys, node_id, abs(segment_id))
            size = event_size(event)
            self.events.append(OutgoingEvent(header, event, tracked, size))
            self.size += size

    def clear(self) -> None:
        """They are handed over."""
        self.events = []
        self.entries = []
        self.size = 0


def runs_by_table(events: Sequence[OutgoingEvent]) -> list[list[OutgoingEvent]]:
    """The same events in the same order, cut where the header changes: most often not at all."""
    runs: list[list[OutgoingEvent]] = []
    run: list[OutgoingEvent] = []
    header: MessageHeader | None = None
    for event in events:
        if event.header is not header:
            header = event.header
            run = []
            runs.append(run)
        run.append(event)
    return runs


@final
class WaitingEvents:
    """Events of one topic partition that are in no message yet, in order."""

    __slots__ = ("_events", "size")

    def __init__(self) -> None:
        self._events: deque[OutgoingEvent] = deque()
        self.size = 0

    def __len__(self) -> int:
        """How many there are."""
        return len(self._events)

    def add(self, event: OutgoingEvent) -> None:
        """An event behind all others."""
        self._events.append(event)
        self.size += event.size

    def take_all(self) -> list[OutgoingEvent]:
        """All of them, which do not wait any more."""
        events = list(self._events)
        self._events.clear()
        self.size = 0
        return events

    def take(self, max_events: int, max_bytes: int) -> list[OutgoingEvent]:
        """Those at the head that share a segment and a table, as many as a message may carry; at least one of any size."""
        waiting = self._events
        first = waiting[0]
        header = first.header
        is_held = first.entry is None
        taken: list[OutgoingEvent] = []
        size = 0
        while waiting and len(taken) < max_events:
            event = waiting[0]
            if (event.header is not header and event.header != header) or (event.entry is None) != is_held:
                break
            if taken and size + event.size > max_bytes:
                break
            waiting.popleft()
            taken.append(event)
            size += event.size
        self.size -= size
        return taken


def route(
    events: Iterable[OutgoingEvent], lanes: Sequence[WaitingEvents], token_of: Callable[[bytes], int]
) -> set[int]:
    """Add each event to the lane of its partition, by its row's token; the indexes of the lanes that got some."""
    touched: set[int] = set()
    count = len(lanes)
    for event in events:
        index = partition_of_token(token_of(event.event.partition_key), count)
        lanes[index].add(event)
        touched.add(index)
    return touched
