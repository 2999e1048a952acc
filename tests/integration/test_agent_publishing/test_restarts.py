"""The agent beside a broker that de-duplicates: it is killed, and it reads its configuration again."""

from __future__ import annotations

import signal
import time

from cassandra.cluster import Session

from cdc.agent_process import AgentProcess
from tests.integration.test_agent_publishing.strict_servers import TopicOf, keys_of, write
from tests.topics.events_topic import wait_until


def test_with_de_duplication_nothing_that_is_sent_again_is_dropped(
    session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf
) -> None:
    """The agent is killed while it publishes rows: the broker does not drop the events that it sends again."""
    keys = []
    for number in range(4):
        more = [f"{number}-{each:03}" for each in range(200)]
        write(session, f"{keyspace}.a", more)
        keys += more
        time.sleep(0.1)
        agent.kill()
        agent.start()
    topic = topic_of(f"{keyspace}.a")
    topic.wait_for_rows(len(keys))
    assert sorted(set(keys_of(topic))) == keys


def test_sighup_takes_over_what_can_change_and_says_what_cannot(
    session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf
) -> None:
    """An excluded table has no events until it is included again; a wrong file changes nothing."""
    write(session, f"{keyspace}.a", ["seen"])
    topic_of(f"{keyspace}.a").wait_for(1)
    before = agent.config.read_text()

    def reload(more: str, line: str) -> None:
        agent.config.write_text(before + more)
        told = agent.log.read_text().count(line)
        agent.send_signal(signal.SIGHUP)
        wait_until(lambda: agent.log.read_text().count(line) > told, f"the log says {line!r}")

    reload(f"excludeTables: [{keyspace}.a]\nport: 1234\n", "restart the agent for: port")
    wait_until(lambda: agent.status()["exclude_tables"] == [f"{keyspace}.a"], "the status has the patterns in force")
    write(session, f"{keyspace}.a", ["not seen"])
    write(session, f"{keyspace}.b", ["b"])
    topic_of(f"{keyspace}.b").wait_for(1)
    reload("excludeTables: nonsense\n", f"configuration not read again: {agent.config}: excludeTables")
    reload("", "configuration read again: excludeTables")
    write(session, f"{keyspace}.a", ["seen again"])
    topic = topic_of(f"{keyspace}.a")
    topic.wait_for(2)
    assert keys_of(topic) == ["seen", "seen again"]
