"""Avro schemas of the data topic's key and value, and of the key in an event, from a table's metadata.

Texts and bytes are those of DataStax's connector: record `<keyspace>.<table>`, doc `Table <keyspace>.<table>`, partition
columns bare, everything else nullable with default null, user types and tuples as named records, `cql_*` logical types.
Names that Avro refuses are those of `schemas.avro_names`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, cast

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
from schemas.native_codec import CODECS, AvroSchema, AvroValue
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata

__all__ = [
    "AvroSchema",
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
# Names that a type inside a schema cannot have: a reference by that name would mean something else.
_RESERVED: Final = (
    "null", "boolean", "int", "long", "float", "double", "bytes", "string",
    "record", "enum", "array", "map", "union", "fixed", "error", "cql_decimal", "cql_duration",
)  # fmt: skip


def data_key_schema(table: TableMetadata) -> AvroSchema:
    """Key of the data topic: partition columns bare, clustering columns nullable with default null."""
    return _record(table, f"Table {table.full_name}", table.primary_key)


def data_value_schema(table: TableMetadata, columns: Sequence[ColumnMetadata] | None = None) -> AvroSchema:
    """Value of the data topic: the given value columns (all by default); a table of keys only repeats its key."""
    if not table.value_columns:
        return data_key_schema(table)
    return _record(table, f"Table {table.full_name}", table.value_columns if columns is None else columns)


def data_row_schema(table: TableMetadata, columns: Sequence[ColumnMetadata] | None = None) -> AvroSchema:
    """Value of the format `json`: the key's columns, then the given value columns (all by default)."""
    values = table.value_columns if columns is None else tuple(columns)
    return _record(table, f"Table {table.full_name}", table.primary_key + tuple(values))


def events_key_schema(table: TableMetadata) -> AvroSchema:
    """Key inside an event: the same bytes as the data topic's key; clustering columns have no default."""
    doc = f"Primary key schema for table {table.full_name}"
    return _record(table, doc, table.primary_key, with_defaults=False)


def schema_text(schema: AvroSchema) -> str:
    """The JSON text as Java's Avro writes it: no blanks, attributes in order."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def record_writer(schema: AvroSchema) -> RecordWriter:
    """A function that writes a record (column name -> Avro value) as Avro binary, without header.

    It raises what fastavro raises for a value that does not fit (ValueError, TypeError, KeyError, OverflowError).
    """
    bare = cast("dict[str, object]", _without_namespaces(schema))
    # Nobody refers to the table's own name, and fastavro would take one like `string` for Avro's.
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
) -> AvroSchema:
    record: dict[str, AvroSchema | int | None] = {
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
        field: dict[str, AvroSchema | int | None] = {"name": name, "type": avro_type}
        if with_defaults and not is_bare:
            field["default"] = None
        fields.append(_with_cql_name(field, column.name))
    record["fields"] = fields
    return _with_cql_name(record, table.name)


def _with_cql_name(named: dict[str, AvroSchema | int | None], cql_name: str) -> AvroSchema:
    """The name in CQL, where Avro's is another."""
    if named["name"] != cql_name:
        named[CQL_NAME] = cql_name
    return named


class _AvroTypes:
    """Types of one schema: a named record is spelled out once and referred to by name afterwards."""

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
    """Bytes do not depend on names, and fastavro does not look up `cql_decimal` outside the record's namespace."""
    if isinstance(schema, dict):
        return {key: _without_namespaces(value) for key, value in schema.items() if key != "namespace"}
    if isinstance(schema, list):
        return [_without_namespaces(each) for each in schema]
    return schema
