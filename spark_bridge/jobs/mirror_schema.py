"""The tables of a mirror follow the newest schema of their topic, before a micro-batch is merged into them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import cast

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from schemas.errors import ConfigError
from spark_bridge.jobs.epoch_plan import EpochPlan
from spark_bridge.jobs.history_table import OWN_COLUMNS
from spark_bridge.jobs.lake_table import LakeTable, name_key_of
from spark_bridge.jobs.mirror_rows import OWN, kept_columns
from spark_bridge.jobs.mirror_state import Applied, MirrorTables

__all__ = ["follow_schema", "refuse_other_types"]


def follow_schema(tables: MirrorTables, plan: EpochPlan) -> Applied:
    """Value columns that were dropped, key columns that were renamed; new ones come with the first merge. The state as noted.

    What was dropped and added again since the last micro-batch is new, too. That is noted before anything is merged: a run
    that fails later has written the column's new values, which are not to go. The change log keeps its columns, so it is noted
    before they are dropped until when their values were shown: up to the next epoch where a run that failed has written it
    there, for it is not written again.
    """
    applied = plan.applied
    for table, own in (
        (tables.rows, OWN),
        (tables.history, (*OWN, *OWN_COLUMNS)),
    ):
        found = table.read()
        if found is None:
            continue
        names = [each for each in found.columns if each not in own]
        kept = kept_columns(names, plan.schemas, plan.gone_columns)
        dropped = [each for each in names if each not in kept]
        if dropped and table is tables.rows:
            gone = dict.fromkeys(dropped, applied.epoch + _has_epoch(tables.changes, plan.epoch))
            applied = replace(applied, gone_until={**applied.gone_until, **gone})
            tables.save_applied(applied)
        # in this order: a key column may get the name of one that was dropped
        table.drop_columns(dropped)
        _rename(table, kept)
    if plan.gone_columns:
        applied = replace(applied, schema_version=plan.schemas.newest.version)
        tables.save_applied(applied)
    return applied


def refuse_other_types(log: LakeTable, steps: DataFrame, gone_columns: Collection[str]) -> None:
    """Raises ConfigError where a column has the name of one of another type that was dropped: the change log has that one still.

    `gone_columns`: those that were dropped at any time.
    """
    found = log.read()
    if found is None or not gone_columns:
        return
    name_key = name_key_of(found.sparkSession)
    there = {name_key(each.name): each.dataType for each in _image(found)}
    for name in {name_key(each) for each in gone_columns} & there.keys():
        for each in _image(steps):
            if name_key(each.name) == name and _is_other(there[name], each.dataType):
                kinds = [kind.simpleString().upper() for kind in (there[name], each.dataType)]
                raise ConfigError.of(
                    "target",
                    f"the change log {log.path} has column {each.name} as {kinds[0]}, from before a column of this name was dropped,"
                    f" and the table has it as {kinds[1]} now: mirror the topic into a new target",
                )


def _image(changes: DataFrame) -> StructType:
    return cast("StructType", changes.schema["after"].dataType)


def _is_other(found: DataType, wanted: DataType) -> bool:
    """Types with others within may get new fields, which the table takes."""
    return type(found) is not type(wanted) or (
        found != wanted and not isinstance(found, StructType | ArrayType | MapType)
    )


def _has_epoch(log: LakeTable, epoch: int) -> bool:
    found = log.read()
    return found is not None and not found.where(f"epoch = {epoch}").isEmpty()


def _rename(table: LakeTable, names: Mapping[str, str]) -> None:
    """From the old names of columns to the new ones. Columns whose old name is to be another's, or their own in other
    letters, make room first: Spark refuses a name that is there, and does not tell upper from lower case. Done again after a
    failure in between, it does the rest.
    """
    renamed = {old: new for old, new in names.items() if old != new}
    taken = {each.lower() for each in renamed.values()}
    now = {old: f"_cdc_renamed_{at}" if old.lower() in taken else old for at, old in enumerate(names)}
    for old in renamed:
        if now[old] != old:
            table.rename_column(old, now[old])
    for old, new in renamed.items():
        table.rename_column(now[old], new)
