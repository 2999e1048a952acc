"""Mirror, change log, history, `fresh_table` and `as_of` of all types under a random workload with kills.

It runs by `--spark-workload` only. The workload has no TTL, because then SELECT would give other rows while it is
compared, and no `TRUNCATE`, which an archive does not have.

`CDC_TEST_STATEMENTS` and `CDC_TEST_KILLS` set the size: then there are five tables, read by both Spark lines.
`CDC_TEST_SEED` gives other statements.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

import pytest
from cassandra.cluster import Session
from pyspark.sql import SparkSession

from tests.fixtures.agent import AgentArchive
from tests.fixtures.connector import DeployConnector
from tests.servers.interface import PulsarServer
from tests.spark.workload import TABLES
from tests.spark.workload_line import Mirrors, Moment, Workload, WorkloadLine

pytestmark = pytest.mark.spark_workload

_PARTS: Final = 6
_ALTERED_AFTER: Final = (1, 3)
_MOMENTS: Final = 3
"""Parts of the statements after which `fresh_table` is compared, and at the end `as_of`."""
_EQUAL_WITHIN_S: Final = 3_600
"""Time after the last statement in which tables may differ: a run may start before all changes are published."""
_SEED: Final = int(os.environ.get("CDC_TEST_SEED") or 20261121)
_STATEMENTS: Final = int(os.environ.get("CDC_TEST_STATEMENTS") or 0)
_KILLS: Final = int(os.environ.get("CDC_TEST_KILLS") or 3)
_STEPS: Final = ("changes", "rows", "kept", "history")
"""The table to which a driver commits when it is killed, for one driver after the other."""


def workloads() -> Sequence[Workload]:
    """Two small workloads, or the one that the environment asks for."""
    if not _STATEMENTS:
        return (
            Workload(operations=1_000, keys=40, kills=1, tables=("wide", "nested")),
            Workload(operations=2_000, keys=40, kills=1, tables=("scalars", "visits", "keys")),
        )
    names = tuple(each.name for each in TABLES)
    keys = max(40, _STATEMENTS // 60)
    return (
        Workload(operations=_STATEMENTS, keys=keys, kills=_KILLS, tables=names, mode="rounds", lines=("4.1", "3.5")),
    )


MakeLine = Callable[[Workload], WorkloadLine]


@pytest.fixture
def make_line(
    cql: Session,
    keyspace: str,
    pulsar: PulsarServer,
    deploy_connector: DeployConnector,
    archive: AgentArchive,  # before the tables, because `as_of` refuses a table that is older than the archive
    keep_data_topics: None,
) -> MakeLine:
    """A function that makes tables and connectors, and runs the first tenth of the statements."""

    def make(workload: Workload) -> WorkloadLine:
        line = WorkloadLine(cql, keyspace, pulsar, workload, _SEED)
        line.create(deploy_connector)
        line.run_statements(workload.operations // 10)
        return line

    return make


class Clock:
    """Prints how long each step took."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def tell(self, what: str) -> None:
        now = time.monotonic()
        print(f"{what}: {now - self._since:,.0f} s, load {os.getloadavg()[0]:.1f}", flush=True)
        self._since = now


def deaths(workload: Workload) -> list[tuple[str, str]]:
    """For each kill: the table that the driver mirrors first, which differs, and the step in which it is killed."""
    names = workload.tables
    return [(names[number % len(names)], _STEPS[number % len(_STEPS)]) for number in range(workload.kills)]


def moments(parts: int, kills: Collection[int]) -> set[int]:
    """The parts after which `fresh_table` is compared: one of those after which the driver is killed, and others."""
    chance = random.Random(_SEED)
    killed = chance.sample(sorted(kills), min(1, len(kills)))
    others = [each for each in range(parts) if each not in killed]
    return {*killed, *chance.sample(others, _MOMENTS - len(killed))}


def check_fresh(line: WorkloadLine, mirrors: Mirrors, clock: Clock, chance: random.Random) -> Moment:
    """Compare `fresh_table` of one table with `SELECT`; a table without a mirror is left out."""
    moment = line.moment()
    name = mirrors.draw(chance)
    behind = mirrors.behind(name, moment)
    lines = mirrors.fresh_differences(name, moment)
    assert not lines, lines[:20]
    rows = len(moment.rows[name])
    clock.tell(f"fresh_table of {name} equals {rows:,} rows of SELECT; its mirror had {behind:,} differences")
    return moment


def check_archive(
    line: WorkloadLine, spark: SparkSession, archive: AgentArchive, seen: Sequence[Moment], clock: Clock
) -> None:
    """Compare `as_of` of all tables with what `SELECT` was at each moment."""
    archive.wait_for_all_writes(line.session, line.keyspace)
    clock.tell("the archive has all writes")
    for each in seen:
        lines = line.archive_differences(spark, str(archive.folder), each)
        assert not lines, lines[:20]
        clock.tell(f"as_of equals {sum(map(len, each.rows.values())):,} rows of SELECT at a moment")


def run_beside(line: WorkloadLine, mirrors: Mirrors, workload: Workload, clock: Clock) -> Sequence[Moment]:
    """Run statements while a driver follows the topics and is killed in commits; at the end, kill it at any point.

    Return the moments at which `fresh_table` was compared, and that of the end. ALTER comes after such a moment,
    because `fresh_table`, like a mirror, gets a new column with the first record that has it.
    """
    parts = max(_PARTS, workload.kills + 1)
    coming = deaths(workload)
    kills = {(number + 1) * parts // (workload.kills + 1) for number in range(workload.kills)}
    stops, chance = moments(parts, kills), random.Random(_SEED)
    seen: list[Moment] = []
    mirrors.driver.start(workload.mode, workload.tables[0])
    for part in range(parts):
        if part in stops:
            mirrors.wait_for_first()
        line.run_statements(workload.operations * 9 // 10 // parts)
        clock.tell(f"part {part} of the statements")
        if part in kills:
            _, step = coming.pop(0)
            mirrors.kill_in_commit(step)
            clock.tell(f"killed in a commit to {step}")
        if part in stops:
            seen.append(check_fresh(line, mirrors, clock, chance))
        if part in kills:
            mirrors.driver.start(workload.mode, coming[0][0] if coming else workload.tables[-1])
        if part in _ALTERED_AFTER:
            line.alter(_ALTERED_AFTER.index(part))
    published = line.wait_for_quiet_topics()
    mirrors.driver.kill()
    clock.tell(f"{published:,} records in the topics")
    return [*seen, line.moment()]


def run_after(line: WorkloadLine, mirrors: Mirrors, workload: Workload, clock: Clock) -> None:
    """Start drivers on the finished topics, kill each of them, and compare `fresh_table` if there is a mirror yet."""
    chance = random.Random(_SEED)
    for table, step in deaths(workload):
        mirrors.driver.start("once", table)
        mirrors.kill_in_commit(step)
        clock.tell(f"killed in a commit to {step}")
        if mirrors.has_first():
            check_fresh(line, mirrors, clock, chance)


def check(mirrors: Mirrors, clock: Clock) -> None:
    """Check that rows equal `SELECT`, that change logs replay to them, and that open versions equal them."""
    deadline = time.monotonic() + _EQUAL_WITHIN_S
    lines = ["nothing was compared"]
    while lines:
        assert time.monotonic() < deadline, lines[:20]
        mirrors.driver.run_to_end()
        clock.tell("run to the end")
        lines = mirrors.differences()
        print(f"{len(lines)} differences from Cassandra {lines[:5]}", flush=True)
    mirrors.check_log_and_history()
    clock.tell(f"compared, in all tables: {mirrors.counts()}")


@pytest.mark.timeout(4 * 3_600)
@pytest.mark.parametrize("workload", workloads(), ids=lambda each: f"{each.operations}-{'-'.join(each.tables)}")
def test_tables_mirrored_through_kills_equal_cassandra(
    make_line: MakeLine, spark: SparkSession, archive: AgentArchive, tmp_path: Path, workload: Workload
) -> None:
    """The first Spark line mirrors live, the second one the finished topics: rows, change log, history and
    `fresh_table` are right. So is `as_of`, which needs the first line."""
    clock = Clock()
    line = make_line(workload)
    clock.tell("the first tenth of the statements")
    for spark_line in workload.lines:
        mirrors = Mirrors(line, spark, tmp_path, spark_line)
        try:
            if spark_line == workload.lines[0]:
                seen = run_beside(line, mirrors, workload, clock)
                check(mirrors, clock)
                check_archive(line, spark, archive, seen, clock)
            else:
                run_after(line, mirrors, workload, clock)
                check(mirrors, clock)
        finally:
            mirrors.driver.stop()
        print(
            f"PySpark {spark_line}, seed {_SEED}: {workload.operations:,} statements, {workload.kills} kills",
            flush=True,
        )
