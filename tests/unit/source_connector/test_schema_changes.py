"""The differences between two definitions of a table, and the registration of schemas."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import fastavro
import pulsar
import pytest

from runtime.notices import Notices
from schemas.cql_type import NativeType, UserType
from schemas.mutation_event import Clearing, ClearingKind
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata
from schemas.topics import schema_changes_topic
from source_connector.data_format import DataFormat
from source_connector.events.pulsar_access import PulsarConnection
from source_connector.host.host_protocol import SchemaRefused, SchemaTaken, encode_schema
from source_connector.host.record import DataSchema
from source_connector.tables import newest_schema, schema_changes
from source_connector.tables.clearing_record import ClearingRecord, NodeClearing
from source_connector.tables.newest_schema import NewestSchemaAnswer, NewestSchemas
from source_connector.tables.schema_changes import SCHEMA_CHANGE_SCHEMA, ClearingToPublish, SchemaChangeTopic
from source_connector.tables.schema_queries import SchemaAnswer
from source_connector.tables.schema_registration import SchemaRegistration
from source_connector.tables.table_definition import changes_between, definition_of
from source_connector.timers import Timers
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


class Registry:
    """A registration, and the frames that it sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.timers = Timers()
        self.checked: list[DataSchema] = []
        self.registration = SchemaRegistration(
            self.sent.append, self.checked.append, self.timers, Notices(logging.getLogger("registry"))
        )

    def take(self, schema_id: int, *, is_newest: bool = True) -> None:
        """The registry answers that it has the schema, as its newest version or as an older one."""
        self.registration.answered(SchemaTaken(schema_id), "ks.t")
        self.registration.on_answer(NewestSchemaAnswer(schema_id=schema_id, is_newest=is_newest))

    def run_timers(self, within_s: float = 60) -> None:
        """Run the timers that are due within this many seconds."""
        for due, _, action in list(self.timers._heap):
            if due <= time.monotonic() + within_s:
                action()


def _schema(number: int) -> DataSchema:
    return DataSchema(
        schema_id=number, data_format=DataFormat.JSON, name="t", key_schema="", value_schema=f'{{"doc":"{number}"}}'
    )


def test_a_schema_counts_when_the_registry_has_it() -> None:
    """It does not count before. An answer about an earlier schema does not count for a later one."""
    registry = Registry()
    registry.registration.announce(_schema(1))
    assert not registry.registration.is_taken
    registry.registration.announce(_schema(2))
    registry.take(1)
    assert not registry.registration.is_taken
    registry.take(2)
    assert registry.registration.is_taken
    assert registry.sent == [encode_schema(_schema(1)), encode_schema(_schema(2))]


def test_a_schema_that_is_refused_parks_the_table_and_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """A log line says what is wrong and what to do, until the registry takes the schema."""
    registry = Registry()
    registry.registration.announce(_schema(1))
    registry.registration.answered(SchemaRefused(1, "Incompatible\nschema: x"), "ks.t")
    assert registry.registration.is_refused and not registry.registration.is_taken
    (line,) = caplog.messages
    assert line.startswith(
        "ks.t is parked, its events wait: the data topic does not take the table's schema (Incompatible schema: x); "
        "set the topic's or namespace's schema compatibility strategy"
    )
    registry.run_timers()
    assert registry.sent == [encode_schema(_schema(1))] * 2
    registry.take(1)
    assert registry.registration.is_taken and not registry.registration.is_refused


@pytest.mark.parametrize("answers", ["none", "of the host alone", "a refusal, then none"])
def test_a_schema_without_an_answer_is_asked_for_again(answers: str, caplog: pytest.LogCaptureFixture) -> None:
    """This holds for each missing answer. An earlier answer, also about an earlier schema, does not count later."""
    registry = Registry()
    registry.registration.announce(_schema(1))
    if answers == "of the host alone":
        registry.registration.answered(SchemaTaken(1), "ks.t")
    if answers == "a refusal, then none":
        registry.registration.answered(SchemaRefused(1, "x"), "ks.t")
        registry.run_timers()
        registry.timers._heap[:] = registry.timers._heap[-1:]
    if answers == "none":
        registry.registration.announce(_schema(2))
    known = len(registry.sent)
    registry.run_timers(within_s=100)
    assert registry.sent[known:] == [registry.sent[known - 1]]
    assert "no answer about the data topic's schema after 90 s; it is asked again" in caplog.text
    registry.take(2 if answers == "none" else 1)
    registry.run_timers(within_s=200)
    assert registry.registration.is_taken
    assert len(registry.sent) == known + 1


def test_a_question_that_was_asked_twice_is_answered_once() -> None:
    """There is one check, one mark and one retry, however many answers come from a host that was delayed."""
    registry = Registry()
    registry.registration.announce(_schema(1))
    registry.run_timers(within_s=100)
    for _ in range(2):
        registry.registration.answered(SchemaTaken(1), "ks.t")
    assert len(registry.checked) == 1
    for _ in range(2):
        registry.registration.on_answer(NewestSchemaAnswer(schema_id=1, is_newest=False))
    marked = replace(_schema(1), value_schema='{"doc":"1","cql_registration":1}')
    assert registry.sent[2:] == [encode_schema(marked)]
    registry.registration.announce(_schema(2))
    for _ in range(3):
        registry.registration.answered(SchemaRefused(2, "x"), "ks.t")
    known = len(registry.sent)
    registry.run_timers()
    assert registry.sent[known:] == [encode_schema(_schema(2))]


def test_a_schema_of_which_the_registry_has_an_older_version_is_announced_with_a_mark() -> None:
    """The mark stays until the schema is the newest one; Avro ignores it. A check of an accepted schema asks for
    nothing more."""
    registry = Registry()
    registry.registration.announce(_schema(1))
    registry.take(1, is_newest=False)
    registry.take(1, is_newest=False)
    assert not registry.registration.is_taken
    registry.take(1)
    assert registry.registration.is_taken
    texts = ['{"doc":"1"}', '{"doc":"1","cql_registration":1}', '{"doc":"1","cql_registration":2}']
    assert [each.value_schema for each in registry.checked] == texts
    assert registry.sent == [encode_schema(replace(_schema(1), value_schema=text)) for text in texts]
    registry.registration.ask_again()
    registry.take(1)
    assert registry.sent[3:] == registry.sent[2:3] and len(registry.checked) == 3


def test_where_no_mark_is_taken_the_older_version_serves(caplog: pytest.LogCaptureFixture) -> None:
    """The newest version may be another producer's: records continue with the older version, and the log says so."""
    registry = Registry()
    registry.registration.announce(_schema(1))
    registry.take(1, is_newest=False)
    registry.registration.answered(SchemaRefused(1, "Incompatible schema"), "ks.t")
    assert not registry.registration.is_refused
    registry.take(1, is_newest=False)
    assert registry.registration.is_taken
    assert registry.sent[2:] == [encode_schema(_schema(1))]
    assert caplog.messages == [
        "ks.t: records are written by an older version of the data topic's schema (Incompatible schema)"
    ]
    registry.registration.announce(_schema(2))
    for _ in range(101):
        registry.take(2, is_newest=False)
    assert not registry.registration.is_taken
    registry.take(2, is_newest=False)
    assert registry.registration.is_taken and registry.sent[-1] == encode_schema(_schema(2))


def test_a_marked_schema_is_asked_for_again_after_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    """A broker that is down for a moment has refused nothing, and records of the older version would hide a column."""
    registry = Registry()
    registry.registration.announce(_schema(1))
    registry.take(1, is_newest=False)
    marked = encode_schema(replace(_schema(1), value_schema='{"doc":"1","cql_registration":1}'))
    for known in (2, 3):  # At the first question, and after a refused record.
        registry.registration.answered(
            SchemaRefused(1, "org.apache.pulsar.client.api.PulsarClientException$TimeoutException: 30 s"), "ks.t"
        )
        assert registry.registration.is_refused and not registry.registration.is_taken
        registry.run_timers()
        assert registry.sent[known:] == [marked]
        registry.take(1)
        assert registry.registration.is_taken and not registry.registration.is_refused
        registry.timers._heap.clear()
    assert "$TimeoutException: 30 s); check that the broker runs" in caplog.text
    registry.registration.answered(
        SchemaRefused(1, "org.apache.pulsar.client.api.PulsarClientException$IncompatibleSchemaException: no"), "ks.t"
    )
    assert registry.sent[4:] == [encode_schema(_schema(1))]


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


class Newest:
    """A connection whose registry does not answer the first requests."""

    hint = None

    def __init__(self, failures: int, error: Exception) -> None:
        self._failures = failures
        self._error = error
        self._client = self

    def client(self) -> Newest:
        return self

    def get_schema_info(self, topic: str, version: int) -> Newest:
        self._failures -= 1
        if self._failures >= 0:
            raise self._error
        return self

    def schema(self) -> str:
        return "another"


@pytest.mark.parametrize(
    ("failures", "error", "is_newest"),
    [
        (3, pulsar.ConnectError(""), False),
        (3, pulsar.Timeout(""), False),
        (99, pulsar.Timeout(""), True),
        (1, pulsar.AuthorizationError(""), True),
    ],
)
def test_a_registry_that_does_not_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, failures: int, error: Exception, is_newest: bool
) -> None:
    """This takes less than a minute. A schema with unknown versions then counts as the newest one."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(newest_schema, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    answers: SimpleQueue[NewestSchemaAnswer] = SimpleQueue()
    connection = cast("PulsarConnection", Newest(failures, error))
    NewestSchemas(connection, "data", answers.put).check(_schema(1))
    assert answers.get(timeout=10) == NewestSchemaAnswer(schema_id=1, is_newest=is_newest)
    assert now[0] < 60


def test_a_refused_schema_is_given_up_for_a_newer_one() -> None:
    """For example, the table was changed back."""
    registry = Registry()
    registry.registration.announce(_schema(1))
    registry.registration.answered(SchemaRefused(1, "no"), "ks.t")
    registry.registration.announce(_schema(2))
    registry.run_timers()
    assert registry.sent == [encode_schema(_schema(1)), encode_schema(_schema(2))]
    assert not registry.registration.is_refused
