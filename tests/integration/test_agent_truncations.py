"""Truncations and drops are on each partition of the events topic, once, at their position in the log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import httpx
import pytest
from cassandra.cluster import Session

from cdc.agent_process import AgentProcess
from cdc.rest import rest
from cdc.sandbox import Sandbox, SandboxOptions
from schemas.mutation_event import ClearingKind, MutationEvents
from schemas.topics import events_topic
from schemas.truncation import Truncation, truncations_of
from tests.servers.cassandra_session import cluster_of, make_keyspace
from tests.servers.interface import PulsarServer
from tests.topics.events_topic import EventsTopic, wait_until

_PARTITIONS = 4


def _table_id(cql: Session, keyspace: str) -> UUID:
    select = "SELECT id FROM system_schema.tables WHERE keyspace_name = %s AND table_name = 't'"
    table_id: UUID = cql.execute(select, (keyspace,)).one().id
    return table_id


def _noted(cql: Session, table_id: UUID) -> Truncation:
    row = cql.execute("SELECT truncated_at FROM system.local WHERE key = 'local'").one()
    return truncations_of(row.truncated_at)[table_id]


def _insert(cql: Session, keyspace: str, first: int, count: int) -> None:
    for number in range(first, first + count):
        cql.execute(f"INSERT INTO {keyspace}.t (pk, v) VALUES ({number}, 0)")


def test_a_truncation_stands_between_the_events_before_and_behind_it(
    cql: Session, keyspace: str, agent: AgentProcess, open_topic: Callable[[str, str], EventsTopic]
) -> None:
    """On each partition, events before the truncation's position come first, then the truncation, then later events.
    This holds while the agent runs and when it was down."""
    cql.execute(f"CREATE TABLE {keyspace}.t (pk int PRIMARY KEY, v int) WITH cdc = true")
    table_id, topic = _table_id(cql, keyspace), open_topic(keyspace, "t")
    _insert(cql, keyspace, 0, 30)
    # The agent waits only some seconds for events before the truncation. A busy broker or disk may need longer.
    topic.wait_for_rows(30)
    cql.execute(f"TRUNCATE {keyspace}.t")
    first = _noted(cql, table_id)
    _insert(cql, keyspace, 30, 30)
    _expect_in_place(topic, first, table_id, _PARTITIONS)
    _wait_until_noted(agent, first, table_id)

    assert agent.stop() == 0
    try:
        _insert(cql, keyspace, 60, 30)
        cql.execute(f"TRUNCATE {keyspace}.t")
        second = _noted(cql, table_id)
        _insert(cql, keyspace, 90, 30)
    finally:
        agent.start()
    topic.wait_for_rows(120)
    _expect_in_place(topic, second, table_id, 2 * _PARTITIONS)
    _wait_until_noted(agent, second, table_id)

    # A start without a new truncation reports nothing again. After it comes the drop.
    assert agent.stop() == 0
    agent.start()
    _insert(cql, keyspace, 120, 1)
    topic.wait_for_rows(121)
    assert len(topic.clearings) == 2 * _PARTITIONS
    cql.execute(f"DROP TABLE {keyspace}.t")
    wait_until(lambda: bool(topic.read()) and len(topic.clearings) == 3 * _PARTITIONS, "the drop on each partition")
    drops = topic.clearings[-_PARTITIONS:]
    assert {each.clearing.kind for _, each, _ in drops if each.clearing} == {ClearingKind.DROP}
    assert {partition for partition, _, _ in drops} == set(range(_PARTITIONS))


def test_the_topic_of_a_table_that_was_dropped_while_the_agent_was_down_is_not_made_again(
    cql: Session,
    keyspace: str,
    agent: AgentProcess,
    pulsar: PulsarServer,
    open_topic: Callable[[str, str], EventsTopic],
) -> None:
    """Who has dropped the table has deleted its topic, too. The log says that the drop is not published."""
    for name in "tu":
        cql.execute(f"CREATE TABLE {keyspace}.{name} (pk int PRIMARY KEY, v int) WITH cdc = true")
    _insert(cql, keyspace, 0, 3)
    topic = events_topic(keyspace, "t")
    with EventsTopic(pulsar, topic) as found:
        found.wait_for_rows(3)
    url = f"{pulsar.admin_url}/admin/v2/{topic.replace('://', '/')}/partitions"
    assert agent.stop() == 0
    try:
        cql.execute(f"DROP TABLE {keyspace}.t")
        rest().delete(url, params={"force": "true"}).raise_for_status()
    finally:
        agent.start()
    cql.execute(f"INSERT INTO {keyspace}.u (pk, v) VALUES (1, 0)")
    open_topic(keyspace, "u").wait_for_rows(1)
    told = f"{topic} does not exist: the drop of {keyspace}.t is not published"
    wait_until(lambda: told in agent.log.read_text(), "the log says so")
    assert rest().get(url).status_code == httpx.codes.NOT_FOUND


@pytest.mark.extended
@pytest.mark.parametrize(("version", "options"), [("3.11", {"segmentRotationIntervalMs": 1_000}), ("4.0", {})])
def test_earlier_versions_of_cassandra_note_truncations_alike(
    version: str, options: dict[str, object], pulsar: PulsarServer, tmp_path: Path
) -> None:
    """Cassandra 3.11 and 4.0 note truncations as later versions do: while the agent runs, and while it is down.

    In 3.11 the position is at the beginning of a segment, which reaches `cdc_raw` only if it holds a change of the
    table.
    """
    keyspace = f"truncated_{version.replace('.', '_')}"
    with (
        Sandbox(SandboxOptions(cassandra=version, pulsar=False, commitlog_sync_ms=100)) as running,
        cluster_of(running.node) as cluster,
        EventsTopic(pulsar, events_topic(keyspace, "t")) as topic,
    ):
        cql = cluster.connect()
        make_keyspace(cql, keyspace)
        cql.execute(f"CREATE TABLE {keyspace}.t (pk int PRIMARY KEY, v int) WITH cdc = true")
        table_id = _table_id(cql, keyspace)
        agent = AgentProcess.for_node(running.node, pulsar, tmp_path, **options)
        agent.start()
        for number in (1, 2):
            _insert(cql, keyspace, 60 * number, 30)
            if number == 1:
                topic.wait_for_rows(30)
            cql.execute(f"TRUNCATE {keyspace}.t")
            noted = _noted(cql, table_id)
            _insert(cql, keyspace, 60 * number + 30, 30)
            if number == 2:
                agent.start()
            wait_until(
                lambda: bool(topic.read()) and len(topic.clearings) == _PARTITIONS * number,  # noqa: B023
                "a truncation on each partition",
            )
            topic.wait_for_rows(60 * number)
            if version != "3.11":
                _expect_in_place(topic, noted, table_id, _PARTITIONS * number)
            _wait_until_noted(agent, noted, table_id)
            assert agent.stop() == 0, agent.log_tail()
            told = {(each.segment_id, each.clearing) for _, each, _ in topic.clearings[-_PARTITIONS:]}
            assert told == {(noted.segment_id, (ClearingKind.TRUNCATION, noted.position, noted.time_ms))}


def _wait_until_noted(agent: AgentProcess, noted: Truncation, table_id: UUID) -> None:
    """Wait until the agent has stored that the truncation is published; before that, a restart publishes it again."""
    path = agent.working_dir / "clearings.json"

    def is_noted() -> bool:
        return path.exists() and json.loads(path.read_text())["truncations"].get(str(table_id)) == list(noted)

    wait_until(is_noted, f"the agent has noted {noted}")


def _expect_in_place(topic: EventsTopic, noted: Truncation, table_id: UUID, count: int) -> None:
    """Check that there are `count` messages, and that the last one on each partition is at its position."""
    wait_until(
        lambda: bool(topic.read()) and len(topic.clearings) == count and _is_in_place(topic, noted),
        f"{count} messages, and {noted} on each partition between the events before and behind it",
    )
    for _, message, _ in _told(topic, noted):
        assert message.clearing == (ClearingKind.TRUNCATION, noted.position, noted.time_ms)
        assert (message.segment_id, message.table_id) == (noted.segment_id, table_id)


def _told(topic: EventsTopic, noted: Truncation) -> list[tuple[int, MutationEvents, int]]:
    return [each for each in topic.clearings if (each[1].clearing or (None, 0))[1] == noted.position]


def _is_in_place(topic: EventsTopic, noted: Truncation) -> bool:
    """Return whether on each partition the message is between the events before and after its position.

    When the agent finds a truncation late, the message is on the topic before the later events, which are published
    again.
    """
    told = _told(topic, noted)
    place = (noted.segment_id, noted.position)
    for partition, _, before in told:
        mine = [each for each in topic.events if each.partition == partition]
        places = [(each.message.segment_id, each.event.position) for each in mine]
        behind = places[before:]
        if not all(each <= place for each in places[:before] if each not in behind):
            return False
        if not all(each > place for each in behind):
            return False
    return {partition for partition, _, _ in told} == set(range(_PARTITIONS))
