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

import zlib
from typing import Final, final

from change_agent.data_input import uint32_at, wrapped_int
from change_agent.errors import ChecksumMismatchError, Damage, MalformedSegmentError

__all__ = ["ENTRY_OVERHEAD", "ENTRY_PREFIX", "CommitLogEntry", "read_entry", "read_entry_size"]

# Size and SizeCrc before the payload; these and Crc after it.
ENTRY_PREFIX: Final = 8
ENTRY_OVERHEAD: Final = 12

# No mutation is smaller. The check refuses garbage whose checksum matches by chance (CASSANDRA-2128).
_MIN_MUTATION_SIZE: Final = 10


_crc32: Final = zlib.crc32


@final
class CommitLogEntry:
    """One mutation, still serialized. `position` is the entry's end in the segment, as Cassandra's `entryLocation`."""

    __slots__ = ("payload", "position")

    def __init__(self, position: int, payload: bytes) -> None:
        self.position = position
        self.payload = payload

    def __eq__(self, other: object) -> bool:
        """The same bytes at the same place."""
        return isinstance(other, CommitLogEntry) and (self.position, self.payload) == (other.position, other.payload)

    def __hash__(self) -> int:
        """Agrees with `==`."""
        return hash((self.position, self.payload))

    def __repr__(self) -> str:
        return f"CommitLogEntry(position={self.position}, payload={self.payload!r})"

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return len(self.payload)


def read_entry_size(buffer: bytes, offset: int, position: int, space: int) -> int:
    """Checked size of the payload of the entry at `buffer[offset:]`; 0 if nothing is written there.

    `position` is the entry's start in the segment, `space` the number of bytes from there to the section's end.
    Raises MalformedSegmentError, ChecksumMismatchError.
    """
    size = wrapped_int(uint32_at(buffer, offset))
    if size == 0:
        return 0
    if size < _MIN_MUTATION_SIZE:
        raise MalformedSegmentError(
            f"an entry claims a mutation of {size} bytes", damage=Damage.ENTRY_SIZE, position=position
        )
    if uint32_at(buffer, offset + 4) != _crc32(buffer[offset : offset + 4]):
        raise ChecksumMismatchError(
            "the checksum of an entry's size does not match", damage=Damage.ENTRY_SIZE, position=position
        )
    if size + ENTRY_OVERHEAD > space:
        raise MalformedSegmentError(
            f"an entry claims a mutation of {size} bytes, more than its section holds",
            damage=Damage.ENTRY_SIZE,
            position=position,
        )
    return size


def read_entry(buffer: bytes, offset: int, position: int, size: int) -> CommitLogEntry:
    """The entry at `buffer[offset:]`, whose size was checked and which is complete in the buffer.

    Raises ChecksumMismatchError. As the size was checked, `resume_position` of the error is where the next entry
    starts, and the checksum of the payload continues from the stored checksum of the size.
    """
    start = offset + ENTRY_PREFIX
    payload = buffer[start : start + size]
    end = position + size + ENTRY_OVERHEAD
    if uint32_at(buffer, start + size) != _crc32(payload, uint32_at(buffer, offset + 4)):
        raise ChecksumMismatchError(
            "the checksum of an entry's mutation does not match",
            damage=Damage.ENTRY,
            position=position,
            resume_position=end,
        )
    return CommitLogEntry(end, payload)
