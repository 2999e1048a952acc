"""Every version that the cells of a partition ever had, and what replaced it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from spark_bridge.commitlog.reconciliation import (
    STATIC,
    Cell,
    CellName,
    Change,
    Clustering,
    Covers,
    Deletion,
    Range,
    in_order,
)

__all__ = ["CellVersion", "PartitionHistory", "ends_of"]


class CellVersion(NamedTuple):
    """One version of a cell. `replaced_at`: write time (microseconds) of the first value or deletion that shadows it.

    `replaced_by` is `value`, `tombstone` or `deletion`. Both are None if nothing shadows the version.
    """

    clustering: Clustering
    column: str
    path: bytes | None
    cell: Cell
    replaced_at: int | None
    replaced_by: str | None


def ends_of(versions: Iterable[Cell], deletions: Sequence[Deletion]) -> Iterator[tuple[Cell, int | None, str | None]]:
    """The versions of one cell, each once, oldest first, with `replaced_at` and `replaced_by`."""
    ordered = in_order(set(versions))
    deleted = sorted({each.writetime for each in deletions})
    for at, cell in enumerate(ordered):
        by_deletion = next((each for each in deleted if each >= cell.writetime), None)
        following = ordered[at + 1] if at + 1 < len(ordered) else None
        if following is not None and (by_deletion is None or following.writetime <= by_deletion):
            yield cell, following.writetime, "tombstone" if following.value is None else "value"
        else:
            yield cell, by_deletion, None if by_deletion is None else "deletion"


class PartitionHistory:
    """Collects the changes of one partition, in any order and any number of copies. All versions are in memory."""

    def __init__(self, covers: Covers) -> None:
        self._covers: Final = covers
        self._partition: Final[set[Deletion]] = set()
        self._ranges: Final[set[tuple[Range, Deletion]]] = set()
        self._rows: Final[dict[Clustering, set[Deletion]]] = defaultdict(set)
        self._complex: Final[dict[tuple[Clustering, str], set[Deletion]]] = defaultdict(set)
        self._cells: Final[dict[Clustering, dict[CellName, set[Cell]]]] = defaultdict(lambda: defaultdict(set))

    def add(self, change: Change) -> None:
        """Add a change."""
        if change.deletion is not None:
            if change.scope == "partition_deletion":
                self._partition.add(change.deletion)
            elif change.range is not None:
                self._ranges.add((change.range, change.deletion))
            else:
                self._rows[change.clustering].add(change.deletion)
        for column, deletion in change.complex_deletions:
            self._complex[change.clustering, column].add(deletion)
        for name, cell in change.cells:
            self._cells[change.clustering][name].add(cell)

    def versions(self) -> Iterator[CellVersion]:
        """The versions of all cells."""
        for clustering, cells in self._cells.items():
            of_row = [*self._partition, *self._rows[clustering], *self._of_ranges(clustering)]
            for (column, path), versions in cells.items():
                deletions = [*of_row, *self._complex[clustering, column]]
                for cell, replaced_at, replaced_by in ends_of(versions, deletions):
                    yield CellVersion(clustering, column, path, cell, replaced_at, replaced_by)

    def _of_ranges(self, clustering: Clustering) -> list[Deletion]:
        if clustering is STATIC:
            return []
        return [deletion for each, deletion in self._ranges if self._covers(each, clustering)]
