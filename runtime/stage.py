"""Stage: one thread of a process, from its start to what ended it."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

__all__ = ["Stage"]

_log: Final = logging.getLogger(__name__)


class Stage(ABC):
    """Runs `run` once on a separate thread. What `run` raises is logged with its traceback and kept as `failure`.

    `on_failure` gets it too, on the stage's thread. A stage that was never started can be stopped, and every stage can be stopped twice.
    """

    def __init__(
        self,
        name: str,
        stopping: threading.Event | None = None,
        on_failure: Callable[[Exception], None] | None = None,
    ) -> None:
        self.name: Final = name
        self.stopping: Final = threading.Event() if stopping is None else stopping
        self.failure: Exception | None = None
        self._on_failure: Final = on_failure
        self._thread: Final = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def run(self) -> None:
        """The stage's work. It returns soon after `stopping` is set."""

    def wake(self) -> None:
        """End a wait of `run` that `stopping` does not end, such as that for a message; nothing by default."""
        return

    @property
    def is_started(self) -> bool:
        """Also true when it has ended."""
        return self._thread.ident is not None

    @property
    def is_running(self) -> bool:
        """Started, and not ended."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin; once."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Let `run` return; does not wait for it."""
        self.stopping.set()
        self.wake()

    def stop(self) -> None:
        """Let `run` return, and wait for it."""
        self.ask_to_stop()
        self.join()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end of `run`."""
        if self.is_started:
            self._thread.join(timeout_s)

    def fail(self, error: Exception) -> None:
        """Take an error as the stage's own, also from a thread that works for it. The first one is kept."""
        _log.error("the %s failed", self.name, exc_info=error)
        if self.failure is None:
            self.failure = error
        if self._on_failure is not None:
            self._on_failure(error)

    def _run(self) -> None:
        try:
            self.run()
        except Exception as error:  # noqa: BLE001  # the top of a thread
            self.fail(error)
