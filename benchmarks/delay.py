"""Measures the delay from Cassandra's sync to the events topic, an idle agent's CPU, and a busy agent's effect on
Cassandra.

    python -m benchmarks.delay [--seconds 15] [--rate 1000] [--json]

- *delay*: rows are written at the given rate. An event's delay begins when the segment's index is first seen to cover
  its position (checked every 2 ms), and ends with the publish time, which has milliseconds.
- *idle*: the agent's CPU over some seconds without a write, as a share of one core.
- *Cassandra*: rows are written with 16 requests in flight, without the agent and with it, in turns.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Final

import click
import psutil
import pulsar
from cassandra.cluster import Cluster, Session

from benchmarks.raw_writer import RawWriter
from cdc.agent_process import AgentProcess
from cdc.sandbox import Sandbox, SandboxOptions
from change_agent.cdc_raw.cdc_index import parse_cdc_index
from schemas.mutation_event import MutationEvents, decode_events
from schemas.topics import events_topic

_LOOK_S: Final = 0.002
_IN_FLIGHT: Final = 16
_PARTITIONS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The distribution of measured times in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, seconds: list[float]) -> Spread:
        """Make it of times in seconds; there must be at least two."""
        hundredths = quantiles(seconds, n=100)
        values = [round(1000 * each, 1) for each in (hundredths[49], hundredths[98], max(seconds))]
        return cls(count=len(seconds), p50_ms=values[0], p99_ms=values[1], max_ms=values[2])

    def __str__(self) -> str:
        return f"p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.1f} ms, max {self.max_ms:.1f} ms of {self.count:,}"


class SyncTimes:
    """The times when each segment's index was first seen to reach an offset."""

    def __init__(self, cdc_raw: Path) -> None:
        self._cdc_raw: Final = cdc_raw
        self._seen: Final[dict[int, list[tuple[int, float]]]] = {}
        self._stop: Final = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the indexes while the block runs."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            now_s = time.time()
            for path in self._cdc_raw.glob("*_cdc.idx"):
                try:
                    index = parse_cdc_index(path.read_bytes())
                except FileNotFoundError:
                    continue
                seen = self._seen.setdefault(int(path.name.removesuffix("_cdc.idx").rpartition("-")[2]), [])
                if index is not None and (not seen or seen[-1][0] < index.offset):
                    seen.append((index.offset, now_s))

    def of(self, segment_id: int, position: int) -> float | None:
        """When the position was first seen to be synced, in seconds since the epoch; None if it was not seen."""
        return next((at_s for offset, at_s in self._seen.get(segment_id, []) if offset >= position), None)


def _write(session: Session, table: str, seconds: float, rate: float | None) -> list[float]:
    """Write at a rate, or without one as fast as `_IN_FLIGHT` requests allow. Return the latency of each write in
    seconds."""
    insert = session.prepare(f"INSERT INTO {table} (pk, v) VALUES (?, ?)")
    latencies: list[float] = []
    room = threading.Semaphore(_IN_FLIGHT if rate is None else 1_000)
    failures: list[object] = []
    started, number = time.monotonic(), 0

    def done(_: object, sent_s: float) -> None:
        latencies.append(time.monotonic() - sent_s)
        room.release()

    def failed(error: object) -> None:
        failures.append(error)
        room.release()

    while time.monotonic() - started < seconds:
        room.acquire()
        if rate is not None:
            time.sleep(max(0.0, started + number / rate - time.monotonic()))
        pending = session.execute_async(insert, (number, "x" * 100))
        pending.add_callbacks(done, failed, (time.monotonic(),))
        number += 1
    for _ in range(_IN_FLIGHT if rate is None else 1_000):
        room.acquire()
    if failures:
        raise click.ClickException(f"{len(failures)} of {number} writes failed, the first by: {failures[0]}")
    return latencies


def small_rows(count: int) -> Iterator[tuple[int, str]]:
    """`count` rows of (pk, v)."""
    return ((number, "x" * 100) for number in range(count))


def _delays(sandbox: Sandbox, session: Session, seconds: float, rate: float) -> Spread:
    session.execute("CREATE TABLE bench.delay (pk int PRIMARY KEY, v text) WITH cdc = true")
    # The first events create the topic, which must not count.
    _write(session, "bench.delay", 2, 50)
    syncs = SyncTimes(sandbox.node.cdc_raw)
    with syncs.watching():
        time.sleep(0.5)
        began_ms = time.time() * 1000
        _write(session, "bench.delay", seconds, rate)
        time.sleep(2)
    delays = []
    for message, events in _messages(sandbox, "bench.delay", began_ms):
        for event in events.events:
            synced_s = syncs.of(events.segment_id, event.position)
            if synced_s is not None:
                delays.append(message.publish_timestamp() / 1000 - synced_s)
    return Spread.of(delays)


def write_to_publish(
    sandbox: Sandbox, session: Session, table: str, *, seconds: float, rate: float, settle_s: float = 3
) -> Spread:
    """Measure the time from the write time of each row, which the coordinator sets, to its publish time. The agent must
    run."""
    with RawWriter(sandbox.node, session, f"INSERT INTO {table} (pk, v) VALUES (?, ?)") as writer:
        writer.write(small_rows(100), 50)
        time.sleep(1)
        began_ms = time.time() * 1000
        writer.write(small_rows(int(seconds * rate)), rate)
    time.sleep(settle_s)
    return Spread.of(
        [
            message.publish_timestamp() / 1000 - event.writetime_us / 1e6
            for message, events in _messages(sandbox, table, began_ms)
            for event in events.events
            if event.writetime_us is not None and event.writetime_us / 1000 >= began_ms
        ]
    )


def _messages(sandbox: Sandbox, table: str, began_ms: float) -> Iterator[tuple[pulsar.Message, MutationEvents]]:
    """The messages of the table's topic that were published since `began_ms`."""
    client = pulsar.Client(sandbox.pulsar.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
    for partition in range(_PARTITIONS):
        topic = f"{events_topic(*table.split('.'))}-partition-{partition}"
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        while reader.has_message_available():
            message = reader.read_next(5_000)
            if message.publish_timestamp() >= began_ms:
                yield message, decode_events(message.data())
    client.close()


@click.command()
@click.option("--seconds", default=15.0, show_default=True, type=click.FloatRange(2), help="Of each measurement.")
@click.option(
    "--rate", default=1_000.0, show_default=True, type=click.FloatRange(1), help="Writes a second for the delay."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def main(seconds: float, rate: float, as_json: bool) -> None:
    """Measure the agent's delay and what it costs others."""
    options = SandboxOptions(commitlog_sync_ms=100, commitlog_segment_mb=32)
    with tempfile.TemporaryDirectory() as folder, Sandbox(options) as sandbox:
        node = sandbox.node
        agent = AgentProcess.for_node(node, sandbox.pulsar, Path(folder))
        with Cluster([node.address], port=node.native_port) as cluster, cluster.connect() as session:
            session.execute(
                "CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
            )
            session.execute("CREATE TABLE bench.load (pk int PRIMARY KEY, v text) WITH cdc = true")
            _write(session, "bench.load", 5, None)
            writes: dict[str, list[float]] = {"without the agent": [], "beside the agent": []}
            for _ in range(2):
                writes["without the agent"] += _write(session, "bench.load", seconds / 2, None)
                agent.start()
                writes["beside the agent"] += _write(session, "bench.load", seconds / 2, None)
                while agent.metric("lag_bytes"):
                    time.sleep(0.2)
                agent.stop()
            agent.start()
            delay = _delays(sandbox, session, seconds, rate)
        process = psutil.Process(agent.pid)
        time.sleep(3)
        before = process.cpu_times()
        time.sleep(seconds)
        after = process.cpu_times()
        idle_share = (after.user + after.system - before.user - before.system) / seconds
        agent.stop()
    cassandra = {name: (len(each) / seconds, Spread.of(each)) for name, each in writes.items()}
    load = round(os.getloadavg()[0], 2)
    if as_json:
        spreads = {
            name: {"writes_per_s": writes_per_s, **asdict(spread)} for name, (writes_per_s, spread) in cassandra.items()
        }
        click.echo(json.dumps({"delay": asdict(delay), "idle_share": idle_share, "cassandra": spreads, "load": load}))
        return
    click.echo(f"sync to events topic, {rate:,.0f} writes/s: {delay}")
    click.echo(f"agent, idle: {100 * idle_share:.2f} % of a core")
    for name, (writes_per_s, spread) in cassandra.items():
        click.echo(f"Cassandra {name}: {writes_per_s:,.0f} writes/s, {spread}")
    click.echo(f"load {load}")


if __name__ == "__main__":
    main()
