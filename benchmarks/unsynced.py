"""Measures the delay and the CPU of `readUnsynced`, with Cassandra's default sync of the commit log: every 10 s.

    python -m benchmarks.unsynced [--seconds 30] [--rate 1000 --rate 5000] [--json]

- *delay*: from the write time of each row, which the coordinator sets, to its publish time (milliseconds).
- *idle*: the agent's CPU over some seconds without a write, as a share of one core.
- *agent*: the agent's CPU while rows are written, as a share of one core.

The agent runs in turns on the same servers: with the option, without it, with it.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
import psutil
from cassandra.cluster import Cluster, Session

from benchmarks.delay import Spread, write_to_publish
from benchmarks.rival import AS_IN_SERVICE
from cdc.agent_process import AgentProcess
from cdc.sandbox import Sandbox, SandboxOptions

_DEFAULT_SYNC_MS: Final = 10_000
_DEFAULT_SEGMENT_MB: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The figures of one agent at one rate."""

    read_unsynced: bool
    writes_per_s: float
    delay: Spread
    cpu_share: float
    idle_share: float

    def __str__(self) -> str:
        name = "readUnsynced" if self.read_unsynced else "usual"
        cpu = f"agent {100 * self.cpu_share:.1f} % of a core, idle {100 * self.idle_share:.2f} %"
        return f"{name}, {self.writes_per_s:,.0f} writes/s: {self.delay}; {cpu}"


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _measure(
    sandbox: Sandbox, session: Session, agent: AgentProcess, *, unsynced: bool, rate: float, seconds: float
) -> Measured:
    table = f"bench.t{time.monotonic_ns()}"
    session.execute(f"CREATE TABLE {table} (pk int PRIMARY KEY, v text) WITH cdc = true")
    process = psutil.Process(agent.pid)
    before_s, began_s = _cpu_s(process), time.monotonic()
    # Without the option, the agent sees the last writes only after the next sync.
    delay = write_to_publish(
        sandbox, session, table, seconds=seconds, rate=rate, settle_s=3 if unsynced else _DEFAULT_SYNC_MS / 1000 + 3
    )
    cpu_share = (_cpu_s(process) - before_s) / (time.monotonic() - began_s)
    time.sleep(3)
    before_s = _cpu_s(process)
    time.sleep(10)
    return Measured(
        read_unsynced=unsynced,
        writes_per_s=rate,
        delay=delay,
        cpu_share=cpu_share,
        idle_share=(_cpu_s(process) - before_s) / 10,
    )


@click.command()
@click.option("--seconds", default=30.0, show_default=True, type=click.FloatRange(2), help="Of each measurement.")
@click.option(
    "--rate",
    "rates",
    default=[20.0, 1_000.0, 5_000.0],
    multiple=True,
    show_default=True,
    type=click.FloatRange(1),
    help="Writes a second.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def main(seconds: float, rates: tuple[float, ...], as_json: bool) -> None:
    """Measure the delay of changes before and after their sync."""
    options = SandboxOptions(
        commitlog_sync_ms=_DEFAULT_SYNC_MS,
        commitlog_segment_mb=_DEFAULT_SEGMENT_MB,
        cassandra_jvm_options=AS_IN_SERVICE,
        pulsar_jvm_options=AS_IN_SERVICE,
    )
    found: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder, Sandbox(options) as sandbox:
        node = sandbox.node
        with Cluster([node.address], port=node.native_port) as cluster, cluster.connect() as session:
            session.execute(
                "CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
            )
            for unsynced in (True, False, True):
                agent = AgentProcess.for_node(node, sandbox.pulsar, Path(folder), readUnsynced=unsynced)
                agent.start()
                for rate in rates:
                    found.append(_measure(sandbox, session, agent, unsynced=unsynced, rate=rate, seconds=seconds))
                    if not as_json:
                        click.echo(str(found[-1]))
                agent.stop()
    load = round(os.getloadavg()[0], 2)
    if as_json:
        click.echo(json.dumps({"measured": [asdict(each) for each in found], "load": load}))
    else:
        click.echo(f"load {load}")


if __name__ == "__main__":
    main()
