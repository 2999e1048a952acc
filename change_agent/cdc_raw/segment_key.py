"""SegmentKey: the key under which the agent keeps account of a segment.

A segment that is read a second time has a separate account for this reading. The key of the first reading is the
segment's id, and the key of the second reading is the negated id. So both are numbers, as stored positions need them,
and second readings sort before all first readings: they do not change which segment is the newest.
"""

from __future__ import annotations

from typing import NewType

__all__ = ["SegmentKey", "is_read_again", "key_of_reading_again", "segment_id_of"]

SegmentKey = NewType("SegmentKey", int)
"""`SegmentKey(segment_id)` is the key of the first reading."""


def key_of_reading_again(segment_id: int) -> SegmentKey:
    """The key of the segment's second reading."""
    return SegmentKey(-segment_id)


def is_read_again(key: SegmentKey) -> bool:
    """True for the key of a second reading."""
    return key < 0


def segment_id_of(key: SegmentKey) -> int:
    """The segment's own id."""
    return abs(key)
