"""DataStax's agent beside ours: its jar in the JVM of a real Cassandra 4.0, draining a backlog to the same Pulsar.

Warm: a first backlog does not count. Then Pulsar is stopped, the backlog is written, Pulsar is started again, and the
clock runs from the first message on the topic to the last. CPU is that of the whole JVM, for the agent is a part of it.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import psutil
from cassandra.cluster import Cluster
from cassandra.concurrent import execute_concurrent_with_args

from cdc.rest import rest
from cdc.sandbox import Sandbox, SandboxOptions, ServerStartError

__all__ = ["CONSTANTS", "RIVAL_DELAY", "RivalFigures", "measure_rival"]

# The newest line that it starts on.
_CASSANDRA: Final = "4.0"
_WARM_UP: Final = 60_000
_WAIT_S: Final = 1800
_LOOK_S: Final = 0.2
_TOPIC: Final = "persistent/public/default/rival-bench.rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalFigures:
    """What DataStax's agent does. `is_measured`: in this run; else constants, of a quiet machine of another day."""

    events_per_s: float
    cpu_us_per_event: float
    is_measured: bool
    load_average_1_min: float = 0.0

    def __str__(self) -> str:
        figures = f"{self.events_per_s:,.0f} events/s, {self.cpu_us_per_event:.0f} us CPU each"
        if self.is_measured:
            return f"DataStax's agent, in this run: {figures}   load {self.load_average_1_min:.1f}"
        return (
            f"DataStax's agent 2.3.9: {figures}. CONSTANTS, measured on a quiet 2-core machine, not in this run;"
            " --rival-agent JAR (make: RIVAL_AGENT=JAR) measures it here"
        )


CONSTANTS: Final = RivalFigures(events_per_s=13_000, cpu_us_per_event=137, is_measured=False)
"""Of agent 2.3.9 in Cassandra 4.0.18 with Pulsar 4.0.8."""

RIVAL_DELAY: Final = (
    "DataStax's agent 2.3.9, write to publication: p50 1,160 ms, max 1,940 ms at 2 writes/s and a sync period of 2,000 ms;"
    " p50 1.0 s, p99 3.0 s at 1,900 writes/s. CONSTANTS, not measured in this run"
)


def measure_rival(jar: Path, pulsar: Sandbox, events: int) -> RivalFigures:
    """Let it drain so many events to the Pulsar of this sandbox. Raises click.ClickException when it does not run."""
    service_url = pulsar.pulsar.service_url
    options = SandboxOptions(
        cassandra=_CASSANDRA,
        pulsar=False,
        commitlog_segment_mb=32,
        cassandra_heap_mb=512,
        cassandra_settings={"cdc_total_space_in_mb": 8192},
        cassandra_jvm_options=[f"-javaagent:{jar.absolute()}=pulsarServiceUrl={service_url},topicPrefix=rival-"],
    )
    try:
        with Sandbox(options) as cassandra:
            return _drain(cassandra, pulsar, events)
    except ServerStartError as error:
        raise click.ClickException(f"{jar} cannot be loaded into Cassandra {_CASSANDRA}: {error}") from error


def _drain(cassandra: Sandbox, pulsar: Sandbox, events: int) -> RivalFigures:
    node = cassandra.node
    process = psutil.Process(node.pid)
    with Cluster([node.address], port=node.native_port) as cluster, cluster.connect() as session:
        session.default_timeout = 120
        session.execute("CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        session.execute(
            "CREATE TABLE bench.rows (pk text, ck int, a text, b text, c int, d bigint, e double, PRIMARY KEY (pk, ck))"
            " WITH cdc = true"
        )
        insert = session.prepare("INSERT INTO bench.rows (pk, ck, a, b, c, d, e) VALUES (?, ?, ?, ?, ?, ?, ?)")

        def write(first: int, count: int) -> None:
            numbers = range(first, first + count)
            values = ((f"key-{i:08}", i % 7, "a" * 40, f"value {i}", i, i * i, i / 3) for i in numbers)
            execute_concurrent_with_args(session, insert, values, concurrency=64)

        # A subscription: without one the broker drops a topic that is idle, and its count.
        rest().put(f"{pulsar.pulsar.admin_url}/admin/v2/{_TOPIC}").raise_for_status()
        rest().put(f"{pulsar.pulsar.admin_url}/admin/v2/{_TOPIC}/subscription/sub").raise_for_status()
        write(0, _WARM_UP)
        _wait_for(pulsar, _WARM_UP, "warm-up")
        pulsar.pulsar.stop()
        write(_WARM_UP, events)
        pulsar.pulsar.start()
    # The broker counts anew after its start.
    first = _wait_for(pulsar, 1, "first event")
    started, times = time.monotonic(), process.cpu_times()
    last = _wait_for(pulsar, events, "backlog")
    seconds, after = time.monotonic() - started, process.cpu_times()
    done = last - first
    return RivalFigures(
        events_per_s=done / seconds,
        cpu_us_per_event=1e6 * (after.user + after.system - times.user - times.system) / done,
        is_measured=True,
        load_average_1_min=round(os.getloadavg()[0], 2),
    )


def _wait_for(pulsar: Sandbox, count: int, what: str) -> int:
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        answer = rest().get(f"{pulsar.pulsar.admin_url}/admin/v2/{_TOPIC}/stats", timeout=30)
        found = int(answer.json()["msgInCounter"]) if answer.is_success else 0
        if found >= count:
            return found
        time.sleep(_LOOK_S)
    raise click.ClickException(f"DataStax's agent: the {what} did not arrive within {_WAIT_S} s ({count} events)")
