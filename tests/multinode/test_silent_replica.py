"""One of three nodes is suspended with open connections: reads that do not need it continue (`make test-multinode`)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from cassandra.cluster import Session

from cdc.sandbox import Sandbox, SandboxOptions
from schemas.mutation_event import MutationKind
from tests.fixtures.connector import Connector, connector_options, data_topic_name
from tests.servers.cassandra_session import make_keyspace
from tests.servers.interface import PulsarServer
from tests.topics.connector_line import int32
from tests.topics.data_topic import DataTopic
from tests.topics.events_topic import wait_until
from tests.topics.events_writer import EventsWriter
from tests.topics.multi_node import connected, write

pytestmark = [pytest.mark.integration, pytest.mark.multinode, pytest.mark.timeout(1800)]

_KEYSPACE = "silent"
_ROUND = 4_000
# The first statements wait for the silent node, and are sent to another one after 2 s.
_FIRST_WAIT_S = 4.0


def test_a_node_that_stands_still_takes_little_of_the_rate(
    pulsar: PulsarServer, connector_archive: Path, keep_data_topics: None
) -> None:
    """Both are published meanwhile: writes, which any two replicas prove, and deletions, which would need all three."""
    with Sandbox(SandboxOptions(nodes=3, pulsar=False)) as running, ExitStack() as exit_stack:
        contact, _, silent = running.nodes
        session = exit_stack.enter_context(connected(contact)).connect()
        make_keyspace(session, _KEYSPACE, 3)
        session.execute(f"CREATE TABLE {_KEYSPACE}.t (pk int PRIMARY KEY, v text)")
        write(session, _KEYSPACE, range(3 * _ROUND))
        writer = EventsWriter(session, pulsar, _KEYSPACE, "t")
        exit_stack.callback(writer.close)
        topic = DataTopic(pulsar, data_topic_name(_KEYSPACE, "t"))
        exit_stack.callback(topic.close)
        connector = Connector(pulsar.admin_url, "multi-silent")
        exit_stack.callback(connector.delete)
        connector.create(connector_archive, data_topic_name(_KEYSPACE, "t"), connector_options(contact, _KEYSPACE, "t"))
        _round(session, writer, topic, range(_ROUND))  # The connector starts meanwhile.
        sound_s = _round(session, writer, topic, range(_ROUND, 2 * _ROUND))
        assert silent.pid is not None
        os.kill(silent.pid, signal.SIGSTOP)
        try:
            silent_s = _round(session, writer, topic, range(2 * _ROUND, 3 * _ROUND))
            wait_until(lambda: connector.metric("levels_left_out") >= 1, "the level that is left out in the metrics")
        finally:
            os.kill(silent.pid, signal.SIGCONT)
        _round(session, writer, topic, range(500))  # Including the late answers of the suspended node.
        print(f"{2 * _ROUND} events: {sound_s:.1f} s with three nodes, {silent_s:.1f} s with one that stands still")
        assert silent_s < 1.5 * sound_s + _FIRST_WAIT_S
        assert connector.status()["numRestarts"] == 0


def _round(session: Session, writer: EventsWriter, topic: DataTopic, keys: Sequence[int]) -> float:
    """Send events of writes and deletions, from each node in turn; return the seconds until all records."""
    nodes = [host.host_id for host in session.cluster.metadata.all_hosts()]
    began, before = time.monotonic(), len(topic.records)
    for at, start in enumerate(range(keys[0], keys[-1] + 1, 500)):
        part = [int32(key) for key in range(start, start + 500)]
        written = [writer.event(key, writetime_us=1, columns=("v",)) for key in part]
        deleted = [
            writer.event(int32(-1 - key), kind=MutationKind.ROW_DELETION, writetime_us=1)
            for key in range(start, start + 500)
        ]
        writer.send(*written, partition=at % 2, node=nodes[at % len(nodes)])
        writer.send(*deleted, partition=at % 2, node=nodes[at % len(nodes)])
    topic.wait_for(before + 2 * len(keys), 300)
    return time.monotonic() - began
