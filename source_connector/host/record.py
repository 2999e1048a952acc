"""A record that the connector passes to Pulsar: one message of the data topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from source_connector.data_format import DataFormat

__all__ = ["DataSchema", "SourceRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSchema:
    """The Avro JSON texts with which a data topic's records are written; `json` has no key schema.

    `topic` is empty for the topic that the source was deployed with.
    """

    schema_id: int
    data_format: DataFormat
    name: str
    key_schema: str
    value_schema: str
    topic: str = ""


@final
class SourceRecord:
    """Key and value by the schema `schema_id`. A value of None means that the row does not exist.

    One is created for every row, so this is compiled: an object with slots then costs a tenth of a named tuple.
    """

    __slots__ = ("event_time_ms", "key", "properties", "schema_id", "value")

    def __init__(
        self,
        schema_id: int,
        key: bytes,
        value: bytes | None,
        properties: dict[str, str],
        event_time_ms: int | None = None,
    ) -> None:
        self.schema_id: Final = schema_id
        self.key: Final = key
        self.value: Final = value
        self.properties: Final = properties
        self.event_time_ms: Final = event_time_ms

    def equals(self, other: SourceRecord) -> bool:
        """True when key, value, schema and properties are equal."""
        return (
            self.key == other.key
            and self.value == other.value
            and self.schema_id == other.schema_id
            and self.properties == other.properties
        )
