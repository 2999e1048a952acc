"""A data topic gets more partitions while the connector writes to it."""

from __future__ import annotations

import re

from cdc.rest import rest
from tests.fixtures.connector import CreateLine, DeployConnector, data_topic_name, wait_until_acknowledged
from tests.servers.interface import PulsarServer
from tests.topics.connector_line import int32
from tests.topics.events_topic import wait_until
from tests.topics.metric_names import pulsar_metrics_named, source_metrics_named


def test_more_partitions_are_noticed_and_told(
    connector_line: CreateLine, deploy_connector: DeployConnector, pulsar: PulsarServer, keyspace: str
) -> None:
    """The connector reports the new partitions within seconds, and records continue."""
    url = f"{pulsar.admin_url}/admin/v2/persistent/public/default/{data_topic_name(keyspace, 't')}/partitions"
    json = {"content-type": "application/json"}
    rest().put(url, content="2", headers=json, timeout=30).raise_for_status()
    line = connector_line("id int PRIMARY KEY, a int")
    connector = deploy_connector(keyspace, "t")

    def write(value: int) -> None:
        insert = f"INSERT INTO {{t}} (id, a) VALUES (1, {value}) USING {{ts}}"
        line.writer.send(line.change(insert, int32(1), columns=("a",)))
        line.topic.next()

    write(1)
    wait_until(lambda: connector.metric("records_published") == 1, "the first record in the metrics")
    wait_until(lambda: _are_named_metrics_there(pulsar, connector.name), "all that dashboard and alarms name")
    rest().post(url, content="5", headers=json, timeout=30).raise_for_status()
    wait_until(lambda: connector.metric("data_topic_partitions_added") == 3, "the new partitions in the metrics")
    write(2)
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    assert [record.value for record in line.topic.records] == [{"a": 1}, {"a": 2}]


def _are_named_metrics_there(pulsar: PulsarServer, source: str) -> bool:
    """Return whether Pulsar's page has all metrics of dashboard and alarms, once a source has published a record."""
    page = rest().get(f"{pulsar.admin_url}/metrics/", follow_redirects=True).raise_for_status().text
    own = [line for line in page.splitlines() if f'/{source}"' in line and "user_metric__sum{" in line]
    told = {name for line in own for name in re.findall(r'metric="(\w+)"', line)}
    missing = pulsar_metrics_named() - set(re.findall(r"^(pulsar_\w+)\{", page, re.MULTILINE))
    missing |= source_metrics_named() - told
    print("missing:", missing)  # Shown when the test fails.
    return not missing
