"""Events between the reader and their messages.

Every event passes through here, so it is compiled. Pure: it uses no threads, files or clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, final
from uuid import UUID

from change_agent.events.mutation_events import EventKeys
from change_agent.native_core import EncodedRun
from change_agent.positions.accounts import TrackedEntry
from schemas.mutation_event import MutationEvent
from schemas.topics import partition_of_token

__all__ = [
    "MessageHeader",
    "Outgoing",
    "OutgoingEvent",
    "OutgoingRun",
    "WaitingEvents",
    "count_of",
    "event_size",
    "header_of",
    "route",
    "runs_by_table",
    "size_of",
]

# Estimated bytes of an event without its keys.
_EVENT_BYTES = 64


class MessageHeader(NamedTuple):
    """The common values of the events of one message."""

    node_id: UUID
    segment_id: int
    keyspace: str
    table: str
    table_id: UUID
    key_schema: str


class Outgoing:
    """`count` events of one table and one segment. `size`: their estimated bytes in messages.

    `entry` is the log entry that waits for their acknowledgement; None if they were read from the file of held events.
    """

    __slots__ = ("count", "entry", "header", "size")

    def __init__(self, header: MessageHeader, entry: TrackedEntry | None, count: int, size: int) -> None:
        self.header = header
        self.entry = entry
        self.count = count
        self.size = size


@final
class OutgoingEvent(Outgoing):
    """One event, as a Python object."""

    __slots__ = ("event",)

    def __init__(self, header: MessageHeader, event: MutationEvent, entry: TrackedEntry | None, size: int) -> None:
        super().__init__(header, entry, 1, size)
        self.event = event


@final
class OutgoingRun(Outgoing):
    """Events that the native core has encoded. `entry` stands for all entries of their batch.

    It is done when all events of the batch are acknowledged.
    """

    __slots__ = ("run",)

    def __init__(self, header: MessageHeader, run: EncodedRun, entry: TrackedEntry) -> None:
        super().__init__(header, entry, len(run), run.size)
        self.run = run

    def split(self, partitions: int) -> list[tuple[int, OutgoingRun]]:
        """Split the events by topic partition."""
        assert self.entry is not None
        return [(index, OutgoingRun(self.header, part, self.entry)) for index, part in self.run.split(partitions)]

    def take(self, max_events: int, max_bytes: int, takes_any: bool) -> OutgoingRun:
        """Remove events from the front, and return them: see EncodedRun."""
        assert self.entry is not None
        taken = OutgoingRun(self.header, self.run.take(max_events, max_bytes, takes_any), self.entry)
        self.count -= taken.count
        self.size -= taken.size
        return taken


def header_of(keys: EventKeys, node_id: UUID, segment_id: int) -> MessageHeader:
    """The header of a table's events of one segment."""
    table = keys.table
    return MessageHeader(node_id, segment_id, table.keyspace, table.name, table.table_id, keys.schema)


def event_size(event: MutationEvent) -> int:
    """The estimated bytes of an event in a message. The message has its key twice, as Avro and as CQL bytes."""
    return _EVENT_BYTES + 2 * len(event.key)


def size_of(events: Sequence[Outgoing]) -> int:
    """The total size of the events."""
    size = 0
    for event in events:
        size += event.size
    return size


def count_of(events: Sequence[Outgoing]) -> int:
    """The total number of events."""
    count = 0
    for event in events:
        count += event.count
    return count


def runs_by_table(events: Sequence[Outgoing]) -> list[list[Outgoing]]:
    """Split the events, in order, where the header changes. Most often there is only one header."""
    runs: list[list[Outgoing]] = []
    run: list[Outgoing] = []
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

    __slots__ = ("_count", "_events", "size")

    def __init__(self) -> None:
        self._events: deque[Outgoing] = deque()
        self._count = 0
        self.size = 0

    def __len__(self) -> int:
        """The number of events."""
        return self._count

    def add(self, event: Outgoing) -> None:
        """Append events."""
        self._events.append(event)
        self._count += event.count
        self.size += event.size

    def put_back(self, events: Sequence[Outgoing]) -> None:
        """Put events that were taken in front of all others again."""
        self._events.extendleft(reversed(events))
        self._count += count_of(events)
        self.size += size_of(events)

    def take_all(self) -> list[Outgoing]:
        """Remove and return all events."""
        events = list(self._events)
        self._events.clear()
        self._count = 0
        self.size = 0
        return events

    def is_encoded(self) -> bool:
        """True when the native core has encoded the first events."""
        return isinstance(self._events[0], OutgoingRun)

    def take(self, max_events: int, max_bytes: int) -> list[OutgoingEvent]:
        """Take the first events that share a segment and a table, as many as a message may carry, but at least one.

        The first event must not be encoded.
        """
        waiting = self._events
        header = waiting[0].header
        taken: list[OutgoingEvent] = []
        size = 0
        while waiting and len(taken) < max_events:
            event = waiting[0]
            if not isinstance(event, OutgoingEvent):
                break
            if event.header is not header and event.header != header:
                break
            if taken and size + event.size > max_bytes:
                break
            waiting.popleft()
            taken.append(event)
            size += event.size
        self._count -= len(taken)
        self.size -= size
        return taken

    def take_encoded(self, max_events: int, max_bytes: int) -> list[OutgoingRun]:
        """The same if the first events are encoded."""
        waiting = self._events
        header = waiting[0].header
        taken: list[OutgoingRun] = []
        count = 0
        size = 0
        while waiting and count < max_events:
            run = waiting[0]
            if not isinstance(run, OutgoingRun) or (run.header is not header and run.header != header):
                break
            is_whole = run.count <= max_events - count and run.size <= max_bytes - size
            part = run if is_whole else run.take(max_events - count, max_bytes - size, not taken)
            if is_whole or run.count == 0:
                waiting.popleft()
            if part.count:
                taken.append(part)
            count += part.count
            size += part.size
            if not is_whole:
                break
        self._count -= count
        self.size -= size
        return taken


def route(events: Iterable[Outgoing], lanes: Sequence[WaitingEvents], token_of: Callable[[bytes], int]) -> None:
    """Add each event to the lane of its partition, by its row's token."""
    count = len(lanes)
    for event in events:
        if isinstance(event, OutgoingEvent):
            lanes[partition_of_token(token_of(event.event.partition_key), count)].add(event)
        elif isinstance(event, OutgoingRun):
            for index, part in event.split(count):
                lanes[index].add(part)
