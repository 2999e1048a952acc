"""The table changes while the connector runs: the effect on registry, records and the topic of schema changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pulsar as pulsar_client
import pytest
from cassandra.cluster import Session

from cdc.rest import rest
from schemas.mutation_event import MutationKind
from tests.fixtures.connector import CreateLine, DeployConnector, OpenDataTopic, wait_until_acknowledged
from tests.servers.interface import PulsarServer
from tests.topics.client import client_of
from tests.topics.connector_line import ConnectorLine, int32

_TOPIC = "persistent://public/default/cdc-events-schema-changes"


class Changes:
    """The records of the topic of schema changes about one keyspace."""

    def __init__(self, consumer: pulsar_client.Consumer, keyspace: str) -> None:
        self._consumer = consumer
        self._keyspace = keyspace

    def next(self) -> dict[str, Any]:
        """The next record about this keyspace."""
        while True:
            message = self._consumer.receive(timeout_millis=180_000)
            self._consumer.acknowledge(message)
            change: dict[str, Any] = json.loads(message.data())
            if change["keyspace"] == self._keyspace:
                assert message.partition_key() == f"{self._keyspace}.t"
                assert message.event_timestamp() == change["time_ms"]
                return change


@pytest.fixture
def changes(pulsar: PulsarServer, keyspace: str) -> Iterator[Changes]:
    """The topic of schema changes, read from now on."""
    with client_of(pulsar.service_url) as client:
        yield Changes(client.subscribe(_TOPIC, keyspace), keyspace)


@pytest.fixture
def strategy(pulsar: PulsarServer, keyspace: str) -> Callable[[str], None]:
    """Set the schema compatibility strategy of the table's data topic."""
    url = f"{pulsar.admin_url}/admin/v2/persistent/public/default/data-{keyspace}.t/schemaCompatibilityStrategy"

    def set_strategy(name: str) -> None:
        rest().put(url, json=name, timeout=30).raise_for_status()

    return set_strategy


def _columns(definition: dict[str, Any]) -> list[str]:
    return [f"{each['name']} {each['type']}" for each in definition["columns"]]


def test_each_change_of_a_table_is_a_schema_and_an_event(
    cql: Session,
    keyspace: str,
    connector_line: CreateLine,
    deploy_connector: DeployConnector,
    changes: Changes,
    pulsar: PulsarServer,
) -> None:
    """ADD, DROP, RENAME and a growing user type: the schema is registered before the first record, and the change is
    published with both definitions."""
    cql.execute(f"CREATE TYPE {keyspace}.address (street text)")
    line = connector_line("pk int, ck int, a int, home address, PRIMARY KEY (pk, ck)")
    connector = deploy_connector(keyspace, "t")
    first = changes.next()
    assert (first["changes"], first["old"]) == (["table created, or seen for the first time"], None)
    assert _columns(first["new"]) == ["pk int", "ck int", "a int", "home address"]
    assert first["new"]["types"] == [{"name": "address", "fields": [{"name": "street", "type": "text"}]}]
    steps = [
        ("ALTER TABLE {t} ADD b text", "column b text added", ["a", "b", "home"]),
        ("ALTER TABLE {t} DROP a", "column a dropped", ["b", "home"]),
        (
            f"ALTER TYPE {keyspace}.address ADD city text",
            "type address changed from (street text) to (street text, city text)",
            ["b", "home"],
        ),
        ("ALTER TABLE {t} RENAME ck TO place", "key column ck renamed to place", ["b", "home"]),
    ]
    for number, (statement, told, columns) in enumerate(steps):
        line.run(statement)
        change = changes.next()
        assert change["changes"] == [told]
        assert change["old"] != change["new"]
        line.writer.refresh()
        update = (
            f"UPDATE {{t}} USING {{ts}} SET home.street = 's{number}' WHERE pk = {number} AND {_clustering(line)} = 1"
        )
        line.writer.send(line.change(update, int32(number), int32(1), columns=("home",)))
        (record,) = line.topic.next()
        assert record.value is not None and list(record.value) == columns
        assert record.schema_version == number + 1
        assert record.value["home"]["street"] == f"s{number}"
        wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    assert list(record.key) == ["pk", "place"]
    # Changes while no connector runs are found at the next start, and no change is published twice.
    connector.delete()
    line.run("ALTER TABLE {t} ADD c int")
    deploy_connector(keyspace, "t")
    assert changes.next()["changes"] == ["column c int added"]


def _clustering(line: ConnectorLine) -> str:
    return line.writer.table.clustering_key[0].name


def test_a_table_created_again_with_another_key_parks_until_the_registry_takes_it(
    keyspace: str,
    connector_line: CreateLine,
    deploy_connector: DeployConnector,
    open_data_topic: OpenDataTopic,
    changes: Changes,
    strategy: Callable[[str], None],
    pulsar: PulsarServer,
) -> None:
    """Events of the new table wait and those of the old one are dropped; once the registry takes the schema, both
    tables' records are on the topic."""
    line = connector_line("id int PRIMARY KEY, a int")
    deploy_connector(keyspace, "t")
    line.writer.send(line.change("INSERT INTO {t} (id, a) VALUES (1, 1) USING {ts}", int32(1), columns=("a",)))
    (old,) = line.topic.next()
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    old_id = line.writer.table.table_id
    line.run("DROP TABLE {t}")
    line.run("CREATE TABLE {t} (name text, id int, a int, PRIMARY KEY (name, id))")
    line.writer.refresh()
    line.writer.send(
        line.writer.event(b"\0\0\0\1", b"\0\0\0\1", kind=MutationKind.ROW, columns=("a",)), table_id=old_id
    )
    insert = "INSERT INTO {t} (name, id, a) VALUES ('n', 2, 2) USING {ts}"
    line.writer.send(line.change(insert, b"n", int32(2), columns=("a",)))
    told = [sentence for _ in range(2) for sentence in _told(changes)]
    assert f"table dropped and created again with id {line.writer.table.table_id}" in told or "table dropped" in told
    line.topic.expect_silence(2)
    strategy("ALWAYS_COMPATIBLE")
    (new,) = line.topic.next()
    assert (old.key, new.key, new.value) == ({"id": 1}, {"name": "n", "id": 2}, {"a": 2})
    assert (old.properties["table_id"], new.properties["table_id"]) == (str(old_id), str(line.writer.table.table_id))
    assert (old.schema_version, new.schema_version) == (0, 1)
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)


def _told(changes: Changes) -> list[str]:
    found: list[str] = changes.next()["changes"]
    return found


def test_old_and_new_records_stand_side_by_side_after_a_redelivery(
    connector_line: CreateLine, deploy_connector: DeployConnector, pulsar: PulsarServer
) -> None:
    """Events that come again after a schema change are read by the new schema; no older row follows a newer one."""
    line = connector_line("id int PRIMARY KEY, a int")
    connector = deploy_connector(line.keyspace, "t")
    inserts = [
        line.change(f"INSERT INTO {{t}} (id, a) VALUES ({n}, {n}) USING {{ts}}", int32(n), columns=("a",))
        for n in range(3)
    ]
    line.writer.send(*inserts)
    assert [record.schema_version for record in line.topic.next(3)] == [0, 0, 0]
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    connector.delete()
    line.run("ALTER TABLE {t} ADD b int")
    line.writer.send(*inserts)
    line.writer.send(line.change("UPDATE {t} USING {ts} SET b = 7 WHERE id = 1", int32(1), columns=("b",)))
    deploy_connector(line.keyspace, "t")
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    last: dict[int, Any] = {}
    while len(line.topic.records) < 6 or last.get(1) != {"a": 1, "b": 7} or not {0, 2} <= last.keys():
        (record,) = line.topic.next()
        assert record.schema_version == 1
        last[record.key["id"]] = record.value
    assert last == {0: {"a": 0, "b": None}, 1: {"a": 1, "b": 7}, 2: {"a": 2, "b": None}}


def test_a_column_that_is_dropped_and_added_again_is_in_the_newest_version_of_the_schema(
    connector_line: CreateLine, deploy_connector: DeployConnector, pulsar: PulsarServer
) -> None:
    """A registry returns the old version for a schema text that it knows; a consumer that reads the newest version
    would then miss the column."""
    line = connector_line("id int PRIMARY KEY, a int, b int")
    connector = deploy_connector(line.keyspace, "t")
    line.writer.send(
        line.change("INSERT INTO {t} (id, a, b) VALUES (1, 1, 1) USING {ts}", int32(1), columns=("a", "b"))
    )
    versions = [line.topic.next()[0].schema_version]
    for number in range(2, 6):
        line.run("ALTER TABLE {t} DROP a" if number % 2 == 0 else "ALTER TABLE {t} ADD a int")
        line.writer.refresh()
        insert = f"INSERT INTO {{t}} (id, b) VALUES ({number}, {number}) USING {{ts}}"
        record: dict[str, object] | None = None
        while record is None or (number % 2 == 1) is not ("a" in record):  # the change is seen within seconds
            line.writer.send(line.change(insert, int32(number), columns=("b",)))
            record = dict(line.topic.next()[0].value or {})
        versions.append(line.topic.records[-1].schema_version)
    assert versions == [0, 1, 2, 3, 4]
    names = [[each["name"] for each in json.loads(line.topic.schema(n)["data"])["value"]["fields"]] for n in versions]
    assert names == [["a", "b"], ["b"], ["a", "b"], ["b"], ["a", "b"]]
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    # A new instance finds the same version.
    connector.delete()
    deploy_connector(line.keyspace, "t")
    line.writer.send(line.change("INSERT INTO {t} (id, a) VALUES (9, 9) USING {ts}", int32(9), columns=("a",)))
    assert line.topic.next()[0].schema_version == 4
