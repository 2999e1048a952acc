"""The events and records of a row that Pulsar still has. Nothing is acknowledged or changed."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import fastavro
import pulsar

from cdc.trace.avro_values import ValueSchema, read_avro, value_reader_of
from cdc.trace.broker_errors import remedy_of
from cdc.trace.row_key import RowKey
from schemas.errors import CdcError
from schemas.mutation_event import MalformedEventsError, MutationEvent, MutationEvents, decode_events
from schemas.record_properties import KIND
from schemas.topics import partition_of_token
from source_connector.data_format import DataFormat
from source_connector.encoding.projection import Projection
from source_connector.events.pulsar_access import schema_bytes

__all__ = ["DataRecord", "TopicEvent", "TopicReadError", "data_records", "topic_events"]

_TIMEOUT_MS: Final = 10_000
_QUEUE: Final = 5_000
_NOT_AVRO: Final = (ValueError, EOFError, IndexError, TypeError, KeyError, OverflowError)


class TopicReadError(CdcError):
    """A topic cannot be read; the text says which topic, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEvent:
    """An event about the row, the message that holds it, and its place."""

    place: str
    published_ms: int
    message: MutationEvents
    event: MutationEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRecord:
    """A record of the row, of its partition's static row, or a marker of a deletion in its partition.

    `value` is None for a row that is gone. `partition`: -1 for a topic without partitions. `position`: ledger, entry
    and index in the batch.
    """

    place: str
    partition: int = -1
    position: tuple[int, int, int] = (-1, -1, -1)
    published_ms: int
    is_marker: bool
    data: bytes | None
    value: Mapping[str, Any] | None
    properties: Mapping[str, str]


def topic_events(
    client: pulsar.Client, topic: str, partitions: int, key: RowKey, since_s: float | None, unread: list[str]
) -> Iterator[TopicEvent]:
    """The events about the row, from the topic partition of the row, oldest first.

    The name of the topic partition is added to `unread` if it was not read to its end. Raises TopicReadError.
    """
    name = f"{topic}-partition-{partition_of_token(key.token, partitions)}" if partitions else topic

    @cache
    def writer(version: int) -> Mapping[str, object]:
        """A writer's schema; empty for one that is not Avro (of a DataStax agent), which no event fits."""
        try:
            parsed: Any = fastavro.parse_schema(json.loads(_schema(client, name, version)))
        except ValueError:
            return {}
        return dict(parsed)

    for message in _messages(client, name, since_s, unread):
        version = message._message.int_schema_version()  # noqa: SLF001  # the wrapper has bytes
        try:
            found = decode_events(message.data(), writer(version) if version >= 0 else None)
        except MalformedEventsError:
            continue  # a DataStax agent's, or a message that becomes a dead letter
        for event in found.events:
            if found.table_id == key.table.table_id and key.concerns(event):
                place = _place(name, message)
                yield TopicEvent(place=place, published_ms=message.publish_timestamp(), message=found, event=event)


def data_records(
    client: pulsar.Client, topic: str, partitions: int, key: RowKey, since_s: float | None, unread: list[str]
) -> Iterator[DataRecord]:
    """The records about the row in all topic partitions, in the order in which they were published.

    The names of topic partitions that were not read to their end are added to `unread`. Raises TopicReadError.
    """
    names = {index: f"{topic}-partition-{index}" for index in range(partitions)} or {-1: topic}
    found: list[DataRecord] = []
    for index, name in names.items():
        found += _records(client, name, index, key, since_s, unread)
    yield from sorted(found, key=lambda each: each.published_ms)


def _records(
    client: pulsar.Client, name: str, index: int, key: RowKey, since_s: float | None, unread: list[str]
) -> Iterator[DataRecord]:
    decoders: dict[int, _Decoder] = {}
    for message in _messages(client, name, since_s, unread):
        version = message._message.int_schema_version()  # noqa: SLF001  # the wrapper has bytes
        if version not in decoders:
            decoders[version] = _Decoder(client, name, version, key)
        decoder = decoders[version]
        if (is_marker := decoder.is_marker(message)) is None:
            continue
        data = None if message._message.has_null_value() else message.data()  # noqa: SLF001
        at = message.message_id()
        yield DataRecord(
            place=_place(name, message),
            partition=index,
            position=(at.ledger_id(), at.entry_id(), at.batch_index()),
            published_ms=message.publish_timestamp(),
            is_marker=is_marker,
            data=data,
            value=decoder.value(data),
            properties=message.properties(),
        )


class _Decoder:
    """Decodes the records of one schema version, in any of the three formats."""

    def __init__(self, client: pulsar.Client, name: str, version: int, key: RowKey) -> None:
        self._is_key_value, self._schema = _value_schema(_schema(client, name, version))
        self._keys = {
            _message_key(key, each, width): width < len(key.parts) for each in DataFormat for width in _widths(key)
        }

    def is_marker(self, message: pulsar.Message) -> bool | None:
        """Return True for a marker of a deletion, False for a record of the row or of static columns.

        None for a record of another row.
        """
        found = self._keys.get(message.partition_key())
        kind = message.properties().get(KIND, "")
        if kind == "static_row":
            return None if found is None else False
        return found if found is None else found or kind in {"partition_deletion", "range_deletion"}

    def value(self, data: bytes | None) -> Mapping[str, Any] | None:
        """The value in readable form; its bytes if it does not fit its schema; None for a row that is gone."""
        if data is None or (data == b"{}" and not self._is_key_value):
            return None
        if data.startswith(b"{"):
            with suppress(ValueError):  # Avro may begin with `{`, too: it is the number -62
                decoded: Mapping[str, Any] = json.loads(data)
                return decoded
        if self._schema is not None:
            with suppress(*_NOT_AVRO):
                return read_avro(self._schema, data)
        return {"bytes": data.hex()}


def _widths(key: RowKey) -> set[int]:
    """The numbers of columns of the keys that concern the row: all columns, or those of the partition key."""
    return {len(key.parts), len(key.table.partition_key)}


def _message_key(key: RowKey, data_format: DataFormat, width: int) -> str:
    found = Projection(key.table, data_format=data_format).record_key(key.parts[:width])
    return found.decode() if data_format is DataFormat.JSON else base64.b64encode(found).decode()


def _schema(client: pulsar.Client, name: str, version: int) -> bytes:
    """A schema version of a topic. Raises TopicReadError, also for a topic without a schema."""
    try:
        return schema_bytes(client, name, version)
    except pulsar.TopicNotFound as error:
        text = (
            f"{name} has no schema: neither agent nor connector has written there; name the data topic by --data-topic"
        )
        raise TopicReadError(text) from error
    except pulsar.PulsarException as error:
        raise TopicReadError(f"the schema of {name} cannot be read ({error}); {remedy_of(error, 'consume')}") from error


def _value_schema(data: bytes) -> tuple[bool, ValueSchema | None]:
    """Return whether a schema is KEY_VALUE, and the schema of the value.

    A KEY_VALUE schema is the length (uint32) and the JSON of the key's schema, then the same for the value's schema.
    """
    width = int.from_bytes(data[:4], "big")
    is_key_value = width < len(data)
    return is_key_value, value_reader_of(data[8 + width :] if is_key_value else data)


def _messages(client: pulsar.Client, name: str, since_s: float | None, unread: list[str]) -> Iterator[pulsar.Message]:
    """The messages that the topic partition has now."""
    try:
        reader = client.create_reader(name, pulsar.MessageId.earliest, receiver_queue_size=_QUEUE)
    except pulsar.PulsarException as error:
        raise TopicReadError(f"{name} cannot be read ({error}); {remedy_of(error, 'consume')}") from error
    try:
        if since_s is not None and since_s < (now_s := time.time()):  # before 1970 there are no messages
            reader.seek(int((now_s - since_s) * 1000))
        while reader.has_message_available():
            yield reader.read_next(timeout_millis=_TIMEOUT_MS)
    except pulsar.Timeout:
        unread.append(name)
    except pulsar.PulsarException as error:
        raise TopicReadError(f"{name} cannot be read further ({error}); {remedy_of(error, 'consume')}") from error
    finally:
        reader.close()


def _place(name: str, message: pulsar.Message) -> str:
    at = message.message_id()
    batch = f":{at.batch_index()}" if at.batch_index() >= 0 else ""
    return f"{name.rpartition('/')[2]} {at.ledger_id()}:{at.entry_id()}{batch}"
