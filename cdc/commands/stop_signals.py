"""Takes SIGTERM and Ctrl-C as a request to finish the current work and end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["stopped_by_signals"]


@contextmanager
def stopped_by_signals(is_asked: bool) -> Iterator[threading.Event]:
    """Yield an event, which the first SIGTERM or Ctrl-C sets if `is_asked`. A second signal has its usual effect."""
    stopping = threading.Event()
    if not is_asked:
        yield stopping
        return
    known = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in known.items():
            signal.signal(number, handler)

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()
        restore()

    for number in known:
        signal.signal(number, stop)
    try:
        yield stopping
    finally:
        restore()
