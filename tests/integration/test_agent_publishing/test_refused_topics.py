"""A topic that refuses events stops only its own table."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Final

import yaml
from cassandra.cluster import Session

from cdc.agent_process import AgentProcess
from cdc.rest import rest
from cdc.sandbox import Sandbox
from tests.integration.test_agent_publishing.strict_servers import (
    NAMESPACE,
    PREFIX,
    TopicOf,
    keys_of,
    metric_of,
    topic_state,
    write,
)
from tests.topics.agent_table import log_from_now
from tests.topics.events_topic import wait_until

# A stop waits shutdownTimeoutMs, 3 s, for refused events; the rest is time for a slow machine.
_SOON_S: Final = 20.0
# A server that stalls delays one stop, not all of them.
_STOPS: Final = 3


def _refusing_topic(servers: Sandbox, table: str) -> str:
    """Make the table's events topic with a foreign schema, and return the address of that schema."""
    admin = f"{servers.pulsar.admin_url}/admin/v2"
    topic = f"{NAMESPACE}/cdc-events-{table}"
    rest().put(f"{admin}/persistent/{topic}/partitions", json=4).raise_for_status()
    schema = f"{admin}/schemas/{topic}/schema"
    rest().post(schema, json={"type": "STRING", "schema": "", "properties": {}}).raise_for_status()
    return schema


def _told(agent: AgentProcess, topic: str) -> list[tuple[str, int]]:
    """The refusals of a topic in the agent's log: reason and number of the attempt."""
    found = re.findall(rf"waiting for {re.escape(topic)}: (.*) \(attempt (\d+)\)", agent.log.read_text())
    return [(reason, int(attempt)) for reason, attempt in found]


def test_a_topic_with_another_schema_stops_only_its_table(
    servers: Sandbox, session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf
) -> None:
    """The table's events wait, and log, status and metric show the refusal; the other table's events arrive."""
    schema = _refusing_topic(servers, f"{keyspace}.a")
    write(session, f"{keyspace}.a", ["a1"])
    wait_until(lambda: "IncompatibleSchema" in str(topic_state(agent, f"{keyspace}.a").get("problem")), "it is told")
    write(session, f"{keyspace}.b", ["b1", "b2"])
    topic_of(f"{keyspace}.b").wait_for(2)
    wait_until(lambda: metric_of(agent, "cdc_agent_topic_usable", f"{keyspace}.b") == 1, "the other one is in use")
    assert metric_of(agent, "cdc_agent_topic_usable", f"{keyspace}.a") == 0
    wait_until(lambda: metric_of(agent, "cdc_agent_table_retries_total", f"{keyspace}.a") >= 5, "it is tried again")
    told = _told(agent, f"{PREFIX}{keyspace}.a")
    assert len({reason for reason, _ in told if "IncompatibleSchema" in reason}) == 1
    # A busy broker may give another reason meanwhile, which is logged, too.
    again = [attempt for (before, _), (reason, attempt) in pairwise(told) if reason == before]
    assert [each for each in again if each & (each - 1)] == [], "each doubling of the attempts is told"
    rest().delete(schema, params={"force": "true"}).raise_for_status()
    topic_of(f"{keyspace}.a").wait_for(1)
    wait_until(lambda: topic_state(agent, f"{keyspace}.a")["problem"] is None, "nothing of it is left")


def test_a_topic_whose_number_of_partitions_changes_is_not_used_any_more(
    servers: Sandbox, session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf
) -> None:
    """After its next start the agent reports the change; without its stored number, it continues with the new one."""
    write(session, f"{keyspace}.a", ["before"])
    topic_of(f"{keyspace}.a").wait_for(1)
    assert agent.stop() == 0
    path = f"{servers.pulsar.admin_url}/admin/v2/persistent/{NAMESPACE}/cdc-events-{keyspace}.a/partitions"
    rest().post(path, json=8).raise_for_status()
    write(session, f"{keyspace}.a", ["behind"])
    write(session, f"{keyspace}.b", ["b"])
    agent.start()
    topic_of(f"{keyspace}.b").wait_for(1)
    wait_until(
        lambda: "has 8 partitions and had 4" in str(topic_state(agent, f"{keyspace}.a").get("problem")), "it is told"
    )
    assert keys_of(topic_of(f"{keyspace}.a")) == ["before"]
    counts = agent.working_dir / "topic-partitions.json"
    known = json.loads(counts.read_text())
    assert known.pop(f"{PREFIX}{keyspace}.a") == 4
    counts.write_text(json.dumps(known))
    topic = topic_of(f"{keyspace}.a")
    topic.wait_for(2)
    assert keys_of(topic) == ["before", "behind"]


def _stop_while_refused(agent: AgentProcess, table: str) -> float:
    """Stop the agent while the topic is refused, and return how long the stop took, in seconds."""
    wait_until(lambda: bool(topic_state(agent, table).get("problem")), "it is refused")
    started = time.monotonic()
    assert agent.stop(timeout_s=60) == 0
    return time.monotonic() - started


def test_sigterm_ends_soon_with_the_position_stored_while_a_topic_refuses(
    servers: Sandbox, session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf
) -> None:
    """Events that could not be sent are read again; events that were sent are not repeated."""
    schema = _refusing_topic(servers, f"{keyspace}.a")
    write(session, f"{keyspace}.b", ["b1"])
    topic_of(f"{keyspace}.b").wait_for(1)
    write(session, f"{keyspace}.a", ["a1"])
    new_log = log_from_now(agent)
    stops_s = [_stop_while_refused(agent, f"{keyspace}.a")]
    assert "events are not acknowledged; the next start reads them again" in new_log()
    while min(stops_s) >= _SOON_S and len(stops_s) < _STOPS:
        agent.start()
        stops_s.append(_stop_while_refused(agent, f"{keyspace}.a"))
    assert min(stops_s) < _SOON_S
    rest().delete(schema, params={"force": "true"}).raise_for_status()
    agent.start()
    topic_of(f"{keyspace}.a").wait_for(1)
    assert keys_of(topic_of(f"{keyspace}.b")) == ["b1"]


@contextmanager
def _little_room(agent: AgentProcess) -> Iterator[None]:
    """Let the agent hold the events of a topic that refuses them after 10 s, if these are more than a hundred."""
    text = agent.config.read_text()
    assert agent.stop(timeout_s=60) == 0
    agent.configure({**yaml.safe_load(text), "maxInflightEvents": 400})
    agent.start()
    try:
        yield
    finally:
        assert agent.stop(timeout_s=60) == 0
        agent.config.write_text(text)


def test_events_that_are_held_for_a_table_that_was_dropped_with_its_topic_do_not_make_it_again(
    servers: Sandbox, session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf
) -> None:
    """The node answers that it does not have the table any more. The file is removed, and the log says it."""
    _refusing_topic(servers, f"{keyspace}.a")
    with _little_room(agent):
        write(session, f"{keyspace}.a", [f"a{number:03}" for number in range(200)])
        rows = iter(range(10_000))

        def is_held() -> bool:
            write(session, f"{keyspace}.b", [f"b{next(rows):04}"])  # the broker must acknowledge something
            return int(str(topic_state(agent, f"{keyspace}.a").get("held_bytes", 0))) > 0

        wait_until(is_held, "the events of a are held", 120)
        wait_until(lambda: agent.metric("inflight_events") == 0, "all of them are")
    session.execute(f"DROP TABLE {keyspace}.a")
    topics = f"{servers.pulsar.admin_url}/admin/v2/persistent/{NAMESPACE}"
    rest().delete(f"{topics}/cdc-events-{keyspace}.a/partitions?force=true").raise_for_status()
    new_log = log_from_now(agent)
    agent.start()
    said = f"{PREFIX}{keyspace}.a does not exist any more, and its table was dropped: 200 events that were held for it"
    wait_until(lambda: said in new_log(), "the events are dropped", 60)
    wait_until(lambda: agent.metric("held_events_dropped") == 200, "they are counted")
    write(session, f"{keyspace}.b", ["last"])
    wait_until(lambda: "last" in keys_of(topic_of(f"{keyspace}.b")), "the other table goes on")
    assert [each for each in rest().get(topics).json() if f"{keyspace}.a" in each] == []
    assert list((agent.working_dir / "held").glob(f"{keyspace}.*")) == []
