"""Tables from rows of system_schema, as a node or a schema file has them."""

from __future__ import annotations

from uuid import UUID

import pytest

from schemas.cql_type import ListType, NativeType, UserType
from schemas.system_schema import Row, SystemSchemaError, tables_of
from schemas.table_metadata import ColumnKind

TABLE_ID = "a5559b20-e53e-11f1-a9d7-973e92e688cb"


def column(name: str, kind: str, cql_type: str, position: int = -1, order: str = "none") -> Row:
    return {
        "keyspace_name": "shop",
        "table_name": "orders",
        "column_name": name,
        "kind": kind,
        "position": position,
        "clustering_order": order,
        "type": cql_type,
    }


def table(**more: object) -> Row:
    return {"keyspace_name": "shop", "table_name": "orders", "id": TABLE_ID, "flags": ["compound"], "cdc": True, **more}


def user_type(name: str, *fields: tuple[str, str]) -> Row:
    names, types = zip(*fields, strict=True)
    return {"keyspace_name": "shop", "type_name": name, "field_names": list(names), "field_types": list(types)}


COLUMNS = [
    column("zip", "regular", "text"),
    column("b", "clustering", "int", 1),
    column("k2", "partition_key", "int", 1),
    column("a", "clustering", "timestamp", 0, "desc"),
    column("k1", "partition_key", "text", 0),
    column("Zeta", "regular", "outer"),
    column("tier", "static", "text"),
]
TYPES = [user_type("outer", ("i", "frozen<list<frozen<inner>>>")), user_type("inner", ("n", "int"))]


def test_a_table_has_its_columns_by_kind_and_in_order() -> None:
    """Key columns are ordered by position, other columns by name. User types may come in any order."""
    tables = tables_of({"tables": [table()], "columns": COLUMNS, "types": TYPES})
    found = tables[UUID(TABLE_ID)]
    assert [each.name for each in found.partition_key] == ["k1", "k2"]
    assert [(each.name, each.reversed) for each in found.clustering_key] == [("a", True), ("b", False)]
    assert [each.name for each in found.value_columns] == ["Zeta", "zip", "tier"]
    inner = UserType("shop", "inner", ("n",), (NativeType("int"),), frozen=True)
    assert found.regular_columns[0].type == UserType("shop", "outer", ("i",), (ListType(inner, frozen=True),))
    assert found.cdc
    assert found.full_name == "shop.orders"


@pytest.mark.parametrize(
    "dropped_time",
    ["2026-11-21T01:02:03.456Z", "0x0000019aa3eb2400", "0000019aa3eb2400", 1763686950912],
)
def test_a_dropped_time_is_read_in_each_form_it_comes_in(dropped_time: object) -> None:
    """The time is in ISO 8601, the hexadecimal bytes of a timestamp, or milliseconds."""
    dropped = {**column("old", "regular", "list<int>"), "dropped_time": dropped_time}
    tables = tables_of({"tables": [table()], "columns": COLUMNS, "types": TYPES, "dropped_columns": [dropped]})
    (found,) = tables[UUID(TABLE_ID)].dropped_columns
    assert found.kind is ColumnKind.REGULAR
    expected = 1795222923456000 if dropped_time == "2026-11-21T01:02:03.456Z" else 0x19AA3EB2400 * 1000
    if isinstance(dropped_time, int):
        expected = 1763686950912000
    assert found.dropped_time_us == expected


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"tables": {"a": 1}}, "'tables' must be a list"),
        ({"tables": [table(id="x")]}, "'id' must be a uuid"),
        ({"tables": [table()], "columns": [column("a", "regular", "nope")]}, "column 'a' of shop.orders"),
        ({"tables": [table()], "columns": [column("a", "strange", "int")]}, "unknown column kind"),
        ({"types": [user_type("a", ("x", "b")), user_type("b", ("y", "a"))]}, "user type 'a'"),
    ],
)
def test_rows_that_are_no_schema_name_what_is_wrong(schema: dict[str, list[Row]], named: str) -> None:
    """The error of a hand-written schema file names the row."""
    with pytest.raises(SystemSchemaError, match=named):
        tables_of(schema)
