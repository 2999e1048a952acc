"""Two data centres, and a node that is upgraded in place: tests that take too long for every day (`make
test-multinode`)."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from cdc.agent_process import AgentProcess
from cdc.sandbox import Sandbox, SandboxOptions
from tests.fixtures.connector import Connector, connector_options, data_topic_name
from tests.servers.cassandra_session import make_keyspace
from tests.servers.interface import PulsarServer
from tests.topics.multi_node import connected, events_of, wait_for_equal_data, wait_for_keys, write

pytestmark = [pytest.mark.integration, pytest.mark.multinode, pytest.mark.timeout(1800)]

_FOLDERS = ("data", "commitlog", "cdc_raw", "hints", "saved_caches")


def test_one_data_centre_with_agents_tells_what_is_written_in_the_other(
    pulsar: PulsarServer, connector_archive: Path, keep_data_topics: None, tmp_path: Path
) -> None:
    """Agent and connector run in `west`; clients write in `east` at consistency level ONE."""
    options = SandboxOptions(nodes=2, pulsar=False, commitlog_sync_ms=100, data_centers=("west", "east"))
    with Sandbox(options) as running, ExitStack() as exit_stack:
        west, east = running.nodes
        session = exit_stack.enter_context(connected(east)).connect()
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
        write(session, "two_dcs", range(300))
        for key in range(50):
            session.execute(f"DELETE FROM two_dcs.t WHERE pk = {key}")
        wait_for_keys(pulsar, "two_dcs", range(300))
        wait_for_equal_data(pulsar, session, "two_dcs")
        assert {event.node for event in events_of(pulsar, "two_dcs")} == {str(agent.status()["node_id"])}


def test_segments_of_three_versions_in_one_folder_are_all_read(pulsar: PulsarServer, tmp_path: Path) -> None:
    """A node is upgraded from 3.11 via 4.1 to 5.0 without an agent; then an agent reads the segments of all three."""
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
            session = exit_stack.enter_context(connected(node)).connect()
            if number == 0:
                make_keyspace(session, "upgraded")
                session.execute("CREATE TABLE upgraded.t (pk int PRIMARY KEY, v text) WITH cdc = true")
            write(session, "upgraded", range(number * 1_000, number * 1_000 + 1_000), "x" * 400)
            folder = node.folder
            if version != "5.0":
                node.flush("upgraded")
                node.drain()
                continue
            assert {path.name.split("-")[1] for path in node.cdc_raw.glob("*.log")} == {"6", "7"}
            agent = AgentProcess.for_node(node, pulsar, tmp_path / "agent")
            agent.start()
            exit_stack.callback(agent.kill)
            events = wait_for_keys(pulsar, "upgraded", range(3_000))
            assert len({event.segment for event in events}) >= 3
            assert agent.metric("parked") == agent.metric("corrupt_entries") == 0
