"""The job `resync`: publishes again the changes that reported gaps may have lost, and then closes the gaps.

For each table with open gaps:

    1. The executors read the keys of all rows by token range. They send an event for each row whose WRITETIME is in a
       window of the gaps.
    2. Cassandra is compared with the data topic, or with a mirror of it. An event is sent for each row that only the topic
       has, because it was deleted in a window. An event is also sent for each row that differs and was not sent in step 1:
       a deleted column or a change of a collection leaves no write time.
    3. When the connector has consumed all of these events, a record closes the gaps.

The connector reads the current row for each event, so an event that comes twice does no harm. If a run is killed, its gaps
stay open, and the next run starts again. Two runs at the same time close the same gaps twice.

A row that changes during the run may differ, too. It is not sent, because the change has its own event, whose record has
the whole row. In a table with static columns it is sent: a record of a static column is not a record of the row.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final
from uuid import UUID

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from schemas.errors import CdcError, ConfigError
from schemas.gap_record import GapRecord
from schemas.hidden_columns import HiddenColumns, PublishedTable
from schemas.progress_record import TopicPosition
from schemas.resolved import PartitionCursor
from schemas.table_metadata import TableMetadata
from schemas.topics import DEFAULT_DATA_PREFIX, full_topic_name
from spark_bridge.errors import SparkBridgeError, reason_of_spark
from spark_bridge.jobs.arguments import refuse_rate
from spark_bridge.jobs.batch_session import own_session
from spark_bridge.jobs.cassandra_rows import CassandraAccess, find_table, host_ids, token_ranges
from spark_bridge.jobs.repair import RepairTarget
from spark_bridge.jobs.resync_plan import Fate, TableGaps, fate_of, needs_no_event, plan_of
from spark_bridge.jobs.row_sender import RowSender
from spark_bridge.jobs.table_comparison import TableComparison
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.gaps import GapsTopic
from spark_bridge.topics.options import BridgeOptions, batch_options
from spark_bridge.topics.resolved import ResolvedTimestamps

__all__ = ["Outcome", "ResyncReport", "TableResync", "is_passed", "resync"]

Options = Mapping[str, str | int | bool]
_POLL_S: Final = 0.5


class Outcome(Enum):
    """The result for the gaps of one table."""

    CLOSED = "closed"
    LEFT_OPEN = "left open"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResync:
    """Gaps of one table (`keyspace.table`), and the outcome; `reason` is for people.

    `written` rows were sent because of their write time, `differing` ones because they differed or were deleted.
    """

    table: str
    gaps: int
    outcome: Outcome
    reason: str
    written: int = 0
    differing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResyncReport:
    """The result of a run; `tables` is empty when no gap is open. `foreign_messages`: messages that are not gap records."""

    tables: tuple[TableResync, ...]
    foreign_messages: int
    seconds: float

    @property
    def left_open(self) -> int:
        """Gaps that this run has not closed."""
        return sum(each.gaps for each in self.tables if each.outcome is Outcome.LEFT_OPEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    data_topic: str | None
    data_prefix: str
    mirror_target: str | None
    ranges: int | None
    rows_per_second: float | None
    connector_timeout_s: float
    max_differences: int
    margin_ms: int
    hidden: HiddenColumns | None
    on_table: Callable[[str], None]


class _NotHealedError(SparkBridgeError):
    """The reason why the gaps of a table stay open."""


def _report_nothing(table: str) -> None:
    pass


def resync(
    spark: SparkSession,
    options: Options,
    access: CassandraAccess,
    *,
    tables: Sequence[str] | None = None,
    mirror_target: str | None = None,
    data_topic: str | None = None,
    data_prefix: str = DEFAULT_DATA_PREFIX,
    ranges: int | None = None,
    rows_per_second: float | None = None,
    margin_s: float = 300,
    connector_timeout_s: float = 600,
    max_differences: int = 100_000,
    hidden: HiddenColumns | None = None,
    on_table: Callable[[str], None] = _report_nothing,
) -> ResyncReport:
    """Publish again the changes that open gaps may have lost, and close the gaps; of all tables, or of `tables`.

    `options` are those of the data source: the addresses, `eventsTopicPrefix` and `eventsSubscriptionName` are used. `tables`
    are names `keyspace.table`. A table's data topic is `data_prefix` and its name. If `tables` has one table, `data_topic` may
    name its topic, and `mirror_target` a mirror of it. The mirror is then compared instead of the topic, which a retention
    may have trimmed. `margin_s`: the largest difference between the clocks of clients, nodes and agents. At most
    `max_differences` rows are sent because they differ; if there are more, the gaps stay open, and the next run sends
    others. `hidden`: the columns that the connector hides.

    If a table fails, its gaps stay open, and the report has the reason. Raises ConfigError, PulsarUnreachableError,
    CassandraReadError, EventSendError.
    """
    refuse_rate("rows_per_second", rows_per_second)
    started = time.monotonic()
    for name, value in (("mirror_target", mirror_target), ("data_topic", data_topic)):
        if value is not None and len(tables or ()) != 1:
            raise ConfigError.of(name, "belongs to one table: name exactly one in tables")
    parsed = BridgeOptions.without_topic(batch_options(options))
    settings = _Settings(
        data_topic=data_topic,
        data_prefix=data_prefix,
        mirror_target=mirror_target,
        ranges=ranges,
        rows_per_second=rows_per_second,
        connector_timeout_s=connector_timeout_s,
        max_differences=max_differences,
        margin_ms=int(margin_s * 1000),
        hidden=hidden,
        on_table=on_table,
    )
    topic = GapsTopic(parsed)
    found = [each for each in topic.open_gaps() if tables is None or each.table_name in tables]
    nodes = host_ids(access) if found else frozenset()
    run = _Run(spark, parsed, access, topic, nodes, settings)
    done = [each for table in plan_of(found, settings.margin_ms) for each in run.heal(table)]
    return ResyncReport(tables=tuple(done), foreign_messages=topic.foreign_messages, seconds=time.monotonic() - started)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run, table by table."""

    spark: SparkSession
    options: BridgeOptions
    access: CassandraAccess
    topic: GapsTopic
    nodes: frozenset[UUID]
    settings: _Settings

    def heal(self, table: TableGaps) -> list[TableResync]:
        """The results for a table's gaps, one for each fate. Raises EventSendError when a gap could not be closed."""
        self.settings.on_table(table.name)
        try:
            metadata = find_table(self.access, table.keyspace, table.table)
        except SparkBridgeError as error:
            return [_left_open(table.name, table.gaps, str(error))]
        by_fate: defaultdict[Fate, list[GapRecord]] = defaultdict(list)
        for each in table.gaps:
            by_fate[fate_of(each, None if metadata is None else metadata.table_id, self.nodes)].append(each)
        found = []
        for fate, gaps in by_fate.items():
            if fate.closes_at_once:
                found.append(self._close(table.name, gaps, fate.value))
            elif fate is Fate.OTHER_CLUSTER:
                reason = (
                    f"{self.access.address} has no such table, or a newer one, and node {gaps[0].node_id} of the gap is not in that "
                    "cluster: check the contact point; if the node has left the cluster, acknowledge the gap's record, and run cdc agent "
                    "resume-progress where an agent goes on with its working directory"
                )
                found.append(_left_open(table.name, gaps, reason))
            else:
                assert metadata is not None
                found.append(self._resync(table.only(gaps, self.settings.margin_ms), metadata))
        return found

    def _resync(self, table: TableGaps, metadata: TableMetadata) -> TableResync:
        try:
            published = None if self.settings.hidden is None else self.settings.hidden.of(metadata)
            target = RepairTarget.find(
                self.options,
                self.access,
                metadata,
                self.options.events_topic_prefix,
                hides_key=published is not None and published.hides_key,
            )
            created = _creations(target)
            written, differing = self._send(table, target, published)
            self._wait_for_connector(table.name, target, created)
        except (CdcError, PySparkException, Py4JError) as error:
            return _left_open(table.name, table.gaps, reason_of_spark(str(error)))
        reason = f"{written:,} rows were sent for their write time, {differing:,} because they differed"
        done = self._close(table.name, table.gaps, reason)
        return replace(done, written=written, differing=differing)

    def _close(self, table: str, gaps: Sequence[GapRecord], reason: str) -> TableResync:
        self.topic.close(gaps, reason)
        return TableResync(table=table, gaps=len(gaps), outcome=Outcome.CLOSED, reason=reason)

    def _send(self, table: TableGaps, target: RepairTarget, published: PublishedTable | None) -> tuple[int, int]:
        """Send a table's rows. Return how many were sent for their write time, and how many for a difference.

        The broker has all of them when this returns.
        """
        settings, metadata = self.settings, target.table
        plan = token_ranges(settings.ranges or self.spark.sparkContext.defaultParallelism * 2)
        data_topic = full_topic_name(settings.data_topic or f"{settings.data_prefix}{table.name}")
        with own_session(self.spark) as own:
            # This fails if the topic or the mirror is missing, so it comes before anything is sent.
            comparison = TableComparison(
                own,
                self.options.of_topic(data_topic),
                self.access,
                metadata,
                plan,
                mirror=settings.mirror_target,
                sample=None,
                published=published,
            )
            sender = RowSender(
                self.access,
                metadata,
                target.options,
                target.partitions,
                where=None,
                rows_per_second=settings.rows_per_second,
                tasks=min(self.spark.sparkContext.defaultParallelism, len(plan)),
                written=table.spans,
            )
            begun_ms = _now_ms()
            written = sum(sender.run(self.spark, plan, publish=True).values())
            has_statics = bool(metadata.static_columns)
            unless = needs_no_event(table.spans, begun_ms, _now_ms(), settings.margin_ms, has_statics=has_statics)
            found = comparison.compare(at_most=settings.max_differences, unless=F.expr(unless))
        unwritable = target.send(found.shown)
        if unwritable:
            raise _NotHealedError(_unwritable_reason(unwritable, is_mirror=settings.mirror_target is not None))
        if found.differing > len(found.shown):
            raise _NotHealedError(
                f"{found.differing:,} rows differ, and {len(found.shown):,} of them were sent: when the connector has published "
                "them, run again for the others"
            )
        return written, len(found.shown)

    def _wait_for_connector(self, table: str, target: RepairTarget, created: Sequence[str | None]) -> None:
        """Return when the connector's subscription has passed the current end of the events topic.

        Raises _NotHealedError if it takes too long.
        """
        timeout_s = self.settings.connector_timeout_s
        deadline = time.monotonic() + timeout_s
        with ResolvedTimestamps(self.options) as timestamps:
            ends = [each.end for each in timestamps.cursors(table)]
            while not is_passed(timestamps.cursors(table), ends):
                if time.monotonic() >= deadline:
                    raise _NotHealedError(
                        f"all rows were sent, but the connector has not consumed them after {timeout_s:g} s, or some became dead "
                        "letters: see cdc status, and run again"
                    )
                time.sleep(_POLL_S)
        if _creations(target) != created:
            raise _NotHealedError("the events topic was deleted and made again since the rows were sent: run again")


def is_passed(cursors: Sequence[PartitionCursor], ends: Sequence[TopicPosition]) -> bool:
    """True if a subscription has passed these ends of all partitions. False if the topic was deleted meanwhile."""
    return 0 < len(cursors) == len(ends) and all(
        cursor.consumed >= end for cursor, end in zip(cursors, ends, strict=True)
    )


def _unwritable_reason(keys: Sequence[str], *, is_mirror: bool) -> str:
    """The reason for the report. If a mirror is compared, it must have applied the deletions before the next run."""
    published = "the connector has published that" + (" and the mirror has it" if is_mirror else "")
    return (
        f"{len(keys)} deleted rows cannot be sent, because the data topic does not have their CQL keys; the first is "
        f"{keys[0]}: delete them in Cassandra again, and when {published}, run this again"
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _creations(target: RepairTarget) -> list[str | None]:
    with PulsarAdmin(target.options) as admin:
        return [admin.creation(each) for each in target.partitions]


def _left_open(table: str, gaps: Sequence[GapRecord], reason: str) -> TableResync:
    return TableResync(table=table, gaps=len(gaps), outcome=Outcome.LEFT_OPEN, reason=reason)
