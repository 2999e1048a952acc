"""Avro records outside Spark, with each value in the form that `schemas.cql_value` gives it."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Final, cast

import fastavro

from schemas.native_codec import AvroValue
from spark_bridge.rows.avro_types import AvroType

__all__ = ["RecordReader", "record_reader", "record_rewriter"]

RecordReader = Callable[[bytes], dict[str, AvroValue]]

# Name of the record for fastavro, because a table may be called like one of Avro's types.
_ROOT: Final = "cdc_record"


def record_reader(schema: AvroType) -> RecordReader:
    """Return a function that reads one record. It raises fastavro's errors for bytes that are not such a record.

    Times are numbers, and uuids are texts: fastavro's own types cannot hold all values of Cassandra.
    """
    parsed = fastavro.parse_schema({**_plain(schema), "name": _ROOT})
    # fastavro's stub says any Avro value: it cannot know the schema.
    return lambda data: cast("dict[str, AvroValue]", fastavro.schemaless_reader(io.BytesIO(data), parsed, None))


def record_rewriter(schema: AvroType) -> Callable[[dict[str, AvroValue]], bytes]:
    """Return a function that writes a record again, with values as `record_reader` returns them."""
    parsed = fastavro.parse_schema({**_plain(schema), "name": _ROOT})

    def write(record: dict[str, AvroValue]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, record)
        return out.getvalue()

    return write


def _plain(avro_type: AvroType) -> AvroType:
    """The type without logical types, and without namespaces, because fastavro does not find `cql_decimal` in them."""
    if isinstance(avro_type, dict):
        return {name: _plain(each) for name, each in avro_type.items() if name not in ("logicalType", "namespace")}
    if isinstance(avro_type, list):
        return [_plain(each) for each in avro_type]
    return avro_type.rpartition(".")[2] if isinstance(avro_type, str) else avro_type
