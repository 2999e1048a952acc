"""The place of a record in its topic, and the place of its change in a commit log.

`spark_bridge.rows.fold` decides which of two records is the later one.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from schemas.record_properties import NODE, SEGPOS, SNAPSHOT, TABLE_ID
from spark_bridge.topics.table_clearing import TableClearing

__all__ = ["RECORD_SOURCE", "message_id_of", "record_place", "record_source", "stands_before"]

RECORD_SOURCE: Final = "struct<node: string, segment: bigint, position: bigint, table_id: string, snapshot: boolean>"
"""Type of `record_source`. A field is null if the record does not have it."""
_OF_A_WRITE: Final = "^[0-9]{1,18}:[0-9]{1,10}$"
"""Form of the `segpos` of a write. It does not match backfills and expiries, whose segments are negative."""


def record_place() -> Column:
    """Place of a record in its topic partition. `clock` orders it against other partitions; null if there are none."""
    parts = F.split("message_id", ":")
    position = F.struct(
        parts[0].cast("bigint").alias("ledger"),
        parts[1].cast("bigint").alias("entry"),
        F.coalesce(F.get(parts, F.lit(3)).cast("int"), F.lit(-1)).alias("index"),
    )
    clock = F.when(F.col("partition") >= 0, F.col("publish_time"))
    return F.struct(position.alias("position"), F.col("partition"), clock.alias("clock"), F.col("writetime"))


def message_id_of(at: Column) -> Column:
    """The message id as text, of a place that `record_place` gave."""
    position = at.getField("position")
    index = F.when(position.getField("index") >= 0, position.getField("index"))
    return F.concat_ws(":", position.getField("ledger"), position.getField("entry"), at.getField("partition"), index)


def record_source() -> Column:
    """Source of a record, by RECORD_SOURCE: the place of its change, the table's id, and if it is a backfilled row.

    The place is the host id of the node, segment and position. Node, segment and position are null if no write caused
    the record, as for a backfill or an expiry.
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
