"""Measures the fixed cost of the mirror: small runs of it and of the job that a user would write by hand, in one
session, in turns.

The job by hand takes typed rows, the newest record of each key by a window, and one `MERGE` into a Delta table. It has
no markers, no static columns, no expiry and no order between partitions. Its cost is the minimum for a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from benchmarks.spark_meter import Measured, timed
from spark_bridge import raw_stream, typed
from spark_bridge.jobs.mirror import mirror
from tests.fixtures.spark import tasks_of_jobs

__all__ = ["small_stage"]

_BATCHES: Final = 4
_BATCH_ROWS: Final = 1_000

Options = Mapping[str, str]


def small_stage(
    spark: SparkSession,
    topic: Callable[[int], dict[str, str]],
    more: Callable[[Options, int], None],
    rows: int,
    folder: Path,
) -> Iterator[Measured]:
    """Measure a first run of `rows` records, then micro-batches of 1,000: by hand, as a mirror, and with changes and
    history.

    `topic` creates a topic with a number of records and returns its options; `more` writes a number of updates to it.
    """
    jobs: Mapping[str, Callable[[Options, str], object]] = {
        "by hand": lambda options, target: by_hand(spark, options, target),
        "mirror": lambda options, target: mirror(spark, options, target),
        "with changes and history": lambda options, target: mirror(
            spark, options, target, changelog=True, history=True
        ),
    }
    warm = topic(_BATCH_ROWS)
    for name, run in jobs.items():
        run(warm, str(folder / f"warm {name}"))
    options = topic(rows)
    for name, run in jobs.items():
        yield _counted(spark, f"first run, {name}", rows, run, options, str(folder / name))
    for _ in range(_BATCHES):
        more(options, _BATCH_ROWS)
        for name, run in jobs.items():
            yield _counted(spark, f"micro-batch, {name}", _BATCH_ROWS, run, options, str(folder / name))


def by_hand(spark: SparkSession, options: Options, target: str) -> None:
    """Run the job by hand once, up to the topic's end."""
    table = f"delta.`{target}/rows`"

    def merge(batch: DataFrame, number: int) -> None:
        del number
        order = Window.partitionBy("key").orderBy(
            F.desc("publish_time"),
            *[F.desc(F.get(F.split("message_id", ":"), F.lit(at)).cast("bigint")) for at in (0, 1, 3)],
        )
        newest = typed(batch, options).withColumn("at", F.row_number().over(order)).where("at = 1")
        source = newest.select("op", "key.*", "value.*")
        columns = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in source.drop("op").schema)
        session = batch.sparkSession
        session.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING delta")
        source.createOrReplaceTempView("by_hand")
        session.sql(
            f"MERGE INTO {table} t USING by_hand s ON t.id = s.id WHEN MATCHED AND s.op = 'd' THEN DELETE "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT *"
        )

    stream = raw_stream(spark, options).writeStream.foreachBatch(merge).trigger(availableNow=True)
    stream.option("checkpointLocation", f"{target}/checkpoint").start().awaitTermination()


def _counted(
    spark: SparkSession, stage: str, rows: int, run: Callable[[Options, str], object], options: Options, target: str
) -> Measured:
    before = max(tasks_of_jobs(spark), default=-1)
    measured = timed(stage, rows, lambda: run(options, target))
    return replace(measured, spark_jobs=max(tasks_of_jobs(spark), default=-1) - before)
