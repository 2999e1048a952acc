"""Recognizes messages that an instance receives because it got their topic partition from another instance. No I/O.

Pulsar does not notify a consumer that it has become the active one of a partition, nor that it no longer is. A takeover
shows in one of these:

- the first message of a partition;
- a message that came before, because the broker starts again after the last acknowledged message;
- a message that the broker held for a second while this instance waited for messages, because the broker waits that
  long before it serves another consumer (`activeConsumerFailoverDelayTimeMillis`).

The other instance may still have records in flight. It checks records itself that reach the data topic later than
`STALE_AFTER_S` after its client fetched their event's message, because since then the partition may belong to another
instance. For earlier records, the instance that got the partition waits `STALE_AFTER_S` before it processes events.

The client does not say when it fetched a message. It was after the message one queue length earlier was taken from the
client's queue, and after the queue was last empty.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from source_connector.events.events_message import STALE_AFTER_S

__all__ = ["Arrival", "Place", "Takeovers"]

_SILENCE_S: Final = 0.9
# Ages are measured with the sender's clock, which may be wrong. So the youngest of so many messages counts as new.
_AGES: Final = 16

Place = tuple[int, int, int]
"""The place of a message in its partition: ledger, entry, index in the batch."""


class _Partition:
    """The messages that were received of one partition."""

    __slots__ = ("held_until", "highest", "received_at", "taken_at")

    def __init__(self, fetched_ahead: int) -> None:
        self.highest: Place = (-1, -1, -1)
        self.taken_at: deque[float] = deque(maxlen=fetched_ahead)
        """When the last messages were taken from the client's queue."""
        self.received_at = 0.0
        self.held_until = 0.0


class Arrival(NamedTuple):
    """A message that has arrived.

    `now` is a time of `time.monotonic`. `age_s` is `now` minus the sender's time, so only differences between ages have
    a meaning.
    """

    topic: str
    place: Place
    age_s: float
    now: float


class Takeovers:
    """All partitions of an events topic, in an instance that shares them with others.

    `fetched_ahead` is how many messages of a partition the client's queue may have. `now` is a time of
    `time.monotonic`.
    """

    def __init__(self, fetched_ahead: int, now: float) -> None:
        self._fetched_ahead = fetched_ahead
        self._empty_at = now
        self._partitions: dict[str, _Partition] = {}
        self._ages: deque[float] = deque(maxlen=_AGES)
        self._waits_since = 0.0
        self.count = 0
        """How many partitions this instance began to read or took over."""

    def was_busy(self, now: float) -> None:
        """Note that this instance took no messages until now."""
        self._waits_since = now

    def was_empty(self, now: float) -> None:
        """Note that the client's queue was empty."""
        self._empty_at = now

    def fetched_after(self, arrival: Arrival) -> float:
        """A time after which the client fetched the message. To be called before `held_until`."""
        partition = self._partitions.get(arrival.topic)
        if partition is None or len(partition.taken_at) < self._fetched_ahead:
            return self._empty_at
        return max(self._empty_at, partition.taken_at[0])

    def held_until(self, arrival: Arrival) -> float:
        """When the work on the message may begin. A time in the past if it need not wait."""
        partition = self._partitions.get(arrival.topic)
        is_new = partition is None
        if partition is None:
            partition = self._partitions[arrival.topic] = _Partition(self._fetched_ahead)
        is_again = arrival.place <= partition.highest
        if arrival.now >= partition.held_until and (is_new or is_again or self._was_kept_back(partition, arrival)):
            partition.held_until = arrival.now + STALE_AFTER_S
            self.count += 1
        partition.highest = max(partition.highest, arrival.place)
        partition.received_at = arrival.now
        partition.taken_at.append(arrival.now)
        self._ages.append(arrival.age_s)
        return partition.held_until

    def _was_kept_back(self, partition: _Partition, arrival: Arrival) -> bool:
        waited_s = arrival.now - max(partition.received_at, self._waits_since)
        return waited_s >= _SILENCE_S and arrival.age_s - min(self._ages) >= _SILENCE_S
