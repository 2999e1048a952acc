"""One form for a value of a CQL type, whether the driver or Avro returned it: equal values have equal forms.

Forms are hashable. Floating-point numbers are their bits (there is one NaN, and -0.0 is not 0.0). Times are numbers in
the unit of the data topic.
"""

from __future__ import annotations

import calendar
import ipaddress
import struct
from decimal import Decimal
from typing import Any, Final

from tests.cql.type_text import split_arguments

__all__ = ["Form", "avro_name", "form_of_avro", "form_of_driver", "is_multi_cell"]

Form = object
"""A hashable value; None is null."""

_NAN: Final = "NaN"
# If these types are not frozen, each element or field is a cell. `point` is the workload's user type.
_MULTI_CELL: Final = frozenset({"list", "map", "set", "point"})


def form_of_driver(cql_type: str, value: Any) -> Form:
    """The form of a value that cassandra-driver returned."""
    return None if value is None else _form(cql_type, value, is_avro=False)


def form_of_avro(cql_type: str, value: Any) -> Form:
    """The form of a value that Avro without logical types returned."""
    return None if value is None else _form(cql_type, value, is_avro=True)


def is_multi_cell(cql_type: str) -> bool:
    """Return whether a column of this type may be written in parts."""
    return split_arguments(cql_type)[0] in _MULTI_CELL


def avro_name(name: str) -> str:
    """The Avro name of a column: a character that Avro refuses becomes `_u<hex>_`, and `_` is put before a first
    digit."""
    plain = "".join(
        char if char.isascii() and (char.isalnum() or char == "_") else f"_u{ord(char):04x}_" for char in name
    )
    return f"_{plain}" if plain[:1].isdigit() or not plain else plain


def _form(cql_type: str, value: Any, *, is_avro: bool) -> Form:
    def inner(each_type: str, each: Any) -> Form:
        return None if each is None else _form(each_type, each, is_avro=is_avro)

    name, arguments = split_arguments(cql_type)
    match name:
        case "frozen":
            return _form(arguments[0], value, is_avro=is_avro)
        case "list" | "vector":
            return tuple(inner(arguments[0], each) for each in value)
        case "set":
            return frozenset(inner(arguments[0], each) for each in value)
        case "map":
            texts = value.items() if is_avro else ((_key_text(arguments[0], key), each) for key, each in value.items())
            return frozenset((key, inner(arguments[1], each)) for key, each in texts)
        case "tuple":
            parts = [value[f"index_{index}"] for index in range(len(arguments))] if is_avro else list(value)
            return tuple(inner(each_type, each) for each_type, each in zip(arguments, parts, strict=True))
        case "point":
            fields = value if is_avro else value._asdict()
            return inner("double", fields["x"]), inner("text", fields["label"])
    return _native_avro(name, value) if is_avro else _native_driver(name, value)


def _native_avro(name: str, value: Any) -> Form:
    match name:
        case "float" | "double":
            return _bits(name, value)
        case "inet":
            return str(ipaddress.ip_address(value))
        case "varint":
            return int.from_bytes(value, "big", signed=True)
        case "decimal":
            return int.from_bytes(value["bigint"], "big", signed=True), value["scale"]
        case "duration":
            return value["months"], value["days"], value["nanoseconds"]
    return value


def _native_driver(name: str, value: Any) -> Form:
    match name:
        case "float" | "double":
            return _bits(name, value)
        case "inet":
            return str(ipaddress.ip_address(value))
        case "decimal":
            assert isinstance(value, Decimal)
            sign, digits, exponent = value.as_tuple()
            assert isinstance(exponent, int)
            unscaled = int("".join(map(str, digits)))
            return -unscaled if sign else unscaled, -exponent
        case "duration":
            return value.months, value.days, value.nanoseconds
        case "date":
            return value.days_from_epoch
        case "time":
            return value.nanosecond_time // 1000
        case "timestamp":
            # the driver computes with a float: its result is exact only to some microseconds
            return calendar.timegm(value.utctimetuple()) * 1000 + round(value.microsecond / 1000)
        case "uuid" | "timeuuid":
            return str(value)
    return value


def _bits(name: str, value: float) -> Form:
    return _NAN if value != value else struct.pack(">f" if name == "float" else ">d", value)  # noqa: PLR0124


def _key_text(cql_type: str, key: Any) -> str:
    """The text of a map's key, for the key types of the workload."""
    if cql_type not in {"text", "int", "uuid"}:
        raise ValueError(f"map keys of type {cql_type} are not in the workload")
    return str(key)
