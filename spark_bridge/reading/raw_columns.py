"""The raw contract: one row for each message, with the same columns from every reader of a data topic.

key BINARY             Avro bytes of the primary key
value BINARY           Avro bytes of the row; null: there is no such row
op STRING              'u' the row was inserted or updated (a change does not tell which), 'd' value is null
writetime BIGINT       microseconds, as CQL's WRITETIME(); null if the record has none
event_time TIMESTAMP   Pulsar's event time; null if the producer set none
topic STRING           without the partition's suffix
partition INT          of the topic; -1 for a topic without partitions
message_id STRING      ledger:entry:partition[:batch index]
schema_version BIGINT  version of the topic's schema with which the record was written
publish_time TIMESTAMP when the producer sent the record, by the producer's clock
properties MAP<STRING, STRING>   all properties of the record: kind, table_id, node, segpos, expires_at, ...
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from schemas.record_properties import WRITETIME

__all__ = ["RAW_SCHEMA", "RawRow", "to_arrow"]

RAW_SCHEMA: Final = StructType(
    [
        StructField("key", BinaryType(), False),
        StructField("value", BinaryType()),
        StructField("op", StringType(), False),
        StructField("writetime", LongType()),
        StructField("event_time", TimestampType()),
        StructField("topic", StringType(), False),
        StructField("partition", IntegerType(), False),
        StructField("message_id", StringType(), False),
        StructField("schema_version", LongType(), False),
        StructField("publish_time", TimestampType(), False),
        StructField("properties", MapType(StringType(), StringType(), False), False),
    ]
)

_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_ARROW_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary(), False),
        pa.field("value", pa.binary()),
        pa.field("op", pa.string(), False),
        pa.field("writetime", pa.int64()),
        pa.field("event_time", _TIMESTAMP),
        pa.field("topic", pa.string(), False),
        pa.field("partition", pa.int32(), False),
        pa.field("message_id", pa.string(), False),
        pa.field("schema_version", pa.int64(), False),
        pa.field("publish_time", _TIMESTAMP, False),
        pa.field("properties", pa.map_(pa.string(), pa.field("value", pa.string(), False)), False),
    ]
)


RawRow = tuple[bytes, bytes | None, Mapping[str, str], str, int, int | None, int]
"""One message: key, value, properties, message id, schema version, event time (None: there is none) and publish time in
microseconds. A plain tuple: one is made for each message."""


def to_arrow(topic: str, partition: int, rows: Sequence[RawRow]) -> pa.RecordBatch:
    """Rows of one topic partition, at least one, as a record batch by RAW_SCHEMA."""
    import pyarrow.compute as pc  # slow to import, and most processes that import this module make no rows

    keys, bytes_or_nulls, properties, message_ids, schema_versions, event_times, publish_times = zip(*rows, strict=True)
    values = pa.array(bytes_or_nulls, pa.binary())
    columns = [
        pa.array(keys, pa.binary()),
        values,
        pc.if_else(values.is_null(), "d", "u"),
        pa.array([_integer(each.get(WRITETIME)) for each in properties], pa.int64()),
        pa.array(event_times, _TIMESTAMP),
        pa.repeat(topic, len(rows)),
        pa.repeat(pa.scalar(partition, pa.int32()), len(rows)),
        pa.array(message_ids, pa.string()),
        pa.array(schema_versions, pa.int64()),
        pa.array(publish_times, _TIMESTAMP),
        pa.MapArray.from_arrays(
            pa.array([0, *itertools.accumulate(map(len, properties))], pa.int32()),
            pa.array([name for each in properties for name in each], pa.string()),
            pa.array([value for each in properties for value in each.values()], pa.string()),
            type=_ARROW_SCHEMA.field("properties").type,
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW_SCHEMA)


def _integer(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        return None  # a foreign producer's property; the text stays in `properties`
    return number if -(1 << 63) <= number < 1 << 63 else None
