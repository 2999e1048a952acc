"""The history of a mirror: every version of every row with the write times between which it held (type 2 dimension).

The table's columns, then `valid_from` and `valid_to` (microseconds, as CQL's `WRITETIME()`; null: it holds), `_cdc_id`
(the row), `opened` and `closed` (the epochs that wrote them).
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from spark_bridge.jobs.delta_tables import DeltaTable, update_and_insert

__all__ = ["add_versions"]


def add_versions(history: DeltaTable, changes: DataFrame, columns: Sequence[str], epoch: int) -> None:
    """Close the versions of changed rows and open their new ones, in one commit, once an epoch."""
    fields = [F.col("after").getField(each).alias(each) for each in columns]
    opened = changes.where("after IS NOT NULL").select(
        *fields,
        F.col("changed_us").alias("valid_from"),
        F.lit(None).cast("bigint").alias("valid_to"),
        "_cdc_id",
        F.lit(epoch).cast("bigint").alias("opened"),
        F.lit(None).cast("bigint").alias("closed"),
    )
    history.ensure(opened.schema)
    known = history.read()
    assert known is not None
    if not known.where((F.col("opened") >= epoch) | (F.col("closed") >= epoch)).isEmpty():
        return  # a run that failed later has written this epoch
    closing = changes.where("before IS NOT NULL").select(
        F.col("_cdc_id").alias("closes"), F.col("changed_us").alias("closed_us")
    )
    source = opened.withColumns({"closes": F.lit(None).cast("string"), "closed_us": F.lit(None).cast("bigint")})
    update, insert = update_and_insert(opened.columns)
    del update
    history.merge(
        source.unionByName(closing, allowMissingColumns=True),
        "t._cdc_id = s.closes AND t.valid_to IS NULL",
        f"WHEN MATCHED THEN UPDATE SET t.valid_to = greatest(t.valid_from, s.closed_us), t.closed = {epoch}",
        f"WHEN NOT MATCHED AND s.closes IS NULL THEN {insert}",
    )
