"""Timers: runs actions at their time, in the thread that calls `run_due`."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable

__all__ = ["Timers"]


class Timers:
    """A heap of actions. `run_due` is to be called after `wait_s` at the latest."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._ids = itertools.count()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run the action once, `delay_s` from now."""
        heapq.heappush(self._heap, (time.monotonic() + delay_s, next(self._ids), action))

    def wait_s(self) -> float | None:
        """Seconds until the next action is due; None if there is none."""
        return max(0.0, self._heap[0][0] - time.monotonic()) if self._heap else None

    def run_due(self) -> None:
        """Run the actions that are due, in order of time."""
        now = time.monotonic()
        while self._heap and self._heap[0][0] <= now:
            heapq.heappop(self._heap)[2]()
