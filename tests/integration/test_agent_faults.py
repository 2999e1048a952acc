"""No change is lost by restarts, by kill -9 of the agent or Cassandra, by servers that start later, or in a backlog.

These tests stop servers, so they have their own.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args

from cdc.agent_process import AgentProcess
from cdc.rest import rest
from cdc.sandbox import Sandbox, SandboxOptions
from schemas.mutation_event import MutationKind
from schemas.topics import events_topic
from tests.fixtures.agent import TopicOf
from tests.servers.background import Background
from tests.servers.cassandra_session import cluster_of, make_keyspace
from tests.topics.agent_table import log_from_now
from tests.topics.events_topic import EventsTopic, TopicEvent, wait_until

_numbers = itertools.count(1)
# Longer than each time limit after which the agent blames the topic instead of the broker.
_LONG_OUTAGE_S = 120
# Enough for a stop that waits up to shutdownTimeoutMs for events, and then for servers.
_STOP_S = 60


@pytest.fixture(scope="module")
def servers() -> Iterator[Sandbox]:
    """A Cassandra node and a Pulsar that these tests may stop."""
    with Sandbox(SandboxOptions(commitlog_sync_ms=100, functions_runtime="thread")) as running:
        yield running


@pytest.fixture
def session(running_servers: Sandbox) -> Iterator[Session]:
    """A session with the node; made anew for each test because the node may have been restarted."""
    with cluster_of(running_servers.node) as cluster:
        yield cluster.connect()


@pytest.fixture
def table(session: Session) -> str:
    """A table of the test's own, `keyspace.t`."""
    keyspace = f"faults_{next(_numbers)}"
    make_keyspace(session, keyspace)
    session.execute(f"CREATE TABLE {keyspace}.t (pk int PRIMARY KEY, v text) WITH cdc = true")
    return f"{keyspace}.t"


@pytest.fixture(scope="module")
def agent(servers: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    """The agent of the node, not running at first; each test starts it and may leave it running."""
    # Events that are not acknowledged when an orderly stop ends are published again, so a busy broker gets time.
    process = AgentProcess.for_node(
        servers.node, servers.pulsar, tmp_path_factory.mktemp("agent"), shutdownTimeoutMs=20_000
    )
    yield process
    process.stop(timeout_s=_STOP_S)


@pytest.fixture
def running_agent(agent: AgentProcess) -> AgentProcess:
    """The agent of the node, running."""
    if not agent.running:
        agent.start()
    return agent


@pytest.fixture
def stopped_agent(agent: AgentProcess) -> AgentProcess:
    """The agent of the node, stopped."""
    agent.stop(timeout_s=_STOP_S)
    return agent


def _write(session: Session, table: str, rows: range, size: int = 100) -> None:
    insert = session.prepare(f"INSERT INTO {table} (pk, v) VALUES (?, ?)")
    execute_concurrent_with_args(session, insert, [(pk, "x" * size) for pk in rows], concurrency=64)


def _keys(events: list[TopicEvent]) -> list[int]:
    return sorted(int.from_bytes(each.event.partition_key, "big", signed=True) for each in events)


class _Writer(Background):
    """Writes rows one after the other until it is stopped."""

    def __init__(self, session: Session, table: str) -> None:
        super().__init__("writer")
        self._session, self._table = session, table
        self.written = 0

    def _run(self) -> None:
        insert = self._session.prepare(f"INSERT INTO {self._table} (pk, v) VALUES (?, ?)")
        while not self._stop.is_set():
            self._session.execute(insert, (self.written, "x" * 200))
            self.written += 1
            # The servers share the machine's cores with the agent under test.
            self._stop.wait(0.015)


def test_a_backlog_from_before_the_first_start_arrives_and_its_segments_go(
    servers: Sandbox, session: Session, table: str, stopped_agent: AgentProcess, topic_of: TopicOf
) -> None:
    """Rows of several finished segments from before the first start arrive once; then the segments are deleted."""
    _write(session, table, range(3_000), size=1_400)
    before = {path.name for path in servers.node.cdc_raw.glob("*.log")}
    assert len(before) > 4
    stopped_agent.start()
    events = topic_of(table).wait_for(3_000)
    assert _keys(events) == list(range(3_000))
    # The active segment and the one that Cassandra made in advance may remain.
    wait_until(
        lambda: len({path.name for path in servers.node.cdc_raw.glob("*.log")} & before) <= 2, "segments are deleted"
    )
    wait_until(lambda: stopped_agent.metric("segments_deleted") >= len(before) - 2, "the status file says so")
    assert stopped_agent.metric("messages_sent") < 1_000


def test_restarts_in_mid_segment_lose_nothing_and_repeat_nothing(
    session: Session, table: str, running_agent: AgentProcess, topic_of: TopicOf
) -> None:
    """The agent is stopped and started while rows are written: every row is on the topic exactly once."""
    with _Writer(session, table) as writer:
        topic_of(table).wait_for(1)
        for _ in range(3):
            time.sleep(1)
            assert running_agent.stop(timeout_s=_STOP_S) == 0, running_agent.log_tail()
            time.sleep(0.3)
            running_agent.start()
    events = topic_of(table).wait_for(writer.written)
    time.sleep(0.5)
    assert _keys(topic_of(table).wait_for(writer.written)) == _keys(events) == list(range(writer.written))


def test_pulsar_may_come_after_the_agent(
    servers: Sandbox, session: Session, table: str, stopped_agent: AgentProcess, topic_of: TopicOf
) -> None:
    """An agent that starts without Pulsar logs what it waits for, and publishes when Pulsar comes."""
    servers.pulsar.stop()
    new_log = log_from_now(stopped_agent)
    stopped_agent.start()
    _write(session, table, range(100))
    waiting = f"waiting for {events_topic(*table.split('.'))}"
    wait_until(lambda: waiting in new_log(), "the agent says what it waits for")
    servers.pulsar.start()
    events = topic_of(table).wait_for(100)
    assert _keys(events) == list(range(100))


@pytest.mark.extended
def test_pulsar_may_go_and_come_back(
    servers: Sandbox, session: Session, table: str, running_agent: AgentProcess, topic_of: TopicOf
) -> None:
    """Rows are written while the broker is killed and started again: none is lost, and the order is kept."""
    with _Writer(session, table) as writer:
        time.sleep(0.5)
        servers.pulsar.kill()
        time.sleep(1)
        servers.pulsar.start()
        time.sleep(0.5)
    events = topic_of(table).wait_for_rows(writer.written)
    assert sorted(set(_keys(events))) == list(range(writer.written))
    for partition in range(4):
        first_seen = list(dict.fromkeys(each.place[1:] for each in events if each.partition == partition))
        assert first_seen == sorted(first_seen)


@pytest.mark.extended
def test_no_topic_is_taken_for_broken_after_pulsar_was_away_for_minutes(
    servers: Sandbox, session: Session, table: str, running_agent: AgentProcess, topic_of: TopicOf
) -> None:
    """After an outage of minutes, no topic is held as broken: neither a busy table's nor those of quiet tables."""
    keyspace = table.partition(".")[0]
    quiet = [f"{keyspace}.quiet_{number}" for number in range(3)]
    for each in quiet:
        session.execute(f"CREATE TABLE {each} (pk int PRIMARY KEY, v text) WITH cdc = true")
        _write(session, each, range(5))
        topic_of(each).wait_for(5)
    held = running_agent.metric("topics_held")
    with _Writer(session, table) as writer:
        servers.pulsar.kill()
        time.sleep(_LONG_OUTAGE_S)
        servers.pulsar.start()
    for each in quiet:
        _write(session, each, range(5, 10))
        assert _keys(topic_of(each).wait_for(10)) == list(range(10))
    assert sorted(set(_keys(topic_of(table).wait_for_rows(writer.written)))) == list(range(writer.written))
    assert running_agent.metric("topics_held") == held


def test_changes_of_a_dropped_table_are_still_published(
    session: Session, table: str, running_agent: AgentProcess, topic_of: TopicOf
) -> None:
    """Rows are written while the agent is down, and the table is dropped before its next start: the stored schema
    decodes them."""
    _write(session, table, range(1))
    topic_of(table).wait_for(1)
    running_agent.stop(timeout_s=_STOP_S)
    _write(session, table, range(1, 50))
    session.execute(f"DROP TABLE {table}")
    running_agent.start()
    events = topic_of(table).wait_for(50)
    assert _keys(events) == list(range(50))


def test_a_table_that_gets_cdc_a_moment_before_the_write_is_not_missed(
    session: Session, table: str, running_agent: AgentProcess, topic_of: TopicOf
) -> None:
    """The agent uses the schema at the position in the log, so that it skips no write that Cassandra tracked."""
    keyspace = table.split(".", maxsplit=1)[0]
    for name in ("a", "b", "c"):
        session.execute(f"CREATE TABLE {keyspace}.{name} (pk int PRIMARY KEY, v text)")
        session.execute(f"INSERT INTO {keyspace}.{name} (pk, v) VALUES (0, 'before')")
        session.execute(f"ALTER TABLE {keyspace}.{name} WITH cdc = true")
        session.execute(f"INSERT INTO {keyspace}.{name} (pk, v) VALUES (1, 'after')")
        session.execute(f"ALTER TABLE {keyspace}.{name} ADD w int")
        session.execute(f"INSERT INTO {keyspace}.{name} (pk, w) VALUES (2, 2)")
        topic = topic_of(f"{keyspace}.{name}")
        wait_until(lambda: {1, 2} <= set(_keys(topic.read())), f"both tracked writes of {name} are on the topic")  # noqa: B023
    assert running_agent.metric("mutations_parked") == 0


def test_what_cassandra_has_after_a_crash_is_on_the_topic(
    servers: Sandbox, session: Session, table: str, running_agent: AgentProcess, topic_of: TopicOf
) -> None:
    """Cassandra and the agent are killed and the agent starts first: it reads the last segment, which was never
    completed, to its end."""
    _write(session, table, range(3_000))
    topic = topic_of(table)
    topic.wait_for(1)
    servers.node.kill()
    running_agent.kill()
    left = {path.name for path in servers.node.cdc_raw.glob("*_cdc.idx")}
    new_log = log_from_now(running_agent)
    running_agent.start()
    wait_until(
        lambda: "waiting for the schema: Cassandra at" in new_log(),
        "the agent says what it waits for",
    )
    servers.node.start()
    with cluster_of(servers.node) as cluster:
        again = cluster.connect()
        survived = {row.pk for row in again.execute(f"SELECT pk FROM {table}")}
        _write(again, table, range(10_000, 10_100))
        expected = survived | set(range(10_000, 10_100))
        wait_until(lambda: expected <= set(_keys(topic.read())), "every surviving row is on the topic")
        assert all(each.event.kind is MutationKind.ROW for each in topic.events)
        wait_until(
            lambda: not left & {path.name for path in servers.node.cdc_raw.glob("*_cdc.idx")},
            "the segments of the node's earlier start are deleted",
        )


def test_the_agent_of_a_table_with_one_event_a_message_gives_the_rows_key(
    servers: Sandbox, session: Session, table: str, stopped_agent: AgentProcess, tmp_path: Path, topic_of: TopicOf
) -> None:
    """With maxEventsPerMessage 1 every message carries one event and its Avro key, in base64."""
    keyed = AgentProcess.for_node(
        servers.node, servers.pulsar, tmp_path, maxEventsPerMessage=1, topicPrefix="persistent://public/default/keyed-"
    )
    keyed.start()
    _write(session, table, range(20))
    pulsar = servers.pulsar
    with EventsTopic(pulsar, f"persistent://public/default/keyed-{table}") as topic:
        events = topic.wait_for(20)
        assert topic.messages == len(events)
        [first] = [each for each in events if each.event.partition_key == b"\0\0\0\1"]
    assert first.message_key == "Ag=="
    assert keyed.stop() == 0


def test_an_agent_that_may_not_create_topics_waits_for_them(
    servers: Sandbox, session: Session, table: str, stopped_agent: AgentProcess, tmp_path: Path
) -> None:
    """The agent logs which topic is missing, and publishes when topic and subscription are there."""
    modest = AgentProcess.for_node(
        servers.node,
        servers.pulsar,
        tmp_path,
        createTopics=False,
        eventsSubscriptionName="mine",
        topicPrefix="persistent://public/default/modest-",
    )
    modest.start()
    _write(session, table, range(20))
    wait_until(
        lambda: f"modest-{table}: does not exist; create it" in modest.log_tail(), "the agent says what is missing"
    )
    pulsar = servers.pulsar
    topic = f"{pulsar.admin_url}/admin/v2/persistent/public/default/modest-{table}"
    rest().put(f"{topic}/partitions", json=2).raise_for_status()
    rest().put(f"{topic}/subscription/mine").raise_for_status()
    with EventsTopic(pulsar, f"persistent://public/default/modest-{table}") as events:
        assert _keys(events.wait_for(20)) == list(range(20))
        assert {each.partition for each in events.events} == {0, 1}
    assert modest.stop() == 0
