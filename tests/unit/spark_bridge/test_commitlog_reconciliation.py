"""Cassandra's rules of reconciliation: cases from its sources, and properties for all changes in any order."""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Sequence
from uuid import uuid1

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.cql_type import CqlType, ListType, MapType, NativeType, TupleType, VectorType
from spark_bridge.commitlog.cell_versions import PartitionHistory, ends_of
from spark_bridge.commitlog.counters import counter_total, merged_counters
from spark_bridge.commitlog.cql_order import ClusteringOrder, order_of
from spark_bridge.commitlog.reconciliation import (
    STATIC,
    Cell,
    Change,
    Deletion,
    Marker,
    Partition,
    Range,
    counter_cells,
    deletes,
    in_order,
    is_live,
    newer_cell,
    newer_counter,
    newer_deletion,
    newer_marker,
)

_INT = NativeType("int")


def _int(value: int) -> bytes:
    return struct.pack(">i", value)


def _tombstone(writetime: int, local_deletion_time: int = 5) -> Cell:
    return Cell(None, writetime, 0, local_deletion_time)


@pytest.mark.parametrize(
    ("winner", "loser"),
    [
        pytest.param(Cell(b"a", 2), Cell(b"b", 1), id="the higher time"),
        pytest.param(_tombstone(1), Cell(b"b", 1), id="of one time a tombstone"),
        pytest.param(Cell(b"b", 2), _tombstone(1), id="a later value over a tombstone"),
        pytest.param(Cell(b"a", 1, 10, 100), Cell(b"b", 1), id="what expires, like a tombstone"),
        pytest.param(_tombstone(1, 5), Cell(b"b", 1, 10, 100), id="a tombstone over what expires"),
        pytest.param(Cell(b"a", 1, 20, 110), Cell(b"b", 1, 10, 100), id="what expires later"),
        pytest.param(Cell(b"a", 1, 10, 100), Cell(b"b", 1, 20, 100), id="of one end the lower TTL"),
        pytest.param(Cell(b"b", 1, 10, 100), Cell(b"a", 1, 10, 100), id="then the larger value"),
        pytest.param(Cell(b"b", 1), Cell(b"a", 1), id="of one time the larger value"),
        pytest.param(Cell(b"\xff", 1), Cell(b"\x01", 1), id="bytes have no sign"),
        pytest.param(Cell(b"ab", 1), Cell(b"a", 1), id="the longer of two that begin alike"),
        pytest.param(_tombstone(1, 6), _tombstone(1, 5), id="of tombstones the later"),
    ],
)
def test_of_two_cells_that_one_stays_which_cassandra_keeps(winner: Cell, loser: Cell) -> None:
    """The rule of Cells.reconcile, with the cells in either order."""
    assert newer_cell(winner, loser) == newer_cell(loser, winner) == winner


@pytest.mark.parametrize(
    ("winner", "loser"),
    [
        (Marker(2), Marker(1, 10, 100)),
        (Marker(1, 10, 100), Marker(1)),
        (Marker(1, 20, 110), Marker(1, 10, 100)),
        (Marker(1, 10, 100), Marker(1, 20, 100)),
    ],
)
def test_of_two_markers_that_one_stays_which_cassandra_keeps(winner: Marker, loser: Marker) -> None:
    """The rule of LivenessInfo.supersedes, with the markers in either order."""
    assert newer_marker(winner, loser) == newer_marker(loser, winner) == winner


@pytest.mark.parametrize(
    ("part", "now_s", "lives"),
    [
        (Cell(b"a", 1), 10**10, True),
        (Cell(b"", 1), 5, True),
        (_tombstone(1), 0, False),
        (Cell(b"a", 1, 10, 100), 99, True),
        (Cell(b"a", 1, 10, 100), 100, False),
        (Marker(1), 10**10, True),
        (Marker(1, 10, 100), 99, True),
        (Marker(1, 10, 100), 100, False),
    ],
)
def test_a_part_lives_until_its_second(part: Cell | Marker, now_s: int, lives: bool) -> None:
    """The rules of Cell.isLive and LivenessInfo.isLive."""
    assert is_live(part, now_s) is lives


def test_a_deletion_takes_what_was_written_at_its_time() -> None:
    """The rule of DeletionTime.deletes."""
    assert [deletes(Deletion(5, 1), each) for each in (4, 5, 6)] == [True, True, False]
    assert not deletes(None, 0)


_TIMES = st.integers(1, 4)
_CELLS = st.one_of(
    st.builds(Cell, st.sampled_from([b"", b"a", b"b"]), _TIMES),
    st.builds(lambda time, ttl, end: Cell(b"c", time, ttl, end), _TIMES, st.integers(1, 2), st.integers(10, 12)),
    st.builds(_tombstone, _TIMES, st.integers(10, 12)),
)
_DELETIONS = st.builds(Deletion, _TIMES, st.integers(1, 2))
_CLUSTERINGS = st.integers(0, 3).map(lambda each: (_int(each),))
_NAMES = st.sampled_from([("v", None), ("m", b"1"), ("m", b"2")])
_ROWS = st.builds(
    Change,
    st.just("row"),
    _CLUSTERINGS,
    st.none() | st.builds(Marker, _TIMES),
    st.none() | _DELETIONS,
    st.none(),
    st.lists(st.tuples(st.just("m"), _DELETIONS), max_size=1),
    st.lists(st.tuples(_NAMES, _CELLS), max_size=2),
)
_STATICS = st.builds(lambda cell: Change("static_row", STATIC, cells=[(("s", None), cell)]), _CELLS)
_PARTITIONS = st.builds(lambda each: Change("partition_deletion", deletion=each), _DELETIONS)
_RANGES = st.builds(
    lambda start, end, deletion: Change("range_deletion", deletion=deletion, range=Range(start, True, end, False)),
    _CLUSTERINGS | st.just(()),
    _CLUSTERINGS | st.just(()),
    _DELETIONS,
)
_CHANGES = st.lists(_ROWS | _STATICS | _PARTITIONS | _RANGES, max_size=8)
_ORDER = ClusteringOrder([(_INT, False)])


def _covers(each: Range, clustering: Sequence[bytes | None]) -> bool:
    return _ORDER.is_after(clustering, each.start, inclusive=each.start_inclusive) and _ORDER.is_before(
        clustering, each.end, inclusive=each.end_inclusive
    )


def _folded(changes: Sequence[Change], until_us: int | None = None) -> dict[object, object]:
    partition = Partition(_covers)
    for each in changes:
        partition.add(each, until_us)
    return {row.clustering: (row.marker, row.cells) for row in partition.rows()}


@given(_CHANGES, st.randoms(use_true_random=False), st.integers(0, 4))
def test_neither_order_nor_copies_of_changes_matter(changes: list[Change], random: object, until_us: int) -> None:
    """Copies of replicas come in any order; this also holds for a table at a moment."""
    shuffled = changes * 2
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert _folded(shuffled) == _folded(changes)
    assert _folded(shuffled, until_us) == _folded(changes, until_us)
    assert _folded(changes, 4) == _folded(changes)


@given(_CHANGES, st.integers(0, 4))
def test_a_moment_knows_nothing_of_what_is_later(changes: list[Change], until_us: int) -> None:
    """The result is that of the earlier changes alone."""
    for marker, cells in _folded(changes, until_us).values():  # type: ignore[misc, attr-defined]
        assert marker is None or marker.writetime <= until_us
        assert all(each.writetime <= until_us for each in cells.values())


@given(_CHANGES)
def test_what_remains_is_what_nothing_in_the_history_replaced(changes: list[Change]) -> None:
    """The two views of the same changes agree, cell by cell."""
    history = PartitionHistory(_covers)
    for each in changes:
        history.add(each)
    standing = {
        (each.clustering, (each.column, each.path)): each.cell
        for each in history.versions()
        if each.replaced_at is None
    }
    remaining = {
        (clustering, name): cell
        for clustering, (_, cells) in _folded(changes).items()  # type: ignore[misc]
        for name, cell in cells.items()
    }
    assert standing == remaining


@given(st.lists(_CELLS, min_size=1, max_size=6))
def test_the_cell_that_stays_is_the_last_in_order(cells: list[Cell]) -> None:
    """Both follow one rule, which is associative, so that partial folds may be folded."""
    kept = cells[0]
    for each in cells[1:]:
        kept = newer_cell(kept, each)
    assert kept == in_order(cells)[-1]
    assert all(newer_cell(kept, each) == kept for each in cells)


def test_the_history_of_a_cell_says_what_ended_each_version() -> None:
    """The first thing that ended a version counts: another value, a tombstone, or a deletion."""
    first, second, gone, last = Cell(b"a", 1), Cell(b"b", 3), _tombstone(6), Cell(b"d", 8)
    assert list(ends_of([last, second, first, gone, first], [Deletion(4, 0), Deletion(2, 0)])) == [
        (first, 2, "deletion"),
        (second, 4, "deletion"),
        (gone, 8, "value"),
        (last, None, None),
    ]
    assert list(ends_of([first, gone], [])) == [(first, 6, "tombstone"), (gone, None, None)]


def _context(*shards: tuple[bytes, int, int]) -> bytes:
    header = struct.pack(f">h{len(shards)}h", len(shards), *(-0x8000 + at for at in range(len(shards))))
    return header + b"".join(struct.pack(">16sqq", *each) for each in shards)


_SHARDS = st.dictionaries(
    st.sampled_from([b"a" * 16, b"b" * 16, b"c" * 16]), st.tuples(st.integers(1, 3), st.integers(-2, 2)), min_size=1
).map(lambda found: _context(*((name, *state) for name, state in sorted(found.items()))))


@given(_SHARDS, _SHARDS, _SHARDS)
def test_counters_merge_in_any_order(one: bytes, two: bytes, three: bytes) -> None:
    """The merge is commutative, associative and idempotent."""
    assert merged_counters(one, two) == merged_counters(two, one)
    assert merged_counters(merged_counters(one, two), three) == merged_counters(one, merged_counters(two, three))
    assert merged_counters(one, one) == one


def test_a_counter_is_the_sum_of_the_latest_shares() -> None:
    """A tombstone wins with any write time."""
    one, two = _context((b"a" * 16, 1, 5), (b"b" * 16, 7, 1)), _context((b"a" * 16, 2, 4))
    assert counter_total(merged_counters(one, two)) == 5
    assert newer_counter(Cell(one, 1), Cell(two, 9)) == Cell(merged_counters(one, two), 9)
    assert newer_counter(_tombstone(1), Cell(two, 9)) == newer_counter(Cell(two, 9), _tombstone(1)) == _tombstone(1)
    assert newer_deletion(Deletion(1, 5), Deletion(1, 6)) == Deletion(1, 6)


_COUNTERS = st.lists(
    st.builds(Cell, _SHARDS, st.integers(1, 4)) | st.builds(_tombstone, st.integers(1, 4), st.just(5)),
    max_size=6,
)


@given(_COUNTERS, st.none() | _DELETIONS, st.randoms(use_true_random=False))
def test_a_counter_counts_no_share_that_a_deletion_covers(
    cells: list[Cell], deletion: Deletion | None, random: object
) -> None:
    """Cassandra removes the shares that the deletion covers before it merges; removing cells earlier makes no
    difference."""
    changes = [Change("row", (_int(1),), cells=[(("v", None), each)]) for each in cells]
    if deletion is not None:
        changes.append(Change("row_deletion", (_int(1),), deletion=deletion))
    random.shuffle(changes)  # type: ignore[attr-defined]
    partition = Partition(_covers, is_counter=True)
    for each in changes:
        partition.add(each)
    left = [each for each in cells if not deletes(deletion, each.writetime)]
    expected = functools.reduce(newer_counter, left) if left else None
    assert [row.cells["v", None] for row in partition.rows()] == ([] if expected is None else [expected])


def test_a_share_from_before_a_deletion_does_not_come_back() -> None:
    """One node counted before the deletion, and another one after it."""
    before, since = Cell(_context((b"a" * 16, 1, 5)), 1), Cell(_context((b"b" * 16, 1, 2)), 9)
    partition = Partition(_covers, is_counter=True)
    partition.add(Change("row", (_int(1),), cells=[(("v", None), before)]))
    partition.add(Change("row", (_int(1),), cells=[(("v", None), since)]))
    partition.add(Change("partition_deletion", deletion=Deletion(5, 0)))
    assert [row.cells for row in partition.rows()] == [{("v", None): since}]


def test_a_counter_keeps_one_cell_of_each_node() -> None:
    """So memory does not grow with the number of updates."""
    kept: Sequence[Cell] = ()
    for time in range(1, 100):
        kept = counter_cells(kept, Cell(_context((bytes([time % 3]) * 16, time, time)), time))
    assert sorted(each.writetime for each in kept) == [97, 98, 99]


def _list(*values: bytes) -> bytes:
    return _int(len(values)) + b"".join(_int(len(each)) + each for each in values)


@pytest.mark.parametrize(
    ("cql_type", "ordered"),
    [
        (_INT, [b"", _int(-5), _int(-1), _int(0), _int(7)]),
        (NativeType("varint"), [b"\xff\x00", b"\xff", b"\x00", b"\x01\x00"]),
        (NativeType("text"), [b"", b"A", b"a", "ä".encode()]),
        (NativeType("double"), [struct.pack(">d", each) for each in (float("-inf"), -1.5, -0.0, 0.0, float("nan"))]),
        (NativeType("decimal"), [_int(0) + b"\xfe", _int(3) + b"\x01", _int(1) + b"\x05", _int(-2) + b"\x01"]),
        (NativeType("inet"), [bytes([10, 0, 0, 1]), bytes([10, 0, 0, 9]), bytes([200, 0, 0, 1])]),
        (NativeType("timeuuid"), [uuid1(node=9).bytes, uuid1(node=1).bytes, uuid1(node=5).bytes]),
        (ListType(_INT, True), [_list(), _list(_int(-1)), _list(_int(1)), _list(_int(1), _int(0))]),
        (
            MapType(_INT, _INT, True),
            [_list(), _int(1) + _list(_int(1), _int(2))[4:], _int(1) + _list(_int(1), _int(3))[4:]],
        ),
        (
            TupleType((_INT, _INT)),
            [_int(-1) + _int(4) + _int(1), _int(4) + _int(1) + _int(-1), _int(4) + _int(2) + _int(-1)],
        ),
        (
            VectorType(_INT, 2),
            [b"", *(_int(each) + _int(other) for each, other in [(-2, 9), (-1, 0), (1, -1), (1, 0)])],
        ),
        (
            VectorType(NativeType("float"), 2),
            [
                struct.pack(">ff", *each)
                for each in [(-1.5, 0.0), (-1.0, 2.0), (-1.0, 3.0), (0.5, -1.0), (float("nan"), 0.0)]
            ],
        ),
        (VectorType(VectorType(_INT, 1), 2), [_int(-1) + _int(1), _int(1) + _int(-1), _int(1) + _int(1)]),
        (VectorType(NativeType("text"), 2), [b"\x00\x01b", b"\x02ab\x00", b"\x02ab\x01a", b"\x01b\x00"]),
        (VectorType(NativeType("smallint"), 1), [b"\x02\xff\xff", b"\x02\x00\x00", b"\x02\x00\x01"]),
    ],
    ids=lambda value: "values" if isinstance(value, list) else str(value),
)
def test_values_sort_as_cassandra_sorts_them(cql_type: CqlType, ordered: list[bytes]) -> None:
    """The values are in ascending order, and each one sorts before all later ones."""
    order = order_of(cql_type)
    assert all(order(low) < order(high) for low, high in itertools.combinations(ordered, 2))  # type: ignore[operator]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_range_holds_the_rows_between_its_bounds(is_reversed: bool) -> None:
    """Bounds are in the order of the table: in a descending column the larger value comes first."""
    order = ClusteringOrder([(_INT, is_reversed), (_INT, False)])
    rows = [(_int(first), _int(second)) for first in (1, 2, 3) for second in (1, 2)]
    low, high = (_int(3 if is_reversed else 1),), (_int(1 if is_reversed else 3),)
    between = [
        each
        for each in rows
        if order.is_after(each, low, inclusive=False) and order.is_before(each, high, inclusive=False)
    ]
    assert between == [(_int(2), _int(1)), (_int(2), _int(2))]
    assert [
        each
        for each in rows
        if order.is_after(each, low, inclusive=True) and order.is_before(each, low, inclusive=True)
    ] == [(low[0], _int(1)), (low[0], _int(2))]
    assert all(order.is_after(each, (), inclusive=True) and order.is_before(each, (), inclusive=True) for each in rows)
