"""Stage: one thread of a process, with its start, stop and failure."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

__all__ = ["Stage"]

_log: Final = logging.getLogger(__name__)


class Stage(ABC):
    """Runs `run` once on a separate thread. An exception of `run` is logged with its traceback and kept as `failure`.

    `on_failure` gets it too, on the stage's thread. A stage that was never started may be stopped, and every stage may
    be stopped twice.
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
        """End a wait of `run` that `stopping` does not end, such as a wait for a message. Does nothing by default."""
        return

    @property
    def is_started(self) -> bool:
        """True if the stage was started, also after its end."""
        return self._thread.ident is not None

    @property
    def is_running(self) -> bool:
        """True if the stage was started and has not ended."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread. May be called once."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Ask `run` to return. Does not wait for its end."""
        self.stopping.set()
        self.wake()

    def stop(self) -> None:
        """Ask `run` to return, and wait for its end."""
        self.ask_to_stop()
        self.join()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end of `run`."""
        if self.is_started:
            self._thread.join(timeout_s)

    def fail(self, error: Exception) -> None:
        """Log an error as a failure of the stage, also for a thread that works for it. The first error is kept."""
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
