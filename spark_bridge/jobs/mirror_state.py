"""What a mirror keeps beside its rows: records that later deletions must meet, and how far it has come.

    <target>/rows      the table, and `_cdc_id`, `_cdc_owner`, `_cdc_writetime`, `_cdc_expires_at`
    <target>/records   the newest record of each key, and markers of deletions of many rows (spark_bridge.folding)
    <target>/applied   one row: the epoch (counts micro-batches), its clock, the table id, the position of each topic partition
    <target>/changes   the change log, by option
    <target>/history   every version of every row, by option

`applied` is written last: what failed before it is done again from the same state, with the same result.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.types import LongType, StringType, StructField, StructType

from schemas.record_properties import TABLE_ID
from spark_bridge.folding import record_place
from spark_bridge.jobs.delta_tables import DeltaTable, update_and_insert
from spark_bridge.positions import topic_of

__all__ = ["Applied", "BatchContent", "MirrorTables", "content_of", "not_applied", "uuid_time"]

_APPLIED = StructType([
    StructField("epoch", LongType(), False),
    StructField("clock_s", LongType(), False),
    StructField("table_id", StringType()),
    StructField("positions", StringType(), False),
])  # fmt: skip

RecordPosition = tuple[int, int, int]
"""Ledger, entry, batch index (-1 without one)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """How far a mirror has come. `clock_s` is the time to which rows have expired."""

    epoch: int = 0
    clock_s: int = 0
    table_id: str | None = None
    positions: Mapping[str, RecordPosition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContent:
    """What a micro-batch holds: records, the last position of each topic partition, the newest table id, times."""

    records: int
    positions: Mapping[str, RecordPosition]
    table_id: str | None
    newest_publish_s: int


class MirrorTables:
    """The Delta tables below one folder."""

    def __init__(self, spark: SparkSession, target: str) -> None:
        folder = target.rstrip("/")
        self.target = folder
        self.rows = DeltaTable(spark, f"{folder}/rows")
        self.records = DeltaTable(spark, f"{folder}/records")
        self.changes = DeltaTable(spark, f"{folder}/changes")
        self.history = DeltaTable(spark, f"{folder}/history")
        self._applied = DeltaTable(spark, f"{folder}/applied")
        self._spark = spark

    def applied(self) -> Applied:
        """How far the mirror has come; a new one starts at epoch 0."""
        stored = self._applied.read()
        if stored is None:
            return Applied()
        (row,) = stored.collect()
        positions = {topic: (at[0], at[1], at[2]) for topic, at in json.loads(row.positions).items()}
        return Applied(epoch=row.epoch, clock_s=row.clock_s, table_id=row.table_id, positions=positions)

    def save_applied(self, applied: Applied) -> None:
        """The last step of a micro-batch."""
        row = (applied.epoch, applied.clock_s, applied.table_id, json.dumps(applied.positions))
        self._applied.replace(self._spark.createDataFrame([row], _APPLIED).coalesce(1))

    def save_records(self, judged: DataFrame, columns: list[str], seen_s: int) -> None:
        """Keep what later records must meet; what was removed for good is only kept where it may give static columns."""
        gone = F.col("is_removed")
        valued = F.when(gone, F.col("valued").withField("is_removed", F.lit(True))).otherwise(F.col("valued"))
        kept = {
            "record_id": F.concat_ws("/", "scope", F.hex("key"), F.to_json("bounds")),
            "valued": valued,
            "lasting": F.when(~gone, F.col("lasting")),
            "passing": F.when(~gone, F.col("passing")),
            "seen_s": F.lit(seen_s).cast("bigint"),
            "is_dropped": (gone & (F.size("static_names") == 0))
            | ((F.col("scope") == "row") & F.col("valued").isNull()),
        }
        names = ["record_id", *columns, "seen_s"]
        source = judged.withColumns(kept).select(*names, "is_dropped")
        self.records.ensure(source.drop("is_dropped").schema)
        update, insert = update_and_insert(names)
        self.records.merge(
            source,
            "t.record_id = s.record_id",
            "WHEN MATCHED AND s.is_dropped THEN DELETE",
            f"WHEN MATCHED THEN {update}",
            f"WHEN NOT MATCHED AND NOT s.is_dropped THEN {insert}",
        )

    def forget(self, before_s: int) -> None:
        """Drop markers, and rows that were removed, that were last met before this time (seconds since the epoch)."""
        if self.records.read() is not None:
            self.records.delete(f"seen_s < {before_s} AND (scope IN ('partition', 'range') OR valued.is_removed)")


def not_applied(applied: Applied) -> Column:
    """True for raw rows that a mirror has not seen: everything behind its position in the topic partition."""
    is_new = F.lit(True)
    for name, (ledger, entry, index) in applied.positions.items():
        topic, partition = topic_of(name)
        last = F.struct(
            F.lit(ledger).cast("bigint").alias("ledger"),
            F.lit(entry).cast("bigint").alias("entry"),
            F.lit(index).cast("int").alias("index"),
        )
        is_here = (F.col("topic") == topic) & (F.col("partition") == partition)
        is_new &= ~is_here | (record_place().getField("position") > last)
    return is_new


def content_of(raw: DataFrame) -> BatchContent:
    """What a micro-batch of raw rows holds; one pass over it."""
    found = (
        raw.groupBy("topic", "partition")
        .agg(
            F.count("*").alias("records"),
            F.max(record_place().getField("position")).alias("last"),
            F.collect_set(F.col("properties")[TABLE_ID]).alias("table_ids"),
            F.max(F.unix_seconds("publish_time")).alias("publish_s"),
        )
        .collect()
    )
    ids = [each for row in found for each in row.table_ids]
    return BatchContent(
        records=sum(row.records for row in found),
        positions={
            _partition_topic(row): (row["last"].ledger, row["last"].entry, row["last"]["index"]) for row in found
        },
        table_id=max(ids, key=uuid_time, default=None),
        newest_publish_s=max((row.publish_s for row in found), default=0),
    )


def uuid_time(text: str) -> tuple[bool, int]:
    """Orders table ids, which are version 1 uuids, by the time they were made; other texts come first."""
    try:
        parsed = uuid.UUID(text)
    except ValueError:
        return False, 0
    return parsed.version == 1, parsed.time


def _partition_topic(row: Row) -> str:
    return str(row.topic) if row.partition < 0 else f"{row.topic}-partition-{row.partition}"
