"""Properties of records, as `schemas.record_properties` names them."""

from __future__ import annotations

import base64
from uuid import UUID

import pytest

from schemas.mutation_event import EXPIRY_SEGMENT_ID, SNAPSHOT_SEGMENT_ID, MutationKind, RangeBounds
from source_connector.encoding.projection import Projection
from source_connector.rows.publication import event_time_ms, marker_properties, row_properties, survivor_properties
from tests.unit.source_connector.events import NODE, event, int32, pending, table

COMMON = {"node": str(NODE), "segpos": "7:100", "table_id": str(UUID(int=1))}


def test_a_row_tells_its_change() -> None:
    """The properties have kind, table, position and write time. The time of expiry does not come from the event."""
    projection = Projection(table())
    assert row_properties(projection, pending(event(writetime_us=5))) == {**COMMON, "kind": "row", "writetime": "5"}
    expiring = row_properties(projection, pending(event(writetime_us=5, expiry_time_s=77)))
    assert expiring == {**COMMON, "kind": "row", "writetime": "5"}


@pytest.mark.parametrize("segment_id", [0, 7, SNAPSHOT_SEGMENT_ID, EXPIRY_SEGMENT_ID])
@pytest.mark.parametrize("writetime_us", [None, 5])
@pytest.mark.parametrize("table_id", [UUID(int=1), UUID(int=2)])
@pytest.mark.parametrize("generation", [None, 30])
def test_a_row_has_the_same_properties_on_the_short_path(
    generation: int | None, table_id: UUID, writetime_us: int | None, segment_id: int
) -> None:
    """The usual row takes the short path. The properties of all rows come in one order."""
    events = pending(event(writetime_us=writetime_us), table_id=table_id, segment_id=segment_id)
    is_of_this_life = generation is not None and table_id == UUID(int=1)
    expected = {
        "kind": "row",
        "table_id": str(table_id),
        "node": str(NODE),
        "segpos": f"{segment_id}:100",
        "table_generation": "30" if is_of_this_life else None,
        "snapshot": "true" if segment_id == SNAPSHOT_SEGMENT_ID else None,
        "expiry": "true" if segment_id == EXPIRY_SEGMENT_ID else None,
        "writetime": None if writetime_us is None else "5",
    }
    found = row_properties(Projection(table(generation=generation)), events)
    assert list(found.items()) == [(name, value) for name, value in expected.items() if value is not None]


def test_a_static_row_names_the_static_columns() -> None:
    """The schema of the value does not show which columns are static."""
    static = event(kind=MutationKind.STATIC_ROW, writetime_us=None)
    assert row_properties(Projection(table()), pending(static)) == {
        **COMMON,
        "kind": "static_row",
        "static_columns": "[]",
    }


def test_a_partition_deletion_tells_its_time() -> None:
    """The time is the deletion's, not that of the read."""
    (deleted,) = pending(event(kind=MutationKind.PARTITION_DELETION, writetime_us=9))
    assert marker_properties(Projection(table()), deleted) == {
        **COMMON,
        "kind": "partition_deletion",
        "writetime": "9",
        "deletion_time": "9",
    }


def test_a_range_deletion_tells_its_bounds_as_keys() -> None:
    """Clustering columns after the bound are null, an open end is missing, and descending columns are named."""
    projection = Projection(table(clustering_key=("c", "d"), descending=("d",)))
    scope = RangeBounds(start=(int32(1),), start_inclusive=True, end=(), end_inclusive=True)
    (deleted,) = pending(event(kind=MutationKind.RANGE_DELETION, writetime_us=9, bounds=scope))
    assert marker_properties(projection, deleted) == {
        **COMMON,
        "kind": "range_deletion",
        "writetime": "9",
        "deletion_time": "9",
        "range_start": base64.b64encode(b"\x02\x02\x02\x00").decode(),  # pk 1, c 1, d null
        "range_start_inclusive": "true",
        "range_end_inclusive": "true",
        "range_reversed": '["d"]',
    }


@pytest.mark.parametrize(("cql_type", "types"), [("inet", '{"the_u0020_day":"inet"}'), ("timeuuid", None)])
def test_a_range_deletion_tells_the_types_whose_order_the_key_does_not_show(cql_type: str, types: str | None) -> None:
    """An inet is a text in Avro."""
    projection = Projection(table(clustering_key=("the day",), clustering_type=cql_type))
    scope = RangeBounds(start=(), start_inclusive=True, end=(), end_inclusive=True)
    (deleted,) = pending(event(kind=MutationKind.RANGE_DELETION, writetime_us=9, bounds=scope))
    assert marker_properties(projection, deleted).get("range_types") == types


def test_columns_are_named_as_the_fields_of_the_record() -> None:
    """The record has no names that Avro refuses, so the properties use the record's names."""
    projection = Projection(table(clustering_key=("c", "the day"), descending=("the day",), static=("a b",)))
    (deleted,) = pending(
        event(
            kind=MutationKind.RANGE_DELETION,
            writetime_us=9,
            bounds=RangeBounds(start=(), start_inclusive=True, end=(), end_inclusive=True),
        )
    )
    assert marker_properties(projection, deleted)["range_reversed"] == '["the_u0020_day"]'
    static = event(kind=MutationKind.STATIC_ROW, writetime_us=None)
    assert row_properties(projection, pending(static))["static_columns"] == '["a_u0020_b"]'


def test_a_row_that_a_deletion_left_is_a_row_with_its_own_write_time() -> None:
    """Its position is that of the deletion."""
    (deleted,) = pending(event(kind=MutationKind.PARTITION_DELETION, writetime_us=9))
    assert survivor_properties(Projection(table()), deleted, 12) == {**COMMON, "kind": "row", "writetime": "12"}
    assert "writetime" not in survivor_properties(Projection(table()), deleted, None)


def test_the_event_time_is_the_write_time_where_that_is_a_time() -> None:
    """Clients may write with any timestamp, also a negative one."""
    assert event_time_ms({"writetime": "1700000000123456"}) == 1_700_000_000_123
    assert event_time_ms({"writetime": "-5"}) is None
    assert event_time_ms({}) is None
