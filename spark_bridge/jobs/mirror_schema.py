"""The tables of a mirror follow the newest schema of their topic, before a micro-batch is merged into them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from schemas.errors import ConfigError
from spark_bridge.jobs.epoch_plan import EpochPlan
from spark_bridge.jobs.history_table import OWN_COLUMNS
from spark_bridge.jobs.lake_table import LakeTable, name_key_of
from spark_bridge.jobs.mirror_rows import OWN, kept_columns, newest_type
from spark_bridge.jobs.mirror_state import Applied, MirrorTables
from spark_bridge.rows.avro_types import field_types
from spark_bridge.rows.conformed import struct_type
from spark_bridge.rows.sql_columns import quoted
from spark_bridge.rows.user_types import UNFINISHED_NAME, names_of_fields, renamed_structs
from spark_bridge.topics.topic_schemas import TopicSchemas

__all__ = ["follow_schema", "log_has_epoch", "refuse_other_types"]


def follow_schema(tables: MirrorTables, plan: EpochPlan) -> Applied:
    """Drop value columns, and rename key columns and fields of user types, as the schema did. Return the state as stored.

    New columns come with the first merge. A column that was dropped and added again since the last micro-batch is
    dropped, too, and comes back as a new one. This is stored before anything is merged: after a later failure, the next
    run must not drop the column again, because it may have new values.

    The change log keeps its columns. So before a column is dropped, the last epoch that shows its values is stored
    (`gone_until`). This is the next epoch if a failed run has written it to the change log: it is not written again. The
    same holds before a key column gets a name that another key column had.
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
        others = [*dropped, *_names_of_others(kept, plan.schemas)]
        if others and table is tables.rows:
            gone = dict.fromkeys(others, applied.epoch + log_has_epoch(tables.changes, plan.epoch))
            applied = replace(applied, gone_until={**applied.gone_until, **gone})
            tables.save_applied(applied)
        # in this order: a key column may get the name of a dropped column
        table.drop_columns(dropped)
        _rename(table, kept)
        _rename_fields(table, plan.schemas)
    # The change log keeps columns of earlier definitions. Their user types may be other ones of the same name.
    _rename_fields(tables.changes, plan.schemas, ("before", "after"), applied.gone_until)
    if plan.gone_columns:
        applied = replace(applied, schema_version=plan.schemas.newest.version)
        tables.save_applied(applied)
    return applied


def _names_of_others(kept: Mapping[str, str], schemas: TopicSchemas) -> list[str]:
    """The new names of key columns that another key column had. `kept`: old and new names, those of the key first."""
    keys = [[name.lower() for name, _ in field_types(each.key)] for each in schemas.versions]
    return [
        new
        for at, (old, new) in enumerate(kept.items())
        if old != new and any(new.lower() in (*key[:at], *key[at + 1 :]) for key in keys)
    ]


def refuse_other_types(log: LakeTable, steps: DataFrame, gone_columns: Collection[str]) -> None:
    """Raises ConfigError if a column has the name of an earlier column of another type, which the change log still has.

    `gone_columns`: the names of such columns, which were dropped or renamed.
    """
    found = log.read()
    if found is None or not gone_columns:
        return
    name_key = name_key_of(found.sparkSession)
    there = {name_key(each.name): each.dataType for each in struct_type(found, "after")}
    for name in {name_key(each) for each in gone_columns} & there.keys():
        for each in struct_type(steps, "after"):
            if name_key(each.name) == name and _is_other(there[name], each.dataType):
                kinds = [kind.simpleString().upper() for kind in (there[name], each.dataType)]
                raise ConfigError.of(
                    "target",
                    f"the change log {log.path} has column {each.name} as {kinds[0]}, from before a column of this name was dropped"
                    f" or renamed, and the table has it as {kinds[1]} now: mirror the topic into a new target",
                )


def _is_other(found: DataType, wanted: DataType) -> bool:
    """Return True if the types differ.

    Structs, arrays and maps count as equal: new fields in them fit into the table.
    """
    return type(found) is not type(wanted) or (
        found != wanted and not isinstance(found, StructType | ArrayType | MapType)
    )


def log_has_epoch(log: LakeTable, epoch: int) -> bool:
    """Return True if a run that failed later has written this epoch to the change log; one Spark job."""
    found = log.read()
    return found is not None and not found.where(f"epoch = {epoch}").isEmpty()


def _rename_fields(
    table: LakeTable, schemas: TopicSchemas, images: Sequence[str] = (), without: Collection[str] = ()
) -> None:
    """Rename fields in the table's columns as the fields of their user types were renamed.

    `images`: the columns of a change log that hold the table's columns. `without`: columns that stay. After a failure
    in between, a repeated call does the rest.
    """
    if not _has_renamed_fields(schemas):
        return
    found = table.read()
    if found is None:
        return
    columns = [("", each) for each in found.schema] if not images else []
    columns += [(f"{image}.", each) for image in images for each in struct_type(found, image)]
    for place, column in columns:
        if column.name not in without:
            newest = newest_type(column.name, column.dataType, schemas)
            for path, names in renamed_structs(column.dataType, newest, f"{place}{quoted(column.name)}"):
                _rename(table, names, path)


def _has_renamed_fields(schemas: TopicSchemas) -> bool:
    records = [record for each in schemas.versions for record in (each.key, each.value)]
    return any(len(names) > 1 for places in names_of_fields(records).values() for names in places)


def _rename(table: LakeTable, names: Mapping[str, str], path: str | None = None) -> None:
    """Rename columns, or the fields of the struct at `path`, from their old names to the new ones.

    After a failure in between, a repeated call does the rest. Spark refuses a name that exists, and ignores case. So a
    column whose old name is the new name of another column, or its own new name in another case, gets an intermediate
    name first.
    """
    renamed = {old: new for old, new in names.items() if old != new}
    taken = {each.lower() for each in renamed.values()}
    now = {old: f"{UNFINISHED_NAME}{at}" if old.lower() in taken else old for at, old in enumerate(names)}
    within = () if path is None else (path,)
    for old in renamed:
        if now[old] != old:
            table.rename_column(old, now[old], *within)
    for old, new in renamed.items():
        table.rename_column(now[old], new, *within)
