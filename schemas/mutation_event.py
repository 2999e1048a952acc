"""One message of an events topic: `MutationEvents`, several changed rows of one table from one segment.

A reader gets the Avro schema that a message was written with from the topic's schema registry, so that agents and
connectors of neighbouring versions work together. New fields are nullable with a default, and are added at the end.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple, NotRequired, TypedDict, cast
from uuid import UUID

import fastavro
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException

from schemas.errors import CdcError
from schemas.row_record import AvroSchema, schema_text

__all__ = [
    "CLEARING_SCHEMA",
    "CLEARING_SCHEMA_TEXT",
    "EXPIRY_SEGMENT_ID",
    "FIRST_MUTATION_EVENTS_SCHEMA",
    "MARKER_STAYS",
    "MUTATION_EVENTS_SCHEMA",
    "MUTATION_EVENTS_SCHEMA_TEXT",
    "NO_MARKER",
    "SNAPSHOT_SEGMENT_ID",
    "Clearing",
    "ClearingKind",
    "MalformedEventsError",
    "MutationEvent",
    "MutationEvents",
    "MutationKind",
    "RangeBounds",
    "decode_events",
    "encode_clearing",
    "encode_events",
]

SNAPSHOT_SEGMENT_ID: Final = -2
"""Segment id of events without a change, for existing rows that a backfill requests.

No commit log segment has this id.
"""
EXPIRY_SEGMENT_ID: Final = -3
"""Segment id of events without a change, for rows in which a value or marker has expired.

Their kinds are ROW and STATIC_ROW, so that a connector of an earlier version publishes the row as it is. `columns` are
those that had to expire at `expiry_time_s`.
"""
NO_MARKER: Final = -1
"""`marker_expiry_s` of a change that wrote no row marker."""
MARKER_STAYS: Final = 0
"""`marker_expiry_s` of a change that wrote a row marker without a TTL."""


class MutationKind(Enum):
    """The kind of change of the row, of the static row, or of the rows in a scope."""

    ROW = "ROW"
    ROW_DELETION = "ROW_DELETION"
    STATIC_ROW = "STATIC_ROW"
    RANGE_DELETION = "RANGE_DELETION"
    PARTITION_DELETION = "PARTITION_DELETION"


class ClearingKind(Enum):
    """The statement that removed all rows of a table at once."""

    TRUNCATION = "TRUNCATION"
    DROP = "DROP"


class Clearing(NamedTuple):
    """A node removed all rows of the table that it had written before this position of its log.

    `position` is in the message's segment. `time_ms` (since the epoch, by the node's clock) is later than the removed
    writes. For a DROP, both show when the agent noticed it.
    """

    kind: ClearingKind
    position: int
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeBounds:
    """Scope of a range deletion: clustering prefixes as CQL bytes. An empty prefix is an open end.

    `start` and `end` are in clustering order: for a column with DESC order, the start is the larger value.
    """

    start: tuple[bytes, ...]
    start_inclusive: bool
    end: tuple[bytes, ...]
    end_inclusive: bool


class MutationEvent(NamedTuple):
    """One change. (node, segment, position, ordinal) identifies it.

    `position` is the end of its commit log entry; `ordinal` counts the events of that entry over all its tables.
    `key` is Avro by the message's key schema; `partition_key` and `clustering` are the exact CQL bytes (empty
    clustering for static rows, range and partition deletions; a None is an absent clustering value).
    `digest` is 16 bytes and equal on all replicas. Times: `writetime_us` is the highest write or deletion time,
    `live_cell_writetime_us` the highest write time of a live regular cell (of a static row: a live static cell),
    `deletion_time_us` of the row, range or partition deletion, `expiry_time_s` (since the epoch) when the last cell or
    row marker expires, where all that was written has a TTL.
    `marker_expiry_s`: an INSERT writes a row marker, which keeps the row without any cell. `NO_MARKER` when the change wrote
    none (an UPDATE), `MARKER_STAYS`, else the second when it expires; None: unknown (older agents, snapshots).
    `columns` are the names of regular or static columns that were written or deleted.

    It is a named tuple because one is made for every change, six times as fast as a frozen dataclass.
    """

    position: int
    ordinal: int
    kind: MutationKind
    key: bytes
    partition_key: bytes
    digest: bytes
    clustering: tuple[bytes | None, ...] = ()
    writetime_us: int | None = None
    live_cell_writetime_us: int | None = None
    deletion_time_us: int | None = None
    expiry_time_s: int | None = None
    bounds: RangeBounds | None = None
    columns: tuple[str, ...] = ()
    marker_expiry_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationEvents:
    """Events of one topic partition that were sent together, in commit log order.

    A message with a `clearing` has no events, and is sent to every partition of the topic.
    """

    node_id: UUID
    segment_id: int
    keyspace: str
    table: str
    table_id: UUID
    key_schema: str
    events: tuple[MutationEvent, ...]
    clearing: Clearing | None = None


class MalformedEventsError(CdcError):
    """A message of an events topic is not what its schema says."""


def _nullable(name: str, avro_type: AvroSchema) -> AvroSchema:
    return {"name": name, "type": ["null", avro_type], "default": None}


_BYTES_LIST: Final[AvroSchema] = {"type": "array", "items": "bytes"}
_BOUNDS: Final[AvroSchema] = {
    "type": "record",
    "name": "RangeBounds",
    "fields": [
        {"name": "start", "type": _BYTES_LIST},
        {"name": "start_inclusive", "type": "boolean"},
        {"name": "end", "type": _BYTES_LIST},
        {"name": "end_inclusive", "type": "boolean"},
    ],
}
_FIRST_FIELDS: Final[list[AvroSchema]] = [
    {"name": "position", "type": "int"},
    {"name": "ordinal", "type": "int"},
    {
        "name": "kind",
        "type": {"type": "enum", "name": "MutationKind", "symbols": [kind.value for kind in MutationKind]},
    },
    {"name": "key", "type": "bytes"},
    {"name": "partition_key", "type": "bytes"},
    {"name": "clustering", "type": {"type": "array", "items": ["null", "bytes"]}},
    {"name": "digest", "type": {"type": "fixed", "name": "Md5", "size": 16}},
    _nullable("writetime", "long"),
    _nullable("live_cell_writetime", "long"),
    _nullable("deletion_time", "long"),
    _nullable("expiry_time", "long"),
    _nullable("bounds", _BOUNDS),
    # An index into the message's column_sets: the same few sets repeat from event to event.
    {"name": "column_set", "type": "int"},
]


_CLEARING: Final[AvroSchema] = {
    "type": "record",
    "name": "Clearing",
    "fields": [
        # Not an enum: Pulsar's strategy FULL refuses an enum with a new symbol.
        {"name": "kind", "type": "string"},
        {"name": "position", "type": "int"},
        {"name": "time", "type": "long"},
    ],
}


def _events_schema(event_fields: list[AvroSchema], *more: AvroSchema) -> dict[str, AvroSchema | int | None]:
    event: AvroSchema = {"type": "record", "name": "MutationEvent", "fields": event_fields}
    fields: list[AvroSchema] = [
        {"name": "node_id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "segment_id", "type": "long"},
        {"name": "keyspace", "type": "string"},
        {"name": "table", "type": "string"},
        {"name": "table_id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "key_schema", "type": "string"},
        {"name": "column_sets", "type": {"type": "array", "items": {"type": "array", "items": "string"}}},
        {"name": "events", "type": {"type": "array", "items": event}},
        *more,
    ]
    return {"type": "record", "name": "MutationEvents", "namespace": "cassandra_cdc", "fields": fields}


FIRST_MUTATION_EVENTS_SCHEMA: Final = _events_schema(_FIRST_FIELDS)
"""The schema of messages without a named schema, which only the first version of the agent held on disk."""
_FIELDS: Final = [*_FIRST_FIELDS, _nullable("marker_expiry", "long")]
# Stored expiries and dead letters have this schema and do not name it. A version with another schema must name it there.
MUTATION_EVENTS_SCHEMA: Final = _events_schema(_FIELDS)
MUTATION_EVENTS_SCHEMA_TEXT: Final = schema_text(MUTATION_EVENTS_SCHEMA)
CLEARING_SCHEMA: Final = _events_schema(_FIELDS, _nullable("clearing", _CLEARING))
"""The schema of messages with a clearing.

They have no events, so a connector of an earlier version only acknowledges them.
"""
CLEARING_SCHEMA_TEXT: Final = schema_text(CLEARING_SCHEMA)


class _Bounds(TypedDict):
    start: Sequence[bytes]
    start_inclusive: bool
    end: Sequence[bytes]
    end_inclusive: bool


class _Record(TypedDict):
    """An event as fastavro reads and writes it."""

    position: int
    ordinal: int
    kind: str
    key: bytes
    partition_key: bytes
    clustering: Sequence[bytes | None]
    digest: bytes
    writetime: int | None
    live_cell_writetime: int | None
    deletion_time: int | None
    expiry_time: int | None
    bounds: _Bounds | None
    column_set: int
    marker_expiry: int | None


class _ClearingRecord(TypedDict):
    kind: str
    position: int
    time: int


class _Message(TypedDict):
    """A message as fastavro reads and writes it."""

    node_id: str
    segment_id: int
    keyspace: str
    table: str
    table_id: str
    key_schema: str
    column_sets: Sequence[Sequence[str]]
    events: Sequence[_Record]
    clearing: NotRequired[_ClearingRecord | None]


_AVRO_ERRORS: Final = (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError)
_PARSED: Final = fastavro.parse_schema(MUTATION_EVENTS_SCHEMA)
_PARSED_WITH_CLEARING: Final = fastavro.parse_schema(CLEARING_SCHEMA)


def encode_events(events: MutationEvents) -> bytes:
    """Avro binary of a message, by MUTATION_EVENTS_SCHEMA."""
    column_sets: dict[tuple[str, ...], int] = {}
    message = _message(events)
    message["events"] = [
        _record(event, column_sets.setdefault(event.columns, len(column_sets))) for event in events.events
    ]
    message["column_sets"] = [list(each) for each in column_sets]
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _PARSED, message)
    return out.getvalue()


def encode_clearing(events: MutationEvents) -> bytes:
    """Avro binary of a message with a clearing, by CLEARING_SCHEMA."""
    assert events.clearing is not None
    kind, position, time_ms = events.clearing
    message = _message(events)
    message["clearing"] = {"kind": kind.value, "position": position, "time": time_ms}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _PARSED_WITH_CLEARING, message)
    return out.getvalue()


def _message(events: MutationEvents) -> _Message:
    """The fields of every message, without events."""
    return {
        "node_id": str(events.node_id),
        "segment_id": events.segment_id,
        "keyspace": events.keyspace,
        "table": events.table,
        "table_id": str(events.table_id),
        "key_schema": events.key_schema,
        "column_sets": [],
        "events": [],
    }


def decode_events(data: bytes, writer_schema: Mapping[str, object] | None = None) -> MutationEvents:
    """Decode a message to its events; `writer_schema` is the (parsed) schema that the message was written with.

    Raises MalformedEventsError.
    """
    try:
        writer = _PARSED if writer_schema is None else dict(writer_schema)
        stream = io.BytesIO(data)
        # fastavro's stub says any Avro value: it cannot know the schema.
        message = cast("_Message", fastavro.schemaless_reader(stream, writer, _PARSED_WITH_CLEARING))
        if stream.read(1):
            raise ValueError("more bytes than its schema says")
        column_sets = [_shared(tuple(map(sys.intern, each))) for each in message["column_sets"]]
        return MutationEvents(
            node_id=UUID(str(message["node_id"])),
            segment_id=message["segment_id"],
            keyspace=message["keyspace"],
            table=message["table"],
            table_id=UUID(str(message["table_id"])),
            key_schema=message["key_schema"],
            events=tuple(_event(record, column_sets) for record in message["events"]),
            clearing=_clearing(message.get("clearing")),
        )
    # fastavro's errors for bytes that are not such a record, or for a schema with missing or additional fields.
    except (*_AVRO_ERRORS, SchemaResolutionError, SchemaParseException) as error:
        raise MalformedEventsError(f"{len(data)} bytes are no MutationEvents record ({error})") from error


@lru_cache(maxsize=512)
def _shared(columns: tuple[str, ...]) -> tuple[str, ...]:
    """The same columns: one tuple for equal ones. Without it, a reader that remembers events would keep those of each message."""
    return columns


def _record(event: MutationEvent, column_set: int) -> _Record:
    bounds = event.bounds
    return {
        "position": event.position,
        "ordinal": event.ordinal,
        "kind": event.kind.value,
        "key": event.key,
        "partition_key": event.partition_key,
        "clustering": event.clustering,
        "digest": event.digest,
        "writetime": event.writetime_us,
        "live_cell_writetime": event.live_cell_writetime_us,
        "deletion_time": event.deletion_time_us,
        "expiry_time": event.expiry_time_s,
        "bounds": None
        if bounds is None
        else {
            "start": bounds.start,
            "start_inclusive": bounds.start_inclusive,
            "end": bounds.end,
            "end_inclusive": bounds.end_inclusive,
        },
        "column_set": column_set,
        "marker_expiry": event.marker_expiry_s,
    }


def _clearing(record: _ClearingRecord | None) -> Clearing | None:
    return None if record is None else Clearing(ClearingKind(record["kind"]), record["position"], record["time"])


def _event(record: _Record, column_sets: Sequence[tuple[str, ...]]) -> MutationEvent:
    bounds = record["bounds"]
    return MutationEvent(
        position=record["position"],
        ordinal=record["ordinal"],
        kind=MutationKind(record["kind"]),
        key=record["key"],
        partition_key=record["partition_key"],
        clustering=tuple(record["clustering"]),
        digest=record["digest"],
        writetime_us=record["writetime"],
        live_cell_writetime_us=record["live_cell_writetime"],
        deletion_time_us=record["deletion_time"],
        expiry_time_s=record["expiry_time"],
        bounds=None
        if bounds is None
        else RangeBounds(
            start=tuple(bounds["start"]),
            start_inclusive=bool(bounds["start_inclusive"]),
            end=tuple(bounds["end"]),
            end_inclusive=bool(bounds["end_inclusive"]),
        ),
        columns=column_sets[record["column_set"]],
        marker_expiry_s=record["marker_expiry"],
    )
