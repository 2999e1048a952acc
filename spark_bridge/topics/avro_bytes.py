"""AvroBytes: registers an Avro schema with a topic, and passes records through that are encoded already."""

from __future__ import annotations

import _pulsar
import pulsar

__all__ = ["AvroBytes"]


class AvroBytes(pulsar.schema.Schema):  # type: ignore[misc]  # the client has no types
    """The schema of a producer; `text` is its JSON."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(bytes, _pulsar.SchemaType.AVRO, {"type": "record"}, "AVRO")
        self._schema_info = _pulsar.SchemaInfo(_pulsar.SchemaType.AVRO, name, text)

    def encode(self, obj: bytes) -> bytes:
        """As it is."""
        return obj
