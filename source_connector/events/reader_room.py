"""ReaderLimits and ReaderRoom: how many events may wait in the connector, and the pause of a reader that has too many."""

from __future__ import annotations

import threading
from typing import Final

from source_connector.events.events_message import SettledEvents

__all__ = ["ReaderLimits", "ReaderRoom"]

# The receiving thread gets its room back when so many events are settled, or when a message is done.
_SETTLED_TOGETHER: Final = 50
# A message holds up to 256 KiB of events. The messages in the client's queue of each partition need memory, too.
_RECEIVER_QUEUE: Final = 8
# Fewer decoded events would save little memory: a table has so many at least while they are read.
_DECODED_EVENTS: Final = 100


class ReaderLimits:
    """How much each reader may hold. The readers share one allowance, but each may hold at least one message."""

    def __init__(self, max_waiting_events: int) -> None:
        self._max_waiting = max_waiting_events
        self._topics = 0
        self._divide()

    def add_topic(self) -> None:
        """Count one more topic, and divide the allowance again."""
        self._topics += 1
        self._divide()

    def _divide(self) -> None:
        topics = max(1, self._topics)
        self.max_waiting_events = max(1, self._max_waiting // topics)
        """For each topic: another message is received while fewer events than this wait."""
        self.settled_together = min(_SETTLED_TOGETHER, self.max_waiting_events // 8)
        """After so many settled events the receiving thread gets their room back."""
        self.decoded_events = max(_DECODED_EVENTS, self.max_waiting_events)
        """So many events of a message are decoded when it comes. The others remain bytes until they may start."""
        self.receiver_queue = max(1, _RECEIVER_QUEUE // topics)
        """Messages of each partition that the client fetches ahead."""


class ReaderRoom:
    """The room of one reader. Its thread calls `add` and `wait`, any thread `wake`, the owner's thread `settle`."""

    def __init__(self, limits: ReaderLimits) -> None:
        self._limits: Final = limits
        self._changed: Final = threading.Condition()
        self._waiting = 0
        self._freed = 0
        """Settled events that are not yet subtracted from `_waiting`. Changed in the owner's thread only."""
        self.settled: Final = SettledEvents(limits.settled_together)
        """Settled events of the reader's messages that `settle` has not been told of. Changed by the owner's thread."""

    def add(self, events: int) -> None:
        """Note that so many events came."""
        with self._changed:
            self._waiting += events
        self.settled.together = self._limits.settled_together  # fewer since there are more topics

    def wait(self, timeout_s: float) -> tuple[bool, bool]:
        """Wait for room. Return if there is room for another message, and if there was room without a wait."""
        with self._changed:
            if self._has_room():
                return True, True
            return self._changed.wait_for(self._has_room, timeout=timeout_s), False

    def _has_room(self) -> bool:
        """True if another message may come.

        A topic that is added makes the groups smaller. A group that began before may then be large enough, and perhaps no
        further event is settled that would end it.
        """
        settled = self._freed + self.settled.count
        freed = settled if settled >= self._limits.settled_together else 0
        return self._waiting - freed < self._limits.max_waiting_events

    def wake(self) -> None:
        """End the wait."""
        with self._changed:
            self._changed.notify()

    def settle(self, events: int, *, is_last: bool) -> None:
        """Note that so many events are settled. `is_last`: they are the last ones of their message."""
        self._freed += events
        if is_last or self._freed >= self._limits.settled_together:
            with self._changed:
                self._waiting -= self._freed
                self._freed = 0
                if self._has_room():  # otherwise the thread would wake up in vain
                    self._changed.notify()
