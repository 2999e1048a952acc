"""What a consumer must find for a value of Cassandra, worked out from what the Python driver reads: no code of ours."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
import math
import re
import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from schemas.cql_type import CqlType, ListType, MapType, NativeType, SetType, TupleType, UserType, VectorType

__all__ = ["comparable", "consumer_form", "from_json", "order_of", "sorted_sets"]

_NAN: Final = "NaN"
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - as the driver reads timestamps


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
            return sorted((consumer_form(element, each) for each in value), key=order_of)
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
        case NativeType("double" | "float") if isinstance(value, str):
            assert value in {_NAN, "Infinity", "-Infinity"}
            return value if value == _NAN else float(value)
        case NativeType("float"):
            # As Java writes it: the fewest digits that make the same 32 bits.
            return struct.unpack(">f", struct.pack(">f", value))[0]
        case NativeType("double"):
            return float(value)
        case ListType(element) | VectorType(element, _):
            return [from_json(element, each) for each in value]
        case SetType(element):
            return sorted((from_json(element, each) for each in value), key=order_of)
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
        case NativeType("double" | "float"):
            return comparable(value)
        case ListType(element) | VectorType(element, _):
            return [sorted_sets(element, each) for each in value]
        case SetType(element):
            return sorted((sorted_sets(element, each) for each in value), key=order_of)
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


def order_of(value: Any) -> str:
    """A text to sort by that is the same for equal values: maps have no order."""
    if isinstance(value, Mapping):
        return repr(sorted((name, order_of(each)) for name, each in value.items()))
    return repr([order_of(each) for each in value]) if isinstance(value, list) else repr(value)


def comparable(value: float) -> float | str:
    """NaN, which is not even equal to itself, as text."""
    return _NAN if math.isnan(value) else value


def _milliseconds(value: dt.datetime) -> int:
    """Rounded: the driver counts in floating point, some microseconds off."""
    return round((value - _EPOCH) / dt.timedelta(milliseconds=1))


def _plain(name: str) -> str:
    return name.replace(" ", "_u0020_")


def _scalar(name: str, value: Any) -> Any:
    match name:
        case "timestamp":
            return _milliseconds(value)
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
        case "double" | "float":
            return comparable(value)
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
            seconds, fraction = divmod(_milliseconds(value), 1000)
            whole = _EPOCH + dt.timedelta(seconds=seconds)
            return f"{whole.isoformat()}.{fraction:03}Z" if fraction else f"{whole.isoformat()}Z"
        case NativeType("inet"):
            return str(_scalar("inet", value))
        case NativeType("date"):
            return (_EPOCH + dt.timedelta(days=value.days_from_epoch)).date().isoformat()
        case NativeType("time"):
            return _time_text(value.nanosecond_time)
        case NativeType("double" | "float" as name):
            return _number_text(name, value)
        case NativeType():
            return str(value)
        case _:
            return _json(cql_type, consumer_form(cql_type, value))


def _time_text(nanoseconds: int) -> str:
    """Hours and minutes, then only what is not zero: seconds, and a fraction in threes of digits."""
    minutes, rest = divmod(nanoseconds, 60 * 10**9)
    text = f"{minutes // 60:02}:{minutes % 60:02}"
    if rest:
        text += f":{rest // 10**9:02}"
    if rest % 10**9:
        fraction = f"{rest % 10**9:09}"
        while fraction.endswith("000"):
            fraction = fraction[:-3]
        text += f".{fraction}"
    return text


def _number_text(name: str, value: float | str) -> str:
    """As Java prints it, from numpy's shortest digits."""
    number = np.float32(value) if name == "float" else np.float64(value)
    if not np.isfinite(number):
        return _NAN if np.isnan(number) else ("Infinity" if number > 0 else "-Infinity")
    if number == 0 or 1e-3 <= abs(float(str(number))) < 1e7:
        return np.format_float_positional(number, trim="0")
    return np.format_float_scientific(number, trim="0", exp_digits=1).replace("e+", "e").replace("e", "E")


def _json(cql_type: CqlType, form: Any) -> str:
    """A value in its consumer's form as JSON without white space."""
    if form is None:
        return "null"
    match cql_type:
        case NativeType("double" | "float" as name):
            text = _number_text(name, form)
            return f'"{text}"' if text[-1].isalpha() else text
        case ListType(element) | SetType(element) | VectorType(element, _):
            return f"[{','.join(_json(element, each) for each in form)}]"
        case MapType(_, of):
            return _json_object({name: _json(of, each) for name, each in form.items()})
        case TupleType(elements):
            return _json_object({name: _json(of, form[name]) for name, of in zip(form, elements, strict=True)})
        case UserType():
            fields = zip(form.items(), cql_type.field_types, strict=True)
            return _json_object({name: _json(of, each) for (name, each), of in fields if each is not None})
        case _:
            return _json_plain(form)


def _json_object(members: Mapping[str, str]) -> str:
    return f"{{{','.join(f'{_json_plain(name)}:{text}' for name, text in members.items())}}}"


def _json_plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return _json_object({name: _json_plain(each) for name, each in value.items()})
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    text = json.dumps(value, ensure_ascii=False)
    return re.sub(r"(?<!\\)((?:\\\\)*)\\u00([01][0-9a-f])", lambda m: f"{m[1]}\\u00{m[2].upper()}", text)
