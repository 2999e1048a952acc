"""Progress: how far the agent is behind its node, its rates, and how long it has stood still."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from change_agent.cdc_raw.segment_key import SegmentKey

__all__ = ["Progress", "ProgressNow"]

# Rates are averages of the last seconds, this many.
_RATE_WINDOW_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressNow:
    """The present values.

    `lag_bytes`: bytes that Cassandra has synced and the broker has not acknowledged. `lag_s`: age of the oldest of
    them. `stuck_s`: how long the position has not moved although there was something to read.
    """

    lag_bytes: int = 0
    lag_s: float = 0.0
    stuck_s: float = 0.0
    events_per_s: float = 0.0
    bytes_per_s: float = 0.0


class Progress:
    """One thread calls `update`. It replaces `now` as a whole, for other threads to read."""

    def __init__(self) -> None:
        self.now = ProgressNow()
        self._positions: Mapping[SegmentKey, int] = {}
        self._moved_at_s: float | None = None
        self._samples: Final[deque[tuple[float, int, int]]] = deque()
        self._caught_up_at_s: float | None = None
        self._started_at_s: float | None = None

    def update(
        self,
        *,
        time_s: float,
        positions: Mapping[SegmentKey, int],
        limits: Mapping[SegmentKey, int],
        acknowledged_writetime_us: int,
        events: int,
        size: int,
    ) -> None:
        """Measure with the acknowledged positions of open segments, the synced limits of unfinished ones, and totals.

        `time_s` is in seconds since the epoch. `acknowledged_writetime_us` is the write time of the last acknowledged
        event; 0 without one. `events` and `size` are totals since the start.
        """
        lag_bytes = sum(max(0, limit - positions.get(each, 0)) for each, limit in limits.items())
        if lag_bytes == 0 or positions != self._positions or self._moved_at_s is None:
            self._moved_at_s = time_s
        if lag_bytes == 0:
            self._caught_up_at_s = time_s
        self._positions = dict(positions)
        events_per_s, bytes_per_s = self._rates(time_s, events, size)
        self.now = ProgressNow(
            lag_bytes=lag_bytes,
            lag_s=round(self._lag_s(time_s, acknowledged_writetime_us) if lag_bytes else 0.0, 3),
            stuck_s=round(time_s - self._moved_at_s, 3),
            events_per_s=round(events_per_s, 1),
            bytes_per_s=round(bytes_per_s, 1),
        )

    def _lag_s(self, time_s: float, acknowledged_writetime_us: int) -> float:
        """Age of the oldest change that is not acknowledged, estimated.

        The next event to be acknowledged is not older than the last acknowledged one, and not older than the last time
        without a lag. A client may set any write time, so a time in the future is not used.
        """
        self._started_at_s = time_s if self._started_at_s is None else self._started_at_s
        candidates = [] if self._caught_up_at_s is None else [time_s - self._caught_up_at_s]
        if 0 < acknowledged_writetime_us <= time_s * 1e6:
            candidates.append(time_s - acknowledged_writetime_us / 1e6)
        return min(candidates, default=time_s - self._started_at_s)

    def _rates(self, time_s: float, events: int, size: int) -> tuple[float, float]:
        samples = self._samples
        samples.append((time_s, events, size))
        while len(samples) > 2 and time_s - samples[1][0] >= _RATE_WINDOW_S:
            samples.popleft()
        first_time_s, first_events, first_size = samples[0]
        elapsed_s = time_s - first_time_s
        if elapsed_s <= 0:
            return 0.0, 0.0
        return (events - first_events) / elapsed_s, (size - first_size) / elapsed_s
