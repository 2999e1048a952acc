"""Avro values in readable form: decimals as numbers, bytes as hexadecimal digits."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import fastavro

__all__ = ["read_avro", "value_reader_of"]

_DECIMAL: Final = {"bigint", "scale"}


def value_reader_of(text: str | bytes) -> Any:
    """A schema for :func:`read_avro`; None if the text is not an Avro schema."""
    try:
        return fastavro.parse_schema(_plain(json.loads(text)))
    except (ValueError, KeyError, TypeError):
        return None


def read_avro(schema: Any, data: bytes) -> Mapping[str, object]:
    """Decode one record."""
    found: Any = fastavro.schemaless_reader(io.BytesIO(data), schema, None)
    return {name: _readable(each) for name, each in found.items()}


def _plain(node: Any) -> Any:
    """The schema without namespaces and without this project's logical types: a table may be called `string`."""
    if isinstance(node, dict):
        if node.get("logicalType") in {"date", "time-micros", "timestamp-millis"}:
            return node  # fastavro gives them as dates and times
        return {name: _plain(each) for name, each in node.items() if name not in ("logicalType", "namespace")}
    return [_plain(each) for each in node] if isinstance(node, list) else node


def _readable(value: Any) -> object:
    if isinstance(value, dict):
        if value.keys() == _DECIMAL:
            number = int.from_bytes(value["bigint"], "big", signed=True)
            return str(Decimal(number).scaleb(-value["scale"]))
        return {name: _readable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_readable(each) for each in value]
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
