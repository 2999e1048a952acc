"""Reads of one kind, at the first level or at the higher one: their queue, and the statements that are under way for them.

Each kind has its own slots and limit, so a replica that is slow to answer reads at `ALL` does not slow down the other
reads. A statement without an answer after 2 s gives up its slot. If its answer comes later, it is still used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, final

from source_connector.rows.in_flight_limit import InFlightLimit
from source_connector.rows.read_groups import WaitingRead

__all__ = ["ReadLane", "Statement"]

_HAS_SLOT_FOR_S: Final = 2.0
# How many statements may be without an answer for each slot, including those that gave up their slots.
_MOST_FOR_EACH_SLOT: Final = 4


@final
class Statement:
    """One statement for some reads. `levels` are tried in their order, `attempt` is the index of the present one."""

    __slots__ = ("attempt", "bytes", "has_slot", "is_first", "lane", "levels", "reads", "sent_at", "wording")

    def __init__(
        self, reads: Sequence[WaitingRead], lane: ReadLane, levels: tuple[str, ...], attempt: int, is_first: bool
    ) -> None:
        self.reads: Final = reads
        self.lane: Final = lane
        self.levels: Final = levels
        self.attempt: Final = attempt
        self.is_first: Final = is_first
        """False when another statement for these reads failed before at a higher level."""
        self.sent_at: float = 0.0
        self.bytes: float = 0.0
        """The expected size of its answer."""
        self.has_slot: bool = True
        self.wording: int = 0
        """The number of its text (`RowFetcher._prepare_as_others`)."""

    @property
    def consistency(self) -> str:
        """The level that is asked for."""
        return self.levels[self.attempt]


@final
class ReadLane:
    """Owns the queue. Callers take reads from it, and report their statements by `sent` and `over`."""

    __slots__ = ("_longest", "_slots", "_under_way", "_was_alone", "alone", "alone_first", "bytes", "limit", "waiting")

    def __init__(self, longest: int) -> None:
        self._longest: Final[int] = longest
        self._slots: int = 0
        self._under_way: dict[Statement, None] = {}
        self._was_alone: bool = False
        self.limit: Final = InFlightLimit(longest)
        self.waiting: Final[deque[WaitingRead]] = deque()
        self.alone: Final[deque[WaitingRead]] = deque()
        """Reads that are sent one by one, because their group failed."""
        self.alone_first: int = 0
        """How many reads of `alone` go before all others."""
        self.bytes: float = 0.0
        """The expected size of the answers to all statements under way."""

    @property
    def is_idle(self) -> bool:
        """True when no statement has a slot."""
        return self._slots == 0

    @property
    def slots(self) -> int:
        """How many statements have a slot."""
        return self._slots

    @property
    def may_send(self) -> bool:
        """True when a read waits and there is a slot for it."""
        if not self.waiting and not self.alone:
            return False
        return self._slots < self.limit.value and len(self._under_way) < _MOST_FOR_EACH_SLOT * self._longest

    @property
    def is_turn_of_alone(self) -> bool:
        """True when the next read is one of `alone`. `alone` and the queue take turns: neither blocks the other."""
        return bool(self.alone) and (self.alone_first > 0 or not (self._was_alone and self.waiting))

    @property
    def next(self) -> WaitingRead:
        """The read whose turn it is."""
        return self.alone[0] if self.is_turn_of_alone else self.waiting[0]

    def take_alone(self) -> WaitingRead:
        """Take the next read of `alone`."""
        self._was_alone = True
        self.alone_first = max(0, self.alone_first - 1)
        return self.alone.popleft()

    def turn_of_waiting(self) -> None:
        """Note that a group is taken from the queue."""
        self._was_alone = False

    def sent(self, statement: Statement, now_s: float) -> None:
        """Note that the statement is under way."""
        statement.sent_at = now_s
        self._under_way[statement] = None
        self._slots += 1
        self.bytes += statement.bytes

    def over(self, statement: Statement) -> bool:
        """Note that the statement is answered. False if it had an answer before: two nodes may have been asked."""
        if statement not in self._under_way:
            return False
        del self._under_way[statement]
        self._slots -= statement.has_slot
        self.bytes = self.bytes - statement.bytes if self._under_way else 0.0
        return True

    def give_up_slots(self, now_s: float) -> Iterator[Statement]:
        """Free the slots of statements that have been without an answer for too long. Return each of these once."""
        late: list[Statement] = []
        for statement in self._under_way:  # in the order in which they were sent
            if now_s - statement.sent_at < _HAS_SLOT_FOR_S:
                break
            if statement.has_slot:
                statement.has_slot = False
                self._slots -= 1
                late.append(statement)
        return iter(late)
