"""Policies by which Pulsar drops records of a data topic: the connector reports them, or sets a retention."""

from __future__ import annotations

from cdc.rest import rest
from source_connector.errors import AdminError
from source_connector.events.pulsar_access import PulsarOptions
from source_connector.events.pulsar_admin import PulsarAdmin
from source_connector.tables.data_topic_policies import trimming_of
from tests.fixtures.connector import CreateLine, DeployConnector, OpenDataTopic
from tests.servers.interface import PulsarServer
from tests.topics.connector_line import int32
from tests.topics.events_topic import wait_until


def _retain(url: str, limit: int) -> None:
    """Set the retention, and return when it is in force: a policy that is set too soon after may remove another one."""
    wanted = {"retentionTimeInMinutes": limit, "retentionSizeInMB": limit}
    rest().post(f"{url}/retention", json=wanted).raise_for_status()
    wait_until(lambda: rest().get(f"{url}/retention?applied=true").json() == wanted, "the retention holds")


def _set_ttl(url: str) -> None:
    """Set a message TTL of a day, and return when it is in force."""
    rest().post(f"{url}/messageTTL?messageTTL=86400").raise_for_status()
    wait_until(lambda: rest().get(f"{url}/messageTTL?applied=true").text == "86400", "the TTL holds")


def test_the_policies_in_force_are_read(pulsar: PulsarServer, keyspace: str, open_data_topic: OpenDataTopic) -> None:
    """The policies of the topic count, and those of its namespace where the topic has none."""
    topic = f"persistent://public/default/{open_data_topic(f'{keyspace}.t').name}"
    url = f"{pulsar.admin_url}/admin/v2/{topic.replace('://', '/')}"
    admin = PulsarAdmin(pulsar.admin_url, PulsarOptions(service_url=pulsar.service_url))

    def told(*words: str) -> bool:
        try:
            found = trimming_of(admin.policy, topic, None)
        except AdminError:  # The admin service has not answered within the connector's 15 s.
            return False
        return len(found) == len(words) and all(word in each for word, each in zip(words, found, strict=True))

    _retain(url, -1)
    wait_until(told, "nothing is dropped")
    _retain(url, 0)
    _set_ttl(url)
    quota = {"limitSize": 1_000_000_000, "limitTime": -1, "policy": "consumer_backlog_eviction"}
    rest().post(f"{url}/backlogQuota?backlogQuotaType=destination_storage", json=quota).raise_for_status()
    wait_until(lambda: told("there is no retention", "the message TTL", "the backlog quota"), "each is told")


def test_the_connector_sets_the_retention_and_tells_what_else_drops_records(
    connector_line: CreateLine, deploy_connector: DeployConnector, pulsar: PulsarServer
) -> None:
    """The retention is set when the topic's schema is registered; a metric says that another policy must be changed."""
    line = connector_line("id int PRIMARY KEY, a int")
    url = f"{pulsar.admin_url}/admin/v2/persistent/public/default/{line.topic.name}"
    _set_ttl(url)
    connector = deploy_connector(
        line.keyspace, "t", pulsarAdminUrl=pulsar.admin_url, dataTopic__retentionMinutes=1_000_000
    )
    line.writer.send(line.change("INSERT INTO {t} (id, a) VALUES (1, 1) USING {ts}", int32(1), columns=("a",)))
    line.topic.next()
    wanted = {"retentionTimeInMinutes": 1_000_000, "retentionSizeInMB": -1}
    wait_until(lambda: rest().get(f"{url}/retention?applied=true").json() == wanted, "the retention is set")
    wait_until(lambda: connector.metric("data_topic_hazards") > 0, "the TTL is told")
