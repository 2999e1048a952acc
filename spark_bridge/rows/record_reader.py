"""Avro records outside Spark, with each value in the form that `schemas.cql_value` gives it."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Final, cast

import fastavro

from schemas.native_codec import AvroValue
from spark_bridge.rows.avro_types import AvroType

__all__ = ["RecordReader", "record_reader"]

RecordReader = Callable[[bytes], dict[str, AvroValue]]

# fastavro's name for a table called like one of Avro's types
_ROOT: Final = "cdc_record"


def record_reader(schema: AvroType) -> RecordReader:
    """A function that reads one record. Times are numbers and uuids texts: fastavro's own forms cannot hold all that Cassandra has.

    It raises what fastavro raises for bytes that are no such record.
    """
    parsed = fastavro.parse_schema({**_plain(schema), "name": _ROOT})
    return lambda data: cast("dict[str, AvroValue]", fastavro.schemaless_reader(io.BytesIO(data), parsed, None))


def _plain(avro_type: AvroType) -> AvroType:
    """Without logical types; and without namespaces, in which fastavro does not find `cql_decimal`."""
    if isinstance(avro_type, dict):
        return {name: _plain(each) for name, each in avro_type.items() if name not in ("logicalType", "namespace")}
    if isinstance(avro_type, list):
        return [_plain(each) for each in avro_type]
    return avro_type.rpartition(".")[2] if isinstance(avro_type, str) else avro_type
