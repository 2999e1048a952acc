"""One micro-batch of a mirror: which Cassandra partitions it touches, what their rows are now, what changed.

Only the touched partitions are folded again, from the records that the mirror keeps and those of the batch. The change
log, the history and the rows are written from the same list of changes, in this order, so a failure in between
repeats the same list.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from schemas.record_properties import TABLE_ID
from spark_bridge.folding import KeyColumns, judged_records, merged_records, newest_records, shown_rows
from spark_bridge.jobs.delta_tables import DeltaTable, update_and_insert
from spark_bridge.jobs.history_table import add_versions
from spark_bridge.jobs.mirror_state import Applied, BatchContent, MirrorTables, content_of, not_applied, uuid_time
from spark_bridge.options import BridgeOptions
from spark_bridge.table_rows import table_columns, table_rows
from spark_bridge.topic_schemas import TopicSchemas

__all__ = ["MirrorBatch", "MirrorSettings"]

ID, OWNER, WRITETIME, EXPIRES_AT = "_cdc_id", "_cdc_owner", "_cdc_writetime", "_cdc_expires_at"
_OWN = (ID, OWNER, WRITETIME, EXPIRES_AT)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    """What a mirror keeps besides its rows; `static_columns` where the topic's records do not name them."""

    changelog: bool = False
    history: bool = False
    static_columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """One micro-batch on its way."""

    schemas: TopicSchemas
    applied: Applied
    content: BatchContent
    is_new_table: bool

    @property
    def epoch(self) -> int:
        return self.applied.epoch + 1

    @property
    def table_id(self) -> str | None:
        known = [each for each in (self.applied.table_id, self.content.table_id) if each is not None]
        return max(known, key=uuid_time, default=None)


class MirrorBatch:
    """Applies micro-batches of raw rows to the tables of one mirror. Raises what `TopicSchemas.fetch` and Spark raise."""

    def __init__(self, tables: MirrorTables, options: BridgeOptions, settings: MirrorSettings) -> None:
        self._tables = tables
        self._options = options
        self._settings = settings

    def apply(self, batch: DataFrame) -> Mapping[str, int]:
        """Counts: `records`, and `insert`, `update`, `delete` of rows. A batch that was applied before changes nothing."""
        applied = self._tables.applied()
        raw = batch.where(not_applied(applied)).persist()
        try:
            content = content_of(raw)
            if not content.records:
                if not self._has_expired():
                    return {"records": 0}
                applied = _later(applied)
                self._tables.save_applied(applied)
            is_new_table = bool(
                applied.table_id and content.table_id and uuid_time(content.table_id) > uuid_time(applied.table_id)
            )
            schemas = TopicSchemas.fetch(self._options)
            plan = _Plan(schemas=schemas, applied=applied, content=content, is_new_table=is_new_table)
            return {"records": content.records, **self._apply(raw, plan)}
        finally:
            raw.unpersist()

    def _apply(self, raw: DataFrame, plan: _Plan) -> Mapping[str, int]:
        if plan.table_id is not None:
            # A record without an id is of a time before the connector that names it.
            raw = raw.where(F.coalesce(F.col("properties")[TABLE_ID], F.lit(plan.table_id)) == plan.table_id)
        self._follow_schema(plan)
        records = newest_records(raw, plan.schemas)
        owners = self._touched_owners(records, plan)
        newest = self._merged(records, owners, plan)
        judged = judged_records(
            newest, plan.schemas, self._settings.static_columns, F.lit(plan.applied.clock_s)
        ).persist()
        changes = self._changes(judged, owners, plan).persist()
        try:
            counts = {row.op: row["count"] for row in changes.groupBy("op").count().collect()}
            self._write(changes, plan)
            if plan.is_new_table:
                self._tables.records.delete("true")
            self._tables.save_records(judged, newest.columns, plan.content.newest_publish_s)
        finally:
            changes.unpersist()
            judged.unpersist()
        positions = {**plan.applied.positions, **plan.content.positions}
        done = Applied(epoch=plan.epoch, clock_s=int(time.time()), table_id=plan.table_id, positions=positions)
        self._tables.save_applied(done)
        return {op: count for op, count in counts.items() if op != "touch"}

    def _has_expired(self) -> bool:
        rows = self._tables.rows.read()
        return rows is not None and not rows.where(F.col(EXPIRES_AT) <= int(time.time())).isEmpty()

    def _touched_owners(self, records: DataFrame, plan: _Plan) -> DataFrame:
        touched = records.select("owner")
        rows = self._tables.rows.read()
        if rows is not None:
            passed = F.lit(True) if plan.is_new_table else F.col(EXPIRES_AT) <= plan.applied.clock_s
            touched = touched.union(rows.where(passed).select(F.col(OWNER).alias("owner")))
        return touched.distinct()

    def _merged(self, records: DataFrame, owners: DataFrame, plan: _Plan) -> DataFrame:
        kept = self._tables.records.read()
        if kept is None or plan.is_new_table:
            return merged_records(records)
        known = kept.join(owners, "owner", "left_semi").select(*records.columns)
        return merged_records(known.unionByName(records))

    def _changes(self, judged: DataFrame, owners: DataFrame, plan: _Plan) -> DataFrame:
        """`op`, `_cdc_id`, `before`, `after` (structs of the table's columns and `_cdc_*`), `changed_us`."""
        identity = F.when(F.col("is_alive"), F.hex("key")).otherwise(F.concat(F.lit("static:"), F.col("owner")))
        shown = shown_rows(judged).withColumns({
            ID: identity,
            OWNER: F.col("owner"),
            WRITETIME: F.col("writetime_us"),
            EXPIRES_AT: F.col("expires_at"),
        })  # fmt: skip
        after = table_rows(shown, plan.schemas, self._options.numbers, _OWN)
        names = table_columns(plan.schemas)
        rows = self._tables.rows.read()
        now = after.select(ID, _whole(after.columns).alias("after"), _content(names).alias("new"))
        if rows is None:
            told = now.withColumns({"before": F.lit(None).cast(after.schema), "old": F.lit(None).cast("string")})
        else:
            touched = rows.join(owners.select(F.col("owner").alias(OWNER)), OWNER, "left_semi")
            content = _content([each for each in rows.columns if each not in _OWN])
            known = touched.select(ID, _whole(rows.columns).alias("before"), content.alias("old"))
            told = now.join(known, ID, "full_outer")
        removed = judged.where(F.col("scope") == "row").select(F.hex("key").alias(ID), "removed_us")
        last_s = plan.content.newest_publish_s or plan.applied.clock_s
        changed = F.when(F.col("after").isNull(), F.coalesce(F.col("removed_us"), F.lit(last_s * 1_000_000))).otherwise(
            F.col("after").getField(WRITETIME)
        )
        op = _op().alias("op")
        return (
            told.join(removed, ID, "left")
            .select(op, ID, "before", "after", changed.alias("changed_us"))
            .where("op <> 'same'")
        )

    def _write(self, changes: DataFrame, plan: _Plan) -> None:
        seen = changes.where("op <> 'touch'")
        if self._settings.changelog:
            log = seen.withColumn("epoch", F.lit(plan.epoch).cast("bigint")).withColumnRenamed(
                "changed_us", "writetime"
            )
            self._tables.changes.append(log, writer=f"cassandra-cdc {self._tables.target}", epoch=plan.epoch)
        if self._settings.history:
            add_versions(self._tables.history, seen, table_columns(plan.schemas), plan.epoch)
        _merge_rows(self._tables.rows, changes, [*table_columns(plan.schemas), *_OWN])

    def _follow_schema(self, plan: _Plan) -> None:
        """Key columns that were renamed, value columns that were dropped; new ones come with the first merge."""
        wanted = table_columns(plan.schemas)
        keys = KeyColumns.of(plan.schemas)
        for table, own in (
            (self._tables.rows, _OWN),
            (self._tables.history, (*_OWN, "valid_from", "valid_to", "opened", "closed")),
        ):
            found = table.read()
            if found is None:
                continue
            names = [each for each in found.columns if each not in own]
            for old, new in zip(names, wanted[: len(keys.partition) + len(keys.clustering)], strict=False):
                if old != new:
                    table.rename_column(old, new)
                    names[names.index(old)] = new
            table.drop_columns([each for each in names if each not in wanted])


def _merge_rows(table: DeltaTable, changes: DataFrame, columns: Sequence[str]) -> None:
    fields = [F.col("after").getField(each).alias(each) for each in columns if each != ID]
    source = changes.select("op", ID, *fields)
    table.ensure(source.select(*columns).schema)
    update, insert = update_and_insert(columns)
    table.merge(
        source,
        f"t.{ID} = s.{ID}",
        "WHEN MATCHED AND s.op = 'delete' THEN DELETE",
        f"WHEN MATCHED THEN {update}",
        f"WHEN NOT MATCHED AND s.op <> 'delete' THEN {insert}",
    )


def _whole(columns: Sequence[str]) -> Column:
    return F.struct(*[F.col(_quoted(each)).alias(each) for each in columns])


def _content(columns: Sequence[str]) -> Column:
    """The columns as text, to be compared: maps are not comparable in Spark."""
    return F.to_json(_whole(columns))


def _op() -> Column:
    old, new = F.col("before"), F.col("after")
    is_same = old.getField(WRITETIME).eqNullSafe(new.getField(WRITETIME)) & old.getField(EXPIRES_AT).eqNullSafe(
        new.getField(EXPIRES_AT)
    )
    return (
        F.when(old.isNull(), "insert")
        .when(new.isNull(), "delete")
        .when(F.col("old") != F.col("new"), "update")
        .when(is_same, "same")
        .otherwise("touch")
    )


def _later(applied: Applied) -> Applied:
    return Applied(
        epoch=applied.epoch, clock_s=int(time.time()), table_id=applied.table_id, positions=applied.positions
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
