"""ReadyBytes: registers a schema with a topic, and passes encoded messages through unchanged."""

from __future__ import annotations

import _pulsar
import pulsar

__all__ = ["ReadyBytes"]


class ReadyBytes(pulsar.schema.Schema):  # type: ignore[misc]  # the client has no types
    """The schema of a producer whose messages are encoded already."""

    def __init__(self, info: _pulsar.SchemaInfo) -> None:
        # The constructor of the client's class is not called: it would make another info, from a definition in Python.
        self._record_cls = bytes
        self._schema_info = info

    @classmethod
    def of(cls, name: str, text: str, kind: str = "AVRO") -> ReadyBytes:
        """A schema from its JSON text; `kind` is AVRO or JSON."""
        return cls(_pulsar.SchemaInfo(getattr(_pulsar.SchemaType, kind), name, text))

    def encode(self, obj: bytes) -> bytes:
        """Return the bytes unchanged."""
        return obj

    def decode(self, data: bytes) -> bytes:
        """Return the bytes unchanged."""
        return data
