"""The row in a mirror, read with Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc.trace.row_key import RowKey
from source_connector.encoding.projection import Projection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["mirror_row"]


def mirror_row(spark: SparkSession, target: str, key: RowKey) -> str | None:
    """The row as JSON, with the mirror's own columns; None if the mirror does not have it, or is of another table.

    Raises ConfigError, and Spark's errors for a folder that cannot be read.
    """
    from pyspark.sql import functions

    from spark_bridge.jobs.mirror_state import MirrorTables

    tables = MirrorTables(spark, target)
    rows, life = tables.rows.read(), tables.applied().life
    if rows is None or (life is not None and life.table_id != str(key.table.table_id)):
        return None
    identity = Projection(key.table).avro_key(key.parts).hex().upper()
    found = (
        rows.where(functions.col("_cdc_id") == identity)
        .select(functions.to_json(functions.struct("*")).alias("row"))
        .first()
    )
    return None if found is None else str(found["row"])
