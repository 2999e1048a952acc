"""Compares a Cassandra table with its data topic, or with a mirror of it: which rows are not equal.

Both sides are decoded by the same code and compared as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from schemas.avro_names import avro_names
from schemas.hidden_columns import PublishedTable
from schemas.row_record import data_key_schema, data_value_schema
from schemas.table_metadata import TableMetadata
from spark_bridge.jobs.batch_session import fit_session
from spark_bridge.jobs.cassandra_rows import CassandraAccess, TokenRange, read_rows
from spark_bridge.jobs.mirror_rows import ID, OWNER, WRITETIME
from spark_bridge.jobs.mirror_state import MirrorTables
from spark_bridge.jobs.token_sample import TokenSample
from spark_bridge.rows.current_table import shown_records
from spark_bridge.rows.fold import NOTHING
from spark_bridge.rows.folding import key_forms
from spark_bridge.rows.key_columns import OWNER_TIME_ZONE, with_owner
from spark_bridge.rows.key_forms import KEY_VERSION
from spark_bridge.rows.sql_columns import quoted
from spark_bridge.rows.table_rows import table_columns, table_rows
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.topic_schemas import PRESENT_VERSION, SchemaVersion, TopicSchemas

__all__ = ["ID", "Differences", "TableComparison"]

_KEY, _PARTS, _ANY_KEY, _ROW_TIME = "_cdc_key", "_cdc_key_parts", "_cdc_any_key", "_cdc_row_writetime"
_PRESENT_KEY: Final = "_cdc_present_key"
"""The key as a new record has it."""
_ROW_BYTES: Final = 50
"""The least size of a row, as a topic or a mirror stores it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """The result of one comparison: the numbers of Cassandra's rows and of rows that differ; `shown`: some that differ.

    Each of them has its id (`ID`); `cassandra` and `topic` (null: that side has no such row), each a struct of `key`
    (JSON), `writetime`, `key_bytes` (Avro; for a static row: any key of its partition, or null), and from Cassandra only
    `key_parts` (CQL bytes) and `row_writetime` (without static columns); `columns`, which differ in a row that both
    sides have; and `state`, which is equal while both sides stay as they are.
    """

    rows: int
    differing: int
    shown: Sequence[Row]


class TableComparison:
    """Compares one table, any number of times. With a sample, only that part of the ring is compared."""

    def __init__(
        self,
        spark: SparkSession,
        options: BridgeOptions,
        access: CassandraAccess,
        table: TableMetadata,
        ranges: Sequence[TokenRange],
        *,
        mirror: str | None,
        sample: TokenSample | None,
        published: PublishedTable | None = None,
    ) -> None:
        """`ranges` of the table are read, one task each. The session must be a separate one: its settings are changed.
        `published`: the table as the connector publishes it, if it hides columns. Both sides are compared in that form.

        Raises TopicError, PulsarUnreachableError, StateFileError, and ConfigError for a mirror of another topic, or
        for `numbers` that the mirror does not have.
        """
        self._spark = spark
        self._rows = 0
        self._options = options
        if mirror is not None:
            tables = MirrorTables(spark, mirror)
            tables.refuse_other_topic(options.only_topic, "mirror")
            self._options = tables.with_numbers(options)
        self._access = access
        self._table = table
        self._ranges = ranges
        self._mirror = mirror
        self._sample = sample
        self._published = published
        shown = table if published is None else published.table
        topic = TopicSchemas.fetch(options)
        own = SchemaVersion(version=PRESENT_VERSION, key=data_key_schema(shown), value=data_value_schema(shown))
        self._schemas = TopicSchemas(topic=topic.topic, versions=(own, *topic.versions))
        self._columns = table_columns(self._schemas)
        self._keys = avro_names([each.name for each in shown.primary_key])
        statics = {each.name for each in shown.static_columns}
        values = [each.name for each in shown.value_columns]
        self._statics = [own for name, own in zip(values, avro_names(values), strict=True) if name in statics]

    def compare(self, among: Sequence[str] | None = None, *, at_most: int, unless: Column | None = None) -> Differences:
        """Compare all rows, or those of the ids `among`. At most `at_most` rows that differ come to the driver.

        `unless`: a condition for rows that count as equal, on `cassandra.writetime`, `cassandra.row_writetime` and
        `topic.writetime` (microseconds, or null), and `same_row`: both sides have the row, and at most its static
        columns differ.
        """
        fit_session(self._spark, max(self._rows, self._stored_bytes() // _ROW_BYTES), 0)
        cassandra, topic = self._cassandra(), self._other_side()
        if among is not None:
            ids = F.broadcast(self._spark.createDataFrame([(each,) for each in among], f"{ID} string"))
            cassandra, topic = cassandra.join(ids, ID, "left_semi"), topic.join(ids, ID, "left_semi")
        joined = cassandra.join(topic, ID, "full_outer").persist()
        both = joined.withColumn("same_row", self._is_same_row())
        differs = ~F.col("cassandra.content").eqNullSafe(F.col("topic.content"))
        if unless is not None:
            differs &= ~F.coalesce(unless, F.lit(False))
        try:
            counted = both.agg(F.count("cassandra").alias("rows"), F.count_if(differs).alias("differing")).collect()[0]
            self._rows = max(self._rows, counted.rows)
            shown = both.where(differs).select(ID, *self._shown()).limit(at_most).collect() if counted.differing else []
            return Differences(rows=counted.rows, differing=counted.differing, shown=shown)
        finally:
            joined.unpersist()

    def _is_same_row(self) -> Column:
        same = F.lit(True)
        for each in self._columns:
            if each not in self._statics:
                same &= F.col("cassandra.content").getField(each).eqNullSafe(F.col("topic.content").getField(each))
        return same

    def _stored_bytes(self) -> int:
        """The stored size of the topic or the mirror, to guess the table's size before it is read."""
        if self._mirror is not None:
            return MirrorTables(self._spark, self._mirror).rows.size_bytes()
        with PulsarAdmin(self._options) as admin:
            return sum(each.size_bytes for topic in admin.topic_partitions() for each in admin.ledgers(topic))

    def _shown(self) -> list[Column]:
        """The columns that come to the driver. The rows' contents do not: many wide rows would fill the driver."""
        both = F.col("cassandra").isNotNull() & F.col("topic").isNotNull()
        ours, theirs = F.col("cassandra.content"), F.col("topic.content")
        names = [F.when(~ours.getField(each).eqNullSafe(theirs.getField(each)), F.lit(each)) for each in self._columns]
        return [
            F.col("cassandra").dropFields("content").alias("cassandra"),
            F.col("topic").dropFields("content").alias("topic"),
            F.when(both, F.array_compact(F.array(*names))).alias("columns"),
            F.xxhash64(ours, theirs).alias("state"),
        ]

    def _cassandra(self) -> DataFrame:
        version = F.lit(PRESENT_VERSION).cast("bigint")
        statics = F.array(*map(F.lit, self._statics)).cast("array<string>")
        as_of_topic = {
            "key_version": version,
            "value_version": version,
            "place": F.lit("of Cassandra"),
            "is_alive": F.col("has_row"),
            "static_names": statics,
            "gone_columns": F.array().cast("array<string>"),
            "static_value": F.col("value"),
            "static_version": version,
            _PARTS: F.col("key_parts"),
            _ROW_TIME: F.col("row_writetime_us"),
        }
        found = read_rows(self._spark, self._access, self._table, self._ranges, self._published)
        rows = found.withColumns({**as_of_topic, _PRESENT_KEY: F.col("key")})
        forms = key_forms(self._schemas)
        rows = forms.applied(rows, KEY_VERSION) if forms.differ else rows
        mirrored = None if self._mirror is None else MirrorTables(self._spark, self._mirror).applied()
        zone = OWNER_TIME_ZONE if mirrored is None else mirrored.time_zone
        return self._side(with_owner(rows, self._schemas, F.col("place"), zone), "cassandra", _PRESENT_KEY)

    def _other_side(self) -> DataFrame:
        if self._mirror is not None:
            return self._of_mirror(MirrorTables(self._spark, self._mirror))
        rows = shown_records(self._spark, self._options, self._schemas, self._statics)
        sampled = rows if self._sample is None else self._sample.of(rows)
        return self._side(sampled.withColumns(_of_cassandra_only()), "topic")

    def _of_mirror(self, mirror: MirrorTables) -> DataFrame:
        rows, kept = mirror.rows.read(), mirror.read_kept(mirror.applied())
        if rows is None or kept is None:
            rows = self._spark.createDataFrame([], f"{ID} string, {OWNER} string, {WRITETIME} bigint")
            kept = self._spark.createDataFrame([], "owner string, key binary, scope string")
        # one key of each partition is enough to identify it
        owners = (
            kept.where(F.col("scope") != NOTHING).groupBy(F.col("owner").alias(OWNER)).agg(F.min("key").alias("key"))
        )
        if self._sample is not None:
            rows = rows.join(self._sample.of(owners), OWNER, "left_semi")
        missing = {name: F.lit(None).cast("string") for name in self._columns if name not in rows.columns}
        is_static = F.startswith(ID, F.lit("static:"))
        key = F.when(is_static, F.col(_ANY_KEY)).otherwise(F.unhex(F.when(~is_static, F.col(ID))))
        keyed = rows.join(owners.withColumnRenamed("key", _ANY_KEY), OWNER, "left")
        known = keyed.withColumns({**missing, _KEY: key, **_of_cassandra_only()})
        return self._compared(known, "topic")

    def _side(self, rows: DataFrame, name: str, key: str = "key") -> DataFrame:
        identity = F.when(F.col("is_alive"), F.hex("key")).otherwise(F.concat(F.lit("static:"), F.col("owner")))
        shown = rows.withColumns({ID: identity, WRITETIME: F.col("writetime_us"), _KEY: F.col(key)})
        return self._compared(
            table_rows(shown, self._schemas, self._options.numbers, (ID, WRITETIME, _KEY, _PARTS, _ROW_TIME)), name
        )

    def _compared(self, rows: DataFrame, name: str) -> DataFrame:
        each = {column: F.to_json(F.struct(_column(column).alias(column))).alias(column) for column in self._columns}
        both = F.struct(
            F.to_json(F.struct(*[_column(key).alias(key) for key in self._keys if key in self._columns])).alias("key"),
            F.struct(*each.values()).alias("content"),
            F.col(WRITETIME).alias("writetime"),
            F.col(_KEY).alias("key_bytes"),
            F.col(_PARTS).alias("key_parts"),
            F.col(_ROW_TIME).alias("row_writetime"),
        )
        return rows.select(ID, both.alias(name))


def _of_cassandra_only() -> dict[str, Column]:
    return {_PARTS: F.lit(None).cast("array<binary>"), _ROW_TIME: F.lit(None).cast("bigint")}


def _column(name: str) -> Column:
    return F.col(quoted(name))
