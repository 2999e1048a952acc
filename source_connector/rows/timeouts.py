"""Timeouts of statements: those that end within the same quarter of a second share one timer of the driver's.

A driver timer wakes the event loop when it is created. It is kept until its time, even if it was cancelled, and its
callback keeps the whole answer of a statement. Thousands of statements are in flight within one timeout, and hardly
any of them times out.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final, final

__all__ = ["Timeout", "Timeouts"]

_log = logging.getLogger(__name__)

_TICK_S: Final = 0.25
# Shorter delays are not timeouts of statements. They get timers of their own, because they must not be late.
_SHORTEST_S: Final = 1.0


@final
class Timeout:
    """A timer for the driver. It drops its callback when it is cancelled."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Drop the callback."""
        self._callback = None

    def run(self) -> None:
        """Call the callback, unless the timeout was cancelled."""
        callback = self._callback
        if callback is not None:
            callback()


class Timeouts:
    """Timeouts that share timers; thread-safe. `create` makes a timer from a delay in seconds and a callback."""

    def __init__(self, create: Callable[[float, Callable[[], None]], object]) -> None:
        self._create = create
        self._lock = threading.Lock()
        self._by_tick: dict[int, list[Timeout]] = {}

    def add(self, delay_s: float, callback: Callable[[], None]) -> Timeout:
        """Call back after the delay. If it is a second or more, up to a quarter of a second later."""
        timeout = Timeout(callback)
        if delay_s < _SHORTEST_S:
            self._create(delay_s, timeout.run)
            return timeout
        now = time.monotonic()
        tick = math.ceil((now + delay_s) / _TICK_S)
        with self._lock:
            if tick not in self._by_tick:
                # The timer comes first: if it cannot be created, no later timeout may rely on it.
                self._create(tick * _TICK_S - now, partial(self._end, tick))
                self._by_tick[tick] = []
            self._by_tick[tick].append(timeout)
        return timeout

    def _end(self, tick: int) -> None:
        with self._lock:
            ended = self._by_tick.pop(tick)
        for timeout in ended:
            try:
                timeout.run()
            except Exception:  # noqa: BLE001  # as the driver has it for its timers: the others end all the same
                _log.error("the timeout of a statement was not handled", exc_info=True)
