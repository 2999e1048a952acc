"""TopicLane: events of one topic partition on their way: waiting, packed into messages, sent, acknowledged, in order."""

from __future__ import annotations

import base64
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, final
from uuid import UUID

from change_agent.event_producers import EventProducer
from change_agent.inflight import TrackedEntry
from change_agent.mutation_events import EventKeys
from schemas.mutation_event import MutationEvent, MutationEvents, encode_events

__all__ = ["OutgoingEvent", "Packing", "SentMessage", "TopicLane"]

# Messages on their way at which events begin to wait for company; below it each goes at once.
_EAGER_MESSAGES: Final = 2
# Full messages on their way; more only fills the client's memory.
_MAX_MESSAGES: Final = 16


class OutgoingEvent(NamedTuple):
    """An event, the log entry that waits for it, and its size (estimated bytes in a message)."""

    keys: EventKeys
    event: MutationEvent
    entry: TrackedEntry
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How much one message may carry."""

    max_events: int
    max_bytes: int


class SentMessage(NamedTuple):
    """A message that the broker has not acknowledged."""

    payload: bytes
    key: str | None
    entries: list[TrackedEntry]
    size: int


@final
class TopicLane:
    """Owned by the publisher's thread. A producer that fails is replaced: what it had not acknowledged goes again."""

    def __init__(
        self, node_id: Callable[[], UUID], packing: Packing, on_result: Callable[[TopicLane, int, str | None], None]
    ) -> None:
        self._node_id: Final = node_id
        self._packing: Final = packing
        self._on_result: Final = on_result
        self._producer: EventProducer | None = None
        self._generation = 0
        self._waiting: Final[deque[OutgoingEvent]] = deque()
        self._waiting_bytes = 0
        self._sent: Final[deque[SentMessage]] = deque()
        # When the last message arrived, or was sent while none was on its way.
        self._moved_at = 0.0
        # Producers that were given up since a message arrived.
        self.failures = 0

    @property
    def is_open(self) -> bool:
        """True while there is a producer."""
        return self._producer is not None

    def add(self, event: OutgoingEvent) -> None:
        """An event to be sent behind all others of this lane."""
        self._waiting.append(event)
        self._waiting_bytes += event.size

    def open(self, producer: EventProducer) -> None:
        """Send by this producer from now on, first what an earlier one could not."""
        self._producer = producer
        for message in self._sent:
            self._hand_over(message)

    def send_ready(self) -> int:
        """Send what need not wait any longer; the number of messages that were sent."""
        count = 0
        while self._producer is not None and self._waiting and len(self._sent) < self._room():
            message = self._pack()
            if not self._sent:
                self._moved_at = time.monotonic()
            self._sent.append(message)
            self._hand_over(message)
            count += 1
        return count

    def _room(self) -> int:
        is_full = len(self._waiting) >= self._packing.max_events or self._waiting_bytes >= self._packing.max_bytes
        return _MAX_MESSAGES if is_full else _EAGER_MESSAGES

    def take_result(self, generation: int, error: str | None) -> SentMessage | None:
        """The result of the oldest message: the message when it was acknowledged; None when it has to go again.

        The client gives results in order. Behind a failure everything goes again, in order, so later results of the
        same producer say nothing.
        """
        if generation != self._generation:
            return None
        if error is None:
            self._moved_at = time.monotonic()
            self.failures = 0
            return self._sent.popleft()
        self.give_up()
        return None

    def is_cut_off(self, seconds: float) -> bool:
        """True when messages are on their way, none arrived for so long, and the producer has no connection."""
        if self._producer is None or not self._sent or time.monotonic() - self._moved_at < seconds:
            return False
        return not self._producer.is_connected()

    def give_up(self) -> None:
        """Do without this producer; what it had not delivered goes again by the next."""
        self._generation += 1
        self.failures += 1
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _hand_over(self, message: SentMessage) -> None:
        assert self._producer is not None
        generation = self._generation
        self._producer.send(message.payload, message.key, lambda error: self._on_result(self, generation, error))

    def _pack(self) -> SentMessage:
        """The events at the head that share a segment and a table, as many as a message may carry."""
        waiting, packing = self._waiting, self._packing
        first = waiting[0]
        events: list[MutationEvent] = []
        entries: list[TrackedEntry] = []
        size = 0
        while waiting and len(events) < packing.max_events:
            keys, event, entry, event_size = waiting[0]
            if keys is not first.keys or entry.segment_id != first.entry.segment_id:
                break
            if events and size + event_size > packing.max_bytes:
                break
            waiting.popleft()
            events.append(event)
            entries.append(entry)
            size += event_size
        self._waiting_bytes -= size
        table = first.keys.table
        payload = encode_events(
            MutationEvents(
                node_id=self._node_id(),
                segment_id=first.entry.segment_id,
                keyspace=table.keyspace,
                table=table.name,
                table_id=table.table_id,
                key_schema=first.keys.schema,
                events=tuple(events),
            )
        )
        # One event a message is for consumers of one's own, which want the row's key as the message's.
        key = base64.b64encode(events[0].key).decode() if packing.max_events == 1 else None
        return SentMessage(payload, key, entries, size)
