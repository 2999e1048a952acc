"""Several instances of a source, and bundles that are unloaded at random moments: each key's last record is its row."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence

import psutil
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args

from cdc.rest import rest
from tests.fixtures.connector import DeployConnector, OpenDataTopic, OpenEventsWriter, wait_until_acknowledged
from tests.servers.interface import PulsarServer
from tests.servers.local_run import LocalRun
from tests.topics.connector_line import ConnectorLine, int32
from tests.topics.events_topic import wait_until

_KEYS = 2_000
_OF_A_MESSAGE = 50
_ON_THEIR_WAY = 400
# An instance reads a row again when its record took 5 s.
_NOT_NOTICED_S = 4.0


class _Rows:
    """Writes the table's rows and sends their events; each topic partition has its share of the keys."""

    def __init__(self, line: ConnectorLine) -> None:
        self._line = line
        name = f"{line.keyspace}.t"
        self._insert = line.cql.prepare(f"INSERT INTO {name} (id, a) VALUES (?, ?) USING TIMESTAMP ?")
        self._round = 0

    def write(self, keys: Sequence[int]) -> None:
        """Write a new value for each of these keys, and send the events."""
        self._round += 1
        value = self._round
        execute_concurrent_with_args(self._line.cql, self._insert, [(key, value, value) for key in keys])
        writer = self._line.writer
        for partition in range(writer.partitions):
            own = [key for key in keys if key % writer.partitions == partition]
            for at in range(0, len(own), _OF_A_MESSAGE):
                part = own[at : at + _OF_A_MESSAGE]
                events = [writer.event(int32(key), writetime_us=value, columns=("a",)) for key in part]
                writer.send(*events, partition=partition)


def _consumers(line: ConnectorLine, pulsar: PulsarServer) -> list[tuple[str, int]]:
    """The active consumer's name and the number of consumers, for each partition of the events topic."""
    url = f"{pulsar.admin_url}/admin/v2/{line.writer.topic.replace('://', '/')}/partitioned-stats"
    stats = rest().get(url, params={"perPartition": "true"}, timeout=30).raise_for_status().json()["partitions"]
    subscriptions = [stats[name]["subscriptions"]["sub"] for name in sorted(stats)]
    return [(each.get("activeConsumerName", ""), len(each["consumers"])) for each in subscriptions]


def _are_shared(line: ConnectorLine, pulsar: PulsarServer) -> bool:
    found = _consumers(line, pulsar)
    return all(count == 4 for _, count in found) and len({name for name, _ in found}) == 4


def _unload(line: ConnectorLine, pulsar: PulsarServer) -> None:
    path = line.writer.topic.replace("://", "/")
    for partition in range(line.writer.partitions):
        rest().put(f"{pulsar.admin_url}/admin/v2/{path}-partition-{partition}/unload", timeout=30).raise_for_status()


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        process.send_signal(number)


def test_the_last_record_of_each_key_is_its_row_when_partitions_change_hands(
    cql: Session,
    keyspace: str,
    open_events_writer: OpenEventsWriter,
    open_data_topic: OpenDataTopic,
    local_run: LocalRun,
    deploy_connector: DeployConnector,
    pulsar: PulsarServer,
) -> None:
    """Records in progress at two of four instances come 4 s later, too soon for a second read; then bundles are
    unloaded while all instances run."""
    cql.execute(f"CREATE TABLE {keyspace}.t (id int PRIMARY KEY, a int)")
    line = ConnectorLine(
        cql, keyspace, open_events_writer(keyspace, "t", partitions=4), open_data_topic(f"{keyspace}.t")
    )
    rows = _Rows(line)
    local_run.start(parallelism=2)
    deploy_connector(keyspace, "t", settings={"parallelism": 2})
    wait_until(lambda: _are_shared(line, pulsar), "one partition for each of four instances", 240)
    rows.write(range(_KEYS))
    line.topic.wait_for(_KEYS)
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    children = local_run.children(2)
    host = children[0].parent()
    assert host is not None
    _signal([host], signal.SIGSTOP)
    try:
        rows.write(range(_ON_THEIR_WAY))
        since = time.monotonic()
        time.sleep(0.5)  # The children read the rows, and hand them to the host.
        _signal(children, signal.SIGSTOP)
        _unload(line, pulsar)
        rows.write(range(_ON_THEIR_WAY))
        while time.monotonic() - since < _NOT_NOTICED_S:
            line.topic.poll(0.1)
    finally:
        _signal([host, *children], signal.SIGCONT)
    drawn = random.Random(20261123)
    for _ in range(2):
        rows.write(range(_ON_THEIR_WAY, _KEYS))  # Without the first keys: their last records must stay the last.
        time.sleep(drawn.uniform(0, 0.5))
        _unload(line, pulsar)
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    line.topic.take_all()
    wanted = {each.id: each.a for each in cql.execute(f"SELECT id, a FROM {keyspace}.t")}
    last = {record.key["id"]: record.value and record.value["a"] for record in line.topic.records}
    wrong = {key: (last.get(key), value) for key, value in wanted.items() if last.get(key) != value}
    assert (len(wanted), wrong) == (_KEYS, {})
