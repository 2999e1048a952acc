"""Limits the statements in flight: more while Cassandra answers as fast as before, fewer when it slows down. Pure.

Additive increase, multiplicative decrease, as in TCP. An answer in time while the limit is reached increases the
limit a little. An answer that takes much longer than the fastest recent ones, or no answer, decreases it by a
quarter.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["InFlightLimit"]

_FIRST: Final = 8
_CUT: Final = 0.75
# An answer is late when it takes this many times as long as the fastest one, and at least this much longer.
_LATE_TIMES: Final = 4.0
_LATE_S: Final = 0.05
# The fastest latency grows with each answer, so that it adapts to a slower cluster within some hundred answers.
_FADES: Final = 1.005
# One slow moment delays all statements in flight, but counts only once.
_CUT_AT_MOST_EVERY_S: Final = 0.5


class InFlightLimit:
    """A limit between 1 and `longest`, starting at 8 (or at `longest`, if that is less)."""

    def __init__(self, longest: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest: Final = longest
        self._clock = clock
        self._limit = float(min(_FIRST, longest))
        self._fastest_s: float | None = None
        self._cut_at = -_CUT_AT_MOST_EVERY_S

    @property
    def value(self) -> int:
        """How many statements may be in flight now."""
        return int(self._limit)

    def answered(self, latency_s: float, in_flight: int) -> None:
        """Note that a read took `latency_s` while `in_flight` statements were in flight."""
        fastest_s = latency_s if self._fastest_s is None else min(self._fastest_s * _FADES, latency_s)
        self._fastest_s = fastest_s
        if latency_s > max(fastest_s * _LATE_TIMES, fastest_s + _LATE_S):
            self._cut()
        elif in_flight + 1 >= self.value:
            self._limit = min(float(self._longest), self._limit + 1 / self._limit)

    def overloaded(self) -> None:
        """Note that a read timed out."""
        self._cut()

    def _cut(self) -> None:
        now = self._clock()
        if now - self._cut_at >= _CUT_AT_MOST_EVERY_S:
            self._cut_at = now
            self._limit = max(1.0, self._limit * _CUT)
