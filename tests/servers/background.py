"""Work in the background of a test, in a thread of its own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Final, Self

__all__ = ["Background"]


class Background(ABC):
    """Calls `_run` in a thread, from the beginning of a `with` block to its end."""

    def __init__(self, name: str) -> None:
        self._stop: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def _run(self) -> None:
        """The work. It returns soon after `_stop` is set."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._end()

    def _end(self) -> None:
        self._stop.set()
        self._thread.join()
