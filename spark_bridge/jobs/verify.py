"""The job `verify`: compares a Cassandra table with its data topic, or with a mirror of it, row by row.

Both sides are decoded by the same code and compared as text. A row that differs is looked at again, for it may have
been on its way: it is reported when it stays different and neither side has moved between two looks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from schemas.avro_names import avro_names
from schemas.row_record import data_key_schema, data_value_schema
from schemas.table_metadata import TableMetadata
from spark_bridge.current_table import shown_records
from spark_bridge.folding import owner_of
from spark_bridge.jobs.cassandra_rows import CassandraAccess, TokenRange, read_rows, table_metadata, token_ranges
from spark_bridge.jobs.mirror_batch import ID, WRITETIME
from spark_bridge.jobs.mirror_state import MirrorTables
from spark_bridge.options import BridgeOptions, option_texts
from spark_bridge.table_rows import table_columns, table_rows
from spark_bridge.topic_schemas import AvroRecord, SchemaVersion, TopicSchemas

__all__ = ["Difference", "VerifyReport", "verify"]

Options = Mapping[str, str | int | bool]
_BETWEEN_LOOKS_S: Final = 10
_CASSANDRA_VERSION = -1
"""Stands for the table's own schema beside the versions of the topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One row. `key` is JSON; write times are microseconds, null where that side has none."""

    kind: Literal["missing", "extra", "differing"]
    key: str
    columns: tuple[str, ...]
    cassandra_writetime_us: int | None
    topic_writetime_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What was compared and what differs. `unsettled` rows went on changing while they were looked at."""

    rows: int
    ranges: int
    differences: tuple[Difference, ...]
    unsettled: int
    seconds: float


class _Comparison:
    """One table, looked at as often as needed."""

    def __init__(
        self,
        spark: SparkSession,
        options: BridgeOptions,
        access: CassandraAccess,
        table: TableMetadata,
        mirror: str | None,
    ) -> None:
        self._spark = spark
        self._options = options
        self._access = access
        self._table = table
        self._mirror = mirror
        topic = TopicSchemas.fetch(options)
        own = SchemaVersion(
            version=_CASSANDRA_VERSION, key=_record(data_key_schema(table)), value=_record(data_value_schema(table))
        )
        self._schemas = TopicSchemas(topic=topic.topic, versions=(own, *topic.versions))
        self._columns = table_columns(self._schemas)
        self._keys = avro_names([each.name for each in table.primary_key])
        statics = {each.name for each in table.static_columns}
        values = [each.name for each in table.value_columns]
        self._statics = [own for name, own in zip(values, avro_names(values), strict=True) if name in statics]

    def differing(self, ranges: Sequence[TokenRange], among: Sequence[str] | None) -> tuple[int, list[Row]]:
        """Rows of Cassandra, and what differs; `among` restricts it to rows of these ids."""
        cassandra, topic = self._cassandra(ranges), self._other_side(len(ranges))
        if among is not None:
            ids = F.broadcast(self._spark.createDataFrame([(each,) for each in among], f"{ID} string"))
            cassandra, topic = cassandra.join(ids, ID, "left_semi"), topic.join(ids, ID, "left_semi")
        told = cassandra.join(topic, ID, "full_outer").persist()
        try:
            counted = told.where("cassandra IS NOT NULL").count()
            return counted, told.where("NOT (cassandra.content <=> topic.content)").collect()
        finally:
            told.unpersist()

    def _cassandra(self, ranges: Sequence[TokenRange]) -> DataFrame:
        version = F.lit(_CASSANDRA_VERSION).cast("bigint")
        statics = F.array(*map(F.lit, self._statics)).cast("array<string>")
        rows = read_rows(self._spark, self._access, self._table, ranges).withColumns({
            "key_version": version,
            "value_version": version,
            "place": F.lit("of Cassandra"),
            "is_alive": F.col("has_row"),
            "static_names": statics,
            "static_value": F.col("value"),
            "static_version": version,
        })  # fmt: skip
        return self._side(rows.withColumn("owner", owner_of(self._schemas)), "cassandra")

    def _other_side(self, ranges: int) -> DataFrame:
        if self._mirror is None:
            return self._side(shown_records(self._spark, self._options, self._schemas, self._statics), "topic")
        rows = MirrorTables(self._spark, self._mirror).rows.read()
        if rows is None:
            rows = self._spark.createDataFrame([], f"{ID} string, {WRITETIME} bigint")
        missing = {name: F.lit(None).cast("string") for name in self._columns if name not in rows.columns}
        return _compared(rows.withColumns(missing), self._columns, self._keys, "topic")

    def _side(self, rows: DataFrame, name: str) -> DataFrame:
        identity = F.when(F.col("is_alive"), F.hex("key")).otherwise(F.concat(F.lit("static:"), F.col("owner")))
        shown = rows.withColumns({ID: identity, WRITETIME: F.col("writetime_us")})
        table = table_rows(shown, self._schemas, self._options.numbers, (ID, WRITETIME))
        return _compared(table, self._columns, self._keys, name)


def verify(
    spark: SparkSession,
    options: Options,
    access: CassandraAccess,
    keyspace: str,
    table: str,
    *,
    mirror_target: str | None = None,
    ranges: int | None = None,
    settle_s: float = 30,
    give_up_s: float = 600,
) -> VerifyReport:
    """Compare every row of a table with the topic's, or the mirror's below `mirror_target`.

    A difference is reported when both sides have stayed as they are for `settle_s`; after `give_up_s` rows that still
    move are left as unsettled. Raises ConfigError, TopicError, PulsarUnreachableError, and Spark's errors; a task that
    cannot read Cassandra fails with CassandraReadError.
    """
    started = time.monotonic()
    parsed = BridgeOptions.from_mapping(option_texts(options))
    metadata = table_metadata(access, keyspace, table)
    comparison = _Comparison(spark, parsed, access, metadata, mirror_target)
    plan = token_ranges(ranges or spark.sparkContext.defaultParallelism * 2)
    rows, found = comparison.differing(plan, None)
    seen_at = time.monotonic()
    waiting = {row[ID]: (row, seen_at) for row in found}
    settled: dict[str, Row] = {}
    while waiting and time.monotonic() - started < give_up_s:
        time.sleep(min(settle_s, _BETWEEN_LOOKS_S))
        _, again = comparison.differing(plan, list(waiting))
        seen_at = time.monotonic()
        now = {row[ID]: (row, waiting[row[ID]][1] if row == waiting[row[ID]][0] else seen_at) for row in again}
        settled |= {name: row for name, (row, since) in now.items() if seen_at - since >= settle_s}
        waiting = {name: each for name, each in now.items() if name not in settled}
    return VerifyReport(
        rows=rows,
        ranges=len(plan),
        differences=tuple(_difference(settled[name]) for name in sorted(settled)),
        unsettled=len(waiting),
        seconds=time.monotonic() - started,
    )


def _compared(rows: DataFrame, columns: Sequence[str], keys: Sequence[str], name: str) -> DataFrame:
    each = {column: F.to_json(F.struct(F.col(_quoted(column)).alias(column))).alias(column) for column in columns}
    told = F.struct(
        F.to_json(F.struct(*[F.col(_quoted(key)).alias(key) for key in keys if key in columns])).alias("key"),
        F.struct(*each.values()).alias("content"),
        F.col(WRITETIME).alias("writetime"),
    )
    return rows.select(ID, told.alias(name))


def _difference(row: Row) -> Difference:
    cassandra, topic = row.cassandra, row.topic
    if cassandra is None or topic is None:
        columns: tuple[str, ...] = ()
    else:
        ours, theirs = cassandra.content.asDict(), topic.content.asDict()
        columns = tuple(name for name in ours if ours[name] != theirs[name])
    kind: Literal["missing", "extra", "differing"] = "differing"
    if topic is None:
        kind = "missing"
    elif cassandra is None:
        kind = "extra"
    return Difference(
        kind=kind,
        key=(cassandra or topic).key,
        columns=columns,
        cassandra_writetime_us=None if cassandra is None else cassandra.writetime,
        topic_writetime_us=None if topic is None else topic.writetime,
    )


def _record(schema: object) -> AvroRecord:
    assert isinstance(schema, dict)
    return schema


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
