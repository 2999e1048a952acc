"""The place of a record in its topic, and of its change in a commit log. spark_bridge.rows.fold decides which of two records
is the later one."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from schemas.record_properties import NODE, SEGPOS, SNAPSHOT, TABLE_ID
from spark_bridge.topics.table_clearing import TableClearing

__all__ = ["RECORD_SOURCE", "message_id_of", "record_place", "record_source", "stands_before"]

RECORD_SOURCE: Final = "struct<node: string, segment: bigint, position: bigint, table_id: string, snapshot: boolean>"
"""What `record_source` gives; each part is null where the record does not say it."""
_OF_A_WRITE: Final = "^[0-9]{1,18}:[0-9]{1,10}$"
"""A `segpos` in a commit log: backfills and expiries have negative segments."""


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


def record_source() -> Column:
    """Where the change stands that caused a record: host id of the node, segment and position; of which table it is.

    Node, segment and position are null where no write caused it: a backfill, an expiry.
    """
    said = F.col("properties")
    is_of_write = said[SEGPOS].rlike(_OF_A_WRITE)
    parts = F.split(said[SEGPOS], ":")
    return F.struct(
        F.when(is_of_write, said[NODE]).alias("node"),
        F.when(is_of_write, F.get(parts, F.lit(0)).cast("bigint")).alias("segment"),
        F.when(is_of_write, F.get(parts, F.lit(1)).cast("bigint")).alias("position"),
        said[TABLE_ID].alias("table_id"),
        (said[SNAPSHOT] == "true").alias("snapshot"),
    )


def stands_before(clearing: TableClearing) -> Column:
    """True for raw rows of the clearing's data topic at or before its positions."""
    position = record_place().getField("position")
    place = F.struct(position.getField("ledger").alias("ledger"), position.getField("entry").alias("entry"))
    found = F.lit(False)
    for number, last in enumerate(clearing.positions):
        if last is not None:
            end = F.struct(
                *[F.lit(at).cast("bigint").alias(name) for at, name in zip(last, ("ledger", "entry"), strict=True)]
            )
            found |= (F.greatest(F.col("partition"), F.lit(0)) == number) & (place <= end)
    return found
