"""The tables of the Spark workload from Cassandra to mirrors: their creation, waiting for them, and comparisons."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cassandra.cluster import Session
from pyspark.sql import DataFrame, SparkSession

from cdc.demo.comparison import differences
from cdc.rest import rest
from spark_bridge.spark_line import LINE
from tests.fixtures.connector import DeployConnector
from tests.servers.interface import PulsarServer
from tests.spark.environment import ensure_python, line_jars
from tests.spark.workload import (
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
from tests.topics.events_topic import wait_until

__all__ = ["Mirrors", "Workload", "WorkloadLine"]

_QUIET_S: Final = 20
"""Topics that have not grown for this time usually have all changes. A comparison finds changes that are missing."""
_PUBLISHED_WITHIN_S: Final = 5_400


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The size of a workload. `keys`: keys of a table; few keys let many statements be for the same row. `kills`: kills
    of each driver.

    `mode`: the mode of the driver during the workload (see `tests/spark/workload_driver.py`). `lines`: lines of Spark,
    which are used one after the other.
    """

    operations: int
    keys: int
    kills: int
    tables: tuple[str, ...]
    mode: str = "follow"
    lines: tuple[str, ...] = ("4.1",)


class WorkloadLine:
    """The tables in Cassandra and their connectors."""

    def __init__(self, session: Session, keyspace: str, pulsar: PulsarServer, workload: Workload, seed: int) -> None:
        self.session = session
        self.keyspace = keyspace
        self._pulsar = pulsar
        self.tables = tuple(each for each in TABLES if each.name in workload.tables)
        self._statements = Statements(keyspace, self.tables, seed, workload.keys)

    def create(self, deploy_connector: DeployConnector) -> None:
        """Create the tables, and a connector for each."""
        self.session.execute(USER_TYPE.format(ks=self.keyspace))
        for each in self.tables:
            with_cdc = " AND cdc = true" if " WITH " in each.definition else " WITH cdc = true"
            self.session.execute(f"CREATE TABLE {self.keyspace}.{each.name} {each.definition}{with_cdc}")
            deploy_connector(self.keyspace, each.name)

    def run_statements(self, count: int) -> None:
        """Run the next `count` statements."""
        run_statements(self.session, self._statements.take(count))

    def alter(self, stage: int) -> None:
        """Run the statements of ALTERATIONS of this stage. Later statements use the new columns."""
        for name, statement in ALTERATIONS[stage].items():
            if any(each.name == name for each in self.tables):
                self.session.execute(statement.format(ks=self.keyspace))
        self._statements.alterations += 1

    def reader_options(self) -> Mapping[str, Mapping[str, str]]:
        """Wait for the first record of each topic, and return the reader's options by table."""
        options: dict[str, Mapping[str, str]] = {}
        for each in self.tables:
            topic = f"data-{self.keyspace}.{each.name}"
            url = f"{self._pulsar.admin_url}/admin/v2/schemas/public/default/{topic}/schema"
            wait_until(lambda url=url: rest().get(url).is_success, f"the first record of {topic}")
            options[each.name] = {
                "serviceUrl": self._pulsar.service_url,
                "adminUrl": self._pulsar.admin_url,
                "topic": topic,
            }
        return options

    def wait_for_quiet_topics(self) -> int:
        """Wait until no data topic grows any more, and return the number of published records."""
        published, since, deadline = -1, time.monotonic(), time.monotonic() + _PUBLISHED_WITHIN_S
        while time.monotonic() - since < _QUIET_S:
            assert time.monotonic() < deadline, f"the topics still grow: {published} records"
            time.sleep(1)
            if (found := sum(map(self._published, self.tables))) != published:
                published, since = found, time.monotonic()
        return published

    def _published(self, table: WorkloadTable) -> int:
        topic = f"persistent/public/default/data-{self.keyspace}.{table.name}"
        stats = rest().get(f"{self._pulsar.admin_url}/admin/v2/{topic}/stats").raise_for_status()
        return int(stats.json()["msgInCounter"])


class Mirrors:
    """The mirrors of one line of Spark, below a folder, and the driver that updates them."""

    def __init__(self, line: WorkloadLine, spark: SparkSession, folder: Path, spark_line: str) -> None:
        self._line = line
        self._spark = spark
        self._target = folder / f"lake-{spark_line}"
        job = {
            "jars": [str(jar) for jar in line_jars(spark_line)],
            "target": str(self._target),
            "tables": line.reader_options(),
        }
        python = sys.executable if spark_line == LINE else str(ensure_python(spark_line))
        self.driver = MirrorDriver(python, job, folder / f"driver-{spark_line}")

    def kill_in_commit(self, table: str) -> None:
        """Kill the driver as soon as it commits to this table (`changes`, `rows`, ...) of any mirror."""
        before = commits(self._target, table)
        self.driver.wait_until(lambda: commits(self._target, table) > before, f"a commit to {table}")
        self.driver.kill()

    def differences(self) -> list[str]:
        """The differences between Cassandra and the mirrors."""
        lines: list[str] = []
        for each in self._line.tables:
            wanted = cassandra_rows(self._line.session, f"{self._line.keyspace}.{each.name}")
            lines += differences(each.name, each.key, wanted, self._shown(each))
        return lines

    def check_log_and_history(self) -> None:
        """Check that replayed change logs give the rows of the mirrors, and that open versions are these rows."""
        for each in self._line.tables:
            columns = [name for name in self._table(each, "rows").columns if not name.startswith("_cdc")]
            rows = _texts(self._table(each, "rows"), columns)
            assert _differing(self._replayed(each, columns), rows) == [], f"{each.name}: change log, then mirror"
            versions = _texts(self._table(each, "history").where("valid_to IS NULL"), columns)
            assert _differing(versions, rows) == [], f"{each.name}: history, then mirror"

    def counts(self) -> Mapping[str, int]:
        """The number of rows of all mirrors together, for `rows`, `changes` and `history`."""
        names = "rows", "changes", "history"
        return {name: sum(self._table(each, name).count() for each in self._line.tables) for name in names}

    def _table(self, each: WorkloadTable, name: str) -> DataFrame:
        return self._spark.read.format("delta").load(str(self._target / each.name / name))

    def _shown(self, each: WorkloadTable) -> list[Mapping[str, object]]:
        rows = self._table(each, "rows")
        own = [name for name in rows.columns if name.startswith("_cdc")]
        return [row.asDict(recursive=True) for row in rows.drop(*own).collect()]

    def _replayed(self, each: WorkloadTable, columns: Sequence[str]) -> list[str]:
        """The rows that the change log gives when it is replayed from empty. Each change must fit the rows before
        it."""
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
        return _texts(self._spark.read.schema(schema).json(lines.rdd.map(lambda row: row.line)), columns)


def _texts(rows: DataFrame, columns: Sequence[str]) -> list[str]:
    return sorted(rows.select(*columns).toJSON().collect())


def _differing(some: Sequence[str], others: Sequence[str]) -> list[tuple[str, ...]]:
    """The first lines of each that the other does not have; empty if both are equal."""
    if some == others:
        return []
    return [tuple(sorted(set(some) - set(others))[:5]), tuple(sorted(set(others) - set(some))[:5])]
