"""A backlog to the events topic: rate, CPU for each event, and memory of the agent.

One Cassandra writes the backlog; each run of the agent gets a folder of hard links to it, a working directory and topics of
its own, so that runs repeat. The first run is a warm-up of the broker and does not count.

    python -m benchmarks.drain [--rows 200000] [--runs 3] [--json]

CPU is that of the agent's process, user and system; memory is its largest PSS while it drains. All figures are of a machine
that is busy with the servers, too: the load average stands beside them.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
import httpx
import psutil
from cassandra.cluster import Cluster
from cassandra.concurrent import execute_concurrent_with_args

from cdc.agent_process import AgentProcess
from cdc.sandbox import Sandbox, SandboxOptions

# DataStax's agent 2.3.9 on this class of machine, warm, as measured by us: events/s, CPU us of an event.
_RIVAL: Final = (13_000, 137)
_SEGMENT_MB: Final = 32
_WAIT_S: Final = 900
_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """One run. `seconds` from the first acknowledged event to the last."""

    events: int
    seconds: float
    cpu_us_per_event: float
    peak_pss_bytes: int
    load_average_1_min: float

    @property
    def line(self) -> str:
        """For a person."""
        return (
            f"agent, backlog to events topic {self.events / self.seconds:>9,.0f} events/s"
            f"{self.cpu_us_per_event:>7.1f} us CPU each{self.peak_pss_bytes / 2**20:>6,.0f} MiB PSS"
            f"   load {self.load_average_1_min:.1f}"
        )


def write_backlog(sandbox: Sandbox, rows: int) -> None:
    """As in the published figures of other systems: text and int key, five columns."""
    node = sandbox.node
    with Cluster([node.address], port=node.native_port) as cluster, cluster.connect() as session:
        # The machine may be busy with others.
        session.default_timeout = 120
        session.execute("CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        session.execute(
            "CREATE TABLE bench.rows (pk text, ck int, a text, b text, c int, d bigint, e double, PRIMARY KEY (pk, ck))"
            " WITH cdc = true"
        )
        insert = session.prepare("INSERT INTO bench.rows (pk, ck, a, b, c, d, e) VALUES (?, ?, ?, ?, ?, ?, ?)")
        values = ((f"key-{i:08}", i % 7, "a" * 40, f"value {i}", i, i * i, i / 3) for i in range(rows))
        execute_concurrent_with_args(session, insert, values, concurrency=64)
    # More than one sync period: all of it can be read.
    time.sleep(1)


def drain(sandbox: Sandbox, folder: Path, rows: int, number: int, **options: object) -> Drain:
    """Let an agent of its own publish the whole backlog."""
    raw = folder / f"raw-{number}"
    raw.mkdir()
    for path in sandbox.node.cdc_raw.iterdir():
        # The index is rewritten in place while the node lives.
        if path.suffix == ".log":
            (raw / path.name).hardlink_to(path)
        else:
            (raw / path.name).write_bytes(path.read_bytes())
    agent = AgentProcess.for_node(
        sandbox.node, sandbox.pulsar, folder / f"agent-{number}", cdcRawDirectory=str(raw),
        topicPrefix=f"persistent://public/default/drain{number}-", **options,
    )  # fmt: skip
    agent.start()
    process = psutil.Process(agent.pid)
    cpu_s, events, started, peak = 0.0, 0, 0.0, 0
    deadline = time.monotonic() + _WAIT_S
    while True:
        peak = max(peak, process.memory_full_info().pss)
        done = _acknowledged(agent)
        if done and not started:
            started, events = time.monotonic(), done
            times = process.cpu_times()
            cpu_s = times.user + times.system
        if done >= rows:
            break
        if time.monotonic() > deadline:
            raise click.ClickException(f"{done} of {rows} events within {_WAIT_S} s:\n{agent.log_tail()}")
        time.sleep(_LOOK_S)
    times = process.cpu_times()
    seconds = time.monotonic() - started
    result = Drain(
        events=done - events,
        seconds=seconds,
        cpu_us_per_event=1e6 * (times.user + times.system - cpu_s) / (done - events),
        peak_pss_bytes=peak,
        load_average_1_min=round(os.getloadavg()[0], 2),
    )
    agent.stop()
    return result


def _acknowledged(agent: AgentProcess) -> int:
    """From the metrics' page, which is as new as can be; the status file is a second old."""
    page = httpx.get(f"http://{agent.status()['http']}/metrics", timeout=30).text
    found = re.search(r"^cdc_agent_events_acknowledged_total ([\d.e+]+)$", page, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


@click.command()
@click.option("--rows", default=200_000, show_default=True, type=click.IntRange(10_000), help="Rows of the backlog.")
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1), help="Runs that count.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def main(rows: int, runs: int, as_json: bool) -> None:
    """Measure the agent's throughput."""
    options = SandboxOptions(commitlog_segment_mb=_SEGMENT_MB, cassandra_settings={"cdc_total_space_in_mb": 8192})
    with tempfile.TemporaryDirectory() as folder, Sandbox(options) as sandbox:
        write_backlog(sandbox, rows)
        # A hard link does not reach over file systems, so the runs' folders stand beside the node's.
        place = sandbox.node.cdc_raw.parent / Path(folder).name
        place.mkdir()
        results = [drain(sandbox, place, rows, number) for number in range(runs + 1)][1:]
    if as_json:
        click.echo(json.dumps([asdict(each) for each in results]))
    else:
        click.echo("\n".join(each.line for each in results))
        best = max(each.events / each.seconds for each in results)
        rate, cpu_us = _RIVAL
        cpu = min(each.cpu_us_per_event for each in results)
        click.echo(
            f"DataStax's agent 2.3.9, measured on a quiet machine of this class: {rate:,} events/s, {cpu_us} us CPU each;"
            f" the best run is {best / rate:.1f} times its rate at {cpu / cpu_us:.2f} of its CPU"
        )


if __name__ == "__main__":
    main()
