"""readUnsynced with Cassandra's default sync of 10 s: which events come early, their order, and events after kills.

The last test stops the node, because Cassandra's reader takes the schema from the node's folder: the order of this file
matters.
"""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, cast

import pytest
from cassandra.cluster import Session
from cassandra.policies import ConstantReconnectionPolicy

from cdc.agent_process import AgentProcess
from cdc.sandbox import Sandbox, SandboxOptions
from change_agent.cdc_raw.cdc_index import parse_cdc_index
from change_agent.positions.stops import remove_stops
from schemas.topics import events_topic
from tests.agent.log_load import (
    TABLES,
    LogLoad,
    change_of,
    changes_of,
    create_tables,
    published_in_order,
    wait_for_the_end,
)
from tests.commitlog_oracle.oracle import CommitLogOracle
from tests.fault_kit.keeper import SegmentKeeper
from tests.servers.cassandra_session import cluster_of
from tests.topics.agent_table import wait_for_metrics
from tests.topics.events_topic import EventsTopic, wait_until

_DEFAULT_SYNC_MS: Final = 10_000
_KILLS: Final = 6
_EXTENDED_KILLS: Final = 20
# So each kill hits writes in progress.
_WRITES_BEFORE_A_KILL: Final = 100
_LEAST_CHANGES: Final = 1_000
_SEED_VARIABLE: Final = "CDC_TEST_SEED"
_LOST: Final = re.compile(r"-(\d+)\.log: the (\d+) bytes before position (\d+) were published before Cassandra synced")


@pytest.fixture(scope="module")
def servers() -> Iterator[Sandbox]:
    """A node and a Pulsar that these tests may stop."""
    with Sandbox(SandboxOptions(commitlog_sync_ms=_DEFAULT_SYNC_MS, functions_runtime="thread")) as running:
        yield running


@pytest.fixture(scope="module")
def agent(servers: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    """The agent of the node."""
    process = AgentProcess.for_node(servers.node, servers.pulsar, tmp_path_factory.mktemp("agent"), readUnsynced=True)
    process.start()
    yield process
    process.stop()


def _is_synced(cdc_raw: Path, segment_id: int, position: int) -> bool:
    for path in cdc_raw.glob(f"CommitLog-*-{segment_id}_cdc.idx"):
        index = parse_cdc_index(path.read_bytes())
        return index is not None and index.offset >= position
    return False


def test_changes_are_on_the_topic_before_their_sync(servers: Sandbox, agent: AgentProcess) -> None:
    """Each row is published before the index of its segment reaches it, or before the index exists."""
    early = 0
    with cluster_of(servers.node) as cluster:
        session = cluster.connect()
        create_tables(session, "early")
        with EventsTopic(servers.pulsar, events_topic("early", "plain")) as topic:
            for number in range(30):
                session.execute(f"INSERT INTO early.plain (pk, v) VALUES ({number}, 'x')")
                topic.wait_for(number + 1)
                last = topic.read()[-1]
                early += not _is_synced(servers.node.cdc_raw, last.message.segment_id, last.event.position)
            time.sleep(1)
            assert len(topic.read()) == 30
    # A sync may happen between any two rows.
    assert early > 20
    assert agent.metric("mutations_parked") == 0


def test_a_node_that_was_restarted_with_another_commit_log_is_noticed(servers: Sandbox, agent: AgentProcess) -> None:
    """A compressed commit log is written to its file only at a sync: one line says so, and nothing is lost. Then the
    log is uncompressed again."""
    with EventsTopic(servers.pulsar, events_topic("early", "plain")) as topic:
        count = len(topic.read())
        _restart_with(servers, {"commitlog_compression": [{"class_name": "LZ4Compressor"}]})
        with cluster_of(servers.node) as cluster:
            session = cluster.connect()
            session.execute("INSERT INTO early.plain (pk, v) VALUES (100, 'compressed')")
            topic.wait_for(count + 1)
        assert agent.log.read_text().count("readUnsynced has no effect: the commit log is compressed") == 1
        _restart_with(servers, {"commitlog_compression": None})
        with cluster_of(servers.node) as cluster:
            session = cluster.connect()
            # The agent may not have asked the node yet, and a sync may happen before a row's event is read.
            assert any(_is_seen_before_its_sync(servers, session, topic, pk) for pk in range(101, 111))


def _is_seen_before_its_sync(servers: Sandbox, session: Session, topic: EventsTopic, pk: int) -> bool:
    """Write a row, wait for its event, and return whether the row was still unsynced then."""
    count = len(topic.read())
    session.execute(f"INSERT INTO early.plain (pk, v) VALUES ({pk}, 'plain')")
    last = topic.wait_for(count + 1)[-1]
    return not _is_synced(servers.node.cdc_raw, last.message.segment_id, last.event.position)


@pytest.mark.extended
def test_a_node_that_was_restarted_without_cdc_stops_the_progress(servers: Sandbox, agent: AgentProcess) -> None:
    """Writes without cdc_enabled are in no segment of `cdc_raw`: the agent says so until the tables are repaired."""

    def progress() -> Mapping[str, object]:
        found: Mapping[str, object] = agent.status()["published_until"]["early.plain"]
        return found

    def moves_past(time_ms: int) -> bool:
        return cast("int", progress()["time_ms"]) > time_ms

    wait_until(lambda: moves_past(time.time_ns() // 1_000_000 - 2_000), "the progress of an idle node moves")
    _restart_with(servers, {"cdc_enabled": False}, drains=False)
    with cluster_of(servers.node) as cluster:
        cluster.connect().execute("INSERT INTO early.plain (pk, v) VALUES (200, 'not captured')")
    written_ms = time.time_ns() // 1_000_000
    wait_until(lambda: "the node ran with cdc_enabled: false" in str(progress()["stopped"]), "the agent says why")
    _restart_with(servers, {"cdc_enabled": True})
    with EventsTopic(servers.pulsar, events_topic("early", "plain")) as topic, cluster_of(servers.node) as cluster:
        count = len(topic.read())
        cluster.connect().execute("INSERT INTO early.plain (pk, v) VALUES (201, 'captured')")
        topic.wait_for(count + 1)
    wait_for_metrics(agent, "the agent has read everything", lag_bytes=0, inflight_events=0)
    assert not moves_past(written_ms)
    assert "early.plain" in remove_stops(agent.working_dir, None)
    wait_until(lambda: moves_past(written_ms), "the progress moves again")


@pytest.mark.timeout(1200)
def test_after_kills_of_both_the_events_are_what_cassandra_reads_and_what_it_lost(
    servers: Sandbox, agent: AgentProcess, tmp_path: Path, is_extended: bool
) -> None:
    """Nothing is missing and the order is kept. Changes that Cassandra cannot read after its own kill are those that
    the agent's log names."""
    seed = int(os.environ.get(_SEED_VARIABLE) or secrets.randbelow(10**6))
    print(f"kills of seed {seed} ({_SEED_VARIABLE} repeats them)")
    rng = random.Random(seed)
    with SegmentKeeper({1: (servers.node.cdc_raw, servers.node.data_dir)}, tmp_path / "kept") as keeper:
        with cluster_of(servers.node) as cluster:
            # The driver's own reconnection pauses would delay writes to a restarted node by half a minute.
            cluster.reconnection_policy = ConstantReconnectionPolicy(1.0, max_attempts=None)
            session = cluster.connect()
            create_tables(session, "kills")
            with LogLoad(session, "kills", seed, node_may_go=True) as load:
                for number in range(_EXTENDED_KILLS if is_extended else _KILLS):
                    load.wait_for(load.answered + _WRITES_BEFORE_A_KILL)
                    time.sleep(rng.uniform(0.2, 2.0))
                    _kill(servers, agent, ("agent", "agent", "agent", "node", "both")[number % 5])
                # The node loses none of these, because it is drained at the end.
                load.wait_for(load.answered + _LEAST_CHANGES)
        with cluster_of(servers.node) as cluster:
            topics = {table: EventsTopic(servers.pulsar, events_topic("kills", table)) for table in TABLES}
            wait_for_the_end(cluster.connect(), topics)
            # Each table's last row is in one topic partition: other partitions may be behind.
            wait_for_metrics(agent, "everything is acknowledged", lag_bytes=0, inflight_events=0)
    servers.node.drain()
    servers.node.kill()
    published = published_in_order(topics)
    judge = CommitLogOracle("5.0", tmp_path).read(keeper.segments(1), servers.node.folder)
    assert judge.errors == []
    expected = {change for line in judge.lines for change in changes_of("kills", json.loads(line))}
    found = Counter(change_of(table, each) for table, each in published)
    lost = {(int(a), int(c) - int(b), int(c)) for a, b, c in _LOST.findall(agent.log.read_text())}
    behind = {
        change for change in found if any(change[0] == a and first < change[1] <= last for a, first, last in lost)
    }
    print(f"{len(expected)} changes, {found.total() - len(found)} came twice, {len(behind)} lost by the node")
    assert len(expected) > _LEAST_CHANGES
    assert (expected - set(found), set(found) - expected - behind) == (set(), set())


def _restart_with(servers: Sandbox, changes: Mapping[str, object], *, drains: bool = True) -> None:
    """Stop the node, which keeps its data, and start it with these settings; None removes a setting. `drains`: drain
    the node first."""
    path = servers.node.cassandra_yaml
    settings = json.loads(path.read_text()) | changes
    if drains:
        servers.node.drain()
    servers.node.kill()
    path.write_text(json.dumps({name: each for name, each in settings.items() if each is not None}))
    servers.node.start()


def _kill(servers: Sandbox, agent: AgentProcess, which: str) -> None:
    """Kill and restart. The agent restarts first, because a starting node removes segments that it has not synced."""
    if which in ("node", "both"):
        servers.node.kill()
    if which in ("agent", "both"):
        agent.kill()
        agent.start()
    if which in ("node", "both"):
        servers.node.start()
