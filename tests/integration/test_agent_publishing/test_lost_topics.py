"""An events topic or its subscription that somebody removes: it is made again, a gap is told, and events go on."""

from __future__ import annotations

from collections.abc import Iterator

import pulsar
import pytest
from cassandra.cluster import Session

from cdc.agent_process import AgentProcess
from cdc.rest import rest
from cdc.sandbox import Sandbox
from change_agent.positions.stops import read_stops
from schemas.gap_record import GAP_SCHEMA_TEXT, GapRecord, decode_gap, encode_gap, gaps_topic
from spark_bridge.topics.avro_bytes import AvroBytes
from tests.integration.test_agent_publishing.strict_servers import NAMESPACE, PREFIX, TopicOf, keys_of, write
from tests.topics.events_topic import partitions_of, wait_until


@pytest.fixture
def gaps(servers: Sandbox) -> Iterator[pulsar.Client]:
    """A client that reads gaps."""
    client = pulsar.Client(servers.pulsar.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))
    yield client
    client.close()


def _gaps_of(servers: Sandbox, client: pulsar.Client, keyspace: str) -> list[GapRecord]:
    topic = gaps_topic(PREFIX)
    found = []
    for name in partitions_of(servers.pulsar.admin_url, topic):
        reader = client.create_reader(name, pulsar.MessageId.earliest)
        while reader.has_message_available():
            found.append(decode_gap(reader.read_next(timeout_millis=5_000).data()))
        reader.close()
    return [gap for gap in found if gap.keyspace == keyspace and not gap.is_closing]


def _address(servers: Sandbox, table: str) -> str:
    return f"{servers.pulsar.admin_url}/admin/v2/persistent/{NAMESPACE}/cdc-events-{table}"


def _backlog(servers: Sandbox, table: str) -> int:
    stats = rest().get(f"{_address(servers, table)}/partitioned-stats?perPartition=true").raise_for_status().json()
    subscriptions = [each["subscriptions"] for each in stats["partitions"].values()]
    assert len(subscriptions) == 4
    return sum(each["sub"]["msgBacklog"] for each in subscriptions)


def test_a_topic_that_is_deleted_while_the_agent_runs_is_made_again_and_a_gap_is_told(
    servers: Sandbox, session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf, gaps: pulsar.Client
) -> None:
    """Its producers make bare partitions, which no subscription holds; the gap reaches from the first event to those."""
    table = f"{keyspace}.a"
    write(session, table, ["before"])
    topic_of(table).wait_for(1)
    lost = agent.metric("topics_lost")
    rest().delete(f"{_address(servers, table)}/partitions?force=true").raise_for_status()
    write(session, table, ["meanwhile"])
    wait_until(lambda: agent.metric("topics_lost") > lost, "it is seen")
    write(session, table, ["after"])
    wait_until(lambda: "after" in keys_of(topic_of(table)), "events go on")
    assert _backlog(servers, table) == len(keys_of(topic_of(table)))
    wait_until(lambda: len(_gaps_of(servers, gaps, keyspace)) == 1, "the gap is told")
    (gap,) = _gaps_of(servers, gaps, keyspace)
    assert gap.table == "a"
    # Which of them is found depends on whether the look comes before or after the bare partitions.
    assert gap.reason in ("the events topic does not exist", "the events topic has no subscription 'sub'")
    after = next(each for each in topic_of(table).read() if each.event.partition_key == b"after")
    first, last = (gap.first_segment_id, gap.first_position), (gap.last_segment_id, gap.last_position or 0)
    assert first < last < (after.message.segment_id, after.event.position)
    told = [line for line in agent.log.read_text().splitlines() if f"cdc-events-{table}: the events topic" in line]
    assert len(told) == 1
    assert f"run cdc spark resync on {table}, and find out who removed it" in told[0]
    assert table in read_stops(agent.working_dir)
    closing = encode_gap(gap.closed(gap.to_ms + 1, "its rows were sent again"))
    schema = AvroBytes("Gap", GAP_SCHEMA_TEXT)
    producer = gaps.create_producer(f"{gaps_topic(PREFIX)}-partition-0", schema=schema, batching_enabled=False)
    producer.send(closing)
    said = f"the gaps of {table} are closed: their progress continues"
    wait_until(lambda: said in agent.log.read_text(), "a closed gap stops nothing")
    assert table not in read_stops(agent.working_dir)


def test_a_subscription_that_is_removed_while_the_agent_is_down_is_told_at_its_start(
    servers: Sandbox, session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf, gaps: pulsar.Client
) -> None:
    """Somebody made it again meanwhile, at the end of the topic: what it held is passed over, and nobody else would say so."""
    table = f"{keyspace}.a"
    write(session, table, ["before"])
    topic_of(table).wait_for(1)
    (before,) = topic_of(table).read()
    assert agent.stop() == 0
    subscription = f"{_address(servers, table)}/subscription/sub"
    rest().delete(f"{subscription}?force=true").raise_for_status()
    rest().put(subscription, json="latest").raise_for_status()
    agent.start()
    write(session, table, ["after"])
    wait_until(lambda: len(_gaps_of(servers, gaps, keyspace)) == 1, "the gap is told")
    (gap,) = _gaps_of(servers, gaps, keyspace)
    assert "was removed" in gap.reason
    assert (gap.last_segment_id, gap.last_position or 0) >= (before.message.segment_id, before.event.position)
    topic_of(table).wait_for(2)


def test_a_subscription_that_is_removed_while_the_agent_runs_is_made_again_from_the_beginning(
    servers: Sandbox, session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf, gaps: pulsar.Client
) -> None:
    """What the topic still has comes to the connector (again)."""
    table = f"{keyspace}.a"
    write(session, table, ["before"])
    topic_of(table).wait_for(1)
    rest().delete(f"{_address(servers, table)}/subscription/sub?force=true").raise_for_status()
    wait_until(lambda: len(_gaps_of(servers, gaps, keyspace)) == 1, "the gap is told")
    assert _backlog(servers, table) == 1
