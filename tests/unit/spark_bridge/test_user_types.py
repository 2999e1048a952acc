"""Fields of user types that were renamed: earlier records and stored columns have the newest names."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, cast

import fastavro
import pytest
from pyspark.sql.types import ArrayType, DataType, IntegerType, MapType, StringType, StructType

from schemas.cql_type import NativeType, UserType
from schemas.row_record import record_writer
from spark_bridge.rows.avro_types import field_types, named_records
from spark_bridge.rows.user_types import (
    names_of_fields,
    renamed_structs,
    with_newest_fields,
    with_newest_key,
    with_newest_names,
)
from spark_bridge.topics.topic_schemas import AvroRecord
from tests.fixtures.spark import table_schemas

COLUMNS = {"home": "place", "places": "frozen<list<frozen<place>>>", "by_name": "map<text, frozen<place>>"}


def schema(fields: Mapping[str, str]) -> AvroRecord:
    """The schema of values with columns of a user type with these fields."""
    return cast("AvroRecord", table_schemas(partition_key={"pk": "text"}, regular=COLUMNS, user_types=types(fields))[1])


def types(fields: Mapping[str, str]) -> Mapping[str, UserType]:
    return {"place": UserType("shop", "place", tuple(fields), tuple(map(NativeType, fields.values())))}


def key_schema(place: str, **fields: str) -> AvroRecord:
    columns = {"partition_key": {"pk": "text"}, "clustering": {place: "frozen<place>"}}
    return cast("AvroRecord", table_schemas(**columns, user_types=types(fields))[0])


def resolved(data: bytes, writer: AvroRecord, reader: AvroRecord) -> dict[str, Any]:
    parsed = [fastavro.parse_schema(cast("dict[str, Any]", each)) for each in (writer, reader)]
    return cast("dict[str, Any]", fastavro.schemaless_reader(io.BytesIO(data), *parsed))


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"road": "text", "nr": "int"}, {"road": "Elm", "nr": 7}),
        ({"nr": "text", "street": "int"}, {"nr": "Elm", "street": 7}),
        ({"road": "text", "nr": "int", "city": "text"}, {"road": "Elm", "nr": 7, "city": None}),
        ({"street": "text", "nr": "int", "city": "text"}, {"street": "Elm", "nr": 7, "city": None}),
        ({"street": "text"}, {"street": "Elm"}),
        ({"road": "int", "nr": "int"}, {"road": None, "nr": 7}),
    ],
    ids=["one", "exchanged", "one, and another was added", "added", "of a shorter type", "of another type"],
)
def test_an_earlier_record_has_the_newest_names(fields: Mapping[str, str], place: Mapping[str, object]) -> None:
    """A type that was dropped and made again with other fields is another type, whose fields are matched by name."""
    before, newest = schema({"street": "text", "nr": "int"}), schema(fields)
    elm = {"street": "Elm", "nr": 7}
    data = record_writer(cast("Any", before))({"home": elm, "places": [elm], "by_name": {"x": elm}})
    found = resolved(data, with_newest_fields(before, newest), newest)
    assert found == {"home": place, "places": [place], "by_name": {"x": place}}


def test_an_earlier_key_has_the_newest_names_of_columns_and_fields() -> None:
    before, newest = key_schema("at", street="text"), key_schema("spot", road="text", nr="int")
    data = record_writer(cast("Any", before))({"pk": "p", "at": {"street": "Elm"}})
    found = resolved(data, with_newest_key(before, newest), newest)
    assert found == {"pk": "p", "spot": {"road": "Elm", "nr": None}}
    other = cast("AvroRecord", table_schemas(partition_key={"id": "int"}, clustering={"at": "text"})[0])
    assert with_newest_key(before, other) is before


def stored(*names: str) -> StructType:
    kinds = {"nr": IntegerType(), "number": IntegerType()}
    return StructType([each for name in names for each in StructType().add(name, kinds.get(name, StringType()))])


def newest_name(found: DataType, column: str, *versions: AvroRecord) -> DataType:
    newest = versions[-1]
    return with_newest_names(found, dict(field_types(newest))[column], named_records(newest), names_of_fields(versions))


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("street", "nr"), ("road", "number")),
        (("road", "nr"), ("road", "number")),
        (("_cdc_renamed_0", "nr"), ("road", "number")),
        (("road", "number", "city"), ("road", "number", "city")),
        (("street", "road"), ("street", "road")),
        (("street", "nr", "city", "more"), ("street", "nr", "city", "more")),
    ],
    ids=["all", "a run ended", "a run ended in an exchange", "none", "a field at another place", "too many"],
)
def test_a_stored_column_has_the_newest_names(names: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    versions = [schema({"street": "text", "nr": "int"}), schema({"road": "text", "number": "int", "city": "text"})]
    found, new = stored(*names), stored(*wanted)
    pairs = [("home", found, new), ("places", ArrayType(found), ArrayType(new))]
    pairs.append(("by_name", MapType(StringType(), found), MapType(StringType(), new)))
    for (column, kind, newest), path in zip(pairs, ("`c`", "`c`.element", "`c`.value"), strict=True):
        renamed = newest_name(kind, column, *versions)
        assert [*map(str, _names(renamed))] == [*map(str, _names(newest))]
        there = list(renamed_structs(kind, renamed, "`c`"))
        assert there == ([(path, dict(zip(names, wanted, strict=True)))] if names != wanted else [])


def _names(kind: DataType) -> list[str]:
    match kind:
        case ArrayType(elementType=inner) | MapType(valueType=inner):
            return _names(inner)
        case StructType():
            return list(kind.names)
    raise AssertionError(kind)
