"""A data topic as the current table, and as changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from spark_bridge.errors import UnresolvedError
from spark_bridge.reading.planning import plan_batch
from spark_bridge.reading.readers import raw_batch
from spark_bridge.reading.topic_reader import TopicRange, last_message_properties
from spark_bridge.rows.cleared import of_life
from spark_bridge.rows.folding import all_records, folded, shown_rows
from spark_bridge.rows.table_lives import TableLife, is_of_life, life_at_end
from spark_bridge.rows.table_rows import table_rows
from spark_bridge.rows.typed import typed_rows
from spark_bridge.topics.clearings import schema_changes_now
from spark_bridge.topics.options import BridgeOptions, batch_options
from spark_bridge.topics.positions import parse_time_ms
from spark_bridge.topics.resolved import table_of
from spark_bridge.topics.table_clearing import TableClearing
from spark_bridge.topics.topic_schemas import TopicSchemas

__all__ = ["changes", "current_table", "shown_records", "typed"]

Options = Mapping[str, str | int | bool]


def typed(raw: DataFrame, options: Options) -> DataFrame:
    """Raw rows, batch or stream, with `key` and `value` as structs of the table's columns.

    The columns are those of the newest schema when this is called. Raises ConfigError, TopicError,
    PulsarUnreachableError.
    """
    parsed = _parsed(options)
    return typed_rows(raw, TopicSchemas.fetch(parsed), parsed)


def changes(spark: SparkSession, options: Options) -> DataFrame:
    """All records of the topic up to now, typed. Raises what `typed` raises."""
    return typed(_raw(spark, options), options)


def current_table(
    spark: SparkSession,
    options: Options,
    *,
    static_columns: Sequence[str] | None = None,
    clock_s: int | None = None,
) -> DataFrame:
    """The table that results from the topic's records: the rows of `SELECT *`, with the columns of the key first.

    `static_columns` names the table's static columns if the topic's records do not, as those of DataStax's connector.
    Rows that had expired at `clock_s` (seconds since the epoch; None: now) are left out. The truncations and drops that
    are known when this is called count. Raises what `typed` raises.
    """
    parsed = _parsed(options)
    schemas = TopicSchemas.fetch(parsed)
    return table_rows(_shown(_raw(spark, options), parsed, schemas, static_columns, clock_s), schemas, parsed.numbers)


def shown_records(
    spark: SparkSession, options: BridgeOptions, schemas: TopicSchemas, static_columns: Sequence[str] | None
) -> DataFrame:
    """The records of the current table, before decoding: see `spark_bridge.rows.folding.shown_rows`."""
    return _shown(_raw(spark, options.as_texts()), options, schemas, static_columns)


def _shown(
    raw: DataFrame,
    options: BridgeOptions,
    schemas: TopicSchemas,
    static_columns: Sequence[str] | None,
    clock_s: int | None = None,
) -> DataFrame:
    last = _last_properties(options)
    # Asked after the last records: when a record behind a truncation is published, the truncation is known already.
    clearings, seen = _schema_changes_until(options, schemas, clock_s)
    life = life_at_end(last, seen)
    if life is not None:
        raw = raw.where(is_of_life(life))
    clearings = of_life(clearings, life)
    return shown_rows(folded(all_records(raw, schemas), None, schemas, static_columns, clock_s, clearings))


def _schema_changes_until(
    options: BridgeOptions, schemas: TopicSchemas, clock_s: int | None
) -> tuple[Sequence[TableClearing], Sequence[TableLife]]:
    """The truncations and drops until the end of the records or the clock, the earlier one; without both, until now.

    And the table lives that the connector has seen until then.
    """
    ends_ms = [parse_time_ms(options.ending_offsets), None if clock_s is None else clock_s * 1_000]
    until_ms = min((each for each in ends_ms if each is not None), default=None)
    clearings, tables = schema_changes_now(options)
    name = _table_name(options, schemas)
    return (
        [each for each in clearings if until_ms is None or each.time_ms <= until_ms],
        [
            TableLife(each.table_id)
            for each in tables
            if each.name == name and (until_ms is None or each.time_ms <= until_ms)
        ],
    )


def _table_name(options: BridgeOptions, schemas: TopicSchemas) -> str:
    """`keyspace.table`, by the options and the topic's name, or else as the topic's schema has it."""
    try:
        return table_of(options)
    except UnresolvedError:
        return f"{schemas.newest.value.get('namespace')}.{schemas.newest.value.get('name')}"


def _raw(spark: SparkSession, options: Options) -> DataFrame:
    """A batch read that is divided among all cores, unless the options say otherwise."""
    given = batch_options(options)
    if "minpartitions" not in {name.lower() for name in given}:
        given["minPartitions"] = str(spark.sparkContext.defaultParallelism)
    return raw_batch(spark, given)


def _parsed(options: Options) -> BridgeOptions:
    return BridgeOptions.from_mapping(batch_options(options))


def _last_properties(options: BridgeOptions) -> list[Mapping[str, str]]:
    """The properties of the last records of the topic's partitions."""
    last: dict[str, TopicRange] = {}
    for each in plan_batch(options):
        last[each.partition_topic] = each
    found = [last_message_properties(options, each) for each in last.values()]
    return [each for each in found if each is not None]
