"""The cluster's time, independent of the clock of the connector's machine.

Write times and expiries come from Cassandra's clocks. If the connector's clock were ahead, a young event would appear
old, and a read that came too early would count as the event's result.
"""

from __future__ import annotations

import time
from uuid import UUID

from cassandra.util import unix_time_from_uuid1

__all__ = ["ClusterClock"]


class ClusterClock:
    """Follows the monotonic clock from the last `now()` of a node. Any thread may use it."""

    def __init__(self) -> None:
        # Used until the first answer of a node. No row is read before.
        self._ahead_s = time.time() - time.monotonic()

    def observe(self, now: UUID, answered_at: float) -> None:
        """Take a node's `now()`, and when the node answered, by `time.monotonic`.

        So the clock is behind by the time of the answer at most, and never ahead: ahead, it would end too early the time
        in which an event's write may not be visible.
        """
        self._ahead_s = unix_time_from_uuid1(now) - answered_at

    def time_s(self) -> float:
        """Seconds since the epoch."""
        return time.monotonic() + self._ahead_s
