"""A message of the progress topic: until when the events topics have every write that one node answered.

One record a node, which is the message's key, so that compaction keeps the newest. For each table there are a few
checkpoints: a time, and where each partition of the events topic ended then for this node. A consumer whose
subscription has passed these positions has every write that the node answered before the time. The older checkpoints
are for a subscription that is behind. New fields are nullable, with a default.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

import fastavro

from schemas.errors import CdcError
from schemas.row_record import AvroSchema, schema_text
from schemas.topics import DEFAULT_EVENTS_PREFIX, full_topic_name

__all__ = [
    "PROGRESS_SCHEMA_TEXT",
    "UNKNOWN_POSITION",
    "Checkpoint",
    "MalformedProgressError",
    "Peer",
    "ProgressRecord",
    "TableProgress",
    "TopicPosition",
    "decode_progress",
    "encode_progress",
    "progress_topic",
]


class TopicPosition(NamedTuple):
    """An entry of a topic partition."""

    ledger: int
    entry: int


UNKNOWN_POSITION: Final = TopicPosition(-1, -1)
"""Any entry of the partition up to its end may be of the node: this agent has not published to it, and one before it may have, or
the broker took the last message without a position (de-duplication, when a message was sent again)."""


class Checkpoint(NamedTuple):
    """Every write that the node answered before `resolved_ms` (its clock, since the epoch) is on the events topic, up to here.

    `positions` has one for each partition of the topic; where it is too short, they are unknown.
    """

    resolved_ms: int
    positions: tuple[TopicPosition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProgress:
    """How it stands with one table. `checkpoints` begin with the newest; `stopped` says why no newer one comes, for people."""

    keyspace: str
    table: str
    table_id: UUID
    checkpoints: Sequence[Checkpoint] = ()
    stopped: str | None = None

    @property
    def name(self) -> str:
        """`keyspace.table`."""
        return f"{self.keyspace}.{self.table}"


class Peer(NamedTuple):
    """A node of the cluster, as the record's node knows it; the record's own node is among them."""

    host_id: UUID
    address: str
    data_center: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRecord:
    """The progress of one node, as of `published_ms` (its clock, since the epoch).

    `behind` says why no table of the node gets on. `replication` has the options of each keyspace with such a table.
    """

    node_id: UUID
    published_ms: int
    tables: Sequence[TableProgress]
    peers: Sequence[Peer] = ()
    replication: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    behind: str | None = None


class MalformedProgressError(CdcError):
    """A message of the progress topic is not what its schema says."""


_CHECKPOINT: Final[AvroSchema] = {
    "type": "record",
    "name": "Checkpoint",
    "fields": [
        {"name": "resolved_ms", "type": "long"},
        # Ledger and entry of each partition, one behind the other.
        {"name": "positions", "type": {"type": "array", "items": "long"}},
    ],
}
_TABLE: Final[AvroSchema] = {
    "type": "record",
    "name": "TableProgress",
    "fields": [
        {"name": "keyspace", "type": "string"},
        {"name": "table", "type": "string"},
        {"name": "table_id", "type": "string"},
        {"name": "checkpoints", "type": {"type": "array", "items": _CHECKPOINT}},
        {"name": "stopped", "type": ["null", "string"], "default": None},
    ],
}
_PEER: Final[AvroSchema] = {
    "type": "record",
    "name": "Peer",
    "fields": [
        {"name": "host_id", "type": "string"},
        {"name": "address", "type": "string"},
        {"name": "data_center", "type": "string"},
    ],
}
_SCHEMA: Final[AvroSchema] = {
    "type": "record",
    "name": "Progress",
    "fields": [
        {"name": "node_id", "type": "string"},
        {"name": "published_ms", "type": "long"},
        {"name": "tables", "type": {"type": "array", "items": _TABLE}},
        {"name": "peers", "type": {"type": "array", "items": _PEER}, "default": []},
        {
            "name": "replication",
            "type": {"type": "map", "values": {"type": "map", "values": "string"}},
            "default": {},
        },
        {"name": "behind", "type": ["null", "string"], "default": None},
    ],
}
PROGRESS_SCHEMA_TEXT: Final = schema_text(_SCHEMA)
_PARSED: Final = fastavro.parse_schema(_SCHEMA)


def progress_topic(prefix: str = DEFAULT_EVENTS_PREFIX) -> str:
    """The full name of the progress topic of all tables behind an events prefix. No table's topic is called so: it has a dot."""
    return full_topic_name(f"{prefix}progress")


def encode_progress(record: ProgressRecord) -> bytes:
    """A record as it is sent."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(
        buffer,
        _PARSED,
        {
            "node_id": str(record.node_id),
            "published_ms": record.published_ms,
            "tables": [_table_fields(each) for each in record.tables],
            "peers": [each._asdict() | {"host_id": str(each.host_id)} for each in record.peers],
            "replication": record.replication,
            "behind": record.behind,
        },
    )
    return buffer.getvalue()


def decode_progress(payload: bytes) -> ProgressRecord:
    """A record as it was sent by this version. Raises MalformedProgressError."""
    try:
        fields: Any = fastavro.schemaless_reader(io.BytesIO(payload), _PARSED, None)
        return ProgressRecord(
            node_id=UUID(fields["node_id"]),
            published_ms=fields["published_ms"],
            tables=tuple(_table(each) for each in fields["tables"]),
            peers=tuple(Peer(UUID(each["host_id"]), each["address"], each["data_center"]) for each in fields["peers"]),
            replication=fields["replication"],
            behind=fields["behind"],
        )
    except (EOFError, ValueError, IndexError, TypeError, KeyError, MemoryError) as error:
        raise MalformedProgressError(f"not a progress record: {error or type(error).__name__}") from error


def _table_fields(table: TableProgress) -> dict[str, object]:
    return {
        "keyspace": table.keyspace,
        "table": table.table,
        "table_id": str(table.table_id),
        "checkpoints": [
            {"resolved_ms": each.resolved_ms, "positions": [number for place in each.positions for number in place]}
            for each in table.checkpoints
        ],
        "stopped": table.stopped,
    }


def _table(fields: Mapping[str, Any]) -> TableProgress:
    return TableProgress(
        keyspace=fields["keyspace"],
        table=fields["table"],
        table_id=UUID(fields["table_id"]),
        checkpoints=tuple(
            Checkpoint(each["resolved_ms"], _positions(each["positions"])) for each in fields["checkpoints"]
        ),
        stopped=fields["stopped"],
    )


def _positions(numbers: Sequence[int]) -> tuple[TopicPosition, ...]:
    return tuple(TopicPosition(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True))
