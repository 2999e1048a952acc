"""The history of a mirror: every version of every row, with the write times between which it was valid (type 2
dimension).

The table's columns, then `valid_from` and `valid_to` (microseconds, as CQL's `WRITETIME()`; null: valid now),
`_cdc_id` (the row), `opened` and `closed` (the epochs that wrote them).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from schemas.errors import ConfigError
from spark_bridge.jobs.lake_table import LakeTable, ranged, update_and_insert
from spark_bridge.rows.row_chain import FIRST_STEP
from spark_bridge.rows.sql_columns import field, selected

__all__ = ["OWN_COLUMNS", "add_versions", "has_epoch", "refuse_own_columns"]

OWN_COLUMNS: Final = ("valid_from", "valid_to", "opened", "closed")
"""The columns that the history adds to those of the table, besides `_cdc_id`."""

# columns of a merge's source
_CLOSES: Final = "_cdc_closes"
_CLOSED_US: Final = "_cdc_closed_us"


def refuse_own_columns(history: LakeTable, columns: Collection[str]) -> None:
    """Raises ConfigError if the table has a column with the name of one of the history's own; Spark ignores case."""
    taken = sorted(each for each in columns if each.lower() in OWN_COLUMNS)
    if taken:
        advice = "keep a change log instead"
        if history.read() is not None:  # a mirror keeps an existing history up to date, even if it is not asked to
            advice = f"delete {history.path}, and keep a change log instead (changelog in the place of history)"
        raise ConfigError.of(
            "history", f"the table has columns that a history adds itself ({', '.join(taken)}): {advice}"
        )


def has_epoch(history: LakeTable, epoch: int) -> bool:
    """Return True if a run that failed later has written this epoch; one Spark job."""
    known = history.read()
    return known is not None and not known.where((F.col("opened") >= epoch) | (F.col("closed") >= epoch)).isEmpty()


def add_versions(
    history: LakeTable,
    steps: DataFrame,
    columns: Sequence[str],
    epoch: int,
    listed: str | None = None,
    *,
    in_ranges: bool = False,
) -> None:
    """Close the versions of changed rows and add new ones, in one commit. The history must not have the epoch yet.

    `steps` are those of `spark_bridge.jobs.row_steps.RowChanges`. A version that a later step of the same epoch
    replaced is added as a closed one. `listed`: for a large history, the condition that a version (t) belongs to a row
    of the steps. `in_ranges`: if there is no history yet, each of its files gets a range of rows. `valid_to` is never
    before `valid_from`, whatever write times the clients set.
    """
    own = {
        "valid_from": "changed_us",
        "valid_to": "CASE WHEN next_us IS NOT NULL THEN greatest(changed_us, next_us) END",
        "_cdc_id": "_cdc_id",
        "opened": f"{epoch}L",
        "closed": f"CASE WHEN next_us IS NOT NULL THEN {epoch}L END",
    }
    added = selected(steps.where("after IS NOT NULL"), {**{each: field("after", each) for each in columns}, **own})
    if history.read() is None:
        history.create(ranged(added, "_cdc_id") if in_ranges else added)
        return
    history.ensure(added)
    first = steps.where(f"step = {FIRST_STEP} AND before IS NOT NULL")
    # The epoch is a column of the source: in the text of the `MERGE`, Spark would compile new code for each epoch.
    closing = selected(first, {_CLOSES: "_cdc_id", _CLOSED_US: "changed_us", "closed": f"{epoch}L"})
    source = added.withColumns({_CLOSES: F.lit(None).cast("string"), _CLOSED_US: F.lit(None).cast("bigint")})
    _, insert = update_and_insert(added.columns)
    history.merge(
        source.unionByName(closing, allowMissingColumns=True),
        f"t._cdc_id = s.{_CLOSES} AND t.valid_to IS NULL" + ("" if listed is None else f" AND {listed}"),
        f"WHEN MATCHED THEN UPDATE SET t.valid_to = greatest(t.valid_from, s.{_CLOSED_US}), t.closed = s.closed",
        f"WHEN NOT MATCHED AND s.{_CLOSES} IS NULL THEN {insert}",
    )
