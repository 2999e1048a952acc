"""The place of a record in its topic, and the place of its change in a commit log.

They are expressions of Spark SQL as texts (spark_bridge.rows.sql_columns). `spark_bridge.rows.fold` decides which of
two records is the later one.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from schemas.record_properties import NODE, SEGPOS, SNAPSHOT, TABLE_ID
from spark_bridge.rows.sql_columns import struct
from spark_bridge.topics.table_clearing import TableClearing

__all__ = [
    "RECORD_POSITION",
    "RECORD_SOURCE",
    "message_id_of",
    "record_place",
    "record_source",
    "said",
    "stands_before",
]

RECORD_SOURCE: Final = "struct<node: string, segment: bigint, position: bigint, table_id: string, snapshot: boolean>"
"""Type of `record_source`. A field is null if the record does not have it."""
_OF_A_WRITE: Final = "^[0-9]{1,18}:[0-9]{1,10}$"
"""Form of the `segpos` of a write. It does not match backfills and expiries, whose segments are negative."""


RECORD_POSITION: Final = struct(
    {
        "ledger": "cast(split(message_id, ':')[0] AS bigint)",
        "entry": "cast(split(message_id, ':')[1] AS bigint)",
        "index": "coalesce(cast(get(split(message_id, ':'), 3) AS int), -1)",
    }
)
"""Position of a raw row in its topic partition, as an expression of SQL."""


def record_place() -> str:
    """Place of a record in its topic partition. `clock` orders it against other partitions; null if there are none."""
    clock = "CASE WHEN `partition` >= 0 THEN publish_time END"
    return struct({"position": RECORD_POSITION, "partition": "`partition`", "clock": clock, "writetime": "writetime"})


def message_id_of(at: str) -> str:
    """The message id as text, of a column with the result of `record_place`."""
    index = f"CASE WHEN {at}.position.`index` >= 0 THEN {at}.position.`index` END"
    return f"concat_ws(':', {at}.position.ledger, {at}.position.entry, {at}.`partition`, {index})"


def record_source() -> str:
    """Source of a record, by RECORD_SOURCE: the place of its change, the table's id, and if it is a backfilled row.

    The place is the host id of the node, segment and position. Node, segment and position are null if no write caused
    the record, as for a backfill or an expiry.
    """
    place, is_of_write = said(SEGPOS), f"{said(SEGPOS)} RLIKE '{_OF_A_WRITE}'"
    of_write = {
        "node": said(NODE),
        "segment": f"cast(get(split({place}, ':'), 0) AS bigint)",
        "position": f"cast(get(split({place}, ':'), 1) AS bigint)",
    }
    return struct(
        {
            **{name: f"CASE WHEN {is_of_write} THEN {each} END" for name, each in of_write.items()},
            "table_id": said(TABLE_ID),
            "snapshot": f"{said(SNAPSHOT)} = 'true'",
        }
    )


def said(name: str) -> str:
    """A property of a raw row."""
    return f"properties['{name}']"


def stands_before(clearing: TableClearing) -> Column:
    """True for raw rows of the clearing's data topic at or before its positions."""
    position = F.expr(RECORD_POSITION)
    place = F.struct(position.getField("ledger").alias("ledger"), position.getField("entry").alias("entry"))
    found = F.lit(False)
    for number, last in enumerate(clearing.positions):
        if last is not None:
            end = F.struct(
                *[F.lit(at).cast("bigint").alias(name) for at, name in zip(last, ("ledger", "entry"), strict=True)]
            )
            found |= (F.greatest(F.col("partition"), F.lit(0)) == number) & (place <= end)
    return found
