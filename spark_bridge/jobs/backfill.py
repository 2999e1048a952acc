"""The job `backfill`: rows that were there before the connector reach the data topic as changes do.

Keys are read by token range on the executors, and an event for each goes to the table's events topic; the connector
reads the row as it is then. So it is safe beside live changes: no row is ever older than Cassandra's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import fsspec
from pyspark.sql import SparkSession

from schemas.topics import DEFAULT_EVENTS_PREFIX, events_topic
from spark_bridge.errors import ProgressFileError, TopicError
from spark_bridge.jobs.cassandra_rows import ALL_TOKENS, CassandraAccess, TokenRange, table_metadata, token_ranges
from spark_bridge.jobs.row_sender import RowSender
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.options import BridgeOptions, option_texts

__all__ = ["BackfillReport", "backfill", "initial_snapshot", "rebuild"]

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


@dataclass(slots=True)
class _Progress:
    """The file with the finished ranges of one backfill of one table; no file: nothing is kept."""

    path: str | None
    work: Mapping[str, object]
    """What is done: table id, number of ranges, tokens, predicate."""
    done: set[int] = field(default_factory=set)

    def load(self) -> None:
        """Raises ProgressFileError for the file of other work."""
        if self.path is None:
            return
        try:
            with fsspec.open(self.path, "r") as file:
                stored = json.load(file)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise ProgressFileError(self.path, f"cannot be read ({error})") from None
        found = {name: stored.get(name) for name in self.work}
        if found != self.work:
            raise ProgressFileError(
                self.path, f"is of another backfill: {json.dumps(found)}, not {json.dumps(self.work)}"
            )
        self.done = set(stored["done"])

    def add(self, finished: Iterable[int]) -> None:
        """Keep these as finished, too; the file appears by one rename."""
        self.done |= set(finished)
        if self.path is None:
            return
        system, path = fsspec.core.url_to_fs(self.path)
        with system.transaction, system.open(path, "w") as file:
            json.dump({**self.work, "done": sorted(self.done)}, file)


def _tell_nobody(done: int, ranges: int, rows: int) -> None:
    pass


def backfill(
    spark: SparkSession,
    options: Options,
    access: CassandraAccess,
    keyspace: str,
    table: str,
    *,
    where: str | None = None,
    tokens: TokenRange = ALL_TOKENS,
    ranges: int = 64,
    rows_per_second: float | None = None,
    progress_file: str | None = None,
    dry_run: bool = False,
    events_prefix: str = DEFAULT_EVENTS_PREFIX,
    on_progress: Callable[[int, int, int], None] = _tell_nobody,
) -> BackfillReport:
    """Send an event for every row of a table, or for those of a CQL predicate (`where`) or of `tokens` (start, end].

    With `progress_file` a run that was killed goes on after its last finished ranges. `dry_run` sends nothing and gives
    an estimate from a few ranges. `on_progress` is told ranges done, all ranges, rows sent. Raises ConfigError,
    TopicError when the events topic does not exist, PulsarUnreachableError, CassandraReadError, ProgressFileError; a task
    that fails raises Spark's error with CassandraReadError or EventSendError in it.
    """
    started = time.monotonic()
    metadata = table_metadata(access, keyspace, table)
    parsed = _options_of(options, events_topic(keyspace, table, events_prefix))
    with PulsarAdmin(parsed) as admin:
        partitions = admin.topic_partitions()
    plan = token_ranges(ranges, tokens)
    step = spark.sparkContext.defaultParallelism
    sender = RowSender(
        access, metadata, parsed, partitions, where=where, rows_per_second=rows_per_second, tasks=min(step, len(plan))
    )
    if dry_run:
        return _estimate(spark, sender, plan, rows_per_second)
    work = {"table_id": str(metadata.table_id), "ranges": len(plan), "tokens": list(tokens), "where": where}
    progress = _Progress(progress_file, work)
    progress.load()
    before, rows = len(progress.done), 0
    waiting = [at for at in range(len(plan)) if at not in progress.done]
    for at in range(0, len(waiting), step):
        chosen = waiting[at : at + step]
        sent = sender.run(spark, [plan[each] for each in chosen], publish=True)
        rows += sum(sent.values())
        progress.add(chosen)
        on_progress(len(progress.done), len(plan), rows)
    return BackfillReport(rows=rows, ranges=len(waiting), ranges_before=before, seconds=time.monotonic() - started)


def initial_snapshot(
    spark: SparkSession,
    options: Options,
    access: CassandraAccess,
    keyspace: str,
    table: str,
    *,
    ranges: int = 64,
    rows_per_second: float | None = None,
    progress_file: str | None = None,
    events_prefix: str = DEFAULT_EVENTS_PREFIX,
    on_progress: Callable[[int, int, int], None] = _tell_nobody,
) -> BackfillReport | None:
    """A backfill of the whole table, once for each cluster: None when one has finished before, whoever ran it.

    That it has is a property of the events topic, with the table's id, so a table that was created anew is read anew.
    Two that start at the same time both run, which only costs time. Raises what `backfill` raises.
    """
    table_id = str(table_metadata(access, keyspace, table).table_id)
    topic = events_topic(keyspace, table, events_prefix)
    with PulsarAdmin(_options_of(options, topic)) as admin:
        if admin.properties(topic).get(_SNAPSHOT_PROPERTY) == table_id:
            return None
    report = backfill(
        spark, options, access, keyspace, table, ranges=ranges, rows_per_second=rows_per_second,
        progress_file=progress_file, events_prefix=events_prefix, on_progress=on_progress,
    )  # fmt: skip
    with PulsarAdmin(_options_of(options, topic)) as admin:
        admin.set_property(topic, _SNAPSHOT_PROPERTY, table_id)
    return report


def rebuild(
    spark: SparkSession,
    options: Options,
    access: CassandraAccess,
    keyspace: str,
    table: str,
    *,
    ranges: int = 64,
    rows_per_second: float | None = None,
    progress_file: str | None = None,
    events_prefix: str = DEFAULT_EVENTS_PREFIX,
    on_progress: Callable[[int, int, int], None] = _tell_nobody,
) -> BackfillReport:
    """Fill the emptied data topic `options["topic"]` again with every row. Raises what `backfill` raises.

    TopicError, too, when the topic still has records and no progress file tells that they are of this rebuild.
    """
    data = BridgeOptions.from_mapping(option_texts(options))
    with PulsarAdmin(data) as admin:
        left = sum(each.entries for topic in admin.topic_partitions() for each in admin.ledgers(topic))
    if left and not (progress_file and _exists(progress_file)):
        reason = (
            f"still holds {left} entries: empty it first (pulsar-admin topics unload, then truncate: what its open ledger "
            "holds stays otherwise), or run a backfill, which adds to what is there"
        )
        raise TopicError(data.only_topic, reason)
    return backfill(
        spark, options, access, keyspace, table, ranges=ranges, rows_per_second=rows_per_second,
        progress_file=progress_file, events_prefix=events_prefix, on_progress=on_progress,
    )  # fmt: skip


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
    given = {name: each for name, each in option_texts(options).items() if name.lower() not in names}
    return BridgeOptions.from_mapping({**given, "topic": topic})


def _exists(path: str) -> bool:
    system, name = fsspec.core.url_to_fs(path)
    found: bool = system.exists(name)
    return found
