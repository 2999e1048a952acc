"""CQL names that Avro refuses get valid names, which differ from those of other columns."""

from __future__ import annotations

import json

import fastavro
import pytest

from schemas.avro_names import avro_name, avro_names
from schemas.cql_type import NativeType, UserType, parse_cql_type
from schemas.row_record import data_key_schema, data_row_schema, data_value_schema, record_writer, schema_text
from schemas.table_metadata import TableMetadata
from tests.cql.tables import Types, table_of


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", "plain"),
        ("Mixed_Case9", "Mixed_Case9"),
        ("_", "_"),
        ("a b", "a_u0020_b"),
        ("1st", "_1st"),
        ("naïve", "na_u00ef_ve"),
        ("😀", "_u1f600_"),
        ("9 lives", "_9_u0020_lives"),
        ("", "_"),
    ],
)
def test_a_name_that_avro_refuses_is_written_in_its_letters(name: str, expected: str) -> None:
    """Valid names stay as they are."""
    assert avro_name(name) == expected


def test_names_that_would_collide_are_numbered() -> None:
    """A valid name is never changed, also if it comes later."""
    assert avro_names(["a b", "a_u0020_b", "1", "_1", "a_u0020_b_2"]) == (
        "a_u0020_b_3",
        "a_u0020_b",
        "_1_2",
        "_1",
        "a_u0020_b_2",
    )


def _table(name: str, columns: Types) -> TableMetadata:
    return table_of({"the key": "int"}, regular=columns, name=f"1ks.{name}")


def test_the_schema_keeps_the_names_of_cql() -> None:
    """If Avro's name differs, the field or record has the CQL name as an attribute."""
    table = _table("2t", {"a b": "int"})
    assert schema_text(data_row_schema(table)) == (
        '{"type":"record","name":"_2t","namespace":"_1ks","doc":"Table 1ks.2t","fields":['
        '{"name":"the_u0020_key","type":"int","cql_name":"the key"},'
        '{"name":"a_u0020_b","type":["null","int"],"default":null,"cql_name":"a b"}],"cql_name":"2t"}'
    )
    assert record_writer(data_key_schema(table))({"the_u0020_key": 1}) == b"\x02"


@pytest.mark.parametrize("name", ["t", "string", "record", "cql_decimal", "my type"])
def test_a_user_type_is_not_taken_for_another_name(name: str) -> None:
    """A type with the name of the table, or of an Avro type, gets another name. Avro readers can parse the schema."""
    user_type = UserType("1ks", name, ("f", "g h"), (parse_cql_type("decimal", {}), NativeType("text")))
    table = _table("t", {"x": user_type, "y": user_type})
    schema = json.loads(schema_text(data_value_schema(table)))
    first, second = (field["type"][1] for field in schema["fields"])
    assert second == first["name"]
    assert first["name"] == {"my type": "my_u0020_type"}.get(name, f"{name}_2")
    assert first["cql_name"] == name
    value = {"f": {"bigint": b"\x01", "scale": 0}, "g_u0020_h": "a"}
    data = record_writer(data_value_schema(table))({"x": value, "y": value})
    assert data.hex() == "0202020100020261" * 2
    assert fastavro.parse_schema({**schema, "namespace": "x", "fields": []})
