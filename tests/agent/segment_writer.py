"""Writes commit log segments for tests of the framing. Segments that Cassandra wrote are in tests/golden."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import cramjam
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC

__all__ = [
    "COMPRESSORS",
    "encoded_segment_bytes",
    "encrypted_block_bytes",
    "entry_bytes",
    "header_bytes",
    "lz4_bytes",
    "segment_bytes",
    "sync_marker_bytes",
]


def lz4_bytes(plain: bytes) -> bytes:
    """Compress as LZ4Compressor does: the length, then a block."""
    return len(plain).to_bytes(4, "little") + bytes(cramjam.lz4.compress_block(plain, store_size=False))


COMPRESSORS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "LZ4Compressor": lz4_bytes,
    "SnappyCompressor": lambda plain: bytes(cramjam.snappy.compress_raw(plain)),
    "DeflateCompressor": zlib.compress,
    "ZstdCompressor": lambda plain: bytes(cramjam.zstd.compress(plain)),
    "NoopCompressor": bytes,
}
"""For each of Cassandra's compressor classes, the function that encodes a section."""


def encrypted_block_bytes(
    plain: bytes, key: bytes, iv: bytes, *, plain_length: int | None = None, length: int | None = None
) -> bytes:
    """One block of an encrypted section. Two lengths can be wrong on purpose: `plain_length` of the decrypted content,
    and `length` of the decompressed content."""
    inside = struct.pack(">i", len(plain) if length is None else length) + lz4_bytes(plain)
    padding = 16 - len(inside) % 16
    encryptor = Cipher(AES(key), CBC(iv)).encryptor()
    encrypted = encryptor.update(inside + bytes([padding]) * padding) + encryptor.finalize()
    return struct.pack(">ii", len(encrypted), len(inside) if plain_length is None else plain_length) + encrypted


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


def segment_bytes(segment_id: int, sections: Sequence[Sequence[bytes]], *, version: int = 7) -> bytes:
    """A whole segment: the payloads of each section."""
    written = header_bytes(segment_id, version=version)
    for payloads in sections:
        body = b"".join(map(entry_bytes, payloads))
        position = len(written)
        written += sync_marker_bytes(segment_id, position, position + 8 + len(body)) + body
    return written


def encoded_segment_bytes(
    segment_id: int, parameters: object, sections: Sequence[tuple[int, bytes]], *, version: int = 7
) -> bytes:
    """A whole encoded segment: the length that each section claims, and its encoded bytes."""
    written = header_bytes(segment_id, version=version, parameters=parameters)
    for length, encoded in sections:
        position = len(written)
        written += sync_marker_bytes(segment_id, position, position + 12 + len(encoded))
        written += struct.pack(">i", length) + encoded
    return written
