"""What the connector publishes for each kind of event: real Cassandra, real Pulsar, the archive deployed as a source."""

from __future__ import annotations

import struct
from uuid import UUID

from cassandra.cluster import Session

from schemas.mutation_event import MutationKind
from tests.fix_connector import DeployConnector, OpenDataTopic, OpenEventsWriter, wait_until_acknowledged
from tests.servers import PulsarServer


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def test_a_row_is_published_as_it_is_now_and_a_missing_row_as_null(
    cql: Session,
    keyspace: str,
    pulsar: PulsarServer,
    open_events_writer: OpenEventsWriter,
    open_data_topic: OpenDataTopic,
    deploy_connector: DeployConnector,
) -> None:
    """Key and value are Avro by the registered schemas, the properties tell the change, then the event is acknowledged."""
    cql.execute(f"CREATE TABLE {keyspace}.t (id int PRIMARY KEY, name text, tags set<text>) WITH cdc = true")
    cql.execute(
        f"INSERT INTO {keyspace}.t (id, name, tags) VALUES (1, 'one', {{'x'}}) USING TIMESTAMP 1600000000000000"
    )
    writer, topic = open_events_writer(keyspace, "t"), open_data_topic(f"{keyspace}.t")
    deploy_connector(keyspace, "t")
    writer.send(
        writer.event(int32(1), writetime_us=1600000000000000, columns=("name", "tags")),
        writer.event(int32(2), kind=MutationKind.ROW_DELETION, writetime_us=5),
    )
    one, two = sorted(topic.next(2), key=lambda record: record.key["id"])
    assert (one.key_bytes, one.value_bytes) == (b"\x02", b"\x02\x06one\x02\x02\x02x\x00")
    assert one.value == {"name": "one", "tags": ["x"]}
    assert one.properties["writetime"] == "1600000000000000"
    assert (one.kind, one.properties["segpos"], one.event_time_ms) == ("row", "7:100", 1600000000000)
    assert UUID(one.properties["table_id"]) == writer.table.table_id
    assert (two.key, two.value, two.kind) == ({"id": 2}, None, "row_deletion")
    wait_until_acknowledged(writer.topic, pulsar.admin_url)
