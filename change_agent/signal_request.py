"""What a signal asks the agent for: to stop, to read its configuration again."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["SignalRequest"]

_LOOK_S: Final = 0.1


class SignalRequest:
    """Told once or more often, by any thread or a signal's handler; a thread waits.

    Without a lock, so no `threading.Event`: a handler runs in the main thread between any two of its bytecodes, also while that
    thread holds the event's lock to begin its wait, and `set` would then wait for that lock for ever.
    """

    def __init__(self) -> None:
        self._is_told = False

    def tell(self) -> None:
        """From now on every `wait` returns True."""
        self._is_told = True

    def take(self) -> bool:
        """True when it was told since the last time."""
        if not self._is_told:
            return False
        self._is_told = False
        return True

    def wait(self, timeout_s: float) -> bool:
        """True soon after it was told, False when the time is over."""
        deadline = time.monotonic() + timeout_s
        while not self._is_told and (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(left_s, _LOOK_S))
        return self._is_told
