"""Finds the complete frames of a file of held events (change_agent.publishing.held_events), also after damaged bytes.

Cut bytes or zeros at the end are the rest of a write that a crash has interrupted: they were never durable. Other bytes
that are not a complete frame were durable once and were damaged later; complete frames may follow them.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass, field
from typing import BinaryIO, Final

__all__ = ["HEADER_BYTES", "SCHEMA_MARK", "FrameScan", "frame_of", "next_frame", "read_frame", "scan_frames"]

_HEADER: Final = struct.Struct(">II")
HEADER_BYTES: Final = _HEADER.size
SCHEMA_MARK: Final = b"{"
# How payloads begin: JSON of a schema, or Avro of events, whose first field is the text of a node id.
_BEGINNING: Final = re.compile(rb'\{"|H[0-9a-f]{8}-[0-9a-f]{4}-')
_LONGEST_BEGINNING: Final = 16
_BLOCK_BYTES: Final = 1 << 20


@dataclass(slots=True)
class FrameScan:
    """The events end at `end`. `damaged`: the end of each damaged part, by its start.

    `last_schema` is the schema of the last events.
    """

    end: int = 0
    last_schema: bytes | None = None
    damaged: dict[int, int] = field(default_factory=dict)


def frame_of(payload: bytes) -> bytes:
    """The frame of a payload, as it is in the file."""
    return _HEADER.pack(len(payload), zlib.crc32(payload)) + payload


def read_frame(file: BinaryIO, start: int, size: int) -> bytes | None:
    """The payload of the complete frame at `start` of a file of `size` bytes; None if there is none."""
    length, crc = _header(file, start)
    if not 0 < length <= size - start - HEADER_BYTES:
        return None
    payload = file.read(length)
    return payload if len(payload) == length and zlib.crc32(payload) == crc else None


def scan_frames(file: BinaryIO, size: int) -> FrameScan:
    """Check every frame. A schema without events after it is the rest of an interrupted write: it is ignored."""
    found, at, schema = FrameScan(), 0, None
    while at < size:
        payload = read_frame(file, at, size)
        if payload is None:
            behind = next_frame(file, at + 1, size)
            if behind is None and not 0 < _header(file, at)[0] <= size - at - HEADER_BYTES:
                break
            found.damaged[at] = at = behind or size
            found.end = at
            continue
        at += HEADER_BYTES + len(payload)
        if payload.startswith(SCHEMA_MARK):
            schema = payload
        else:
            found.last_schema, found.end = schema, at
    return found


def _header(file: BinaryIO, start: int) -> tuple[int, int]:
    """Length and CRC of the frame at `start`. If there are too few bytes, the length is 0, which no frame has."""
    file.seek(start)
    header = file.read(HEADER_BYTES)
    return _HEADER.unpack(header) if len(header) == HEADER_BYTES else (0, 0)


def next_frame(file: BinaryIO, start: int, size: int) -> int | None:
    """The start of the first complete frame at `start` or later; None if there is none."""
    at = start + HEADER_BYTES
    while at < size:
        file.seek(at)
        block = file.read(_BLOCK_BYTES + _LONGEST_BEGINNING)
        for each in _BEGINNING.finditer(block):
            if read_frame(file, at + each.start() - HEADER_BYTES, size) is not None:
                return at + each.start() - HEADER_BYTES
        at += _BLOCK_BYTES
    return None
