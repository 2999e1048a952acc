"""Bounds with empty values, which are null in the Avro keys of a record's properties."""

from __future__ import annotations

import itertools

import pytest

from schemas.mutation_event import MutationKind, RangeBounds
from schemas.record_properties import (
    RANGE_END,
    RANGE_END_INCLUSIVE,
    RANGE_REVERSED,
    RANGE_START,
    RANGE_START_INCLUSIVE,
)
from schemas.row_record import data_key_schema
from schemas.table_metadata import TableMetadata
from source_connector.encoding.projection import Projection
from source_connector.rows.publication import marker_properties
from source_connector.rows.range_bounds import expressible
from spark_bridge.rows.fold import Bounds
from spark_bridge.rows.range_scope import RangeScope
from tests.unit.source_connector.events import event, int32, pending, table

_VALUES = (b"", int32(-1), int32(0), int32(5))
"""In Cassandra's order: the empty value comes before all others."""


def _is_covered(place: tuple[int, ...], bound: tuple[int, ...], is_inclusive: bool, side: int) -> bool:
    head = place[: len(bound)]
    return is_inclusive if head == bound else (head > bound) == (side > 0)


def _bounds(properties: dict[str, str]) -> Bounds:
    return Bounds(
        properties.get(RANGE_START),
        properties.get(RANGE_END),
        properties.get(RANGE_START_INCLUSIVE),
        properties.get(RANGE_END_INCLUSIVE),
        properties.get(RANGE_REVERSED),
        None,
        1,
    )


def _tables() -> list[TableMetadata]:
    return [table(clustering_key=("c", "d"), descending=each) for each in ((), ("c",), ("d",), ("c", "d"))]


@pytest.mark.parametrize("definition", _tables(), ids=("ascending", "c descending", "d descending", "descending"))
def test_the_published_range_covers_the_deleted_rows_and_only_rows_that_are_read(definition: TableMetadata) -> None:
    """Every start and end with an empty value. Rows of the wider range are read, and published behind the record."""
    projection = Projection(definition)
    places = list(itertools.product(range(len(_VALUES)), repeat=2))
    prefixes = [*((at,) for at in range(len(_VALUES))), *places]
    covers = RangeScope([(1, data_key_schema(definition))])
    orders = [_VALUES[::-1] if each.reversed else _VALUES for each in definition.clustering_key]
    for prefix, is_inclusive, side in itertools.product(prefixes, (False, True), (1, -1)):
        bytes_ = tuple(order[at] for order, at in zip(orders, prefix, strict=False))
        start, end = (bytes_, ()) if side > 0 else ((), bytes_)
        scope = RangeBounds(start=start, start_inclusive=is_inclusive, end=end, end_inclusive=is_inclusive)
        (deleted,) = pending(event(kind=MutationKind.RANGE_DELETION, bounds=scope))
        told = _bounds(marker_properties(projection, deleted))
        read = expressible(definition, scope)
        read_prefix = read.start if side > 0 else read.end
        for place in places:
            values = tuple(order[at] for order, at in zip(orders, place, strict=True))
            is_told = covers(told, projection.avro_key([int32(1), *values]), 1)
            if _is_covered(place, prefix, is_inclusive, side):
                assert is_told, (scope, values)
            elif is_told:
                assert read is not scope and values[: len(read_prefix)] == read_prefix, (scope, values)


def test_bounds_without_an_empty_number_stay() -> None:
    """An empty text is a value of its own in Avro."""
    usual = RangeBounds(start=(int32(1),), start_inclusive=False, end=(int32(1), int32(5)), end_inclusive=False)
    assert expressible(table(clustering_key=("c", "d")), usual) is usual
    text = RangeBounds(start=(b"",), start_inclusive=False, end=(), end_inclusive=False)
    assert expressible(table(clustering_key=("c",), clustering_type="text"), text) is text
