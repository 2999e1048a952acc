"""The raw contract: one row a message, the same columns from every reader of a data topic.

key BINARY             Avro bytes of the primary key
value BINARY           Avro bytes of the row; null: there is no such row
op STRING              'u' the row was inserted or updated (a change does not tell which), 'd' value is null
writetime BIGINT       microseconds, as CQL's WRITETIME(); null where the record has none
event_time TIMESTAMP   Pulsar's event time; null where the producer set none
topic STRING           without the partition's suffix
partition INT          of the topic; -1 for a topic without partitions
message_id STRING      ledger:entry:partition[:batch index]
schema_version BIGINT  of the topic's schema that the record was written with
publish_time TIMESTAMP when the producer sent it, by its clock
properties MAP<STRING, STRING>   everything else the record says: kind, table_id, node, segpos, expires_at, ...
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
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

__all__ = ["RAW_SCHEMA", "RawBatch"]

RAW_SCHEMA: Final = StructType([
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
])  # fmt: skip

_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_ARROW_SCHEMA: Final = pa.schema([
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
])  # fmt: skip


class RawBatch:
    """Rows of one topic partition on their way into an Arrow record batch."""

    __slots__ = (
        "_event_times",
        "_keys",
        "_message_ids",
        "_partition",
        "_property_ends",
        "_property_names",
        "_property_values",
        "_publish_times",
        "_schema_versions",
        "_topic",
        "_values",
        "_writetimes",
        "bytes",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self.bytes = 0
        """Size of keys and values so far."""
        self._keys: list[bytes] = []
        self._values: list[bytes | None] = []
        self._writetimes: list[int | None] = []
        self._event_times: list[int | None] = []
        self._message_ids: list[str] = []
        self._schema_versions: list[int] = []
        self._publish_times: list[int] = []
        self._property_ends: list[int] = [0]
        self._property_names: list[str] = []
        self._property_values: list[str] = []

    def __len__(self) -> int:
        return len(self._keys)

    def add(
        self,
        *,
        key: bytes,
        value: bytes | None,
        properties: dict[str, str],
        message_id: str,
        schema_version: int,
        event_time_ms: int,
        publish_time_ms: int,
    ) -> None:
        """One message. `event_time_ms` 0: none."""
        self.bytes += len(key) + (len(value) if value is not None else 0)
        self._keys.append(key)
        self._values.append(value)
        self._writetimes.append(_integer(properties.get("writetime")))
        self._event_times.append(event_time_ms * 1000 if event_time_ms else None)
        self._message_ids.append(message_id)
        self._schema_versions.append(schema_version)
        self._publish_times.append(publish_time_ms * 1000)
        self._property_names += properties
        self._property_values += properties.values()
        self._property_ends.append(len(self._property_names))

    def to_arrow(self) -> pa.RecordBatch:
        """The record batch of all rows added, by RAW_SCHEMA."""
        count = len(self._keys)
        values = pa.array(self._values, pa.binary())
        properties = pa.MapArray.from_arrays(
            pa.array(self._property_ends, pa.int32()),
            pa.array(self._property_names, pa.string()),
            pa.array(self._property_values, pa.string()),
            type=_ARROW_SCHEMA.field("properties").type,
        )
        columns = [
            pa.array(self._keys, pa.binary()),
            values,
            pc.if_else(values.is_null(), "d", "u"),
            pa.array(self._writetimes, pa.int64()),
            pa.array(self._event_times, _TIMESTAMP),
            pa.repeat(self._topic, count),
            pa.repeat(pa.scalar(self._partition, pa.int32()), count),
            pa.array(self._message_ids, pa.string()),
            pa.array(self._schema_versions, pa.int64()),
            pa.array(self._publish_times, _TIMESTAMP),
            properties,
        ]
        return pa.RecordBatch.from_arrays(columns, schema=_ARROW_SCHEMA)


def _integer(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        return None  # a foreign producer's property; the text stays in `properties`
