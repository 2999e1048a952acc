"""Types of a parsed Avro schema, whose records may be named where they were defined before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

__all__ = ["NamedRecords", "bare_type", "named_records"]

NamedRecords = Mapping[str, Mapping[str, object]]
"""Definitions by name, without the namespace."""


def named_records(schema: object) -> NamedRecords:
    """All records that a schema defines, at any depth."""
    found: dict[str, Mapping[str, object]] = {}
    _collect(schema, found)
    return found


def bare_type(avro_type: object, named: NamedRecords) -> object:
    """A type without a union with null, and with the definition in place of a name."""
    if isinstance(avro_type, list):
        (avro_type,) = [each for each in avro_type if each != "null"]
    if isinstance(avro_type, str):
        return named.get(avro_type.rpartition(".")[2], avro_type)
    return avro_type


def _collect(avro_type: object, found: dict[str, Mapping[str, object]]) -> None:
    if isinstance(avro_type, list):
        for each in avro_type:
            _collect(each, found)
    elif isinstance(avro_type, dict):
        if avro_type.get("type") == "record":
            found[str(avro_type["name"]).rpartition(".")[2]] = avro_type
        fields = cast("Sequence[Mapping[str, object]]", avro_type.get("fields") or [])
        for part in (avro_type.get("items"), avro_type.get("values"), *[each["type"] for each in fields]):
            _collect(part, found)
