"""A data topic as the table that it stands for, and as the changes it carries."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from schemas.record_properties import TABLE_ID
from spark_bridge.data_source import CassandraCdcDataSource
from spark_bridge.folding import KeyColumns, fold_partitions, fold_rows
from spark_bridge.options import BridgeOptions
from spark_bridge.planning import plan_batch
from spark_bridge.topic_reader import TopicRange, last_message_properties
from spark_bridge.topic_schemas import TopicSchemas
from spark_bridge.typed import RecordDecoder, key_decoder, typed_rows, value_decoder

__all__ = ["changes", "current_table", "register", "typed"]

Options = Mapping[str, str | int | bool]


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("cassandra_cdc")` known to a session."""
    spark.dataSource.register(CassandraCdcDataSource)


def typed(raw: DataFrame, options: Options) -> DataFrame:
    """Raw rows, batch or stream, with `key` and `value` as structs of the table's columns.

    The columns are those of the newest schema when this is called. Raises ConfigError, TopicError,
    PulsarUnreachableError.
    """
    parsed = _parsed(options)
    return typed_rows(raw, TopicSchemas.fetch(parsed), parsed.numbers)


def changes(spark: SparkSession, options: Options) -> DataFrame:
    """All records of the topic up to now, typed. Raises what `typed` raises."""
    return typed(_raw(spark, options), options)


def current_table(spark: SparkSession, options: Options, *, static_columns: Sequence[str] | None = None) -> DataFrame:
    """The table as the topic's records leave it: what `SELECT *` gives, with the key's columns first.

    `static_columns` names the table's static columns where the topic's records do not (those of DataStax's connector).
    Raises what `typed` raises.
    """
    parsed = _parsed(options)
    schemas = TopicSchemas.fetch(parsed)
    raw = _raw(spark, options)
    table_id = _newest_table_id(parsed)
    if table_id is not None:
        # A record without one is of a time before the connector that names it.
        raw = raw.where(F.coalesce(F.col("properties")[TABLE_ID], F.lit(table_id)) == table_id)
    key, value = key_decoder(schemas, parsed.numbers), value_decoder(schemas, parsed.numbers)
    if not KeyColumns.of(schemas).clustering:
        return _plain_columns(fold_rows(raw), key, value)
    return _with_static_columns(fold_partitions(raw, schemas, static_columns), schemas, key, value)


def _plain_columns(rows: DataFrame, key: RecordDecoder, value: RecordDecoder) -> DataFrame:
    structs = rows.select(
        key.decode(F.col("key"), F.col("key_version")).alias("key"),
        value.decode(F.col("value"), F.col("value_version")).alias("value"),
    )
    finished = structs.select(key.finish(F.col("key")).alias("key"), value.finish(F.col("value")).alias("value"))
    return finished.select(*_fields("key", key.names), *_fields("value", _value_names(key, value)))


def _with_static_columns(rows: DataFrame, schemas: TopicSchemas, key: RecordDecoder, value: RecordDecoder) -> DataFrame:
    structs = rows.select(
        "is_alive",
        "static_names",
        key.decode(F.col("key"), F.col("key_version")).alias("key"),
        F.when(F.col("is_alive"), value.decode(F.col("value"), F.col("value_version"))).alias("value"),
        value.decode(F.col("static_value"), F.coalesce("static_version", F.lit(schemas.newest.version))).alias(
            "static"
        ),
    )
    finished = structs.select(
        "is_alive",
        "static_names",
        key.finish(F.col("key")).alias("key"),
        value.finish(F.col("value")).alias("value"),
        value.finish(F.col("static")).alias("static"),
    )
    clustering = {name for name, _ in KeyColumns.of(schemas).clustering}
    keys = [
        F.when(F.col("is_alive"), column).alias(name) if name in clustering else column.alias(name)
        for name, column in zip(key.names, _fields("key", key.names), strict=True)
    ]
    values = [
        F.when(F.array_contains("static_names", name), _field("static", name))
        .otherwise(_field("value", name))
        .alias(name)
        for name in _value_names(key, value)
    ]
    statics = [F.array_contains("static_names", name) & _field("static", name).isNotNull() for name in value.names]
    has_static = F.lit(False)
    for each in statics:
        has_static |= each
    return finished.where(F.col("is_alive") | has_static).select(*keys, *values)


def _value_names(key: RecordDecoder, value: RecordDecoder) -> list[str]:
    """A table of keys only repeats its key in the value."""
    return [name for name in value.names if name not in key.names]


def _field(struct: str, name: str) -> Column:
    return F.col(struct).getField(name)


def _fields(struct: str, names: Sequence[str]) -> list[Column]:
    return [_field(struct, name).alias(name) for name in names]


def _raw(spark: SparkSession, options: Options) -> DataFrame:
    """A batch read whose work is divided among all cores, unless the options say otherwise."""
    register(spark)
    given = {name: _text(value) for name, value in options.items()}
    if "minpartitions" not in {name.lower() for name in given}:
        given["minPartitions"] = str(spark.sparkContext.defaultParallelism)
    return spark.read.format(CassandraCdcDataSource.name()).options(**given).load()


def _parsed(options: Options) -> BridgeOptions:
    return BridgeOptions.from_mapping({name: _text(value) for name, value in options.items()})


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _newest_table_id(options: BridgeOptions) -> str | None:
    """The table id in the last records of the topic's partitions: a table that was created anew starts empty.

    Table ids are version 1 uuids, so of several the one made last is the newest.
    """
    last: dict[str, TopicRange] = {}
    for each in plan_batch(options):
        last[each.partition_topic] = each
    said = [last_message_properties(options, each) for each in last.values()]
    ids = [properties[TABLE_ID] for properties in said if properties and TABLE_ID in properties]
    return max(ids, key=_uuid_time, default=None)


def _uuid_time(text: str) -> tuple[bool, int]:
    try:
        parsed = uuid.UUID(text)
    except ValueError:
        return False, 0
    return parsed.version == 1, parsed.time
