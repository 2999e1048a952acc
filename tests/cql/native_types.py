"""The native types of columns, as the tests know them: a list of their own, beside the product's."""

from __future__ import annotations

from typing import Final

__all__ = ["NATIVE_TYPES"]

NATIVE_TYPES: Final = (
    "ascii",
    "bigint",
    "blob",
    "boolean",
    "date",
    "decimal",
    "double",
    "duration",
    "float",
    "inet",
    "int",
    "smallint",
    "text",
    "time",
    "timestamp",
    "timeuuid",
    "tinyint",
    "uuid",
    "varint",
)
"""All but `counter`: it is in no primary key, and in no collection. `varchar` is another name of `text`."""
