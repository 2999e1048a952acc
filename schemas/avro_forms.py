"""The CQL types with similar CQL and Avro forms, whose bytes are copied to Avro without a Python value in between.

The agent writes the keys of events so, and the connector the records of rows. Both have their own code for the copying:
compiled modules call each other as C functions only inside their own library, and a module that was compiled into both
libraries would break in a process that loads both. This module has only numbers, because the compiler builds constant
numbers in, but not bytes.

Types that are not copied (`AS_OTHER`), and bytes of an unexpected form, are converted by `schemas.cql_value` and
fastavro.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from schemas.cql_type import CqlType, ListType, NativeType, SetType

__all__ = [
    "AS_BOOLEAN",
    "AS_BYTES",
    "AS_DATE",
    "AS_FLOATING",
    "AS_LIST",
    "AS_OTHER",
    "AS_SIGNED",
    "AS_TEXT",
    "AS_TIME",
    "AS_UUID",
    "AS_VARINT",
    "DATE_EPOCH",
    "avro_form",
]

AS_OTHER: Final = 0
"""Not copied."""
AS_TEXT: Final = 1
"""Length and bytes, which have to be UTF-8."""
AS_BYTES: Final = 2
"""Length and bytes."""
AS_SIGNED: Final = 3
"""A zigzag vint of the big-endian number."""
AS_DATE: Final = 4
"""A zigzag vint of the days since 1970: the unsigned number less `DATE_EPOCH`."""
AS_UUID: Final = 5
"""Length and text with dashes."""
AS_BOOLEAN: Final = 6
"""One byte, 0 or 1."""
AS_FLOATING: Final = 7
"""The bytes in reverse order; NaN of a clustering column is not copied, because it has one form in keys."""
AS_VARINT: Final = 8
"""Length and bytes, if these are the shortest form of the number."""
AS_TIME: Final = 9
"""A zigzag vint of the nanoseconds as microseconds."""
AS_LIST: Final = 10
"""The count, each element in its own form, and a zero byte."""

DATE_EPOCH: Final = 0x8000_0000

_NATIVE: Final[Mapping[str, tuple[int, int]]] = {
    "ascii": (AS_TEXT, 0),
    "bigint": (AS_SIGNED, 8),
    "blob": (AS_BYTES, 0),
    "boolean": (AS_BOOLEAN, 1),
    "counter": (AS_SIGNED, 8),
    "date": (AS_DATE, 4),
    "double": (AS_FLOATING, 8),
    "float": (AS_FLOATING, 4),
    "int": (AS_SIGNED, 4),
    "smallint": (AS_SIGNED, 2),
    "text": (AS_TEXT, 0),
    "time": (AS_TIME, 8),
    "timestamp": (AS_SIGNED, 8),
    "timeuuid": (AS_UUID, 16),
    "tinyint": (AS_SIGNED, 1),
    "uuid": (AS_UUID, 16),
    "varint": (AS_VARINT, 0),
}


def avro_form(cql_type: CqlType) -> tuple[int, int]:
    """One of the `AS_` numbers, and the length of the type's values in bytes (0: any length)."""
    if isinstance(cql_type, ListType | SetType):
        return AS_LIST, 0
    return _NATIVE.get(cql_type.name, (AS_OTHER, 0)) if isinstance(cql_type, NativeType) else (AS_OTHER, 0)
