"""The job `backfill`: rows that were there before the connector reach the data topic as changes do.

Keys are read by token range on the executors, and an event for each goes to the table's events topic; the connector
reads the row as it is then. So it is safe beside live changes: no row is ever older than Cassandra's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import fsspec
import pyarrow as pa
from pyspark.sql import SparkSession

from schemas.table_metadata import TableMetadata
from schemas.topics import DEFAULT_EVENTS_PREFIX, events_topic
from spark_bridge.admin import PulsarAdmin
from spark_bridge.errors import CheckpointError
from spark_bridge.jobs.cassandra_rows import CassandraAccess, RangeReader, TokenRange, table_metadata, token_ranges
from spark_bridge.jobs.row_events import RowEvents
from spark_bridge.options import BridgeOptions, option_texts

__all__ = ["BackfillReport", "backfill"]

Options = Mapping[str, str | int | bool]
_SAMPLED_RANGES: Final = 4
_DONE: Final = "low bigint, high bigint, rows bigint"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillReport:
    """What a run did: rows whose events were sent (of a dry run: an estimate), ranges done now and before."""

    rows: int
    ranges: int
    ranges_before: int
    seconds: float


@dataclass(slots=True)
class _Progress:
    """The file with the finished ranges of one backfill of one table; no file: nothing is kept."""

    path: str | None
    table_id: str
    ranges: int
    done: set[int] = field(default_factory=set)

    def load(self) -> None:
        """Raises CheckpointError for the file of another table or of another number of ranges."""
        if self.path is None:
            return
        try:
            with fsspec.open(self.path, "r") as file:
                stored = json.load(file)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise CheckpointError(self.path, f"cannot be read ({error})") from None
        if (stored.get("table_id"), stored.get("ranges")) != (self.table_id, self.ranges):
            reason = f"is of table id {stored.get('table_id')} in {stored.get('ranges')} ranges, not {self.ranges}"
            raise CheckpointError(self.path, reason)
        self.done = set(stored["done"])

    def add(self, finished: Iterable[int]) -> None:
        """Keep these as finished, too."""
        self.done |= set(finished)
        if self.path is None:
            return
        system, path = fsspec.core.url_to_fs(self.path)
        with system.transaction, system.open(path, "w") as file:
            json.dump({"table_id": self.table_id, "ranges": self.ranges, "done": sorted(self.done)}, file)


def backfill(
    spark: SparkSession,
    options: Options,
    access: CassandraAccess,
    keyspace: str,
    table: str,
    *,
    where: str | None = None,
    ranges: int = 64,
    rows_per_second: float | None = None,
    progress_file: str | None = None,
    dry_run: bool = False,
    events_prefix: str = DEFAULT_EVENTS_PREFIX,
    on_progress: Callable[[int, int, int], None] = lambda done, ranges, rows: None,
) -> BackfillReport:
    """Send an event for every row of a table, or for those of a CQL predicate (`where`).

    With `progress_file` a run that was killed goes on after its last finished ranges. `dry_run` sends nothing and gives
    an estimate from a few ranges. `on_progress` is told ranges done, all ranges, rows sent. Raises ConfigError,
    TopicError when the events topic does not exist, PulsarUnreachableError, CassandraReadError, CheckpointError; a task
    that fails raises Spark's error with CassandraReadError or EventSendError in it.
    """
    started = time.monotonic()
    metadata = table_metadata(access, keyspace, table)
    topic = events_topic(keyspace, table, events_prefix)
    given = {**option_texts(options), "topic": topic}
    parsed = BridgeOptions.from_mapping(given)
    with PulsarAdmin(parsed) as admin:
        partitions = admin.topic_partitions()
    plan = token_ranges(ranges)
    sender = _Sender(
        access, metadata, parsed, partitions, where, rows_per_second, spark.sparkContext.defaultParallelism
    )
    if dry_run:
        sampled = plan[:: max(1, ranges // _SAMPLED_RANGES)]
        counted = sum(sender.run(spark, sampled, publish=False).values())
        rows = round(counted * ranges / len(sampled))
        return BackfillReport(rows=rows, ranges=0, ranges_before=0, seconds=time.monotonic() - started)
    progress = _Progress(progress_file, str(metadata.table_id), ranges)
    progress.load()
    before, rows = len(progress.done), 0
    waiting = [at for at in range(ranges) if at not in progress.done]
    step = spark.sparkContext.defaultParallelism
    for at in range(0, len(waiting), step):
        chosen = waiting[at : at + step]
        sent = sender.run(spark, [plan[each] for each in chosen], publish=True)
        rows += sum(sent.values())
        progress.add(chosen)
        on_progress(len(progress.done), ranges, rows)
    return BackfillReport(rows=rows, ranges=len(waiting), ranges_before=before, seconds=time.monotonic() - started)


class _Sender:
    """Runs ranges on the executors, one task each."""

    def __init__(
        self,
        access: CassandraAccess,
        table: TableMetadata,
        options: BridgeOptions,
        partitions: Sequence[str],
        where: str | None,
        rows_per_second: float | None,
        tasks: int,
    ) -> None:
        self._access = access
        self._table = table
        self._options = options
        self._partitions = list(partitions)
        self._where = where
        self._pause_s = 0.0 if rows_per_second is None else tasks / rows_per_second
        self._node_id = _node_id(access)

    def run(self, spark: SparkSession, ranges: Sequence[TokenRange], *, publish: bool) -> Mapping[TokenRange, int]:
        """Rows of each range."""
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
        """Rows of a range."""
        return sum(batch.num_rows for batch in self._reader().read([(low, high)]))

    def send(self, low: int, high: int) -> int:
        """Send the range's events; they are with the broker when this returns."""
        events = RowEvents(self._options, self._table, self._partitions, self._node_id)
        started, sent = time.monotonic(), 0
        try:
            for batch in self._reader().read([(low, high)]):
                for row in batch.to_pylist():
                    events.add(row["key"], row["key_parts"], row["token"], row["has_row"], row["writetime_us"])
                sent += batch.num_rows
                time.sleep(max(0.0, started + sent * self._pause_s - time.monotonic()))
            events.flush()
        finally:
            events.close()
        return sent

    def _reader(self) -> RangeReader:
        return RangeReader(self._access, self._table, keys_only=True, where=self._where)


def _node_id(access: CassandraAccess) -> UUID:
    cluster, session = access.open()
    try:
        found = session.execute("SELECT host_id FROM system.local").one()["host_id"]
    finally:
        cluster.shutdown()
    assert isinstance(found, UUID)
    return found
