"""Two data centres, and a node that is upgraded in place: what takes too long for every day (`make test-multinode`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

_WAIT_S = 600
_FOLDERS = ("data", "commitlog", "cdc_raw", "hints", "saved_caches")


@pytest.fixture(scope="session")
def pulsar() -> Iterator[PulsarServer]:
    """A Pulsar of these tests' own: they need no other Cassandra than theirs."""
    with Sandbox(SandboxOptions(nodes=0, functions_runtime="thread")) as running:
        yield running.pulsar


def _connected(node: CassandraNode) -> Cluster:
    profile = ExecutionProfile(
        load_balancing_policy=WhiteListRoundRobinPolicy([node.address]),
        request_timeout=120,
        consistency_level=ConsistencyLevel.ONE,
    )
    return Cluster(
        [node.address], port=node.native_port, connect_timeout=60, execution_profiles={EXEC_PROFILE_DEFAULT: profile}
    )


def _write(session: Session, keyspace: str, keys: Sequence[int], value: str = "v") -> None:
    insert = session.prepare(f"INSERT INTO {keyspace}.t (pk, v) VALUES (?, ?)")
    execute_concurrent_with_args(session, insert, [(key, f"{value}-{key}") for key in keys], concurrency=32)


def _events(pulsar: PulsarServer, keyspace: str) -> list[Event]:
    """All events of table `t`."""
    with TopicReader(pulsar.service_url, pulsar.admin_url) as topics:
        return topics.events(f"cdc-events-{keyspace}.t")


def _wait_for_keys(pulsar: PulsarServer, keyspace: str, keys: Sequence[int]) -> list[Event]:
    """All events, as soon as there are some of all these keys."""
    wanted = {key.to_bytes(4, "big").hex() for key in keys}
    found: list[Event] = []

    def is_told() -> bool:
        found[:] = _events(pulsar, keyspace)
        return wanted <= {event.partition_key for event in found}

    wait_until(is_told, f"{len(keys)} keys of {keyspace} on the events topic", _WAIT_S)
    return found


def _wait_for_equal_data(pulsar: PulsarServer, session: Session, keyspace: str) -> None:
    """Until the data topic, folded, is the table."""
    last: list[str] = []

    def is_equal() -> bool:
        with TopicReader(pulsar.service_url, pulsar.admin_url) as topics:
            records = list(topics.data_records(f"persistent://public/default/data-{keyspace}.t"))
        shape = table_shape(session, keyspace, "t")
        last[:] = compare(shape, select_all(session, keyspace, shape), fold(shape, records), Expiries([])).differences
        return not last

    wait_until(is_equal, f"the data topic of {keyspace} is the table", _WAIT_S)


def test_one_data_centre_with_agents_tells_what_is_written_in_the_other(
    pulsar: PulsarServer, connector_archive: Path, keep_data_topics: None, tmp_path: Path
) -> None:
    """Agent and connector live in `west`; clients write in `east` at consistency level ONE."""
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
        _wait_for_keys(pulsar, "two_dcs", range(300))
        _wait_for_equal_data(pulsar, session, "two_dcs")
        assert {event.node for event in _events(pulsar, "two_dcs")} == {str(agent.status()["node_id"])}


def test_segments_of_three_versions_in_one_folder_are_all_read(pulsar: PulsarServer, tmp_path: Path) -> None:
    """A node goes from 3.11 by 4.1 to 5.0 without an agent; then one comes, and reads what all three left."""
    folder: Path | None = None
    for number, version in enumerate(("3.11", "4.1", "5.0")):
        base = tmp_path / f"sandbox-{version}"
        if folder is not None:
            (base / "cassandra-1").mkdir(parents=True)
            for name in _FOLDERS:
                (folder / name).rename(base / "cassandra-1" / name)
        options = SandboxOptions(cassandra=version, pulsar=False, commitlog_sync_ms=100)
        with Sandbox(options, base_dir=base) as running, ExitStack() as exit_stack:
            node = running.node
            session = exit_stack.enter_context(_connected(node)).connect()
            if number == 0:
                session.execute(
                    "CREATE KEYSPACE upgraded WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
                )
                session.execute("CREATE TABLE upgraded.t (pk int PRIMARY KEY, v text) WITH cdc = true")
            _write(session, "upgraded", range(number * 1_000, number * 1_000 + 1_000), "x" * 400)
            folder = node.folder
            if version != "5.0":
                node.flush("upgraded")
                node.drain()
                continue
            assert {path.name.split("-")[1] for path in node.cdc_raw.glob("*.log")} == {"6", "7"}
            agent = AgentProcess.for_node(node, pulsar, tmp_path / "agent")
            agent.start()
            exit_stack.callback(agent.kill)
            events = _wait_for_keys(pulsar, "upgraded", range(3_000))
            assert len({event.segment for event in events}) >= 3
            assert agent.metric("parked") == agent.metric("corrupt_entries") == 0
