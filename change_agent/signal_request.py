"""The requests that signals make to the agent: to stop, or to read its configuration again."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Final

__all__ = ["SignalRequest"]


class SignalRequest:
    """A flag that any thread or a signal handler may set, any number of times, while a thread waits for it.

    It has no lock around its state, unlike `threading.Event`: a signal handler runs in the main thread, between any two
    bytecodes. If the main thread holds the event's lock at that moment, because its wait begins, the handler's `set`
    would wait for ever. Nobody holds the lock that is used here: `send` releases it, and the wait acquires it.
    """

    def __init__(self) -> None:
        self._is_sent = False
        self._woken: Final = threading.Lock()
        self._woken.acquire()

    def send(self) -> None:
        """Set the flag: `wait` returns True until `take` clears it."""
        self._is_sent = True
        with suppress(RuntimeError):  # it is released already: the wait ends in any case
            self._woken.release()

    def take(self) -> bool:
        """Clear the flag. Return True if it was set."""
        if not self._is_sent:
            return False
        self._is_sent = False
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait for the flag. Return True as soon as it is set, False after the timeout."""
        deadline = time.monotonic() + timeout_s
        while not self._is_sent and (left_s := deadline - time.monotonic()) > 0:
            self._woken.acquire(timeout=left_s)
        return self._is_sent
