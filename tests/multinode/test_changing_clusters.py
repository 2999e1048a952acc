"""Clusters that change: nodes that are down, repaired, with another agent, joining and leaving (`make
test-multinode`)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from cassandra.cluster import Session

from cdc.agent_process import AgentProcess
from cdc.sandbox import Sandbox, SandboxOptions
from cdc.sandbox.cassandra_node import CassandraNode
from tests.fault_kit.oracle.topics import Event
from tests.fixtures.connector import Connector, connector_options, data_topic_name
from tests.servers.cassandra_session import make_keyspace
from tests.servers.interface import PulsarServer
from tests.topics.events_topic import wait_until
from tests.topics.multi_node import WAIT_S, connected, events_of, key_hex, wait_for_equal_data, wait_for_keys, write

pytestmark = [pytest.mark.integration, pytest.mark.multinode, pytest.mark.timeout(1800)]

_COMMIT_LOG: Final = "org.apache.cassandra.db:type=Commitlog"
_STORAGE_PROXY: Final = "org.apache.cassandra.db:type=StorageProxy"

Prepare = Callable[[str, ExitStack], Session]


class ChangingCluster:
    """Two nodes, a third one that may join, and an agent beside each of the two."""

    def __init__(self, sandbox: Sandbox, folder: Path, pulsar: PulsarServer) -> None:
        self.sandbox, self.folder, self.pulsar = sandbox, folder, pulsar
        self.agents = [self.agent(node) for node in sandbox.nodes]

    def agent(self, node: CassandraNode, name: str = "", **options: object) -> AgentProcess:
        """Start an agent of a node."""
        agent = AgentProcess.for_node(node, self.pulsar, self.folder / f"agent-{node.name}{name}", **options)
        agent.start()
        return agent

    def events(self, keyspace: str) -> list[Event]:
        """All events of table `t`."""
        return events_of(self.pulsar, keyspace)

    def wait_for_keys(self, keyspace: str, agent: AgentProcess, keys: Sequence[int]) -> list[Event]:
        """Wait until this agent's node has published events of all these keys, and return the events."""
        return wait_for_keys(self.pulsar, keyspace, keys, self.node_id(agent))

    def node_id(self, agent: AgentProcess) -> str:
        """The id of this agent's node in events; the agent knows it once the node has answered."""
        wait_until(lambda: agent.status()["node_id"] is not None, "the agent knows its node", WAIT_S)
        return str(agent.status()["node_id"])


@pytest.fixture(scope="module")
def cluster(pulsar: PulsarServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChangingCluster]:
    """A cluster that these tests may take apart."""
    options = SandboxOptions(nodes=2, waiting_nodes=1, pulsar=False, commitlog_sync_ms=100)
    with Sandbox(options) as running:
        cluster = ChangingCluster(running, tmp_path_factory.mktemp("cluster"), pulsar)
        yield cluster
        for agent in cluster.agents:
            agent.kill()


@pytest.fixture
def prepare(cluster: ChangingCluster, connector_archive: Path, keep_data_topics: None) -> Iterator[Prepare]:
    """A function that makes a keyspace with two replicas, table `t` and its connector, and gives a session by node
    1."""
    connectors: list[Connector] = []

    def make(keyspace: str, exit_stack: ExitStack) -> Session:
        session = exit_stack.enter_context(connected(cluster.sandbox.node)).connect()
        make_keyspace(session, keyspace, 2)
        session.execute(f"CREATE TABLE {keyspace}.t (pk int PRIMARY KEY, v text) WITH cdc = true")
        connector = Connector(cluster.pulsar.admin_url, f"multi-{keyspace.replace('_', '-')}")
        connectors.append(connector)
        options = connector_options(cluster.sandbox.node, keyspace, "t", query__maxBackoffInSec=2)
        connector.create(connector_archive, data_topic_name(keyspace, "t"), options)
        return session

    yield make
    for connector in connectors:
        connector.delete()


def _set(node: CassandraNode, mbean: str, attribute: str, *, value: bool) -> None:
    node._ask({"type": "write", "mbean": mbean, "attribute": attribute, "value": value})


def test_what_a_node_missed_comes_from_it_when_hints_are_replayed(cluster: ChangingCluster, prepare: Prepare) -> None:
    """Node 2 misses 300 written and 100 deleted rows while it is down; later, both agents publish all of them."""
    with ExitStack() as exit_stack:
        session = prepare("hinted", exit_stack)
        write(session, "hinted", range(50))
        cluster.sandbox.nodes[1].kill()
        write(session, "hinted", range(300), "while down")
        for key in range(100):
            session.execute(f"DELETE FROM hinted.t WHERE pk = {key}")
        cluster.sandbox.nodes[1].start()
        first = cluster.wait_for_keys("hinted", cluster.agents[0], range(300))
        second = cluster.wait_for_keys("hinted", cluster.agents[1], range(300))
        deleted = {key_hex(key) for key in range(100)}

        def told_deletions() -> bool:
            second[:] = cluster.wait_for_keys("hinted", cluster.agents[1], range(300))
            return deleted <= {event.partition_key for event in second if event.kind != "ROW"}

        wait_until(told_deletions, "the deletions from node 2", WAIT_S)
        assert {event.key for event in first} == {event.key for event in second}
        wait_for_equal_data(cluster.pulsar, session, "hinted")
        values = session.execute("SELECT COUNT(*) AS rows FROM hinted.t").one()
        assert values.rows == 200


@pytest.mark.parametrize("is_enabled", [False, True])
def test_a_repair_floods_the_topic_only_where_cassandra_says_so(
    cluster: ChangingCluster, prepare: Prepare, is_enabled: bool
) -> None:
    """Without hints, node 2 misses 300 of 900 rows. The repaired rows come as events only with
    cdc_on_repair_enabled."""
    keyspace = f"repaired_{is_enabled}".lower()
    second = cluster.sandbox.nodes[1]
    with ExitStack() as exit_stack:
        session = prepare(keyspace, exit_stack)
        for node in cluster.sandbox.nodes:
            _set(node, _COMMIT_LOG, "CDCOnRepairEnabled", value=is_enabled)
            _set(node, _STORAGE_PROXY, "HintedHandoffEnabled", value=False)
        write(session, keyspace, range(600))
        cluster.wait_for_keys(keyspace, cluster.agents[1], range(600))
        second.kill()
        # Otherwise these writes would wait for node 2 up to the write timeout, and reach it without a hint or a repair.
        wait_until(
            lambda: second.address not in cluster.sandbox.node.live_nodes(), "node 1 takes node 2 for down", WAIT_S
        )
        write(session, keyspace, range(600, 900))
        second.start()
        _set(second, _COMMIT_LOG, "CDCOnRepairEnabled", value=is_enabled)
        before = len(cluster.wait_for_keys(keyspace, cluster.agents[1], range(600)))
        wait_until(lambda: second.address in cluster.sandbox.node.live_nodes(), "node 1 takes node 2 for up", WAIT_S)
        cluster.sandbox.node.repair(keyspace)
        by_second = exit_stack.enter_context(connected(second)).connect()
        assert by_second.execute(f"SELECT COUNT(*) AS rows FROM {keyspace}.t").one().rows == 900
        # A write to node 2 after the repair comes after the repaired rows in its log.
        write(session, keyspace, [10_000])
        events = cluster.wait_for_keys(keyspace, cluster.agents[1], [10_000])
        repaired = len(events) - before - 1
        print(f"cdc_on_repair_enabled {is_enabled}: 300 rows missed, {repaired} events of node 2 by the repair")
        if is_enabled:
            keys = {event.partition_key for event in events}
            assert {key_hex(key) for key in range(900)} <= keys
            assert 300 <= repaired <= 1_800
        else:
            assert repaired == 0
        wait_for_equal_data(cluster.pulsar, session, keyspace)
        for node in cluster.sandbox.nodes:
            _set(node, _STORAGE_PROXY, "HintedHandoffEnabled", value=True)


def test_an_agent_on_another_machine_goes_on_by_the_copied_position(cluster: ChangingCluster, prepare: Prepare) -> None:
    """The working directory is lost: acknowledged events are not sent again, and segments in cdc_raw are not lost."""
    with ExitStack() as exit_stack:
        session = prepare("replaced", exit_stack)
        cluster.agents[0].stop()
        prefix = "persistent://public/default/multi-positions-"
        copied = cluster.agent(cluster.sandbox.node, "-copied", positionsTopicPrefix=prefix)
        write(session, "replaced", range(400))
        cluster.wait_for_keys("replaced", copied, range(400))
        assert copied.stop() == 0
        shutil.rmtree(copied.directory)
        write(session, "replaced", range(400, 500))
        cluster.agents[0] = cluster.agent(cluster.sandbox.node, "-new", positionsTopicPrefix=prefix)
        events = cluster.wait_for_keys("replaced", cluster.agents[0], range(500))
        assert len(events) == 500
        wait_for_equal_data(cluster.pulsar, session, "replaced")


def test_nodes_join_and_leave_and_nothing_is_lost(cluster: ChangingCluster, prepare: Prepare) -> None:
    """A third node bootstraps, takes writes, and is decommissioned; an agent runs beside it all the time."""
    third = cluster.sandbox.waiting_nodes[0]
    with ExitStack() as exit_stack:
        session = prepare("moving", exit_stack)
        write(session, "moving", range(500))
        wait_for_equal_data(cluster.pulsar, session, "moving")
        third.start()
        agent = cluster.agent(third)
        exit_stack.callback(agent.kill)
        own = list(range(500, 1_000))
        write(session, "moving", own)
        write(session, "moving", range(100), "again")
        node_id = cluster.node_id(agent)
        wait_until(lambda: any(event.node == node_id for event in cluster.events("moving")), "events of node 3", WAIT_S)
        streamed = [event for event in cluster.events("moving") if event.node == node_id]
        print(f"{len(streamed)} events of the node that joined")
        third.decommission()
        write(session, "moving", range(1_000, 1_200))
        wait_until(lambda: agent.metric("lag_bytes") == 0, "node 3's log is read", WAIT_S)
        assert agent.stop() == 0
        third.stop()
        wait_for_equal_data(cluster.pulsar, session, "moving")
        told = {event.partition_key for event in cluster.events("moving")}
        assert {key_hex(key) for key in range(1_200)} <= told
        assert [each.metric("parked") for each in cluster.agents] == [0, 0]
