"""Fields of user types that were renamed (`ALTER TYPE ... RENAME`).

Avro and Spark match fields of records by name, and Cassandra by position: it adds fields at the end of a type, and never
drops or moves one. So an earlier schema, or a stored column, gets the newest names by position. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from spark_bridge.rows.avro_types import AvroType, NamedRecords, bare_type, field_types, named_records
from spark_bridge.rows.sql_columns import quoted

if TYPE_CHECKING:
    from spark_bridge.topics.topic_schemas import AvroRecord

__all__ = [
    "UNFINISHED_NAME",
    "NamesOfFields",
    "NestedStruct",
    "names_of_fields",
    "renamed_structs",
    "with_newest_fields",
    "with_newest_key",
    "with_newest_names",
]

UNFINISHED_NAME: Final = "_cdc_renamed_"
"""Begins the name of a stored field or column while names are exchanged."""
NamesOfFields = Mapping[str, Sequence[AbstractSet[str]]]
"""By the name of a user type: for each place in it, the names that its field has had."""
NestedStruct = tuple[str, Mapping[str, str]]
"""The path of a struct inside a column, as `ALTER TABLE` names it, and the new names of its fields by their old ones."""


def with_newest_fields(record: AvroRecord, newest: AvroRecord) -> AvroRecord:
    """An earlier schema with the newest names of the fields of its user types. The record's own fields stay.

    The bytes of both schemas are the same. A type whose earlier fields have other types now is another one, and stays.
    """
    named, root = named_records(newest), _bare_name(record["name"])
    renamed = {
        name: names
        for name, each in named_records(record).items()
        if name != root and name in named and (names := _new_names(each, named[name]))
    }
    if not renamed:
        return record
    return {**record, "fields": [{**each, "type": _renamed(each["type"], renamed)} for each in record["fields"]]}


def with_newest_key(key: AvroRecord, newest: AvroRecord) -> AvroRecord:
    """An earlier schema of keys with the newest names of its columns and of the fields of its user types.

    Cassandra renames key columns, too, and does not move them. A key with other types is that of another table, and its
    columns stay.
    """
    fields, names = key["fields"], [name for name, _ in field_types(newest)]
    if [_shape(each) for _, each in field_types(key)] != [_shape(each) for _, each in field_types(newest)]:
        return key
    return with_newest_fields(
        {**key, "fields": [{**each, "name": name} for each, name in zip(fields, names, strict=True)]}, newest
    )


def names_of_fields(records: Iterable[AvroRecord]) -> NamesOfFields:
    """All names that the fields of user types have had, by the schemas of all versions."""
    found: dict[str, list[set[str]]] = {}
    for record in records:
        for name, each in named_records(record).items():
            if name == _bare_name(record["name"]):
                continue  # the table
            places = found.setdefault(name, [])
            for at, (field, _) in enumerate(field_types(each)):
                if at == len(places):
                    places.append(set())
                places[at].add(field)
    return found


def with_newest_names(found: DataType, avro_type: AvroType, named: NamedRecords, known: NamesOfFields) -> DataType:
    """The type of a stored column with the newest names of the fields in its structs.

    `avro_type`: the column's type in the newest schema, with its records (`named`). A struct stays if one of its fields
    has never had its name at its place.
    """
    match found, bare_type(avro_type, named):
        case StructType(), {"type": "record"} as record:
            types, places = field_types(record), known.get(_bare_name(record["name"]), ())
            is_known = len(found) <= min(len(types), len(places)) and all(
                each.name in names or each.name.startswith(UNFINISHED_NAME)
                for each, names in zip(found, places, strict=False)
            )
            by_name = dict(types)
            now = types if is_known else [(each.name, by_name.get(each.name)) for each in found]
            return StructType([_newest_field(each, *new, named, known) for each, new in zip(found, now, strict=False)])
        case ArrayType(elementType=inner), {"items": items}:
            return ArrayType(with_newest_names(inner, items, named, known), found.containsNull)
        case MapType(keyType=key, valueType=inner), {"values": values}:
            return MapType(key, with_newest_names(inner, values, named, known), found.valueContainsNull)
        case _:
            return found


def _newest_field(
    found: StructField, name: str, avro_type: AvroType, named: NamedRecords, known: NamesOfFields
) -> StructField:
    kind = found.dataType if avro_type is None else with_newest_names(found.dataType, avro_type, named, known)
    return StructField(name, kind)


def renamed_structs(found: DataType, wanted: DataType, path: str) -> Iterator[NestedStruct]:
    """The structs in `found` whose fields have other names in `wanted`, a result of `with_newest_names`.

    Outer structs come first, and the paths of inner ones have the new names.
    """
    match found, wanted:
        case StructType(), StructType():
            names = {each.name: new.name for each, new in zip(found, wanted, strict=True)}
            if any(old != new for old, new in names.items()):
                yield path, names
            for each, new in zip(found, wanted, strict=True):
                yield from renamed_structs(each.dataType, new.dataType, f"{path}.{quoted(new.name)}")
        case ArrayType(), ArrayType():
            yield from renamed_structs(found.elementType, wanted.elementType, f"{path}.element")
        case MapType(), MapType():
            yield from renamed_structs(found.valueType, wanted.valueType, f"{path}.value")


def _new_names(record: AvroRecord, newest: AvroRecord) -> Mapping[str, str]:
    """The newest names of a type's fields by their earlier ones; empty if they are the same, or if it is another type."""
    earlier, later = field_types(record), field_types(newest)
    is_same_type = len(earlier) <= len(later) and all(
        _shape(was) == _shape(now) for (_, was), (_, now) in zip(earlier, later, strict=False)
    )
    names = {was: now for (was, _), (now, _) in zip(earlier, later, strict=False)}
    return names if is_same_type and any(was != now for was, now in names.items()) else {}


def _shape(avro_type: AvroType) -> object:
    """A type without the fields of its records, for comparison."""
    match avro_type:
        case list():
            return [_shape(each) for each in avro_type]
        case {"type": "record", "name": name}:
            return _bare_name(name)
        case {"items": inner} | {"values": inner}:
            return avro_type["type"], _shape(inner)
        case {"type": kind}:
            return kind, avro_type.get("logicalType")
        case _:
            return _bare_name(avro_type)


def _renamed(avro_type: AvroType, names: Mapping[str, Mapping[str, str]]) -> AvroType:
    """The type with other names of fields. `names`: for each record, the new names by the earlier ones."""
    match avro_type:
        case list():
            return [_renamed(each, names) for each in avro_type]
        case {"type": "record", "name": name, "fields": fields}:
            mine = names.get(_bare_name(name), {})
            return {
                **avro_type,
                "fields": [
                    {**each, "name": mine.get(each["name"], each["name"]), "type": _renamed(each["type"], names)}
                    for each in fields
                ],
            }
        case {"items": inner}:
            return {**avro_type, "items": _renamed(inner, names)}
        case {"values": inner}:
            return {**avro_type, "values": _renamed(inner, names)}
        case _:
            return avro_type


def _bare_name(name: str) -> str:
    return name.rpartition(".")[2]
