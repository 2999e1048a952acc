"""Encodes the RECORD frame, as `source_connector.host.host_protocol` specifies it. Pure.

Every row is written here, so this module is compiled. With the native core, `runtime/native/src/frame.rs` writes the
same bytes, except for what it refuses.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, Protocol, cast

from schemas import record_properties as names
from source_connector.compiled import native_module
from source_connector.errors import HostProtocolError
from source_connector.host.record import SourceRecord

__all__ = ["MAX_FRAME_LENGTH", "encode_record"]

MAX_FRAME_LENGTH: Final = 64 * 1024 * 1024

_RECORD: Final = 8
_NO_TIME: Final = -1
_REPEATED: Final = frozenset({names.KIND, names.TABLE_ID, names.NODE, names.STATIC_COLUMNS})
_HEAD: Final = struct.Struct(">IBQIqI")
_HEAD_LENGTH: Final = 25  # the bytes of the head that count for the frame's length
_SIZE: Final = struct.Struct(">I")


class _Native(Protocol):
    """The native core's part for frames."""

    def record_frame(
        self, seq: int, schema_id: int, time_ms: int, key: bytes, value: bytes | None, properties: dict[str, str]
    ) -> bytes | None:
        """The frame; None for what only Python writes or refuses."""


def encode_record(seq: int, record: SourceRecord) -> bytes:
    """RECORD. Raises HostProtocolError for a record that is larger than a frame may be."""
    time_ms = _NO_TIME if record.event_time_ms is None else record.event_time_ms
    if _CORE is not None:
        frame = _CORE.record_frame(seq, record.schema_id, time_ms, record.key, record.value, record.properties)
        if frame is not None and len(frame) <= MAX_FRAME_LENGTH:
            return frame
    return _encoded(seq, record, time_ms)


def _encoded(seq: int, record: SourceRecord, time_ms: int) -> bytes:
    key, value, properties = record.key, record.value, record.properties
    parts: list[bytes] = []
    if value is None:
        parts.append(b"\x00")
    else:
        parts += (b"\x01", _SIZE.pack(len(value)), value)
    parts.append(len(properties).to_bytes(2, "big"))
    for name, text in properties.items():
        parts.append(_known(name))
        parts.append(_known(text) if name in _REPEATED else _text(text))
    rest = b"".join(parts)
    length = _HEAD_LENGTH + len(key) + len(rest)
    if length > MAX_FRAME_LENGTH:
        raise HostProtocolError(f"{length} bytes are more than a frame holds", frame=_RECORD)
    return _HEAD.pack(length, _RECORD, seq, record.schema_id, time_ms, len(key)) + key + rest


@lru_cache(maxsize=1024)
def _known(text: str) -> bytes:
    """The encoded text. It is cached, because records have the same few names and, for some names, few values."""
    return _text(text)


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    return _SIZE.pack(len(data)) + data


_CORE: Final = cast("_Native | None", native_module())  # mypy knows nothing of the attributes of a loaded module
