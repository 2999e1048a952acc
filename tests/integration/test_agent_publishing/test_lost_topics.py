"""Somebody removes an events topic or its subscription: it is made again, a gap is published, and events continue."""

from __future__ import annotations

from collections.abc import Iterator

import pulsar
import pytest
from cassandra.cluster import Session

from cdc.agent_process import AgentProcess
from cdc.rest import rest
from cdc.sandbox import Sandbox
from change_agent.positions.stops import read_stops
from clients.pulsar_schema import ReadyBytes
from schemas.gap_record import GAP_SCHEMA_TEXT, GapRecord, decode_gap, encode_gap, gaps_topic
from tests.integration.test_agent_publishing.strict_servers import NAMESPACE, PREFIX, TopicOf, keys_of, write
from tests.topics.client import client_of
from tests.topics.events_topic import EventsTopic, TopicEvent, partitions_of, wait_until


@pytest.fixture
def gaps(servers: Sandbox) -> Iterator[pulsar.Client]:
    """A client that reads the gaps topic."""
    with client_of(servers.pulsar.service_url) as client:
        yield client


def _gaps_of(servers: Sandbox, client: pulsar.Client, keyspace: str) -> list[GapRecord]:
    topic = gaps_topic(PREFIX)
    found = []
    for name in partitions_of(servers.pulsar.admin_url, topic):
        reader = client.create_reader(name, pulsar.MessageId.earliest)
        while reader.has_message_available():
            found.append(decode_gap(reader.read_next(timeout_millis=60_000).data()))
        reader.close()
    return [gap for gap in found if gap.keyspace == keyspace and not gap.is_closing]


def _address(servers: Sandbox, table: str) -> str:
    return f"{servers.pulsar.admin_url}/admin/v2/persistent/{NAMESPACE}/cdc-events-{table}"


def _backlog(servers: Sandbox, table: str) -> int | None:
    """Number of messages that wait for the subscription; None while a partition lacks it."""
    answer = rest().get(f"{_address(servers, table)}/partitioned-stats?perPartition=true")
    partitions = answer.json()["partitions"].values() if answer.is_success else ()
    subscriptions = [each["subscriptions"]["sub"] for each in partitions if "sub" in each["subscriptions"]]
    return sum(each["msgBacklog"] for each in subscriptions) if len(subscriptions) == 4 else None


def _holds_all(servers: Sandbox, table: str, topic: EventsTopic) -> bool:
    topic.read()
    return _backlog(servers, table) == topic.messages


def _told(agent: AgentProcess, table: str) -> list[str]:
    """The lines of the agent's log about the loss of the topic."""
    return [line for line in agent.log.read_text().splitlines() if f"cdc-events-{table}: the events topic" in line]


def _is_made_again(servers: Sandbox, agent: AgentProcess, table: str) -> bool:
    return bool(_told(agent, table)) and _backlog(servers, table) is not None


def _expect_gaps(found: list[GapRecord], after: TopicEvent) -> None:
    for gap in found:
        assert gap.table == "a"
        # The reason depends on whether the agent looks before or after the producers have made partitions.
        assert gap.reason in ("the events topic does not exist", "the events topic has no subscription 'sub'")
    # A second gap may be found after that event was read.
    gap = found[0]
    first, last = (gap.first_segment_id, gap.first_position), (gap.last_segment_id, gap.last_position or 0)
    assert first < last < (after.message.segment_id, after.event.position)


def _close(client: pulsar.Client, gaps: list[GapRecord]) -> None:
    schema = ReadyBytes.of("Gap", GAP_SCHEMA_TEXT)
    producer = client.create_producer(f"{gaps_topic(PREFIX)}-partition-0", schema=schema, batching_enabled=False)
    for each in gaps:
        producer.send(encode_gap(each.closed(each.to_ms + 1, "its rows were sent again")))


def test_a_topic_that_is_deleted_while_the_agent_runs_is_made_again_and_a_gap_is_told(
    servers: Sandbox, session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf, gaps: pulsar.Client
) -> None:
    """The producers make partitions without a subscription; the gap reaches from the first event to those partitions.

    The topic is deleted partition by partition: an agent that looks meanwhile correctly finds it lost twice, and
    publishes two gaps.
    """
    table = f"{keyspace}.a"
    write(session, table, ["before"])
    topic_of(table).wait_for(1)
    lost = agent.metric("topics_lost")
    rest().delete(f"{_address(servers, table)}/partitions?force=true").raise_for_status()
    write(session, table, ["meanwhile"])
    wait_until(lambda: agent.metric("topics_lost") > lost, "it is seen")
    wait_until(lambda: _is_made_again(servers, agent, table), "it is made again")
    write(session, table, ["after"])
    wait_until(lambda: "after" in keys_of(topic_of(table)), "events go on")
    wait_until(lambda: _holds_all(servers, table, topic_of(table)), "the subscription holds them")
    after = next(each for each in topic_of(table).read() if each.event.partition_key == b"after")
    wait_until(lambda: len(_gaps_of(servers, gaps, keyspace)) == len(_told(agent, table)), "each gap is told")
    found = _gaps_of(servers, gaps, keyspace)
    _expect_gaps(found, after)
    assert all(f"run cdc spark resync on {table}, and find out who removed it" in each for each in _told(agent, table))
    assert table in read_stops(agent.working_dir)
    _close(gaps, found)
    said = f"the gaps of {table} are closed: their progress continues"
    wait_until(lambda: said in agent.log.read_text(), "a closed gap stops nothing")
    assert table not in read_stops(agent.working_dir)


def test_a_subscription_that_is_removed_while_the_agent_is_down_is_told_at_its_start(
    servers: Sandbox, session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf, gaps: pulsar.Client
) -> None:
    """Somebody made the subscription again at the end of the topic: it skips its earlier backlog, which only the agent
    can report."""
    table = f"{keyspace}.a"
    write(session, table, ["before"])
    topic_of(table).wait_for(1)
    (before,) = topic_of(table).read()
    assert agent.stop() == 0
    subscription = f"{_address(servers, table)}/subscription/sub"
    rest().delete(f"{subscription}?force=true").raise_for_status()
    rest().put(subscription, json="latest").raise_for_status()
    agent.start()
    # The agent finds this without another event of the table.
    wait_until(lambda: len(_gaps_of(servers, gaps, keyspace)) == 1, "the gap is told")
    (gap,) = _gaps_of(servers, gaps, keyspace)
    assert "was removed" in gap.reason
    write(session, table, ["after"])
    assert (gap.last_segment_id, gap.last_position or 0) >= (before.message.segment_id, before.event.position)
    topic_of(table).wait_for(2)


def test_a_subscription_that_is_removed_while_the_agent_runs_is_made_again_from_the_beginning(
    servers: Sandbox, session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf, gaps: pulsar.Client
) -> None:
    """All events that the topic still has come to the connector, some of them again."""
    table = f"{keyspace}.a"
    write(session, table, ["before"])
    topic_of(table).wait_for(1)
    rest().delete(f"{_address(servers, table)}/subscription/sub?force=true").raise_for_status()
    # The subscription is removed partition by partition: an agent that looks meanwhile correctly publishes two gaps.
    wait_until(lambda: len(_gaps_of(servers, gaps, keyspace)) >= 1, "the gap is told")
    wait_until(lambda: _backlog(servers, table) == 1, "the new subscription holds the event")
