"""The folding rules on DataFrames: from all records of a data topic to the table's rows.

Spark reads the records' metadata and groups the records of each Cassandra partition. The rules themselves are plain
code (spark_bridge.rows.fold). The values pass through unchanged, as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.types import StructType

from schemas import record_properties as names
from spark_bridge.rows.conformed import conformed
from spark_bridge.rows.fold import PARTITION, RANGE, ROW, STATIC, Rules
from spark_bridge.rows.fold_batches import (
    BOUNDS,
    FOLD_COLUMNS,
    FOLDED_SCHEMA,
    KEPT_SCHEMA,
    fold_batches,
    folded_table,
)
from spark_bridge.rows.key_columns import OWNER_TIME_ZONE, KeyColumns, owner_text, with_key
from spark_bridge.rows.key_forms import KEY_VERSION, KeyForms
from spark_bridge.rows.range_scope import RangeScope
from spark_bridge.rows.record_places import record_place, record_source, said
from spark_bridge.rows.sql_columns import field, null_of, quoted, selected, struct, type_text
from spark_bridge.topics.table_clearing import TableClearing
from spark_bridge.topics.topic_schemas import TopicSchemas

__all__ = ["all_records", "folded", "folded_here", "key_forms", "shown_rows"]

KeptOf = Callable[[Sequence[str]], DataFrame | None]
"""Returns all rows that earlier folds kept of these Cassandra partitions (`owner`); None: there are none."""

_SCOPES: Final = {
    "row": ROW,
    "row_deletion": ROW,
    "static_row": STATIC,
    "partition_deletion": PARTITION,
    "range_deletion": RANGE,
}
_DECODED_KEY: Final = "decoded_key"
_KEPT_PARTS: Final = ("valued", "deleted", "lasting", "passing", "going", "static_columns")
"""Columns of a kept row beside those that identify it."""
_KEPT_TYPE: Final = StructType([KEPT_SCHEMA[name] for name in _KEPT_PARTS])

_MOST_HERE: Final = 20_000
_LONGEST_HERE: Final = 16 << 10
"""Limits of rows, and of bytes of a value, for the driver: some 300 MiB in the worst case, usually a few MiB."""
_MOST_BYTES_HERE: Final = 32 << 20
"""The result goes back to Spark inside a task, whose size Spark limits to 128 MiB."""


def all_records(raw: DataFrame, schemas: TopicSchemas, time_zone: str = OWNER_TIME_ZONE) -> DataFrame:
    """Return one row for each record, with what the rules need. `scope` is `row`, `static`, `partition` or `range`.

    `owner` is the Cassandra partition as text, with timestamps in `time_zone`.
    """
    columns = KeyColumns.of(schemas)
    scope, owner, version = f"'{ROW}'", "hex(key)", "schema_version"
    forms = key_forms(schemas)
    if forms.differ:
        raw, version = forms.applied(raw, version), KEY_VERSION
    if columns.clustering:
        raw = with_key(raw, _DECODED_KEY, schemas, F.col(version), F.col("message_id"))
        scope = _scope(f"{field(_DECODED_KEY, columns.clustering[0])} IS NOT NULL")
        owner = owner_text(columns, _DECODED_KEY, time_zone)
    bounds = {name: said(getattr(names, name.upper())) for name in BOUNDS if name != "schema_version"}
    return selected(
        raw,
        {
            "key": "key",
            "value": "value",
            "schema_version": "schema_version",
            "key_version": version,
            "scope": scope,
            "at": record_place(),
            "source": record_source(),
            "published_us": "unix_micros(publish_time)",
            "expires_at": f"cast({said(names.EXPIRES_AT)} AS bigint)",
            "columns_expire_at": said(names.COLUMNS_EXPIRE_AT),
            "cells_expire_at": f"cast({said(names.CELLS_EXPIRE_AT)} AS bigint)",
            "is_sure": f"coalesce({said(names.ROW_MARKER)} = 'expires', false)",
            "deletion_time": f"cast({said(names.DELETION_TIME)} AS bigint)",
            "static_columns": said(names.STATIC_COLUMNS),
            "bounds": f"CASE WHEN {said(names.KIND)} = 'range_deletion' THEN "
            f"{struct({**bounds, 'schema_version': 'schema_version'})} END",
            "owner": owner,
        },
    )


def folded(
    records: DataFrame,
    kept: DataFrame | None,
    schemas: TopicSchemas,
    static_names: Sequence[str] | None,
    clock_s: int | None = None,
    clearings: Sequence[TableClearing] = (),
    *,
    in_ranges: bool = False,
) -> DataFrame:
    """Fold the result of `all_records` with rows of earlier folds: one row by FOLDED_SCHEMA per key, scope and range.

    `kept`: all kept rows of the Cassandra partitions that occur in the records, as KEPT_SCHEMA with `run`; columns that
    an earlier version did not keep may be missing. For each partition, the rows with the highest `run` count.
    `static_names`: names of the table's static columns (None: the records name them). `clock_s`: the time, in seconds
    since the epoch (None: when the query runs). `clearings`: the truncations and drops that count, of the table life to
    which the records belong. `in_ranges`: give each task a range of owners, which needs another pass over the records.
    The rows of one Cassandra partition are in the memory of one task.
    """
    given = _all_rows(records, kept)
    # One shuffle by Cassandra partition, which all later steps use.
    divided = given.repartitionByRange("owner") if in_ranges else given.repartition("owner")
    return divided.sortWithinPartitions("owner").mapInArrow(
        fold_batches(_rules(schemas, static_names, clearings), clock_s), FOLDED_SCHEMA
    )


def folded_here(
    records: DataFrame,
    kept: DataFrame | KeptOf | None,
    schemas: TopicSchemas,
    static_names: Sequence[str] | None,
    clock_s: int | None = None,
    clearings: Sequence[TableClearing] = (),
) -> pa.Table | None:
    """Fold as `folded` does, but immediately and in this process.

    So Spark starts no Python process for a few records. This takes one Spark job. `kept` may be a function, which is
    called with the owners of the records; a second job then reads what it returns. Return None if this is too much for
    the driver: more than 20,000 records and kept rows, more than 32 MiB, or a value above 16 KiB.
    """
    if kept is None or isinstance(kept, DataFrame):
        given = _read_here(_all_rows(records, kept))
    else:
        given = _looked_up(records, kept)
    return None if given is None else folded_table(given, _rules(schemas, static_names, clearings), clock_s)


def _looked_up(records: DataFrame, kept_of: KeptOf) -> pa.Table | None:
    new = _read_here(_all_rows(records, None))
    if new is None:
        return None
    kept = kept_of(pc.unique(new["owner"]).to_pylist())
    if kept is None:
        return new
    known = _read_here(_all_rows(records.where("false"), kept))
    if known is None or len(new) + len(known) > _MOST_HERE or new.nbytes + known.nbytes > _MOST_BYTES_HERE:
        return None
    return pa.concat_tables([new, known], promote_options="default")  # they differ in which columns may be null


def _read_here(rows: DataFrame) -> pa.Table | None:
    fits = f"coalesce(length(value), 0) + coalesce(length(kept.valued.value), 0) <= {_LONGEST_HERE}"
    short = {name: f"CASE WHEN {fits} THEN {name} END" for name in ("value", "kept")}
    given = selected(rows, {name: quoted(name) for name in FOLD_COLUMNS} | short | {"fits": fits})
    found = given.limit(_MOST_HERE + 1).toArrow()
    if len(found) > _MOST_HERE or found.nbytes > _MOST_BYTES_HERE or not all(found["fits"].to_pylist()):
        return None
    return found


def shown_rows(judged: DataFrame, more: Mapping[str, str] = MappingProxyType({})) -> DataFrame:
    """The rows of the table, before decoding: `key`, `key_version`, `value`, `value_version`, `is_alive`,
    `static_names`, `static_value`, `static_version`; and `owner`, `place` (the value's message id), `writetime_us`,
    `expires_at` (when the row or one of its columns expires next, in seconds; null: nothing expires), `gone_columns`
    (expired columns).

    Where `is_alive` is false, the partition has no row, but it may have static columns. `more`: expressions of further
    columns, by the columns of `judged`.
    """
    same = [
        *("key", "key_version", "is_alive", "static_names", "static_value", "static_version", "owner", "place"),
        *("writetime_us", "gone_columns"),
    ]
    of_value = {"value": "valued.value", "value_version": "valued.schema_version"}
    shown = {**{name: name for name in same}, **of_value, "expires_at": "next_expiry_s", **more}
    return selected(judged.where("is_alive OR is_static_only"), shown)


def key_forms(schemas: TopicSchemas) -> KeyForms:
    """The forms of a topic's keys."""
    return KeyForms([(each.version, each.key) for each in schemas.versions])


def _rules(schemas: TopicSchemas, static_names: Sequence[str] | None, clearings: Sequence[TableClearing]) -> Rules:
    return Rules(
        bool(KeyColumns.of(schemas).clustering),
        static_names,
        RangeScope([(each.version, each.key) for each in schemas.versions]),
        tuple(clearings),
    )


def _scope(has_row: str) -> str:
    """The scope of a record; see `spark_bridge.rows.fold.ROW`."""
    kind = said(names.KIND)
    named = " ".join(f"WHEN {kind} = '{name}' THEN '{scope}'" for name, scope in _SCOPES.items())
    # DataStax's records have no kind: a null value without a clustering key deletes the partition.
    no_row = f"WHEN {kind} IS NULL AND value IS NULL THEN '{PARTITION}' ELSE '{STATIC}'"
    return f"CASE {named} WHEN {has_row} THEN '{ROW}' {no_row} END"


def _all_rows(records: DataFrame, kept: DataFrame | None) -> DataFrame:
    given = _record_rows(records)
    return given if kept is None else given.unionByName(_kept_rows(kept), allowMissingColumns=True)


def _record_rows(records: DataFrame) -> DataFrame:
    """`all_records` in the columns that `spark_bridge.rows.fold_batches` reads."""
    places = {
        **{name: f"at.position.{name}" for name in ("ledger", "entry")},
        "batch_index": "at.position.`index`",
        **{name: f"at.{quoted(name)}" for name in ("partition", "writetime")},
        "clock_us": "unix_micros(at.clock)",
        # All fields of the struct are nullable: Arrow refuses a null struct with fields that are not.
        "bounds": f"cast(bounds AS {type_text(KEPT_SCHEMA['bounds'].dataType)})",
        "run": "cast(NULL AS bigint)",
        "kept": null_of(_KEPT_TYPE),
    }
    return selected(records, {name: places.get(name, quoted(name)) for name in FOLD_COLUMNS})


def _kept_rows(kept: DataFrame) -> DataFrame:
    """The results of an earlier fold in the same columns. A column that the earlier fold did not keep is null."""
    found = kept.schema
    parts = [KEPT_SCHEMA[name] for name in _KEPT_PARTS]
    fields = {
        each.name: conformed(each.name, found[each.name].dataType, each.dataType)
        if each.name in found.names
        else null_of(each.dataType)
        for each in parts
    }
    bounds = conformed("bounds", found["bounds"].dataType, KEPT_SCHEMA["bounds"].dataType)
    same = {name: name for name in ("owner", "key", "scope", "key_version", "run")}
    return selected(kept, {**same, "bounds": bounds, "kept": struct(fields)})
