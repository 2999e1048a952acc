"""Nodes that leave statements unanswered while their connections are open: suspended, or on a machine that is gone.

The driver considers such a node down after a minute. Until then, in a cluster of three nodes, it would be the first
choice for a third of all reads, and each of them would wait for its timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, final

__all__ = ["SILENT_AFTER_S", "SilentNodes"]

SILENT_AFTER_S: Final = 2.0
_PROBE_EVERY_S: Final = 5.0


@final
class SilentNodes:
    """Knows which nodes do not answer. Any thread may call it: each step is a single operation of the interpreter."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked_at: dict[object, float] = {}
        self._probe_at: dict[object, float] = {}

    def asked(self, node: object) -> None:
        """Note that a statement was sent to the node."""
        self._asked_at.setdefault(node, self._clock())

    def heard(self, node: object) -> None:
        """Note that the node has answered a statement."""
        self._asked_at.pop(node, None)
        self._probe_at.pop(node, None)

    def comes_last(self, node: object) -> bool:
        """True for a node that was asked and has not answered for 2 s.

        False for one statement every 5 s, which finds out if the node answers again.
        """
        now = self._clock()
        if now - self._asked_at.get(node, now) <= SILENT_AFTER_S:
            return False
        if now < self._probe_at.setdefault(node, now + _PROBE_EVERY_S):
            return True
        self._probe_at[node] = now + _PROBE_EVERY_S
        return False
