"""Decodes and interprets events of DataStax's agents: one row a message, KEY_VALUE with a separate Avro key. Pure.

    key         Avro record of the primary key's columns; clustering columns are null for static writes and partition deletes
    value       `MutationValue`: md5Digest (32 hex digits), nodeId (text), columns (always null)
    properties  `segpos` (<segment id>:<position>), `writetime` in microseconds, `token`

They name neither the table's id nor the kind of change. So such an event counts as a change of the current table and of
all columns. Its write time is the newest one of its partition update.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast
from uuid import UUID

import fastavro
from fastavro.types import Schema

from schemas.cql_bytes import UnwritableKeyError, cql_bytes, joined_partition_key
from schemas.json_value import AvroValue
from schemas.mutation_event import MalformedEventsError, MutationEvent, MutationEvents, MutationKind
from source_connector.encoding.projection import Projection

__all__ = ["DataStaxEvent", "DataStaxSchema", "as_mutation_events"]

_NO_NODE: Final = UUID(int=0)
_LEFT_OUT: Final = ("logicalType", "namespace", "java-class")
# The exceptions of JSON and fastavro for a text that is not a schema.
_SCHEMA_ERRORS: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_AVRO_ERRORS: Final = (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStaxEvent:
    """One changed row; `key` has the Avro values by column name, in the order of the primary key."""

    key: Mapping[str, AvroValue]
    digest: bytes
    node_id: UUID
    segment_id: int
    position: int
    writetime_us: int | None


class DataStaxSchema:
    """One version of the schema of such a topic. Raises MalformedEventsError for a text that is not a schema."""

    def __init__(self, data: bytes) -> None:
        try:
            size = int.from_bytes(data[:4], "big")
            key, value = data[4 : 4 + size], data[8 + size :]
            self._key = fastavro.parse_schema(json.loads(key, object_hook=_plain))
            self._value = fastavro.parse_schema(json.loads(value, object_hook=_plain))
        except (*_SCHEMA_ERRORS, fastavro.schema.SchemaParseException) as error:
            raise MalformedEventsError(f"{len(data)} bytes are no KEY_VALUE schema of Avro ({error})") from error

    def decode(self, key: bytes, value: bytes, properties: Mapping[str, str]) -> DataStaxEvent:
        """Decode one message. Raises MalformedEventsError."""
        try:
            fields = _record(key, self._key)
            change = _record(value, self._value)
            segment_id, _, position = properties.get("segpos", "-1:-1").rpartition(":")
            node, writetime = change.get("nodeId"), properties.get("writetime")
            return DataStaxEvent(
                key=fields,
                digest=_digest(str(change.get("md5Digest")), key, properties),
                node_id=UUID(node) if isinstance(node, str) else _NO_NODE,
                segment_id=int(segment_id),
                position=int(position),
                writetime_us=int(writetime) if writetime else None,
            )
        except _AVRO_ERRORS as error:
            raise MalformedEventsError(f"no event of a DataStax agent ({type(error).__name__}: {error})") from error


def as_mutation_events(event: DataStaxEvent, projection: Projection) -> MutationEvents:
    """The event as an event of the projection's table. Raises MalformedEventsError if its key does not fit the table.

    Without clustering values it is a static write or a partition delete. It becomes a static row if the table has
    static columns, because a read of them may show which, else a partition deletion.
    """
    table = projection.table
    columns = table.primary_key
    # By position, not by name: DataStax's agents keep the old name of a key column that was renamed.
    if len(event.key) != len(columns):
        raise MalformedEventsError(f"its key has {len(event.key)} columns, that of {table.full_name} {len(columns)}")
    try:
        values = [
            None if value is None else cql_bytes(column.type, value)
            for column, value in zip(columns, event.key.values(), strict=True)
        ]
    except UnwritableKeyError as error:
        raise MalformedEventsError(f"its key is none of {table.full_name} ({error})") from error
    partition = [value for value in values[: len(table.partition_key)] if value is not None]
    if len(partition) < len(table.partition_key):
        raise MalformedEventsError(f"its key is none of {table.full_name} (a column of the partition key is null)")
    clustering = tuple(values[len(partition) :])
    kind = MutationKind.ROW
    if table.clustering_key and clustering[0] is None:
        clustering = ()
        kind = MutationKind.STATIC_ROW if table.static_columns else MutationKind.PARTITION_DELETION
    selection = projection.selection_for(kind)
    change = MutationEvent(
        position=event.position,
        ordinal=0,
        kind=kind,
        key=projection.event_key_of([*partition, *clustering]),
        partition_key=joined_partition_key(partition),
        clustering=clustering,
        digest=event.digest,
        writetime_us=event.writetime_us,
        live_cell_writetime_us=event.writetime_us,
        deletion_time_us=event.writetime_us if kind is MutationKind.PARTITION_DELETION else None,
        columns=selection.timed_columns,
    )
    return MutationEvents(
        node_id=event.node_id,
        segment_id=event.segment_id,
        keyspace=table.keyspace,
        table=table.name,
        table_id=table.table_id,
        key_schema=projection.key_schema,
        events=(change,),
    )


def _digest(text: str, key: bytes, properties: Mapping[str, str]) -> bytes:
    """The digest of 16 bytes. Backfilled events have a constant text instead; they get a hash of the message."""
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    return digest if len(digest) == 16 else _own_digest(key, properties)


def _own_digest(key: bytes, properties: Mapping[str, str]) -> bytes:
    text = key + repr(sorted(properties.items())).encode()
    return hashlib.md5(text, usedforsecurity=False).digest()


def _record(data: bytes, schema: Schema) -> dict[str, AvroValue]:
    source = io.BytesIO(data)
    # fastavro's stub says any Avro value: it cannot know the schema.
    found = cast("dict[str, AvroValue]", fastavro.schemaless_reader(source, schema, None))
    if source.read(1):
        raise ValueError("bytes after the record")
    if not isinstance(found, dict):
        raise TypeError("its schema is that of no record")
    return found


def _plain(node: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in node.items() if name not in _LEFT_OUT}
