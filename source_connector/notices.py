"""Warnings that may repeat: each subject is logged at most once in a while; the counters have the rest."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

__all__ = ["Notices"]

_SAY_AGAIN_AFTER_S: Final = 30.0


class Notices:
    """Not thread-safe: one for each thread."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said_at: dict[str, float] = {}

    def say(self, subject: str, text: str, hint: Callable[[], str] | None = None) -> None:
        """Log a warning, unless the subject had one a moment ago.

        `hint` gives what stands behind the text; it may take seconds, and is asked only when the warning is logged.
        """
        now = time.monotonic()
        if now - self._said_at.get(subject, -_SAY_AGAIN_AFTER_S) >= _SAY_AGAIN_AFTER_S:
            self._said_at[subject] = now
            self._log.warning("%s%s", text, hint() if hint else "")
