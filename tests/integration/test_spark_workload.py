"""Mirror, change log and history of all types under a random workload with kills. Runs by `--spark-workload` only.

`CDC_TEST_STATEMENTS` and `CDC_TEST_KILLS` set the size: then there are five tables, read by both Spark lines.
`CDC_TEST_SEED` gives other statements.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest
from cassandra.cluster import Session
from pyspark.sql import SparkSession

from tests.fixtures.connector import DeployConnector
from tests.servers.interface import PulsarServer
from tests.spark.workload import TABLES
from tests.spark.workload_line import Mirrors, Workload, WorkloadLine

pytestmark = pytest.mark.spark_workload

_PARTS: Final = 6
_ALTERED_AFTER: Final = (1, 3)
_EQUAL_WITHIN_S: Final = 3_600
"""Time after the last statement in which tables may differ: a run may start before all changes are published."""
_SEED: Final = int(os.environ.get("CDC_TEST_SEED") or 20261121)
_STATEMENTS: Final = int(os.environ.get("CDC_TEST_STATEMENTS") or 0)
_KILLS: Final = int(os.environ.get("CDC_TEST_KILLS") or 3)
_STEPS: Final = ("changes", "rows", "records", "history")
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
    agent: object,
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


def run_beside(line: WorkloadLine, mirrors: Mirrors, workload: Workload, clock: Clock) -> None:
    """Run statements while a driver follows the topics and is killed in commits; at the end, kill it at any point."""
    parts = max(_PARTS, workload.kills + 1)
    coming = deaths(workload)
    kills = {(number + 1) * parts // (workload.kills + 1) for number in range(workload.kills)}
    mirrors.driver.start(workload.mode, workload.tables[0])
    for part in range(parts):
        line.run_statements(workload.operations * 9 // 10 // parts)
        clock.tell(f"part {part} of the statements")
        if part in _ALTERED_AFTER:
            line.alter(_ALTERED_AFTER.index(part))
        if part in kills:
            _, step = coming.pop(0)
            mirrors.kill_in_commit(step)
            mirrors.driver.start(workload.mode, coming[0][0] if coming else workload.tables[-1])
            clock.tell(f"killed in a commit to {step}")
    published = line.wait_for_quiet_topics()
    mirrors.driver.kill()
    clock.tell(f"{published:,} records in the topics")


def run_after(mirrors: Mirrors, workload: Workload, clock: Clock) -> None:
    """Start drivers on the finished topics, and kill each of them."""
    for table, step in deaths(workload):
        mirrors.driver.start("once", table)
        mirrors.kill_in_commit(step)
        clock.tell(f"killed in a commit to {step}")


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
    make_line: MakeLine, spark: SparkSession, tmp_path: Path, workload: Workload
) -> None:
    """The first Spark line mirrors live, the second one the finished topics: rows, change log and history are right."""
    clock = Clock()
    line = make_line(workload)
    clock.tell("the first tenth of the statements")
    for spark_line in workload.lines:
        mirrors = Mirrors(line, spark, tmp_path, spark_line)
        try:
            if spark_line == workload.lines[0]:
                run_beside(line, mirrors, workload, clock)
            else:
                run_after(mirrors, workload, clock)
            check(mirrors, clock)
        finally:
            mirrors.driver.stop()
        print(
            f"PySpark {spark_line}, seed {_SEED}: {workload.operations:,} statements, {workload.kills} kills",
            flush=True,
        )
