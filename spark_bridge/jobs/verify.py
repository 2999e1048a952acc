"""The job `verify`: compares a Cassandra table with its data topic, or with a mirror of it, row by row.

A row that differs is looked at again, for it may have been on its way: it is reported when it stays different and
neither side has moved between two looks. What is reported may be repaired: sent through the events topic again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pyspark.sql import Row, SparkSession

from schemas.topics import DEFAULT_EVENTS_PREFIX
from spark_bridge.jobs.cassandra_rows import CassandraAccess, table_metadata, token_ranges
from spark_bridge.jobs.repair import RepairTarget
from spark_bridge.jobs.table_comparison import ID, TableComparison
from spark_bridge.jobs.token_sample import TokenSample
from spark_bridge.topics.options import BridgeOptions, option_texts

__all__ = ["Difference", "VerifyReport", "verify"]

Options = Mapping[str, str | int | bool]
_BETWEEN_LOOKS_S: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One row. `key` is JSON; write times are microseconds, null where that side has none."""

    kind: Literal["missing", "extra", "differing"]
    key: str
    columns: tuple[str, ...]
    cassandra_writetime_us: int | None
    topic_writetime_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What was compared and what differs. `unsettled` rows went on changing while they were looked at.

    `repaired` rows were sent through the events topic again; `unrepairable` are keys (JSON) of extra rows whose CQL key
    cannot be told from the topic's.
    """

    rows: int
    ranges: int
    differences: tuple[Difference, ...]
    unsettled: int
    repaired: int
    unrepairable: tuple[str, ...]
    seconds: float


def verify(
    spark: SparkSession,
    options: Options,
    access: CassandraAccess,
    keyspace: str,
    table: str,
    *,
    mirror_target: str | None = None,
    ranges: int | None = None,
    sample: float | None = None,
    sample_seed: int | None = None,
    repair: bool = False,
    events_prefix: str = DEFAULT_EVENTS_PREFIX,
    settle_s: float = 30,
    give_up_s: float = 600,
) -> VerifyReport:
    """Compare every row of a table with the topic's, or the mirror's below `mirror_target`.

    `sample` compares about this part of the table (0 to 1), in token ranges drawn at random, by `sample_seed` the same
    ones again. `repair` sends the rows that are
    reported through the table's events topic again, so that the connector publishes what Cassandra has.
    A difference is reported when both sides have stayed as they are for `settle_s`; after `give_up_s` rows that still
    move are left as unsettled. Raises ConfigError, TopicError, PulsarUnreachableError, EventSendError, and Spark's errors; a
    task that cannot read Cassandra fails with CassandraReadError.
    """
    started = time.monotonic()
    parsed = BridgeOptions.from_mapping(option_texts(options))
    metadata = table_metadata(access, keyspace, table)
    target = RepairTarget.find(parsed, access, metadata, events_prefix) if repair else None
    tasks = ranges or spark.sparkContext.defaultParallelism * 2
    drawn = None if sample is None else TokenSample.draw(metadata, sample, tasks, sample_seed)
    plan = token_ranges(tasks) if drawn is None else drawn.ranges
    comparison = TableComparison(spark, parsed, access, metadata, plan, mirror=mirror_target, sample=drawn)
    rows, settled, unsettled = _settled(comparison, started, settle_s, give_up_s)
    unrepairable = () if target is None else target.send(settled)
    return VerifyReport(
        rows=rows,
        ranges=len(plan),
        differences=tuple(map(_difference, settled)),
        unsettled=unsettled,
        repaired=0 if target is None else len(settled) - len(unrepairable),
        unrepairable=unrepairable,
        seconds=time.monotonic() - started,
    )


def _settled(
    comparison: TableComparison, started: float, settle_s: float, give_up_s: float
) -> tuple[int, list[Row], int]:
    """Rows compared, those that differ and stay so, by their ids, and how many still move."""
    rows, found = comparison.differing()
    seen_at = time.monotonic()
    waiting = {row[ID]: (row, seen_at) for row in found}
    settled: dict[str, Row] = {}
    while waiting and time.monotonic() - started < give_up_s:
        time.sleep(min(settle_s, _BETWEEN_LOOKS_S))
        _, again = comparison.differing(list(waiting))
        seen_at = time.monotonic()
        now = {row[ID]: (row, waiting[row[ID]][1] if row == waiting[row[ID]][0] else seen_at) for row in again}
        settled |= {name: row for name, (row, since) in now.items() if seen_at - since >= settle_s}
        waiting = {name: each for name, each in now.items() if name not in settled}
    return rows, [settled[name] for name in sorted(settled)], len(waiting)


def _difference(row: Row) -> Difference:
    cassandra, topic = row.cassandra, row.topic
    if cassandra is None or topic is None:
        columns: tuple[str, ...] = ()
    else:
        ours, theirs = cassandra.content.asDict(), topic.content.asDict()
        columns = tuple(name for name in ours if ours[name] != theirs[name])
    kind: Literal["missing", "extra", "differing"] = "differing"
    if topic is None:
        kind = "missing"
    elif cassandra is None:
        kind = "extra"
    return Difference(
        kind=kind,
        key=(cassandra or topic).key,
        columns=columns,
        cassandra_writetime_us=None if cassandra is None else cassandra.writetime,
        topic_writetime_us=None if topic is None else topic.writetime,
    )
