"""Leaves a consistency level out for some seconds when a replica does not answer at it. Pure.

            silent                  after a pause: one statement
    ASKED ---------> LEFT_OUT <----------------------------> PROBED
      ^                        silent, or no news               |
      '-------------------------- answered ---------------------'

The pause is 5 s. It doubles, up to 30 s, each time that the level falls silent within a minute after an answered probe.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, final

__all__ = ["LevelBreaker", "LevelState"]

_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 30.0
_LASTS_S: Final = 60.0


class LevelState(Enum):
    """Tells if statements use the level."""

    ASKED = "asked"
    LEFT_OUT = "left out"
    PROBED = "probed"
    """One statement is under way that shows if the level answers again."""


@final
class LevelBreaker:
    """The state of one level; times are those of a monotonic clock."""

    def __init__(self) -> None:
        self.state: LevelState = LevelState.ASKED
        self.pause_s: float = _PAUSE_S
        """How long the level is left out between two probes."""
        self._asked_since_s: float | None = None
        self._until_s: float = 0.0

    def is_probe_due(self, now_s: float) -> bool:
        """True when the next statement at the level would be a probe."""
        return self.state is not LevelState.ASKED and now_s >= self._until_s

    def may_ask(self, now_s: float) -> bool:
        """True when a statement may use the level now. The first one after the pause is the probe."""
        if self.is_probe_due(now_s):
            self.state = LevelState.PROBED
            self._until_s = now_s + self.pause_s  # when the next probe is due if this one gets no answer
            return True
        return self.state is LevelState.ASKED

    def answered(self, now_s: float) -> None:
        """Note that the level has answered in time, be it with an error."""
        if self.state is LevelState.PROBED:
            self.state = LevelState.ASKED
            self._asked_since_s = now_s

    def silent(self, now_s: float) -> bool:
        """Note that a statement at the level has waited too long. Return True when the level was `ASKED` until now."""
        was_asked = self.state is LevelState.ASKED
        if was_asked:
            since_s = self._asked_since_s
            is_soon = since_s is not None and now_s - since_s < _LASTS_S
            self.pause_s = min(_LONGEST_PAUSE_S, self.pause_s * 2) if is_soon else _PAUSE_S
        if self.state is not LevelState.LEFT_OUT:
            self.state = LevelState.LEFT_OUT
            self._until_s = now_s + self.pause_s
        return was_asked
