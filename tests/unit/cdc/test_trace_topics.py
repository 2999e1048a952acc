"""The records and events in a trace: real messages, and a client that returns them and their schemas."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import _pulsar
import pulsar
import pytest

from cdc.trace.broker_errors import remedy_of
from cdc.trace.log_places import places_in
from cdc.trace.row_key import RowKey
from cdc.trace.topic_places import DataRecord, TopicReadError, data_records, topic_events
from change_agent.commitlog.section_decoder import SegmentOptions
from schemas.table_metadata import TableMetadata
from source_connector.data_format import DataFormat
from source_connector.encoding.projection import Projection
from tests.cql.tables import table_of


class Client:
    """A client whose schema versions all have these bytes; None if the topic has no schema.

    `refusal` is raised by readers.
    """

    def __init__(
        self, messages: Sequence[_pulsar.MessageBuilder], schema: bytes | None, refusal: Exception | None = None
    ) -> None:
        self._messages = [pulsar.Message._wrap(each.build()) for each in messages]
        self._schema = schema
        self._refusal = refusal
        self._client = self  # the wrapped one
        self.sought: list[int] = []

    def create_reader(self, topic: str, start: object, receiver_queue_size: int) -> Client:
        if self._refusal is not None:
            raise self._refusal
        return self

    def seek(self, time_ms: int) -> None:
        self.sought.append(time_ms)

    def has_message_available(self) -> bool:
        return bool(self._messages)

    def read_next(self, timeout_millis: int) -> pulsar.Message:
        return self._messages.pop(0)

    def close(self) -> None:
        pass

    def get_schema_info(self, topic: str, version: int) -> Any:
        if self._schema is None:
            raise pulsar.TopicNotFound
        return _Schema(self._schema)


class _Schema:
    """The Pulsar client treats every schema as text."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def schema(self) -> str:
        return self._data.decode()


def _table(*, clustering: bool, value: bool = True) -> TableMetadata:
    return table_of({"id": "int"}, {"c": "int"} if clustering else {}, regular={"v": "int"} if value else {})


def _message(key: str, data: bytes | None, properties: Mapping[str, str]) -> _pulsar.MessageBuilder:
    found = _pulsar.MessageBuilder().partition_key(key)
    for name, text in properties.items():
        found.property(name, text)
    return found.set_null_value() if data is None else found.content(data)


def _records(client: Client, key: RowKey) -> list[DataRecord]:
    return list(data_records(cast("pulsar.Client", client), "data", 0, key, None, []))


def _key_value(projection: Projection) -> bytes:
    texts = [projection.key_schema.encode(), projection.value_schema.encode()]
    return b"".join(len(each).to_bytes(4, "big") + each for each in texts)


def test_of_the_records_of_a_partition_only_deletions_are_markers() -> None:
    """A static row is not a marker."""
    key = RowKey.of_words(_table(clustering=True), ["1", "5"])
    projection = Projection(key.table)
    partition, row = (base64.b64encode(projection.record_key(parts)).decode() for parts in (key.parts[:1], key.parts))
    value = projection.record_value(projection.row_selection, [key.parts[0]], key.parts)
    messages = [
        _message(row, value, {"kind": "row"}),
        _message(partition, value, {"kind": "static_row"}),
        _message(partition, None, {"kind": "range_deletion"}),
        _message(partition, None, {"kind": "partition_deletion"}),
        _message("other", value, {"kind": "row"}),
    ]
    found = _records(Client(messages, _key_value(projection)), key)
    assert [(each.properties["kind"], each.is_marker, each.value) for each in found] == [
        ("row", False, {"v": 1}),
        ("static_row", False, {"v": 1}),
        ("range_deletion", True, None),
        ("partition_deletion", True, None),
    ]


@pytest.mark.parametrize(
    ("data_format", "value"), [(DataFormat.KEY_VALUE_JSON, {}), (DataFormat.JSON, None)], ids=["key-value", "json"]
)
def test_an_object_without_fields_is_a_deleted_row_in_the_format_json_alone(
    data_format: DataFormat, value: object
) -> None:
    """In other formats it is a row whose values are null."""
    key = RowKey.of_words(_table(clustering=False), ["1"])
    projection = Projection(key.table, data_format=data_format)
    schema = projection.value_schema.encode() if data_format is DataFormat.JSON else _key_value(projection)
    text = projection.record_key(key.parts).decode()
    [found] = _records(Client([_message(text, b"{}", {"kind": "row"})], schema), key)
    assert found.value == value


def test_avro_that_begins_like_json_is_avro() -> None:
    """The value of a table without other columns is its key."""
    key = RowKey.of_words(_table(clustering=False, value=False), ["-62"])
    projection = Projection(key.table)
    data = projection.record_key(key.parts)
    assert data == b"{"
    [found] = _records(
        Client([_message(base64.b64encode(data).decode(), data, {"kind": "row"})], _key_value(projection)), key
    )
    assert found.value == {"id": -62}


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x08", b"{nope"])
def test_a_value_that_does_not_fit_its_schema_is_shown_as_bytes(data: bytes) -> None:
    """Another program wrote it. The other parts of the trace are still shown."""
    key = RowKey.of_words(_table(clustering=False), ["1"])
    projection = Projection(key.table)
    text = base64.b64encode(projection.record_key(key.parts)).decode()
    [found] = _records(Client([_message(text, data, {"kind": "row"})], _key_value(projection)), key)
    assert found.value == {"bytes": data.hex()}


def test_a_topic_without_a_schema_is_told_in_one_line() -> None:
    """The topic belongs to another program."""
    key = RowKey.of_words(_table(clustering=False), ["1"])
    with pytest.raises(TopicReadError, match=r"data has no schema: .*name the data topic by --data-topic"):
        _records(Client([_message("k", b"x", {})], None), key)


def test_events_of_a_datastax_agent_are_passed_over() -> None:
    """Their schema contains a key schema and a value schema, with lengths that are not text."""
    key = RowKey.of_words(_table(clustering=False), ["1"])
    message = _message("k", b"x", {})
    wrapped = pulsar.Message._wrap(message.build())

    class WithVersion:
        """A message with a schema version."""

        def __init__(self) -> None:
            self._message = self

        def int_schema_version(self) -> int:
            return 0

        def __getattr__(self, name: str) -> object:
            return getattr(wrapped, name)

    client = Client([], (300).to_bytes(4, "big") + json.dumps({"type": "string"}).encode())
    client._messages = [cast("pulsar.Message", WithVersion())]
    assert list(topic_events(cast("pulsar.Client", client), "events", 0, key, None, [])) == []


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (pulsar.AuthorizationError(), "grant the right to consume"),
        (pulsar.AuthenticationError(), "correct pulsarAuthPluginClassName and pulsarAuthParams"),
        (pulsar.TopicNotFound(), "the topic was deleted"),
        (pulsar.ConnectError(), "check the broker with `cdc doctor`"),
        (pulsar.Timeout(), "check the broker with `cdc doctor`"),
    ],
)
def test_a_right_is_asked_for_only_where_one_is_missing(error: pulsar.PulsarException, remedy: str) -> None:
    """Other errors have other remedies."""
    key = RowKey.of_words(_table(clustering=False), ["1"])
    with pytest.raises(TopicReadError, match=remedy):
        _records(Client([], None, error), key)
    assert remedy_of(pulsar.AuthorizationError(), "produce") == "grant the right to produce"


@pytest.mark.parametrize(("since_s", "seeks"), [(None, 0), (3600.0, 1), (1e12, 0), (float("inf"), 0)])
def test_a_time_before_1970_is_the_beginning_of_the_topic(since_s: float | None, seeks: int) -> None:
    """The client accepts no negative time."""
    client = Client([], None)
    key = RowKey.of_words(_table(clustering=False), ["1"])
    assert list(data_records(cast("pulsar.Client", client), "data", 0, key, since_s, [])) == []
    assert len(client.sought) == seeks


def test_a_segment_that_the_agent_has_deleted_meanwhile_is_no_finding(tmp_path: Path) -> None:
    """A running agent deletes a segment every few seconds. A segment that exists and cannot be read is a finding."""
    key = RowKey.of_words(_table(clustering=False), ["1"])
    cut = tmp_path / "CommitLog-7-2.log"
    cut.write_bytes(b"\0")
    segments = [str(tmp_path / "CommitLog-7-1.log"), str(cut)]
    assert [each.segment for each in places_in(segments, {}, SegmentOptions(), key)] == [cut.name]
