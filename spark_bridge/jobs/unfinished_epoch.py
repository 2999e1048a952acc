"""An epoch that a failed run has begun and that no run will finish: its changes are taken back from change log and history.

A rebuild, and a run whose checkpoint was lost, read the topic anew and cannot repeat that epoch. With its changes left there, each of
them would stand twice, and later ones under its number would be left out. The rows are merged after change log and history. So
where both have the epoch and agree with the rows, nothing of it is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.types import StructType

from spark_bridge.jobs.history_table import OWN_COLUMNS
from spark_bridge.jobs.lake_table import LakeTable, name_key_of, quoted
from spark_bridge.jobs.mirror_rows import ID, OWN

__all__ = ["Unfinished", "take_back"]

_OF_VERSIONS: Final = frozenset(OWN_COLUMNS)
"""The history's own columns. In the other tables a column of this name is Cassandra's."""


class Unfinished(Enum):
    """What there was of an epoch in change log and history."""

    NOTHING = auto()
    ALL = auto()
    """The rows have it, too, so it stays."""
    TAKEN_BACK = auto()


def take_back(rows: LakeTable, changes: LakeTable, history: LakeTable, epoch: int) -> Unfinished:
    """What there was. Done again after a failure in between, it takes back the rest."""
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
        # in this order: after a failure in between, what is closed is not what the rows are
        history.delete(f"opened = {epoch}")
        history.update("valid_to = NULL, closed = NULL", f"closed = {epoch}")
    return Unfinished.TAKEN_BACK


def _behind_changes(changes: LakeTable, epoch: int) -> DataFrame | None:
    """The rows that the epoch touched: `_cdc_id`, and what they are behind it, `text`: null, there is no row. None without the table."""
    log = changes.read()
    if log is None:
        return None
    newest = Window.partitionBy(ID).orderBy(F.col("step").desc())
    last = log.where(F.col("epoch") == epoch).withColumn("at", F.row_number().over(newest)).where("at = 1")
    image = log.schema["after"].dataType
    assert isinstance(image, StructType)
    text = _text({each: F.col("after").getField(each) for each in image.names}, name_key_of(log.sparkSession))
    return last.select(ID, F.when(F.col("after").isNotNull(), text).alias("text"))


def _behind_history(history: LakeTable, epoch: int) -> DataFrame | None:
    """As `_behind_changes`."""
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
    """To be compared, whichever columns two tables have: those that are null are not in it.

    By `name_key`: the change log keeps the old name of a column whose name has changed its case in the rows.
    """
    names = sorted(columns.keys() - set(OWN), key=name_key)
    return F.to_json(F.struct(*[columns[each].alias(name_key(each)) for each in names]), {"ignoreNullFields": "true"})
