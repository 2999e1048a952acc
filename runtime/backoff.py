"""Backoff: growing pauses between attempts."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

__all__ = ["Backoff"]

_MOST_DOUBLINGS: Final = 30


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double from `shortest_s` up to `longest_s`.

    Half of each is random, so that many clients spread out.
    """

    shortest_s: float
    longest_s: float

    def pause_s(self, failures: int) -> float:
        """The pause after this number of failures in a row, in seconds; the first failure is number 1."""
        bounded: float = min(self.longest_s, self.shortest_s * 2.0 ** min(max(failures - 1, 0), _MOST_DOUBLINGS))
        return bounded * random.uniform(0.5, 1)
