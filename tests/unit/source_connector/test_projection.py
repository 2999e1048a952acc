"""What is selected of a table, and that its rows become DataStax's bytes: rows of a real Cassandra, kept in golden files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

from schemas.cql_type import CqlType, parse_cql_type
from schemas.mutation_event import MutationKind
from schemas.system_schema import tables_of
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata
from source_connector.errors import DeploymentError, RowConversionError
from source_connector.projection import Projection

_GOLDEN: Final = Path(__file__).parents[2] / "golden" / "datastax"
_CAPTURED: Final = json.loads((_GOLDEN / "types-rows.json").read_text())
_TABLES: Final = {table.name: table for table in tables_of(_CAPTURED["schema"]).values()}
_COUNTERS: Final = {"cnt"}  # left out of the schema by DataStax, longs here


def _vectors() -> dict[str, list[tuple[str, str]]]:
    """Per table what was captured for the Avro format: (what, text), in order."""
    found: dict[str, list[tuple[str, str]]] = {}
    table = ""
    for line in (_GOLDEN / "types.txt").read_text().splitlines():
        if line.startswith("### "):
            table = line.removeprefix("### ")
            found[table] = []
        elif line.startswith("avro "):
            what, _, text = line.removeprefix("avro ").partition(" ")
            found[table].append((what, text))
    return found


def _values(name: str) -> list[str]:
    projection = Projection(_TABLES[name])
    rows = [[None if each is None else bytes.fromhex(each) for each in row] for row in _CAPTURED["rows"][name]]
    return [projection.avro_value(projection.group_selection, row).hex() for row in rows]


_VECTORS: Final = _vectors()
_THROWS: Final = {name for name, lines in _VECTORS.items() if {"SCHEMAFAIL", "ROWFAIL"} & dict(lines).keys()}


@pytest.mark.parametrize("name", sorted(_VECTORS.keys() - _THROWS - _COUNTERS))
def test_schemas_and_values_are_those_of_datastax(name: str) -> None:
    """Equal texts of both schemas and equal bytes of every row, for every type that it handles."""
    projection = Projection(_TABLES[name])
    captured = dict(_VECTORS[name])
    assert projection.key_schema == captured["keyschema"]
    assert projection.value_schema == captured["valschema"]
    assert _values(name) == [text for what, text in _VECTORS[name] if what == "row"]


@pytest.mark.parametrize("name", sorted(_THROWS | _COUNTERS))
def test_rows_that_datastax_cannot_convert_are_converted(name: str) -> None:
    """27 types on which that connector throws, and counters."""
    assert all(_values(name))


def test_most_types_are_compared() -> None:
    """The golden files hold what they should: 188 tables, 27 of them beyond the other connector."""
    assert (len(_VECTORS), len(_THROWS)) == (188, 27)


def _column(name: str, kind: ColumnKind, cql_type: str = "int", position: int = -1) -> ColumnMetadata:
    parsed: CqlType = parse_cql_type(cql_type, {})
    return ColumnMetadata(name=name, kind=kind, type=parsed, position=position)


def _table(*, static: bool = True, values: bool = True) -> TableMetadata:
    return TableMetadata(
        keyspace="ks",
        name="T",
        table_id=UUID(int=1),
        partition_key=(_column("pk", ColumnKind.PARTITION_KEY, position=0),),
        clustering_key=(_column("c k", ColumnKind.CLUSTERING, position=0),),
        static_columns=(_column("s", ColumnKind.STATIC),) if static else (),
        regular_columns=(
            (_column("list", ColumnKind.REGULAR, "list<int>"), _column("v", ColumnKind.REGULAR)) if values else ()
        ),
    )


ONE, TWO = b"\0\0\0\1", b"\0\0\0\2"


def test_names_are_quoted_and_write_times_asked_for_where_cassandra_knows_them() -> None:
    """WRITETIME is refused on key columns and on collections that are not frozen."""
    projection = Projection(_table())
    assert projection.select(projection.row_selection, projection.row_where) == (
        'SELECT "list", "v", "s", WRITETIME("v") FROM "ks"."T" WHERE "pk" = ? AND "c k" = ?'
    )
    assert projection.select(projection.static_selection, projection.partition_where) == (
        'SELECT "s", WRITETIME("s") FROM "ks"."T" WHERE "pk" = ?'
    )


def test_columns_that_are_not_wanted_are_not_selected_but_still_prove_a_read() -> None:
    """The option `columns` is a regular expression on whole names."""
    projection = Projection(_table(), columns="list")
    assert projection.row_selection.text == 'SELECT "list", WRITETIME("v")'
    assert projection.static_selection.value_columns == ()
    assert [field["name"] for field in json.loads(projection.value_schema)["fields"]] == ["list"]


def test_columns_that_leave_nothing_are_refused() -> None:
    """A record without fields would be zero bytes: on the wire, a deletion."""
    with pytest.raises(DeploymentError, match=r"columns: 'x.\*' matches no value column of ks.T"):
        Projection(_table(), columns="x.*")


def test_a_table_of_keys_only_repeats_its_key_in_the_value() -> None:
    """There is nothing else that could tell a row that exists from one that does not."""
    projection = Projection(_table(static=False, values=False))
    assert projection.row_selection.text == 'SELECT "pk", "c k"'
    assert projection.avro_value(projection.row_selection, (ONE, TWO)) == b"\x02\x02\x04"
    assert projection.avro_value(projection.scope_selection, (ONE, TWO)) == b"\x02\x02\x04"


def test_missing_clustering_values_are_null_in_a_key() -> None:
    """Static rows and deletions of many rows have none, bounds have some."""
    projection = Projection(_table())
    assert projection.avro_key((ONE,)) == b"\x02\x00"
    assert projection.avro_key((ONE, TWO)) == b"\x02\x02\x04"


def test_a_value_that_is_none_of_its_type_names_the_row() -> None:
    """The error is of this row only, and says which and why on one line."""
    projection = Projection(_table())
    with pytest.raises(
        RowConversionError, match=r"^row 00000001 00000002 of ks.T cannot be converted: .*int"
    ) as raised:
        projection.avro_value(projection.group_selection, (ONE, TWO, None, b"\1", None, None))
    assert raised.value.key == "00000001 00000002"


def test_each_kind_of_event_has_its_selection() -> None:
    """Rows by their key, the static row, and rows with their keys for deletions of many."""
    projection = Projection(_table())
    assert projection.selection_for(MutationKind.ROW_DELETION) is projection.row_selection
    assert projection.selection_for(MutationKind.STATIC_ROW) is projection.static_selection
    assert projection.selection_for(MutationKind.RANGE_DELETION) is projection.scope_selection
    assert projection.selection_for(MutationKind.PARTITION_DELETION) is projection.scope_selection
