"""The job `mirror`: keeps Delta tables equal to a Cassandra table by its data topic, and by option what changed."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypedDict, Unpack

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from tenacity import RetryCallState, retry, retry_if_exception, stop_after_attempt, wait_fixed

from spark_bridge.jobs.batch_session import session_of_its_own
from spark_bridge.jobs.lake_table import TableFormat
from spark_bridge.jobs.mirror_batch import MirrorBatch, MirrorSettings
from spark_bridge.jobs.mirror_state import MirrorTables
from spark_bridge.reading.folders import HadoopFolder
from spark_bridge.reading.micro_batch import logged_end
from spark_bridge.reading.raw_columns import RAW_SCHEMA
from spark_bridge.reading.readers import raw_stream
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.options import BridgeOptions, option_texts
from spark_bridge.topics.positions import BEGINNING

__all__ = ["JobSettings", "MirrorSummary", "changelog", "history", "mirror"]

Options = Mapping[str, str | int | bool]
OnBatch = Callable[[Mapping[str, int]], None]
_log: Final = logging.getLogger(__name__)
_DAY_S = 86_400
_COMPACT_EVERY = 100
"""Micro-batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSummary:
    """What a run did: micro-batches, records read, rows inserted, updated and deleted; and how long it took."""

    batches: int
    records: int
    inserted: int
    updated: int
    deleted: int
    seconds: float


_LOST_WORKER: Final = {
    # Spark gives a stream's Python process 10 seconds to start, which no setting changes: too few on a busy machine.
    "Python worker failed to connect back": "a Python worker of Spark did not start in time",
    # A micro-batch keeps its rows on the executors. Spark recomputes everything but these.
    "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND": "an executor was lost with rows of the micro-batch",
}
"""What Spark says, and what it means. Each step of a micro-batch may be repeated, so it is done again."""
_ATTEMPTS: Final = 10


def _lost_worker(error: BaseException | None) -> str | None:
    if not isinstance(error, PySparkException | Py4JError):
        return None
    return next((why for text, why in _LOST_WORKER.items() if text in str(error)), None)


def _log_retry(state: RetryCallState) -> None:
    why = None if state.outcome is None else _lost_worker(state.outcome.exception())
    _log.warning("%s; the micro-batch is done again (retry %d of %d)", why, state.attempt_number, _ATTEMPTS - 1)


_again_without_worker = retry(
    retry=retry_if_exception(lambda error: _lost_worker(error) is not None),
    stop=stop_after_attempt(_ATTEMPTS),
    wait=wait_fixed(2),
    before_sleep=_log_retry,
    reraise=True,
)


class JobSettings(TypedDict, total=False):
    """What `mirror`, `changelog` and `history` all take."""

    static_columns: tuple[str, ...] | None
    follow_interval_s: float | None
    tombstone_retention_days: float
    compact: bool
    table_format: TableFormat | None
    rebuild: bool
    on_batch: OnBatch


def mirror(
    spark: SparkSession,
    options: Options,
    target: str,
    *,
    changelog: bool = False,
    history: bool = False,
    static_columns: tuple[str, ...] | None = None,
    follow_interval_s: float | None = None,
    tombstone_retention_days: float = 7,
    compact: bool = False,
    table_format: TableFormat | None = None,
    rebuild: bool = False,
    on_batch: OnBatch = lambda counts: None,
) -> MirrorSummary:
    """Bring the tables below `target` up to the topic's end, or with `follow_interval_s` keep them there until stopped.

    `table_format` None: that of the tables that are there, else Delta Lake. Killed at any moment and run again it goes on
    where it was, and nothing is applied twice. With `rebuild` the topic is read from its beginning, and what the mirror has besides
    goes: for a topic that was made again, which is an OtherTopicError otherwise. `on_batch` is told the counts of each micro-batch. Raises ConfigError,
    TopicError, PulsarUnreachableError, CheckpointError, StateFileError, DataLossError, and Spark's errors.
    """
    given = option_texts(options)
    checkpoint = f"{target.rstrip('/')}/checkpoint"
    given = {name: each for name, each in given.items() if name.lower() != "checkpointlocation"}
    given["checkpointLocation"] = checkpoint
    if "minpartitions" not in {name.lower() for name in given}:
        given["minPartitions"] = str(spark.sparkContext.defaultParallelism)
    parsed = BridgeOptions.from_mapping(given)
    steps = _Steps(
        tables=lambda session: MirrorTables(session, target, table_format),
        options=parsed.of_topic(parsed.only_topic),
        settings=MirrorSettings(changelog=changelog, history=history, static_columns=static_columns),
        retention_s=tombstone_retention_days * _DAY_S,
        compact=compact,
        on_batch=on_batch,
    )
    started = time.monotonic()
    if rebuild:
        # in this order: a checkpoint that is left would be gone on with by a mirror that has nothing
        HadoopFolder(spark, checkpoint).delete_all()
        MirrorTables(spark, target, table_format).begin_anew()
    steps.begin(spark)
    with PulsarAdmin(parsed) as admin:
        ends = {topic: admin.last_position(topic) for topic in admin.topic_partitions()}

    @_again_without_worker
    def run() -> None:
        stream = raw_stream(spark, given).writeStream.foreachBatch(steps.apply)
        stream = stream.option("checkpointLocation", checkpoint)
        if follow_interval_s is None:
            stream.trigger(availableNow=True).start().awaitTermination()
        else:
            query = stream.trigger(processingTime=f"{follow_interval_s} seconds").start()
            try:
                while not query.awaitTermination(max(1, round(follow_interval_s))):
                    steps.expire(spark)  # without records there are no micro-batches
            finally:
                query.stop()

    while True:
        run()
        reached = logged_end(checkpoint, ends.keys(), partial(HadoopFolder, spark)) or {}
        if all(reached.get(topic, BEGINNING) >= end or end.entry < 0 for topic, end in ends.items()):
            break
    _again_without_worker(steps.end)(spark)
    totals = steps.totals
    return MirrorSummary(
        batches=totals["batches"],
        records=totals["records"],
        inserted=totals["insert"],
        updated=totals["update"],
        deleted=totals["delete"],
        seconds=time.monotonic() - started,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """What a run does to the tables, one step at a time: Spark applies micro-batches in a thread of its own."""

    tables: Callable[[SparkSession], MirrorTables]
    options: BridgeOptions
    settings: MirrorSettings
    retention_s: float
    compact: bool
    on_batch: OnBatch
    totals: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, spark: SparkSession) -> None:
        self._batch(self.tables(spark)).begin()

    def apply(self, batch: DataFrame, number: int) -> None:
        with self._lock:
            tables = self.tables(batch.sparkSession)
            counts = self._batch(tables).apply(batch)
            tables.forget(self.retention_s)
            if self.compact and number % _COMPACT_EVERY == _COMPACT_EVERY - 1:
                tables.compact()
            self.totals.update({**counts, "batches": 1})
        self.on_batch(counts)

    def expire(self, spark: SparkSession) -> None:
        with self._lock:
            own = session_of_its_own(spark)
            # not by createDataFrame, which would make that session the active one for all that follows
            nothing = own.range(0).select(*[F.lit(None).cast(each.dataType).alias(each.name) for each in RAW_SCHEMA])
            self.totals.update(self._batch(self.tables(own)).expire(nothing))

    def end(self, spark: SparkSession) -> None:
        self.expire(spark)
        tables = self.tables(spark)
        tables.forget(self.retention_s)
        if self.compact:
            tables.compact()

    def _batch(self, tables: MirrorTables) -> MirrorBatch:
        return MirrorBatch(tables, self.options, self.settings)


def changelog(spark: SparkSession, options: Options, target: str, **more: Unpack[JobSettings]) -> MirrorSummary:
    """Keep `changes` below `target`: every insert, update and delete with both images; and the mirror it comes from.

    As `mirror` in everything else.
    """
    return mirror(spark, options, target, changelog=True, **more)


def history(spark: SparkSession, options: Options, target: str, **more: Unpack[JobSettings]) -> MirrorSummary:
    """Keep `history` below `target`: every version of every row with its write times; and the mirror it comes from.

    As `mirror` in everything else.
    """
    return mirror(spark, options, target, history=True, **more)
