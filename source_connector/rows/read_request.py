"""The read that an event needs, and its result. Values only.

One of each is created for every row, so this is compiled: an object with slots then costs a tenth of a named tuple.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, final
from uuid import UUID

from schemas.mutation_event import MutationKind, RangeBounds
from source_connector.encoding.projection import Projection
from source_connector.rows.raw_page import RawRow

__all__ = ["OF_MANY_ROWS", "RawRow", "ReadLevel", "ReadRequest", "Rows"]


_RANGE_DELETION: Final = MutationKind.RANGE_DELETION
_PARTITION_DELETION: Final = MutationKind.PARTITION_DELETION
OF_MANY_ROWS: Final = (_RANGE_DELETION, _PARTITION_DELETION)
"""Kinds of change whose rows are read page by page."""


class ReadLevel(Enum):
    """`FIRST` suffices for most reads. `HIGHER` asks more replicas if the first level could not prove an event."""

    FIRST = "first"
    HIGHER = "higher"


@final
class ReadRequest:
    """A row, a static row, or a page of the rows in a deletion's scope. The event's node is to coordinate the read."""

    __slots__ = ("bounds", "clustering", "kind", "level", "node", "paging_state", "partition_key", "projection")

    def __init__(
        self,
        projection: Projection,
        kind: MutationKind,
        partition_key: bytes,
        level: ReadLevel,
        node: UUID,
        clustering: tuple[bytes | None, ...] = (),
        bounds: RangeBounds | None = None,
        paging_state: bytes | None = None,
    ) -> None:
        self.projection: Final = projection
        self.kind: Final = kind
        self.partition_key: Final = partition_key
        self.level: Final = level
        self.node: Final = node
        self.clustering: Final = clustering
        self.bounds: Final = bounds
        self.paging_state: Final = paging_state

    @property
    def is_of_many_rows(self) -> bool:
        """True for a page of the rows in a deletion's scope."""
        kind = self.kind
        return kind is _RANGE_DELETION or kind is _PARTITION_DELETION

    def next_page(self, paging_state: bytes) -> ReadRequest:
        """The same read, for the page that starts at this paging state."""
        return ReadRequest(
            self.projection,
            self.kind,
            self.partition_key,
            self.level,
            self.node,
            self.clustering,
            self.bounds,
            paging_state,
        )


@final
class Rows:
    """The rows of one page, with the columns of the projection's selection for the kind, and how far to trust them.

    `is_fallback` is True when a lower level answered than was asked for first. `coordinator` is the node that answered.
    `paging_state` is where the next page starts, None for the last page.
    """

    __slots__ = ("consistency", "coordinator", "is_fallback", "paging_state", "request", "rows")

    def __init__(
        self,
        request: ReadRequest,
        rows: Sequence[RawRow],
        consistency: str,
        is_fallback: bool,
        coordinator: UUID | None = None,
        paging_state: bytes | None = None,
    ) -> None:
        self.request: Final = request
        self.rows: Final = rows
        self.consistency: Final = consistency
        self.is_fallback: Final = is_fallback
        self.coordinator: Final = coordinator
        self.paging_state: Final = paging_state
