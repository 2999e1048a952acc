"""What is asked of Cassandra for an event, and what comes back. Values only.

Named tuples: one of each is made for every row, and a frozen dataclass costs four times as much to make.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from schemas.mutation_event import MutationKind, RangeBounds
from source_connector.rows.projection import Projection
from source_connector.rows.raw_page import RawRow

__all__ = ["RawRow", "ReadLevel", "ReadRequest", "Rows"]


class ReadLevel(Enum):
    """`FIRST` is what most reads need; `HIGHER` asks all replicas where the first could not prove anything."""

    FIRST = "first"
    HIGHER = "higher"


class ReadRequest(NamedTuple):
    """A row, a static row, or a page of the rows in a deletion's scope; the event's node is to coordinate."""

    projection: Projection
    kind: MutationKind
    partition_key: bytes
    level: ReadLevel
    node: UUID
    clustering: tuple[bytes | None, ...] = ()
    bounds: RangeBounds | None = None
    paging_state: bytes | None = None


class Rows(NamedTuple):
    """The rows of one page, their columns by the projection's selection for the kind, and how far to trust them."""

    request: ReadRequest
    rows: Sequence[RawRow]
    consistency: str
    is_fallback: bool
    """True when a lower level than the one asked for answered."""
    coordinator: UUID | None = None
    """The node that answered."""
    paging_state: bytes | None = None
    """Where the next page starts; None when this is the last one."""
