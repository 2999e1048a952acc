"""Avro values in readable form: decimals as numbers, bytes as hexadecimal digits."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import fastavro

from schemas.long_numbers import decimal_of

__all__ = ["ValueSchema", "read_avro", "value_reader_of"]

_DECIMAL: Final = {"bigint", "scale"}
_TIMES: Final = frozenset({"date", "time-micros", "timestamp-millis"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSchema:
    """A parsed schema: `with_times` reads dates and times as Python's types, `as_numbers` as numbers."""

    with_times: Any
    as_numbers: Any


def value_reader_of(text: str | bytes) -> ValueSchema | None:
    """A schema for :func:`read_avro`; None if the text is not an Avro schema."""
    try:
        given = json.loads(text)
        return ValueSchema(
            with_times=fastavro.parse_schema(_plain(given, _TIMES)),
            as_numbers=fastavro.parse_schema(_plain(given, frozenset())),
        )
    except (ValueError, KeyError, TypeError):
        return None


def read_avro(schema: ValueSchema, data: bytes) -> Mapping[str, object]:
    """Decode one record. Its dates and times are numbers if one of them is outside of Python's years 1 to 9999."""
    try:
        found: Any = fastavro.schemaless_reader(io.BytesIO(data), schema.with_times, None)
    except OverflowError:
        found = fastavro.schemaless_reader(io.BytesIO(data), schema.as_numbers, None)
    return {name: _readable(each) for name, each in found.items()}


def _plain(node: Any, kept: frozenset[str]) -> Any:
    """The schema without namespaces, because a table may be called `string`, and without logical types but `kept`."""
    if isinstance(node, dict):
        if node.get("logicalType") in kept:
            return node
        return {name: _plain(each, kept) for name, each in node.items() if name not in ("logicalType", "namespace")}
    return [_plain(each, kept) for each in node] if isinstance(node, list) else node


def _readable(value: Any) -> object:
    if isinstance(value, dict):
        if value.keys() == _DECIMAL and isinstance(value["bigint"], bytes) and isinstance(value["scale"], int):
            return str(decimal_of(int.from_bytes(value["bigint"], "big", signed=True), value["scale"]))
        return {name: _readable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_readable(each) for each in value]
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
