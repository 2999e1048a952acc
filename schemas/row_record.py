"""Avro schemas of the data topic's key and value, and of the key in an event, from a table's metadata.

Schema texts and encoded bytes are the same as DataStax's connector has: record `<keyspace>.<table>`, doc `Table
<keyspace>.<table>`, partition key columns not nullable, all other columns nullable with default null, user types and
tuples as named records, `cql_*` logical types. `schemas.avro_names` replaces names that Avro refuses.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import fastavro

from schemas.avro_names import CQL_NAME, avro_name, avro_names, free_name
from schemas.cql_type import (
    CqlType,
    CustomType,
    ListType,
    MapType,
    NativeType,
    SetType,
    TupleType,
    UserType,
    VectorType,
)
from schemas.native_codec import CODECS, AvroSchema, AvroValue, RecordSchema
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata

__all__ = [
    "AvroSchema",
    "RecordSchema",
    "RecordWriter",
    "data_key_schema",
    "data_row_schema",
    "data_value_schema",
    "events_key_schema",
    "record_writer",
    "schema_text",
]

RecordWriter = Callable[[Mapping[str, AvroValue]], bytes]

_ROOT: Final = "table__"
# Names that a named type in a schema cannot have: a reference to such a name would mean another type.
_RESERVED: Final = (
    "null",
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "bytes",
    "string",
    "record",
    "enum",
    "array",
    "map",
    "union",
    "fixed",
    "error",
    "cql_decimal",
    "cql_duration",
)


def data_key_schema(table: TableMetadata) -> RecordSchema:
    """Key of the data topic: partition key columns not nullable, clustering columns nullable with default null."""
    return _record(table, f"Table {table.full_name}", table.primary_key)


def data_value_schema(table: TableMetadata, columns: Sequence[ColumnMetadata] | None = None) -> RecordSchema:
    """Value of the data topic: the given value columns (by default all).

    A table with only key columns repeats its key.
    """
    if not table.value_columns:
        return data_key_schema(table)
    return _record(table, f"Table {table.full_name}", table.value_columns if columns is None else columns)


def data_row_schema(table: TableMetadata, columns: Sequence[ColumnMetadata] | None = None) -> RecordSchema:
    """Value of the format `json`: the key's columns, then the given value columns (by default all)."""
    values = table.value_columns if columns is None else tuple(columns)
    return _record(table, f"Table {table.full_name}", table.primary_key + tuple(values))


def events_key_schema(table: TableMetadata) -> RecordSchema:
    """Key inside an event: the same bytes as the data topic's key; clustering columns have no default."""
    doc = f"Primary key schema for table {table.full_name}"
    return _record(table, doc, table.primary_key, with_defaults=False)


def schema_text(schema: AvroSchema) -> str:
    """The JSON text as Java's Avro library writes it: without blanks, attributes in order."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def record_writer(schema: RecordSchema) -> RecordWriter:
    """A function that writes a record (column name -> Avro value) as Avro binary, without header.

    For a value that does not fit, it raises fastavro's errors (ValueError, TypeError, KeyError, OverflowError).
    """
    bare = {name: _without_namespaces(each) for name, each in schema.items() if name != "namespace"}
    # The table's name is replaced: nothing refers to it, and fastavro would take a name like `string` for Avro's own
    # type.
    parsed = fastavro.parse_schema({**bare, "name": _ROOT})

    def write(record: Mapping[str, AvroValue]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, record)
        return out.getvalue()

    return write


def tuple_record_name(elements: Iterable[CqlType]) -> str:
    """`Tuple_` and the hex of Java's String.hashCode over the tuple's CQL text."""
    code = 0
    units = _type_text(TupleType(tuple(elements))).encode("utf-16-be")
    for at in range(0, len(units), 2):
        code = (31 * code + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return f"Tuple_{code:x}"


def _record(
    table: TableMetadata, doc: str, columns: Sequence[ColumnMetadata], *, with_defaults: bool = True
) -> RecordSchema:
    record: RecordSchema = {
        "type": "record",
        "name": avro_name(table.name),
        "namespace": avro_name(table.keyspace),
        "doc": doc,
    }
    types = _AvroTypes(avro_name(table.name))
    fields: list[AvroSchema] = []
    for column, name in zip(columns, avro_names([column.name for column in columns]), strict=True):
        is_bare = column.kind is ColumnKind.PARTITION_KEY
        avro_type: AvroSchema = types.of(column.type) if is_bare else ["null", types.of(column.type)]
        field: RecordSchema = {"name": name, "type": avro_type}
        if with_defaults and not is_bare:
            field["default"] = None
        fields.append(_with_cql_name(field, column.name))
    record["fields"] = fields
    return _with_cql_name(record, table.name)


def _with_cql_name(named: RecordSchema, cql_name: str) -> RecordSchema:
    """`named` with its CQL name, if that differs from its Avro name."""
    if named["name"] != cql_name:
        named[CQL_NAME] = cql_name
    return named


class _AvroTypes:
    """Types of one schema. A named record is defined once; later uses refer to its name."""

    def __init__(self, table: str) -> None:
        self._taken = {table, *_RESERVED}
        self._names: dict[tuple[str, str], str] = {}

    def of(self, cql_type: CqlType) -> AvroSchema:
        match cql_type:
            case NativeType(name):
                scalar = CODECS[name].avro
                return self._once(name, scalar) if name in ("decimal", "duration") else scalar
            case ListType(element) | SetType(element) | VectorType(element, _):
                return {"type": "array", "items": self.of(element)}
            case MapType(_, value):
                return {"type": "map", "values": self.of(value)}
            case TupleType(elements):
                names = [f"index_{i}" for i in range(len(elements))]
                return self._fields(tuple_record_name(elements), _type_text(cql_type), names, elements)
            case UserType():
                return self._fields(cql_type.name, _type_text(cql_type), cql_type.field_names, cql_type.field_types)
            case CustomType():
                return "bytes"

    def _once(self, name: str, record: AvroSchema) -> AvroSchema:
        if (name, "") in self._names:
            return f"cql_{name}"
        self._names[name, ""] = f"cql_{name}"
        return record

    def _fields(self, name: str, text: str, names: Sequence[str], types: Sequence[CqlType]) -> AvroSchema:
        known = self._names.get((name, text))
        if known is not None:
            return known
        own = self._names[name, text] = free_name(avro_name(name), self._taken)
        self._taken.add(own)
        fields: list[AvroSchema] = [
            _with_cql_name({"name": field, "type": ["null", self.of(each)], "default": None}, cql_name)
            for field, cql_name, each in zip(avro_names(names), names, types, strict=True)
        ]
        return _with_cql_name({"type": "record", "name": own, "doc": f"CQL type {text}", "fields": fields}, name)


def _type_text(cql_type: CqlType) -> str:
    """The Java driver's `asCql(includeFrozen=false, pretty=true)`: user types with their keyspace."""
    match cql_type:
        case UserType():
            return f"{cql_type.keyspace}.{cql_type.name}"
        case ListType(element):
            return f"list<{_type_text(element)}>"
        case SetType(element):
            return f"set<{_type_text(element)}>"
        case MapType(key, value):
            return f"map<{_type_text(key)}, {_type_text(value)}>"
        case TupleType(elements):
            return f"tuple<{', '.join(map(_type_text, elements))}>"
        case VectorType(element, dimension):
            return f"vector<{_type_text(element)}, {dimension}>"
        case _:
            return str(cql_type)


def _without_namespaces(schema: object) -> object:
    """The schema without namespaces, because fastavro does not find `cql_decimal` outside the record's namespace.

    The encoded bytes do not depend on names.
    """
    if isinstance(schema, dict):
        return {key: _without_namespaces(value) for key, value in schema.items() if key != "namespace"}
    if isinstance(schema, list):
        return [_without_namespaces(each) for each in schema]
    return schema
