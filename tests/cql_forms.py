"""What a consumer must find for a value of Cassandra, worked out from what the Python driver reads: no code of ours."""

from __future__ import annotations

import base64
import calendar
import ipaddress
import json
import math
import struct
from collections.abc import Mapping
from typing import Any

from schemas.cql_type import CqlType, ListType, MapType, NativeType, SetType, TupleType, UserType, VectorType

__all__ = ["consumer_form", "from_json", "sorted_sets"]


def consumer_form(cql_type: CqlType, value: Any) -> Any:
    """The Avro value without logical types; sets as sorted lists, for Cassandra's order is not the driver's."""
    if value is None:
        return None
    match cql_type:
        case NativeType(name):
            return _scalar(name, value)
        case ListType(element) | VectorType(element, _):
            return [consumer_form(element, each) for each in value]
        case SetType(element):
            return sorted((consumer_form(element, each) for each in value), key=repr)
        case MapType(key, of):
            return {_key_text(key, each): consumer_form(of, held) for each, held in value.items()}
        case TupleType(elements):
            return {f"index_{at}": consumer_form(each, value[at]) for at, each in enumerate(elements)}
        case UserType():
            fields = zip(cql_type.field_names, cql_type.field_types, value, strict=True)
            return {_plain(name): consumer_form(each, held) for name, each, held in fields}
        case _:
            raise AssertionError(cql_type)


def from_json(cql_type: CqlType, value: Any) -> Any:
    """The Avro value that a JSON value stands for: bytes from base64, user types with their missing fields."""
    if value is None:
        return None
    match cql_type:
        case NativeType("blob" | "varint"):
            return base64.b64decode(value, validate=True)
        case NativeType("decimal"):
            return {"bigint": base64.b64decode(value["bigint"]), "scale": value["scale"]}
        case NativeType("float"):
            # As Java writes it: the fewest digits that make the same 32 bits.
            return struct.unpack(">f", struct.pack(">f", value))[0]
        case NativeType("double"):
            return float(value)
        case ListType(element) | VectorType(element, _):
            return [from_json(element, each) for each in value]
        case SetType(element):
            return sorted((from_json(element, each) for each in value), key=repr)
        case MapType(_, of):
            return {key: from_json(of, held) for key, held in value.items()}
        case TupleType(elements):
            assert list(value) == [f"index_{at}" for at in range(len(elements))]
            return {name: from_json(each, value[name]) for name, each in zip(value, elements, strict=True)}
        case UserType():
            assert None not in value.values()
            names = [_plain(name) for name in cql_type.field_names]
            return {
                name: from_json(each, value.get(name)) for name, each in zip(names, cql_type.field_types, strict=True)
            }
        case _:
            return value


def sorted_sets(cql_type: CqlType, value: Any) -> Any:
    """An Avro value as it was read, its sets sorted for comparison."""
    if value is None:
        return None
    match cql_type:
        case ListType(element) | VectorType(element, _):
            return [sorted_sets(element, each) for each in value]
        case SetType(element):
            return sorted((sorted_sets(element, each) for each in value), key=repr)
        case MapType(_, of):
            return {key: sorted_sets(of, held) for key, held in value.items()}
        case TupleType(elements):
            return {name: sorted_sets(each, value[name]) for name, each in zip(value, elements, strict=True)}
        case UserType():
            return {
                name: sorted_sets(each, value[name]) for name, each in zip(value, cql_type.field_types, strict=True)
            }
        case _:
            return value


def _plain(name: str) -> str:
    return name.replace(" ", "_u0020_")


def _scalar(name: str, value: Any) -> Any:
    match name:
        case "timestamp":
            return calendar.timegm(value.timetuple()) * 1000 + value.microsecond // 1000
        case "date":
            return value.days_from_epoch
        case "time":
            return value.nanosecond_time // 1000
        case "uuid" | "timeuuid":
            return str(value)
        case "inet":
            address = ipaddress.ip_address(value)
            if address.version == 4:
                return str(address)
            return ":".join(f"{int(part, 16):x}" for part in address.exploded.split(":"))
        case "varint":
            return _two_complement(value)
        case "decimal":
            sign, digits, exponent = value.as_tuple()
            unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
            return {"bigint": _two_complement(unscaled), "scale": -exponent}
        case "duration":
            return {"months": value.months, "days": value.days, "nanoseconds": value.nanoseconds}
        case _:
            return value


def _two_complement(number: int) -> bytes:
    size = 1
    while not -(1 << (8 * size - 1)) <= number < 1 << (8 * size - 1):
        size += 1
    return number.to_bytes(size, "big", signed=True)


def _key_text(cql_type: CqlType, value: Any) -> str:
    match cql_type:
        case NativeType("blob"):
            return "0x" + value.hex()
        case NativeType("boolean"):
            return "true" if value else "false"
        case NativeType("timestamp"):
            fraction = f".{value.microsecond // 1000:03}" if value.microsecond else ""
            return f"{value:%Y-%m-%dT%H:%M:%S}{fraction}Z"
        case NativeType("inet"):
            return str(_scalar("inet", value))
        case NativeType():
            return str(value)
        case _:
            return json.dumps(_to_json(consumer_form(cql_type, value)), ensure_ascii=False, separators=(",", ":"))


def _to_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _to_json(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_to_json(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    assert not isinstance(value, float) or math.isfinite(value)
    return value
