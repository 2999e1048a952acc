"""A message of the progress topic: the time up to which the events topics have every write that one node answered.

The message's key is the node, so that compaction keeps the newest record of each node. For each table, a record has a
few checkpoints: a time, and the node's last position in each partition of the events topic at that time. A consumer
whose subscription has passed these positions has every write that the node answered before the time. The older
checkpoints are for a subscription that is behind. New fields are nullable, with a default.
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
"""The node's last position is not known: any entry of the partition up to its end may be the node's.

Either this agent has not published to the partition, but an earlier one may have. Or the broker accepted the last
message without a position (de-duplication of a message that was sent again).
"""


class Checkpoint(NamedTuple):
    """Every write that the node answered before `resolved_ms` is on the events topic, at or before `positions`.

    `resolved_ms` is by the node's clock, since the epoch. `positions` has one position for each partition of the topic;
    missing positions at its end are unknown.
    """

    resolved_ms: int
    positions: tuple[TopicPosition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProgress:
    """The progress of one table.

    `checkpoints` begin with the newest. `stopped`: the reason why no newer one comes, if any.
    """

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
    """A node of the cluster, as the record's node knows it. The record's own node is one of the peers, too."""

    host_id: UUID
    address: str
    data_center: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRecord:
    """The progress of one node, as of `published_ms` (its clock, since the epoch).

    `behind` is the reason why no table of the node makes progress, if any. `replication` has the replication options of
    each keyspace in `tables`.
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
        # Ledger and entry of each partition, one after the other.
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
    """The full name of the progress topic of all tables with an events prefix.

    It is no table's topic, whose name has a dot.
    """
    return full_topic_name(f"{prefix}progress")


def encode_progress(record: ProgressRecord) -> bytes:
    """The bytes of a record's message."""
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
    """The record of a message, which this version sent. Raises MalformedProgressError."""
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
