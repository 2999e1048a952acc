"""TRUNCATE on two nodes while rows are written, then DROP: each is one record, by which the topic folds to the
table."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator, Sequence

import pytest
from cassandra import DriverException
from cassandra.cluster import NoHostAvailable, Session
from cassandra.concurrent import execute_concurrent_with_args

from cdc.agent_process import AgentProcess
from cdc.sandbox import Sandbox
from source_connector.rows.cassandra_client import CassandraClient, CassandraOptions
from tests.fault_kit.oracle.cassandra_rows import select_all, table_shape
from tests.fault_kit.oracle.comparison import compare
from tests.fault_kit.oracle.folding import fold
from tests.fault_kit.oracle.topics import Clearing, TopicReader
from tests.fixtures.connector import Connector, connector_options, data_topic_name, wait_until_acknowledged
from tests.servers.cassandra_session import answered, cluster_of, make_keyspace
from tests.servers.interface import PulsarServer
from tests.topics.events_topic import wait_until

_CHANGES = "cdc-events-schema-changes"
# Each test has its own keyspace, because the nodes are shared.
_numbers = itertools.count(1)


@pytest.fixture
def session(two_nodes: Sandbox) -> Iterator[Session]:
    """A session with both nodes."""
    with cluster_of(two_nodes.node) as cluster:
        yield cluster.connect()


@pytest.fixture
def keyspace(session: Session) -> str:
    """A keyspace with an empty table `t` on both nodes."""
    name = f"truncated_{os.getpid()}_{next(_numbers)}"
    make_keyspace(session, name, 2)
    session.execute(f"CREATE TABLE {name}.t (pk int, ck int, v text, PRIMARY KEY (pk, ck)) WITH cdc = true")
    return name


@pytest.fixture
def connector(
    connector_archive: object, two_nodes: Sandbox, pulsar: PulsarServer, keyspace: str, keep_data_topics: None
) -> Iterator[Connector]:
    """A connector of the table."""
    running = Connector(pulsar.admin_url, keyspace)
    configs = connector_options(two_nodes.node, keyspace, "t")
    running.create(connector_archive, data_topic_name(keyspace, "t"), configs)  # type: ignore[arg-type]  # a path
    yield running
    running.delete()


class Writer(threading.Thread):
    """Writes new keys from a first one on until it is stopped."""

    def __init__(self, session: Session, keyspace: str, first: int) -> None:
        super().__init__(daemon=True)
        self._session = session
        self._insert = session.prepare(f"INSERT INTO {keyspace}.t (pk, ck, v) VALUES (?, ?, ?)")
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._first = first
        self._written = 0

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                first = self._first + self._written
                rows = [(each % 50, each, f"v{each}") for each in range(first, first + 20)]
                execute_concurrent_with_args(self._session, self._insert, rows, concurrency=8)
                self._written += len(rows)
        except (DriverException, NoHostAvailable) as error:
            self._failure = error

    @property
    def written(self) -> int:
        """Number of rows that Cassandra has acknowledged; raises the error that ended the writes."""
        if self._failure is not None:
            raise self._failure
        return self._written

    def stop(self) -> None:
        """Stop, and return when no write is in progress."""
        self._stopping.set()
        self.join()


def _published(pulsar: PulsarServer, keyspace: str) -> int:
    """Number of records on the data topic."""
    with TopicReader(pulsar.service_url, pulsar.admin_url) as topics:
        topic = f"persistent://public/default/data-{keyspace}.t"
        return len(list(topics.data_records(topic))) if any(each.startswith(topic) for each in topics.topics()) else 0


def _told(pulsar: PulsarServer, keyspace: str) -> list[Clearing]:
    with TopicReader(pulsar.service_url, pulsar.admin_url) as topics:
        if f"persistent://public/default/{_CHANGES}" not in topics.topics():
            return []
        return [each for each in topics.clearings(_CHANGES) if each.table == f"{keyspace}.t"]


def test_a_truncation_under_load_is_one_record_and_leaves_the_table(
    session: Session, keyspace: str, connector: Connector, two_agents: list[AgentProcess], pulsar: PulsarServer
) -> None:
    """Both nodes truncate twice while rows are written; records folded with the truncations equal SELECT."""
    events = f"persistent://public/default/cdc-events-{keyspace}.t"
    _publish_a_row_for_good(session, keyspace, pulsar, events)
    for number in (1, 2):
        # No key of the first round is written again, so its records stay, even if the rows of the second round are read
        # after the truncation.
        writer = Writer(session, keyspace, first=number * 1_000_000)
        writer.start()
        rows = _published(pulsar, keyspace)
        wait_until(lambda: _published(pulsar, keyspace) >= rows + 200, "rows before the truncation")  # noqa: B023
        session.execute(f"TRUNCATE {keyspace}.t", timeout=60)
        before = writer.written
        wait_until(lambda: writer.written >= before + 100, "rows behind the truncation")  # noqa: B023
        writer.stop()
        wait_until(lambda: len(_told(pulsar, keyspace)) >= number, "the record of the truncation")  # noqa: B023
    _expect_equal(session, keyspace, pulsar, events)
    told = _told(pulsar, keyspace)
    assert [(each.kind, len(each.nodes)) for each in told] == [("truncation", 2), ("truncation", 2)]
    assert len({each.table_id for each in told}) == 1
    session.execute(f"DROP TABLE {keyspace}.t")
    wait_until(lambda: [each.kind for each in _told(pulsar, keyspace)][2:] == ["drop"], "the record of the drop")


def test_a_node_that_gives_no_answer_counts_as_one_that_has_not_truncated(
    session: Session, keyspace: str, two_nodes: Sandbox
) -> None:
    """Such a node may answer reads before it truncates, so the record of the truncation waits for it."""
    session.execute(f"TRUNCATE {keyspace}.t", timeout=60)
    select = "SELECT id FROM system_schema.tables WHERE keyspace_name = %s AND table_name = 't'"
    table_id = session.execute(select, (keyspace,)).one().id
    first, silent = two_nodes.nodes
    options = CassandraOptions(
        contact_points=(first.address,), port=first.native_port, local_dc="datacenter1", read_timeout_s=60
    )
    client = CassandraClient(options)
    answered(client.connect)

    def truncated() -> list[bool]:
        return sorted(each is not None for each in client.truncations(table_id).values())

    try:
        wait_until(lambda: truncated() == [True, True], "both nodes have truncated")
        assert silent.pid is not None
        os.kill(silent.pid, signal.SIGSTOP)
        try:
            assert truncated() == [False, True]
        finally:
            os.kill(silent.pid, signal.SIGCONT)
        wait_until(lambda: truncated() == [True, True], "the node answers again")
    finally:
        client.close()


def _publish_a_row_for_good(session: Session, keyspace: str, pulsar: PulsarServer, events: str) -> None:
    """Publish a row whose record stays the last one: both agents' events are acknowledged before any truncation.

    For the other rows, an agent that is behind may publish each event after the truncation, so that the connector
    publishes nulls.
    """
    session.execute(f"INSERT INTO {keyspace}.t (pk, ck, v) VALUES (0, 0, 'until the truncation')")

    def nodes() -> set[str]:
        with TopicReader(pulsar.service_url, pulsar.admin_url) as topics:
            return {each.node for each in topics.events(f"cdc-events-{keyspace}.t")}

    wait_until(lambda: len(nodes()) == 2, "the row's events of both agents")
    wait_until_acknowledged(events, pulsar.admin_url)
    assert _published(pulsar, keyspace) == 1


def _expect_equal(session: Session, keyspace: str, pulsar: PulsarServer, events: str) -> None:
    wait_until_acknowledged(events, pulsar.admin_url)
    shape = table_shape(session, keyspace, "t")

    def differences(clearings: Sequence[Clearing]) -> list[str]:
        with TopicReader(pulsar.service_url, pulsar.admin_url) as topics:
            records = list(topics.data_records(f"persistent://public/default/data-{keyspace}.t"))
        return compare(
            shape, select_all(session, keyspace, shape), fold(shape, records, clearings=clearings)
        ).differences

    # The agents may not have published the last writes yet.
    wait_until(lambda: differences(_told(pulsar, keyspace)) == [], "what is folded by the rule equal to SELECT")
    # Without the truncations the topic does not fold to the table, so a truncation deleted rows.
    assert differences(()) != []
