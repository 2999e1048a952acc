"""Writes commit log segments, for tests of the framing. What Cassandra writes is in tests/golden."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence

__all__ = ["encoded_segment_bytes", "entry_bytes", "header_bytes", "segment_bytes", "sync_marker_bytes"]


def header_bytes(segment_id: int, *, version: int = 7, parameters: object | None = None) -> bytes:
    """A segment's header."""
    text = json.dumps({} if parameters is None else parameters).encode()
    low, high = segment_id & 0xFFFFFFFF, segment_id >> 32
    crc = zlib.crc32(struct.pack(">IIII", version, low, high, len(text)) + text)
    return struct.pack(">IqH", version, segment_id, len(text)) + text + struct.pack(">I", crc)


def sync_marker_bytes(segment_id: int, position: int, section_end: int) -> bytes:
    """The marker at `position`."""
    crc = zlib.crc32(struct.pack(">III", segment_id & 0xFFFFFFFF, segment_id >> 32, position))
    return struct.pack(">iI", section_end, crc)


def entry_bytes(payload: bytes) -> bytes:
    """One framed mutation."""
    size = struct.pack(">I", len(payload))
    return (
        size + struct.pack(">I", zlib.crc32(size)) + payload + struct.pack(">I", zlib.crc32(payload, zlib.crc32(size)))
    )


def segment_bytes(segment_id: int, sections: Sequence[Sequence[bytes]]) -> bytes:
    """A whole segment: the payloads of each section."""
    written = header_bytes(segment_id)
    for payloads in sections:
        body = b"".join(map(entry_bytes, payloads))
        position = len(written)
        written += sync_marker_bytes(segment_id, position, position + 8 + len(body)) + body
    return written


def encoded_segment_bytes(segment_id: int, parameters: object, sections: Sequence[tuple[int, bytes]]) -> bytes:
    """A whole encoded segment: of each section the length that it claims, and its encoded bytes."""
    written = header_bytes(segment_id, parameters=parameters)
    for length, encoded in sections:
        position = len(written)
        written += sync_marker_bytes(segment_id, position, position + 12 + len(encoded))
        written += struct.pack(">i", length) + encoded
    return written
