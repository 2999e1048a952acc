"""Notices: warnings that may repeat. The log has the first one of each subject; metrics count all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

__all__ = ["Notices"]

_SAY_AGAIN_AFTER_S: Final = 30.0


class Notices:
    """Not thread-safe: one for each thread.

    A subject is logged again after `again_after_s` at the earliest; with None, only after `clear`.
    """

    def __init__(self, log: logging.Logger, again_after_s: float | None = _SAY_AGAIN_AFTER_S) -> None:
        self._log: Final = log
        self._again_after_s: Final = float("inf") if again_after_s is None else again_after_s
        self._said_at: Final[dict[str, float]] = {}

    def say(
        self, subject: str, text: str, hint: Callable[[], str] | None = None, *, level: int = logging.WARNING
    ) -> None:
        """Log a warning, unless the subject had one shortly before.

        `hint` returns an addition to the text. It may take seconds, and is called only when the warning is logged.
        """
        now = time.monotonic()
        said_at = self._said_at.get(subject)
        if said_at is None or now - said_at >= self._again_after_s:
            self._said_at[subject] = now
            self._log.log(level, "%s%s", text, hint() if hint else "")

    def clear(self, subject: str, text: str = "") -> None:
        """Note that the subject's problem is over. Log `text` as information if there was a warning."""
        if self._said_at.pop(subject, None) is not None and text:
            self._log.info("%s", text)
