"""SharedWrite: one durable write of a file for all threads that wait for one.

At the start of an agent, all its topics are opened at the same time, and each of them changes the same files.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

__all__ = ["SharedWrite"]

# How long a write waits for the changes of other threads.
_GATHER_S: Final = 0.1


class SharedWrite:
    """Calls `write`, which raises OSError, in one thread at a time. May be used by several threads."""

    def __init__(self, write: Callable[[], None], *, gather_s: float = _GATHER_S) -> None:
        self._write: Final = write
        self._gather_s: Final = gather_s
        self._lock: Final = threading.Lock()
        # Held during a write.
        self._writing: Final = threading.Lock()
        # How many changes were noted, and how many of them the file has.
        self._changes = self._stored = 0
        # How many calls asked for a write, how many of them had one, and how the last write failed.
        self._asked = self._answered = 0
        self._failure: OSError | None = None

    def note_change(self) -> None:
        """Note a change that `write` would store from now on."""
        with self._lock:
            self._changes += 1

    def run(self) -> None:
        """Return when the file has all changes that were noted before this call. Raises OSError."""
        with self._lock:
            wanted = self._changes
            if self._stored >= wanted:
                return
            self._asked += 1
            number = self._asked
        with self._writing:
            if self._answered < number:
                self._answer()
            # The last write had these changes, because it began after this call.
            failure = self._failure
        if failure is not None:
            raise OSError(failure.errno, failure.strerror) from failure

    def _answer(self) -> None:
        """Write for all calls so far. If that fails, it fails for all of them: each would wait for its own failure."""
        time.sleep(self._gather_s)
        with self._lock:
            changes, asked = self._changes, self._asked
        try:
            self._write()
        except OSError as error:
            self._failure = error
        else:
            self._failure = None
            with self._lock:
                self._stored = changes
        self._answered = asked
