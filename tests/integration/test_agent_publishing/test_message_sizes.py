"""Events and messages that exceed the broker's limit."""

from __future__ import annotations

from cassandra.cluster import Session

from cdc.agent_process import AgentProcess
from tests.integration.test_agent_publishing.strict_servers import TopicOf, keys_of, metric_of, write
from tests.topics.events_topic import wait_until


def test_an_event_larger_than_the_broker_takes_is_set_aside(
    session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf
) -> None:
    """An event has a key of 60 kB twice: it is kept aside, later rows arrive, and the agent reads on."""
    write(session, f"{keyspace}.a", ["first"])
    topic_of(f"{keyspace}.a").wait_for(1)
    write(session, f"{keyspace}.a", ["x" * 60_000])
    wait_until(
        lambda: metric_of(agent, "cdc_agent_table_events_too_large_total", f"{keyspace}.a") == 1, "it is counted"
    )
    write(session, f"{keyspace}.a", ["last"])
    topic = topic_of(f"{keyspace}.a")
    topic.wait_for(2)
    assert keys_of(topic) == ["first", "last"]
    assert "larger than the broker's maxMessageSize" in agent.log.read_text()
    assert (agent.working_dir / "held" / "too-large" / f"{keyspace}.a.events").stat().st_size > 120_000


def test_messages_that_are_too_large_are_sent_in_parts(
    session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf
) -> None:
    """A backlog is packed into messages up to 256 kB by default; the agent splits them for this broker without
    configuration."""
    assert agent.stop() == 0
    keys = [f"{'k' * 2_000}{number:04}" for number in range(300)]
    write(session, f"{keyspace}.a", keys)
    agent.start()
    topic = topic_of(f"{keyspace}.a")
    topic.wait_for(300)
    assert keys_of(topic) == keys
