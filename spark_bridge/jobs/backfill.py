"""The job `backfill`: publishes rows that were written before the connector ran, the same way as changes.

The executors read keys by token range and send an event for each to the table's events topic. The connector reads the
row as it is then. So a backfill is safe beside live changes: it never publishes an older row than Cassandra has.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self, TypedDict, Unpack
from uuid import UUID

import fsspec
from pyspark.sql import SparkSession

from schemas.topics import DEFAULT_EVENTS_PREFIX, events_topic
from spark_bridge.errors import ProgressFileError, TopicError
from spark_bridge.jobs.arguments import refuse_rate
from spark_bridge.jobs.cassandra_rows import (
    ALL_TOKENS,
    CassandraAccess,
    TokenRange,
    check_predicate,
    table_metadata,
    token_ranges,
)
from spark_bridge.jobs.row_events import events_partitions
from spark_bridge.jobs.row_sender import RowSender
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.options import BridgeOptions, batch_options

__all__ = ["BackfillReport", "SendSettings", "backfill", "check_backfill", "initial_snapshot", "rebuild"]

Options = Mapping[str, str | int | bool]
_SAMPLED_RANGES: Final = 4
_SNAPSHOT_PROPERTY: Final = "cdc-snapshot-of"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillReport:
    """The result of a run: rows whose events were sent, and ranges that were done in this run and before.

    `seconds`: how long the run took. In a dry run, `rows` and `seconds` are estimates for the whole.
    """

    rows: int
    ranges: int
    ranges_before: int
    seconds: float


def _report_nothing(done: int, ranges: int, rows: int) -> None:
    pass


class SendSettings(TypedDict, total=False):
    """The common settings of `backfill`, `initial_snapshot` and `rebuild`; docs/spark.md has the defaults.

    Token ranges, one task each; rows a second, over all tasks; the file that keeps finished ranges (a run that was
    killed continues after them); the prefix of events topics; a function that gets ranges done, all ranges, rows sent.
    """

    ranges: int
    rows_per_second: float | None
    progress_file: str | None
    events_prefix: str
    on_progress: Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The rows to send: by a CQL predicate, of a range of tokens, or all into an emptied data topic (`rebuilt`)."""

    where: str | None = None
    tokens: TokenRange = ALL_TOKENS
    rebuilt: BridgeOptions | None = None
    dry_run: bool = False


@dataclass(slots=True, kw_only=True)
class Progress:
    """The progress file: the finished ranges of one backfill of one table, on any file system that fsspec knows.

    `path` None: nothing is kept. `work` identifies the backfill: table id, number of ranges, tokens, predicate, and the
    data topic of a rebuild.
    """

    path: str | None
    work: Mapping[str, object]
    done: set[int] = field(default_factory=set)
    is_begun: bool = False
    """True if there is a file of this work."""

    @classmethod
    def load(cls, path: str | None, work: Mapping[str, object]) -> Self:
        """The content of the file; without a file, no range is finished.

        Raises ProgressFileError for a file of other work.
        """
        if path is None:
            return cls(path=path, work=work)
        try:
            with fsspec.open(path, "r") as file:
                stored = json.load(file)
            done = set(stored.pop("done"))
        except FileNotFoundError:
            return cls(path=path, work=work)
        except (OSError, ValueError, ImportError, AttributeError, LookupError, TypeError) as error:
            raise ProgressFileError(path, f"cannot be read ({error})") from None
        if stored != work:
            raise ProgressFileError(path, f"is of another backfill: {json.dumps(stored)}, not {json.dumps(work)}")
        return cls(path=path, work=work, done=done, is_begun=True)

    def restart(self) -> None:
        """Begin again without finished ranges, and replace the file. Raises ProgressFileError."""
        self.done, self.is_begun = set(), True
        self.add([])

    def add(self, finished: Iterable[int]) -> None:
        """Add finished ranges, and replace the file by a rename. Raises ProgressFileError."""
        self.done |= set(finished)
        if self.path is None:
            return
        try:
            system, path = fsspec.core.url_to_fs(self.path)
            with system.transaction, system.open(path, "w") as file:
                json.dump({**self.work, "done": sorted(self.done)}, file)
        except (OSError, ValueError, ImportError) as error:
            raise ProgressFileError(self.path, f"cannot be written ({error})") from None


def check_backfill(
    options: Options,
    access: CassandraAccess,
    keyspace: str,
    table: str,
    *,
    where: str | None = None,
    tokens: TokenRange = ALL_TOKENS,
    events_prefix: str = DEFAULT_EVENTS_PREFIX,
) -> None:
    """Ask Cassandra and Pulsar about the arguments of a backfill, without a session. Raises the errors of `backfill`."""
    token_ranges(1, tokens)
    metadata = table_metadata(access, keyspace, table)
    if where is not None:
        check_predicate(access, metadata, where)
    events_partitions(BridgeOptions.of_batch(options, events_topic(keyspace, table, events_prefix)), keyspace, table)


def backfill(
    spark: SparkSession,
    options: Options,
    access: CassandraAccess,
    keyspace: str,
    table: str,
    *,
    where: str | None = None,
    tokens: TokenRange = ALL_TOKENS,
    dry_run: bool = False,
    **more: Unpack[SendSettings],
) -> BackfillReport:
    """Send an event for every row of a table, or for those of a CQL predicate (`where`) or of `tokens` (start, end].

    `dry_run` sends nothing, and estimates from a few ranges. If the progress file has every range, nothing is sent, and
    `ranges` of the report is 0. Raises ConfigError, TopicError when the events topic does not exist,
    PulsarUnreachableError, CassandraReadError, ProgressFileError; a task that fails raises Spark's error with
    CassandraReadError or EventSendError in it.
    """
    part = _Part(where=where, tokens=tokens, dry_run=dry_run)
    return _send(spark, options, access, keyspace, table, part, **more)


def initial_snapshot(
    spark: SparkSession,
    options: Options,
    access: CassandraAccess,
    keyspace: str,
    table: str,
    **more: Unpack[SendSettings],
) -> BackfillReport | None:
    """Run a backfill of the whole table, once for each cluster. Return None if any job has finished one before.

    A finished backfill is noted in a property of the events topic, with the table's id. So a table that was made again
    is read again. Two backfills that start at the same time both run, which only costs time. Raises the errors of
    `backfill`.
    """
    table_id = str(table_metadata(access, keyspace, table).table_id)
    topic = events_topic(keyspace, table, more.get("events_prefix", DEFAULT_EVENTS_PREFIX))
    with PulsarAdmin(BridgeOptions.of_batch(options, topic)) as admin:
        if admin.properties(topic).get(_SNAPSHOT_PROPERTY) == table_id:
            return None
    report = backfill(spark, options, access, keyspace, table, **more)
    with PulsarAdmin(BridgeOptions.of_batch(options, topic)) as admin:
        admin.set_property(topic, _SNAPSHOT_PROPERTY, table_id)
    return report


def rebuild(
    spark: SparkSession,
    options: Options,
    access: CassandraAccess,
    keyspace: str,
    table: str,
    **more: Unpack[SendSettings],
) -> BackfillReport:
    """Fill the emptied data topic `options["topic"]` again with every row. Raises the errors of `backfill`.

    Raises TopicError, too, if the topic has records, unless the progress file is of a rebuild that was killed. If the
    topic is empty, every row is sent, also those that the progress file has.
    """
    part = _Part(rebuilt=BridgeOptions.from_mapping(batch_options(options)))
    return _send(spark, options, access, keyspace, table, part, **more)


def _send(
    spark: SparkSession,
    options: Options,
    access: CassandraAccess,
    keyspace: str,
    table: str,
    part: _Part,
    *,
    ranges: int = 64,
    rows_per_second: float | None = None,
    progress_file: str | None = None,
    events_prefix: str = DEFAULT_EVENTS_PREFIX,
    on_progress: Callable[[int, int, int], None] = _report_nothing,
) -> BackfillReport:
    refuse_rate("rows_per_second", rows_per_second)
    started = time.monotonic()
    metadata = table_metadata(access, keyspace, table)
    if part.where is not None:
        check_predicate(access, metadata, part.where)
    parsed = BridgeOptions.of_batch(options, events_topic(keyspace, table, events_prefix))
    partitions = events_partitions(parsed, keyspace, table)
    plan = token_ranges(ranges, part.tokens)
    step = spark.sparkContext.defaultParallelism
    sender = RowSender(
        access,
        metadata,
        parsed,
        partitions,
        where=part.where,
        rows_per_second=rows_per_second,
        tasks=min(step, len(plan)),
    )
    if part.dry_run:
        return _estimate(spark, sender, plan, rows_per_second)
    progress = _progress_of(part, progress_file, metadata.table_id, len(plan))
    before, rows = len(progress.done), 0
    waiting = [at for at in range(len(plan)) if at not in progress.done]
    for at in range(0, len(waiting), step):
        chosen = waiting[at : at + step]
        sent = sender.run(spark, [plan[each] for each in chosen], publish=True)
        rows += sum(sent.values())
        progress.add(chosen)
        on_progress(len(progress.done), len(plan), rows)
    return BackfillReport(rows=rows, ranges=len(waiting), ranges_before=before, seconds=time.monotonic() - started)


def _progress_of(part: _Part, path: str | None, table_id: UUID, ranges: int) -> Progress:
    """The progress of earlier runs.

    Raises ProgressFileError, and TopicError if a rebuild would add to existing records.
    """
    work = {"table_id": str(table_id), "ranges": ranges, "tokens": list(part.tokens), "where": part.where}
    if part.rebuilt is None:
        return Progress.load(path, work)
    topic = part.rebuilt.only_topic
    with PulsarAdmin(part.rebuilt) as admin:
        left = sum(each.entries for name in admin.topic_partitions() for each in admin.ledgers(name))
    work |= {"rebuilt": topic}
    progress = Progress.load(path, work)
    if not left:
        progress.restart()
    elif not progress.is_begun or len(progress.done) == ranges:
        whose = " of a rebuild that is done" if progress.is_begun else ""
        raise TopicError(
            topic,
            f"still holds {left} entries{whose}: empty it first (pulsar-admin topics unload, then truncate: what its open "
            "ledger holds stays otherwise), or run a backfill, which adds to what is there",
        )
    return progress


def _estimate(
    spark: SparkSession, sender: RowSender, plan: list[TokenRange], rows_per_second: float | None
) -> BackfillReport:
    """An estimate from some evenly chosen ranges.

    Only reading is measured: sending costs less, and runs at the same time.
    """
    sampled = plan[:: max(1, len(plan) // _SAMPLED_RANGES)]
    started = time.monotonic()
    rows = round(sum(sender.run(spark, sampled, publish=False).values()) * len(plan) / len(sampled))
    seconds = (time.monotonic() - started) * len(plan) / len(sampled)
    if rows_per_second is not None:
        seconds = max(seconds, rows / rows_per_second)
    return BackfillReport(rows=rows, ranges=0, ranges_before=0, seconds=seconds)
