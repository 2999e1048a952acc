"""TopicLane: the events of one topic partition, in order: those that wait, and the messages that are not acknowledged."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, final

from change_agent.publishing.event_producers import EventProducer
from change_agent.publishing.messages import Message, Packing
from change_agent.publishing.outgoing import WaitingEvents
from schemas.progress_record import UNKNOWN_POSITION

__all__ = ["TopicLane"]

# With fewer unacknowledged messages, events are sent at once. With more, they wait until a message is full.
_EAGER_MESSAGES: Final = 2
# Unacknowledged full messages: well below the number at which the client blocks.
_MAX_MESSAGES: Final = 256


@final
class TopicLane:
    """Owned by the publisher's thread. A producer that fails is replaced; the next one sends all messages again.

    A message that is larger than the broker takes is halved. What cannot be halved is in `too_large` until the topic
    has stored it.
    """

    def __init__(self, packing: Packing, on_result: Callable[[TopicLane, int, str | None], None]) -> None:
        self._packing: Final = packing
        self._on_result: Final = on_result
        self._producer: EventProducer | None = None
        self.generation = 0
        """How many producers were given up. Results of earlier ones say nothing."""
        self.waiting: Final = WaitingEvents()
        self._messages: Final[deque[Message]] = deque()
        # When each of them was sent for the first time. It is shorter when the last ones were not sent yet.
        self._sent_at: Final[deque[float]] = deque()
        self.too_large: Final[deque[Message]] = deque()
        # Of all messages.
        self._events_packed = 0
        self._bytes_packed = 0
        # When the last message was acknowledged, or was sent while there was no other.
        self._moved_at = 0.0
        # When the producer was last seen to have a connection.
        self._connected_at = 0.0
        # Producers that were given up since a message was acknowledged.
        self.failures = 0
        # Events that the broker has, and the position of the last message with such events; unknown where the broker gave none.
        self.acknowledged = 0
        self.last_position = UNKNOWN_POSITION

    @property
    def events(self) -> int:
        """How many are not acknowledged."""
        return len(self.waiting) + self._events_packed

    @property
    def bytes(self) -> int:
        """The room that they take."""
        return self.waiting.size + self._bytes_packed

    @property
    def is_open(self) -> bool:
        """True while there is a producer."""
        return self._producer is not None

    @property
    def is_usable(self) -> bool:
        """True while messages can get through."""
        return self._producer is not None and self._producer.is_connected()

    def open(self, producer: EventProducer) -> None:
        """Send with this producer from now on. It starts with the messages that are not acknowledged."""
        self._producer = producer
        self._connected_at = time.monotonic()
        again = list(self._messages)
        unsent = len(again) - len(self._sent_at)
        sent_at = [*self._sent_at, *[time.monotonic()] * unsent]
        self._messages.clear()
        self._sent_at.clear()
        for message, first_sent_at in zip(again, sent_at, strict=True):
            self._send(message, first_sent_at)

    def send_ready(self) -> int:
        """Send what need not wait any longer; the number of messages that were sent."""
        count = 0
        while self._producer is not None and self.waiting and len(self._messages) < self._room():
            message = self._pack()
            now = time.monotonic()
            if not self._messages:
                self._moved_at = now
            self._send(message, now)
            count += 1
        return count

    def _room(self) -> int:
        is_full = len(self.waiting) >= self._packing.max_events or self.waiting.size >= self._packing.max_bytes
        return _MAX_MESSAGES if is_full else _EAGER_MESSAGES

    def take_result(self, generation: int, error: str | None) -> Message | None:
        """The result of the oldest message: the message when it was acknowledged; None when it must be sent again.

        The client gives results in order. After a failure all messages are sent again, in order, so later results of
        the same producer are ignored.
        """
        if generation != self.generation:
            return None
        if error is not None:
            self.give_up()
            return None
        self._moved_at = time.monotonic()
        self.failures = 0
        self._sent_at.popleft()
        message = self._messages.popleft()
        self._forget(message)
        self.acknowledged += message.events
        if self._producer is not None:
            # Of this message, or of one behind it.
            position = self._producer.last_position
            is_known = position != UNKNOWN_POSITION
            self.last_position = max(self.last_position, position) if is_known else UNKNOWN_POSITION
        return message

    @property
    def handed_over(self) -> int:
        """The value of `acknowledged` when the broker has all events that were added so far."""
        return self.acknowledged + self.events

    def unanswered_for(self) -> float:
        """Seconds since the oldest unacknowledged message was sent for the first time; 0 when there is none."""
        return time.monotonic() - self._sent_at[0] if self._sent_at else 0.0

    def is_cut_off(self, seconds: float, *, is_needed: bool) -> bool:
        """True when the producer has no connection, and no message was acknowledged for so long although some were sent.

        If the lane `is_needed`: also when nothing was sent, and there was no connection for so long.
        """
        if self._producer is None:
            return False
        now = time.monotonic()
        if self._producer.is_connected():
            self._connected_at = now
            return False
        if self._messages:
            return now - self._moved_at >= seconds
        return is_needed and now - self._connected_at >= seconds

    def give_up(self) -> None:
        """Close this producer. The next one sends what is not acknowledged."""
        self.generation += 1
        self.failures += 1
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def stop(self) -> None:
        """Give up the producer, because the topic cannot be used. What is not acknowledged counts as not sent."""
        self.give_up()
        self.failures = 0
        self.last_position = UNKNOWN_POSITION
        self._sent_at.clear()

    def pack_all(self) -> Sequence[Message]:
        """Everything that is not acknowledged, in order, as messages. They stay here until :meth:`clear`. For a stopped lane."""
        while self.waiting:
            self._messages.append(self._pack())
        return [*self.too_large, *self._messages]

    def clear(self) -> None:
        """All events are stored elsewhere."""
        self.waiting.take_all()
        for messages in (self.too_large, self._messages):
            while messages:
                self._forget(messages.popleft())

    def take_too_large(self) -> Message:
        """The first message of `too_large`, which is stored elsewhere."""
        message = self.too_large.popleft()
        self._forget(message)
        return message

    def _forget(self, message: Message) -> None:
        self._events_packed -= message.events
        self._bytes_packed -= message.size

    def _pack(self) -> Message:
        message, _ = self._packing.pack(self.waiting)
        self._events_packed += message.events
        self._bytes_packed += message.size
        return message

    def _send(self, message: Message, sent_at: float) -> None:
        assert self._producer is not None
        generation = self.generation
        # The client may call back before `send` returns.
        self._messages.append(message)
        self._sent_at.append(sent_at)
        if self._producer.send(message.payload, message.key, lambda error: self._on_result(self, generation, error)):
            return
        self._messages.pop()
        self._sent_at.pop()
        if message.events == 1:
            self.too_large.append(message)
            return
        for half in message.halves():
            self._send(half, sent_at)
