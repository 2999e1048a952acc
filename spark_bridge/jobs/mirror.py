"""The job `mirror`: keeps Delta tables equal to a Cassandra table by its data topic, and by option what changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from spark_bridge.admin import PulsarAdmin
from spark_bridge.jobs.mirror_batch import MirrorBatch, MirrorSettings
from spark_bridge.jobs.mirror_state import MirrorTables
from spark_bridge.micro_batch import logged_end
from spark_bridge.options import BridgeOptions, option_texts
from spark_bridge.positions import BEGINNING
from spark_bridge.readers import raw_stream

__all__ = ["MirrorSummary", "mirror"]

Options = Mapping[str, str | int | bool]
OnBatch = Callable[[Mapping[str, int]], None]
_DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSummary:
    """What a run did: micro-batches, records read, rows inserted, updated and deleted; and how long it took."""

    batches: int
    records: int
    inserted: int
    updated: int
    deleted: int
    seconds: float


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
    on_batch: OnBatch = lambda counts: None,
) -> MirrorSummary:
    """Bring the tables below `target` up to the topic's end, or with `follow_interval_s` keep them there until stopped.

    Killed at any moment and run again it goes on where it was, and nothing is applied twice. `on_batch` is told the
    counts of each micro-batch. Raises ConfigError, TopicError, PulsarUnreachableError, and Spark's errors.
    """
    given = option_texts(options)
    checkpoint = f"{target.rstrip('/')}/checkpoint"
    given = {name: each for name, each in given.items() if name.lower() != "checkpointlocation"}
    given["checkpointLocation"] = checkpoint
    if "minpartitions" not in {name.lower() for name in given}:
        given["minPartitions"] = str(spark.sparkContext.defaultParallelism)
    parsed = BridgeOptions.from_mapping(given)
    settings = MirrorSettings(changelog=changelog, history=history, static_columns=static_columns)
    counts: list[Mapping[str, int]] = []
    started = time.monotonic()

    def apply(batch: DataFrame, number: int) -> None:
        tables = MirrorTables(batch.sparkSession, target)
        counts.append(MirrorBatch(tables, parsed.of_topic(parsed.only_topic), settings).apply(batch))
        on_batch(counts[-1])

    with PulsarAdmin(parsed) as admin:
        ends = {topic: admin.last_position(topic) for topic in admin.topic_partitions()}
    while True:
        frame = raw_stream(spark, given)
        stream = frame.writeStream.foreachBatch(apply).option("checkpointLocation", checkpoint)
        if follow_interval_s is None:
            stream.trigger(availableNow=True).start().awaitTermination()
        else:
            stream.trigger(processingTime=f"{follow_interval_s} seconds").start().awaitTermination()
        reached = logged_end(checkpoint, ends.keys()) or {}
        if all(reached.get(topic, BEGINNING) >= end or end.entry < 0 for topic, end in ends.items()):
            break
    tables = MirrorTables(spark, target)
    nothing = spark.createDataFrame([], frame.schema)
    counts.append(MirrorBatch(tables, parsed.of_topic(parsed.only_topic), settings).apply(nothing))  # rows that expired
    tables.forget(int(time.time() - tombstone_retention_days * _DAY_S))
    if compact:
        for table in (tables.rows, tables.records):
            if table.read() is not None:
                table.compact()
    return _summary(counts, time.monotonic() - started)


def _summary(counts: list[Mapping[str, int]], seconds: float) -> MirrorSummary:
    def total(name: str) -> int:
        return sum(each.get(name, 0) for each in counts)

    return MirrorSummary(
        batches=len(counts) - 1,
        records=total("records"),
        inserted=total("insert"),
        updated=total("update"),
        deleted=total("delete"),
        seconds=seconds,
    )
