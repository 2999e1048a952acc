"""The history of a mirror: every version of every row, with the write times between which it was valid (type 2
dimension).

The table's columns, then `valid_from` and `valid_to` (microseconds, as CQL's `WRITETIME()`; null: valid now),
`_cdc_id` (the row), `opened` and `closed` (the epochs that wrote them).
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from spark_bridge.jobs.lake_table import LakeTable, update_and_insert
from spark_bridge.rows.row_chain import FIRST_STEP

__all__ = ["add_versions", "has_epoch"]


def has_epoch(history: LakeTable, epoch: int) -> bool:
    """Whether a run that failed later has written this epoch; one Spark job."""
    known = history.read()
    return known is not None and not known.where((F.col("opened") >= epoch) | (F.col("closed") >= epoch)).isEmpty()


def add_versions(history: LakeTable, steps: DataFrame, columns: Sequence[str], epoch: int) -> None:
    """Close the versions of changed rows and add their new ones, in one commit. The history does not have the epoch yet.

    `steps` as `spark_bridge.jobs.row_steps.RowChanges` has them. A version that a later step of the same epoch replaced is
    added closed. `valid_to` is never before `valid_from`, whatever write times the clients set.
    """
    has_next = F.col("next_us").isNotNull()
    fields = [F.col("after").getField(each).alias(each) for each in columns]
    added = steps.where("after IS NOT NULL").select(
        *fields,
        F.col("changed_us").alias("valid_from"),
        F.when(has_next, F.greatest("changed_us", "next_us")).alias("valid_to"),
        "_cdc_id",
        F.lit(epoch).cast("bigint").alias("opened"),
        F.when(has_next, F.lit(epoch).cast("bigint")).alias("closed"),
    )
    if history.read() is None:
        history.create(added)
        return
    history.ensure(added)
    closing = steps.where((F.col("step") == FIRST_STEP) & F.col("before").isNotNull()).select(
        F.col("_cdc_id").alias("closes"), F.col("changed_us").alias("closed_us")
    )
    source = added.withColumns({"closes": F.lit(None).cast("string"), "closed_us": F.lit(None).cast("bigint")})
    _, insert = update_and_insert(added.columns)
    history.merge(
        source.unionByName(closing, allowMissingColumns=True),
        "t._cdc_id = s.closes AND t.valid_to IS NULL",
        f"WHEN MATCHED THEN UPDATE SET t.valid_to = greatest(t.valid_from, s.closed_us), t.closed = {epoch}",
        f"WHEN NOT MATCHED AND s.closes IS NULL THEN {insert}",
    )
