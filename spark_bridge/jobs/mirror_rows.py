"""The rows of a mirror: the columns that it adds, and the changes between rows before and after a micro-batch.

Expressions are texts of Spark SQL (spark_bridge.rows.sql_columns).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.types import DataType, StructType

from spark_bridge.jobs.lake_table import MERGE_OP, LakeTable, ranged, same_key, update_and_insert
from spark_bridge.rows.avro_types import field_types, named_records
from spark_bridge.rows.conformed import conformed
from spark_bridge.rows.folding import shown_rows
from spark_bridge.rows.key_columns import KeyColumns
from spark_bridge.rows.row_chain import STATIC_ID
from spark_bridge.rows.sql_columns import field, null_of, quoted, selected, struct, type_text
from spark_bridge.rows.table_rows import table_columns
from spark_bridge.rows.user_types import names_of_fields, with_newest_names
from spark_bridge.topics.topic_schemas import TopicSchemas

__all__ = [
    "EXPIRES_AT",
    "ID",
    "KEY_FORM",
    "OWN",
    "OWNER",
    "WRITETIME",
    "change_op",
    "content_text",
    "counts_and_soonest",
    "counts_of",
    "identified",
    "in_newest_schema",
    "kept_columns",
    "merge_rows",
    "newest_type",
    "whole",
]

ID: Final = "_cdc_id"
OWNER: Final = "_cdc_owner"
WRITETIME: Final = "_cdc_writetime"
EXPIRES_AT: Final = "_cdc_expires_at"
KEY_FORM: Final = "_cdc_key_version"
"""The schema version of a folded row's key. The tables do not have it."""
OWN: Final = (ID, OWNER, WRITETIME, EXPIRES_AT)


def identified(judged: DataFrame) -> DataFrame:
    """`shown_rows` with the mirror's own columns, and KEY_FORM."""
    identity = f"CASE WHEN is_alive THEN hex(key) ELSE concat('{STATIC_ID}', owner) END"
    own = {ID: identity, OWNER: "owner", WRITETIME: "writetime_us", EXPIRES_AT: "next_expiry_s"}
    own |= {KEY_FORM: "key_version"}
    return shown_rows(judged, own)


def counts_and_soonest(compared: DataFrame) -> tuple[dict[str, int], int | None]:
    """Counts of changed rows by `op`, and the time when the first row expires; one Spark job.

    The expiry includes rows that a failed run has merged already.
    """
    found = compared.groupBy("op").agg(F.count("*").alias("rows"), F.min("expires_at").alias("soonest")).collect()
    counts = counts_of({row.op: row["rows"] for row in found})
    return counts, min((row.soonest for row in found if row.soonest is not None), default=None)


def counts_of(rows: Mapping[str, int]) -> dict[str, int]:
    """Counts of changed rows as users see them: `insert`, `update` (with `touch`), `delete`."""
    counts = Counter[str]()
    for op, number in rows.items():
        counts["update" if op == "touch" else op] += number
    del counts["same"]
    return counts


def merge_rows(
    table: LakeTable,
    changes: DataFrame,
    columns: Sequence[str],
    on: str | None,
    *,
    is_large: bool,
    in_ranges: bool = False,
) -> Mapping[str, int]:
    """Apply changes (`op`, `_cdc_id`, `after`) to the table by one `MERGE`. Return its counts.

    A table that does not exist is created, without counts; with `in_ranges` each of its files gets a range of Cassandra
    partitions. `on`: the condition of the `MERGE` (None: equal identities; for a large table it also lists them).
    """
    fields = {each: field("after", each) for each in columns if each != ID}
    source = selected(changes, {MERGE_OP: "op", ID: ID, **fields})
    if table.read() is None:
        first = selected(source.where(f"{MERGE_OP} <> 'delete'"), {each: quoted(each) for each in columns})
        table.create(ranged(first, OWNER) if in_ranges else first)
        return {}
    table.ensure(source.drop(MERGE_OP))
    update, insert = update_and_insert(columns)
    return table.merge(
        source,
        same_key(ID, source, is_large=is_large) if on is None else on,
        f"WHEN MATCHED AND s.{MERGE_OP} = 'delete' THEN DELETE",
        f"WHEN MATCHED THEN {update}",
        f"WHEN NOT MATCHED AND s.{MERGE_OP} <> 'delete' THEN {insert}",
    )


def kept_columns(names: Sequence[str], schemas: TopicSchemas, gone_columns: Collection[str]) -> dict[str, str]:
    """The columns of a mirrored table (`names`, the key's first) that the newest schema has, with their new names.

    Cassandra renames key columns only. A key column may get the name of a column that was dropped. `gone_columns` were
    dropped and added again, so the columns of these names in the schema are new ones.
    """
    keys, wanted = KeyColumns.of(schemas), table_columns(schemas)
    width = len(keys.partition) + len(keys.clustering)
    values = [each for each in names[width:] if each in wanted[width:] and each not in gone_columns]
    return {**dict(zip(names[:width], wanted[:width], strict=True)), **{each: each for each in values}}


def in_newest_schema(
    rows: DataFrame, wanted: StructType, schemas: TopicSchemas, gone_columns: Collection[str]
) -> DataFrame:
    """Rows of a mirror with the columns and types of the newest schema. `gone_columns` are null."""
    schema = StructType([each for each in rows.schema if each.name not in OWN])
    names = {new: old for old, new in kept_columns(schema.names, schemas, gone_columns).items()}
    types = {each.name: each.dataType for each in schema}
    columns = {
        each.name: _in_newest_type(names[each.name], each.name, types[names[each.name]], each.dataType, schemas)
        if each.name in names
        else null_of(each.dataType)
        for each in wanted
    }
    return selected(rows, columns)


def newest_type(name: str, found: DataType, schemas: TopicSchemas) -> DataType:
    """The type of a stored column, by its newest name, with the newest names of the fields of its user types."""
    for part in ("key", "value"):
        record = getattr(schemas.newest, part)
        for each, avro_type in field_types(record):
            if each == name:
                known = names_of_fields(getattr(version, part) for version in schemas.versions)
                return with_newest_names(found, avro_type, named_records(record), known)
    return found


def _in_newest_type(old: str, name: str, found: DataType, wanted: DataType, schemas: TopicSchemas) -> str:
    renamed = newest_type(name, found, schemas)
    # A cast matches fields by position.
    value = (
        quoted(old)
        if renamed.simpleString() == found.simpleString()
        else f"cast({quoted(old)} AS {type_text(renamed)})"
    )
    return conformed(value, renamed, wanted)


def whole(columns: Sequence[str]) -> str:
    """The columns as one struct."""
    return struct({each: quoted(each) for each in columns})


def content_text(columns: Sequence[str]) -> str:
    """Columns of the struct `image` as text, because Spark cannot compare maps. Null where the struct is null."""
    if not columns:
        return "cast(NULL AS string)"
    text = f"to_json({struct({each: field('image', each) for each in columns})})"
    return f"CASE WHEN image IS NOT NULL THEN {text} END"


def change_op() -> str:
    """The `op` of a change, by the columns `before`, `after`, and their contents as text, `old` and `new`.

    `touch`: only the row's write time or expiry changed.
    """
    is_same = " AND ".join(f"before.{each} <=> after.{each}" for each in (WRITETIME, EXPIRES_AT))
    return (
        "CASE WHEN before IS NULL THEN 'insert' WHEN after IS NULL THEN 'delete' WHEN old <> new THEN 'update' "
        f"WHEN {is_same} THEN 'same' ELSE 'touch' END"
    )
