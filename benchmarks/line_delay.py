"""Measures the delay from insert to events topic and data topic, ours and DataStax's, with Cassandra's default sync of
10 s.

    python -m benchmarks.line_delay [--rate 20 --rate 1000] [--seconds 30] [--turns 3] [--cassandra 5.0] [--rival-agent JAR --rival-nar NAR] [--json]

Each line has its own Cassandra: 4.0 beside DataStax's agent, which does not start on newer ones, otherwise 5.0. All share
one Pulsar, and all servers have both of the JVM's compilers. The lines run in turns: ours with `readUnsynced`, ours
without it, DataStax's with its defaults, then again. A delay begins with
the write time of the row, which the coordinator sets, and ends with the publish time, which has milliseconds. Rows that
are written while the JVMs warm up do not count.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

import click
import pulsar
from cassandra.cluster import Cluster, Session

from benchmarks.connector_run import deployed
from benchmarks.delay import Spread, small_rows
from benchmarks.raw_writer import RawWriter
from benchmarks.rival import AS_IN_SERVICE, RIVAL_CASSANDRA, WITHOUT_RIVAL
from cdc.agent_process import AgentProcess
from cdc.rest import rest
from cdc.sandbox import Sandbox, SandboxOptions
from cdc.sandbox.cassandra_node import CassandraNode
from schemas.mutation_event import decode_events
from source_connector.nar_build import build_nar

_DEFAULT_SYNC_MS: Final = 10_000
_PARTITIONS: Final = 4
_PATIENCE_S: Final = 60
_RIVAL: Final = "DataStax's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The figures of one line at one rate in one turn."""

    line: str
    writes_per_s: float
    events_topic: Spread
    data_topic: Spread
    load_average_1_min: float

    def __str__(self) -> str:
        return (
            f"{self.line:<24}{self.writes_per_s:>7,.0f} writes/s   events topic: {self.events_topic}"
            f"   data topic: {self.data_topic}   load {self.load_average_1_min:.1f}"
        )


class _Bench:
    """Runs the lines in turn: each has its own node, agent and sources, and all use one Pulsar."""

    def __init__(
        self, sandbox: Sandbox, cassandra: str, jar: Path | None, nar: Path | None, warm_s: float, seconds: float
    ) -> None:
        self._sandbox: Final = sandbox
        self._cassandra: Final = cassandra
        self._jar: Final = jar
        self._nar: Final = nar
        self._warm_s: Final = warm_s
        self._seconds: Final = seconds
        self._archive: Final = build_nar(Path.cwd() / "build")

    def lines(self) -> tuple[str, ...]:
        """The names of the lines to measure."""
        ours = ("ours, readUnsynced", "ours, after the sync")
        return ours if self._jar is None or self._nar is None else (*ours, _RIVAL)

    def run(self, line: str, rates: Sequence[float]) -> Iterator[Measured]:
        """Start a line, measure it at all rates, and stop it."""
        prefix = f"line{time.monotonic_ns()}-"
        more = []
        if line == _RIVAL:
            assert self._jar is not None
            url = self._sandbox.pulsar.service_url
            more = [f"-javaagent:{self._jar.absolute()}=pulsarServiceUrl={url},topicPrefix={prefix}"]
        options = SandboxOptions(
            cassandra=RIVAL_CASSANDRA if line == _RIVAL else self._cassandra,
            pulsar=False,
            commitlog_sync_ms=_DEFAULT_SYNC_MS,
            commitlog_segment_mb=32,
            cassandra_heap_mb=512,
            cassandra_jvm_options=[*more, *AS_IN_SERVICE],
        )
        with ExitStack() as stack:
            node = stack.enter_context(Sandbox(options)).node
            session = stack.enter_context(_session(node))
            if line != _RIVAL:
                agent = AgentProcess.for_node(
                    node,
                    self._sandbox.pulsar,
                    Path(stack.enter_context(tempfile.TemporaryDirectory())),
                    readUnsynced=line == "ours, readUnsynced",
                    topicPrefix=f"persistent://public/default/{prefix}",
                )
                agent.start()
                stack.callback(agent.stop)
            for rate in rates:
                yield self._measure(line, node, session, prefix, rate)

    def _measure(self, line: str, node: CassandraNode, session: Session, prefix: str, rate: float) -> Measured:
        table = f"rate{rate:.0f}"
        topic = f"persistent://public/default/{prefix}bench.{table}"
        self._make_topic(topic, is_rival=line == _RIVAL)
        session.execute(f"CREATE TABLE bench.{table} (pk int PRIMARY KEY, v text) WITH cdc = true")
        config = {"keyspace": "bench", "table": table, "events.topic": topic}
        archive = self._nar.absolute() if line == _RIVAL and self._nar is not None else self._archive
        own = {} if line == _RIVAL else {"python": sys.executable}
        name = f"{prefix}{table}"
        with deployed(self._sandbox, archive, name, f"data-{name}", {**config, **own}, node=node):
            with RawWriter(node, session, f"INSERT INTO bench.{table} (pk, v) VALUES (?, ?)") as writer:
                # The warm-up has the rate of the measurement. At a lower rate, the JVMs would compile during the
                # measurement.
                writer.write(small_rows(int(self._warm_s * rate)), rate)
                time.sleep(_DEFAULT_SYNC_MS / 1000 + 1)
                # Cassandra's write times are taken from a clock with milliseconds.
                began_ms = math.floor(time.time() * 1000)
                count = writer.write(small_rows(int(self._seconds * rate)), rate)
            data = _until_there(lambda: _data_delays(self._sandbox, f"data-{name}", began_ms), count)
        return Measured(
            line=line,
            writes_per_s=rate,
            events_topic=Spread.of(list(_event_delays(self._sandbox, topic, began_ms, is_rival=line == _RIVAL))),
            data_topic=Spread.of(data),
            load_average_1_min=round(os.getloadavg()[0], 2),
        )

    def _make_topic(self, topic: str, *, is_rival: bool) -> None:
        """Create the topic and its subscription for DataStax's agent, which leaves this to the operator. Ours creates
        them."""
        if is_rival:
            path = f"{self._sandbox.pulsar.admin_url}/admin/v2/{topic.replace('://', '/')}"
            rest().put(path).raise_for_status()
            rest().put(f"{path}/subscription/sub").raise_for_status()


@contextmanager
def _session(node: CassandraNode) -> Iterator[Session]:
    with Cluster([node.address], port=node.native_port) as cluster, cluster.connect() as session:
        session.execute("CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        yield session


def _until_there(look: Callable[[], Iterable[float]], count: int) -> list[float]:
    """Call `look` until it finds `count` delays, and return them. The last changes wait for a sync of the commit log.

    Raises click.ClickException.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while len(found := list(look())) < count:
        if time.monotonic() > deadline:
            raise click.ClickException(f"{len(found):,} of {count:,} rows were on the data topic after {_PATIENCE_S} s")
        time.sleep(1)
    return found


def _event_delays(sandbox: Sandbox, topic: str, began_ms: float, *, is_rival: bool) -> Iterator[float]:
    for message in _messages(sandbox, [topic] if is_rival else _partitions(topic), began_ms):
        if is_rival:
            writetimes_us = [int(message.properties()["writetime"])]
        else:
            writetimes_us = [each.writetime_us or 0 for each in decode_events(message.data()).events]
        for writetime_us in writetimes_us:
            if writetime_us / 1000 >= began_ms:
                yield message.publish_timestamp() / 1000 - writetime_us / 1e6


def _data_delays(sandbox: Sandbox, topic: str, began_ms: float) -> Iterator[float]:
    for message in _messages(sandbox, [topic], began_ms):
        writetime_us = int(message.properties()["writetime"])
        if writetime_us / 1000 >= began_ms:
            yield message.publish_timestamp() / 1000 - writetime_us / 1e6


def _partitions(topic: str) -> list[str]:
    return [f"{topic}-partition-{index}" for index in range(_PARTITIONS)]


def _messages(sandbox: Sandbox, topics: Sequence[str], began_ms: float) -> Iterator[pulsar.Message]:
    client = pulsar.Client(sandbox.pulsar.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
    for topic in topics:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        while reader.has_message_available():
            message = reader.read_next(5_000)
            if message.publish_timestamp() >= began_ms:
                yield message
    client.close()


def _medians(found: Sequence[Measured]) -> Iterator[str]:
    for line, rate in dict.fromkeys((each.line, each.writes_per_s) for each in found):
        runs = [each for each in found if (each.line, each.writes_per_s) == (line, rate)]
        texts = [
            f"{where}: p50 {median(each.p50_ms for each in spreads):,.1f} ms, p99 {median(each.p99_ms for each in spreads):,.1f} ms"
            for where, spreads in (
                ("events topic", [each.events_topic for each in runs]),
                ("data topic", [each.data_topic for each in runs]),
            )
        ]
        yield f"median of {len(runs)}, {line}, {rate:,.0f} writes/s   {'   '.join(texts)}"


@click.command()
@click.option("--seconds", default=30.0, show_default=True, type=click.FloatRange(11), help="Of each measurement.")
@click.option(
    "--warm",
    default=60.0,
    show_default=True,
    type=click.FloatRange(1),
    help="Seconds at the same rate before each measurement: the JVMs compile their code.",
)
@click.option("--turns", default=3, show_default=True, type=click.IntRange(1), help="How often each line is measured.")
@click.option(
    "--rate",
    "rates",
    default=[20.0, 1_000.0],
    multiple=True,
    show_default=True,
    type=click.FloatRange(1),
    help="Writes a second.",
)
@click.option(
    "--cassandra",
    type=click.Choice(["5.0", "4.1", "4.0"]),
    help="Version of Cassandra for our lines.  [default: 4.0 beside DataStax's agent, otherwise 5.0]",
)
@click.option(
    "--rival-agent", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Jar of DataStax's agent."
)
@click.option("--rival-nar", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="DataStax's connector.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def main(
    seconds: float,
    warm: float,
    turns: int,
    rates: tuple[float, ...],
    cassandra: str | None,
    rival_agent: Path | None,
    rival_nar: Path | None,
    as_json: bool,
) -> None:
    """Measure the delay of whole lines."""
    found: list[Measured] = []
    with Sandbox(SandboxOptions(nodes=0, pulsar_jvm_options=AS_IN_SERVICE)) as sandbox:
        retention = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        rest().post(
            f"{sandbox.pulsar.admin_url}/admin/v2/namespaces/public/default/retention", json=retention
        ).raise_for_status()
        version = cassandra or ("5.0" if rival_agent is None else RIVAL_CASSANDRA)
        bench = _Bench(sandbox, version, rival_agent, rival_nar, warm, seconds)
        for _ in range(turns):
            for line in bench.lines():
                for each in bench.run(line, rates):
                    found.append(each)
                    if not as_json:
                        click.echo(str(each))
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found]))
        return
    click.echo("\n".join(_medians(found)))
    if rival_agent is None or rival_nar is None:
        click.echo(WITHOUT_RIVAL)


if __name__ == "__main__":
    main()
