"""Activity on data topics: changes, their rate and their lag. For a terminal, a notebook, a dashboard.

The lag of a record is the time from the write in Cassandra (`writetime`) to its publication on the data topic.
Backfilled rows have no lag, because they were written long ago.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from schemas.record_properties import SNAPSHOT
from spark_bridge.reading.readers import raw_batch
from spark_bridge.topics.options import option_texts

__all__ = ["change_rates", "recent", "topic_summary"]


def recent(spark: SparkSession, options: Mapping[str, str | int | bool], minutes: float) -> DataFrame:
    """Raw rows that were published in the last `minutes` minutes. Raises what `raw_batch` raises."""
    start = datetime.now(UTC) - timedelta(minutes=minutes)
    return raw_batch(spark, {**option_texts(options), "startingOffsets": start.isoformat()})


def change_rates(raw: DataFrame, seconds: int = 60) -> DataFrame:
    """For each topic and time span of `seconds`: `start`, `records`, `updates`, `deletes`, `per_second`, `lag_p50_s`,
    `lag_p99_s` (null if no record has a write time)."""
    span = F.window("publish_time", f"{seconds} seconds").alias("span")
    counted = raw.groupBy("topic", span).agg(*_counts())
    rate = F.round(F.col("records") / seconds, 3).alias("per_second")
    return counted.select("topic", F.col("span.start").alias("start"), *_NAMES, rate).orderBy("topic", "start")


def topic_summary(raw: DataFrame) -> DataFrame:
    """For each topic: `records`, `updates`, `deletes`, `per_second` between first and last, lags, `last` (a time)."""
    first, last = F.min("publish_time").alias("first"), F.max("publish_time").alias("last")
    counted = raw.groupBy("topic").agg(*_counts(), first, last)
    # Subtracted as integers: with doubles of this size, a span of milliseconds would have a visible error.
    seconds = (F.unix_millis("last") - F.unix_millis("first")) / 1000
    rate = F.when(seconds > 0, F.round(F.col("records") / seconds, 1)).alias("per_second")
    return counted.select("topic", *_NAMES, rate, "last").orderBy(F.desc("records"))


_NAMES = ("records", "updates", "deletes", "lag_p50_s", "lag_p99_s")


def _counts() -> list[Column]:
    is_live = F.col("properties")[SNAPSHOT].isNull()
    lag = F.when(is_live, F.unix_millis("publish_time") / 1000 - F.col("writetime") / 1_000_000)
    return [
        F.count("*").alias("records"),
        F.count_if(F.col("op") == "u").alias("updates"),
        F.count_if(F.col("op") == "d").alias("deletes"),
        F.round(F.percentile_approx(lag, 0.5), 3).alias("lag_p50_s"),
        F.round(F.percentile_approx(lag, 0.99), 3).alias("lag_p99_s"),
    ]
