"""The tables of the Spark workload from Cassandra to mirrors: their creation, waiting for them, and comparisons."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cassandra.cluster import Session
from pyspark.sql import DataFrame, SparkSession

from cdc.demo.comparison import differences
from cdc.rest import rest
from spark_bridge import as_of, fresh_table, wait_until_complete
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

__all__ = ["Mirrors", "Moment", "Workload", "WorkloadLine"]

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


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A moment without running statements. `time_us`: all earlier write times are at or before it, all later ones
    after it. `rows`: what SELECT returned, by table."""

    time_us: int
    rows: Mapping[str, Sequence[Mapping[str, object]]]


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

    def moment(self) -> Moment:
        """This moment. No statement may be running."""
        rows = {each.name: cassandra_rows(self.session, f"{self.keyspace}.{each.name}") for each in self.tables}
        found = Moment(time_us=time.time_ns() // 1000, rows=rows)
        time.sleep(0.01)  # the write times of later statements, which are from this clock, too, are greater
        return found

    def archive_differences(self, spark: SparkSession, archive_url: str, moment: Moment) -> list[str]:
        """The differences between SELECT at this moment and `as_of`. The archive must have everything before it."""
        lines: list[str] = []
        for each in self.tables:
            options = {"archiveUrl": archive_url, "table": f"{self.keyspace}.{each.name}"}
            found = _own_rows(as_of(spark, options, moment.time_us))
            lines += differences(each.name, each.key, moment.rows[each.name], found)
        return lines

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
        self._spark_line = spark_line
        self._drawn: set[str] = set()
        self._target = folder / f"lake-{spark_line}"
        self._options = line.reader_options()
        job = {
            "jars": [str(jar) for jar in line_jars(spark_line)],
            "target": str(self._target),
            "tables": self._options,
        }
        python = sys.executable if spark_line == LINE else str(ensure_python(spark_line))
        self.driver = MirrorDriver(python, job, folder / f"driver-{spark_line}")

    def kill_in_commit(self, table: str) -> None:
        """Kill the driver as soon as it commits to this table (`changes`, `rows`, `kept`, ...) of any mirror."""
        before = commits(self._target, table)
        self.driver.wait_until(lambda: bool(commits(self._target, table) - before), f"a commit to {table}")
        self.driver.kill()

    def wait_for_first(self) -> None:
        """Wait until the driver has made the rows of a mirror."""
        self.driver.wait_until(self.has_first, "a mirror")

    def has_first(self) -> bool:
        """Whether the mirror of any table has rows."""
        return bool(commits(self._target, "rows"))

    def draw(self, chance: random.Random) -> str:
        """Draw a table whose mirror has rows, if possible one that was not drawn yet."""
        mirrored = [each.name for each in self._line.tables if commits(self._target, "rows", each.name)]
        name = chance.choice([each for each in mirrored if each not in self._drawn] or mirrored)
        self._drawn.add(name)
        return name

    def fresh_differences(self, name: str, moment: Moment) -> list[str]:
        """The differences between SELECT at this moment and `fresh_table` of this table, which must have a mirror.

        It waits for the resolved timestamp to reach the moment. There may be no later statements. On another line of
        Spark, no driver may run.
        """
        options = self._options[name]
        wait_until_complete(
            self._spark, options, until=datetime.fromtimestamp(moment.time_us / 1e6, UTC), timeout_s=_PUBLISHED_WITHIN_S
        )
        if self._spark_line == LINE:
            rows = fresh_table(self._spark, options, str(self._target / name))
        else:
            self.driver.write_fresh(name)
            rows = self._spark.read.parquet(f"{self._target}-fresh")
        return self._differences_at(moment, name, rows)

    def behind(self, name: str, moment: Moment) -> int:
        """The number of differences between SELECT at this moment and the mirror of this table as it is now."""
        table = next(each for each in self._line.tables if each.name == name)
        return len(self._differences_at(moment, name, self._table(table, "rows")))

    def _differences_at(self, moment: Moment, name: str, rows: DataFrame) -> list[str]:
        table = next(each for each in self._line.tables if each.name == name)
        return differences(name, table.key, moment.rows[name], _own_rows(rows))

    def differences(self) -> list[str]:
        """The differences between Cassandra and the mirrors."""
        lines: list[str] = []
        for each in self._line.tables:
            wanted = cassandra_rows(self._line.session, f"{self._line.keyspace}.{each.name}")
            lines += differences(each.name, each.key, wanted, _own_rows(self._table(each, "rows")))
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


def _own_rows(rows: DataFrame) -> list[Mapping[str, object]]:
    """The rows without the columns that a mirror adds."""
    added = [name for name in rows.columns if name.startswith("_cdc")]
    return [row.asDict(recursive=True) for row in rows.drop(*added).collect()]


def _texts(rows: DataFrame, columns: Sequence[str]) -> list[str]:
    return sorted(rows.select(*columns).toJSON().collect())


def _differing(some: Sequence[str], others: Sequence[str]) -> list[tuple[str, ...]]:
    """The first lines of each that the other does not have; empty if both are equal."""
    if some == others:
        return []
    return [tuple(sorted(set(some) - set(others))[:5]), tuple(sorted(set(others) - set(some))[:5])]
