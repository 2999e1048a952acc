"""The job `verify`: compares a Cassandra table with its data topic, or with a mirror of it, row by row.

A row that differs is checked again, because its change may be in flight. It is reported if it still differs and
neither side has changed between two checks. Reported rows can be repaired: they are sent through the events topic
again. The driver keeps these rows in memory, so their number is limited; the next run finds the others.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pyspark.sql import Row, SparkSession

from schemas.hidden_columns import HiddenColumns
from schemas.topics import DEFAULT_EVENTS_PREFIX
from spark_bridge.jobs.arguments import refuse_interval
from spark_bridge.jobs.batch_session import own_session
from spark_bridge.jobs.cassandra_rows import CassandraAccess, table_metadata, token_ranges
from spark_bridge.jobs.mirror_state import MirrorTables
from spark_bridge.jobs.repair import RepairTarget
from spark_bridge.jobs.table_comparison import ID, TableComparison
from spark_bridge.jobs.token_sample import TokenSample
from spark_bridge.topics.options import BridgeOptions, batch_options

__all__ = ["Difference", "Settled", "VerifyReport", "settle", "verify"]

Options = Mapping[str, str | int | bool]
_BETWEEN_LOOKS_S: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One row that differs. `key` is JSON. Write times are in microseconds; None: that side has none."""

    kind: Literal["missing", "extra", "differing"]
    key: str
    columns: tuple[str, ...]
    cassandra_writetime_us: int | None
    topic_writetime_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of a comparison. `unsettled` are keys (JSON) of rows that kept changing during the checks.

    `left_out` counts the rows that differed in the first comparison and were beyond the limit: nothing more is known
    about them. `repaired` rows were sent through the events topic again. `unrepairable` are keys (JSON) of extra rows
    whose CQL key cannot be rebuilt from the topic's key.
    """

    rows: int
    ranges: int
    differences: tuple[Difference, ...]
    unsettled: tuple[str, ...]
    left_out: int
    repaired: int
    unrepairable: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The rows of a comparison that differ and stay as they are, and those that still change; both sorted by id."""

    rows: int
    differing: tuple[Row, ...]
    moving: tuple[Row, ...]
    left_out: int


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
    max_differences: int = 100_000,
    hidden: HiddenColumns | None = None,
) -> VerifyReport:
    """Compare every row of a table with the topic's, or the mirror's below `mirror_target`.

    `sample` compares about this part of the table (0 to 1), in token ranges that are drawn at random; the same
    `sample_seed` draws the same ranges. `repair` sends the reported rows through the table's events topic again, so
    that the connector publishes the rows that Cassandra has. `hidden`: the columns that the connector hides. They are
    hidden in the same way in Cassandra's rows before the comparison. An extra row with a hidden key is unrepairable,
    because its key is not known.

    A difference is reported when both sides have stayed as they are for `settle_s`. Rows that still change `give_up_s`
    after the first comparison (and after `settle_s` at least) are reported as unsettled. No more than `max_differences`
    rows are compared again, reported and repaired. Raises ConfigError, TopicError, PulsarUnreachableError,
    EventSendError, and Spark's errors; a task that cannot read Cassandra fails with CassandraReadError.
    """
    refuse_interval("settle_s", settle_s)
    refuse_interval("give_up_s", give_up_s)
    started = time.monotonic()
    parsed = BridgeOptions.from_mapping(batch_options(options))
    metadata = table_metadata(access, keyspace, table)
    published = None if hidden is None else hidden.of(metadata)
    hides_key = published is not None and published.hides_key
    target = RepairTarget.find(parsed, access, metadata, events_prefix, hides_key=hides_key) if repair else None
    tasks = ranges or spark.sparkContext.defaultParallelism * 2
    drawn = None if sample is None else TokenSample.draw(metadata, sample, tasks, sample_seed, published)
    plan = token_ranges(tasks) if drawn is None else drawn.ranges
    if mirror_target is not None:
        MirrorTables(spark, mirror_target).refuse_none()
    with own_session(spark) as own:
        comparison = TableComparison(
            own, parsed, access, metadata, plan, mirror=mirror_target, sample=drawn, published=published
        )
        found = settle(comparison, settle_s=settle_s, give_up_s=give_up_s, at_most=max_differences)
    unrepairable = () if target is None else target.send(found.differing)
    return VerifyReport(
        rows=found.rows,
        ranges=len(plan),
        differences=tuple(map(_difference, found.differing)),
        unsettled=tuple(_key(row) for row in found.moving),
        left_out=found.left_out,
        repaired=0 if target is None else len(found.differing) - len(unrepairable),
        unrepairable=unrepairable,
        seconds=time.monotonic() - started,
    )


def settle(comparison: TableComparison, *, settle_s: float, give_up_s: float, at_most: int) -> Settled:
    """Compare until every row that differed is equal or has not changed for `settle_s`, or for `give_up_s` in all.

    The rows are compared at least once again. The time counts from the end of the first comparison, whose duration
    depends on the table's size.
    """
    began_s = time.monotonic()
    first = comparison.compare(at_most=at_most)
    first_s = time.monotonic()
    took_s = first_s - began_s
    waiting = {row[ID]: (row, first_s) for row in first.shown}
    settled: dict[str, Row] = {}
    while waiting:
        # a comparison that takes long is repeated only when differences may have settled
        time.sleep(min(settle_s, max(_BETWEEN_LOOKS_S, took_s)))
        began_s = time.monotonic()
        again = comparison.compare(list(waiting), at_most=len(waiting)).shown
        ended_s = time.monotonic()
        took_s = ended_s - began_s
        now = {row[ID]: (row, waiting[row[ID]][1] if row == waiting[row[ID]][0] else ended_s) for row in again}
        settled |= {name: row for name, (row, since_s) in now.items() if began_s - since_s >= settle_s}
        waiting = {name: each for name, each in now.items() if name not in settled}
        if began_s - first_s >= max(settle_s, give_up_s):
            break
    return Settled(
        rows=first.rows,
        differing=tuple(settled[name] for name in sorted(settled)),
        moving=tuple(waiting[name][0] for name in sorted(waiting)),
        left_out=first.differing - len(first.shown),
    )


def _key(row: Row) -> str:
    key: str = (row.cassandra or row.topic).key
    return key


def _difference(row: Row) -> Difference:
    kind: Literal["missing", "extra", "differing"] = "differing"
    if row.topic is None:
        kind = "missing"
    elif row.cassandra is None:
        kind = "extra"
    return Difference(
        kind=kind,
        key=_key(row),
        columns=tuple(row.columns or ()),
        cassandra_writetime_us=None if row.cassandra is None else row.cassandra.writetime,
        topic_writetime_us=None if row.topic is None else row.topic.writetime,
    )
