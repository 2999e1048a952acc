"""Activity on data topics, counted in this process while the records are read. No Spark session is needed.

`topic_summary` counts the same on a DataFrame. The start of a Spark session takes longer than reading a few minutes of
records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from schemas.record_properties import SNAPSHOT
from spark_bridge.reading.planning import plan_batch
from spark_bridge.reading.topic_reader import read_range
from spark_bridge.topics.options import BridgeOptions

__all__ = ["TopicActivity", "count_activity"]

_MOST_LAGS: Final = 1 << 20
"""Lags of a topic that are kept for the percentiles: 8 MiB. When there are more, every second one is dropped."""


@dataclass(slots=True)
class TopicActivity:
    """Records of one topic: how many, how fast, how late. Times in microseconds since the epoch, lags in seconds."""

    topic: str
    records: int = 0
    deletes: int = 0
    first_us: int = 0
    last_us: int = 0
    _lags: pa.Array = field(default_factory=lambda: pa.array([], pa.float64()))
    _step: int = 1
    """One of every `_step` lags is kept."""

    @property
    def updates(self) -> int:
        """Records with a value."""
        return self.records - self.deletes

    @property
    def per_second(self) -> float | None:
        """Records per second between the first and the last one; None if all have the same time."""
        seconds = (self.last_us - self.first_us) / 1_000_000
        return round(self.records / seconds, 1) if seconds > 0 else None

    @property
    def last(self) -> datetime:
        """When the last record was published."""
        return datetime.fromtimestamp(self.last_us / 1_000_000, UTC)

    def lag_s(self, share: float) -> float | None:
        """The lag that `share` (0 to 1) of the live records do not exceed; None if no record has a write time."""
        if not len(self._lags):
            return None
        found: float = pc.quantile(self._lags, share, interpolation="higher")[0].as_py()
        return round(found, 3)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a record batch of raw rows. It must have at least one record."""
        published = batch.column("publish_time").cast(pa.int64())
        times = pc.min_max(published).as_py()
        self.first_us = min(self.first_us or times["min"], times["min"])
        self.last_us = max(self.last_us, times["max"])
        self.records += batch.num_rows
        self.deletes += batch.column("value").null_count
        is_live = pc.is_null(pc.map_lookup(batch.column("properties"), SNAPSHOT, "first"))
        lags = pc.divide(pc.subtract(published, batch.column("writetime")).filter(is_live).drop_null(), 1_000_000.0)
        self._keep(lags)

    def _keep(self, lags: pa.Array) -> None:
        self._lags = pa.concat_arrays([self._lags, _every(lags, self._step)])
        while len(self._lags) > _MOST_LAGS:
            self._lags, self._step = _every(self._lags, 2), self._step * 2


def count_activity(
    options: Mapping[str, str], minutes: float, counted: Callable[[int], None] = lambda records: None
) -> list[TopicActivity]:
    """The activity of each topic with records in the last `minutes` minutes, the busiest topic first.

    `counted` is called with the number of records after each batch. Raises ConfigError, TopicError,
    PulsarUnreachableError, TopicReadError, DataLossError.
    """
    start = datetime.now(UTC) - timedelta(minutes=minutes)
    parsed = BridgeOptions.from_mapping({**options, "startingOffsets": start.isoformat()})
    found: dict[str, TopicActivity] = {}
    records = 0
    for span in plan_batch(parsed):
        activity = found.setdefault(span.topic, TopicActivity(span.topic))
        for batch in read_range(parsed, span):
            activity.add(batch)
            records += batch.num_rows
            counted(records)
    return sorted((each for each in found.values() if each.records), key=lambda each: -each.records)


def _every(values: pa.Array, step: int) -> pa.Array:
    return values if step == 1 else values.take(pa.array(range(0, len(values), step)))
