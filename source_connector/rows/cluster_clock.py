"""The cluster's time, independent of the clock of the connector's machine.

Write times and expiries are of Cassandra's clocks. A clock of the connector that is ahead would make a young event appear
old, and a read that came too early would count as the event's result.
"""

from __future__ import annotations

import time
from uuid import UUID

from cassandra.util import unix_time_from_uuid1

__all__ = ["ClusterClock"]


class ClusterClock:
    """Goes with the monotonic clock from the last `now()` that a node answered. Any thread."""

    def __init__(self) -> None:
        # Until the first answer; nothing is read before.
        self._ahead_s = time.time() - time.monotonic()

    def observe(self, now: UUID, asked_at: float, answered_at: float) -> None:
        """A node's `now()`, and when it was asked and had answered, by `time.monotonic`."""
        self._ahead_s = unix_time_from_uuid1(now) - (asked_at + answered_at) / 2

    def time_s(self) -> float:
        """Seconds since the epoch."""
        return time.monotonic() + self._ahead_s
