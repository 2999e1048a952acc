"""The job `backfill`: publishes rows that were written before the connector ran, the same way as changes.

The executors read keys by token range and send an event for each to the table's events topic. The connector reads the
row as it is then. So a backfill is safe beside live changes: no row is ever older than Cassandra's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypedDict, Unpack
from uuid import UUID

from pyspark.sql import SparkSession

from schemas.topics import DEFAULT_EVENTS_PREFIX, events_topic
from spark_bridge.errors import TopicError
from spark_bridge.jobs.arguments import refuse_rate
from spark_bridge.jobs.backfill_progress import Progress
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

__all__ = ["BackfillReport", "SendSettings", "backfill", "initial_snapshot", "rebuild"]

Options = Mapping[str, str | int | bool]
_SAMPLED_RANGES: Final = 4
_SNAPSHOT_PROPERTY: Final = "cdc-snapshot-of"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillReport:
    """What a run did: rows whose events were sent (of a dry run: an estimate), ranges done now and before.

    `seconds` is how long it took; of a dry run, about how long the whole would read and send.
    """

    rows: int
    ranges: int
    ranges_before: int
    seconds: float


def _report_nothing(done: int, ranges: int, rows: int) -> None:
    pass


class SendSettings(TypedDict, total=False):
    """What `backfill`, `initial_snapshot` and `rebuild` all take; the defaults are those of docs/spark.md.

    Token ranges, one task each; rows a second, over all tasks; the file that keeps finished ranges (a run that was killed
    goes on after them); the prefix of events topics; and a function that gets ranges done, all ranges, rows sent.
    """

    ranges: int
    rows_per_second: float | None
    progress_file: str | None
    events_prefix: str
    on_progress: Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Which rows are sent: by a CQL predicate, of a range of tokens, or all into an emptied data topic (`rebuilt`)."""

    where: str | None = None
    tokens: TokenRange = ALL_TOKENS
    rebuilt: BridgeOptions | None = None
    dry_run: bool = False


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

    `dry_run` sends nothing and gives an estimate from a few ranges. When the progress file has every range nothing is
    sent: `ranges` of the report is 0. Raises ConfigError, TopicError when the events topic does not exist,
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
    """A backfill of the whole table, once for each cluster: None when one has finished before, whoever ran it.

    That it has is a property of the events topic, with the table's id, so a table that was created anew is read anew.
    Two that start at the same time both run, which only costs time. Raises what `backfill` raises.
    """
    table_id = str(table_metadata(access, keyspace, table).table_id)
    topic = events_topic(keyspace, table, more.get("events_prefix", DEFAULT_EVENTS_PREFIX))
    with PulsarAdmin(_options_of(options, topic)) as admin:
        if admin.properties(topic).get(_SNAPSHOT_PROPERTY) == table_id:
            return None
    report = backfill(spark, options, access, keyspace, table, **more)
    with PulsarAdmin(_options_of(options, topic)) as admin:
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
    """Fill the emptied data topic `options["topic"]` again with every row. Raises what `backfill` raises.

    TopicError, too, when the topic has records and the progress file does not tell that they are of a rebuild that was
    killed. Into an empty topic every row is sent, whatever the progress file says.
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
    parsed = _options_of(options, events_topic(keyspace, table, events_prefix))
    partitions = events_partitions(parsed, keyspace, table)
    plan = token_ranges(ranges, part.tokens)
    step = spark.sparkContext.defaultParallelism
    sender = RowSender(
        access, metadata, parsed, partitions, where=part.where, rows_per_second=rows_per_second,
        tasks=min(step, len(plan)),
    )  # fmt: skip
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
    """What was sent before. Raises ProgressFileError, TopicError when a rebuild would add to what its topic holds."""
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
    """From some ranges, evenly chosen. Sending costs less than reading and runs beside it."""
    sampled = plan[:: max(1, len(plan) // _SAMPLED_RANGES)]
    started = time.monotonic()
    rows = round(sum(sender.run(spark, sampled, publish=False).values()) * len(plan) / len(sampled))
    seconds = (time.monotonic() - started) * len(plan) / len(sampled)
    if rows_per_second is not None:
        seconds = max(seconds, rows / rows_per_second)
    return BackfillReport(rows=rows, ranges=0, ranges_before=0, seconds=seconds)


def _options_of(options: Options, topic: str) -> BridgeOptions:
    """The options with the events topic in place of theirs."""
    names = ("topic", "topics", "topicspattern")
    given = {name: each for name, each in batch_options(options).items() if name.lower() not in names}
    return BridgeOptions.from_mapping({**given, "topic": topic})
