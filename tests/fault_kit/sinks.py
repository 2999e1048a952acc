"""Compares keyed sinks with Cassandra after faults, truncations and drops of tables whose rows are written and removed.

SELECT == mirror == last record of each key of `rows-` == replayed `changes-` == a JDBC sink's table == folded data topic
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc.commands.spark_session import open_session
from schemas.errors import CdcError
from spark_bridge.jobs.mirror import changelog
from spark_bridge.jobs.publish import publish
from tests.fault_kit.completeness import KINDS
from tests.fault_kit.line import FaultLine
from tests.fault_kit.oracle.cassandra_rows import Stored, select_all, table_shape
from tests.fault_kit.oracle.comparison import compare
from tests.fault_kit.oracle.folding import TableShape, fold
from tests.fault_kit.oracle.keyed_rows import Rows, differences, last_of_each_key, mirrored, replayed, selected
from tests.fault_kit.oracle.topics import TopicReader
from tests.fault_kit.plan import draw_short_plan
from tests.fault_kit.sessions import make_tables_and_start_agents, session_of
from tests.fault_kit.settle import settle
from tests.fault_kit.sink_workload import FLAT_TABLE, KEYSPACE, LONGEST_TTL_S, TABLES, SinkWorkload, table_statements
from tests.fault_kit.strikes import Strikes
from tests.topics.jdbc_sink import jdbc_sink

if TYPE_CHECKING:
    from spark_bridge.jobs.publish_state import Kind

__all__ = ["SinkOptions", "SinkReport", "run_sinks"]

_TOPICS: Final = "persistent://public/default/"
_BOTH: Final[Mapping[Kind, None]] = {"rows": None, "changes": None}
_COLUMNS: Final = {"pk": "INTEGER", "ck": "TEXT", "n": "BIGINT", "v": "TEXT"}
_PAUSE_S: Final = 1.0
_SETTLE_S: Final = 600.0
_COMPARISONS: Final = 4
_SINK_S: Final = 180.0
_LATE_S: Final = 5.0
# Faults between two truncations, and between two drops of a table, which is created again.
_TRUNCATION_EVERY: Final = 3
_LIFE_EVERY: Final = 5

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """`faults`: the number of faults; `rate`: statements a second."""

    seed: int
    folder: Path
    faults: int
    nodes: int = 2
    rate: float = 30.0


@dataclass(slots=True, kw_only=True)
class SinkReport:
    """`wrong` has a line for each difference. `failed_runs`: runs of Spark that ended with an error; the next run
    repeats them. `lives`: how often a table was dropped and created again."""

    seed: int
    faults: int = 0
    truncations: int = 0
    lives: int = 0
    sent: int = 0
    failed_statements: int = 0
    runs: int = 0
    failed_runs: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Return whether everything is equal, and there was something to compare."""
        return not self.wrong and all(self.rows.values()) and self.sent > 0 and self.runs > 0

    def lines(self) -> list[str]:
        """The report as text lines."""
        return [
            f"seed {self.seed}: {self.faults} faults, {self.truncations} truncations, {self.lives} times dropped and made again;"
            f" {self.sent} statements, {self.failed_statements} failed",
            f"{self.runs} runs of mirror, change log and publish, {self.failed_runs} failed and were repeated",
            f"rows {self.rows}, records {self.records}: " + ("all equal" if self.is_good else "NOT equal"),
            *self.wrong,
        ]


def run_sinks(options: SinkOptions, *, say: Say) -> SinkReport:
    """Start everything, strike faults, publish, compare, and stop. Raises FaultRunError and SandboxError when a part
    does not start."""
    report = SinkReport(seed=options.seed)
    shutil.rmtree(options.folder, ignore_errors=True)  # of an earlier run with this seed
    options.folder.mkdir(parents=True)
    line = FaultLine(
        nodes=options.nodes,
        cassandra="5.0",
        folder=options.folder,
        on_progress=lambda name, step: say(f"{name}: {step}"),
    )
    with line:
        make_tables_and_start_agents(line, table_statements(options.nodes))
        line.deploy_source({"expiry.publish": True})
        with _SparkRuns(line, options.folder, report, say) as spark:
            with SinkWorkload(line.contact, options.seed, rate=options.rate) as workload:
                _strike(line, workload, options, report, say)
            workload.write_last_rows()
            report.sent, report.failed_statements = workload.sent, workload.failed
            spark.stop()
            settle(line, _SETTLE_S)
            time.sleep(LONGEST_TTL_S + _LATE_S)  # until then rows expire
            _compare(line, spark, options, report, say)
    return report


class _SparkRuns:
    """Updates the mirrors and their change logs, and publishes both, again and again in a thread and on request."""

    def __init__(self, line: FaultLine, folder: Path, report: SinkReport, say: Say) -> None:
        self._line: Final = line
        self._folder: Final = folder
        self._report: Final = report
        self._say: Final = say
        self._stop: Final = threading.Event()
        self._pool: Final = ThreadPoolExecutor(1, thread_name_prefix="spark")
        self._running: Future[None] | None = None
        self._session: SparkSession | None = None

    def __enter__(self) -> Self:
        self._session = open_session((), None)
        self._running = self._pool.submit(self._run)
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            self.stop()
        finally:
            if self._session is not None:
                self._session.stop()

    def stop(self) -> None:
        """End the thread after its current run. Raises the error that ended it earlier."""
        self._stop.set()
        self._pool.shutdown()
        if self._running is not None:
            self._running.result()

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE_S):
            for table in TABLES:
                try:
                    self.bring_up(table)
                except (CdcError, PySparkException, Py4JError) as error:
                    self._report.failed_runs += 1
                    self._say(f"{table}: {str(error).splitlines()[0][:300]}")

    def bring_up(self, table: str) -> None:
        """Bring the mirror, its change log and both topics to the data topic's end."""
        assert self._session is not None
        pulsar = self._line.sandbox.pulsar
        options = {
            "serviceUrl": pulsar.service_url,
            "adminUrl": pulsar.admin_url,
            "topic": f"{_TOPICS}data-{KEYSPACE}.{table}",
            "operationTimeoutSeconds": "10",
        }
        target = str(self._folder / f"mirror-{table}")
        changelog(self._session, options, target)
        publish(self._session, options, target, _BOTH)
        self._report.runs += 1

    def rows(self, shape: TableShape) -> Rows:
        """The rows of the mirror."""
        assert self._session is not None
        rows = self._session.read.format("delta").load(str(self._folder / f"mirror-{shape.name}" / "rows"))
        return mirrored(shape, [each.asDict(recursive=True) for each in rows.collect()])


def _strike(line: FaultLine, workload: SinkWorkload, options: SinkOptions, report: SinkReport, say: Say) -> None:
    strikes = Strikes(line, lambda: None, lambda fault, text: say(f"{fault} {text}"))
    plan = draw_short_plan(options.seed, KINDS, options.faults, nodes=options.nodes, pace_s=5.0)
    for number, fault in enumerate(plan, start=1):
        time.sleep(fault.pause_s)
        try:
            strikes.strike(fault)
        except CdcError as error:
            say(f"{fault}: {error}")
        report.faults += 1
        if number % _TRUNCATION_EVERY == 0:
            workload.truncate(TABLES[report.truncations % len(TABLES)])
            report.truncations += 1
        if number % _LIFE_EVERY == 0:
            workload.recreate()
            report.lives += 1


def _compare(line: FaultLine, spark: _SparkRuns, options: SinkOptions, report: SinkReport, say: Say) -> None:
    """Compare all tables. Repeat it after a moment if there are differences: hints may still be in flight."""
    for attempt in range(1, _COMPARISONS + 1):
        settle(line, _SETTLE_S)
        for table in TABLES:
            spark.bring_up(table)
        report.wrong = []
        with (
            session_of(line) as session,
            TopicReader(line.sandbox.pulsar.service_url, line.sandbox.pulsar.admin_url) as topics,
        ):
            shapes = {table: table_shape(session, KEYSPACE, table) for table in TABLES}
            stored = {table: select_all(session, KEYSPACE, shape) for table, shape in shapes.items()}
            for table, shape in shapes.items():
                _compare_table(topics, shape, stored[table], spark.rows(shape), report)
        if not report.wrong or attempt == _COMPARISONS:
            break
        say(f"attempt {attempt}: {len(report.wrong)} differences, such as {report.wrong[0]}")
        time.sleep(_LATE_S)
    flat = selected(shapes[FLAT_TABLE], stored[FLAT_TABLE])
    report.wrong += _sink_differences(line, flat, options.folder)


def _compare_table(topics: TopicReader, shape: TableShape, stored: Stored, mirror: Rows, report: SinkReport) -> None:
    table = shape.name
    wanted = selected(shape, stored)
    report.rows[table] = len(wanted)
    report.wrong += differences(f"mirror of {table}", wanted, mirror)
    rows = list(topics.data_records(f"{_TOPICS}rows-{KEYSPACE}.{table}"))
    report.wrong += differences(f"rows-{table}", wanted, last_of_each_key(shape, rows))
    changes = list(topics.data_records(f"{_TOPICS}changes-{KEYSPACE}.{table}"))
    left, problems = replayed(shape, changes)
    report.wrong += problems[:5] + differences(f"changes-{table}", wanted, left)
    records = list(topics.data_records(f"{_TOPICS}data-{KEYSPACE}.{table}"))
    clearings = [each for each in topics.clearings("cdc-events-schema-changes") if each.table == f"{KEYSPACE}.{table}"]
    found = compare(shape, stored, fold(shape, records, clearings=clearings))
    report.wrong += [f"data-{table}: {each}" for each in found.differences[:5]]
    report.records[table] = len(records)
    report.records[f"rows-{table}"] = len(rows)
    report.records[f"changes-{table}"] = len(changes)


def _sink_differences(line: FaultLine, flat: Rows, folder: Path) -> list[str]:
    """The differences of Pulsar's own JDBC sink, which reads `rows-` from its beginning."""
    wanted = sorted((*pk, *ck, *row.values()) for (pk, ck), row in flat.items())
    topic = f"rows-{KEYSPACE}.{FLAT_TABLE}"
    with jdbc_sink(line.sandbox.pulsar, topic, _COLUMNS, ("pk", "ck"), folder) as rows:
        deadline = time.monotonic() + _SINK_S
        while rows() != wanted:
            if time.monotonic() > deadline:
                return [f"sink of rows-{FLAT_TABLE}: it has {len(rows())} rows, Cassandra {len(wanted)}: {rows()[:5]}"]
            time.sleep(_PAUSE_S)
    return []
