"""What a message of the gaps topic says: changes of a table may be missing from its events topic, and from when to when.

One record a table, for the segment that was removed does not tell which tables it held changes of. The same gap may come
twice after a crash of the agent: (node, first segment, table) identifies it. New fields are nullable, with a default.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Final, cast
from uuid import UUID

import fastavro

from schemas.errors import CdcError
from schemas.row_record import AvroSchema, schema_text
from schemas.topics import DEFAULT_EVENTS_PREFIX, full_topic_name

__all__ = ["GAP_SCHEMA_TEXT", "GapRecord", "MalformedGapError", "decode_gap", "encode_gap", "gaps_topic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRecord:
    """Changes of the table that the node wrote between `from_ms` and `to_ms` (since the epoch) may be missing.

    They stood in the segments from `first_segment_id` (behind `first_position`) to `last_segment_id` (up to `last_position`;
    None: to its end). `from_ms` is None when nothing is known of what came before. `reason` is for people.
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


class MalformedGapError(CdcError):
    """A message of the gaps topic is not what its schema says."""


_SCHEMA: Final[AvroSchema] = {
    "type": "record",
    "name": "Gap",
    "fields": [
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
    ],
}
GAP_SCHEMA_TEXT: Final = schema_text(_SCHEMA)
_PARSED: Final = fastavro.parse_schema(_SCHEMA)


def gaps_topic(prefix: str = DEFAULT_EVENTS_PREFIX) -> str:
    """The full name of the gaps topic of all tables behind an events prefix. No table's topic is called so: it has a dot."""
    return full_topic_name(f"{prefix}gaps")


def encode_gap(gap: GapRecord) -> bytes:
    """A record as it is sent."""
    buffer = io.BytesIO()
    fields = {name: getattr(gap, name) for name in GapRecord.__slots__}
    fastavro.schemaless_writer(buffer, _PARSED, fields | {"node_id": str(gap.node_id), "table_id": str(gap.table_id)})
    return buffer.getvalue()


def decode_gap(payload: bytes) -> GapRecord:
    """A record as it was sent by this version. Raises MalformedGapError."""
    try:
        fields = cast("dict[str, object]", fastavro.schemaless_reader(io.BytesIO(payload), _PARSED, None))
        return GapRecord(
            node_id=UUID(cast("str", fields.pop("node_id"))),
            table_id=UUID(cast("str", fields.pop("table_id"))),
            **fields,  # type: ignore[arg-type]  # as the schema says
        )
    except (EOFError, ValueError, IndexError, TypeError) as error:
        raise MalformedGapError(f"not a gap record: {error}") from error
