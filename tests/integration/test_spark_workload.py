"""Mirror, change log and history of tables of all types under a random workload, through a kill. By `--spark-workload` only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from cassandra.cluster import Session
from pyspark.sql import DataFrame, SparkSession

from cdc.demo.comparison import differences
from cdc.sandbox import artifacts
from tests.events_topic import wait_until
from tests.fix_connector import DeployConnector
from tests.fix_spark import PY4J_LEAVES_SOCKETS_OPEN
from tests.servers import PulsarServer
from tests.spark_workload import (
    ALTERATIONS,
    TABLES,
    USER_TYPE,
    MirrorDriver,
    Statements,
    WorkloadTable,
    cassandra_rows,
    commits,
    run_statements,
)

pytestmark = [pytest.mark.filterwarnings(PY4J_LEAVES_SOCKETS_OPEN), pytest.mark.spark_workload]

_PARTS = 6
_ALTERED_AFTER = (1, 3)
_EQUAL_WITHIN_S = 1_200
"""After the last kill: a run may come before the line has published everything."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """How much, and `kills`: after which part the driver dies, as soon as it commits to which table of which mirror."""

    operations: int
    kills: Mapping[int, str]
    tables: tuple[str, ...]


_SEED = 20261121
_KEYS = 40
WORKLOADS = (
    Workload(operations=1_000, kills={1: "nested/changes"}, tables=("wide", "nested")),
    Workload(operations=2_000, kills={1: "scalars/changes"}, tables=("scalars", "visits", "keys")),
)


class Line:
    """The five tables in Cassandra, their connectors, and the Spark driver that keeps their mirrors."""

    def __init__(self, session: Session, keyspace: str, spark: SparkSession, folder: Path, workload: Workload) -> None:
        self._session = session
        self._keyspace = keyspace
        self._spark = spark
        self._folder = folder
        self.workload = workload
        self.tables = tuple(each for each in TABLES if each.name in workload.tables)
        self.target = folder / "lake"
        self._statements = Statements(keyspace, self.tables, _SEED, _KEYS)

    def create(self, deploy_connector: DeployConnector) -> None:
        self._session.execute(USER_TYPE.format(ks=self._keyspace))
        for each in self.tables:
            with_cdc = " AND cdc = true" if " WITH " in each.definition else " WITH cdc = true"
            self._session.execute(f"CREATE TABLE {self._keyspace}.{each.name} {each.definition}{with_cdc}")
            deploy_connector(self._keyspace, each.name)

    def driver(self, pulsar: PulsarServer, python: str) -> MirrorDriver:
        """Not started yet; the topics are there."""
        options: dict[str, Mapping[str, str]] = {}
        for each in self.tables:
            topic = f"data-{self._keyspace}.{each.name}"
            url = f"{pulsar.admin_url}/admin/v2/schemas/public/default/{topic}/schema"
            wait_until(lambda url=url: httpx.get(url, timeout=60).is_success, f"the first record of {topic}")
            options[each.name] = {"serviceUrl": pulsar.service_url, "adminUrl": pulsar.admin_url, "topic": topic}
        jars = [str(jar) for name in ("spark-avro", "spark-delta") for jar in artifacts.ensure(name)]
        return MirrorDriver(python, {"jars": jars, "target": str(self.target), "tables": options}, self._folder)

    def run_statements(self, count: int) -> None:
        run_statements(self._session, self._statements.take(count))

    def alter(self, stage: int) -> None:
        for name, statement in ALTERATIONS[stage].items():
            if name in self.workload.tables:
                self._session.execute(statement.format(ks=self._keyspace))
        self._statements.alterations += 1

    def differences(self) -> list[str]:
        """Between Cassandra and the mirrors."""
        lines: list[str] = []
        for each in self.tables:
            wanted = cassandra_rows(self._session, f"{self._keyspace}.{each.name}")
            lines += differences(each.name, each.key, wanted, self._shown(each))
        return lines

    def check_log_and_history(self, each: WorkloadTable) -> None:
        """The change log run from empty leaves the rows of the mirror, and the open versions are these rows."""
        columns = [name for name in self._table(each, "rows").columns if not name.startswith("_cdc")]
        rows = texts(self._table(each, "rows"), columns)
        assert self._replayed(each, columns) == rows, each.name
        assert texts(self._table(each, "history").where("valid_to IS NULL"), columns) == rows, each.name

    def commits_more_to(self, place: str) -> Callable[[], bool]:
        """Whether a mirror has written to this table since now."""
        before = commits(self.target / place)
        return lambda: commits(self.target / place) > before

    def changes(self) -> int:
        return sum(self._table(each, "changes").count() for each in self.tables)

    def _table(self, each: WorkloadTable, name: str) -> DataFrame:
        return self._spark.read.format("delta").load(str(self.target / each.name / name))

    def _shown(self, each: WorkloadTable) -> list[Mapping[str, object]]:
        rows = self._table(each, "rows")
        own = [name for name in rows.columns if name.startswith("_cdc")]
        return [row.asDict(recursive=True) for row in rows.drop(*own).collect()]

    def _replayed(self, each: WorkloadTable, columns: list[str]) -> list[str]:
        """What the change log leaves when it is run from empty; each change must fit what is there."""
        images = "epoch", "step", "op", "_cdc_id", "to_json(before) old", "to_json(after) new"
        rows: dict[str, str] = {}
        for change in self._table(each, "changes").selectExpr(*images).orderBy("epoch", "step").toLocalIterator():
            assert (change.op == "insert") == (change._cdc_id not in rows), change
            assert (change.op == "delete") == (change.new is None), change
            rows.pop(change._cdc_id, None)
            if change.new is not None:
                rows[change._cdc_id] = change.new
        lines = self._spark.createDataFrame([(line,) for line in rows.values()], "line string")
        schema = self._table(each, "rows").schema
        return texts(self._spark.read.schema(schema).json(lines.rdd.map(lambda row: row.line)), columns)


def texts(rows: DataFrame, columns: list[str]) -> list[str]:
    return sorted(rows.select(columns).toJSON().collect())


MakeLine = Callable[[Workload], Line]


@pytest.fixture
def make_line(
    cql: Session,
    keyspace: str,
    spark: SparkSession,
    tmp_path: Path,
    deploy_connector: DeployConnector,
    agent: object,
    keep_data_topics: None,
) -> MakeLine:
    """Tables, connectors, and the first tenth of the statements."""

    def make(workload: Workload) -> Line:
        line = Line(cql, keyspace, spark, tmp_path, workload)
        line.create(deploy_connector)
        line.run_statements(workload.operations // 10)
        return line

    return make


def run_workload(line: Line, driver: MirrorDriver) -> None:
    """Statements while the driver runs and dies; then it runs to the end, and everything is compared."""
    workload = line.workload
    driver.start()
    try:
        for part in range(_PARTS):
            line.run_statements(workload.operations * 9 // 10 // _PARTS)
            if part in _ALTERED_AFTER:
                line.alter(_ALTERED_AFTER.index(part))
            if part in workload.kills:
                driver.wait_until(line.commits_more_to(workload.kills[part]), f"a commit to {workload.kills[part]}")
                driver.kill()
                if part < max(workload.kills):
                    driver.start()
        deadline = time.monotonic() + _EQUAL_WITHIN_S
        lines = ["nothing was compared"]
        while lines:
            assert time.monotonic() < deadline, lines[:20]
            driver.run_to_end()
            lines = line.differences()
    finally:
        driver.stop()
    for each in line.tables:
        line.check_log_and_history(each)


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda each: "-".join(each.tables))
def test_tables_mirrored_through_a_kill_equal_cassandra(
    make_line: MakeLine, pulsar: PulsarServer, workload: Workload
) -> None:
    """Rows are `SELECT`'s, the change log run from empty leaves them, open versions are them."""
    line = make_line(workload)
    run_workload(line, line.driver(pulsar, sys.executable))
    print(f"seed {_SEED}: {workload.operations:,} statements, {line.changes():,} changes logged")
