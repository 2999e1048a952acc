"""The agent beside Cassandra 3.11, which moves a segment to `cdc_raw` when it discards it, and writes no index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cassandra.cluster import Session

from cdc.agent_process import AgentProcess
from cdc.sandbox import Sandbox, SandboxOptions
from schemas.mutation_event import MutationKind
from schemas.topics import events_topic
from tests.servers.cassandra_session import cluster_of, make_keyspace
from tests.servers.interface import PulsarServer
from tests.topics.events_topic import EventsTopic, wait_until


@pytest.fixture(scope="module")
def node_3_11() -> Iterator[Sandbox]:
    """A Cassandra 3.11 node without a Pulsar of its own."""
    with Sandbox(SandboxOptions(cassandra="3.11", pulsar=False, commitlog_sync_ms=100)) as running:
        yield running


@pytest.fixture
def session(node_3_11: Sandbox) -> Iterator[Session]:
    """A session with the node. A test that kills the node makes a new cluster object itself."""
    with cluster_of(node_3_11.node) as cluster:
        yield cluster.connect()


def _keys(topic: EventsTopic) -> list[int]:
    return sorted(int.from_bytes(each.event.partition_key, "big", signed=True) for each in topic.read())


def test_changes_of_cassandra_3_11_arrive_once_in_bounded_time_and_after_a_kill(
    node_3_11: Sandbox, session: Session, pulsar: PulsarServer, tmp_path: Path
) -> None:
    """On a quiet node, rotation brings the changes to the topic; segments that were in use at a kill -9 arrive after
    the node's next start."""
    node = node_3_11.node
    make_keyspace(session, "line_3_11")
    session.execute("CREATE TABLE line_3_11.t (pk int, ck int, v text, PRIMARY KEY (pk, ck)) WITH cdc = true")
    agent = AgentProcess.for_node(node, pulsar, tmp_path, segmentRotationIntervalMs=1_000)
    agent.start()
    with EventsTopic(pulsar, events_topic("line_3_11", "t")) as topic:
        for pk in range(50):
            session.execute("INSERT INTO line_3_11.t (pk, ck, v) VALUES (%s, 0, 'x')", (pk,))
        session.execute("DELETE FROM line_3_11.t WHERE pk = 7 AND ck = 0")
        topic.wait_for(51)
        assert agent.stop() == 0, agent.log_tail()
        agent.configure(
            {
                "cdcWorkingDir": str(agent.working_dir),
                "httpPort": 0,
                "cdcRawDirectory": str(node.cdc_raw),
                "contactPoints": node.address,
                "port": node.native_port,
                "pulsarServiceUrl": pulsar.service_url,
                "pulsarAdminUrl": pulsar.admin_url,
            }
        )
        for pk in range(100, 400):
            session.execute("INSERT INTO line_3_11.t (pk, ck, v) VALUES (%s, 0, 'x')", (pk,))
        node.kill()
        agent.start()
        node.start()
        # A kill -9 may lose what was not synced yet: then it is gone from Cassandra, too.
        with cluster_of(node) as cluster:
            survived = [row.pk for row in cluster.connect().execute("SELECT pk FROM line_3_11.t") if row.pk >= 100]
        topic.wait_for(51 + len(survived))
        wait_until(lambda: list(node.cdc_raw.iterdir()) == [], "every segment is read and deleted")
        assert _keys(topic) == sorted([*range(50), 7, *survived])
        assert [each.event.kind for each in topic.events].count(MutationKind.ROW_DELETION) == 1
        assert not (agent.working_dir / "error").exists()
        assert agent.metric("mutations_parked") == 0
        assert agent.stop() == 0, agent.log_tail()
