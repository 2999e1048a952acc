"""Reads whole topics: the messages of a data topic and of an events topic, decoded by the schemas in Pulsar's registry."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import fastavro
import httpx
import pulsar

from tests.fault_kit.oracle.gaps import Gap, gap_of

__all__ = ["Clearing", "DataRecord", "Event", "TopicReader"]

_TIMEOUT_MS: Final = 120_000
_OPERATION_TIMEOUT_S: Final = 120
_HTTP_TIMEOUT_S: Final = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRecord:
    """One message of a data topic. `key` and `value` are by Avro names, without logical types; `value` is None for a
    tombstone.

    `place` is the number of the message in its topic partition.
    """

    key_bytes: bytes
    key: Mapping[str, object]
    value: Mapping[str, object] | None
    value_bytes: bytes | None
    properties: Mapping[str, str]
    published_ms: int
    partition: int = 0
    place: int = 0
    position: tuple[int, int] = (0, 0)
    """Ledger and entry."""
    bounds: tuple[Mapping[str, object] | None, Mapping[str, object] | None] = (None, None)
    """Start and end of a range deletion, as keys with nulls behind the bound's prefix; None if that side is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearing:
    """A truncation or a drop of a table's life.

    `positions`: for each topic partition, ledger and entry of the last record before the clearing.
    """

    table: str
    kind: str
    table_id: str
    generation: int | None
    time_ms: int
    nodes: Mapping[str, tuple[int, int]]
    positions: tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of an events topic, with its topic partition and publish time."""

    table: str
    table_id: str
    node: str
    segment: int
    position: int
    ordinal: int
    kind: str
    key: bytes
    partition_key: str
    clustering: tuple[str | None, ...]
    bounds: tuple[tuple[str, ...], bool, tuple[str, ...], bool] | None
    writetime_us: int | None
    expiry_s: int | None
    columns: tuple[str, ...]
    partition: int
    published_ms: int

    @property
    def place(self) -> tuple[str, int, int, int]:
        """The identity of an event: node, segment, position and ordinal."""
        return self.node, self.segment, self.position, self.ordinal


class TopicReader:
    """Reads topics of one Pulsar from their beginning to their current end. Use it in a `with` block."""

    def __init__(self, service_url: str, admin_url: str) -> None:
        self._admin_url = admin_url
        self._client = pulsar.Client(
            service_url,
            operation_timeout_seconds=_OPERATION_TIMEOUT_S,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._client.close()

    def topics(self) -> list[str]:
        """The names of all topics of the default namespace; each topic partition has its own name."""
        answer = httpx.get(f"{self._admin_url}/admin/v2/persistent/public/default", timeout=_HTTP_TIMEOUT_S)
        return sorted(answer.raise_for_status().json())

    def data_records(self, topic: str) -> Iterator[DataRecord]:
        """All records of a data topic (KEY_VALUE, AVRO): topic partition by topic partition, each in its order."""
        partitions = sorted(
            (int(name.rpartition("-partition-")[2]), name)
            for name in self.topics()
            if name.startswith(f"{topic}-partition-")
        )
        for number, name in partitions or [(0, topic)]:
            yield from self._data_records(topic, name, number)

    def _data_records(self, topic: str, name: str, partition: int) -> Iterator[DataRecord]:
        schemas: dict[int, tuple[Any, Any]] = {}
        for place, message in enumerate(self._messages(name)):
            version = message._message.int_schema_version()  # the client has no public property for it
            if version not in schemas:
                both = json.loads(self._schema(topic, version)["data"])
                schemas[version] = _plain(both["key"]), _plain(both["value"])
            key_schema, value_schema = schemas[version]
            key = base64.b64decode(message.partition_key())
            value = None if message._message.has_null_value() else message.data()
            properties = dict(message.properties())
            bounds = [properties.get(name) for name in ("range_start", "range_end")]
            decoded = [None if each is None else _decode(key_schema, base64.b64decode(each)) for each in bounds]
            yield DataRecord(
                key_bytes=key,
                key=_decode(key_schema, key),
                value=None if value is None else _decode(value_schema, value),
                value_bytes=value,
                properties=properties,
                published_ms=message.publish_timestamp(),
                partition=partition,
                place=place,
                position=(message.message_id().ledger_id(), message.message_id().entry_id()),
                bounds=(decoded[0], decoded[1]),
            )

    def events(self, topic: str) -> list[Event]:
        """All events of an events topic, partition by partition, each in its order; none if the topic does not
        exist."""
        partitions = sorted(
            (int(name.rpartition("-partition-")[2]), name)
            for name in self.topics()
            if name.startswith(f"persistent://public/default/{topic}-partition-")
        )
        found: list[Event] = []
        schemas: dict[int, Any] = {}
        for partition, name in partitions:
            for message in self._messages(name):
                version = message._message.int_schema_version()
                if version not in schemas:
                    schemas[version] = _plain(json.loads(self._schema(topic, version)["data"]))
                found += _events(_decode(schemas[version], message.data()), partition, message.publish_timestamp())
        return found

    def clearings(self, topic: str) -> list[Clearing]:
        """All clearings of a topic of schema changes; none if the topic does not exist."""
        name = f"persistent://public/default/{topic}"
        changes = [json.loads(message.data()) for message in self._messages(name)] if name in self.topics() else []
        return [
            Clearing(
                table=f"{change['keyspace']}.{change['table']}",
                kind=told["kind"],
                table_id=told["table_id"],
                generation=told["table_generation"],
                time_ms=told["time_ms"],
                nodes={each["node"]: (each["segment_id"], each["position"]) for each in told["nodes"]},
                positions=tuple(each and (each["ledger"], each["entry"]) for each in told["positions"]),
            )
            for change in changes
            if (told := change.get("clearing")) is not None
        ]

    def gaps(self, topic: str) -> list[Gap]:
        """All reported gaps, also those that were closed later; none if the topic does not exist."""
        found = []
        for name in self.topics():
            if name.startswith(f"persistent://public/default/{topic}-partition-"):
                for message in self._messages(name):
                    version = message._message.int_schema_version()
                    schema = _plain(json.loads(self._schema(topic, version)["data"]))
                    record = _decode(schema, message.data())
                    if record.get("closed_ms") is None:  # a record with `closed_ms` closes a gap
                        found.append(gap_of(record))
        return found

    def _schema(self, topic: str, version: int) -> dict[str, Any]:
        name = topic.rpartition("/")[2]
        url = f"{self._admin_url}/admin/v2/schemas/public/default/{name}/schema/{version}"
        schema: dict[str, Any] = httpx.get(url, timeout=_HTTP_TIMEOUT_S).raise_for_status().json()
        return schema

    def _messages(self, topic: str) -> Iterator[Any]:
        reader = self._client.create_reader(topic, pulsar.MessageId.earliest)
        try:
            while reader.has_message_available():
                yield reader.read_next(timeout_millis=_TIMEOUT_MS)
        finally:
            reader.close()


def _plain(node: Any) -> Any:
    """A schema without logical types, so that dates stay days, as they are written; types have their short names."""
    if isinstance(node, dict):
        return {name: _plain(value) for name, value in node.items() if name not in {"logicalType", "namespace"}}
    if isinstance(node, str):
        return node.rpartition(".")[2]
    return [_plain(each) for each in node] if isinstance(node, list) else node


def _decode(schema: Any, data: bytes) -> Mapping[str, object]:
    source = io.BytesIO(data)
    record = fastavro.schemaless_reader(source, schema, None)
    if source.read() or not isinstance(record, dict):
        raise ValueError(f"{data.hex()}: there are bytes behind the Avro record")
    return record


def _events(message: Mapping[str, Any], partition: int, published_ms: int) -> Iterator[Event]:
    for each in message["events"]:
        bounds = each["bounds"]
        yield Event(
            table=message["table"],
            table_id=str(message["table_id"]),
            node=str(message["node_id"]),
            segment=message["segment_id"],
            position=each["position"],
            ordinal=each["ordinal"],
            kind=each["kind"],
            key=each["key"],
            partition_key=each["partition_key"].hex(),
            clustering=tuple(None if value is None else value.hex() for value in each["clustering"]),
            bounds=None
            if bounds is None
            else (
                tuple(value.hex() for value in bounds["start"]),
                bounds["start_inclusive"],
                tuple(value.hex() for value in bounds["end"]),
                bounds["end_inclusive"],
            ),
            writetime_us=each["writetime"],
            expiry_s=each["expiry_time"],
            columns=tuple(message["column_sets"][each["column_set"]]),
            partition=partition,
            published_ms=published_ms,
        )
