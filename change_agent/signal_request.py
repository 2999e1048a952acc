"""The requests that signals make to the agent: to stop, or to read its configuration again."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["SignalRequest"]

_POLL_S: Final = 0.1


class SignalRequest:
    """Told once or more often, by any thread or a signal's handler; a thread waits.

    Without a lock, so no `threading.Event`: a handler runs in the main thread between any two of its bytecodes, also while that
    thread holds the event's lock to begin its wait, and `set` would then wait for that lock for ever.
    """

    def __init__(self) -> None:
        self._is_sent = False

    def send(self) -> None:
        """From now on every `wait` returns True."""
        self._is_sent = True

    def take(self) -> bool:
        """True if the signal came since the last call."""
        if not self._is_sent:
            return False
        self._is_sent = False
        return True

    def wait(self, timeout_s: float) -> bool:
        """True soon after the signal, False when the time is over."""
        deadline = time.monotonic() + timeout_s
        while not self._is_sent and (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(left_s, _POLL_S))
        return self._is_sent
