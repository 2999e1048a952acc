"""One micro-batch of a mirror: which Cassandra partitions it touches, what their rows are now, what changed.

Only the touched partitions are folded again, from the records that the mirror keeps and those of the batch. The change
log, the history and the rows are written from the same list of changes, in this order, so a failure in between
repeats the same list.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.types import StructType

from spark_bridge.jobs.batch_session import FEW_RECORDS, at_once, fit_session, is_large
from spark_bridge.jobs.history_table import add_versions
from spark_bridge.jobs.lake_table import LakeTable, quoted, same_key, update_and_insert
from spark_bridge.jobs.mirror_state import (
    NO_CONTENT,
    Applied,
    BatchContent,
    MirrorTables,
    content_of,
    known_creations,
    not_applied,
)
from spark_bridge.jobs.row_steps import ImageColumns, row_steps
from spark_bridge.rows.conformed import conformed
from spark_bridge.rows.folding import all_records, folded, shown_rows
from spark_bridge.rows.key_columns import KeyColumns
from spark_bridge.rows.table_lives import TableLife, is_of_life, newest_life
from spark_bridge.rows.table_rows import table_columns, table_rows
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.topic_schemas import TopicSchemas

__all__ = ["MirrorBatch", "MirrorSettings"]

ID, OWNER, WRITETIME, EXPIRES_AT = "_cdc_id", "_cdc_owner", "_cdc_writetime", "_cdc_expires_at"
_OWN = (ID, OWNER, WRITETIME, EXPIRES_AT)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    """What a mirror keeps besides its rows; `static_columns` where the topic's records do not name them."""

    changelog: bool = False
    history: bool = False
    static_columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Plan:
    """One micro-batch on its way."""

    schemas: TopicSchemas
    applied: Applied
    content: BatchContent
    is_new_table: bool
    is_large: bool
    """Whether the tables are so large that they should not be written anew for a few rows."""

    @property
    def epoch(self) -> int:
        return self.applied.epoch + 1

    @property
    def life(self) -> TableLife | None:
        return newest_life(each for each in (self.applied.life, self.content.life) if each is not None)

    @property
    def statics(self) -> tuple[str, ...]:
        """The table's static columns, as far as records have named them; those that were dropped are among them.

        Cassandra refuses to add a column again as one of another kind, so what was static once is so for good.
        """
        known = () if self.is_new_table else self.applied.static_columns
        return tuple(sorted({*known, *self.content.static_columns}))

    @property
    def gone_columns(self) -> frozenset[str]:
        """Value columns that were dropped and added again since the tables followed the schema."""
        version = self.applied.schema_version
        return self.schemas.dropped_since(self.schemas.newest.version if version is None else version)


class MirrorBatch:
    """Applies micro-batches of raw rows to the tables of one mirror. Raises what `TopicSchemas.fetch` and Spark raise."""

    def __init__(self, tables: MirrorTables, options: BridgeOptions, settings: MirrorSettings) -> None:
        self._tables = tables
        self._options = options
        self._logs = [tables.changes] if settings.changelog or tables.changes.read() is not None else []
        self._histories = [tables.history] if settings.history or tables.history.read() is not None else []
        self._static_columns = settings.static_columns

    def begin(self) -> None:
        """A change log or a history that is asked for later than the mirror starts with the rows that there are."""
        applied = self._tables.applied()
        known_creations(applied, self._options)
        self._tables.keep_format()
        rows = self._tables.rows.read()
        if rows is None:
            return
        names = [each for each in rows.columns if each not in _OWN]
        there = rows.select(
            F.lit("insert").alias("op"),
            ID,
            F.lit(None).cast(rows.select(*names, *_OWN).schema).alias("before"),
            _whole([*names, *_OWN]).alias("after"),
            F.coalesce(F.col(WRITETIME), F.lit(applied.clock_s * 1_000_000)).alias("changed_us"),
            F.lit(1).alias("step"),
        )
        for log in self._logs:
            if log.read() is None:
                self._append(log, there, applied.epoch)
        for history in self._histories:
            if history.read() is None:
                add_versions(history, there, names, applied.epoch)

    def apply(self, batch: DataFrame) -> Mapping[str, int]:
        """Counts: `records`, and `insert`, `update`, `delete` of rows. A batch that was applied before changes nothing.

        Where a failed run has begun to let rows expire, that is finished first: other changes under its epoch would be taken
        for those that are written already.
        """
        applied = self._tables.applied()
        if applied.is_expiring:
            finished = self.expire(batch)
            return Counter(finished) + Counter(self.apply(batch))
        session = batch.sparkSession
        fit_session(session, 0, 0)
        raw = batch.where(not_applied(applied)).persist()
        try:
            content, kept_bytes = at_once(session, lambda: content_of(raw, applied.life), self._kept_bytes)
            assert isinstance(content, BatchContent)
            assert isinstance(kept_bytes, int)
            if not content.records:
                return {"records": 0, **self.expire(batch)}
            fit_session(session, content.records, kept_bytes)
            is_new_table = applied.begins_anew or bool(
                applied.life and content.life and content.life.begins_behind(applied.life)
            )
            done = self._apply(raw, applied, content, is_new_table, is_large=is_large(kept_bytes))
            return {"records": content.records, **done}
        finally:
            raw.unpersist()

    def expire(self, batch: DataFrame) -> Mapping[str, int]:
        """Take away the rows whose time is over, whatever `batch` holds. Counts as `apply`'s.

        What a failed run has begun goes by its clock.
        """
        applied, now_s = self._tables.applied(), int(time.time())
        if applied.begins_anew:
            return {}
        if not applied.is_expiring:
            if applied.next_expiry_s is None or applied.next_expiry_s > now_s:
                return {}
            applied = replace(applied, clock_s=now_s, is_expiring=True)
            self._tables.save_applied(applied)
        kept_bytes = self._kept_bytes()
        fit_session(batch.sparkSession, 0, kept_bytes)
        nothing = batch.where("false")
        return self._apply(nothing, applied, NO_CONTENT, is_new_table=False, is_large=is_large(kept_bytes))

    def fresh(self, tail: DataFrame, applied: Applied) -> DataFrame:
        """The table at `applied.clock_s` with what the raw rows of `tail` say, which the mirror has not seen. Nothing is written.

        `tail` is read here, and not again by who uses the table.
        """
        known_creations(applied, self._options)
        tail = tail.persist()
        try:
            content = content_of(tail, applied.life)
            begins_anew = bool(applied.life and content.life and content.life.begins_behind(applied.life))
            is_new_table = begins_anew or (applied.begins_anew and content.records > 0)
            plan = _Plan(TopicSchemas.fetch(self._options), applied, content, is_new_table, is_large=False)
            raw = tail if plan.life is None else tail.where(is_of_life(plan.life))
            records = all_records(raw, plan.schemas)
            touched = self._touched_owners(records, plan).distinct().localCheckpoint()
            if content.records < FEW_RECORDS:
                touched = F.broadcast(touched)
            kept = self._kept(touched, plan)
            judged = folded(records, kept, plan.schemas, self._static_columns, applied.clock_s)
            after = table_rows(shown_rows(judged), plan.schemas, self._options.numbers).localCheckpoint()
        finally:
            tail.unpersist()
        rows = self._tables.rows.read()
        if rows is None or is_new_table:
            return after
        others = rows.join(touched.select(F.col("owner").alias(OWNER)), OWNER, "left_anti")
        return after.unionByName(self._in_newest_schema(others, after.schema, plan))

    @staticmethod
    def _in_newest_schema(rows: DataFrame, wanted: StructType, plan: _Plan) -> DataFrame:
        """Rows of the mirror as a table that follows the newest schema has them."""
        schema = StructType([each for each in rows.schema if each.name not in _OWN])
        renamed = zip(_renamed(schema.names, plan.schemas), schema.names, strict=True)
        names = {new: old for new, old in renamed if new not in plan.gone_columns}
        types = {each.name: each.dataType for each in schema}
        return rows.select(*[
            conformed(F.col(quoted(names[each.name])), types[names[each.name]], each.dataType).alias(each.name)
            if each.name in names
            else F.lit(None).cast(each.dataType).alias(each.name)
            for each in wanted
        ])  # fmt: skip

    def _apply(
        self, raw: DataFrame, applied: Applied, content: BatchContent, is_new_table: bool, is_large: bool
    ) -> Mapping[str, int]:
        creations = known_creations(applied, self._options)
        plan = _Plan(TopicSchemas.fetch(self._options), applied, content, is_new_table, is_large)
        if plan.life is not None:
            raw = raw.where(is_of_life(plan.life))
        self._follow_schema(plan)
        records = all_records(raw, plan.schemas)
        owners = self._touched_owners(records, plan)
        kept = self._kept(owners, plan)
        # Checkpoints and not caches: Delta's MERGE would copy what is cached, once for each table.
        judged = folded(records, kept, plan.schemas, self._static_columns, applied.clock_s).localCheckpoint()
        told = self._told(judged, owners, plan).localCheckpoint()
        changes = told.where("op <> 'same'")
        if self._logs or self._histories:
            self._write_steps(raw, told, plan)
        counts, soonest = _counts_and_soonest(told)
        if plan.is_new_table:
            self._tables.records.delete("true")
        at_once(
            raw.sparkSession,
            lambda: _merge_rows(self._tables.rows, changes, [*table_columns(plan.schemas), *_OWN], is_large=is_large),
            lambda: self._tables.save_records(judged, content.newest_publish_s or applied.clock_s, is_large=is_large),
        )
        now_s = int(time.time())
        done = Applied(
            epoch=plan.epoch,
            clock_s=now_s,
            table_id=None if plan.life is None else plan.life.table_id,
            table_generation=None if plan.life is None else plan.life.generation,
            positions={**applied.positions, **content.positions},
            next_expiry_s=self._next_expiry(applied, soonest),
            static_columns=plan.statics,
            forgot_s=applied.forgot_s or now_s,  # what a new mirror has just read is not looked at for what to forget
            schema_version=plan.schemas.newest.version,
            creations=creations,
        )
        self._tables.save_applied(done)
        return counts

    def _kept_bytes(self) -> int:
        tables = (self._tables.rows, self._tables.records)
        with ThreadPoolExecutor(len(tables)) as pool:
            return sum(pool.map(lambda each: each.size_bytes(), tables))

    def _next_expiry(self, applied: Applied, new: int | None) -> int | None:
        """No later than the first row expires; asked of the rows only when what was known has passed."""
        known = applied.next_expiry_s
        if known is not None and known <= applied.clock_s:
            rows = self._tables.rows.read()
            assert rows is not None
            return cast("int | None", rows.agg(F.min(EXPIRES_AT)).collect()[0][0])
        return min((each for each in (known, new) if each is not None), default=None)

    def _touched_owners(self, records: DataFrame, plan: _Plan) -> DataFrame:
        """What the tables are joined with, by left_semi: an owner may be there several times."""
        touched = records.select("owner")
        rows = self._tables.rows.read()
        expiry = plan.applied.next_expiry_s
        if rows is not None and plan.is_new_table:
            touched = touched.union(rows.select(F.col(OWNER).alias("owner")))
        elif rows is not None and expiry is not None and expiry <= plan.applied.clock_s:
            passed = rows.where(F.col(EXPIRES_AT) <= plan.applied.clock_s)
            touched = touched.union(passed.select(F.col(OWNER).alias("owner")))
        elif plan.content.records < FEW_RECORDS:
            return F.broadcast(touched)  # else the tables are shuffled, whatever their size
        return touched.distinct()

    def _kept(self, owners: DataFrame, plan: _Plan) -> DataFrame | None:
        """What the mirror has kept of the touched partitions."""
        kept = self._tables.records.read()
        if kept is None or plan.is_new_table:
            return None
        return kept.join(owners, "owner", "left_semi")

    def _told(self, judged: DataFrame, owners: DataFrame, plan: _Plan) -> DataFrame:
        """Rows of the touched partitions: `op`, `_cdc_id`, `owner`, `before`, `after` (structs of the table's columns and
        `_cdc_*`), `changed_us`, `expires_at`; without a change log and a history images of changed rows only."""
        identity = F.when(F.col("is_alive"), F.hex("key")).otherwise(F.concat(F.lit("static:"), F.col("owner")))
        shown = shown_rows(judged).withColumns({
            ID: identity,
            OWNER: F.col("owner"),
            WRITETIME: F.col("writetime_us"),
            EXPIRES_AT: F.col("expires_at"),
        })  # fmt: skip
        after = table_rows(shown, plan.schemas, self._options.numbers, _OWN)
        now = after.select(ID, _whole(after.columns).alias("after"), _content(table_columns(plan.schemas)).alias("new"))
        gone = judged.where("is_gone").select(F.hex("key").alias(ID), "removed_us")
        told = self._beside_old(now.unionByName(gone, allowMissingColumns=True), after.schema, owners)
        told = told.where(F.col("before").isNotNull() | F.col("after").isNotNull())
        last_s = plan.content.newest_publish_s or plan.applied.clock_s
        known_us = F.when(F.col("after").isNull(), F.col("removed_us")).otherwise(F.col("after").getField(WRITETIME))
        changed = F.coalesce(known_us, F.lit(last_s * 1_000_000))
        owner = F.coalesce(F.col("after").getField(OWNER), F.col("before").getField(OWNER)).alias("owner")
        expires_at = F.col("after").getField(EXPIRES_AT).alias("expires_at")
        all_told = told.select(_op().alias("op"), ID, owner, "before", "after", changed.alias("changed_us"), expires_at)
        if self._logs or self._histories:
            return all_told
        return all_told.withColumns({each: F.when(F.col("op") != "same", F.col(each)) for each in ("before", "after")})

    def _beside_old(self, now: DataFrame, schema: StructType, owners: DataFrame) -> DataFrame:
        rows = self._tables.rows.read()
        if rows is None:
            return now.withColumns({"before": F.lit(None).cast(schema), "old": F.lit(None).cast("string")})
        touched = rows.join(owners.select(F.col("owner").alias(OWNER)), OWNER, "left_semi")
        before = conformed(_whole(rows.columns), rows.schema, schema)
        known = touched.select(ID, before.alias("before")).withColumn(
            "old", F.to_json(F.col("before").dropFields(*_OWN))
        )
        return now.join(known, ID, "full_outer")

    def _write_steps(self, raw: DataFrame, told: DataFrame, plan: _Plan) -> None:
        names = table_columns(plan.schemas)
        statics = [each for each in names if each in (self._static_columns or plan.statics)]
        columns = ImageColumns(names=names, statics=statics, own=_OWN)
        steps = row_steps(raw, told, plan.schemas, self._options.numbers, columns).localCheckpoint()
        at_once(
            raw.sparkSession,
            *[partial(self._append, each, steps, plan.epoch) for each in self._logs],
            *[partial(add_versions, each, steps, names, plan.epoch) for each in self._histories],
        )

    def _append(self, log: LakeTable, steps: DataFrame, epoch: int) -> None:
        named = steps.withColumn("epoch", F.lit(epoch).cast("bigint")).withColumnRenamed("changed_us", "writetime")
        log.append(named, writer=f"cassandra-cdc {self._tables.target}", epoch=epoch)

    def _follow_schema(self, plan: _Plan) -> None:
        """Key columns that were renamed, value columns that were dropped; new ones come with the first merge.

        What was dropped and added again since the last micro-batch is new, too. That is noted before anything is merged: a run
        that fails later has written the column's new values, which are not to go.
        """
        wanted = table_columns(plan.schemas)
        for table, own in (
            (self._tables.rows, _OWN),
            (self._tables.history, (*_OWN, "valid_from", "valid_to", "opened", "closed")),
        ):
            found = table.read()
            if found is None:
                continue
            names = [each for each in found.columns if each not in own]
            renamed = _renamed(names, plan.schemas)
            for old, new in zip(names, renamed, strict=True):
                if old != new:
                    table.rename_column(old, new)
            table.drop_columns([each for each in renamed if each not in wanted or each in plan.gone_columns])
        if plan.gone_columns:
            self._tables.save_applied(replace(plan.applied, schema_version=plan.schemas.newest.version))


def _counts_and_soonest(told: DataFrame) -> tuple[dict[str, int], int | None]:
    """Changed rows by `op`, and when the first row expires, of those that a failed run has merged already, too; one Spark job."""
    found = told.groupBy("op").agg(F.count("*").alias("rows"), F.min("expires_at").alias("soonest")).collect()
    counts = {row.op: row["rows"] for row in found if row.op not in ("same", "touch")}
    return counts, min((row.soonest for row in found if row.soonest is not None), default=None)


def _merge_rows(table: LakeTable, changes: DataFrame, columns: Sequence[str], *, is_large: bool) -> None:
    fields = [F.col("after").getField(each).alias(each) for each in columns if each != ID]
    source = changes.select("op", ID, *fields)
    if table.read() is None:
        table.create(source.where("op <> 'delete'").select(*columns))
        return
    table.ensure(source.select(*columns))
    update, insert = update_and_insert(columns)
    table.merge(
        source,
        same_key(ID, source, is_listed=is_large),
        "WHEN MATCHED AND s.op = 'delete' THEN DELETE",
        f"WHEN MATCHED THEN {update}",
        f"WHEN NOT MATCHED AND s.op <> 'delete' THEN {insert}",
    )


def _renamed(names: Sequence[str], schemas: TopicSchemas) -> list[str]:
    """A mirrored table's columns, the key's first, by the newest schema: Cassandra renames key columns only."""
    keys = KeyColumns.of(schemas)
    width = len(keys.partition) + len(keys.clustering)
    return [*table_columns(schemas)[:width], *names[width:]]


def _whole(columns: Sequence[str]) -> Column:
    return F.struct(*[F.col(quoted(each)).alias(each) for each in columns])


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
