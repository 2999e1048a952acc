"""What is asked of Cassandra for an event, and what comes back. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from schemas.mutation_event import MutationKind, RangeBounds
from source_connector.projection import Projection

__all__ = ["RawRow", "ReadLevel", "ReadRequest", "Rows"]

RawRow = tuple[bytes | None, ...]


class ReadLevel(Enum):
    """`FIRST` is what most reads need; `HIGHER` asks all replicas where the first could not prove anything."""

    FIRST = "first"
    HIGHER = "higher"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """A row, a static row, or a page of the rows in a deletion's scope; the event's node is to coordinate."""

    projection: Projection
    kind: MutationKind
    partition_key: bytes
    clustering: tuple[bytes | None, ...] = ()
    bounds: RangeBounds | None = None
    level: ReadLevel
    node: UUID
    paging_state: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of one page, their columns by the projection's selection for the kind, and how far to trust them."""

    request: ReadRequest
    rows: Sequence[RawRow]
    consistency: str
    is_fallback: bool
    """True when a lower level than the one asked for answered."""
    paging_state: bytes | None = None
    """Where the next page starts; None when this is the last one."""
