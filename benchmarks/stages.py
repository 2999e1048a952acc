"""Measures the rate of every stage and the cost of the whole demo, each with the machine's load: `make bench`.

It is one run with real servers and one table as in the published figures of other systems (text and int key, five
columns). The backlog is written first. Then each stage drains it alone, so that other stages do not affect its figures.

    python -m benchmarks.stages [--rows 30000] [--no-demo] [--rival-agent JAR] [--json]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
import psutil
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args

from benchmarks.delay import write_to_publish
from benchmarks.rival import WITHOUT_RIVAL, measure_rival
from cdc.demo.line import Line
from cdc.demo.spark_job import local_session
from cdc.progress import progress_display
from cdc.sandbox import SandboxOptions, artifacts
from cdc.schema_source import fetch_schema
from change_agent.commitlog.reader import SegmentReader
from change_agent.db.mutation import MutationDecoder
from change_agent.errors import UnknownTableError
from schemas.system_schema import tables_of

_KEYSPACE: Final = "bench"
_TABLE: Final = "rows"
_WAIT_S: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The figures of one stage: items, time, CPU, memory, and the machine's load."""

    stage: str
    items: int
    unit: str
    seconds: float
    cpu_seconds: float
    rss_bytes: int
    load_average_1_min: float

    @property
    def line(self) -> str:
        """The figures as a text line."""
        return (
            f"{self.stage:<28} {self.items / self.seconds:>10,.0f} {self.unit}/s"
            f"{1e6 * self.cpu_seconds / self.items:>9,.0f} us CPU each{self.rss_bytes / 2**20:>8,.0f} MiB"
            f"   load {self.load_average_1_min:.1f}"
        )


class Stopwatch:
    """Measures wall clock and CPU of some processes from now on, and their resident memory at the end."""

    def __init__(self, processes: Iterable[psutil.Process]) -> None:
        self._processes = list(processes)
        self._cpu_s = self._cpu()
        self._started = time.monotonic()

    def stop(self, stage: str, items: int, unit: str) -> Measurement:
        """The measurement up to now."""
        return Measurement(
            stage=stage,
            items=items,
            unit=unit,
            seconds=round(time.monotonic() - self._started, 3),
            cpu_seconds=round(self._cpu() - self._cpu_s, 3),
            rss_bytes=sum(process.memory_info().rss for process in self._processes),
            load_average_1_min=round(os.getloadavg()[0], 2),
        )

    def _cpu(self) -> float:
        times = [process.cpu_times() for process in self._processes]
        return sum(each.user + each.system for each in times)


def _write_backlog(session: Session, rows: int) -> None:
    session.execute(
        f"CREATE KEYSPACE {_KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )
    session.execute(
        f"CREATE TABLE {_KEYSPACE}.{_TABLE} (pk text, ck int, a text, b text, c int, d bigint, e double,"
        " PRIMARY KEY (pk, ck)) WITH cdc = true"
    )
    insert = session.prepare(f"INSERT INTO {_KEYSPACE}.{_TABLE} (pk, ck, a, b, c, d, e) VALUES (?, ?, ?, ?, ?, ?, ?)")
    values = ((f"key-{i:08}", i % 7, "a" * 40, f"value {i}", i, i * i, i / 3) for i in range(rows))
    execute_concurrent_with_args(session, insert, values, concurrency=64)


def _decode(line: Line) -> Measurement:
    """Decode all of cdc_raw, in this process and thread, without publishing."""
    node = line.sandbox.node
    decoder = MutationDecoder(tables_of(fetch_schema((node.address, node.native_port))))
    watch, mutations = Stopwatch([psutil.Process()]), 0
    for segment in sorted(node.cdc_raw.glob("*.log")):
        with SegmentReader(segment) as reader:
            for entry in reader.read():
                try:
                    decoder.decode(entry.payload, reader.descriptor.version)
                except UnknownTableError:  # a table that a later schema change dropped
                    continue
                mutations += 1
    return watch.stop("decode, one thread", mutations, "mutations")


def _agent(line: Line, rows: int) -> Measurement:
    """Measure the agent with a backlog, from its start to the broker's last acknowledgement."""
    line.agent.start()
    watch = Stopwatch([psutil.Process(line.agent.pid)])
    line.wait_for_events(rows, _WAIT_S)
    return watch.stop("agent, backlog to events", rows, "events")


def _connector(line: Line, rows: int) -> Measurement:
    """Measure the instance's JVM and its Python process, from when both run to the last acknowledged event."""
    line.deploy_source(_KEYSPACE, [_TABLE])
    processes = _instance_processes()
    watch = Stopwatch(processes)
    line.wait_for_records(_KEYSPACE, [_TABLE], _WAIT_S)
    return watch.stop("connector, events to data", rows, "rows")


def _instance_processes() -> list[psutil.Process]:
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        for process in psutil.process_iter(["cmdline"]):
            command = process.info["cmdline"] or []
            if any("cassandra-cdc-source" in part for part in command):
                parent = process.parent()
                if parent is not None and f"{_KEYSPACE}" in " ".join(parent.cmdline()):
                    return [parent, process]
        time.sleep(0.05)
    raise click.ClickException(f"no connector process was seen within {_WAIT_S} s")


def _spark(line: Line, rows: int) -> Measurement:
    """Measure a typed batch read of the whole data topic, after a first read that warms the JVM up."""
    import spark_bridge

    spark = local_session(artifacts.ensure("spark-avro"))
    pulsar = line.sandbox.pulsar
    options = {
        "serviceUrl": pulsar.service_url,
        "adminUrl": pulsar.admin_url,
        "topic": line.data_topic(_KEYSPACE, _TABLE),
    }
    for _ in range(2):
        watch = Stopwatch([psutil.Process(), *psutil.Process().children(recursive=True)])
        spark_bridge.changes(spark, options).write.format("noop").mode("overwrite").save()
        measured = watch.stop("Spark, typed batch read", rows, "rows")
    spark.stop()
    return measured


def _demo() -> tuple[list[str], dict[str, object]]:
    """Run the demo as its users do. Return its line and its report."""
    done = subprocess.run(
        [sys.executable, "-m", "cdc.main", "demo", "--json"], capture_output=True, text=True, check=True
    )
    report: dict[str, object] = json.loads(done.stdout)
    line = (
        f"{'demo, all of it':<28} {report['changes']:>10,} changes in {report['total_s']} s, peak"
        f" {int(str(report['peak_rss_bytes'])) / 2**20:,.0f} MiB of all processes   load {report['load_average_1_min']}"
    )
    return [line], report


@click.command()
@click.option("--rows", default=30_000, show_default=True, type=click.IntRange(1), help="Rows of the backlog.")
@click.option("--demo/--no-demo", default=True, help="Run the demo too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines.")
@click.option(
    "--rival-agent", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Jar of DataStax's agent."
)
def main(rows: int, demo: bool, as_json: bool, rival_agent: Path | None) -> None:
    """Measure every stage."""
    lines, report = _demo() if demo else ([], {})
    # Segments have Cassandra's default size, and `cdc_raw` is too large for the backlog to fill it.
    options = SandboxOptions(commitlog_segment_mb=32, cassandra_settings={"cdc_total_space_in_mb": 4096})
    with progress_display(quiet=as_json) as on_progress, Line(options, on_progress=on_progress) as line:
        line.agent.stop()
        line.keep_data_topics()
        _write_backlog(line.session, rows)
        time.sleep(1)  # longer than one sync period: then all rows can be read
        measured = [_decode(line), _agent(line, rows), _connector(line, rows), _spark(line, rows)]
        line.session.execute(f"CREATE TABLE {_KEYSPACE}.delay (pk int PRIMARY KEY, v text) WITH cdc = true")
        delay = write_to_publish(line.sandbox, line.session, f"{_KEYSPACE}.delay", seconds=10, rate=1_000)
        rival = [] if rival_agent is None else measure_rival(rival_agent, line.sandbox, max(rows, 60_000))
    if as_json:
        compared = {"delay": asdict(delay), "rival": [asdict(each) for each in rival]}
        click.echo(json.dumps({"demo": report, "stages": [asdict(each) for each in measured], **compared}))
        return
    delays = f"agent, write to publication at 1,000 writes/s: {delay} (sync period {options.commitlog_sync_ms} ms)"
    click.echo(
        "\n".join(
            [*lines, *(each.line for each in measured), delays, *(map(str, rival) if rival else (WITHOUT_RIVAL,))]
        )
    )


if __name__ == "__main__":
    main()
