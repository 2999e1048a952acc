"""A message of the gaps topic: changes of a table, written in a time window, may be missing from its events topic.

Each table has its own record, because it is unknown which tables had changes in a removed segment. After a crash of the agent
the same gap may come twice: (node, first segment, table) identifies it. New fields are nullable, with a default.

A gap is open until a closing record names it: the same record again, with `closed_ms` and `outcome`. It may come twice, too.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import fastavro

from schemas.errors import CdcError
from schemas.row_record import AvroSchema, schema_text
from schemas.topics import DEFAULT_EVENTS_PREFIX, full_topic_name

__all__ = [
    "GAP_SCHEMA_TEXT",
    "GapRecord",
    "MalformedGapError",
    "decode_gap",
    "encode_gap",
    "gaps_topic",
    "open_gaps",
]

_END: Final = 1 << 31
"""A number above every position in a segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRecord:
    """Changes of the table that the node wrote between `from_ms` and `to_ms` (since the epoch) may be missing.

    The changes were in the segments from `first_segment_id` (after `first_position`) to `last_segment_id` (up to
    `last_position`; None: to its end). `from_ms` is None when the start is unknown. `reason` is for people.

    A record with `closed_ms` is a closing record: since then the data topic has the changes that the gap may have lost, or
    the table's rows no longer exist. `outcome` says which, for people.
    """

    node_id: UUID
    keyspace: str
    table: str
    table_id: UUID
    first_segment_id: int
    first_position: int
    last_segment_id: int
    from_ms: int | None
    to_ms: int
    detected_ms: int
    reason: str
    last_position: int | None = None
    closed_ms: int | None = None
    outcome: str | None = None

    @property
    def table_name(self) -> str:
        """`keyspace.table`."""
        return f"{self.keyspace}.{self.table}"

    @property
    def is_closing(self) -> bool:
        """True if the record closes a gap, False if it reports one."""
        return self.closed_ms is not None

    def closed(self, closed_ms: int, outcome: str) -> GapRecord:
        """The record that closes this gap."""
        return replace(self, closed_ms=closed_ms, outcome=outcome)

    def closes(self, gap: GapRecord) -> bool:
        """True if this record closes the gap, or a gap that contains it in the node's commit log and in time."""
        is_within = self._first <= gap._first and gap._last <= self._last and gap.to_ms <= self.to_ms
        return self.is_closing and self.table_key == gap.table_key and is_within

    @property
    def table_key(self) -> tuple[UUID, str, str, UUID]:
        """Node, keyspace, table and table id. A record closes only gaps with the same key."""
        return self.node_id, self.keyspace, self.table, self.table_id

    @property
    def _first(self) -> tuple[int, int]:
        return self.first_segment_id, self.first_position

    @property
    def _last(self) -> tuple[int, int]:
        return self.last_segment_id, _END if self.last_position is None else self.last_position


class MalformedGapError(CdcError):
    """A message of the gaps topic is not what its schema says."""


_FIELDS: Final[list[AvroSchema]] = [
    {"name": "node_id", "type": "string"},
    {"name": "keyspace", "type": "string"},
    {"name": "table", "type": "string"},
    {"name": "table_id", "type": "string"},
    {"name": "first_segment_id", "type": "long"},
    {"name": "first_position", "type": "int"},
    {"name": "last_segment_id", "type": "long"},
    {"name": "from_ms", "type": ["null", "long"], "default": None},
    {"name": "to_ms", "type": "long"},
    {"name": "detected_ms", "type": "long"},
    {"name": "reason", "type": "string"},
    {"name": "last_position", "type": ["null", "int"], "default": None},
]
_CLOSING_FIELDS: Final[list[AvroSchema]] = [
    {"name": "closed_ms", "type": ["null", "long"], "default": None},
    {"name": "outcome", "type": ["null", "string"], "default": None},
]
_SCHEMA: Final[AvroSchema] = {"type": "record", "name": "Gap", "fields": _FIELDS + _CLOSING_FIELDS}
GAP_SCHEMA_TEXT: Final = schema_text(_SCHEMA)
_PARSED: Final = fastavro.parse_schema(_SCHEMA)
# Agents of earlier versions end a record here.
_PARSED_FIRST: Final = fastavro.parse_schema({"type": "record", "name": "GapBefore", "fields": _FIELDS})
_PARSED_CLOSING: Final = fastavro.parse_schema({"type": "record", "name": "GapClosing", "fields": _CLOSING_FIELDS})


def gaps_topic(prefix: str = DEFAULT_EVENTS_PREFIX) -> str:
    """The full name of the gaps topic of all tables with an events prefix.

    It is no table's topic, whose name has a dot.
    """
    return full_topic_name(f"{prefix}gaps")


def encode_gap(gap: GapRecord) -> bytes:
    """The bytes of a record's message."""
    buffer = io.BytesIO()
    fields = {name: getattr(gap, name) for name in GapRecord.__slots__}
    fastavro.schemaless_writer(buffer, _PARSED, fields | {"node_id": str(gap.node_id), "table_id": str(gap.table_id)})
    return buffer.getvalue()


def decode_gap(payload: bytes) -> GapRecord:
    """The record of a message, which this version or an earlier one sent. Raises MalformedGapError."""
    stream = io.BytesIO(payload)
    try:
        fields: Any = fastavro.schemaless_reader(stream, _PARSED_FIRST, None)
        if stream.tell() < len(payload):
            closing: Any = fastavro.schemaless_reader(stream, _PARSED_CLOSING, None)
            fields |= closing
        return GapRecord(
            node_id=UUID(fields.pop("node_id")),
            table_id=UUID(fields.pop("table_id")),
            **fields,
        )
    except (EOFError, ValueError, IndexError, TypeError) as error:
        raise MalformedGapError(f"not a gap record: {error}") from error


def open_gaps(records: Iterable[GapRecord]) -> list[GapRecord]:
    """The gaps that no record closes, among all records of a topic, in their order."""
    known = list(records)
    # By table: there may be thousands of records, a few for each table.
    closings: dict[object, list[GapRecord]] = defaultdict(list)
    for each in known:
        if each.is_closing:
            closings[each.table_key].append(each)
    return [
        each
        for each in known
        if not each.is_closing and not any(closing.closes(each) for closing in closings.get(each.table_key, ()))
    ]
