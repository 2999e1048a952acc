"""The demo from servers up to the closing line: what is done, in order, and the figures of it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import psutil

from cdc.demo.job import Job, TableResult
from cdc.demo.line import Line, LineError
from cdc.demo.workload import KEYSPACE, TABLES, Workload
from cdc.sandbox import SandboxOptions, artifacts
from cdc.sandbox.sandbox import Progress

__all__ = ["DemoOptions", "DemoReport", "run_demo"]

_KEYS: Final = {"customers": ["id"], "orders": ["customer", "placed_at", "number"], "products": ["sku"]}
_WAIT_S: Final = 180
_SPARK_TIMEOUT_S: Final = 300
_LOG_TAIL_CHARACTERS: Final = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What can be chosen: the line of Cassandra, the seed of the changes, and how many times their usual number."""

    cassandra: str = "5.0"
    seed: int = 1
    scale: int = 1


@dataclass(slots=True, kw_only=True)
class DemoReport:
    """Figures of a run; `seconds` by stage, memory as the highest sum of resident sets that was seen."""

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
        """From the first server's start to the comparison's end."""
        return sum(self.seconds.values())

    def as_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self) | {"equal": not self.differences, "total_s": round(self.total_s, 1)})

    def closing_line(self) -> str:
        """What the demo says last."""
        verdict = f"{len(self.differences):,} DIFFERENCES" if self.differences else "every row equal"
        return f"demo: {len(self.tables)} tables, {self.changes:,} changes, {verdict} ({self.total_s:.0f} s)"

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times a stage, and looks at memory at its end."""
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 2)
        self.peak_rss_bytes = max(self.peak_rss_bytes, _resident_bytes())


def run_demo(options: DemoOptions, *, quiet: bool, on_progress: Progress) -> DemoReport:
    """Run it all. Raises ConfigError, SandboxError and LineError; a difference is no error but in the report."""
    report = DemoReport()
    started = time.monotonic()
    on_progress("Spark's jars", "fetching")
    jars = artifacts.ensure("spark-avro")
    on_progress("Spark's jars", "ready")
    line = Line(SandboxOptions(cassandra=options.cassandra), on_progress=on_progress)
    with line:
        report.seconds["servers and agent"] = round(time.monotonic() - started, 2)
        workload = Workload(line.session, seed=options.seed, scale=options.scale)
        with report.stage("connectors"):
            line.keep_data_topics()
            workload.create_schema()
            line.deploy_connectors(KEYSPACE, TABLES)
        with report.stage("writes"):
            on_progress("changes", "starting")
            workload.first_half()
            workload.alter()
            workload.second_half()
        report.changes, report.changes_by_table = workload.changes, workload.changes_by_table
        with report.stage("to the data topics, after the last write"):
            line.wait_for_events(workload.changes, _WAIT_S)
            line.wait_for_records(KEYSPACE, TABLES, _WAIT_S)
            on_progress("changes", "ready")
        with report.stage("Spark"):
            on_progress("Spark job", "starting")
            report.tables = _spark_job(line, [str(jar) for jar in jars], quiet=quiet)
            on_progress("Spark job", "ready")
        report.load_average_1_min = round(os.getloadavg()[0], 2)
    return report


def _spark_job(line: Line, jars: list[str], *, quiet: bool) -> list[TableResult]:
    """The job in a process of its own, as `spark-submit` would run it; its log goes to a file."""
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
    job_file, result_file, log_file = (line.work_dir / name for name in ("job.json", "result.json", "spark.log"))
    job_file.write_text(json.dumps(job))
    command = [sys.executable, "-m", "cdc.demo.spark_job", str(job_file), str(result_file)]
    with log_file.open("wb") as log:
        done = subprocess.run(
            command,
            cwd=line.work_dir,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.DEVNULL,
            stdout=log if quiet else None,
            stderr=log,
            timeout=_SPARK_TIMEOUT_S,
            check=False,
        )
    if done.returncode:
        tail = log_file.read_text(errors="replace")[-_LOG_TAIL_CHARACTERS:]
        raise LineError(f"the Spark job failed with exit code {done.returncode}; the end of its log:\n{tail}")
    return _results(result_file)


def _results(file: Path) -> list[TableResult]:
    results: list[TableResult] = json.loads(file.read_text())
    return results


def _resident_bytes() -> int:
    """Resident memory of this process, its children, and the servers, which run in a process group of their own."""
    pids = {each.pid: each for each in psutil.Process().children(recursive=True)}
    total = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for process in pids.values():
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total
