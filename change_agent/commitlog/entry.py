"""Entries: the framed mutations of a section.

    Section => {Entry} [zeros]
    Entry   => Size SizeCrc Payload Crc
      Size    => Int32, of the payload; 0 = the rest of the section is not written
      SizeCrc => UInt32, over Size
      Payload => Size bytes: one serialized Mutation
      Crc     => UInt32, over Size and Payload

Cassandra source: o.a.c.db.commitlog.CommitLogReader.readSection. Pure.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

from change_agent.errors import ChecksumMismatchError, MalformedSegmentError

__all__ = ["ENTRY_OVERHEAD", "CommitLogEntry", "read_entry", "read_entry_size"]

_SIZE: Final = struct.Struct(">iI")
_CRC: Final = struct.Struct(">I")

# Size and SizeCrc before the payload, Crc behind it.
ENTRY_OVERHEAD: Final = _SIZE.size + _CRC.size
ENTRY_PREFIX: Final = _SIZE.size

# No mutation is smaller; guards against garbage whose checksum happens to fit (CASSANDRA-2128).
_MIN_MUTATION_SIZE: Final = 10


class CommitLogEntry(NamedTuple):
    """One mutation, still serialized. `position` is the entry's end in the segment, as Cassandra's `entryLocation`."""

    position: int
    payload: bytes

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return len(self.payload)


def read_entry_size(buffer: bytes, offset: int, position: int, space: int) -> int:
    """Size of the payload of the entry at `buffer[offset:]`, checked; 0 where nothing is written.

    `position` is the entry's start in the segment, `space` what is left of the section from there.
    Raises MalformedSegmentError, ChecksumMismatchError.
    """
    size, crc = _SIZE.unpack_from(buffer, offset)
    if size == 0:
        return 0
    if size < _MIN_MUTATION_SIZE:
        raise MalformedSegmentError(f"an entry claims a mutation of {size} bytes", position=position)
    if crc != zlib.crc32(buffer[offset : offset + 4]):
        raise ChecksumMismatchError("the checksum of an entry's size does not match", position=position)
    if size + ENTRY_OVERHEAD > space:
        raise MalformedSegmentError(
            f"an entry claims a mutation of {size} bytes, more than its section holds", position=position
        )
    return int(size)


def read_entry(buffer: bytes, offset: int, position: int, size: int) -> CommitLogEntry:
    """The entry at `buffer[offset:]`, whose size was read and which is all in the buffer. Raises ChecksumMismatchError.

    The size is known to be right then, so `resume_position` of the error tells where the next entry starts.
    """
    start = offset + ENTRY_PREFIX
    payload = buffer[start : start + size]
    end = position + size + ENTRY_OVERHEAD
    if _CRC.unpack_from(buffer, start + size)[0] != zlib.crc32(payload, zlib.crc32(buffer[offset : offset + 4])):
        raise ChecksumMismatchError(
            "the checksum of an entry's mutation does not match", position=position, resume_position=end
        )
    return CommitLogEntry(end, payload)
