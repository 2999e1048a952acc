"""TopicLane: the unacknowledged events of one topic partition, in order: those that wait, and those in messages."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, final

from change_agent.publishing.event_producers import EventProducer
from change_agent.publishing.messages import Message, Packing
from change_agent.publishing.outgoing import WaitingEvents
from schemas.progress_record import UNKNOWN_POSITION, TopicPosition

__all__ = ["TopicLane"]

# With fewer unacknowledged messages, events are sent at once. With more, they wait until a message is full.
_EAGER_MESSAGES: Final = 2
# The largest number of unacknowledged messages, well below the number at which the client blocks.
_MAX_MESSAGES: Final = 256


@final
class TopicLane:
    """Owned by the publisher's thread. A producer that fails is replaced; the next one sends all sent messages again.

    A message that is larger than the broker accepts is halved. If it has only one event, it is in `too_large` until the
    topic has stored it.
    """

    def __init__(self, packing: Packing, on_result: Callable[[TopicLane, int, str | None], None]) -> None:
        self._packing: Final = packing
        self._on_result: Final = on_result
        self._producer: EventProducer | None = None
        self.generation = 0
        """How many producers were given up. Results of earlier producers are ignored."""
        self.waiting: Final = WaitingEvents()
        # Messages that were sent, and when each of them was sent for the first time.
        self._messages: Final[deque[Message]] = deque()
        self._sent_at: Final[deque[float]] = deque()
        # Messages that count as not sent. They are behind `_messages`, and before `waiting`.
        self._unsent: Final[deque[Message]] = deque()
        self.too_large: Final[deque[Message]] = deque()
        # Totals of all messages, also of those in `too_large`.
        self._events_packed = 0
        self._bytes_packed = 0
        # When a message was last acknowledged, or was sent while no other was unacknowledged.
        self._moved_at = 0.0
        # When the producer was last seen to have a connection.
        self._connected_at = 0.0
        # How many producers were given up since the last acknowledgement.
        self.failures = 0
        # How many events the broker has, and the position of its last message; unknown if the broker returned no
        # position.
        self.acknowledged = 0
        self.last_position = UNKNOWN_POSITION
        # While `last_position` is known: all events that the broker had while it was unknown are at or before this one.
        self.first_position = UNKNOWN_POSITION

    @property
    def events(self) -> int:
        """The number of unacknowledged events."""
        return len(self.waiting) + self._events_packed

    @property
    def bytes(self) -> int:
        """The room that the unacknowledged events take."""
        return self.waiting.size + self._bytes_packed

    @property
    def is_open(self) -> bool:
        """True while there is a producer."""
        return self._producer is not None

    @property
    def is_usable(self) -> bool:
        """True while the producer has a connection."""
        return self._producer is not None and self._producer.is_connected()

    def open(self, producer: EventProducer) -> None:
        """Send with this producer from now on. It starts with the messages that were sent and are not acknowledged."""
        self._producer = producer
        self._connected_at = time.monotonic()
        again = list(zip(self._messages, self._sent_at, strict=True))
        self._messages.clear()
        self._sent_at.clear()
        for message, first_sent_at in again:
            self._send(message, first_sent_at)

    def send_ready(self) -> int:
        """Send the events that need not wait any longer. Return the number of messages that were sent."""
        count = 0
        while self._producer is not None and (message := self._take_next()) is not None:
            now = time.monotonic()
            if not self._messages:
                self._moved_at = now
            self._send(message, now)
            count += 1
        return count

    def _take_next(self) -> Message | None:
        """Take the next message to send; None if there is none, or it has to wait."""
        if self._unsent:
            return self._unsent.popleft() if len(self._messages) < _MAX_MESSAGES else None
        return self._pack() if self.waiting and len(self._messages) < self._room() else None

    def _room(self) -> int:
        is_full = len(self.waiting) >= self._packing.max_events or self.waiting.size >= self._packing.max_bytes
        return _MAX_MESSAGES if is_full else _EAGER_MESSAGES

    def take_result(self, generation: int, error: str | None) -> Message | None:
        """Take the result of the oldest message. Return the message if it was acknowledged, None if not.

        The client returns results in order. After a failure all messages are sent again, in order, so later results of
        the same producer are ignored; None is returned for them.
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
            # The position of this message, or of a later one.
            self._note_position(self._producer.last_position)
        return message

    def _note_position(self, position: TopicPosition) -> None:
        if position == UNKNOWN_POSITION:
            self.first_position = self.last_position = UNKNOWN_POSITION
            return
        if self.last_position == UNKNOWN_POSITION:
            self.first_position = TopicPosition(position.ledger, position.entry - 1)
        self.last_position = max(self.last_position, position)

    @property
    def handed_over(self) -> int:
        """The value that `acknowledged` will have when the broker has all events that were added so far."""
        return self.acknowledged + self.events

    def unanswered_for(self) -> float:
        """Seconds since the oldest unacknowledged message was sent for the first time; 0 when there is none."""
        return time.monotonic() - self._sent_at[0] if self._sent_at else 0.0

    def is_cut_off(self, seconds: float, *, is_needed: bool) -> bool:
        """True when the producer has no connection, and none of the sent messages was acknowledged for `seconds`.

        If the lane `is_needed`, also when no message was sent, and there was no connection for `seconds`.
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
        """Close the producer. The next one sends the unacknowledged messages."""
        self.generation += 1
        self.failures += 1
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def stop(self) -> None:
        """Give up the producer, because the topic cannot be used. Unacknowledged messages count as not sent."""
        self.give_up()
        self.failures = 0
        self._note_position(UNKNOWN_POSITION)
        self._unsent.extendleft(reversed(self._messages))
        self._messages.clear()
        self._sent_at.clear()

    def pack_all(self) -> Sequence[Message]:
        """Return all unacknowledged events, in order, as messages. They stay in the lane until :meth:`clear`.

        The lane must be stopped.
        """
        while self.waiting:
            self._unsent.append(self._pack())
        return [*self.too_large, *self._unsent]

    def clear(self) -> None:
        """Remove all events, because they are stored elsewhere."""
        self.waiting.take_all()
        for messages in (self.too_large, self._messages, self._unsent):
            while messages:
                self._forget(messages.popleft())

    def take_too_large(self) -> Message:
        """Remove and return the first message of `too_large`, because it is stored elsewhere."""
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
