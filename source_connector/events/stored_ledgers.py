"""The ledgers of expiry topics that must still exist, because expiries wait in them.

A ledger stays until all its messages are acknowledged. An expiry is acknowledged at its delivery time at the earliest.
So if a ledger is gone before the latest delivery time of its expiries, its topic was deleted or emptied.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["Ledgers", "StoredLedgers"]


class Ledgers(NamedTuple):
    """The oldest and the newest ledger of a topic in which expiries wait, and the last one that was checked."""

    oldest: int
    newest: int
    checked: int


class StoredLedgers:
    """By topic: the ledgers in which this instance has stored expiries, each with the latest delivery time.

    A topic that is created again begins a new ledger. So a topic is checked once for each ledger that is its last one.
    """

    def __init__(self) -> None:
        self._until: Final[dict[str, dict[int, int]]] = {}
        self._checked: Final[dict[str, int]] = {}

    def stored(self, topic: str, ledger: int, deliver_at_s: int) -> None:
        """Note that an expiry waits in a ledger until its delivery time."""
        until = self._until.setdefault(topic, {})
        until[ledger] = max(until.get(ledger, 0), deliver_at_s)

    def waiting(self, topic: str, now_s: float) -> Ledgers | None:
        """The ledgers that must exist now; None if nothing waits. Forgets the ledgers in which nothing waits any more."""
        until = self._until.get(topic, {})
        for ledger in [each for each, until_s in until.items() if until_s <= now_s]:
            del until[ledger]
        return Ledgers(min(until), max(until), self._checked.get(topic, -1)) if until else None

    def found(self, topic: str, first: int, last: int, now_s: float) -> bool:
        """Note a topic's first and last ledger. True if an older ledger, in which expiries wait, is gone."""
        self._checked[topic] = last
        ledgers = self.waiting(topic, now_s)
        if ledgers is None or first <= ledgers.oldest:
            return False
        until = self._until[topic]
        for ledger in [each for each in until if each < first]:
            del until[ledger]
        return True
