"""Avro schemas and bytes of the data topic, compared with those of DataStax's connector."""

from __future__ import annotations

import pytest

from schemas.cql_type import NativeType, SetType, TupleType
from schemas.row_record import (
    data_key_schema,
    data_value_schema,
    events_key_schema,
    record_writer,
    schema_text,
    tuple_record_name,
)
from schemas.table_metadata import ColumnKind, ColumnMetadata
from tests.cql.tables import table_of

# create table ks2.sem (a text, b int, c text, d text static, e set<int>, primary key(a, b))
SEM = table_of(
    {"a": "text"}, {"b": "int"}, static={"d": "text"}, regular={"c": "text", "e": "set<int>"}, name="ks2.sem"
)


def test_the_schemas_are_those_that_the_registry_holds_for_the_rival() -> None:
    """The schemas were captured from a registry. Consumers compare these texts."""
    assert schema_text(data_key_schema(SEM)) == (
        '{"type":"record","name":"sem","namespace":"ks2","doc":"Table ks2.sem","fields":[{"name":"a","type":"string"},'
        '{"name":"b","type":["null","int"],"default":null}]}'
    )
    assert schema_text(data_value_schema(SEM)) == (
        '{"type":"record","name":"sem","namespace":"ks2","doc":"Table ks2.sem","fields":['
        '{"name":"c","type":["null","string"],"default":null},'
        '{"name":"e","type":["null",{"type":"array","items":"int"}],"default":null},'
        '{"name":"d","type":["null","string"],"default":null}]}'
    )
    assert schema_text(events_key_schema(SEM)) == (
        '{"type":"record","name":"sem","namespace":"ks2","doc":"Primary key schema for table ks2.sem","fields":['
        '{"name":"a","type":"string"},{"name":"b","type":["null","int"]}]}'
    )


def test_the_bytes_are_those_that_the_rival_wrote() -> None:
    """insert into sem(a,b,c,d,e) values('p',1,'c1','d1',{3,1,2}), and a static-only record."""
    write = record_writer(data_value_schema(SEM))
    assert write({"c": "c1", "e": [1, 2, 3], "d": "d1"}).hex() == "0204633102060204060002046431"
    assert write({"c": None, "e": None, "d": "d2"}).hex() == "000002046432"
    assert record_writer(data_key_schema(SEM))({"a": "p", "b": 1}).hex() == "02700202"


def test_a_record_is_spelled_out_once_and_named_afterwards() -> None:
    """The second decimal refers to the first."""
    two = table_of({"a": "text"}, regular={"x": "decimal", "y": "decimal"}, name="tt.two")
    schema = data_value_schema(two)
    assert schema_text(schema).endswith('{"name":"y","type":["null","cql_decimal"],"default":null}]}')
    decimal = {"bigint": b"\x0f", "scale": 1}
    assert record_writer(schema)({"x": decimal, "y": decimal}).hex() == "02020f0202020f02"


def test_a_table_of_keys_only_repeats_its_key_as_value() -> None:
    """A record without fields would have no bytes, which means a deletion."""
    keys_only = table_of({"a": "text"}, {"b": "int"}, name="ks2.keys")
    assert data_value_schema(keys_only) == data_key_schema(keys_only)


@pytest.mark.parametrize(
    ("elements", "name"),
    [
        ((NativeType("int"), NativeType("text")), "Tuple_f4ae4162"),
        ((NativeType("int"), TupleType((NativeType("int"), NativeType("text")))), "Tuple_ccfd4a4d"),
        ((NativeType("decimal"), NativeType("text")), "Tuple_c27039c0"),
    ],
)
def test_a_tuple_is_named_by_the_hash_of_its_text(elements: tuple[NativeType | TupleType, ...], name: str) -> None:
    """The names were captured from the rival's schemas."""
    assert tuple_record_name(elements) == name


def test_frozen_does_not_show_in_a_schema() -> None:
    """A frozen set and a set of cells are the same array."""
    frozen = ColumnMetadata(name="e", kind=ColumnKind.REGULAR, type=SetType(NativeType("int"), frozen=True))
    assert data_value_schema(SEM, [frozen]) == data_value_schema(SEM, [SEM.regular_columns[1]])
