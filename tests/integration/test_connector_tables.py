"""Many tables in one source: each has its own topics, tables may come later, one table's trouble is its own."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest
from cassandra.cluster import Session

from tests.connector_line import int32
from tests.data_topic import DataTopic
from tests.events_writer import EventsWriter
from tests.fix_connector import DeployConnector, OpenDataTopic, OpenEventsWriter, wait_until_acknowledged
from tests.servers import PulsarServer

# Not the agents' prefix: one that runs beside the node is not to publish the same changes a second time.
_EVENTS = "persistent://public/default/tables-events-"


class TableLine:
    """One of the tables: `id int PRIMARY KEY, a int`."""

    def __init__(self, cql: Session, keyspace: str, name: str, writer: EventsWriter, topic: DataTopic) -> None:
        self.name = f"{keyspace}.{name}"
        self._cql = cql
        self.writer = writer
        self.topic = topic

    def insert(self, number: int) -> None:
        """A row and its event."""
        self._cql.execute(f"INSERT INTO {self.name} (id, a) VALUES ({number}, {number}) USING TIMESTAMP 5")
        self.writer.send(self.writer.event(int32(number), writetime_us=5, columns=("a",)))


CreateTable = Callable[[str], TableLine]


@pytest.fixture
def create_table(
    cql: Session, keyspace: str, open_events_writer: OpenEventsWriter, open_data_topic: OpenDataTopic
) -> CreateTable:
    """A table of the test's keyspace with CDC, its events topic and its data topic."""

    def create(name: str) -> TableLine:
        cql.execute(f"CREATE TABLE {keyspace}.{name} (id int PRIMARY KEY, a int) WITH cdc = true")
        writer = open_events_writer(keyspace, name, partitions=1, prefix=_EVENTS)
        return TableLine(cql, keyspace, name, writer, open_data_topic(f"{keyspace}.{name}"))

    return create


def _serve_keyspace(deploy_connector: DeployConnector, keyspace: str) -> None:
    options = {
        "tables": f"{keyspace}.*",
        "events__topic": f"{_EVENTS}{{keyspace}}.{{table}}",
        "deadLetter__topic": f"dead-{keyspace}",
        "deadLetter__maxAttempts": 2,
    }
    deploy_connector("", "", **options)


def test_each_table_of_a_pattern_has_its_records_on_its_own_topic_and_one_may_be_added(
    create_table: CreateTable, deploy_connector: DeployConnector, keyspace: str, pulsar: PulsarServer
) -> None:
    """Keys that are equal in several tables do not meet; a table that is created later is found by itself."""
    lines = [create_table(f"t{number}") for number in range(3)]
    _serve_keyspace(deploy_connector, keyspace)
    for line in lines:
        line.insert(1)
    for line in lines:
        assert [(record.key, record.value) for record in line.topic.next()] == [({"id": 1}, {"a": 1})]
    later = create_table("t_later")
    later.insert(7)
    assert later.topic.next()[0].value == {"a": 7}
    for line in [*lines, later]:
        wait_until_acknowledged(line.writer.topic, pulsar.admin_url)


def test_one_tables_trouble_parks_its_events_and_no_others(
    create_table: CreateTable, deploy_connector: DeployConnector, keyspace: str, pulsar: PulsarServer
) -> None:
    """A schema that the registry refuses, bytes that are no events: the other table goes on, the first one later."""
    troubled, sound = create_table("troubled"), create_table("sound")
    schemas = f"{pulsar.admin_url}/admin/v2/schemas/public/default/{troubled.topic.name}/schema"
    other = {"type": "STRING", "schema": "", "properties": {}}
    httpx.post(schemas, json=other).raise_for_status()
    _serve_keyspace(deploy_connector, keyspace)
    troubled.writer.send_bytes(b"\xff\xff")
    for number in range(50):
        troubled.insert(number)
    sound.insert(1)
    assert sound.topic.next()[0].value == {"a": 1}
    sound.insert(2)
    assert sound.topic.next()[0].value == {"a": 2}
    wait_until_acknowledged(sound.writer.topic, pulsar.admin_url)
    httpx.delete(schemas, params={"force": "true"}).raise_for_status()
    assert sorted(record.key["id"] for record in troubled.topic.next(50)) == list(range(50))
    wait_until_acknowledged(troubled.writer.topic, pulsar.admin_url)
    letters = httpx.get(f"{pulsar.admin_url}/admin/v2/persistent/public/default/dead-{keyspace}/stats").json()
    assert letters["subscriptions"]["resend"]["msgBacklog"] == 1, json.dumps(letters)
