"""Reads the data topic of the table `ticks` to its end, and returns the greatest value of each row."""

from __future__ import annotations

import base64
import io
from typing import Final, cast

import fastavro
import pulsar

__all__ = ["TickReader"]

_TIMEOUT_MS: Final = 5_000
_KEY: Final = fastavro.parse_schema({"type": "record", "name": "k", "fields": [{"name": "pk", "type": "int"}]})
_VALUE: Final = fastavro.parse_schema(
    {"type": "record", "name": "v", "fields": [{"name": "tick", "type": ["null", "long"]}]}
)


class TickReader:
    """Follows the topic; after an error, the next call goes on at the same place."""

    def __init__(self, service_url: str, topic: str) -> None:
        self._client: Final = pulsar.Client(
            service_url, operation_timeout_seconds=10, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        self._topic: Final = topic
        self._reader: pulsar.Reader | None = None
        self._values: Final[dict[int, int]] = {}

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def values(self) -> dict[int, int]:
        """The greatest value that each row ever had on the topic. Raises PulsarException."""
        if self._reader is None:
            self._reader = self._client.create_reader(self._topic, pulsar.MessageId.earliest)
        while self._reader.has_message_available():
            self._take(self._reader.read_next(timeout_millis=_TIMEOUT_MS))
        return self._values

    def _take(self, message: pulsar.Message) -> None:
        key = cast("dict[str, int]", _decoded(base64.b64decode(message.partition_key()), _KEY))
        value = cast("dict[str, int | None]", _decoded(message.data(), _VALUE))
        self._values[key["pk"]] = max(self._values.get(key["pk"], 0), value["tick"] or 0)


def _decoded(data: bytes, schema: object) -> object:
    return fastavro.schemaless_reader(io.BytesIO(data), schema, None)  # type: ignore[arg-type]
