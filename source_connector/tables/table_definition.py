"""A table's definition as a JSON value, and the differences between two definitions. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypedDict

from schemas.cql_type import CqlType, ListType, MapType, SetType, TupleType, UserType, VectorType
from schemas.row_record import AvroSchema
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata

__all__ = ["DEFINITION_SCHEMA", "TableDefinition", "changes_between", "definition_of"]


class ColumnDefinition(TypedDict):
    """`kind` as in system_schema.columns; `order` is ASC or DESC for clustering columns, else empty."""

    name: str
    type: str
    kind: str
    order: str


class FieldDefinition(TypedDict):
    """One field of a user type."""

    name: str
    type: str


class TypeDefinition(TypedDict):
    """A user type that occurs in the type of a column, at any depth."""

    name: str
    fields: list[FieldDefinition]


class TableDefinition(TypedDict):
    """Columns in the order of the key, then as in the data topic; types by name."""

    table_id: str
    columns: list[ColumnDefinition]
    types: list[TypeDefinition]


_FIELDS: Final[AvroSchema] = [{"name": "name", "type": "string"}, {"name": "type", "type": "string"}]
DEFINITION_SCHEMA: Final[AvroSchema] = {
    "type": "record",
    "name": "TableDefinition",
    "fields": [
        {"name": "table_id", "type": "string"},
        {
            "name": "columns",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "ColumnDefinition",
                    "fields": [*_FIELDS, {"name": "kind", "type": "string"}, {"name": "order", "type": "string"}],
                },
            },
        },
        {
            "name": "types",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "TypeDefinition",
                    "fields": [
                        {"name": "name", "type": "string"},
                        {
                            "name": "fields",
                            "type": {
                                "type": "array",
                                "items": {"type": "record", "name": "FieldDefinition", "fields": _FIELDS},
                            },
                        },
                    ],
                },
            },
        },
    ],
}


def definition_of(table: TableMetadata) -> TableDefinition:
    """The definition of a table as it is known."""
    columns = table.primary_key + table.value_columns
    types: dict[str, UserType] = {}
    for column in columns:
        types |= {each.name: each for each in _user_types(column.type)}
    return {
        "table_id": str(table.table_id),
        "columns": [_column(column) for column in columns],
        "types": [_type(types[name]) for name in sorted(types)],
    }


def changes_between(old: TableDefinition | None, new: TableDefinition | None) -> list[str]:
    """The changes, each as a short sentence; empty if nothing has changed."""
    if old is None or new is None:
        if old is new:
            return []
        return ["table created, or seen for the first time"] if old is None else ["table dropped"]
    changes = []
    if old["table_id"] != new["table_id"]:
        changes.append(f"table dropped and created again with id {new['table_id']}")
    changes += _key_changes(_key(old), _key(new))
    changes += _value_changes(_values(old), _values(new))
    return changes + list(_type_changes(_types(old), _types(new)))


def _key_changes(old: Sequence[ColumnDefinition], new: Sequence[ColumnDefinition]) -> list[str]:
    if [_nameless(each) for each in old] == [_nameless(each) for each in new]:
        pairs = zip(old, new, strict=True)
        return [
            f"key column {was['name']} renamed to {now['name']}" for was, now in pairs if was["name"] != now["name"]
        ]
    return [f"primary key changed from ({_listed(old)}) to ({_listed(new)})"]


def _value_changes(old: Mapping[str, ColumnDefinition], new: Mapping[str, ColumnDefinition]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        was, now = old.get(name), new.get(name)
        if was is None and now is not None:
            yield f"column {name} {now['type']}{' static' if now['kind'] == 'static' else ''} added"
        elif now is None:
            yield f"column {name} dropped"
        elif was is not None and _nameless(was) != _nameless(now):
            yield f"column {name} changed from {was['type']} ({was['kind']}) to {now['type']} ({now['kind']})"


def _type_changes(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(old.keys() & new.keys()):
        if old[name] != new[name]:
            yield f"type {name} changed from ({old[name]}) to ({new[name]})"


def _key(table: TableDefinition) -> list[ColumnDefinition]:
    return [each for each in table["columns"] if each["kind"] in _KEY_KINDS]


def _values(table: TableDefinition) -> dict[str, ColumnDefinition]:
    return {each["name"]: each for each in table["columns"] if each["kind"] not in _KEY_KINDS}


def _types(table: TableDefinition) -> dict[str, str]:
    return {
        each["name"]: ", ".join(f"{field['name']} {field['type']}" for field in each["fields"])
        for each in table["types"]
    }


def _nameless(column: ColumnDefinition) -> tuple[str, str, str]:
    return column["type"], column["kind"], column["order"]


def _listed(columns: Sequence[ColumnDefinition]) -> str:
    return ", ".join(f"{each['name']} {each['type']} {each['order'] or each['kind']}" for each in columns)


_KEY_KINDS: Final = (ColumnKind.PARTITION_KEY.value, ColumnKind.CLUSTERING.value)


def _column(column: ColumnMetadata) -> ColumnDefinition:
    order = ""
    if column.kind is ColumnKind.CLUSTERING:
        order = "DESC" if column.reversed else "ASC"
    return {"name": column.name, "type": str(column.type), "kind": column.kind.value, "order": order}


def _type(user_type: UserType) -> TypeDefinition:
    fields = zip(user_type.field_names, user_type.field_types, strict=True)
    return {"name": user_type.name, "fields": [{"name": name, "type": str(each)} for name, each in fields]}


def _user_types(cql_type: CqlType) -> Iterator[UserType]:
    match cql_type:
        case ListType(element) | SetType(element) | VectorType(element, _):
            yield from _user_types(element)
        case MapType(key, value):
            yield from _user_types(key)
            yield from _user_types(value)
        case TupleType(elements):
            for each in elements:
                yield from _user_types(each)
        case UserType():
            yield cql_type
            for each in cql_type.field_types:
                yield from _user_types(each)
