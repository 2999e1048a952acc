"""Clusters that change: nodes down, replaced, joining and leaving, repairs, two data centres, upgrades in place.

These tests start servers by the dozen and take a quarter of an hour: `make test-multinode` runs them, `make test` does not.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.policies import WhiteListRoundRobinPolicy

from cdc.agent_process import AgentProcess
from cdc.faults.oracle.cassandra_rows import select_all, table_shape
from cdc.faults.oracle.comparison import Expiries, compare
from cdc.faults.oracle.folding import fold
from cdc.faults.oracle.topics import Event, TopicReader
from cdc.sandbox import Sandbox, SandboxOptions
from cdc.sandbox.cassandra_node import CassandraNode
from tests.events_topic import wait_until
from tests.fix_connector import Connector, connector_options, data_topic_name
from tests.servers import PulsarServer

pytestmark = [pytest.mark.integration, pytest.mark.multinode, pytest.mark.timeout(1800)]

_WAIT_S = 300
_COMMIT_LOG = "org.apache.cassandra.db:type=Commitlog"
_STORAGE_PROXY = "org.apache.cassandra.db:type=StorageProxy"


class Cluster2:
    """Two nodes, a third that may join, an agent beside each, and a connector for table `t` of a keyspace of the test's own."""

    def __init__(self, sandbox: Sandbox, folder: Path, pulsar: PulsarServer) -> None:
        self.sandbox, self.folder, self.pulsar = sandbox, folder, pulsar
        self.agents = [self.agent(node) for node in sandbox.nodes]

    def agent(self, node: CassandraNode, name: str = "", **options: object) -> AgentProcess:
        """An agent of a node, started."""
        agent = AgentProcess.for_node(node, self.pulsar, self.folder / f"agent-{node.name}{name}", **options)
        agent.start()
        return agent

    def session(self, exit_stack: ExitStack, node: CassandraNode | None = None) -> Session:
        """A session by one node."""
        return exit_stack.enter_context(_connected(node or self.sandbox.node)).connect()

    def events(self, keyspace: str) -> list[Event]:
        """All events of table `t`."""
        with TopicReader(self.pulsar.service_url, self.pulsar.admin_url) as topics:
            return topics.events(f"cdc-events-{keyspace}.t")

    def wait_for_keys(self, keyspace: str, agent: AgentProcess, keys: Sequence[int]) -> list[Event]:
        """Until the node of this agent has told all these keys."""
        found: list[Event] = []

        def is_told() -> bool:
            node_id = str(agent.status()["node_id"])
            found[:] = [event for event in self.events(keyspace) if event.node == node_id]
            return {_hex(key) for key in keys} <= {event.partition_key for event in found}

        wait_until(is_told, f"{len(keys)} keys from {agent.directory.name}", _WAIT_S)
        return found

    def check_data(self, session: Session, keyspace: str) -> None:
        """Until the data topic, folded, is the table."""
        last: list[str] = []

        def is_equal() -> bool:
            with TopicReader(self.pulsar.service_url, self.pulsar.admin_url) as topics:
                records = list(topics.data_records(f"persistent://public/default/data-{keyspace}.t"))
            shape = table_shape(session, keyspace, "t")
            found = compare(shape, select_all(session, keyspace, shape), fold(shape, records), Expiries([]))
            last[:] = found.differences
            return not found.differences

        try:
            wait_until(is_equal, "the data topic is the table", _WAIT_S)
        except AssertionError as error:
            raise AssertionError(f"{len(last)} differences, the first: {last[:1]}") from error


def _connected(node: CassandraNode) -> Cluster:
    profile = ExecutionProfile(
        load_balancing_policy=WhiteListRoundRobinPolicy([node.address]),
        request_timeout=120,
        consistency_level=ConsistencyLevel.ONE,
    )
    return Cluster(
        [node.address], port=node.native_port, connect_timeout=60, execution_profiles={EXEC_PROFILE_DEFAULT: profile}
    )


def _hex(key: int) -> str:
    return key.to_bytes(4, "big").hex()


@pytest.fixture(scope="module")
def cluster(pulsar: PulsarServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster2]:
    """A cluster that these tests may take apart."""
    options = SandboxOptions(nodes=2, waiting_nodes=1, pulsar=False, commitlog_sync_ms=100)
    with Sandbox(options) as running:
        cluster = Cluster2(running, tmp_path_factory.mktemp("cluster"), pulsar)
        yield cluster
        for agent in cluster.agents:
            agent.kill()


Prepare = Callable[[str, ExitStack], Session]


@pytest.fixture
def prepare(cluster: Cluster2, connector_archive: Path, keep_data_topics: None) -> Iterator[Prepare]:
    """A keyspace of two replicas with table `t`, and its connector; gives a session by node 1."""
    connectors: list[Connector] = []

    def make(keyspace: str, exit_stack: ExitStack) -> Session:
        session = cluster.session(exit_stack)
        session.execute(
            f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 2}}"
        )
        session.execute(f"CREATE TABLE {keyspace}.t (pk int PRIMARY KEY, v text) WITH cdc = true")
        connector = Connector(cluster.pulsar.admin_url, f"multi-{keyspace}")
        connectors.append(connector)
        options = connector_options(cluster.sandbox.node, keyspace, "t", query__maxBackoffInSec=2)
        connector.create(connector_archive, data_topic_name(keyspace, "t"), options)
        return session

    yield make
    for connector in connectors:
        connector.delete()


def _write(session: Session, keyspace: str, keys: Sequence[int], value: str = "v") -> None:
    insert = session.prepare(f"INSERT INTO {keyspace}.t (pk, v) VALUES (?, ?)")
    execute_concurrent_with_args(session, insert, [(key, f"{value}-{key}") for key in keys], concurrency=32)


def _set(node: CassandraNode, mbean: str, attribute: str, *, value: bool) -> None:
    node._ask({"type": "write", "mbean": mbean, "attribute": attribute, "value": value})


def test_what_a_node_missed_comes_from_it_when_hints_are_replayed(cluster: Cluster2, prepare: Prepare) -> None:
    """Node 2 is killed, 300 rows are written and 100 deleted, it comes back: both tell all of it, with equal digests."""
    with ExitStack() as exit_stack:
        session = prepare("hinted", exit_stack)
        _write(session, "hinted", range(50))
        cluster.sandbox.nodes[1].kill()
        _write(session, "hinted", range(300), "while down")
        for key in range(100):
            session.execute(f"DELETE FROM hinted.t WHERE pk = {key}")
        cluster.sandbox.nodes[1].start()
        first = cluster.wait_for_keys("hinted", cluster.agents[0], range(300))
        second = cluster.wait_for_keys("hinted", cluster.agents[1], range(300))
        deleted = {_hex(key) for key in range(100)}

        def told_deletions() -> bool:
            second[:] = cluster.wait_for_keys("hinted", cluster.agents[1], range(300))
            return deleted <= {event.partition_key for event in second if event.kind != "ROW"}

        wait_until(told_deletions, "the deletions from node 2", _WAIT_S)
        assert {event.key for event in first} == {event.key for event in second}
        cluster.check_data(session, "hinted")
        values = session.execute("SELECT COUNT(*) AS rows FROM hinted.t").one()
        assert values.rows == 200


@pytest.mark.parametrize("is_enabled", [False, True])
def test_a_repair_floods_the_topic_only_where_cassandra_says_so(
    cluster: Cluster2, prepare: Prepare, is_enabled: bool
) -> None:
    """Without hints node 2 misses 300 of 900 rows. With cdc_on_repair_enabled repaired rows come as events, without they do not."""
    keyspace = f"repaired_{is_enabled}".lower()
    second = cluster.sandbox.nodes[1]
    with ExitStack() as exit_stack:
        session = prepare(keyspace, exit_stack)
        for node in cluster.sandbox.nodes:
            _set(node, _COMMIT_LOG, "CDCOnRepairEnabled", value=is_enabled)
            _set(node, _STORAGE_PROXY, "HintedHandoffEnabled", value=False)
        _write(session, keyspace, range(600))
        cluster.wait_for_keys(keyspace, cluster.agents[1], range(600))
        second.kill()
        _write(session, keyspace, range(600, 900))
        second.start()
        _set(second, _COMMIT_LOG, "CDCOnRepairEnabled", value=is_enabled)
        before = len(cluster.wait_for_keys(keyspace, cluster.agents[1], range(600)))
        cluster.sandbox.node.repair(keyspace)
        by_second = exit_stack.enter_context(_connected(second)).connect()
        assert by_second.execute(f"SELECT COUNT(*) AS rows FROM {keyspace}.t").one().rows == 900
        # What node 2 is written behind the repair comes behind what the repair brought.
        _write(session, keyspace, [10_000])
        events = cluster.wait_for_keys(keyspace, cluster.agents[1], [10_000])
        repaired = len(events) - before - 1
        print(f"cdc_on_repair_enabled {is_enabled}: 300 rows missed, {repaired} events of node 2 by the repair")
        if is_enabled:
            keys = {event.partition_key for event in events}
            assert {_hex(key) for key in range(900)} <= keys
            assert 300 <= repaired <= 1_800
        else:
            assert repaired == 0
        cluster.check_data(session, keyspace)
        for node in cluster.sandbox.nodes:
            _set(node, _STORAGE_PROXY, "HintedHandoffEnabled", value=True)


def test_an_agent_on_another_machine_goes_on_by_the_copied_position(cluster: Cluster2, prepare: Prepare) -> None:
    """Its working directory is gone: what was acknowledged is not sent again, what is in cdc_raw is not lost."""
    with ExitStack() as exit_stack:
        session = prepare("replaced", exit_stack)
        cluster.agents[0].stop()
        prefix = "persistent://public/default/multi-positions-"
        copied = cluster.agent(cluster.sandbox.node, "-copied", positionsTopicPrefix=prefix)
        _write(session, "replaced", range(400))
        cluster.wait_for_keys("replaced", copied, range(400))
        assert copied.stop() == 0
        shutil.rmtree(copied.directory)
        _write(session, "replaced", range(400, 500))
        cluster.agents[0] = cluster.agent(cluster.sandbox.node, "-new", positionsTopicPrefix=prefix)
        events = cluster.wait_for_keys("replaced", cluster.agents[0], range(500))
        assert len(events) == 500
        cluster.check_data(session, "replaced")


def test_nodes_join_and_leave_and_nothing_is_lost(cluster: Cluster2, prepare: Prepare) -> None:
    """A third node bootstraps, takes writes, and is decommissioned, with an agent beside it as long as it runs."""
    third = cluster.sandbox.waiting_nodes[0]
    with ExitStack() as exit_stack:
        session = prepare("moving", exit_stack)
        _write(session, "moving", range(500))
        cluster.check_data(session, "moving")
        third.start()
        agent = cluster.agent(third)
        exit_stack.callback(agent.kill)
        own = list(range(500, 1_000))
        _write(session, "moving", own)
        _write(session, "moving", range(100), "again")
        node_id = str(agent.status()["node_id"])
        wait_until(
            lambda: any(event.node == node_id for event in cluster.events("moving")), "events of node 3", _WAIT_S
        )
        streamed = [event for event in cluster.events("moving") if event.node == node_id]
        print(f"{len(streamed)} events of the node that joined")
        third.decommission()
        _write(session, "moving", range(1_000, 1_200))
        wait_until(lambda: agent.metric("lag_bytes") == 0, "node 3's log is read", _WAIT_S)
        assert agent.stop() == 0
        third.stop()
        cluster.check_data(session, "moving")
        told = {event.partition_key for event in cluster.events("moving")}
        assert {_hex(key) for key in range(1_200)} <= told
        assert [each.metric("parked") for each in cluster.agents] == [0, 0]


def test_one_data_centre_with_agents_tells_what_is_written_in_the_other(
    pulsar: PulsarServer, connector_archive: Path, keep_data_topics: None, tmp_path: Path
) -> None:
    """Agent and connector live in `west`; clients write in `east` at LOCAL_ONE."""
    options = SandboxOptions(nodes=2, pulsar=False, commitlog_sync_ms=100, data_centers=("west", "east"))
    with Sandbox(options) as running, ExitStack() as exit_stack:
        west, east = running.nodes
        session = exit_stack.enter_context(_connected(east)).connect()
        assert session.execute("SELECT data_center FROM system.local").one().data_center == "east"
        session.execute(
            "CREATE KEYSPACE two_dcs WITH replication = {'class': 'NetworkTopologyStrategy', 'west': 1, 'east': 1}"
        )
        session.execute("CREATE TABLE two_dcs.t (pk int PRIMARY KEY, v text) WITH cdc = true")
        agent = AgentProcess.for_node(west, pulsar, tmp_path / "agent")
        agent.start()
        exit_stack.callback(agent.kill)
        connector = Connector(pulsar.admin_url, "multi-two-dcs")
        exit_stack.callback(connector.delete)
        source = connector_options(west, "two_dcs", "t") | {"loadBalancing": {"localDc": "west"}}
        connector.create(connector_archive, data_topic_name("two_dcs", "t"), source)
        _write(session, "two_dcs", range(300))
        for key in range(50):
            session.execute(f"DELETE FROM two_dcs.t WHERE pk = {key}")
        reader = Cluster2.__new__(Cluster2)
        reader.pulsar = pulsar
        reader.check_data(session, "two_dcs")
        assert {event.node for event in reader.events("two_dcs")} == {str(agent.status()["node_id"])}


def test_segments_of_three_versions_in_one_folder_are_all_read(pulsar: PulsarServer, tmp_path: Path) -> None:
    """A node goes from 3.11 by 4.1 to 5.0 without an agent; then one comes, and reads what all three left."""
    keyspace, moved = "upgraded", ("data", "commitlog", "cdc_raw", "hints", "saved_caches")
    folder: Path | None = None
    for number, version in enumerate(("3.11", "4.1", "5.0")):
        base = tmp_path / f"sandbox-{version}"
        if folder is not None:
            for name in moved:
                (base / "cassandra-1").mkdir(parents=True, exist_ok=True)
                (folder / name).rename(base / "cassandra-1" / name)
        options = SandboxOptions(cassandra=version, pulsar=False, commitlog_sync_ms=100)
        with Sandbox(options, base_dir=base) as running, ExitStack() as exit_stack:
            node = running.node
            session = exit_stack.enter_context(_connected(node)).connect()
            if number == 0:
                session.execute(
                    f"CREATE KEYSPACE {keyspace}"
                    " WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
                )
                session.execute(f"CREATE TABLE {keyspace}.t (pk int PRIMARY KEY, v text) WITH cdc = true")
            _write(session, keyspace, range(number * 1_000, number * 1_000 + 1_000), "x" * 400)
            folder = node.folder
            if version == "5.0":
                names = {path.name.split("-")[1] for path in node.cdc_raw.glob("*.log")}
                assert names == {"6", "7"}
                agent = AgentProcess.for_node(node, pulsar, tmp_path / "agent")
                agent.start()
                exit_stack.callback(agent.kill)
                reader = Cluster2.__new__(Cluster2)
                reader.pulsar = pulsar
                events = reader.wait_for_keys(keyspace, agent, range(3_000))
                assert len({event.segment for event in events}) >= 3
                assert agent.metric("parked") == agent.metric("corrupt_entries") == 0
            else:
                node.flush(keyspace)
                node.drain()
