"""Decompression of sections, for the compressor classes that Cassandra ships.

Each decompressor takes the compressed bytes and their exact length after decompression, and never returns more bytes.
The options of a compressor (`lz4_compressor_type`, `compression_level`, ...) do not change its format.

Cassandra source: o.a.c.io.compress.*, o.a.c.schema.CompressionParams.parseCompressorClass. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Final

import cramjam

from change_agent.errors import MalformedSegmentError, UnsupportedEncodingError

__all__ = ["Decompressor", "decompress_lz4", "decompressor_of"]

# compressed bytes, their uncompressed length -> uncompressed bytes; raises MalformedSegmentError
Decompressor = Callable[[bytes, int], bytes]

_PACKAGE: Final = "org.apache.cassandra.io.compress."
# Maximum number of bytes from one compressed byte. A length beyond that is refused before its memory is allocated.
_LZ4_RATIO, _SNAPPY_RATIO, _DEFLATE_RATIO, _ZSTD_RATIO = 255, 22, 1032, 32_768


def decompressor_of(class_name: str) -> Decompressor:
    """The decompressor of a compressor class, named as in a header, with or without its package.

    Raises UnsupportedEncodingError for a class that Cassandra does not ship.
    """
    found = _DECOMPRESSORS.get(class_name if "." in class_name else _PACKAGE + class_name)
    if found is None:
        supported = ", ".join(name.removeprefix(_PACKAGE) for name in sorted(_DECOMPRESSORS))
        raise UnsupportedEncodingError(f"compressed ({class_name})", supported)
    return found


def decompress_lz4(compressed: bytes, length: int) -> bytes:
    """Lz4 => Length(Int32, little-endian) Block. Source: LZ4Compressor.uncompress."""
    if len(compressed) < 4 or int.from_bytes(compressed[:4], "little") != length:
        raise _mismatch(length)
    _check_ratio(compressed, length, _LZ4_RATIO)
    output = bytearray(length)
    try:
        written = cramjam.lz4.decompress_block_into(memoryview(compressed)[4:], output, output_len=length)
    except cramjam.DecompressionError as error:
        raise _damaged("LZ4") from error
    return _whole(output, written, length)


def _decompress_snappy(compressed: bytes, length: int) -> bytes:
    # Snappy => Length(Vint) Elements
    _check_ratio(compressed, length, _SNAPPY_RATIO)
    output = bytearray(length)
    try:
        if not compressed or cramjam.snappy.decompress_raw_len(compressed) != length:
            raise _mismatch(length)
        written = cramjam.snappy.decompress_raw_into(compressed, output)
    except cramjam.DecompressionError as error:
        raise _damaged("Snappy") from error
    return _whole(output, written, length)


def _decompress_deflate(compressed: bytes, length: int) -> bytes:
    if length == 0 and not compressed:
        # The output of DeflateCompressor for an empty input, when its buffers are arrays.
        return b""
    _check_ratio(compressed, length, _DEFLATE_RATIO)
    inflater = zlib.decompressobj()
    try:
        # One more than the length, because 0 would mean no limit.
        output = inflater.decompress(compressed, length + 1)
    except zlib.error as error:
        raise _damaged("Deflate") from error
    if not inflater.eof or inflater.unused_data:
        raise _mismatch(length)
    return _whole(output, len(output), length)


def _decompress_zstd(compressed: bytes, length: int) -> bytes:
    # A block of 4 bytes repeats one byte up to 128 KiB.
    _check_ratio(compressed, length, _ZSTD_RATIO)
    output = bytearray(max(length, 1))
    try:
        written = cramjam.zstd.decompress_into(compressed, output)
    except cramjam.DecompressionError as error:
        raise _damaged("Zstd") from error
    return _whole(output, written, length)


def _copy(compressed: bytes, length: int) -> bytes:
    return _whole(compressed, len(compressed), length)


_DECOMPRESSORS: Final[Mapping[str, Decompressor]] = {
    _PACKAGE + "LZ4Compressor": decompress_lz4,
    _PACKAGE + "SnappyCompressor": _decompress_snappy,
    _PACKAGE + "DeflateCompressor": _decompress_deflate,
    _PACKAGE + "ZstdCompressor": _decompress_zstd,
    _PACKAGE + "NoopCompressor": _copy,
}


def _check_ratio(compressed: bytes, length: int, ratio: int) -> None:
    if length > len(compressed) * ratio:
        raise MalformedSegmentError(
            f"{len(compressed)} compressed bytes claim to be {length} bytes, which they cannot hold"
        )


def _whole(output: bytes | bytearray, written: int, length: int) -> bytes:
    if written != length:
        raise _mismatch(length)
    return bytes(output[:length] if len(output) != length else output)


def _mismatch(length: int) -> MalformedSegmentError:
    return MalformedSegmentError(f"compressed bytes are not the {length} bytes that they claim to be")


def _damaged(kind: str) -> MalformedSegmentError:
    return MalformedSegmentError(f"compressed bytes cannot be read by {kind}")
