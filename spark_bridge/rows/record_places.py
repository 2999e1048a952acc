"""Where a record stands in its topic. Which of two records is the later one: spark_bridge.rows.fold."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

__all__ = ["message_id_of", "record_place"]


def record_place() -> Column:
    """Where a record stands in its topic partition; `clock` orders it against other partitions, if there are any."""
    parts = F.split("message_id", ":")
    position = F.struct(
        parts[0].cast("bigint").alias("ledger"),
        parts[1].cast("bigint").alias("entry"),
        F.coalesce(F.get(parts, F.lit(3)).cast("int"), F.lit(-1)).alias("index"),
    )
    clock = F.when(F.col("partition") >= 0, F.col("publish_time"))
    return F.struct(position.alias("position"), F.col("partition"), clock.alias("clock"), F.col("writetime"))


def message_id_of(at: Column) -> Column:
    """Of what `record_place` gave."""
    position = at.getField("position")
    index = F.when(position.getField("index") >= 0, position.getField("index"))
    return F.concat_ws(":", position.getField("ledger"), position.getField("entry"), at.getField("partition"), index)
