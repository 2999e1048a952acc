"""Takes an epoch back from change log and history: one that a failed run has begun and that no run will finish.

A rebuild, and a run whose checkpoint was lost, read the topic again and cannot repeat that epoch. If its changes
stayed, they would come a second time, and later changes under its number would be skipped. The rows are merged after
change log and history. So if both have the epoch and agree with the rows, the epoch is complete and stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from spark_bridge.jobs.history_table import OWN_COLUMNS
from spark_bridge.jobs.lake_table import LakeTable, name_key_of
from spark_bridge.jobs.mirror_rows import ID, OWN
from spark_bridge.rows.conformed import struct_type
from spark_bridge.rows.sql_columns import quoted

__all__ = ["Unfinished", "take_back"]

_OF_VERSIONS: Final = frozenset(OWN_COLUMNS)
"""The history's own columns. In the other tables a column of such a name is one of Cassandra's."""


class Unfinished(Enum):
    """How much of an epoch was found in change log and history."""

    NOTHING = auto()
    ALL = auto()
    """The rows have the epoch, too, so it stays."""
    TAKEN_BACK = auto()


def take_back(rows: LakeTable, changes: LakeTable, history: LakeTable, epoch: int) -> Unfinished:
    """Take an epoch back, if it is not complete. Return how much of it was found.

    After a failure in between, a repeated call takes back the rest.
    """
    behind = {"changes": _behind_changes(changes, epoch), "history": _behind_history(history, epoch)}
    touched = {name: each for name, each in behind.items() if each is not None}
    written = [name for name, each in touched.items() if not each.isEmpty()]
    if not written:
        return Unfinished.NOTHING
    if len(written) == len(touched) and _agree(rows, touched):
        return Unfinished.ALL
    if "changes" in written:
        changes.delete(f"epoch = {epoch}")
    if "history" in written:
        # In this order: after a failure in between, the closed versions still differ from the rows.
        history.delete(f"opened = {epoch}")
        history.update("valid_to = NULL, closed = NULL", f"closed = {epoch}")
    return Unfinished.TAKEN_BACK


def _behind_changes(changes: LakeTable, epoch: int) -> DataFrame | None:
    """The rows that the epoch touched: `_cdc_id`, and `text`, their content after it (null: no row). None: no table."""
    log = changes.read()
    if log is None:
        return None
    newest = Window.partitionBy(ID).orderBy(F.col("step").desc())
    last = log.where(F.col("epoch") == epoch).withColumn("at", F.row_number().over(newest)).where("at = 1")
    fields = {each: F.col("after").getField(each) for each in struct_type(log, "after").names}
    text = _text(fields, name_key_of(log.sparkSession))
    return last.select(ID, F.when(F.col("after").isNotNull(), text).alias("text"))


def _behind_history(history: LakeTable, epoch: int) -> DataFrame | None:
    """As `_behind_changes`, from the history."""
    versions = history.read()
    if versions is None:
        return None
    touched = versions.where((F.col("opened") == epoch) | (F.col("closed") == epoch)).select(ID).distinct()
    columns = {each: F.col(quoted(each)) for each in versions.columns if each not in _OF_VERSIONS}
    text = _text(columns, name_key_of(versions.sparkSession))
    valid = versions.where("valid_to IS NULL").select(ID, text.alias("text"))
    return touched.join(valid, ID, "left")


def _agree(rows: LakeTable, touched: Mapping[str, DataFrame]) -> bool:
    behind, there = reduce(DataFrame.union, touched.values()), rows.read()
    if there is None:
        return behind.where("text IS NOT NULL").isEmpty()
    text = _text({each: F.col(quoted(each)) for each in there.columns}, name_key_of(there.sparkSession))
    now = there.select(ID, text.alias("now"))
    return behind.join(now, ID, "left").where(~F.col("text").eqNullSafe(F.col("now"))).isEmpty()


def _text(columns: Mapping[str, Column], name_key: Callable[[str], str]) -> Column:
    """The content of a row as text. Null columns are left out, so that tables with different columns can be compared.

    Names go through `name_key`: when a name changes its case, the change log keeps the old name and the rows have the
    new one.
    """
    names = sorted(columns.keys() - set(OWN), key=name_key)
    return F.to_json(F.struct(*[columns[each].alias(name_key(each)) for each in names]), {"ignoreNullFields": "true"})
