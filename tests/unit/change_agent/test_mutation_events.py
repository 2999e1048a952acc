"""From real mutations to events: the golden segments, whose statements are in tests/golden/commitlog/writes.cql."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from change_agent.db.mutation import MutationDecoder
from change_agent.db.values import (
    Cell,
    ComplexDeletion,
    DeletionTime,
    LivenessInfo,
    Mutation,
    PartitionUpdate,
    RangeTombstone,
    Row,
)
from change_agent.events.digest import Digests
from change_agent.events.mutation_events import MutationEventBuilder, TableEvent
from schemas.cql_type import NativeType
from schemas.mutation_event import MutationEvent, MutationKind
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata
from tests.cql.tables import table_of
from tests.golden.segments import GOLDEN_SEGMENTS, GoldenSegment


def _events(segment: GoldenSegment, **changes: object) -> list[TableEvent]:
    tables = {table_id: replace(table, **changes) for table_id, table in segment.tables().items()}  # type: ignore[arg-type]
    decoder, builder = MutationDecoder(tables), MutationEventBuilder()
    found = []
    for entry in segment.entries():
        if UUID(bytes=entry.payload[1:17]) in tables:
            found += builder.events_of(decoder.decode(entry.payload, 7), entry.position)
    return found


def _of_table(segment: GoldenSegment, table: str) -> list[MutationEvent]:
    return [each.event for each in _events(segment) if each.keys.table.name == table]


@pytest.fixture(params=GOLDEN_SEGMENTS, ids=lambda segment: segment.line)
def segment(request: pytest.FixtureRequest) -> GoldenSegment:
    """The same statements, as written by 4.0, 4.1 and 5.0."""
    assert isinstance(request.param, GoldenSegment)
    return request.param


_Short = tuple[str, str, tuple[str, ...], int | None, int | None, int | None]


def _short(event: MutationEvent) -> _Short:
    return (
        event.kind.value,
        event.key.hex(),
        event.columns,
        event.writetime_us,
        event.live_cell_writetime_us,
        event.deletion_time_us,
    )


_T = 1_700_000_000_000_000


def test_a_table_without_clustering(segment: GoldenSegment) -> None:
    """Insert, null for a column, insert with TTL, delete and batch.

    The delete removes the partition, which is one row.
    """
    events = _of_table(segment, "simple")
    assert [_short(each) for each in events] == [
        ("ROW", "02", ("d", "v"), _T + 1, _T + 1, None),
        ("ROW", "02", ("v",), _T + 2, None, None),
        ("ROW", "04", ("v",), _T + 3, _T + 3, None),
        ("PARTITION_DELETION", "02", (), _T + 4, None, _T + 4),
        ("ROW", "12", ("v",), _T + 17, _T + 17, None),
    ]
    assert [each.expiry_time_s is not None for each in events] == [False, False, True, False, False]


def test_a_table_with_clustering_and_static_columns(segment: GoldenSegment) -> None:
    """A static row comes before the other row of its statement. Ranges come before the rows of their batch."""
    events = _of_table(segment, "clustered")
    assert [_short(each) for each in events] == [
        ("STATIC_ROW", "020000", ("s",), _T + 5, _T + 5, None),
        ("ROW", "0202020200", ("v", "w"), _T + 5, _T + 5, None),
        ("STATIC_ROW", "040000", ("s",), -6, -6, None),
        ("ROW", "0202020200", ("v",), _T + 7, None, None),
        ("RANGE_DELETION", "020000", (), _T + 8, None, _T + 8),
        ("RANGE_DELETION", "020000", (), _T + 9, None, _T + 9),
        ("PARTITION_DELETION", "020000", (), _T + 10, None, _T + 10),
        ("RANGE_DELETION", "060000", (), 12, None, 12),
        ("RANGE_DELETION", "060000", (), 11, None, 11),
        ("ROW", "06020a0206726f77", ("v",), 13, 13, None),
        ("ROW", "060208020a6f74686572", ("w",), 14, 14, None),
    ]
    assert [each.ordinal for each in events] == [0, 1, 0, 0, 0, 0, 0, 0, 1, 2, 3]
    assert len({each.digest for each in events}) == len(events)


def test_the_bounds_of_ranges_are_in_clustering_order(segment: GoldenSegment) -> None:
    """For a column ordered DESC, `a > 5` has an open start and the end 5."""
    inner, above = [each.bounds for each in _of_table(segment, "clustered")[4:6]]
    assert inner is not None and above is not None
    one = b"\0\0\0\1"
    assert (inner.start, inner.start_inclusive, inner.end, inner.end_inclusive) == (
        (one, b"a"),
        True,
        (one, b"q"),
        False,
    )
    assert (above.start, above.end, above.end_inclusive) == ((), (b"\0\0\0\5",), False)


def test_multi_cell_columns_are_named_once(segment: GoldenSegment) -> None:
    """A collection may have any number of cells and complex deletions."""
    first, second, third = _of_table(segment, "collections")
    assert sorted(first.columns) == ["fu", "l", "m", "s", "t", "u"]
    assert sorted(second.columns) == ["l", "m", "s", "u"]
    assert second.live_cell_writetime_us == _T + 16
    assert (third.columns, third.writetime_us) == (("fu",), _T + 18)


def test_events_of_one_entry_are_numbered_over_its_tables(segment: GoldenSegment) -> None:
    """The batch over two tables is one mutation."""
    batch = [each for each in _events(segment) if each.event.writetime_us in (_T + 17, _T + 18)]
    assert len({each.event.position for each in batch}) == 1
    assert [each.event.ordinal for each in batch] == [0, 1]


@pytest.mark.parametrize("changes", [{"cdc": False}, {"is_view": True}, {"keyspace": "system_auth"}])
def test_tables_that_are_not_published_have_no_events(segment: GoldenSegment, changes: dict[str, object]) -> None:
    """Tables without cdc = true, views, and system tables."""
    assert _events(segment, **changes) == []


def test_an_absent_clustering_value_is_null_in_the_key(segment: GoldenSegment) -> None:
    """Compact tables may have rows without their last clustering columns."""
    full, absent = _of_table(segment, "dense")
    assert full.clustering == (b"\0\0\0\1", b"x")
    assert absent.clustering == (b"\0\0\0\2", None)
    assert absent.key.hex() == "02" + "0204" + "00"


_ID = UUID(int=7)


def _column(name: str) -> ColumnMetadata:
    return ColumnMetadata(name=name, kind=ColumnKind.REGULAR, type=NativeType("text"))


def _row(**changes: object) -> Row:
    parts: dict[str, object] = {
        "clustering": (b"a", b"b"),
        "liveness": LivenessInfo(1, 0, None),
        "deletion": None,
        "deletion_is_shadowable": False,
        "complex_deletions": [],
        "cells": [Cell(_column("v"), None, b"x", 1, 0, None)],
    }
    return Row(**(parts | changes))  # type: ignore[arg-type]


_DIFFERENT_ROWS = {
    "as it is": _row(),
    "clustering split elsewhere": _row(clustering=(b"ab", b"")),
    "clustering value absent": _row(clustering=(b"a", None)),
    "clustering value empty": _row(clustering=(b"a", b"")),
    "no row marker": _row(liveness=None),
    "row marker with ttl": _row(liveness=LivenessInfo(1, 5, 9)),
    "deletion": _row(deletion=DeletionTime(1, 2)),
    "other deletion": _row(deletion=DeletionTime(1, 3)),
    "complex deletion": _row(complex_deletions=[ComplexDeletion(_column("v"), 1, 2)]),
    "no cell": _row(cells=[]),
    "two cells": _row(cells=[Cell(_column("v"), None, b"x", 1, 0, None)] * 2),
    "other value": _row(cells=[Cell(_column("v"), None, b"y", 1, 0, None)]),
    "other column": _row(cells=[Cell(_column("w"), None, b"x", 1, 0, None)]),
    "tombstone": _row(cells=[Cell(_column("v"), None, None, 1, 0, 9)]),
    "empty value": _row(cells=[Cell(_column("v"), None, b"", 1, 0, None)]),
    "path instead of value": _row(cells=[Cell(_column("v"), b"x", b"", 1, 0, None)]),
    "other cell time": _row(cells=[Cell(_column("v"), None, b"x", 2, 0, None)]),
    "other ttl": _row(cells=[Cell(_column("v"), None, b"x", 1, 5, 9)]),
}


def test_rows_that_differ_have_digests_that_differ() -> None:
    """The digest covers everything that a replica stores of a row, with lengths."""
    digests = {name: Digests(_ID).of_row(MutationKind.ROW, b"pk", row) for name, row in _DIFFERENT_ROWS.items()}
    digests["other key"] = Digests(_ID).of_row(MutationKind.ROW, b"pk2", _row())
    digests["other table"] = Digests(UUID(int=8)).of_row(MutationKind.ROW, b"pk", _row())
    digests["static"] = Digests(_ID).of_row(MutationKind.STATIC_ROW, b"pk", _row())
    digests["partition deletion"] = Digests(_ID).of_partition_deletion(b"pk", DeletionTime(1, 2))
    digests["range"] = Digests(_ID).of_range_deletion(b"pk", RangeTombstone((b"a",), True, (), True, 1, 2))
    digests["other bound"] = Digests(_ID).of_range_deletion(b"pk", RangeTombstone((b"a",), False, (), True, 1, 2))
    digests["bounds swapped"] = Digests(_ID).of_range_deletion(b"pk", RangeTombstone((), True, (b"a",), True, 1, 2))
    assert len(set(digests.values())) == len(digests)


def test_the_digest_is_the_same_in_every_process() -> None:
    """The expected value is a literal, because replicas with neighbouring versions of the agent must agree."""
    assert Digests(_ID).of_row(MutationKind.ROW, b"pk", _row()).hex() == "7b1d93e7ccd17ee1b6528891f0eba1cc"


def test_a_changed_table_gets_a_new_key_schema() -> None:
    """A writer is used only for the metadata object that it was made for."""
    segment = GOLDEN_SEGMENTS[0]
    builder = MutationEventBuilder()

    def first_key_schema(tables: dict[UUID, TableMetadata]) -> str:
        decoder = MutationDecoder(tables)
        for entry in segment.entries():
            if UUID(bytes=entry.payload[1:17]) in tables:
                return builder.events_of(decoder.decode(entry.payload, 7), entry.position)[0].keys.schema
        raise AssertionError("no entry")

    tables = dict(segment.tables())
    renamed = {
        table_id: replace(table, partition_key=(replace(table.partition_key[0], name="renamed"),))
        for table_id, table in tables.items()
    }
    assert '"name":"k"' in first_key_schema(tables)
    assert '"name":"renamed"' in first_key_schema(renamed)


_EXPIRING_TABLE = table_of({"k": "int"}, regular={"v": "int"}, table_id=UUID(int=9), cdc=True)


@pytest.mark.parametrize(
    ("liveness", "ttls", "expiry_time_s"),
    [
        (LivenessInfo(5, 60, 100), [90], 100),
        (None, [90, 110], 110),
        (LivenessInfo(5, 0, None), [90], None),
        (None, [90, None], None),
        (LivenessInfo(5, 60, 100), [None], None),
    ],
)
def test_a_row_expires_only_when_all_that_was_written_does(
    liveness: LivenessInfo | None, ttls: list[int | None], expiry_time_s: int | None
) -> None:
    """A row marker or a cell without a TTL keeps the row, even if other cells expire."""
    (column,) = _EXPIRING_TABLE.regular_columns
    cells = [Cell(column, None, b"\0\0\0\1", 5, 60 if expires_at else 0, expires_at) for expires_at in ttls]
    update = PartitionUpdate(_EXPIRING_TABLE, b"\0\0\0\1", None, None, [Row((), liveness, None, False, [], cells)], [])
    (found,) = MutationEventBuilder().events_of(Mutation([update]), 10)
    assert found.event.expiry_time_s == expiry_time_s
