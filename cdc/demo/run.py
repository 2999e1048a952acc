"""Runs all steps of the demo in order, and measures them."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Final, Self

import psutil

from cdc.demo.job import Job, TableResult
from cdc.demo.line import Line, LineError, as_line_errors
from cdc.demo.workload import KEYSPACE, TABLES, Workload
from cdc.sandbox import SandboxOptions, artifacts
from cdc.sandbox.sandbox import Progress

__all__ = ["DemoOptions", "DemoReport", "run_demo"]

_KEYS: Final = {"customers": ["id"], "orders": ["customer", "placed_at", "number"], "products": ["sku"]}
_WAIT_S: Final = 180
_SPARK_TIMEOUT_S: Final = 900
_LOG_TAIL_CHARACTERS: Final = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The options of the demo: the line of Cassandra, the seed of the changes, and a factor for their number."""

    cassandra: str = "5.0"
    seed: int = 1
    scale: int = 1


@dataclass(slots=True, kw_only=True)
class DemoReport:
    """Figures of a run. `seconds`: by stage. `peak_rss_bytes`: the highest sum of resident memory at a stage's end."""

    changes: int = 0
    changes_by_table: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    tables: list[TableResult] = field(default_factory=list)
    peak_rss_bytes: int = 0
    load_average_1_min: float = 0.0

    @property
    def differences(self) -> list[str]:
        """All differences between Cassandra and Spark."""
        return [line for table in self.tables for line in table["differences"]]

    @property
    def total_s(self) -> float:
        """The sum of all stages, from the start of the servers to the end of the comparison."""
        return sum(self.seconds.values())

    def as_json(self) -> str:
        """The figures as one JSON object."""
        return json.dumps(asdict(self) | {"equal": not self.differences, "total_s": round(self.total_s, 1)})

    def closing_line(self) -> str:
        """The last line of the demo."""
        verdict = f"{len(self.differences):,} DIFFERENCES" if self.differences else "every row equal"
        return f"demo: {len(self.tables)} tables, {self.changes:,} changes, {verdict} ({self.total_s:.0f} s)"

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the time of a stage, and the memory at its end."""
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 2)
        self.peak_rss_bytes = max(self.peak_rss_bytes, _resident_bytes())


@as_line_errors()
def run_demo(options: DemoOptions, *, quiet: bool, on_progress: Progress) -> DemoReport:
    """Run the demo. Raises ConfigError, SandboxError and LineError. Differences raise no error: the report has them."""
    report = DemoReport()
    started = time.monotonic()
    on_progress("Spark's jars", "fetching")
    jars = artifacts.ensure("spark-avro")
    on_progress("Spark's jars", "ready")
    # Cassandra's default period of sync, 10 s: with readUnsynced, changes are read before the sync.
    servers = SandboxOptions(cassandra=options.cassandra, commitlog_sync_ms=10_000)
    line = Line(servers, on_progress=on_progress, agent_options={"readUnsynced": True})
    with line:
        report.seconds["servers and agent"] = round(time.monotonic() - started, 2)
        workload = Workload(line.session, seed=options.seed, scale=options.scale)
        with report.stage("source"):
            line.keep_data_topics()
            workload.create_schema()
            line.deploy_source(KEYSPACE, TABLES)
        with _SparkJob(line, [str(jar) for jar in jars], quiet=quiet) as job:
            with report.stage("writes"):
                on_progress("changes", "starting")
                workload.first_half()
                workload.alter()
                workload.second_half()
            report.changes, report.changes_by_table = workload.changes, workload.changes_by_table
            job.check()
            with report.stage("to the data topics, after the last write"):
                line.wait_for_events(workload.changes, _WAIT_S)
                line.wait_for_records(KEYSPACE, TABLES, _WAIT_S)
                on_progress("changes", "ready")
            with report.stage("Spark"):
                on_progress("Spark job", "starting")
                report.tables = job.results()
                on_progress("Spark job", "ready")
        report.load_average_1_min = round(os.getloadavg()[0], 2)
    return report


class _SparkJob:
    """The job in a separate process, as `spark-submit` would run it. Its log is a file. Use it in a ``with`` block.

    The job opens its session at once, during the writes, and reads the topics when :meth:`results` is called.
    """

    def __init__(self, line: Line, jars: list[str], *, quiet: bool) -> None:
        job: Job = {
            "service_url": line.sandbox.pulsar.service_url,
            "admin_url": line.sandbox.pulsar.admin_url,
            "cassandra_address": line.sandbox.node.address,
            "cassandra_port": line.sandbox.node.native_port,
            "jars": jars,
            "tables": [
                {"keyspace": KEYSPACE, "table": table, "topic": line.data_topic(KEYSPACE, table), "key": _KEYS[table]}
                for table in TABLES
            ],
        }
        job_file = line.work_dir / "job.json"
        self._result_file: Final = line.work_dir / "result.json"
        self._log_file: Final = line.work_dir / "spark.log"
        job_file.write_text(json.dumps(job))
        with self._log_file.open("wb") as log:
            self._process: Final = subprocess.Popen(
                [sys.executable, "-m", "cdc.demo.spark_job", str(job_file), str(self._result_file)],
                cwd=line.work_dir,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
                stdin=subprocess.PIPE,
                stdout=log if quiet else None,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """End the process and its JVM, if it still runs."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:
            pass

    def results(self) -> list[TableResult]:
        """Let the job read the topics, and wait for its end.

        Raises LineError if it does not end in time, or with the end of its log if it fails.
        """
        try:
            self._process.communicate(timeout=_SPARK_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise LineError(
                f"the Spark job did not end within {_SPARK_TIMEOUT_S} s; run the demo when the machine has less to do"
            ) from None
        self.check()
        found: list[TableResult] = json.loads(self._result_file.read_text())
        return found

    def check(self) -> None:
        """Raise LineError with the end of the job's log if it has failed."""
        if self._process.poll():
            tail = self._log_file.read_text(errors="replace")[-_LOG_TAIL_CHARACTERS:]
            raise LineError(
                f"the Spark job failed with exit code {self._process.returncode}; the end of its log:\n{tail}"
            )


def _resident_bytes() -> int:
    """Resident memory of this process, its children, and the servers, which run in a separate process group."""
    pids = {each.pid: each for each in psutil.Process().children(recursive=True)}
    total = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for process in pids.values():
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total
