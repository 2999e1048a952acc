"""A node that has just joined: it may answer writes before its agent has reported (`make test-multinode`)."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from cassandra.cluster import Session

from cdc.agent_process import AgentProcess
from cdc.sandbox import Sandbox, SandboxOptions
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.resolved import ResolvedTimestamps
from tests.servers.cassandra_session import make_keyspace
from tests.servers.interface import PulsarServer
from tests.topics.events_topic import wait_until
from tests.topics.multi_node import WAIT_S, connected

pytestmark = [pytest.mark.integration, pytest.mark.multinode, pytest.mark.timeout(900)]

_TABLE = "joined.t"
# Longer than the period in which an agent asks its node for its schema.
_WATCHED_S = 15.0


def _others(session: Session) -> int:
    """The number of other nodes of the cluster, as the session's node knows them."""
    return sum(row.host_id is not None for row in session.execute("SELECT host_id FROM system.peers"))


def _resolved_ms(timestamps: ResolvedTimestamps) -> int | None:
    return timestamps.read(_TABLE).resolved_ms


def test_no_timestamp_passes_the_moment_at_which_a_node_joined(pulsar: PulsarServer, tmp_path: Path) -> None:
    """No agent runs beside the node, so nobody knows the writes that it answers from this moment on."""
    options = BridgeOptions.from_mapping(
        {"serviceUrl": pulsar.service_url, "adminUrl": pulsar.admin_url, "topic": f"data-{_TABLE}"}
    )
    with ExitStack() as exit_stack:
        sandbox = exit_stack.enter_context(
            Sandbox(SandboxOptions(nodes=2, waiting_nodes=1, pulsar=False, commitlog_sync_ms=100))
        )
        session = exit_stack.enter_context(connected(sandbox.node)).connect()
        make_keyspace(session, "joined", 2)
        session.execute(f"CREATE TABLE {_TABLE} (pk int PRIMARY KEY, v text) WITH cdc = true")
        for node in sandbox.nodes:
            agent = AgentProcess.for_node(node, pulsar, tmp_path / node.name)
            agent.start()
            exit_stack.callback(agent.kill)
        timestamps = exit_stack.enter_context(ResolvedTimestamps(options))
        started_ms = time.time() * 1000
        wait_until(lambda: (_resolved_ms(timestamps) or 0) > started_ms, "the table has a timestamp that moves", WAIT_S)

        joining = threading.Thread(target=sandbox.waiting_nodes[0].start)
        joining.start()
        exit_stack.callback(joining.join)
        wait_until(lambda: _others(session) == 2, "node 1 knows node 3", WAIT_S)
        joined_ms, until = time.time() * 1000, time.monotonic() + _WATCHED_S
        found = [(_resolved_ms(timestamps) or 0) - joined_ms]
        while time.monotonic() < until:
            found.append((_resolved_ms(timestamps) or 0) - joined_ms)
        print(f"{len(found)} looks, the latest timestamp {max(found):.0f} ms after node 1 knew node 3")
        assert max(found) <= 0
        assert _resolved_ms(timestamps) is None
