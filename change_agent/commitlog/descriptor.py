"""The header of a commit log segment and the names of its files.

    Header => Version Id Length Parameters Crc
      Version    => Int32
      Id         => Int64
      Length     => UInt16
      Parameters => Length bytes of JSON: compressionClass, compressionParameters, encCipher, encKeyAlias, encIV
      Crc        => UInt32, over Version, low half of Id, high half of Id, Length as Int32, Parameters

Cassandra source: o.a.c.db.commitlog.CommitLogDescriptor. Pure: bytes in, values out.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from dataclasses import dataclass, field
from typing import Final

from change_agent.errors import (
    BufferUnderflowError,
    ChecksumMismatchError,
    Damage,
    MalformedSegmentError,
)
from change_agent.format_version import version_rules

__all__ = ["MAX_HEADER_SIZE", "CommitLogDescriptor", "file_id", "read_descriptor"]

_FIXED: Final = struct.Struct(">iqH")
_CRC_INPUT: Final = struct.Struct(">IIII")
_CRC: Final = struct.Struct(">I")

# The maximum size of a header.
MAX_HEADER_SIZE: Final = _FIXED.size + 0xFFFF + _CRC.size

_FILE_NAME: Final = re.compile(r"CommitLog-(\d+)-(\d+)(?:\.log|_cdc\.idx)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLogDescriptor:
    """The content of a segment's header. `header_size` is the position of the first sync marker."""

    version: int
    segment_id: int
    compression: str | None = None
    compression_parameters: dict[str, str] = field(default_factory=dict)
    encryption: str | None = None
    encryption_parameters: dict[str, str] = field(default_factory=dict)
    header_size: int


def read_descriptor(header_bytes: bytes) -> CommitLogDescriptor:
    """Read a header from the first bytes of a segment. MAX_HEADER_SIZE bytes are always enough; the rest is ignored.

    A segment without `encKeyAlias` or without `encCipher` is not encrypted, as in Cassandra.

    Raises UnsupportedVersionError, BufferUnderflowError (no header yet, or the file is cut), ChecksumMismatchError,
    MalformedSegmentError.
    """
    if len(header_bytes) < _FIXED.size or not any(header_bytes[: _FIXED.size]):
        raise BufferUnderflowError("the segment has no complete header", position=0)
    version, segment_id, length = _FIXED.unpack_from(header_bytes)
    # Before the checksum: an unknown version may compute it over other bytes.
    version_rules(version)
    end = _FIXED.size + length
    if len(header_bytes) < end + _CRC.size:
        raise BufferUnderflowError("the segment has no complete header", position=0)
    parameters = header_bytes[_FIXED.size : end]
    halves = segment_id & 0xFFFFFFFF, (segment_id >> 32) & 0xFFFFFFFF
    crc = zlib.crc32(parameters, zlib.crc32(_CRC_INPUT.pack(version, *halves, length)))
    if crc != _CRC.unpack_from(header_bytes, end)[0]:
        raise ChecksumMismatchError(
            "the checksum of the segment's header does not match", damage=Damage.HEADER, position=0
        )
    return _descriptor(version, segment_id, _json_object(parameters), end + _CRC.size)


def file_id(name: str) -> tuple[int, int] | None:
    """Version and segment id in the name of a segment or of its `_cdc.idx`; None for any other name."""
    match = _FILE_NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def _json_object(parameters: bytes) -> dict[str, object]:
    try:
        decoded = json.loads(parameters) if parameters else {}
    except (ValueError, RecursionError) as error:
        raise MalformedSegmentError(
            "the segment's header holds no JSON object", damage=Damage.HEADER, position=0
        ) from error
    if not isinstance(decoded, dict):
        raise MalformedSegmentError("the segment's header holds no JSON object", damage=Damage.HEADER, position=0)
    return decoded


def _descriptor(version: int, segment_id: int, parameters: dict[str, object], size: int) -> CommitLogDescriptor:
    compression = parameters.get("compressionClass")
    options = parameters.get("compressionParameters")
    encryption = {key: value for key, value in parameters.items() if key.startswith("enc") and value is not None}
    return CommitLogDescriptor(
        version=version,
        segment_id=segment_id,
        compression=None if compression is None else str(compression),
        compression_parameters=_texts(options) if isinstance(options, dict) else {},
        encryption=str(encryption["encCipher"]) if {"encCipher", "encKeyAlias"} <= encryption.keys() else None,
        encryption_parameters=_texts(encryption),
        header_size=size,
    )


def _texts(values: dict[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in values.items()}
