"""The user metrics of the source: those of DataStax's connector under their names, and ours.

Pulsar keeps a summary (count, sum, quantiles) of the values that it gets. So a counted metric is sent as the increase
since the last time, and the summary's sum is the total. A measured metric is sent as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

__all__ = ["Metrics"]

# Always told, so that a dashboard has them from the start.
_COUNTED: Final = ("cache_hits", "cache_misses", "cache_evictions", "events_received", "records_published")


class Metrics:
    """Counters, and means of what happened since they were told last."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
        """By name, since the start."""
        self._told: dict[str, int] = {}
        self._sums: dict[str, tuple[float, int]] = {}

    def observe(self, name: str, value: float) -> None:
        """One measurement; the mean of an interval is told."""
        total, count = self._sums.get(name, (0.0, 0))
        self._sums[name] = total + value, count + 1

    def to_tell(self, measured: Mapping[str, float]) -> Iterator[tuple[str, float]]:
        """What is to be told now: increases, means, and these values as they are."""
        for name, value in self.counters.items():
            increase = value - self._told.get(name, 0)
            self._told[name] = value
            yield name, increase
        for name, (total, count) in self._sums.items():
            yield name, total / count
        self._sums.clear()
        yield from measured.items()
