"""TopicLane: events of one topic partition on their way: waiting, packed into messages, sent, acknowledged, in order."""

from __future__ import annotations

import base64
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, final

from change_agent.events.events_writer import write_events
from change_agent.positions.accounts import TrackedEntry
from change_agent.publishing.event_producers import EventProducer
from change_agent.publishing.outgoing import WaitingEvents, size_of
from schemas.mutation_event import MutationEvents, decode_events, encode_events

__all__ = ["Packing", "SentMessage", "TopicLane"]

# Messages on their way at which events begin to wait for company; below it each goes at once.
_EAGER_MESSAGES: Final = 2
# Full messages on their way: well below what the client takes before it blocks.
_MAX_MESSAGES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How much one message may carry."""

    max_events: int
    max_bytes: int


class SentMessage(NamedTuple):
    """A message that the broker has not acknowledged. `entries` has one for each event, or none when it is held.

    `writetime_us` is that of its first event.
    """

    payload: bytes
    key: str | None
    entries: list[TrackedEntry]
    events: int
    size: int
    writetime_us: int | None

    def halves(self) -> tuple[SentMessage, SentMessage]:
        """Two messages that say the same; of more than one event."""
        whole = decode_events(self.payload)
        middle = len(whole.events) // 2
        return (
            self._part(replace(whole, events=whole.events[:middle]), self.entries[:middle], self.size // 2),
            self._part(replace(whole, events=whole.events[middle:]), self.entries[middle:], self.size - self.size // 2),
        )

    def _part(self, events: MutationEvents, entries: list[TrackedEntry], size: int) -> SentMessage:
        writetime_us = events.events[0].writetime_us
        return SentMessage(encode_events(events), self.key, entries, len(events.events), size, writetime_us)


@final
class TopicLane:
    """Owned by the publisher's thread. A producer that fails is replaced: what it had not acknowledged goes again.

    A message that is larger than the broker takes is halved; `on_too_large` takes what cannot be halved.
    """

    def __init__(
        self,
        packing: Packing,
        on_result: Callable[[TopicLane, int, str | None], None],
        on_too_large: Callable[[SentMessage], None],
    ) -> None:
        self._packing: Final = packing
        self._on_result: Final = on_result
        self._on_too_large: Final = on_too_large
        self._producer: EventProducer | None = None
        self._generation = 0
        self.waiting: Final = WaitingEvents()
        self._sent: Final[deque[SentMessage]] = deque()
        # When each of them was sent first.
        self._sent_at: Final[deque[float]] = deque()
        # When the last message arrived, or was sent while none was on its way.
        self._moved_at = 0.0
        # Producers that were given up since a message arrived.
        self.failures = 0

    @property
    def is_open(self) -> bool:
        """True while there is a producer."""
        return self._producer is not None

    @property
    def is_usable(self) -> bool:
        """True while messages can get through."""
        return self._producer is not None and self._producer.is_connected()

    def open(self, producer: EventProducer) -> None:
        """Send by this producer from now on, first what an earlier one could not."""
        self._producer = producer
        again = list(zip(self._sent, self._sent_at, strict=True))
        self._forget_sent()
        for message, sent_at in again:
            self._send(message, sent_at)

    def send_ready(self) -> int:
        """Send what need not wait any longer; the number of messages that were sent."""
        count = 0
        while self._producer is not None and self.waiting and len(self._sent) < self._room():
            message = self._pack()
            now = time.monotonic()
            if not self._sent:
                self._moved_at = now
            self._send(message, now)
            count += 1
        return count

    def _room(self) -> int:
        is_full = len(self.waiting) >= self._packing.max_events or self.waiting.size >= self._packing.max_bytes
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
            self._sent_at.popleft()
            return self._sent.popleft()
        self.give_up()
        return None

    def unanswered_for(self) -> float:
        """Seconds since the oldest message on its way was sent first; 0 when there is none."""
        return time.monotonic() - self._sent_at[0] if self._sent_at else 0.0

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

    def take_all(self) -> list[SentMessage]:
        """Give up for good: everything that was not acknowledged, packed, in order."""
        self.give_up()
        messages = list(self._sent)
        self._forget_sent()
        while self.waiting:
            messages.append(self._pack())
        return messages

    def _forget_sent(self) -> None:
        self._sent.clear()
        self._sent_at.clear()

    def _send(self, message: SentMessage, sent_at: float) -> None:
        assert self._producer is not None
        generation = self._generation
        # Its result may be told before `send` returns.
        self._sent.append(message)
        self._sent_at.append(sent_at)
        if self._producer.send(message.payload, message.key, lambda error: self._on_result(self, generation, error)):
            return
        self._sent.pop()
        self._sent_at.pop()
        if message.events == 1:
            self._on_too_large(message)
            return
        for half in message.halves():
            self._send(half, sent_at)

    def _pack(self) -> SentMessage:
        """The events at the head that share a segment and a table, as many as a message may carry."""
        taken = self.waiting.take(self._packing.max_events, self._packing.max_bytes)
        node_id, segment_id, keyspace, table, table_id, key_schema = taken[0].header
        events = [each.event for each in taken]
        payload = write_events(
            node_id=node_id,
            segment_id=segment_id,
            keyspace=keyspace,
            table=table,
            table_id=table_id,
            key_schema=key_schema,
            events=events,
        )
        # One event a message is for consumers of one's own, which want the row's key as the message's.
        key = base64.b64encode(events[0].key).decode() if self._packing.max_events == 1 else None
        entries = [each.entry for each in taken if each.entry is not None]
        return SentMessage(payload, key, entries, len(events), size_of(taken), events[0].writetime_us)
