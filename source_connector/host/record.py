"""What the connector hands to Pulsar: one message of the data topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from source_connector.rows.row_encoder import DataFormat

__all__ = ["DataSchema", "SourceRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSchema:
    """The Avro JSON texts that a data topic's records are written by; `json` has no key schema.

    `topic` is empty for the topic that the source was deployed with.
    """

    schema_id: int
    data_format: DataFormat
    name: str
    key_schema: str
    value_schema: str
    topic: str = ""


class SourceRecord(NamedTuple):
    """Key and value by the schema `schema_id`; a value of None says that the row does not exist.

    A named tuple, for it is made for every row, and a frozen dataclass costs four times as much to make.
    """

    schema_id: int
    key: bytes
    value: bytes | None
    properties: Mapping[str, str]
    event_time_ms: int | None = None
