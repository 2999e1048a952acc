"""An instance stalls while another one takes over: an older row is never the last record of its key."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest

from cdc.rest import rest
from schemas.mutation_event import MutationEvent, MutationKind
from tests.fixtures.connector import CreateLine, DeployConnector, wait_until_acknowledged
from tests.servers.interface import PulsarServer
from tests.servers.local_run import LocalRun
from tests.topics.connector_line import ConnectorLine, int32

_KEYS = range(40)
_rounds = itertools.count(1)


def _write_round(line: ConnectorLine) -> dict[int, int | None]:
    """Write a new value for every key, delete some rows, and send the events; return the rows as they are now."""
    value = next(_rounds)
    rows = {key: None if (key + value) % 5 == 0 else value for key in _KEYS}
    line.writer.send(*[_event(line, key, row) for key, row in rows.items()])
    return rows


def _event(line: ConnectorLine, key: int, value: int | None) -> MutationEvent:
    if value is None:
        delete = f"DELETE FROM {{t}} USING {{ts}} WHERE id = {key}"
        return line.change(delete, int32(key), kind=MutationKind.ROW_DELETION, is_live=False)
    insert = f"INSERT INTO {{t}} (id, a) VALUES ({key}, {value}) USING {{ts}}"
    return line.change(insert, int32(key), columns=("a",))


def _unload(line: ConnectorLine, pulsar: PulsarServer) -> None:
    """The broker disconnects all consumers, as if they had not answered for a minute; running consumers reconnect."""
    path = line.writer.topic.replace("://", "/")
    rest().put(f"{pulsar.admin_url}/admin/v2/{path}-partition-0/unload").raise_for_status()


@pytest.mark.extended
def test_a_stalled_instance_does_not_leave_an_older_row_as_the_last_one(
    connector_line: CreateLine, local_run: LocalRun, deploy_connector: DeployConnector, pulsar: PulsarServer
) -> None:
    """SIGSTOP within a stream: of the Python process and of its host for a minute each, and of both for longer than an
    event may wait."""
    line = connector_line("id int PRIMARY KEY, a int")
    local_run.start()
    child = local_run.child()
    _write_round(line)
    line.topic.next(len(_KEYS))
    deploy_connector(line.keyspace, "t")
    host = child.parent()
    assert host is not None
    stalls: tuple[tuple[list[psutil.Process], float], ...] = (([child], 60), ([host], 60), ([child, host], 7))
    for processes, stalled_s in stalls:
        for _ in range(5):
            _write_round(line)
        _signal(processes, signal.SIGSTOP)
        stopped_at = time.monotonic()
        try:
            _unload(line, pulsar)
            rows = _write_round(line)
            if child in processes:  # the other instance has all events, unless this child runs and has a share
                _drain_until(line, lambda wanted=rows: _last_values(line) == wanted)  # type: ignore[misc]
            _drain_until(line, lambda over_at=stopped_at + stalled_s: time.monotonic() > over_at)  # type: ignore[misc]
        finally:
            _signal(processes, signal.SIGCONT)
        wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < 3:
            before = len(line.topic.records)
            line.topic.poll(0.5)
            if len(line.topic.records) > before:
                quiet_since = time.monotonic()
        assert _last_values(line) == rows


def _last_values(line: ConnectorLine) -> dict[int, object]:
    """The last record of each key on the data topic."""
    return {record.key["id"]: record.value and record.value["a"] for record in line.topic.records}


def _drain_until(line: ConnectorLine, is_over: Callable[[], bool], timeout_s: float = 180) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not is_over():
        line.topic.poll(0.5)
        assert time.monotonic() < give_up_at, _last_values(line)


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        os.kill(process.pid, number)
