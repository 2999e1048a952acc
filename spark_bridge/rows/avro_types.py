"""Types of a parsed Avro schema. A record that was defined earlier in the schema may be given by its name only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # without PySpark this module can be imported, too
    from spark_bridge.topics.topic_schemas import AvroRecord

__all__ = ["AvroType", "Converter", "NamedRecords", "bare_type", "field_types", "named_records", "nullable", "same"]

AvroType = Any
"""Parsed JSON: a name, an object, or a list (union)."""
Converter = Callable[[Any], Any]
"""Converts a value in a Python UDF, by the column's type."""
NamedRecords: TypeAlias = "Mapping[str, AvroRecord]"
"""Definitions by name, without the namespace."""


def named_records(schema: AvroType) -> NamedRecords:
    """All records that a schema defines, at any depth."""
    found: dict[str, AvroRecord] = {}
    _collect(schema, found)
    return found


def bare_type(avro_type: AvroType, named: NamedRecords) -> AvroType:
    """The type without its union with null, and with a record's definition instead of its name."""
    if isinstance(avro_type, list):
        (avro_type,) = [each for each in avro_type if each != "null"]
    if isinstance(avro_type, str):
        return named.get(avro_type.rpartition(".")[2], avro_type)
    return avro_type


def field_types(record: AvroRecord) -> list[tuple[str, AvroType]]:
    """Names and types of a record's fields, in order."""
    return [(each["name"], each["type"]) for each in record.get("fields") or ()]


def nullable(convert: Converter) -> Converter:
    """The same converter, but None for None."""
    return lambda value: None if value is None else convert(value)


def same(value: object) -> object:
    """The value as it is."""
    return value


def _collect(avro_type: AvroType, found: dict[str, AvroRecord]) -> None:
    if isinstance(avro_type, list):
        for each in avro_type:
            _collect(each, found)
    elif isinstance(avro_type, dict):
        if avro_type.get("type") == "record":
            found[str(avro_type["name"]).rpartition(".")[2]] = avro_type
        for part in (avro_type.get("items"), avro_type.get("values"), *(each for _, each in field_types(avro_type))):
            _collect(part, found)
