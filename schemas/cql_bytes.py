"""Avro values of key columns -> their CQL bytes: the way back of `schemas.cql_value`, for keys that DataStax's agents wrote.

Those agents write tinyint and smallint without their sign (-5 as 251), which is put right here, and cut `time` to
microseconds, which cannot be put right.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

from schemas.cql_type import CqlType, NativeType
from schemas.errors import CdcError
from schemas.json_value import AvroValue

__all__ = ["UnwritableKeyError", "cql_bytes", "joined_partition_key"]


class UnwritableKeyError(CdcError):
    """A value that is none of its key column's type."""

    def __init__(self, cql_type: CqlType, value: AvroValue) -> None:
        self.cql_type = cql_type
        super().__init__(f"a key column of type {cql_type} cannot be {value!r:.100}")


def cql_bytes(cql_type: CqlType, value: AvroValue) -> bytes:
    """The CQL bytes of a value of a native type. Raises UnwritableKeyError."""
    write = _NATIVE.get(cql_type.name) if isinstance(cql_type, NativeType) else None
    if write is None:
        raise UnwritableKeyError(cql_type, value)
    try:
        return write(value)
    except (struct.error, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise UnwritableKeyError(cql_type, value) from error


def joined_partition_key(components: Sequence[bytes]) -> bytes:
    """A serialized partition key: of several components uint16 length, bytes and a zero byte each."""
    if len(components) == 1:
        return components[0]
    return b"".join(len(each).to_bytes(2, "big") + each + b"\0" for each in components)


def _packed(code: str) -> Callable[[AvroValue], bytes]:
    return struct.Struct(">" + code).pack


def _signed(code: str, bits: int) -> Callable[[AvroValue], bytes]:
    pack, limit = struct.Struct(">" + code).pack, 1 << (bits - 1)

    def write(value: AvroValue) -> bytes:
        number = _int(value)
        return pack(number - 2 * limit if limit <= number < 2 * limit else number)

    return write


def _int(value: AvroValue) -> int:
    if not isinstance(value, int):
        raise TypeError("no integer")
    return value


def _bytes(value: AvroValue) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("no bytes")
    return value


def _text(value: AvroValue) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _decimal(value: AvroValue) -> bytes:
    if not isinstance(value, dict):
        raise TypeError("no record")
    return struct.pack(">i", _int(value["scale"])) + _bytes(value["bigint"])


_NATIVE: Final[Mapping[str, Callable[[AvroValue], bytes]]] = {
    "ascii": lambda value: _text(value).encode(),
    "bigint": _packed("q"),
    "blob": _bytes,
    "boolean": _packed("?"),
    "date": lambda value: struct.pack(">I", _int(value) + (1 << 31)),
    "decimal": _decimal,
    "double": _packed("d"),
    "float": _packed("f"),
    "inet": lambda value: ipaddress.ip_address(_text(value)).packed,
    "int": _packed("i"),
    "smallint": _signed("h", 16),
    "text": lambda value: _text(value).encode(),
    "time": lambda value: struct.pack(">q", _int(value) * 1000),
    "timestamp": _packed("q"),
    "timeuuid": lambda value: UUID(_text(value)).bytes,
    "tinyint": _signed("b", 8),
    "uuid": lambda value: UUID(_text(value)).bytes,
    "varint": _bytes,
}
