"""Consistency levels that Cassandra refuses, by its guardrail `read_consistency_levels_disallowed` (4.1 and later).

Cassandra refuses the level, not the event that is read. The level is left out for a minute and then tried again,
because an operator may have allowed it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, final

from cassandra import InvalidRequest

__all__ = ["RefusedLevels", "is_refusal_of_level"]

_FOR_S: Final = 60.0
# o.a.c.db.guardrails.Guardrails.readConsistencyLevels; there is no separate error code.
_GUARDRAIL: Final = "Guardrail read_consistency_levels violated"


def is_refusal_of_level(error: object) -> bool:
    """True when the server refuses the read for its consistency level."""
    return isinstance(error, InvalidRequest) and _GUARDRAIL in str(error)


@final
class RefusedLevels:
    """The levels that were refused in the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until_s: dict[str, float] = {}
        self._reported: set[str] = set()

    def refuse(self, level: str) -> bool:
        """Note that a server refused the level. True if that is to be reported: once until the level is accepted."""
        self._until_s[level] = self._clock() + _FOR_S
        is_news = level not in self._reported
        self._reported.add(level)
        return is_news

    def take(self, level: str) -> None:
        """Note that a server has answered at the level."""
        if level in self._reported:
            self._reported.discard(level)
            self._until_s.pop(level, None)

    def without(self, levels: tuple[str, ...]) -> tuple[str, ...]:
        """The levels that are not refused, in order. If all are, the last one, so that a change is noticed."""
        if not self._until_s:
            return levels
        now = self._clock()
        self._until_s = {level: until_s for level, until_s in self._until_s.items() if until_s > now}
        return tuple(each for each in levels if each not in self._until_s) or levels[-1:]
