"""Avro values as the JSON text that Jackson writes for them: what the JSON formats of the data topic hold.

    bytes, varint -> base64 with padding      decimal -> {"bigint":"<base64>","scale":n}
    NaN, Infinity -> text                     float, double -> as Java prints them
    tuple -> {"index_0":...}, nulls written   user type -> its fields that are not null
    map -> object with text keys              everything else as in Avro

Text is UTF-8 and escaped only where JSON asks for it; there is no white space.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
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
from schemas.java_text import java_double_text, java_float_text

__all__ = ["AvroValue", "JsonText", "json_string", "json_text"]

AvroValue = None | bool | int | float | str | bytes | list["AvroValue"] | dict[str, "AvroValue"]
JsonText = Callable[[AvroValue], str]

_NULL: Final = "null"
_ESCAPES: Final = {
    **{code: f"\\u{code:04X}" for code in range(0x20)},
    **{ord(char): f"\\{letter}" for char, letter in zip('\b\t\n\f\r"\\', 'btnfr"\\', strict=True)},
}


def json_text(cql_type: CqlType) -> JsonText:
    """A function from a value of the type, in its Avro form, to its JSON text."""
    write = _writer(cql_type)
    return lambda value: _NULL if value is None else write(value)


def json_string(text: str) -> str:
    """A text as JSON, quotes included."""
    return f'"{text.translate(_ESCAPES)}"'


def _writer(cql_type: CqlType) -> JsonText:
    match cql_type:
        case NativeType(name):
            return _NATIVE[name]
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
            return _bytes


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


def _number(value: AvroValue) -> str:
    return str(value)


def _boolean(value: AvroValue) -> str:
    return "true" if value else "false"


def _string(value: AvroValue) -> str:
    assert isinstance(value, str)
    return json_string(value)


def _bytes(value: AvroValue) -> str:
    assert isinstance(value, bytes)
    return f'"{base64.b64encode(value).decode()}"'


def _double(value: AvroValue) -> str:
    assert isinstance(value, float)
    return _quoted_unless_number(java_double_text(value))


def _float(value: AvroValue) -> str:
    assert isinstance(value, float)
    return _quoted_unless_number(java_float_text(value))


def _quoted_unless_number(text: str) -> str:
    return f'"{text}"' if text[-1].isalpha() else text


def _decimal(value: AvroValue) -> str:
    assert isinstance(value, dict)
    return f'{{"bigint":{_bytes(value["bigint"])},"scale":{value["scale"]!r}}}'


def _duration(value: AvroValue) -> str:
    assert isinstance(value, dict)
    return f'{{"months":{value["months"]!r},"days":{value["days"]!r},"nanoseconds":{value["nanoseconds"]!r}}}'


_NATIVE: Final[Mapping[str, JsonText]] = {
    **dict.fromkeys(("ascii", "inet", "text", "timeuuid", "uuid"), _string),
    **dict.fromkeys(
        ("bigint", "counter", "date", "int", "smallint", "time", "timestamp", "tinyint"),
        _number,
    ),
    **dict.fromkeys(("blob", "varint"), _bytes),
    "boolean": _boolean,
    "decimal": _decimal,
    "double": _double,
    "duration": _duration,
    "empty": lambda value: _NULL,
    "float": _float,
}
