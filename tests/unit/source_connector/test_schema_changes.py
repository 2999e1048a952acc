"""The differences between two definitions of a table, and the topic that tells of them and of truncations."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import fastavro
import pulsar
import pytest

from schemas.cql_type import NativeType, UserType
from schemas.mutation_event import Clearing, ClearingKind
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata
from schemas.topics import schema_changes_topic
from source_connector.events.pulsar_access import PulsarConnection
from source_connector.tables import schema_changes
from source_connector.tables.clearing_record import ClearingRecord, NodeClearing
from source_connector.tables.schema_changes import SCHEMA_CHANGE_SCHEMA, ClearingToPublish, SchemaChangeTopic
from source_connector.tables.schema_queries import SchemaAnswer
from source_connector.tables.table_definition import changes_between, definition_of
from tests.topics.events_topic import wait_until
from tests.unit.source_connector.events import column, table

TABLE = table(clustering_key=("c",))


def _of_type(*fields: str) -> TableMetadata:
    address = UserType("ks", "address", fields, tuple(NativeType("text") for _ in fields))
    held = ColumnMetadata(name="a", kind=ColumnKind.REGULAR, type=address)
    return replace(TABLE, regular_columns=(held,))


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        (TABLE, TABLE, []),
        (None, TABLE, ["table created, or seen for the first time"]),
        (TABLE, None, ["table dropped"]),
        (TABLE, table(clustering_key=("c",), columns=("v", "w")), ["column w int added"]),
        (TABLE, replace(TABLE, static_columns=(column("s", ColumnKind.STATIC),)), ["column s int static added"]),
        (table(clustering_key=("c",), columns=("v", "w")), TABLE, ["column w dropped"]),
        (TABLE, table(clustering_key=("d",)), ["key column c renamed to d"]),
        (
            TABLE,
            replace(TABLE, regular_columns=(column("v", cql_type="text"),)),
            ["column v changed from int (regular) to text (regular)"],
        ),
        (
            TABLE,
            table(table_id=UUID(int=2)),
            [
                "table dropped and created again with id 00000000-0000-0000-0000-000000000002",
                "primary key changed from (pk int partition_key, c int ASC) to (pk int partition_key)",
            ],
        ),
        (
            _of_type("street"),
            _of_type("street", "city"),
            [
                "type address changed from (street text) to (street text, city text)",
            ],
        ),
    ],
)
def test_each_change_is_a_sentence(old: TableMetadata | None, new: TableMetadata | None, changes: list[str]) -> None:
    """Changes of columns, keys, user types, and of the table as a whole."""
    definitions = [None if each is None else definition_of(each) for each in (old, new)]
    assert changes_between(*definitions) == changes


def test_a_definition_is_what_its_schema_says() -> None:
    """It is the same when it is read back from JSON, and it matches the Avro schema."""
    definition = definition_of(_of_type("street"))
    assert json.loads(json.dumps(definition)) == definition
    assert definition["types"] == [{"name": "address", "fields": [{"name": "street", "type": "text"}]}]
    assert definition["columns"][1] == {"name": "c", "type": "int", "kind": "clustering", "order": "ASC"}
    change = {"keyspace": "ks", "table": "t", "time_ms": 1, "changes": ["x"], "old": None, "new": definition}
    assert fastavro.validate(change, fastavro.parse_schema(dict(SCHEMA_CHANGE_SCHEMA)))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("events", "topic"),
    [
        ("persistent://a/b/events-ks.t", "persistent://a/b/events-schema-changes"),
        ("persistent://public/default/cdc-events-ks.t", "persistent://public/default/cdc-events-schema-changes"),
        ("persistent://a/b/other", "persistent://public/default/cdc-events-schema-changes"),
    ],
)
def test_changes_are_told_beside_the_events(events: str, topic: str) -> None:
    """The topic has the prefix of the events topic, if that has one."""
    assert schema_changes_topic(events, "ks", "t") == topic


class Client:
    """A client that may read the topic of schema changes, but not write to it."""

    readers = 0

    def client(self) -> Client:
        return self

    def create_reader(self, topic: str, start: pulsar.MessageId) -> object:
        self.readers += 1
        return object()

    def create_producer(self, topic: str, **settings: object) -> object:
        raise pulsar.AuthorizationError("AuthorizationError")

    def hint(self) -> str:
        return ""


def test_a_topic_that_takes_no_producer_gets_one_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client keeps each reader until it is closed, so tries must not make more readers."""
    client, tried = Client(), SimpleQueue[int]()

    def pause_s(failures: int) -> float:
        tried.put(failures)
        return 0.001

    monkeypatch.setattr(schema_changes, "_BACKOFF", SimpleNamespace(pause_s=pause_s))
    topic = SchemaChangeTopic(cast("PulsarConnection", client), "changes", lambda answer: None)
    topic.publish("ks", "t", definition_of(TABLE))
    topic.start()
    while tried.get(timeout=10) < 5:
        pass
    topic.stop()
    assert client.readers == 1


class EmptyReader:
    """A reader of a topic without messages."""

    def has_message_available(self) -> bool:
        return False

    def is_connected(self) -> bool:
        return True

    def close(self) -> None:
        return


class OneTopicIsGone:
    """A client for which the data topic of ks.a does not exist until it is made again; keeps sent messages."""

    hint = None

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.exists = False

    def client(self) -> OneTopicIsGone:
        return self

    def create_reader(self, topic: str, start: pulsar.MessageId) -> EmptyReader:
        return EmptyReader()

    def create_producer(self, topic: str, **settings: object) -> OneTopicIsGone:
        return self

    def is_connected(self) -> bool:
        return True

    def send(self, data: bytes, *, partition_key: str, **settings: object) -> None:
        self.sent.append(f"{partition_key} {json.loads(data)['changes'][0]}")

    def get_topic_partitions(self, topic: str) -> list[str]:
        if topic == "data-ks.a" and not self.exists:
            raise pulsar.TopicNotFound("TopicNotFound")
        return []


class OwnTopicIsDeleted(OneTopicIsGone):
    """A client whose first producer is closed for good, as after the deletion of its topic."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = 0
        self.closed = 0

    def create_producer(self, topic: str, **settings: object) -> OneTopicIsGone:
        self.opened += 1
        return self

    def is_connected(self) -> bool:
        return self.closed == self.opened - 1 and self.opened > 1

    def close(self) -> None:
        self.closed += 1

    def send(self, data: bytes, *, partition_key: str, **settings: object) -> None:
        if not self.is_connected():
            raise pulsar.AlreadyClosed("AlreadyClosed")
        super().send(data, partition_key=partition_key, **settings)


def test_after_the_deletion_of_its_topic_a_new_producer_publishes() -> None:
    """The client never connects the first one again."""
    client = OwnTopicIsDeleted()
    topic = SchemaChangeTopic(cast("PulsarConnection", client), "changes", lambda answer: None)
    topic.publish("ks", "c", definition_of(TABLE))
    topic.start()
    wait_until(lambda: len(client.sent) == 1, "the change of ks.c")
    topic.stop()
    assert (client.opened, client.closed) == (2, 1)


def _truncation(name: str, then: Callable[[ClearingRecord | None], None]) -> ClearingToPublish:
    clearing = Clearing(kind=ClearingKind.TRUNCATION, position=1, time_ms=1)
    return ClearingToPublish(
        keyspace="ks",
        table=name,
        definition=definition_of(TABLE),
        table_id=UUID(int=1),
        generation=None,
        clearing=clearing,
        node_id=UUID(int=2),
        segment_id=1,
        nodes=[NodeClearing(node="n", segment_id=1, position=1, time_ms=1)],
        data_topic=f"data-ks.{name}",
        is_final=True,
        then=then,
    )


def test_a_data_topic_that_does_not_exist_holds_up_the_truncation_of_its_table_only() -> None:
    """The changes of that table keep their order; those of other tables are published meanwhile."""
    client, published = OneTopicIsGone(), SimpleQueue[str]()
    topic = SchemaChangeTopic(
        cast("PulsarConnection", client),
        "changes",
        lambda answer: answer.deliver() if isinstance(answer, SchemaAnswer) else None,
    )
    topic.publish_clearing(_truncation("a", lambda record: published.put("a")))
    topic.publish("ks", "a", None)
    topic.start()
    topic.publish_clearing(_truncation("b", lambda record: published.put("b")))
    topic.publish("ks", "c", definition_of(TABLE))
    assert published.get(timeout=30) == "b"
    wait_until(lambda: len(client.sent) == 2, "the change of ks.c")
    client.exists = True
    assert published.get(timeout=60) == "a"
    wait_until(lambda: len(client.sent) == 4, "the drop of ks.a")
    topic.stop()
    assert client.sent == [
        "ks.b table truncated",
        "ks.c table created, or seen for the first time",
        "ks.a table truncated",
        "ks.a table dropped",
    ]


@pytest.mark.parametrize(
    "other",
    [{"table_id": UUID(int=3)}, {"clearing": Clearing(kind=ClearingKind.DROP, position=1, time_ms=1)}],
    ids=["of a table that was created again", "of another kind"],
)
def test_a_record_covers_no_node_of_a_clearing_that_it_is_not_about(other: dict[str, Any]) -> None:
    """The clock of the node may have been set back, or its log may begin again: the earlier record has later places."""
    client, published = OneTopicIsGone(), SimpleQueue[ClearingRecord | None]()
    topic = SchemaChangeTopic(
        cast("PulsarConnection", client),
        "changes",
        lambda answer: answer.deliver() if isinstance(answer, SchemaAnswer) else None,
    )
    first = replace(_truncation("b", published.put), is_final=False)
    topic.publish_clearing(first)
    topic.publish_clearing(replace(first, **other))
    topic.publish_clearing(first)
    topic.start()
    records = [published.get(timeout=30) for _ in range(3)]
    topic.stop()
    assert [each and each["nodes"] for each in records] == [first.nodes] * 3
    assert len(client.sent) == 2
