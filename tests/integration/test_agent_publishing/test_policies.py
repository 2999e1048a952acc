"""Pulsar policies that would drop unread events: the agent reads them from the broker, and logs how to fix them."""

from __future__ import annotations

from cassandra.cluster import Session

from cdc.agent_process import AgentProcess
from cdc.rest import rest
from cdc.sandbox import Sandbox
from tests.integration.test_agent_publishing.strict_servers import NAMESPACE, metric_of, topic_state, write
from tests.topics.events_topic import wait_until

_LONG_MIN = 1_000_000


def test_what_would_drop_unread_events_is_told_when_the_topic_opens(
    servers: Sandbox, session: Session, keyspace: str, agent: AgentProcess
) -> None:
    """Policies of the topic and of the namespace are reported; the other table's topic only has the namespace's."""
    admin = f"{servers.pulsar.admin_url}/admin/v2"
    topic = f"{admin}/persistent/{NAMESPACE}/cdc-events-{keyspace}.a"
    expiration = f"{admin}/namespaces/{NAMESPACE}/subscriptionExpirationTime"
    rest().put(f"{topic}/partitions", json=4).raise_for_status()
    rest().post(f"{topic}/messageTTL?messageTTL=86400").raise_for_status()
    quota = {"limitSize": 1_000_000_000, "limitTime": -1, "policy": "consumer_backlog_eviction"}
    rest().post(f"{topic}/backlogQuota?backlogQuotaType=destination_storage", json=quota).raise_for_status()
    rest().post(expiration, json=_LONG_MIN).raise_for_status()
    try:

        def is_set() -> bool:
            ttl = rest().get(f"{topic}/messageTTL?applied=true").text
            quotas = rest().get(f"{topic}/backlogQuotaMap?applied=true").text
            return ttl == "86400" and "consumer_backlog_eviction" in quotas

        wait_until(is_set, "the topic's policies hold")
        write(session, f"{keyspace}.a", ["a"])
        write(session, f"{keyspace}.b", ["b"])
        wait_until(
            lambda: len(str(topic_state(agent, f"{keyspace}.a").get("hazards")).split("fix it with")) == 4, "a's"
        )
        wait_until(lambda: metric_of(agent, "cdc_agent_topic_hazards", f"{keyspace}.b") == 1, "b's")
    finally:
        rest().delete(expiration).raise_for_status()
    told = [line for line in agent.log.read_text().splitlines() if f"cdc-events-{keyspace}.a: the " in line]
    assert [word for word in ("message TTL", "backlog quota", "subscription is removed") if word not in str(told)] == []
    assert len(told) == 3
