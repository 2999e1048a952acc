"""Reconciliation of the changes of a partition by Cassandra's own rules, as plain functions of values.

The order of the changes does not matter. Copies of a change from several replicas count once.

Cassandra source: o.a.c.db.rows.Cells.reconcile, o.a.c.db.LivenessInfo.supersedes, o.a.c.db.DeletionTime,
o.a.c.db.rows.Row.Merger. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Final, NamedTuple, TypeVar

from spark_bridge.commitlog.counters import merged_counters

__all__ = [
    "STATIC",
    "Cell",
    "CellName",
    "Change",
    "Clustering",
    "Covers",
    "Deletion",
    "Marker",
    "Partition",
    "Range",
    "RemainingRow",
    "counter_cells",
    "deletes",
    "in_order",
    "is_live",
    "newer_cell",
    "newer_counter",
    "newer_deletion",
    "newer_marker",
]

Clustering = tuple[bytes | None, ...] | None
"""CQL bytes of a row's clustering columns; STATIC for the static row."""
STATIC: Final = None
CellName = tuple[str, bytes | None]
"""A column, and the cell's path if the column is multi-cell."""


class Cell(NamedTuple):
    """A cell.

    `value` is None for a tombstone. With a `ttl`, the cell expires at its `local_deletion_time` (seconds).
    """

    value: bytes | None
    writetime: int
    ttl: int = 0
    local_deletion_time: int | None = None


class Marker(NamedTuple):
    """A row marker, which INSERT writes and UPDATE does not. `expires_at` (seconds) is None without a `ttl`."""

    writetime: int
    ttl: int = 0
    expires_at: int | None = None


class Deletion(NamedTuple):
    """A deletion of everything in its scope that was written at or before `writetime`."""

    writetime: int
    local_deletion_time: int


class Range(NamedTuple):
    """The rows between two prefixes of the clustering columns. An empty prefix is an open end."""

    start: tuple[bytes | None, ...]
    start_inclusive: bool
    end: tuple[bytes | None, ...]
    end_inclusive: bool


class Change(NamedTuple):
    """One row of the data source. `deletion` deletes the partition, the `range` or the row, depending on `scope`."""

    scope: str
    clustering: Clustering = STATIC
    marker: Marker | None = None
    deletion: Deletion | None = None
    range: Range | None = None
    complex_deletions: Sequence[tuple[str, Deletion]] = ()
    cells: Sequence[tuple[CellName, Cell]] = ()


Covers = Callable[[Range, tuple[bytes | None, ...]], bool]
"""Returns True if a range holds the row of a clustering."""


def newer_cell(left: Cell, right: Cell) -> Cell:
    """The one of two cells of a column that stays."""
    return max(left, right, key=_cell_order)


def in_order(cells: Iterable[Cell]) -> list[Cell]:
    """Cells of one column, sorted so that each cell wins over the cells before it."""
    return sorted(cells, key=_cell_order)


def _cell_order(cell: Cell) -> tuple[int, bool, bool, int, int, bytes]:
    """Sort key of cells; the last one wins.

    The winner has, by priority: the higher write time; a local deletion time (it is a tombstone, or expires); no value
    (it is a tombstone); the later local deletion time; the lower TTL; the larger value.
    """
    ends = cell.local_deletion_time is not None
    is_tombstone = ends and cell.ttl == 0
    return cell.writetime, ends, is_tombstone, cell.local_deletion_time or 0, -cell.ttl, cell.value or b""


def newer_counter(left: Cell, right: Cell) -> Cell:
    """The result of two counter cells. A tombstone always wins, with any write time.

    Without a tombstone, the result has the later state of each node's shard.
    """
    if left.value is None or right.value is None:
        tombstones = [each for each in (left, right) if each.value is None]
        return max(tombstones, key=_cell_order)
    return Cell(merged_counters(left.value, right.value), max(left.writetime, right.writetime))


def counter_cells(known: Sequence[Cell], cell: Cell) -> Sequence[Cell]:
    """The known cells of a counter and one more, without cells that add nothing to a later one.

    They are merged only when the deletion of their row is known, because shards in deleted cells must not count.
    """
    if any(_adds_nothing(cell, each) for each in known):
        return known
    return [*(each for each in known if not _adds_nothing(each, cell)), cell]


def _adds_nothing(cell: Cell, later: Cell) -> bool:
    return cell.writetime <= later.writetime and newer_counter(cell, later) == later


def newer_marker(left: Marker, right: Marker) -> Marker:
    """The one of two markers of a row that stays.

    By priority: the higher write time; an expiring marker; the later expiry; the lower TTL.
    """
    return max(left, right, key=lambda each: (each.writetime, each.ttl > 0, each.expires_at or 0, -each.ttl))


def newer_deletion(left: Deletion, right: Deletion) -> Deletion:
    """The one of two deletions of a scope that stays."""
    return max(left, right)


def deletes(deletion: Deletion | None, writetime: int) -> bool:
    """True when the deletion shadows data with this write time."""
    return deletion is not None and writetime <= deletion.writetime


def is_live(part: Cell | Marker, now_s: int) -> bool:
    """True when the cell or marker is not a tombstone, and has not expired at `now_s` (seconds since the epoch)."""
    if isinstance(part, Marker):
        return part.expires_at is None or now_s < part.expires_at
    if part.local_deletion_time is None:
        return True
    return part.ttl > 0 and now_s < part.local_deletion_time


class RemainingRow(NamedTuple):
    """The part of a row that no deletion shadows, including tombstones and expired cells."""

    clustering: Clustering
    marker: Marker | None
    cells: dict[CellName, Cell]

    def is_visible(self, now_s: int) -> bool:
        """True when SELECT shows a row."""
        return (self.marker is not None and is_live(self.marker, now_s)) or any(
            is_live(each, now_s) for each in self.cells.values()
        )


class _RowState:
    __slots__ = ("cells", "complex_deletions", "counters", "deletion", "marker")

    def __init__(self) -> None:
        self.marker: Marker | None = None
        self.deletion: Deletion | None = None
        self.complex_deletions: dict[str, Deletion] = {}
        self.cells: dict[CellName, Cell] = {}
        self.counters: dict[CellName, Sequence[Cell]] = {}


class Partition:
    """The changes of one partition, folded. It needs memory for the partition's rows, not for its history."""

    def __init__(self, covers: Covers, *, is_counter: bool = False) -> None:
        self._covers: Final = covers
        self._is_counter: Final = is_counter
        self._deletion: Deletion | None = None
        self._ranges: Final[dict[Range, Deletion]] = {}
        self._rows: Final[dict[Clustering, _RowState]] = {}

    def add(self, change: Change, until_us: int | None = None) -> None:
        """Add a change, or its part that was written at or before `until_us`."""
        deletion = change.deletion
        if deletion is not None and until_us is not None and deletion.writetime > until_us:
            deletion = None
        if change.scope == "partition_deletion":
            self._deletion = _newer(newer_deletion, self._deletion, deletion)
        elif change.scope == "range_deletion":
            assert change.range is not None
            if deletion is not None:
                found = _newer(newer_deletion, self._ranges.get(change.range), deletion)
                assert found is not None
                self._ranges[change.range] = found
        else:
            self._add_row(change, deletion, until_us)

    def _add_row(self, change: Change, deletion: Deletion | None, until_us: int | None) -> None:
        row = self._rows.get(change.clustering)
        if row is None:
            row = self._rows[change.clustering] = _RowState()
        row.deletion = _newer(newer_deletion, row.deletion, deletion)
        marker = change.marker
        if marker is not None and (until_us is None or marker.writetime <= until_us):
            row.marker = _newer(newer_marker, row.marker, marker)
        for column, each in change.complex_deletions:
            if until_us is None or each.writetime <= until_us:
                row.complex_deletions[column] = newer_deletion(row.complex_deletions.get(column, each), each)
        for name, cell in change.cells:
            if until_us is not None and cell.writetime > until_us:
                continue
            if self._is_counter:
                row.counters[name] = counter_cells(row.counters.get(name, ()), cell)
            else:
                known = row.cells.get(name)
                row.cells[name] = cell if known is None else newer_cell(known, cell)

    def rows(self) -> Iterator[RemainingRow]:
        """The remaining part of every row, including the static row. Rows without a remaining part are left out."""
        for clustering, row in self._rows.items():
            deletion = self._deletion_of(clustering, row)
            cells = {
                name: cell
                for name, cell in row.cells.items()
                if not deletes(deletion, cell.writetime)
                and not deletes(row.complex_deletions.get(name[0]), cell.writetime)
            }
            for name, counters in row.counters.items():
                if left := [each for each in counters if not deletes(deletion, each.writetime)]:
                    cells[name] = reduce(newer_counter, left)
            marker = None if row.marker is None or deletes(deletion, row.marker.writetime) else row.marker
            if cells or marker is not None:
                yield RemainingRow(clustering, marker, cells)

    def _deletion_of(self, clustering: Clustering, row: _RowState) -> Deletion | None:
        deletion = _newer(newer_deletion, self._deletion, row.deletion)
        if clustering is not STATIC:
            for each, of_range in self._ranges.items():
                if (deletion is None or of_range > deletion) and self._covers(each, clustering):
                    deletion = of_range
        return deletion


_Part = TypeVar("_Part")


def _newer(choose: Callable[[_Part, _Part], _Part], left: _Part | None, right: _Part | None) -> _Part | None:
    if left is None or right is None:
        return left if right is None else right
    return choose(left, right)
