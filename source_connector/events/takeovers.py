"""Which messages come to an instance because it got their topic partition from another one. No I/O.

Pulsar does not tell a consumer that it has become the active one of a partition, nor that it is not any more. What tells is:
the first message of a partition; one that came before (the broker begins again behind what is acknowledged); and one
that the broker had for a second while this instance waited for messages, for before it serves another consumer it waits
so long itself (`activeConsumerFailoverDelayTimeMillis`).

The other instance may still have records on their way. It sees to those itself that reach the data topic later than
`STALE_AFTER_S`; for the others the instance that got the partition waits so long before it works on events there.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from source_connector.events.events_message import STALE_AFTER_S

__all__ = ["Arrival", "Place", "Takeovers"]

_SILENCE_S: Final = 0.9
# The clock that a message's age is told by may be another one: the youngest of so many messages counts as new.
_AGES: Final = 16

Place = tuple[int, int, int]
"""Of a message in its partition: ledger, entry, index in the batch."""


class _Partition:
    """What was received of one partition."""

    __slots__ = ("held_until", "highest", "received_at")

    def __init__(self) -> None:
        self.highest: Place = (-1, -1, -1)
        self.received_at = 0.0
        self.held_until = 0.0


class Arrival(NamedTuple):
    """What a message is judged by; times are of one clock in seconds, but for the age, which is by the sender's clock."""

    topic: str
    place: Place
    age_s: float
    now: float


class Takeovers:
    """All partitions of an events topic, in an instance that shares them with others."""

    def __init__(self) -> None:
        self._partitions: dict[str, _Partition] = {}
        self._ages: deque[float] = deque(maxlen=_AGES)
        self._waits_since = 0.0
        self.count = 0
        """How many partitions were gotten."""

    def was_busy(self, now: float) -> None:
        """Until now this instance took no messages."""
        self._waits_since = now

    def held_until(self, arrival: Arrival) -> float:
        """When the work on a message may begin; in the past for one that need not wait."""
        partition = self._partitions.get(arrival.topic)
        is_new = partition is None
        if partition is None:
            partition = self._partitions[arrival.topic] = _Partition()
        is_again = arrival.place <= partition.highest
        if arrival.now >= partition.held_until and (is_new or is_again or self._was_kept_back(partition, arrival)):
            partition.held_until = arrival.now + STALE_AFTER_S
            self.count += 1
        partition.highest = max(partition.highest, arrival.place)
        partition.received_at = arrival.now
        self._ages.append(arrival.age_s)
        return partition.held_until

    def _was_kept_back(self, partition: _Partition, arrival: Arrival) -> bool:
        waited_s = arrival.now - max(partition.received_at, self._waits_since)
        return waited_s >= _SILENCE_S and arrival.age_s - min(self._ages) >= _SILENCE_S
