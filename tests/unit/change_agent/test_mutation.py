"""Mutations, rows and ranges, byte by byte; what real nodes write is in test_golden_segments."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from change_agent.data_input import DataInput
from change_agent.db.marshal import VARIABLE_LENGTH, clear_local_shards, fixed_length
from change_agent.db.mutation import MutationDecoder, decode_mutation
from change_agent.db.rows import read_static_row, read_unfiltereds
from change_agent.db.serialization_header import ColumnLayout, SerializationHeader, TableLayout, read_column_subset
from change_agent.db.values import RangeTombstone, Row
from change_agent.errors import (
    CommitLogReadError,
    MalformedMutationError,
    UnknownColumnError,
    UnknownTableError,
    UnsupportedVersionError,
)
from schemas.cql_type import CustomType, NativeType, SetType, VectorType, parse_cql_type
from schemas.table_metadata import ColumnKind, ColumnMetadata, DroppedColumn
from tests.cql.tables import table_of
from tests.golden.segments import GoldenSegment

INT, TEXT = NativeType("int"), NativeType("text")
GOLDEN = GoldenSegment("5.0")


TABLE = table_of(
    {"p": INT},
    {"a": INT, "b": TEXT},
    static={"st": TEXT},
    regular={"s": SetType(INT), "v": TEXT},
    dropped_columns=(DroppedColumn(name="v", kind=ColumnKind.REGULAR, type=TEXT, dropped_time_us=3),),
)


def _header(*columns: str) -> SerializationHeader:
    layout = TableLayout(TABLE)
    return SerializationHeader(
        min_timestamp=0,
        min_local_deletion_time=0,
        min_ttl=0,
        static_columns=[layout.static_columns.column(b"st")],
        regular_columns=[layout.regular_columns.column(name.encode()) for name in columns],
        clustering_lengths=layout.clustering_lengths,
        unsigned_deletion_times=False,
    )


def _unfiltereds(text: str, *columns: str) -> tuple[list[Row], list[RangeTombstone]]:
    data = DataInput(bytes.fromhex(text))
    read = read_unfiltereds(data, _header(*columns))
    assert data.remaining() == 0
    return read


def _ranges(text: str) -> list[tuple[object, ...]]:
    return [
        (each.start, each.start_inclusive, each.end, each.end_inclusive, each.timestamp, each.local_deletion_time)
        for each in _unfiltereds(text)[1]
    ]


def test_an_unknown_table_is_named() -> None:
    """The agent can then read the schema again."""
    payload = GOLDEN.entries()[-1].payload
    with pytest.raises(UnknownTableError) as caught:
        decode_mutation(payload, 7, {})
    assert caught.value.table_id == UUID(bytes=payload[1:17])
    located = caught.value.with_location("CommitLog-7-1.log", 77)
    assert str(located).startswith(f"CommitLog-7-1.log, position 77: table id {caught.value.table_id} is not in the")


def test_an_unknown_column_is_named() -> None:
    """The column was added after the schema was read."""
    tables = {table_id: replace(table, regular_columns=()) for table_id, table in GOLDEN.tables().items()}
    first = next(entry for entry in GOLDEN.entries() if entry.position == 344)
    with pytest.raises(UnknownColumnError, match=r"table golden.simple has no column 'd' in the known schema"):
        MutationDecoder(tables).decode(first.payload, 7)


def test_types_that_do_not_fit_give_an_error_and_no_row() -> None:
    """`v` was written as text. An int would have another length."""
    wrong = {
        table_id: replace(table, regular_columns=tuple(replace(each, type=INT) for each in table.regular_columns))
        for table_id, table in GOLDEN.tables().items()
    }
    first = next(entry for entry in GOLDEN.entries() if entry.position == 344)
    with pytest.raises(CommitLogReadError):
        MutationDecoder(wrong).decode(first.payload, 7)


def test_only_known_versions_are_decoded() -> None:
    """The version determines how times are read."""
    with pytest.raises(UnsupportedVersionError, match="version 99 is not supported"):
        decode_mutation(b"\1", 99, {})


def test_a_mutation_without_updates_is_refused() -> None:
    """Cassandra never writes such a mutation."""
    with pytest.raises(MalformedMutationError, match="without updates"):
        decode_mutation(b"\0", 7, {})


def test_a_row_has_clustering_marker_and_cells() -> None:
    """Flags: timestamp, all columns; presence bits: none; int 7, text 'x'; timestamp 5; a cell with the row's time."""
    rows, ranges = _unfiltereds("24 00 00000007 0178 05 08 0161 01", "v")
    (row,) = rows
    assert ranges == []
    assert row.clustering == (b"\0\0\0\7", b"x")
    assert row.liveness is not None
    assert (row.liveness.timestamp, row.liveness.ttl, row.liveness.local_expiration_time) == (5, 0, None)
    (cell,) = row.cells
    assert (cell.column.name, cell.path, cell.value, cell.timestamp, cell.ttl) == ("v", None, b"a", 5, 0)


def test_absent_and_empty_clustering_values_differ() -> None:
    """Two bits for each value: 01 is empty, 10 is absent."""
    rows, _ = _unfiltereds("24 09 04 08 0161 01", "v")
    assert rows[0].clustering == (b"", None)


def test_a_cell_expires_or_is_a_tombstone() -> None:
    """Both have a local deletion time. Only the expiring cell has a TTL and a value."""
    # `v` expires at 100 after 60 s; in the other row it was deleted at 100 and has no value.
    rows, _ = _unfiltereds("20 00 00000001 0162 02 09 64 3c 0161  20 00 00000002 0162 05 09 64  01", "v")
    expiring, tombstone = rows[0].cells[0], rows[1].cells[0]
    assert (expiring.value, expiring.ttl, expiring.local_deletion_time) == (b"a", 60, 100)
    assert (tombstone.value, tombstone.ttl, tombstone.local_deletion_time) == (None, 0, 100)


def test_a_live_complex_deletion_is_none() -> None:
    """If one complex column of a row has a deletion, all of them have one. Both numbers of LIVE overflow."""
    live = "ff8000000000000000 f07fffffff"
    rows, _ = _unfiltereds(f"60 00 00000001 0162 {live} 01 04 05 04 00000009 01", "s")
    assert rows[0].complex_deletions == []
    assert [(cell.path, cell.value) for cell in rows[0].cells] == [(b"\0\0\0\x09", b"")]


def test_a_complex_deletion_stands_before_its_cells() -> None:
    """An overwritten set: elements up to 4 are deleted, and one element was written at 5."""
    rows, _ = _unfiltereds("60 00 00000001 0162 04 64 01 04 05 04 00000009 01", "s")
    (deletion,) = rows[0].complex_deletions
    assert (deletion.column.name, deletion.timestamp, deletion.local_deletion_time) == ("s", 4, 100)
    assert rows[0].cells[0].timestamp == 5


def test_cells_of_a_dropped_column_are_left_out_up_to_its_drop() -> None:
    """`v` was dropped at 3 and added again. A row without remaining content is left out."""
    rows, _ = _unfiltereds("20 00 00000001 0162 00 03 0161  20 00 00000002 0162 00 04 0161  01", "v")
    assert [(row.clustering[0], row.cells[0].timestamp) for row in rows] == [(b"\0\0\0\2", 4)]


def test_a_row_deletion_wins_over_what_is_not_newer() -> None:
    """Cassandra's row builder leaves out the row marker. The cell at 5 stays."""
    rows, _ = _unfiltereds("34 00 00000001 0162 04 04 64 00 05 0161 01", "v")
    (row,) = rows
    assert row.liveness is None
    assert row.deletion is not None
    assert (row.deletion.timestamp, row.deletion.local_deletion_time) == (4, 100)
    assert [cell.timestamp for cell in row.cells] == [5]


def test_a_shadowable_deletion_loses_against_a_newer_marker() -> None:
    """Cassandra deleted rows of views in this way before 4.0."""
    rows, _ = _unfiltereds("b4 02 00 00000001 0162 05 04 64 08 0161 01", "v")
    assert rows[0].deletion is None
    assert rows[0].liveness is not None


def test_a_static_row_has_its_own_flags() -> None:
    """An extended flag marks a static row."""
    data = DataInput(bytes.fromhex("a0 01 00 07 0161"))
    row = read_static_row(data, _header())
    assert (row.clustering, row.cells[0].column.name, row.cells[0].value) == ((), "st", b"a")


def test_two_bounds_make_a_range() -> None:
    """The start (1) is inclusive, and the end (1, 'q') is exclusive."""
    assert _ranges("02 01 0001 00 00000001 05 64  02 00 0002 00 00000001 0171 05 64  01") == [
        ((b"\0\0\0\1",), True, (b"\0\0\0\1", b"q"), False, 5, 100)
    ]


def test_a_boundary_ends_one_range_and_starts_another() -> None:
    """Its first deletion belongs to the range that ends there. Bounds without values are open."""
    text = "02 01 0000 05 64  02 05 0001 00 00000003 05 64 06 65  02 06 0000 06 65  01"
    assert _ranges(text) == [
        ((), True, (b"\0\0\0\3",), True, 5, 100),
        ((b"\0\0\0\3",), False, (), True, 6, 101),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("02 01 0000 05 64 01", "a range tombstone has no end"),
        ("02 06 0000 05 64 01", "do not alternate"),
        ("02 01 0000 05 64 02 01 0000 05 64 01", "do not alternate"),
        ("02 01 0000 05 64 02 06 0000 06 64 01", "another deletion than it starts with"),
        ("02 01 0000 05 64 02 06 0000 05 65 01", "another deletion than it starts with"),
        ("02 04 0000 05 64 01", "a bound of kind 4"),
        ("02 09 0000 05 64 01", "a bound of kind 9"),
        ("02 05 0000 05 64 05 64 01", "a boundary without values"),
        ("02 01 0003 00 05 64 01", "3 values for 2 clustering columns"),
        ("a0 01 00 00000001 0162 00 05 0161 01", "a static row is among the rows"),
        ("20 00 00000001 0162 08 0161 01", "refers to the row's marker"),
        ("20 00 00000001 0162 03 09 05 64 0161 01", "a local deletion time of 5 s with a TTL of 100 s"),
        ("20 00 00000001 0162 03 09 64 ffffffffffffffffff 0161 01", "a TTL of -1 s"),
        ("20 00 00000001 0162 01 09 ffffffffffffffffff 0161 01", "a local deletion time of -1 s"),
        (
            "20 00 00000001 0162 03 09 64 f0ffffffff 0161 01",
            "a vint of 4294967295 is not a number of 32 bits",
        ),
        ("20 00 00000001 0162 01 09 f080000000 0161 01", "a vint of 2147483648 is not a number of 32"),
        ("20 00 00000001 0162 01 09 64 0161 01", "a tombstone has a value"),
        ("00 00 00000001 0162 02 01", "a column bitmap has bits beyond its 1 columns"),
    ],
)
def test_what_cassandra_would_not_write_is_refused(text: str, reason: str) -> None:
    """The decoder must not guess."""
    with pytest.raises(MalformedMutationError, match=reason):
        _unfiltereds(text, "v")


def _subset(count: int, text: str) -> list[int]:
    superset = [
        ColumnLayout(ColumnMetadata(name=f"c{index}", kind=ColumnKind.REGULAR, type=TEXT), None)
        for index in range(count)
    ]
    data = DataInput(bytes.fromhex(text))
    chosen = read_column_subset(data, superset)
    assert data.remaining() == 0
    return [superset.index(column) for column in chosen]


@pytest.mark.parametrize(
    ("count", "text", "expected"),
    [
        (3, "00", [0, 1, 2]),
        (3, "05", [1]),
        (3, "07", []),
        (63, "ff00ffffffffffff00", [*range(8), *range(56, 63)]),
        (64, "01 3f", list(range(63))),
        (64, "00", list(range(64))),
        (64, "20 " + " ".join(f"{index:02x}" for index in range(0, 64, 2)), list(range(1, 64, 2))),
        (64, "21 " + " ".join(f"{index:02x}" for index in range(31)), list(range(31))),
        (65, "40 40", [64]),
    ],
)
def test_a_row_names_its_columns_by_bits_or_by_indexes(count: int, text: str, expected: list[int]) -> None:
    """Below 64 columns: bits of the missing ones.

    From 64 on: indexes of the present or the missing ones, whichever are fewer.
    """
    assert _subset(count, text) == expected


@pytest.mark.parametrize("text", ["8041", "01 40", "02 05 05", "02 06 05", "ffffffffffffffffff"])
def test_indexes_outside_of_the_columns_are_refused(text: str) -> None:
    """Indexes are ascending, and not larger than that of the last column."""
    with pytest.raises(MalformedMutationError):
        _subset(64, text)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("boolean", 1),
        ("int", 4),
        ("float", 4),
        ("bigint", 8),
        ("double", 8),
        ("timestamp", 8),
        ("uuid", 16),
        ("timeuuid", 16),
        ("tinyint", VARIABLE_LENGTH),
        ("smallint", VARIABLE_LENGTH),
        ("date", VARIABLE_LENGTH),
        ("time", VARIABLE_LENGTH),
        ("counter", VARIABLE_LENGTH),
        ("frozen<list<int>>", VARIABLE_LENGTH),
        ("tuple<int, int>", VARIABLE_LENGTH),
        ("vector<float, 3>", 12),
        ("vector<vector<uuid, 2>, 2>", 64),
        ("vector<text, 3>", VARIABLE_LENGTH),
        ("vector<smallint, 3>", VARIABLE_LENGTH),
        ("'org.apache.cassandra.db.marshal.LexicalUUIDType'", 16),
        ("'org.apache.cassandra.db.marshal.ReversedType(org.apache.cassandra.db.marshal.Int32Type)'", 4),
        ("'org.apache.cassandra.db.marshal.EmptyType'", 0),
        ("'org.example.Anything'", VARIABLE_LENGTH),
    ],
)
def test_types_of_fixed_length_carry_none(text: str, length: int) -> None:
    """date, time, smallint and tinyint count as variable, although their values always have the same length."""
    cql_type = parse_cql_type(text, {})
    assert isinstance(cql_type, CustomType | NativeType | VectorType) or length == VARIABLE_LENGTH
    assert fixed_length(cql_type) == length


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ("0001 0000 aabb", "0001 0000 aabb"),
        ("fffe 0000 8001 aabb", "0001 8001 aabb"),
        ("ffff 8001 aabb", "ffff 8001 aabb"),
        ("ffff 0000", "0000"),
    ],
)
def test_local_shards_of_a_counter_are_cleared_when_it_asks_for_it(context: str, expected: str) -> None:
    """A negative number of header elements asks for it. Global shards stay."""
    assert clear_local_shards(bytes.fromhex(context)) == bytes.fromhex(expected)


@pytest.mark.parametrize("context", ["", "00", "fffd 0000", "8000"])
def test_a_counter_that_is_shorter_than_its_header_is_refused(context: str) -> None:
    """The header is checked before it is read."""
    with pytest.raises(MalformedMutationError):
        clear_local_shards(bytes.fromhex(context))
