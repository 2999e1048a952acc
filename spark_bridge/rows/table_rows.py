"""From folded records to the table's rows: one column for each column of the table, the key's first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from spark_bridge.rows.avro_columns import Numbers
from spark_bridge.rows.key_columns import KeyColumns
from spark_bridge.rows.shared_names import own_value_names
from spark_bridge.rows.typed import RecordDecoder, key_decoder, value_decoder
from spark_bridge.topics.topic_schemas import TopicSchemas

__all__ = ["table_columns", "table_rows"]

_VERSIONS: Final = ("place", "key_version", "value_version")
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
        plain = _plain_columns(rows, schemas, key, value, kept)
        return plain if shows is None else plain.withColumn(shows, F.lit(True))
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
    rows: DataFrame, schemas: TopicSchemas, key: RecordDecoder, value: RecordDecoder, kept: Sequence[str]
) -> DataFrame:
    structs = rows.select(
        *kept,
        "gone_columns",
        *_VERSIONS,
        key.try_decode(F.col("key"), F.col("key_version")).alias("key"),
        value.try_decode(F.col("value"), F.col("value_version")).alias("value"),
        *_data("key", "value"),
    )
    checked = structs.select(*kept, "gone_columns", *_checked_row(key, value))
    finished = checked.select(
        *kept, "gone_columns", key.finish(F.col("key")).alias("key"), value.finish(F.col("value")).alias("value")
    )
    values = [_living(name).alias(name) for name in own_value_names(schemas)]
    return finished.select(*_fields("key", key.names), *values, *kept)


def _with_static_columns(
    rows: DataFrame,
    schemas: TopicSchemas,
    key: RecordDecoder,
    value: RecordDecoder,
    kept: Sequence[str],
    shows: str,
) -> DataFrame:
    static_version = F.coalesce("static_version", F.lit(schemas.newest.version))
    structs = rows.select(
        *kept,
        "is_alive",
        "static_names",
        "gone_columns",
        *_VERSIONS,
        F.hex("key").alias("key_bytes"),
        static_version.alias("static_version"),
        key.try_decode(F.col("key"), F.col("key_version")).alias("key"),
        F.when(F.col("is_alive"), value.try_decode(F.col("value"), F.col("value_version"))).alias("value"),
        value.try_decode(F.col("static_value"), static_version).alias("static"),
        *_data("key", "value"),
        F.col("static_value").alias("static_data"),
    )
    of_partition = F.concat(F.lit("of the partition with key "), F.col("key_bytes"))
    checked = structs.select(
        *kept,
        "is_alive",
        "static_names",
        "gone_columns",
        *_checked_row(key, value),
        value.checked(
            F.col("static"), F.col("static_data"), "static columns", of_partition, F.col("static_version")
        ).alias("static"),
    )
    finished = checked.select(
        *kept,
        "is_alive",
        "static_names",
        "gone_columns",
        key.finish(F.col("key")).alias("key"),
        value.finish(F.col("value")).alias("value"),
        value.finish(F.col("static")).alias("static"),
    )
    clustering = set(KeyColumns.of(schemas).clustering)
    keys = [
        F.when(F.col("is_alive"), column).alias(name) if name in clustering else column.alias(name)
        for name, column in zip(key.names, _fields("key", key.names), strict=True)
    ]
    values = [
        F.when(F.array_contains("static_names", name), _living(name, "static")).otherwise(_living(name)).alias(name)
        for name in own_value_names(schemas)
    ]
    statics = [F.array_contains("static_names", name) & _living(name, "static").isNotNull() for name in value.names]
    has_static = F.lit(False)
    for each in statics:
        has_static |= each
    return finished.select(*keys, *values, *kept, (F.col("is_alive") | has_static).alias(shows))


def _data(*names: str) -> list[Column]:
    """Columns with the undecoded bytes of these columns."""
    return [F.col(each).alias(f"{each}_data") for each in names]


def _checked_row(key: RecordDecoder, value: RecordDecoder) -> tuple[Column, Column]:
    """Key and value after `try_decode`. One that could not be decoded is an error that names the message."""
    place = F.col("place")
    return (
        key.checked(F.col("key"), F.col("key_data"), "key", place, F.col("key_version")).alias("key"),
        value.checked(F.col("value"), F.col("value_data"), "value", place, F.col("value_version")).alias("value"),
    )


def _living(name: str, struct: str = "value") -> Column:
    """The value of a column, or null if it has expired."""
    return F.when(~F.array_contains("gone_columns", name), _field(struct, name))


def _field(struct: str, name: str) -> Column:
    return F.col(struct).getField(name)


def _fields(struct: str, names: Sequence[str]) -> list[Column]:
    return [_field(struct, name).alias(name) for name in names]
