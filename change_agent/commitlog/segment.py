"""Sync markers, which divide a segment into sections.

    Segment    => Header {SyncMarker Section}
    SyncMarker => NextMarker Crc
      NextMarker => Int32, position of the next sync marker, which is the end of this section
      Crc        => UInt32, over low half of the segment id, high half, position of this marker as Int32

A marker of zeros means that nothing was written from there on.

Cassandra source: o.a.c.db.commitlog.CommitLogSegmentReader. Pure.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from change_agent.errors import ChecksumMismatchError, Damage, MalformedSegmentError

__all__ = ["SYNC_MARKER_SIZE", "read_sync_marker"]

_SYNC_MARKER: Final = struct.Struct(">iI")
_CRC_INPUT: Final = struct.Struct(">III")

SYNC_MARKER_SIZE: Final = _SYNC_MARKER.size


def read_sync_marker(marker: bytes, segment_id: int, position: int) -> int | None:
    """End of the section that starts with this marker; None if nothing was written there.

    Raises ChecksumMismatchError. Raises MalformedSegmentError for an end before the end of the marker itself: a chain
    of such markers might never end.
    """
    section_end, crc = _SYNC_MARKER.unpack(marker)
    if section_end == 0 and crc == 0:
        return None
    halves = segment_id & 0xFFFFFFFF, (segment_id >> 32) & 0xFFFFFFFF
    if crc != zlib.crc32(_CRC_INPUT.pack(*halves, position)):
        raise ChecksumMismatchError(
            "the checksum of a sync marker does not match", damage=Damage.SYNC_MARKER, position=position
        )
    if section_end < position + SYNC_MARKER_SIZE:
        raise MalformedSegmentError(
            f"a sync marker points back to position {section_end}", damage=Damage.SYNC_MARKER, position=position
        )
    return int(section_end)
