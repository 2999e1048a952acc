"""A real agent beside the shared Cassandra node, and CQL in, events out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cassandra.cluster import Session

from cdc.agent_process import AgentProcess
from cdc.sandbox import Sandbox, SandboxOptions
from schemas.topics import events_topic
from tests.agent_table import AgentTable
from tests.cassandra_session import cluster_of
from tests.events_topic import EventsTopic, TopicEvent
from tests.servers import CassandraServer, PulsarServer

_numbers = itertools.count(1)

EventsFor = Callable[..., list[TopicEvent]]
TopicOf = Callable[[str], EventsTopic]


@pytest.fixture(scope="session")
def agent(
    cassandra_node: CassandraServer, pulsar: PulsarServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AgentProcess]:
    """The agent of the shared node, shared by the session. Whoever stops it starts it again."""
    running = AgentProcess.for_node(cassandra_node, pulsar, tmp_path_factory.mktemp("agent"))
    running.start()
    yield running
    assert running.stop() == 0, running.log_tail()


@pytest.fixture(scope="session")
def cql(cassandra_node: CassandraServer) -> Iterator[Session]:
    """A session with the shared node."""
    with cluster_of(cassandra_node) as cluster:
        yield cluster.connect()


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[Sandbox]:
    """A cluster of two Cassandra nodes, without a Pulsar of its own."""
    # a node that stood still for a test would be avoided for minutes: the dynamic snitch remembers how slow it was
    # and what was written meanwhile must be forgotten soon, or a replica that is to lag behind gets it after all
    settings = {"dynamic_snitch": False, "write_request_timeout_in_ms": 2_000}
    options = SandboxOptions(nodes=2, pulsar=False, commitlog_sync_ms=100, cassandra_settings=settings)
    with Sandbox(options) as running:
        yield running


@pytest.fixture(scope="session")
def two_agents(
    two_nodes: Sandbox, pulsar: PulsarServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[AgentProcess]]:
    """An agent beside each of the two nodes, publishing to the shared Pulsar."""
    agents = [AgentProcess.for_node(node, pulsar, tmp_path_factory.mktemp("agent")) for node in two_nodes.nodes]
    for each in agents:
        each.start()
    yield agents
    for each in agents:
        assert each.stop() == 0, each.log_tail()


@pytest.fixture
def keyspace(cql: Session) -> str:
    """A keyspace of the test's own."""
    name = f"agent_{next(_numbers)}"
    cql.execute(f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    return name


@pytest.fixture
def open_topic(pulsar: PulsarServer) -> Iterator[Callable[[str, str], EventsTopic]]:
    """The events topic of a keyspace and a table, to read from; closed after the test."""
    opened: list[EventsTopic] = []

    def open_topic(keyspace: str, table: str) -> EventsTopic:
        opened.append(EventsTopic(pulsar.service_url, pulsar.admin_url, events_topic(keyspace, table)))
        return opened[-1]

    yield open_topic
    for topic in opened:
        topic.close()


@pytest.fixture
def events_for(
    agent: AgentProcess, cql: Session, keyspace: str, open_topic: Callable[[str, str], EventsTopic]
) -> EventsFor:
    """CQL in, events out: create table `t` with this definition, run statements, give the events that follow.

    `{t}` in a statement is the table's full name. As many events are waited for as `count` says, then a marker row is
    written behind them, so that events too many are seen as well.
    """

    def events_for(definition: str, *statements: str, count: int) -> list[TopicEvent]:
        table = f"{keyspace}.t"
        cql.execute(f"CREATE TABLE {table} ({definition}) WITH cdc = true")
        for statement in statements:
            cql.execute(statement.replace("{t}", table))
        cql.execute(f"CREATE TABLE {keyspace}.marker (pk int PRIMARY KEY) WITH cdc = true")
        cql.execute(f"INSERT INTO {keyspace}.marker (pk) VALUES (1)")
        open_topic(keyspace, "marker").wait_for(1)
        # The log's order is the order of acknowledgement within a topic only: the marker may overtake.
        return open_topic(keyspace, "t").wait_for(count)

    return events_for


@pytest.fixture
def table(
    cql: Session, agent: AgentProcess, keyspace: str, open_topic: Callable[[str, str], EventsTopic]
) -> Iterator[AgentTable]:
    """A table to be created by the test; the agent runs again when the test ends."""
    yield AgentTable(cql, agent, keyspace, open_topic)
    if not agent.running:
        agent.start()


@pytest.fixture
def agent_directory(tmp_path: Path) -> Path:
    """A folder for an agent of the test's own."""
    return tmp_path / "agent"


@pytest.fixture
def running_servers(servers: Sandbox) -> Sandbox:
    """The module's own servers, all of them running: a test that failed may have left one stopped."""
    for server in (*servers.nodes, servers.pulsar):
        if not server.running:
            server.start()
    return servers


@pytest.fixture
def topic_of(servers: Sandbox) -> Iterator[TopicOf]:
    """The events topic of a table, to read from; for tests with servers of their own, which are the fixture `servers`."""
    opened: list[EventsTopic] = []

    def open_topic(table: str) -> EventsTopic:
        pulsar = servers.pulsar
        opened.append(EventsTopic(pulsar.service_url, pulsar.admin_url, events_topic(*table.split("."))))
        return opened[-1]

    yield open_topic
    for topic in opened:
        topic.close()
