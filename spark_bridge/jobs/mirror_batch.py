"""One micro-batch of a mirror: which Cassandra partitions it touches, what their rows are now, what changed.

Only the touched partitions are folded again (spark_bridge.jobs.touched_rows). The change log, the history and the rows
are written from the same list of changes, in this order. So after a failure in between, the same list is written again.

A truncation is a separate epoch (spark_bridge.jobs.mirror_clearings). With a change log or a history, the records
before it are a separate epoch, too, so that these tables have the rows that the truncation removed.

A failed micro-batch is repeated: the order of all its writes is read here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from spark_bridge.errors import TopicError
from spark_bridge.jobs.batch_content import MOST_HERE, NO_CONTENT, BatchContent, content_of
from spark_bridge.jobs.batch_session import at_once, fit_session, in_few_tasks
from spark_bridge.jobs.completeness import tag_commits
from spark_bridge.jobs.epoch_plan import EpochPlan
from spark_bridge.jobs.history_table import add_versions, has_epoch, refuse_own_columns
from spark_bridge.jobs.kept_records import Run
from spark_bridge.jobs.lake_table import LakeTable, is_listed
from spark_bridge.jobs.mirror_clearings import PendingClearings, report_clearings
from spark_bridge.jobs.mirror_rows import (
    EXPIRES_AT,
    ID,
    OWN,
    OWNER,
    WRITETIME,
    counts_and_soonest,
    in_newest_schema,
    merge_rows,
    whole,
)
from spark_bridge.jobs.mirror_schema import follow_schema, log_has_epoch, refuse_other_types
from spark_bridge.jobs.mirror_state import Applied, MirrorTables, known_creations, not_applied
from spark_bridge.jobs.row_steps import RowChanges
from spark_bridge.jobs.small_merge import soonest_expiry
from spark_bridge.jobs.touched_rows import TouchedRows
from spark_bridge.rows.cleared import of_life
from spark_bridge.rows.folding import all_records, shown_rows
from spark_bridge.rows.record_places import RECORD_SOURCE, stands_before
from spark_bridge.rows.table_lives import is_of_life, newest_life
from spark_bridge.rows.table_rows import table_columns, table_rows
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.table_clearing import TableClearing
from spark_bridge.topics.topic_schemas import TopicSchemas

__all__ = ["MirrorBatch", "MirrorSettings"]

CompleteUntil = Callable[[Mapping[str, tuple[int, int, int]]], int | None]
Clearings = Callable[[], Sequence[TableClearing]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    """The tables that a mirror keeps besides its rows. `static_columns`: for a topic whose records do not name them.

    `is_known`: a change log and a history of an earlier run are already included, and need not be looked up.
    """

    changelog: bool = False
    history: bool = False
    static_columns: tuple[str, ...] | None = None
    is_known: bool = False


class MirrorBatch:
    """Applies micro-batches of raw rows to the tables of one mirror.

    Raises the errors of `TopicSchemas.fetch` and of Spark.
    """

    def __init__(
        self,
        tables: MirrorTables,
        options: BridgeOptions,
        settings: MirrorSettings,
        complete_until: CompleteUntil = lambda positions: None,
        clearings: Clearings = tuple,
        *,
        may_be_begun: bool = True,
    ) -> None:
        """`complete_until`: gives the time until which tables with all records up to these positions are complete, in
        milliseconds since 1970; None: not known.

        `clearings`: gives all truncations and drops that are known at the call. `may_be_begun`: a failed run may have
        written part of the next epoch.
        """
        self._tables = tables
        self._complete_until = complete_until
        self._clearings = clearings
        self._may_be_begun = may_be_begun
        self._options = options
        looks = not settings.is_known
        self._logs = [tables.changes] if settings.changelog or (looks and tables.changes.read() is not None) else []
        self._histories = [tables.history] if settings.history or (looks and tables.history.read() is not None) else []
        self._settings = replace(settings, changelog=bool(self._logs), history=bool(self._histories), is_known=True)
        self._static_columns = settings.static_columns

    def begin(self) -> MirrorSettings:
        """Prepare the tables for a run, and return what the mirror keeps from now on.

        A change log or a history that is asked for later than the mirror starts with the existing rows.
        """
        applied = self._tables.applied()
        known_creations(applied, self._options)
        if self._histories:
            with suppress(TopicError):  # the topic has no schema yet
                refuse_own_columns(self._tables.history, table_columns(TopicSchemas.fetch(self._options)))
        self._tables.keep_format(self._options.numbers)
        self._tables.take_over()
        rows = self._tables.rows.read()
        if rows is not None and any(each.read() is None for each in [*self._logs, *self._histories]):
            self._begin_with(rows, applied)
        return self._settings

    def _begin_with(self, rows: DataFrame, applied: Applied) -> None:
        names = [each for each in rows.columns if each not in OWN]
        there = rows.select(
            F.lit("insert").alias("op"),
            ID,
            F.lit(None).cast(rows.select(*names, *OWN).schema).alias("before"),
            F.expr(whole([*names, *OWN])).alias("after"),
            F.coalesce(F.col(WRITETIME), F.lit(applied.clock_s * 1_000_000)).alias("changed_us"),
            F.lit(1).alias("step"),
            F.lit(None).cast("bigint").alias("next_us"),
            F.lit(None).cast(RECORD_SOURCE).alias("source"),
        )
        for log in self._logs:
            if log.read() is None:
                self._append(log, there, applied.epoch)
        for history in self._histories:
            if history.read() is None:
                add_versions(history, there, names, applied.epoch)

    def apply(self, batch: DataFrame) -> Mapping[str, int]:
        """Apply a micro-batch. Return counts: `records`, and `insert`, `update`, `delete` of rows.

        A batch that was applied before changes nothing. If a failed run has begun to remove expired rows, or to apply a
        truncation, that is finished first: other changes under its epoch would be skipped.
        """
        counts = Counter(self._finish(batch))
        # read after the batch: when a record behind a truncation is published, the truncation is known already
        pending = self._pending(self._tables.applied())
        counts.update(self._clear(batch, pending))
        applied = self._tables.applied()
        left = pending.left(applied)
        is_divided = self._keeps_more and not applied.begins_anew
        parts = [batch.where(stands_before(each)) for each in left] if is_divided else []
        for part in [*parts, batch]:
            counts.update(self._apply_records(part, () if is_divided else left, is_whole=not left))
            counts.update(self._clear(batch, pending))
        if self._tables.applied().begun is not None:
            # The micro-batch has none of the records with which the epoch was begun, and no later one will have them.
            self._tables.give_up_epoch()
            counts.update(self.settle(batch))
        return counts

    def settle(self, batch: DataFrame) -> Mapping[str, int]:
        """Remove expired rows and apply truncations that are due. Return counts as `apply`.

        `batch` gives only the session and the columns; its records are not read.
        """
        counts = Counter(self._finish(batch))
        counts.update(self._clear(batch, self._pending(self._tables.applied())))
        counts.update(self.expire(batch))
        return counts

    def is_due(self) -> bool:
        """Return True if `settle` has something to do."""
        applied = self._tables.applied()
        if applied.begun is not None:
            return False
        if applied.may_expire(int(time.time())) or applied.clearing:
            return True
        return bool(self._pending(applied).reached(applied))

    def fit(self, session: SparkSession) -> None:
        """Set up a separate session for work on the tables at their current size."""
        self._fit(session, 0, self._kept_bytes(self._tables.applied()))

    def _fit(self, session: SparkSession, records: int, kept_bytes: int) -> None:
        fit_session(session, records, kept_bytes, is_local=self._tables.is_local)

    @property
    def _keeps_more(self) -> bool:
        return bool(self._logs or self._histories)

    def _pending(self, applied: Applied) -> PendingClearings:
        return PendingClearings.of(self._clearings(), applied, self._options)

    def _finish(self, batch: DataFrame) -> Mapping[str, int]:
        """Finish an expiry or a truncation that a failed run has begun. Return counts as `apply`."""
        applied = self._tables.applied()
        self._may_be_begun |= applied.is_expiring or bool(applied.clearing) or applied.begun is not None
        if applied.is_expiring:
            return self.expire(batch)
        return self._sweep(batch) if applied.clearing else {}

    def _clear(self, batch: DataFrame, pending: PendingClearings) -> Mapping[str, int]:
        """Apply the truncations that the tables have reached.

        With a change log or a history, each is a separate epoch.
        """
        counts = Counter[str]()
        applied = self._tables.applied()
        while applied.begun is None and (reached := pending.reached(applied)):
            now = reached[:1] if self._keeps_more else reached
            self._tables.save_applied(replace(applied, clearing=tuple(now), cleared=pending.still_known(applied)))
            counts.update(self._sweep(batch))
            applied = self._tables.applied()
        return counts

    def _sweep(self, batch: DataFrame) -> Mapping[str, int]:
        """Remove the rows of the noted truncations and drops. The records of `batch` are not read."""
        applied = self._tables.applied()
        clearings = of_life(applied.clearing, applied.life)
        if not clearings or self._tables.rows.read() is None:
            names = (*applied.cleared, *[each.name for each in applied.clearing])
            self._tables.save_applied(replace(applied, clearing=(), cleared=names))
            return {}
        kept_bytes = self._kept_bytes(applied)
        self._fit(batch.sparkSession, 0, kept_bytes)
        done = self._apply(
            batch.where("false"),
            applied,
            NO_CONTENT,
            is_new_table=False,
            table_bytes=kept_bytes,
            clearings=clearings,
            is_whole=False,
        )
        report_clearings(self._options.only_topic, clearings, done)
        return done

    def _apply_records(
        self, batch: DataFrame, without: Sequence[TableClearing] = (), *, is_whole: bool = True
    ) -> Mapping[str, int]:
        """Apply raw rows, without those that the truncations and drops `without` took.

        `is_whole`: no truncation is pending.
        """
        applied = self._tables.applied()
        session = batch.sparkSession
        self._fit(session, 0, 0)
        with _persisted(batch.where(not_applied(applied))) as raw:
            # at once, because one waits for the topic and the others for the tables' logs
            content, kept_bytes, histories = at_once(
                session,
                lambda: content_of(raw, applied.life),
                lambda: self._kept_bytes(applied),
                lambda: self._histories_without(applied.epoch + 1),
            )
            if not content.records:
                return {"records": 0, **self.expire(batch)}
            if self._keeps_more:
                known_epoch = applied.epoch
                applied = self._tables.begin_epoch(content.positions, [each.name for each in without])
                histories = histories if applied.epoch == known_epoch else self._histories
            self._fit(session, content.records, kept_bytes)
            is_new_table = applied.begins_anew or bool(
                applied.life and content.life and content.life.begins_behind(applied.life)
            )
            done = self._apply(
                raw,
                applied,
                content,
                is_new_table,
                table_bytes=kept_bytes,
                clearings=without,
                is_whole=is_whole,
                histories=histories,
            )
            return {"records": content.records, **done}

    def expire(self, batch: DataFrame) -> Mapping[str, int]:
        """Remove the rows that have expired. The records of `batch` are not read. Return counts as `apply`.

        If a failed run has begun this, rows are judged by the clock of that run.
        """
        applied, now_s = self._tables.applied(), int(time.time())
        if applied.begun is not None or not applied.may_expire(now_s):
            return {}
        if not applied.is_expiring:
            applied = replace(applied, clock_s=now_s, is_expiring=True)
            self._tables.save_applied(applied)
        kept_bytes = self._kept_bytes(applied)
        self._fit(batch.sparkSession, 0, kept_bytes)
        nothing = batch.where("false")
        return self._apply(nothing, applied, NO_CONTENT, is_new_table=False, table_bytes=kept_bytes)

    def fresh(self, tail: DataFrame, applied: Applied) -> DataFrame:
        """The table at `applied.clock_s`: the mirror's rows with the raw rows of `tail`, which are not applied yet.

        Nothing is written. `tail` is read during this call, and not again when the table is used.
        """
        known_creations(applied, self._options)
        with _persisted(tail) as records:
            content = content_of(records, applied.life)
            begins_anew = bool(applied.life and content.life and content.life.begins_behind(applied.life))
            is_new_table = begins_anew or (applied.begins_anew and content.records > 0)
            life = newest_life(each for each in (applied.life, content.life) if each is not None)
            pending = of_life(self._pending(applied).clearings, life)
            plan = EpochPlan(
                TopicSchemas.fetch(self._options),
                applied,
                content,
                is_new_table,
                table_bytes=0,  # so that no keys are looked up: the caller's session is not set up for that
                clearings=pending,
                judges_all=bool(pending),
            )
            raw = records if plan.life is None else records.where(is_of_life(plan.life))
            folds = self._touched(plan).folded(all_records(raw, plan.schemas, applied.time_zone))
            after = table_rows(shown_rows(folds.judged), plan.schemas, self._options.numbers).localCheckpoint()
            touched = folds.owners if folds.here is not None else folds.owners.localCheckpoint()
            if not (plan.has_many_records or plan.judges_all):
                touched = F.broadcast(touched)
        rows = self._tables.rows.read()
        if rows is None or is_new_table:
            return after
        others = rows.join(touched.select(F.col("owner").alias(OWNER)), OWNER, "left_anti")
        return after.unionByName(in_newest_schema(others, after.schema, plan.schemas, plan.gone_columns))

    def _apply(
        self,
        raw: DataFrame,
        applied: Applied,
        content: BatchContent,
        is_new_table: bool,
        table_bytes: int,
        clearings: Sequence[TableClearing] = (),
        *,
        is_whole: bool = True,
        histories: Sequence[LakeTable] | None = None,
    ) -> Mapping[str, int]:
        """Apply raw rows as the next epoch.

        `histories`: those that do not have this epoch, if that is known already.
        """
        # a following mirror must survive a restart of the broker
        patience_s = float(self._options.operation_timeout_seconds)
        # after the content was read: every schema version of its records is registered by now
        creations, schemas = at_once(
            raw.sparkSession,
            lambda: known_creations(applied, self._options, patience_s=patience_s),
            lambda: TopicSchemas.fetch(self._options, patience_s=patience_s),
        )
        if self._histories:
            refuse_own_columns(self._tables.history, table_columns(schemas))
        plan = EpochPlan(schemas, applied, content, is_new_table, table_bytes)
        plan = replace(
            plan,
            clearings=of_life(clearings, plan.life),
            judges_all=bool(applied.clearing),
            histories=self._histories_without(plan.epoch) if histories is None else histories,
        )
        if plan.life is not None:
            raw = raw.where(is_of_life(plan.life))
        positions = {**applied.positions, **content.positions}
        # A truncation that is not applied yet may be older than the resolved timestamp.
        resolved_ms = (self._complete_until(positions) if is_whole else None) or applied.resolved_ms
        # Not tagged: a commit that renames or drops a column brings no rows.
        followed = follow_schema(self._tables, plan)
        plan = replace(plan, applied=replace(plan.applied, gone_until=followed.gone_until))
        tag_commits(raw.sparkSession, resolved_ms)
        counts, soonest, run = self._fold_and_merge(raw, plan)
        runs = (*(() if plan.is_new_table else applied.runs or ()), run)
        now_s = int(time.time())
        done = Applied(
            epoch=plan.epoch,
            clock_s=now_s,
            table_id=None if plan.life is None else plan.life.table_id,
            table_generation=None if plan.life is None else plan.life.generation,
            positions=positions,
            resolved_ms=resolved_ms,
            next_expiry_s=self._next_expiry(applied, soonest),
            static_columns=plan.statics,
            forgot_s=applied.forgot_s or now_s,  # a new mirror has nothing to forget yet
            schema_version=plan.schemas.newest.version,
            creations=creations,
            runs=runs,
            forgotten=applied.forgotten,
            replaced_runs=applied.replaced_without(runs),
            cleared=(*applied.cleared, *[each.name for each in applied.clearing]),
            repeated_until=applied.still_repeated(positions) if content.records else applied.repeated_until,
            time_zone=applied.time_zone,
            is_zone_known=applied.is_zone_known,
            compacted=applied.compacted,
            layers=plan.layers(int(raw.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)),
            numbers=applied.numbers,
            gone_until=plan.applied.gone_until,
            may_lack=applied.may_lack,
        )
        self._tables.save_applied(done)
        return counts

    def _fold_and_merge(self, raw: DataFrame, plan: EpochPlan) -> tuple[Mapping[str, int], int | None, Run]:
        """Counts of changed rows, the time when the first row expires, and the run of kept records."""
        raw = in_few_tasks(raw) if plan.content.records <= MOST_HERE else raw
        touched = self._touched(plan)
        folded = touched.folded(all_records(raw, plan.schemas, plan.applied.time_zone))
        if folded.here is None:
            # Checkpoints and not caches: Delta's MERGE would copy cached rows, once for each table.
            folded = folded._replace(judged=folded.judged.localCheckpoint())
        rows, session = self._tables.rows, folded.judged.sparkSession
        if folded.here is not None and not self._keeps_more and rows.read() is not None:
            counts, run = at_once(session, lambda: touched.merge_here(folded), self._keeping(folded.judged, plan))
            return counts, soonest_expiry(folded.here), run
        columns = [*table_columns(plan.schemas), *OWN]
        if self._keeps_more:
            told = touched.row_changes(raw, folded)
            self._write_steps(told, plan)
            on = None if told.ids is None else touched.merge_condition(folded, told.ids)
            sizes = {"is_large": plan.is_large, "in_ranges": plan.has_many_records}
            merge = partial(merge_rows, rows, told.merged, columns, on, **sizes)
            count = told.counts_and_soonest
        else:
            compared = touched.compared(folded).localCheckpoint()
            changed = compared.where("op <> 'same'")
            merge = partial(merge_rows, rows, changed, columns, None, is_large=plan.is_large)
            count = partial(counts_and_soonest, compared)
        _, run, counted = at_once(session, merge, self._keeping(folded.judged, plan), count)
        return *counted, run

    def _touched(self, plan: EpochPlan) -> TouchedRows:
        return TouchedRows(self._tables, self._options, plan, self._static_columns)

    def _keeping(self, judged: DataFrame, plan: EpochPlan) -> Callable[[], Run]:
        """The step that writes the kept records."""
        runs = plan.applied.runs
        assert runs is not None  # `begin` has called `take_over`
        number = runs[-1].number + 1 if runs else 0
        # Not only the time of publication: in a backlog that is old, markers would be forgotten as soon as they are read.
        seen_s = max(plan.content.newest_publish_s, int(time.time()))
        return lambda: self._tables.kept.write(judged, number, seen_s)

    def _histories_without(self, epoch: int) -> list[LakeTable]:
        return [each for each in self._histories if not (self._may_be_begun and has_epoch(each, epoch))]

    def _logs_without(self, epoch: int) -> list[LakeTable]:
        """The change logs that do not have this epoch.

        Delta notes the epochs of a writer, too, but the writer's name changes with the name of the folder.
        """
        return [each for each in self._logs if not (self._may_be_begun and log_has_epoch(each, epoch))]

    def _kept_bytes(self, applied: Applied) -> int:
        return self._tables.rows.size_bytes() + sum(each.size_bytes for each in applied.runs or ())

    def _next_expiry(self, applied: Applied, new: int | None) -> int | None:
        """A time at or before the first expiry of a row.

        The rows are read for it only when the known time has passed.
        """
        known = applied.next_expiry_s
        if known is not None and known <= applied.clock_s:
            rows = self._tables.rows.read()
            assert rows is not None
            soonest: int | None = rows.agg(F.min(EXPIRES_AT)).collect()[0][0]
            return soonest
        return min((each for each in (known, new) if each is not None), default=None)

    def _write_steps(self, changes: RowChanges, plan: EpochPlan) -> None:
        steps, names, ids = changes.steps, table_columns(plan.schemas), changes.step_ids or ()
        for each in self._logs:
            refuse_other_types(each, steps, plan.applied.gone_until)
        is_sparse = self._tables.history.finds_pages and plan.is_sparse(len(ids))
        listed = is_listed("t._cdc_id", ids, is_sparse=is_sparse) if plan.is_large else None
        add = partial(add_versions, in_ranges=plan.has_many_records)
        writes = [partial(self._append, each, steps, plan.epoch) for each in self._logs_without(plan.epoch)]
        writes += [partial(add, each, steps, names, plan.epoch, listed) for each in plan.histories]
        if writes:
            at_once(steps.sparkSession, *writes)

    def _append(self, log: LakeTable, steps: DataFrame, epoch: int) -> None:
        named = (
            steps.drop("next_us")
            .withColumn("epoch", F.lit(epoch).cast("bigint"))
            .withColumnRenamed("changed_us", "writetime")
        )
        log.append(named, writer=f"cassandra-cdc {self._tables.target}", epoch=epoch)


@contextmanager
def _persisted(raw: DataFrame) -> Iterator[DataFrame]:
    """Persist raw rows within the context, so that they are read from the topic once."""
    kept = raw.persist()
    try:
        yield kept
    finally:
        kept.unpersist()
