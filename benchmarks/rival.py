"""Measures DataStax's agent: its jar in the JVM of a real Cassandra 4.0 drains a backlog to the same Pulsar as ours.

It has the best conditions: both of the JVM's compilers, as in service, and a warm JVM. A first backlog does not count.
Then Pulsar is stopped, the backlog is written, Pulsar is started again, and the first 60,000 events after that do not
count either. CPU is that of the whole JVM, because the agent is a part of it.

It is measured with its defaults, which publish each event alone, and with `pulsarBatchDelayInMs=10`, the option that makes it
fastest.
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

from benchmarks.memory import peak_rss
from benchmarks.raw_writer import RawWriter
from cdc.rest import rest
from cdc.sandbox import Sandbox, SandboxOptions, ServerStartError

__all__ = ["AS_IN_SERVICE", "RIVAL_CASSANDRA", "WITHOUT_RIVAL", "RivalFigures", "measure_rival"]

AS_IN_SERVICE: Final = ("-XX:TieredStopAtLevel=4",)
"""The option for both of the JVM's compilers. By default, servers of the sandbox have only the first, so that they
start fast."""

WITHOUT_RIVAL: Final = (
    "DataStax's agent was not measured: --rival-agent JAR (make: RIVAL_AGENT=JAR) runs it beside ours"
)

RIVAL_CASSANDRA: Final = "4.0"
"""The newest Cassandra version on which DataStax's agent starts."""
_WARM_UP: Final = 60_000
_WAIT_S: Final = 1800
_LOOK_S: Final = 0.2
_TOPIC: Final = "persistent/public/default/{prefix}bench.rows"
_OPTIONS: Final = {"its defaults": "", "pulsarBatchDelayInMs=10": ",pulsarBatchDelayInMs=10"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalFigures:
    """The figures of DataStax's agent with these options."""

    options: str
    events_per_s: float
    cpu_us_per_event: float
    peak_rss_bytes: int
    load_average_1_min: float

    def __str__(self) -> str:
        return (
            f"DataStax's agent, {self.options}: {self.events_per_s:,.0f} events/s, {self.cpu_us_per_event:.0f} us CPU each,"
            f" {self.peak_rss_bytes / 2**20:,.0f} MiB RSS of the whole JVM   load {self.load_average_1_min:.1f}"
        )


def measure_rival(jar: Path, pulsar: Sandbox, events: int, turn: int = 0) -> list[RivalFigures]:
    """Drain `events` events to the Pulsar of this sandbox, once with each choice of options. Each turn has its own
    topics.

    Raises click.ClickException when the agent does not run.
    """
    found = []
    for number, (name, more) in enumerate(_OPTIONS.items()):
        prefix = f"rival{turn}-{number}-"
        options = SandboxOptions(
            cassandra=RIVAL_CASSANDRA,
            pulsar=False,
            commitlog_segment_mb=32,
            cassandra_heap_mb=512,
            cassandra_settings={"cdc_total_space_in_mb": 8192},
            cassandra_jvm_options=[
                f"-javaagent:{jar.absolute()}=pulsarServiceUrl={pulsar.pulsar.service_url},topicPrefix={prefix}{more}",
                *AS_IN_SERVICE,
            ],
        )
        try:
            with Sandbox(options) as cassandra:
                found.append(_drain(cassandra, pulsar, events, name, _TOPIC.format(prefix=prefix)))
        except ServerStartError as error:
            raise click.ClickException(f"{jar} cannot be loaded into Cassandra {RIVAL_CASSANDRA}: {error}") from error
    return found


def _drain(cassandra: Sandbox, pulsar: Sandbox, events: int, name: str, topic: str) -> RivalFigures:
    node = cassandra.node
    process = psutil.Process(node.pid)
    with Cluster([node.address], port=node.native_port) as cluster, cluster.connect() as session:
        session.default_timeout = 120
        session.execute("CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        session.execute(
            "CREATE TABLE bench.rows (pk text, ck int, a text, b text, c int, d bigint, e double, PRIMARY KEY (pk, ck))"
            " WITH cdc = true"
        )
        insert = "INSERT INTO bench.rows (pk, ck, a, b, c, d, e) VALUES (?, ?, ?, ?, ?, ?, ?)"

        def write(first: int, count: int) -> None:
            numbers = range(first, first + count)
            with RawWriter(node, session, insert) as writer:
                writer.write((f"key-{i:08}", i % 7, "a" * 40, f"value {i}", i, i * i, i / 3) for i in numbers)

        # Without a subscription, the broker deletes an idle topic with its message count.
        rest().put(f"{pulsar.pulsar.admin_url}/admin/v2/{topic}").raise_for_status()
        rest().put(f"{pulsar.pulsar.admin_url}/admin/v2/{topic}/subscription/sub").raise_for_status()
        write(0, _WARM_UP)
        _wait_for(pulsar, topic, _WARM_UP, "warm-up")
        pulsar.pulsar.stop()
        write(_WARM_UP, _WARM_UP + events)
        pulsar.pulsar.start()
    # The broker's count is 0 after its start.
    first = _wait_for(pulsar, topic, _WARM_UP, "events after the restart")
    started, times = time.monotonic(), process.cpu_times()
    last = _wait_for(pulsar, topic, _WARM_UP + events, "backlog")
    seconds, after = time.monotonic() - started, process.cpu_times()
    done = last - first
    if done < events // 2:
        raise click.ClickException(
            f"DataStax's agent: {done:,} of {events:,} events were left when the clock started; take more events"
        )
    return RivalFigures(
        options=name,
        events_per_s=done / seconds,
        cpu_us_per_event=1e6 * (after.user + after.system - times.user - times.system) / done,
        peak_rss_bytes=peak_rss(node.pid),
        load_average_1_min=round(os.getloadavg()[0], 2),
    )


def _wait_for(pulsar: Sandbox, topic: str, count: int, what: str) -> int:
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        answer = rest().get(f"{pulsar.pulsar.admin_url}/admin/v2/{topic}/stats", timeout=30)
        found = int(answer.json()["msgInCounter"]) if answer.is_success else 0
        if found >= count:
            return found
        time.sleep(_LOOK_S)
    raise click.ClickException(f"DataStax's agent: the {what} did not arrive within {_WAIT_S} s ({count} events)")
