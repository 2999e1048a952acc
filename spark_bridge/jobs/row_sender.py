"""Sends events for the rows of token ranges, on the executors: each range is one task, and the rate is limited."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from uuid import UUID

import pyarrow as pa
from pyspark.sql import SparkSession

from schemas.table_metadata import TableMetadata
from spark_bridge.jobs.cassandra_rows import CassandraAccess, RangeReader, TokenRange
from spark_bridge.jobs.row_events import RowEvents
from spark_bridge.jobs.time_spans import TimeSpan
from spark_bridge.topics.options import BridgeOptions

__all__ = ["RowSender", "node_id_of"]

_DONE = "low bigint, high bigint, rows bigint"


class RowSender:
    """Sends events for rows of one table. It has only plain values, because it is pickled into tasks."""

    def __init__(
        self,
        access: CassandraAccess,
        table: TableMetadata,
        options: BridgeOptions,
        partitions: Sequence[str],
        *,
        where: str | None,
        rows_per_second: float | None,
        tasks: int,
        written: Sequence[TimeSpan] | None = None,
    ) -> None:
        """`partitions`: those of the events topic. `rows_per_second` is shared by `tasks`, which run at the same time.
        `where`, `written`: see RangeReader.

        Raises CassandraReadError.
        """
        self._access = access
        self._table = table
        self._options = options
        self._partitions = list(partitions)
        self._where = where
        self._written = None if written is None else tuple(written)
        self._rate = None if rows_per_second is None else rows_per_second / tasks
        self._node_id = node_id_of(access)

    def run(self, spark: SparkSession, ranges: Sequence[TokenRange], *, publish: bool) -> Mapping[TokenRange, int]:
        """The number of rows of each range. With `publish`, the broker has their events when this returns."""
        plan = spark.createDataFrame(list(ranges), "low bigint, high bigint").repartition(len(ranges))
        mine = self

        def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for each in batch.to_pylist():
                    low, high = each["low"], each["high"]
                    rows = mine.send(low, high) if publish else mine.count(low, high)
                    yield pa.RecordBatch.from_pydict({"low": [low], "high": [high], "rows": [rows]})

        return {(row.low, row.high): row.rows for row in plan.mapInArrow(work, _DONE).collect()}

    def count(self, low: int, high: int) -> int:
        """The number of rows of a range. Raises CassandraReadError."""
        return sum(batch.num_rows for batch in self._reader().read([(low, high)]))

    def send(self, low: int, high: int) -> int:
        """Send the events of a range, and return their number. The broker has them when this returns.

        Raises CassandraReadError, EventSendError.
        """
        started, sent = time.monotonic(), 0
        burst = None if self._rate is None else max(1, int(self._rate / 5))
        with closing(RowEvents(self._options, self._table, self._partitions, self._node_id)) as events:
            for batch in self._reader().read([(low, high)]):
                for row in batch.to_pylist():
                    events.add(row["key"], row["key_parts"], row["token"], row["has_row"], row["writetime_us"])
                    sent += 1
                    if burst is not None and self._rate is not None and sent % burst == 0:
                        events.flush()
                        time.sleep(max(0.0, started + sent / self._rate - time.monotonic()))
            events.flush()
        return sent

    def _reader(self) -> RangeReader:
        return RangeReader(self._access, self._table, keys_only=True, where=self._where, written=self._written)


def node_id_of(access: CassandraAccess) -> UUID:
    """The host id of any node of the cluster. Raises CassandraReadError."""
    with access.session() as session:
        found = session.execute("SELECT host_id FROM system.local").one()["host_id"]
    assert isinstance(found, UUID)
    return found
