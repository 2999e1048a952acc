"""The job `mirror`: keeps lakehouse tables equal to a Cassandra table by its data topic, optionally with all changes.

It is one module above 500 lines because the start of a run, its micro-batches, its retries and its end change together.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypedDict, Unpack

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_fixed

from schemas.errors import CdcError, ConfigError
from schemas.hidden_columns import HiddenColumns
from spark_bridge.errors import StateFileError, reason_of_spark
from spark_bridge.java_classes import keep_functions
from spark_bridge.jobs.arguments import refuse_interval, refuse_retention
from spark_bridge.jobs.batch_session import fit_session, own_session, pin_session, session_of_its_own
from spark_bridge.jobs.cassandra_rows import CassandraAccess
from spark_bridge.jobs.completeness import Completeness
from spark_bridge.jobs.lake_table import TableFormat
from spark_bridge.jobs.mirror_batch import MirrorBatch, MirrorSettings
from spark_bridge.jobs.mirror_state import Applied, MirrorTables, known_creations, refuse_lost_records
from spark_bridge.jobs.resync import Outcome, resync
from spark_bridge.reading.folders import HadoopFolder
from spark_bridge.reading.micro_batch import has_batches, is_to_be_repeated, logged_end
from spark_bridge.reading.raw_columns import RAW_SCHEMA
from spark_bridge.reading.readers import raw_stream
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.clearings import TopicClearings
from spark_bridge.topics.options import BridgeOptions, texts_without
from spark_bridge.topics.positions import BEGINNING, Position
from spark_bridge.topics.resolved import table_of

__all__ = ["JobSettings", "MirrorSummary", "changelog", "given_from", "history", "mirror", "start_note"]

Options = Mapping[str, str | int | bool]
OnBatch = Callable[[Mapping[str, int]], None]
_log: Final = logging.getLogger(__name__)
_DAY_S = 86_400
_COMPACT_EVERY = 100
"""How many micro-batches come between two compactions, for a run with `compact`."""
_STOP_CHECK_S: Final = 1
"""Seconds between two checks of a following job for a request to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSummary:
    """The result of a run: micro-batches, records read, rows inserted, updated and deleted; and how long it took.

    A row whose write time or expiry alone changed counts as updated.
    `resolved_ms`: the tables have every write that Cassandra acknowledged before this time (milliseconds since 1970);
    None: not known.
    """

    batches: int
    records: int
    inserted: int
    updated: int
    deleted: int
    seconds: float
    resolved_ms: int | None = None


_LOST_WORKER: Final = {
    # Spark gives a stream's Python process 10 seconds to start, which no setting changes: too few on a busy machine.
    "Python worker failed to connect back": "a Python worker of Spark did not start in time",
    # A micro-batch keeps its rows on the executors. Spark recomputes everything but these.
    "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND": "an executor was lost with rows of the micro-batch",
}
"""Error texts of Spark, and their meaning. The micro-batch is then retried: each of its steps may be repeated."""
_ATTEMPTS: Final = 10
"""How often the same micro-batch is tried."""
_PAUSE_S: Final = 2


def _lost_worker(error: BaseException | None) -> str | None:
    if not isinstance(error, PySparkException | Py4JError):
        return None
    return next((why for text, why in _LOST_WORKER.items() if text in str(error)), None)


class _Failures:
    """Counts the lost workers since the last micro-batch that was applied: a following job may run for months."""

    def __init__(self, totals: Mapping[str, int]) -> None:
        """`totals`: the counts of the job, which change while it runs."""
        self._totals = totals
        self._batches = totals["batches"]
        self._number = 0

    def are_many(self, state: RetryCallState) -> bool:
        """Count one more. Return True if the job should end."""
        batches = self._totals["batches"]
        self._number = self._number + 1 if batches == self._batches else 1
        self._batches = batches
        return self._number >= _ATTEMPTS

    def log(self, state: RetryCallState) -> None:
        """Log the last one that was counted."""
        why = None if state.outcome is None else _lost_worker(state.outcome.exception())
        _log.warning("%s; the micro-batch is done again (retry %d of %d)", why, self._number, _ATTEMPTS - 1)


def _again_without_worker(step: Callable[[], None], totals: Mapping[str, int]) -> None:
    """Call `step`, and call it again each time that it lost a worker. `totals`: see `_Failures`."""
    failures = _Failures(totals)
    retrying = Retrying(
        retry=retry_if_exception(lambda error: _lost_worker(error) is not None),
        stop=failures.are_many,
        wait=wait_fixed(_PAUSE_S),
        before_sleep=failures.log,
        reraise=True,
    )
    retrying(step)


class JobSettings(TypedDict, total=False):
    """The common settings of `mirror`, `changelog` and `history`."""

    static_columns: tuple[str, ...] | None
    follow_interval_s: float | None
    stopping: threading.Event | None
    tombstone_retention_days: float
    compact: bool
    table_format: TableFormat | None
    rebuild: bool
    resync_from: CassandraAccess | None
    hidden: HiddenColumns | None
    on_batch: OnBatch


def mirror(
    spark: SparkSession,
    options: Options,
    target: str,
    *,
    changelog: bool = False,
    history: bool = False,
    static_columns: tuple[str, ...] | None = None,
    follow_interval_s: float | None = None,
    stopping: threading.Event | None = None,
    tombstone_retention_days: float = 7,
    compact: bool = False,
    table_format: TableFormat | None = None,
    rebuild: bool = False,
    resync_from: CassandraAccess | None = None,
    hidden: HiddenColumns | None = None,
    on_batch: OnBatch = lambda counts: None,
) -> MirrorSummary:
    """Bring the tables below `target` up to the topic's end.

    With `follow_interval_s`, keep them there until `stopping` is set; the current micro-batch is then finished.
    `table_format` None: the format of the existing tables, else Delta Lake. If the job is killed at any moment and run
    again, it continues where it was, and nothing is applied twice. With `rebuild` the topic is read from its beginning,
    and rows that it does not have are removed. This is for a topic that was deleted and made again, which raises
    OtherTopicError otherwise. `on_batch` gets the counts of each micro-batch. `resync_from` is the table's Cassandra:
    at the end `resync` closes open gaps of the table. It compares Cassandra with the mirror, without the `hidden`
    columns, and the mirror applies the rows that it sent. A gap that stays open is logged. Raises ConfigError,
    TopicError, PulsarUnreachableError, CheckpointError, StateFileError, DataLossError, and Spark's errors.
    """
    if resync_from is not None and follow_interval_s is not None:
        raise ConfigError.of(
            "resync_from",
            "runs at the end of a mirror, and one with follow_interval_s has no end: run cdc spark resync beside it",
        )
    refuse_interval("follow_interval_s", follow_interval_s)
    refuse_retention("tombstone_retention_days", tombstone_retention_days)
    given = texts_without(options, "checkpointlocation")
    given["checkpointLocation"] = _checkpoint_of(spark, target)
    if "minpartitions" not in {name.lower() for name in given}:
        given["minPartitions"] = str(spark.sparkContext.defaultParallelism)
    tables = MirrorTables(spark, target, table_format)
    tables.refuse_foreign_tables()
    parsed = tables.with_numbers(BridgeOptions.from_mapping(given))
    if not rebuild:
        tables.refuse_other_topic(parsed.only_topic)
    steps = _Steps(
        tables=lambda session: MirrorTables(session, target, table_format),
        options=parsed.of_topic(parsed.only_topic),
        settings=MirrorSettings(changelog=changelog, history=history, static_columns=static_columns),
        retention_s=tombstone_retention_days * _DAY_S,
        compact=compact,
        on_batch=on_batch,
        completeness=Completeness(parsed.of_topic(parsed.only_topic)),
        clearings=TopicClearings(parsed.of_topic(parsed.only_topic)),
    )
    heal = None if resync_from is None else partial(_heal, given, target, resync_from, hidden)
    with steps.completeness, steps.clearings:
        following = None if follow_interval_s is None else _Following(follow_interval_s, stopping or threading.Event())
        return _run(spark, steps, parsed, given, following, heal, rebuild=rebuild)


def _checkpoint_of(spark: SparkSession, target: str) -> str:
    """The address of the checkpoint's folder, with its file system.

    The processes of the data source do not know the session's default file system. Raises StateFileError.
    """
    folder = target.rstrip("/")
    try:
        return HadoopFolder(spark, f"{folder}/checkpoint").address()
    except OSError as error:
        raise StateFileError(folder, reason_of_spark(str(error))) from None


def _heal(
    options: Mapping[str, str], target: str, access: CassandraAccess, hidden: HiddenColumns | None, spark: SparkSession
) -> bool:
    """Resync the mirror's table. Return True if the topic may have new records.

    A failure is logged, and the next run tries again.
    """
    parsed = BridgeOptions.from_mapping(options)
    try:
        report = resync(
            spark,
            options,
            access,
            tables=[table_of(parsed)],
            mirror_target=target,
            data_topic=parsed.only_topic,
            hidden=hidden,
        )
    except (CdcError, PySparkException, Py4JError) as error:
        _log.warning(
            "open gaps of the table are not closed, the next run with --resync tries again: %s",
            reason_of_spark(str(error)),
        )
        return False
    for each in report.tables:
        level = logging.WARNING if each.outcome is Outcome.LEFT_OPEN else logging.INFO
        _log.log(level, "%s: gaps %s: %s", each.table, each.outcome.value, each.reason)
    return bool(report.tables)


def _run(
    spark: SparkSession,
    steps: _Steps,
    parsed: BridgeOptions,
    given: Mapping[str, str],
    following: _Following | None,
    heal: Callable[[SparkSession], bool] | None,
    *,
    rebuild: bool,
) -> MirrorSummary:
    checkpoint = given["checkpointLocation"]
    started = time.monotonic()
    keep_functions(spark.sparkContext._jvm)  # noqa: SLF001  (PySpark has no public way)
    steps, given = _begin(spark, steps, given, rebuild=rebuild)
    # Taken before the end is looked up: records of writes before the timestamp are before the end.
    steps.completeness.ask()
    ends = _ends(parsed)

    def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            # While Spark starts the stream's Python process. A failure is not reported: the micro-batch meets it again.
            pool.submit(steps.load_tables, spark)
            read(raw_stream(spark, given).writeStream.foreachBatch(steps.apply))

    def read(stream: DataStreamWriter) -> None:
        stream = stream.option("checkpointLocation", checkpoint)
        if is_to_be_repeated(checkpoint, partial(HadoopFolder, spark)):
            steps.unfinished.set()
        if following is None:
            stream.trigger(availableNow=True).start().awaitTermination()
            return
        query = stream.trigger(processingTime=f"{following.interval_s} seconds").start()
        try:
            following.run(query, partial(steps.expire, spark))
            steps.wait_until_idle()
        finally:
            query.stop()

    def run_to(ends: Mapping[str, Position]) -> None:
        while True:
            _again_without_worker(run, steps.totals)
            if following is not None and following.stopping.is_set():
                return
            reached = logged_end(checkpoint, ends.keys(), partial(HadoopFolder, spark)) or {}
            if all(reached.get(topic, BEGINNING) >= end or end.entry < 0 for topic, end in ends.items()):
                return

    run_to(ends)
    if heal is not None and heal(spark):
        run_to(_ends(parsed))
    _again_without_worker(partial(steps.end, spark), steps.totals)
    totals = steps.totals
    return MirrorSummary(
        batches=totals["batches"],
        records=totals["records"],
        inserted=totals["insert"],
        updated=totals["update"],
        deleted=totals["delete"],
        seconds=time.monotonic() - started,
        resolved_ms=steps.tables(spark).applied().resolved_ms,
    )


def _begin(
    spark: SparkSession, steps: _Steps, given: Mapping[str, str], *, rebuild: bool
) -> tuple[_Steps, Mapping[str, str]]:
    """Prepare the state and the tables. Return steps that know what the mirror keeps, and the options of the stream."""
    with own_session(spark) as own:
        pin_session(own)
        tables = steps.tables(own)
        applied = _prepare(own, tables, given["checkpointLocation"], steps.options, rebuild=rebuild)
        if (note := start_note(applied, steps.options, tables.target)) is not None:
            _log.warning("%s", note)
        begun = steps.begun(own)
        # Stored before the first micro-batch: a later run without these options has the same hole.
        begun.completeness.note_lack(tables.note_lack(steps.options))
    return begun, given_from(applied, given)


def _prepare(
    spark: SparkSession, tables: MirrorTables, checkpoint: str, options: BridgeOptions, *, rebuild: bool
) -> Applied:
    """Prepare the state for the run, and return it.

    Begin anew if this run is a rebuild, or if an earlier rebuild was killed before it began. Else give up a begun epoch
    that no run can repeat.
    """
    if rebuild:
        tables.ask_for_rebuild()
    applied, folder_of = tables.applied(), partial(HadoopFolder, spark)
    if applied.is_to_begin_anew:
        # in this order: after a failure in between, an old checkpoint would continue with an empty mirror
        HadoopFolder(spark, checkpoint).delete_all()
        tables.begin_anew()
    elif not has_batches(checkpoint, folder_of):
        # An earlier checkpoint may have been lost, even after a run that failed.
        known_creations(applied, options)
        refuse_lost_records(applied, options)
        tables.give_up_epoch()
    elif applied.begun is not None and not is_to_be_repeated(checkpoint, folder_of):
        # the checkpoint is an older copy
        tables.give_up_epoch()
    return tables.applied()


def given_from(applied: Applied, given: Mapping[str, str]) -> Mapping[str, str]:
    """The options of the stream. `startingOffsets` is left out unless the mirror is new."""
    if applied.is_new:
        return given
    return {name: each for name, each in given.items() if name.lower() != "startingoffsets"}


def start_note(applied: Applied, options: BridgeOptions, target: str) -> str | None:
    """What another value of `startingOffsets` than `earliest` means for this run, for the user; None: it has none."""
    start = options.starting_offsets
    if start == "earliest":
        return None
    if applied.is_new:
        return (
            f"the mirror below {target} begins with startingOffsets={start}: it lacks every row that has no record after that, and "
            "it is not known until when its tables are complete; for all rows run it with --rebuild"
        )
    return (
        f"startingOffsets={start} is not used: the mirror below {target} reads every record that it does not have; run it without "
        "this option, or it is not known until when its tables are complete"
    )


def _ends(options: BridgeOptions) -> dict[str, Position]:
    with PulsarAdmin(options) as admin:
        return {topic: admin.last_position(topic) for topic in admin.topic_partitions()}


@dataclass(frozen=True, slots=True)
class _Following:
    """A mirror that runs until it is stopped: seconds between micro-batches, and the event that stops it."""

    interval_s: float
    stopping: threading.Event

    def run(self, query: StreamingQuery, between: Callable[[], None]) -> None:
        """Return when `stopping` is set or the query has ended. Until then call `between` about once an interval."""
        period_s = max(1.0, self.interval_s)
        due = time.monotonic() + period_s
        while not query.awaitTermination(_STOP_CHECK_S):
            if self.stopping.is_set():
                return
            if time.monotonic() >= due:
                between()
                due = time.monotonic() + period_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """The steps of a run on the tables, one at a time: Spark applies micro-batches in a separate thread."""

    tables: Callable[[SparkSession], MirrorTables]
    options: BridgeOptions
    settings: MirrorSettings
    retention_s: float
    compact: bool
    on_batch: OnBatch
    completeness: Completeness
    clearings: TopicClearings
    totals: Counter[str] = field(default_factory=Counter)
    unfinished: threading.Event = field(default_factory=threading.Event)
    """Set while a micro-batch may be written in part. Only this micro-batch may use the next epoch: rows expire
    later."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begun(self, spark: SparkSession) -> _Steps:
        """Prepare the tables. Return steps that know what the mirror keeps, which is looked up once a run."""
        return replace(self, settings=self._batch(self.tables(spark)).begin())

    def load_tables(self, spark: SparkSession) -> None:
        """Load the tables' log. The format keeps it, so that the first micro-batch need not load it."""
        own = session_of_its_own(spark)
        fit_session(own, 0, 0)
        self.tables(own).load()

    def apply(self, batch: DataFrame, number: int) -> None:
        with self._lock:
            self.completeness.ask()
            tables = self.tables(batch.sparkSession)
            ready = self._batch(tables, may_be_begun=self.unfinished.is_set())
            self.unfinished.set()
            counts = ready.apply(batch)
            self.unfinished.clear()
            tables.forget(self.retention_s)
            tables.merge_kept()
            if self.compact and number % _COMPACT_EVERY == _COMPACT_EVERY - 1:
                tables.compact()
            else:
                tables.compact_in_turn()
            self.totals.update({**counts, "batches": 1})
        self.on_batch(counts)

    def wait_until_idle(self) -> None:
        """Return when no step runs. The query can then be stopped without interrupting one."""
        with self._lock:
            pass

    def expire(self, spark: SparkSession) -> None:
        with self._lock:
            if self.unfinished.is_set():
                return
            tables = self.tables(spark)
            if self._batch(tables).is_due():
                own = session_of_its_own(spark)
                # Not createDataFrame, which would make that session the active one from then on.
                nothing = own.range(0).select(
                    *[F.lit(None).cast(each.dataType).alias(each.name) for each in RAW_SCHEMA]
                )
                self.totals.update(self._batch(self.tables(own)).settle(nothing))
                self.tables(own).compact_in_turn()
            self._note_resolved(tables)
            self.completeness.ask()

    def _note_resolved(self, tables: MirrorTables) -> None:
        """Store the resolved timestamp that the tables have reached: without records, no commit has it."""
        applied = tables.applied()
        resolved_ms = self.completeness.reached(applied.positions)
        if applied.begins_anew:
            # The rows are still those from before the rebuild. `reached` has discarded the timestamps that were read
            # meanwhile, when the topic may have been empty.
            return
        if resolved_ms is not None and resolved_ms > (applied.resolved_ms or 0):
            tables.save_applied(replace(applied, resolved_ms=resolved_ms))

    def end(self, spark: SparkSession) -> None:
        self.expire(spark)
        if self.unfinished.is_set():
            return
        self.tables(spark).forget(self.retention_s)
        if self.compact:
            own = session_of_its_own(spark)
            self._batch(self.tables(own)).fit(own)
            self.tables(own).compact()

    def _batch(self, tables: MirrorTables, *, may_be_begun: bool = True) -> MirrorBatch:
        known = self.completeness.reached, self.clearings.read
        return MirrorBatch(tables, self.options, self.settings, *known, may_be_begun=may_be_begun)


def changelog(spark: SparkSession, options: Options, target: str, **more: Unpack[JobSettings]) -> MirrorSummary:
    """Keep `changes` below `target`: every insert, update and delete with both images. Keep also the mirror itself.

    All else is as in `mirror`.
    """
    return mirror(spark, options, target, changelog=True, **more)


def history(spark: SparkSession, options: Options, target: str, **more: Unpack[JobSettings]) -> MirrorSummary:
    """Keep `history` below `target`: every version of every row with its write times. Keep also the mirror itself.

    All else is as in `mirror`.
    """
    return mirror(spark, options, target, history=True, **more)
