"""Which columns of a table have timestamps that may not fit; Spark checks the values."""

from __future__ import annotations

import pytest

from schemas.cql_type import NativeType, UserType, parse_cql_type
from schemas.row_record import data_value_schema
from spark_bridge.rows.avro_types import field_types, named_records
from spark_bridge.rows.unfit_times import MOST_MS, has_times
from tests.cql.tables import table_of

_TYPES = {
    "place": UserType("shop", "place", ("street", "since"), (NativeType("text"), NativeType("timestamp"))),
    "size": UserType("shop", "size", ("width", "day"), (NativeType("int"), NativeType("date"))),
}


def test_a_timestamp_is_found_at_any_depth() -> None:
    """It is also found in a type that the schema only names, as it was defined before. Other time types always fit."""
    columns = {
        "a": "timestamp",
        "b": "list<timestamp>",
        "c": "map<text, frozen<place>>",
        "d": "place",
        "e": "tuple<int, set<timestamp>>",
        "f": "date",
        "g": "time",
        "h": "bigint",
        "i": "list<frozen<size>>",
        "j": "decimal",
    }
    table = table_of({"pk": "int"}, regular={name: parse_cql_type(text, _TYPES) for name, text in columns.items()})
    schema = data_value_schema(table)
    assert isinstance(schema, dict)
    named = named_records(schema)
    assert [name for name, each in field_types(schema) if has_times(each, named)] == ["a", "b", "c", "d", "e"]
    assert has_times(schema, named)


@pytest.mark.parametrize(("most_ms", "fits"), [(MOST_MS, True), (MOST_MS + 1, False)])
def test_the_limit_is_that_of_microseconds_in_64_bits(most_ms: int, fits: bool) -> None:
    assert (most_ms * 1_000 < 2**63) is fits
    assert (-most_ms * 1_000 >= -(2**63)) is fits
