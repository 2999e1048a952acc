"""Deploys a source on Pulsar as a user does, and measures it while it drains a backlog."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import psutil

from cdc.rest import rest
from cdc.sandbox import Sandbox
from cdc.sandbox.cassandra_node import CassandraNode
from cdc.sandbox.prerequisites import java_home

__all__ = ["SUBSCRIPTION", "Drain", "Source", "deployed", "drain", "messages_in", "subscribe_from_the_start"]

_LOOK_S: Final = 0.1
_WAIT_S: Final = 900
SUBSCRIPTION: Final = "sub"
"""The subscription of the first turn, which the agent creates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """The figures of one backlog. Rate and CPU are from the end of the warm-up to the last record; memory is the
    largest of the whole drain."""

    name: str
    rows: int
    seconds: float
    best_second: float
    child_us: float
    host_us: float
    cassandra_us: float
    pulsar_us: float
    rss_bytes: int
    reads: int
    """Cassandra's local reads for the whole backlog."""
    load_average_1_min: float

    @property
    def line(self) -> str:
        """The figures as a text line."""
        return (
            f"{self.name:<22}{self.rows / self.seconds:>8,.0f} rows/s (best second {self.best_second:,.0f})"
            f"{self.child_us + self.host_us:>7.1f} us CPU each (child {self.child_us:.1f}, host {self.host_us:.1f};"
            f" Cassandra {self.cassandra_us:.1f}, Pulsar {self.pulsar_us:.1f})"
            f"{self.rss_bytes / 2**20:>5,.0f} MiB  {self.reads:,} reads  load {self.load_average_1_min:.1f}"
        )


class Source:
    """A deployed source: its processes, host first."""

    def __init__(self, processes: list[psutil.Process]) -> None:
        self.processes: Final = processes

    def rss_bytes(self) -> int:
        """The resident memory of all processes."""
        return sum(each.memory_info().rss for each in self.processes)


@contextmanager
def deployed(
    sandbox: Sandbox,
    archive: Path,
    name: str,
    topic: str,
    options: Mapping[str, object],
    more: Sequence[str] = (),
    node: CassandraNode | None = None,
) -> Iterator[Source]:
    """Deploy a source with `pulsar-admin sources create`, and delete it at the end.

    `more`: further arguments of the command. The source reads from `node`, by default the sandbox's node. Raises
    click.ClickException.
    """
    admin = str(sandbox.pulsar.pulsar_admin)
    environment = {**os.environ, "JAVA_HOME": str(java_home())}
    node = sandbox.node if node is None else node
    address = {"contactPoints": node.address, "port": node.native_port, "loadBalancing.localDc": "datacenter1"}
    config = {**address, **options}
    create = [admin, "sources", "create", "--archive", str(archive), "--name", name, "--destination-topic-name", topic]
    command = [*create, "--source-config", json.dumps(config), *more]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{name}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    try:
        yield Source(_processes(name, has_child="python" in options))
    finally:
        subprocess.run([admin, "sources", "delete", "--name", name], env=environment, capture_output=True, check=False)


def _processes(name: str, *, has_child: bool) -> list[psutil.Process]:
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        for process in psutil.process_iter(["cmdline"]):
            if any(f'"name":"{name}"' in part.replace(" ", "") for part in process.info["cmdline"] or []):
                found = [each for each in process.children(recursive=True) if "-I" in each.cmdline()]
                if found or not has_child:
                    return [process, *found]
        time.sleep(0.05)
    raise click.ClickException(f"{name}: its processes were not seen within {_WAIT_S} s")


def messages_in(sandbox: Sandbox, topic: str) -> int:
    """The number of messages that were published to a topic since the broker loaded it; 0 if the topic does not
    exist."""
    url = f"{sandbox.pulsar.admin_url}/admin/v2/persistent/public/default/{topic}/stats"
    response = rest().get(url)
    return int(response.json()["msgInCounter"]) if response.is_success else 0


def _is_drained(sandbox: Sandbox, events_topic: str, subscription: str) -> bool:
    path = events_topic.replace("://", "/", 1)
    stats = rest().get(f"{sandbox.pulsar.admin_url}/admin/v2/{path}/partitioned-stats").json()
    return int(stats["subscriptions"][subscription]["msgBacklog"]) == 0


def subscribe_from_the_start(sandbox: Sandbox, topic: str, name: str) -> None:
    """Create a subscription that has the whole backlog of an events topic, for a further turn."""
    path = topic.replace("://", "/", 1)
    earliest = {"ledgerId": -1, "entryId": -1}
    rest().put(f"{sandbox.pulsar.admin_url}/admin/v2/{path}/subscription/{name}", json=earliest).raise_for_status()


class _Account:
    """The CPU of the source's and the servers' processes at one moment, and the number of records up to then."""

    def __init__(self, source: Source, sandbox: Sandbox, rows: int) -> None:
        servers = [psutil.Process(sandbox.node.pid), psutil.Process(sandbox.pulsar.pid)]
        host, *children = [_cpu_s(each) for each in source.processes]
        cassandra, pulsar = map(_cpu_s, servers)
        self.at = time.monotonic()
        self.rows = rows
        self.cpu_s = (sum(children), host, cassandra, pulsar)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def drain(
    sandbox: Sandbox,
    source: Source,
    name: str,
    *,
    events_topics: Sequence[str],
    data_topics: Sequence[str],
    rows: int,
    warm_up: int,
    reads: Callable[[], int],
    subscription: str = SUBSCRIPTION,
) -> Drain:
    """Watch the source until all rows are on the data topics, or until all events are acknowledged.

    `reads` returns Cassandra's count of reads of the table. Raises click.ClickException, also when a process of the
    source ends, because the figures of its successor would not be comparable.
    """
    with _as_one_process(name):
        deadline, reads_before = time.monotonic() + _WAIT_S, reads()
        # Without a warm-up everything counts, also the source's start.
        first = None if warm_up else _Account(source, sandbox, 0)
        seen: list[tuple[float, int]] = []
        rss = 0
        while True:
            count = sum(messages_in(sandbox, topic) for topic in data_topics)
            rss = max(rss, source.rss_bytes())
            if first is None and count > warm_up:
                first = _Account(source, sandbox, count)
            stands = bool(seen) and seen[-1][1] == count
            seen.append((time.monotonic(), count))
            if count >= rows or (
                count and stands and all(_is_drained(sandbox, topic, subscription) for topic in events_topics)
            ):
                break
            if time.monotonic() > deadline:
                raise click.ClickException(f"{name}: {count:,} of {rows:,} rows within {_WAIT_S} s")
            time.sleep(_LOOK_S)
        last = _Account(source, sandbox, count)
        if first is None or first.rows == last.rows:
            raise click.ClickException(f"{name}: no record came after the warm-up of {warm_up:,}")
        done = last.rows - first.rows
        child, host, cassandra, pulsar = (
            1e6 * (after - before) / done for after, before in zip(last.cpu_s, first.cpu_s, strict=True)
        )
        return Drain(
            name=name,
            rows=done,
            seconds=last.at - first.at,
            best_second=_best_second(seen),
            child_us=child,
            host_us=host,
            cassandra_us=cassandra,
            pulsar_us=pulsar,
            rss_bytes=rss,
            reads=reads() - reads_before,
            load_average_1_min=round(os.getloadavg()[0], 2),
        )


@contextmanager
def _as_one_process(name: str) -> Iterator[None]:
    try:
        yield
    except psutil.NoSuchProcess as error:
        raise click.ClickException(
            f"{name}: process {error.pid} of the source ended during the run; the log of its instance, in Pulsar's folder"
            " logs/functions, says why"
        ) from error


def _best_second(seen: list[tuple[float, int]]) -> float:
    """The largest rate of records in a second, over windows of a second or slightly more."""
    best, start = 0.0, 0
    for at, (now, count) in enumerate(seen):
        while seen[start + 1][0] <= now - 1 if start < at else False:
            start += 1
        if now - seen[start][0] >= 1:
            best = max(best, (count - seen[start][1]) / (now - seen[start][0]))
    return best
