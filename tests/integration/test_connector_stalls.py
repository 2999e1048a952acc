"""An instance that stands still while another one takes over: an older row is never the last one of its key."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable

import psutil

from cdc.rest import rest
from tests.connector_line import ConnectorLine, int32
from tests.fix_connector import CreateLine, DeployConnector, wait_until_acknowledged
from tests.local_run import LocalRun
from tests.servers import PulsarServer

_KEYS = range(40)
_rounds = itertools.count(1)


def _write_round(line: ConnectorLine) -> int:
    """A new value for every key, and its events."""
    value = next(_rounds)
    line.writer.send(
        *[
            line.change(f"INSERT INTO {{t}} (id, a) VALUES ({key}, {value}) USING {{ts}}", int32(key), columns=("a",))
            for key in _KEYS
        ]
    )
    return value


def _unload(line: ConnectorLine, pulsar: PulsarServer) -> None:
    """The broker drops all consumers, as it does with one that has not answered for a minute; who can comes back."""
    path = line.writer.topic.replace("://", "/")
    rest().put(f"{pulsar.admin_url}/admin/v2/{path}-partition-0/unload").raise_for_status()


def test_a_stalled_instance_does_not_leave_an_older_row_as_the_last_one(
    connector_line: CreateLine, local_run: LocalRun, deploy_connector: DeployConnector, pulsar: PulsarServer
) -> None:
    """SIGSTOP of the Python process, of its host, and of both, in mid-stream and longer than an event may wait."""
    line = connector_line("id int PRIMARY KEY, a int")
    local_run.start()
    child = local_run.child()
    value = _write_round(line)
    line.topic.next(len(_KEYS))
    deploy_connector(line.keyspace, "t")
    host = child.parent()
    assert host is not None
    stopped: tuple[list[psutil.Process], ...] = ([child], [host], [child, host])
    for processes in stopped:
        for _ in range(5):
            value = _write_round(line)
        _signal(processes, signal.SIGSTOP)
        stopped_at = time.monotonic()
        try:
            _unload(line, pulsar)
            value = _write_round(line)
            _drain_until(line, lambda since=stopped_at: time.monotonic() - since > 7)  # type: ignore[misc]
        finally:
            _signal(processes, signal.SIGCONT)
        wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
        last: dict[int, object] = {}
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < 3 or set(last.values()) != {value}:
            before = len(line.topic.records)
            line.topic.poll(0.5)
            if len(line.topic.records) > before:
                quiet_since = time.monotonic()
            last = {record.key["id"]: record.value and record.value["a"] for record in line.topic.records}
            assert time.monotonic() - stopped_at < 120, (value, last)
        assert last == dict.fromkeys(_KEYS, value)


def _drain_until(line: ConnectorLine, is_over: Callable[[], bool]) -> None:
    while not is_over():
        line.topic.poll(0.5)


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        os.kill(process.pid, number)
