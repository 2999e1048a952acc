"""From folded records to the table's rows: one column for each column of the table, the key's first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from spark_bridge.rows.avro_columns import Numbers
from spark_bridge.rows.key_columns import KeyColumns
from spark_bridge.rows.shared_names import own_value_names
from spark_bridge.rows.sql_columns import field, literal, selected
from spark_bridge.rows.typed import RecordDecoder, key_decoder, value_decoder, with_numbers
from spark_bridge.topics.topic_schemas import TopicSchemas

__all__ = ["table_columns", "table_rows"]

_SHOWS: Final = "_cdc_shows"


def table_columns(schemas: TopicSchemas) -> list[str]:
    """Names of the table's columns in their order, by the newest schema.

    Raises TopicError if a key column and a value column share a name.
    """
    return [*key_decoder(schemas, "string").names, *own_value_names(schemas)]


def table_rows(
    rows: DataFrame, schemas: TopicSchemas, numbers: Numbers, kept: Sequence[str] = (), *, shows: str | None = None
) -> DataFrame:
    """Decode the result of `shown_rows` to the table's rows. The columns `kept` of `rows` follow the table's columns.

    `shows`: name of one more column, which is true for rows of the table, and false for a partition that has neither
    rows nor static columns. None: such a partition is left out.

    Raises TopicError if a key column and a value column share a name.
    """
    key, value = key_decoder(schemas, numbers), value_decoder(schemas, numbers)
    if not KeyColumns.of(schemas).clustering:
        return _plain_columns(rows, schemas, key, value, kept, shows)
    shown = shows or _SHOWS
    found = _with_static_columns(rows, schemas, key, value, kept, shown)
    return found if shows else _where_shown(found)


def _where_shown(rows: DataFrame) -> DataFrame:
    """The rows whose column `_SHOWS` is true.

    Spark moves a condition in front of a projection, and puts the projection's expressions in place of their names.
    Here each of these is the decoding of a whole record. A table of 15 columns would give 40,000 lines of Java, more
    than a method may have. Spark does not move a condition in front of a column that is not deterministic, such as the
    number of the task.
    """
    is_shown = F.col(_SHOWS) & (F.spark_partition_id() >= 0)
    return rows.withColumn(_SHOWS, is_shown).where(F.col(_SHOWS)).drop(_SHOWS)


def _plain_columns(
    rows: DataFrame,
    schemas: TopicSchemas,
    key: RecordDecoder,
    value: RecordDecoder,
    kept: Sequence[str],
    shows: str | None,
) -> DataFrame:
    structs = rows.withColumns(
        {
            "key": key.try_decode(F.col("key"), F.col("key_version")),
            "value": value.try_decode(F.col("value"), F.col("value_version")),
            **_data("key", "value"),
        }
    )
    finished = with_numbers(structs.withColumns(_checked_row(key, value)), {"key": key, "value": value})
    keys = {name: field("key", name) for name in key.names}
    values = {name: _living(name) for name in own_value_names(schemas)}
    shown = {} if shows is None else {shows: "true"}
    return selected(finished, {**keys, **values, **{each: each for each in kept}, **shown})


def _with_static_columns(
    rows: DataFrame,
    schemas: TopicSchemas,
    key: RecordDecoder,
    value: RecordDecoder,
    kept: Sequence[str],
    shows: str,
) -> DataFrame:
    static_version = F.coalesce("static_version", F.lit(schemas.newest.version))
    structs = rows.withColumns(
        {
            "key_bytes": F.hex("key"),
            "static_version": static_version,
            "key": key.try_decode(F.col("key"), F.col("key_version")),
            "value": F.when(F.col("is_alive"), value.try_decode(F.col("value"), F.col("value_version"))),
            "static": value.try_decode(F.col("static_value"), static_version),
            **_data("key", "value", "static_value"),
        }
    )
    of_partition = F.concat(F.lit("of the partition with key "), F.col("key_bytes"))
    static = value.checked(
        F.col("static"), F.col("static_value_data"), "static columns", of_partition, F.col("static_version")
    )
    checked = structs.withColumns({**_checked_row(key, value), "static": static})
    finished = with_numbers(checked, {"key": key, "value": value, "static": value})
    clustering = set(KeyColumns.of(schemas).clustering)
    keys = {
        name: f"CASE WHEN is_alive THEN {field('key', name)} END" if name in clustering else field("key", name)
        for name in key.names
    }
    values = {
        name: f"CASE WHEN {_is_static(name)} THEN {_living(name, 'static')} ELSE {_living(name)} END"
        for name in own_value_names(schemas)
    }
    statics = [f"({_is_static(name)} AND {_living(name, 'static')} IS NOT NULL)" for name in value.names]
    shown = {shows: " OR ".join(["is_alive", *statics])}
    return selected(finished, {**keys, **values, **{each: each for each in kept}, **shown})


def _data(*names: str) -> dict[str, Column]:
    """Columns with the undecoded bytes of these columns."""
    return {f"{each}_data": F.col(each) for each in names}


def _checked_row(key: RecordDecoder, value: RecordDecoder) -> dict[str, Column]:
    """Key and value after `try_decode`. One that could not be decoded is an error that names the message."""
    place = F.col("place")
    return {
        "key": key.checked(F.col("key"), F.col("key_data"), "key", place, F.col("key_version")),
        "value": value.checked(F.col("value"), F.col("value_data"), "value", place, F.col("value_version")),
    }


def _living(name: str, struct: str = "value") -> str:
    """The value of a column, or null if it has expired."""
    return f"CASE WHEN NOT array_contains(gone_columns, {literal(name)}) THEN {field(struct, name)} END"


def _is_static(name: str) -> str:
    return f"array_contains(static_names, {literal(name)})"
