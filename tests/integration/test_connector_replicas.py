"""One of two nodes lags behind: a published row is never older than its event."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from cassandra import ConsistencyLevel, DriverException, WriteTimeout
from cassandra.cluster import NoHostAvailable, Session
from cassandra.query import SimpleStatement

from cdc.sandbox import Sandbox
from cdc.sandbox.cassandra_node import CassandraNode
from schemas.mutation_event import MutationEvent
from tests.fixtures.connector import (
    Connector,
    OpenDataTopic,
    connector_options,
    data_topic_name,
    wait_until_acknowledged,
)
from tests.servers.cassandra_session import cluster_of, make_keyspace
from tests.servers.interface import PulsarServer
from tests.topics.connector_line import int32
from tests.topics.data_topic import DataRecord, DataTopic
from tests.topics.events_topic import wait_until
from tests.topics.events_writer import EventsWriter

_numbers = itertools.count(1)
# Cassandra drops a write that reaches a node later than this.
_WRITE_TIMEOUT_MS = 2_000
_MESSAGES_EXPIRE_S = 4
_STORAGE_PROXY = "org.apache.cassandra.db:type=StorageProxy"


class Lagging:
    """Table `t`, whose rows are 'old' on the first replica and 'new' on the other one."""

    def __init__(
        self, session: Session, keyspace: str, writer: EventsWriter, nodes: Sandbox, pulsar: PulsarServer
    ) -> None:
        self.keyspace = keyspace
        self._writer = writer
        self._session = session
        self._pulsar = pulsar
        self.contact, self.behind = nodes.nodes
        hosts = {host.address: host for host in session.cluster.metadata.all_hosts()}
        self._node = hosts[self.behind.address].host_id
        session.cluster.refresh_schema_metadata()
        replicas = session.cluster.metadata.get_replicas
        first = [key for key in range(200) if replicas(keyspace, int32(key))[0].address == self.behind.address]
        self.keys = first[:20]
        self.new_key = next(key for key in first if key not in self.keys)
        for key in self.keys:
            row = f"({key}, 'old', 'w', {{1}}, 'old')"
            self._write(f"INSERT INTO {keyspace}.t (id, v, w, s, x) VALUES {row} USING TIMESTAMP 5", "ALL")

    def fall_behind(self) -> None:
        """Write the new state to one node only: the other one is suspended until the messages to it have expired."""
        self.suspend()
        try:
            self._write_new()
            time.sleep(_MESSAGES_EXPIRE_S)
        finally:
            self.resume()

    def _write_new(self) -> None:
        keyspace = self.keyspace
        for key in self.keys:
            self._write(f"INSERT INTO {keyspace}.t (id, v) VALUES ({key}, 'new') USING TIMESTAMP 9", "ONE")
            self._write(f"DELETE w FROM {keyspace}.t USING TIMESTAMP 9 WHERE id = {key}", "ONE")
            self._write(f"UPDATE {keyspace}.t USING TIMESTAMP 9 SET s = s + {{2}} WHERE id = {key}", "ONE")
            self._write(f"UPDATE {keyspace}.t USING TTL 1 AND TIMESTAMP 9 SET x = 'brief' WHERE id = {key}", "ONE")
        self._write(f"INSERT INTO {keyspace}.t (id) VALUES ({self.new_key}) USING TIMESTAMP 9", "ONE")

    def suspend(self, node: CassandraNode | None = None) -> None:
        """Suspend a node, by default the one that is behind, so that it answers nothing."""
        self._signal(node or self.behind, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume both nodes, and return when they serve reads."""
        self._signal(self.behind, signal.SIGCONT)
        self._signal(self.contact, signal.SIGCONT)
        select = f"SELECT v FROM {self.keyspace}.t WHERE id = {self.keys[0]}"

        def serves_all() -> bool:
            try:
                self._run(select, "ALL")
            except (DriverException, NoHostAvailable):
                return False
            return True

        wait_until(serves_all, "all replicas answering")

    @staticmethod
    def _signal(node: CassandraNode, number: signal.Signals) -> None:
        assert node.pid is not None
        os.kill(node.pid, number)

    def send(self, keys: Sequence[int], *columns: str, is_live: bool = True) -> None:
        """Send events of the new state that name the node that is behind, so that it is asked first."""
        events = [self._event(key, columns, is_live=is_live) for key in keys]
        self._writer.send(*events, node=self._node)

    def records(self, topic: DataTopic) -> list[DataRecord]:
        """The records of all events, once the connector is done with them.

        The connector reads a row again when its record took long, and may then read it from other replicas.
        """
        wait_until_acknowledged(self._writer.topic, self._pulsar.admin_url)
        return topic.take_all()

    def _event(self, key: int, columns: Sequence[str], *, is_live: bool) -> MutationEvent:
        return self._writer.event(int32(key), writetime_us=9, columns=columns, is_live=is_live)

    def _write(self, statement: str, consistency: str) -> None:
        """Write, and write again after a timeout. The statement has a timestamp, so a second write changes nothing."""

        def is_written() -> bool:
            try:
                self._run(statement, consistency)
            except WriteTimeout:
                return False
            return True

        wait_until(is_written, statement)

    def _run(self, statement: str, consistency: str) -> None:
        level = ConsistencyLevel.name_to_value[consistency]
        self._session.execute(SimpleStatement(statement, consistency_level=level))


@pytest.fixture(scope="module")
def session(two_nodes: Sandbox) -> Iterator[Session]:
    """A session with the cluster of two nodes through the first one, which stores no hints for the other."""
    first = two_nodes.node
    hints = {"type": "write", "mbean": _STORAGE_PROXY, "attribute": "HintedHandoffEnabled"}
    first._ask({**hints, "value": False})
    with cluster_of(first) as cluster:
        yield cluster.connect()
    first._ask({**hints, "value": True})


@contextmanager
def _short_write_timeout(nodes: Sequence[CassandraNode]) -> Iterator[None]:
    """Set a short write timeout on both nodes: the node that lags behind applies its own timeout to a late write."""
    timeout = {"type": "write", "mbean": _STORAGE_PROXY, "attribute": "WriteRpcTimeout"}
    # Jolokia answers a write with the previous value.
    before = [node._ask({**timeout, "value": _WRITE_TIMEOUT_MS}) for node in nodes]
    try:
        yield
    finally:
        for node, value in zip(nodes, before, strict=True):
            node._ask({**timeout, "value": value})


DeployOnTwo = Callable[..., Connector]


@pytest.fixture
def lagging(session: Session, pulsar: PulsarServer, two_nodes: Sandbox) -> Iterator[Lagging]:
    """A keyspace of the test's own."""
    keyspace = f"lagging_{os.getpid()}_{next(_numbers)}"
    make_keyspace(session, keyspace, 2)
    session.execute(
        f"CREATE TABLE {keyspace}.t (id int PRIMARY KEY, v text, w text, s set<int>, x text) WITH read_repair = 'NONE'"
    )
    writer = EventsWriter(session, pulsar, keyspace, "t")
    made = Lagging(session, keyspace, writer, two_nodes, pulsar)
    # Only now: the rows before need the 30 s of the tests' nodes, because all replicas must answer these writes.
    with _short_write_timeout(two_nodes.nodes):
        made.fall_behind()
        yield made
    writer.close()


@pytest.fixture
def deploy(
    connector_archive: Path, two_nodes: Sandbox, pulsar: PulsarServer, lagging: Lagging
) -> Iterator[DeployOnTwo]:
    """Create a connector for the lagging table, whose first consistency level is LOCAL_ONE."""
    deployed: list[Connector] = []

    def create(**options: object) -> Connector:
        connector = Connector(pulsar.admin_url, f"{lagging.keyspace}-{len(deployed)}")
        deployed.append(connector)
        configs = connector_options(
            two_nodes.node, lagging.keyspace, "t", query__consistencyLevel="LOCAL_ONE", **options
        )
        connector.create(connector_archive, data_topic_name(lagging.keyspace, "t"), configs)
        return connector

    yield create
    for connector in deployed:
        connector.delete()


def _value(record: DataRecord, column: str) -> object:
    return "no row" if record.value is None else record.value[column]


def _last(records: Sequence[DataRecord], column: str) -> dict[int, object]:
    return {record.key["id"]: _value(record, column) for record in records}


class Checked:
    """A connector that proves its reads, and the records that it publishes."""

    def __init__(self, lagging: Lagging, connector: Connector, topic: DataTopic) -> None:
        self._lagging = lagging
        self._connector = connector
        self._topic = topic
        self._others = 0

    def expect(
        self, keys: Sequence[int], shown: str, value: object, *, columns: Sequence[str], is_live: bool = True
    ) -> None:
        """Send events of these columns until the records show this value.

        The connector leaves out a node that does not answer in time, and may then publish an older row. Each such read
        must be counted as a fallback.
        """
        expected = dict.fromkeys(keys, value)

        def is_published() -> bool:
            self._lagging.send(keys, *columns, is_live=is_live)
            records = self._lagging.records(self._topic)
            found = _last(records, shown)
            assert found.keys() == expected.keys()
            self._others += sum(_value(record, shown) != value for record in records)
            wait_until(
                lambda: self._connector.metric("reads_at_fallback") >= self._others, f"a fallback for each of {found}"
            )
            return found == expected

        wait_until(is_published, f"{shown} of all replicas")


def test_what_a_replica_does_not_have_yet_is_read_from_the_others(
    lagging: Lagging, deploy: DeployOnTwo, open_data_topic: OpenDataTopic
) -> None:
    """Old rows are published without the check, and none with it, whether or not write times can prove the change."""
    topic = open_data_topic(f"{lagging.keyspace}.t")
    unchecked = deploy(query__proveReads=False)

    def is_old_row_published() -> bool:
        # Cassandra chooses the replica that answers: after a pause, a node is asked again only after a while.
        lagging.send(lagging.keys, "v")
        return "old" in [_value(record, "v") for record in lagging.records(topic)]

    wait_until(is_old_row_published, "an old row from the replica that lags behind")
    unchecked.delete()
    checked = Checked(lagging, deploy(), topic)
    checked.expect(lagging.keys[:10], "v", "new", columns=["v"])
    checked.expect(lagging.keys[10:], "w", None, columns=["w"], is_live=False)  # A deleted column proves nothing.


def test_what_no_write_time_proves_is_read_from_all_replicas_and_published(
    lagging: Lagging, deploy: DeployOnTwo, open_data_topic: OpenDataTopic
) -> None:
    """No write time proves a row of only its key, a collection's element, a column whose TTL is over, or a column that
    is not selected."""
    topic = open_data_topic(f"{lagging.keyspace}.t")
    everything = deploy()
    checked = Checked(lagging, everything, topic)
    checked.expect([lagging.new_key], "v", None, columns=[])
    checked.expect(lagging.keys[:5], "s", [1, 2], columns=["s"])
    checked.expect(lagging.keys[5:10], "x", None, columns=["x"])
    everything.delete()
    checked = Checked(lagging, deploy(columns="v"), topic)
    checked.expect(lagging.keys[10:15], "v", "new", columns=["w"])


def test_a_replica_that_stands_still_holds_up_nothing_for_ever_and_never_silently(
    lagging: Lagging, deploy: DeployOnTwo, open_data_topic: OpenDataTopic
) -> None:
    """While a node is suspended, its reads are done and counted at the fallback level, and suppress no later copy.

    Then the connector's contact point is suspended: no instance of the connector ends.
    """
    topic = open_data_topic(f"{lagging.keyspace}.t")
    connector = deploy(query__maxBackoffInSec=2, queryExecutionTimeout=3)
    first, second, third = lagging.keys[:3]
    lagging.send([first], "v")
    assert lagging.records(topic)[0].key == {"id": first}
    lagging.suspend()
    try:
        lagging.send([second], "w", is_live=False)
        assert topic.next()[0].key == {"id": second}
        wait_until(lambda: connector.metric("reads_at_fallback") >= 1, "the fallback in the metrics")
    finally:
        lagging.resume()

    def is_read_at_the_higher_level() -> bool:
        # The node is left out for some seconds more.
        lagging.send([second], "w", is_live=False)
        shown = _last(lagging.records(topic), "w")[second]
        assert shown != "no row"
        return shown is None

    wait_until(is_read_at_the_higher_level, "the higher level is asked again")
    lagging.suspend(lagging.contact)
    try:
        lagging.send([third], "v")
        assert topic.next()[0].key == {"id": third}
    finally:
        lagging.resume()

    def is_new_row_published() -> bool:
        lagging.send([third], "v")
        return _last(lagging.records(topic), "v") == {third: "new"}

    wait_until(is_new_row_published, "the higher level is asked again")
    assert connector.restarts() == 0
