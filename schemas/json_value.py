"""Avro values as the JSON text that Jackson writes for them: the values of the data topic's JSON formats.

    bytes, varint -> base64 with padding      decimal -> {"bigint":"<base64>","scale":n}
    NaN, Infinity -> text                     float, double -> as Java prints them
    tuple -> {"index_0":...}, nulls written   user type -> its fields that are not null
    map -> object with text keys              everything else as in Avro

Text is UTF-8, escaped only where JSON requires it. There is no white space.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from schemas.avro_names import avro_names
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
from schemas.native_codec import CODECS, AvroValue, JsonText, bytes_json, json_string

__all__ = ["AvroValue", "JsonText", "json_string", "json_text"]

_NULL: Final = "null"


def json_text(cql_type: CqlType) -> JsonText:
    """A function from the Avro value of a type to its JSON text."""
    write = _writer(cql_type)
    return lambda value: _NULL if value is None else write(value)


def _writer(cql_type: CqlType) -> JsonText:
    match cql_type:
        case NativeType(name):
            return CODECS[name].json
        case ListType(element) | SetType(element) | VectorType(element, _):
            return _array(json_text(element))
        case MapType(_, value):
            return _map(json_text(value))
        case TupleType(elements):
            names = [f"index_{i}" for i in range(len(elements))]
            return _record(dict(zip(names, map(json_text, elements), strict=True)), with_nulls=True)
        case UserType():
            names = list(avro_names(cql_type.field_names))
            return _record(dict(zip(names, map(json_text, cql_type.field_types), strict=True)), with_nulls=False)
        case CustomType():
            return bytes_json


def _array(write: JsonText) -> JsonText:
    def text(value: AvroValue) -> str:
        assert isinstance(value, list)
        return f"[{','.join(map(write, value))}]"

    return text


def _map(write: JsonText) -> JsonText:
    def text(value: AvroValue) -> str:
        assert isinstance(value, dict)
        return f"{{{','.join(f'{json_string(key)}:{write(each)}' for key, each in value.items())}}}"

    return text


def _record(fields: Mapping[str, JsonText], *, with_nulls: bool) -> JsonText:
    named = [(name, f'"{name}":', write) for name, write in fields.items()]

    def text(value: AvroValue) -> str:
        assert isinstance(value, dict)
        parts = [prefix + write(value[name]) for name, prefix, write in named if with_nulls or value[name] is not None]
        return f"{{{','.join(parts)}}}"

    return text
