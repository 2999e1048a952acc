"""SegmentKey: under which key the agent keeps account of a segment.

A segment that is read once more on request has an account of its own, beside that of its first reading. The key of the
first reading is the segment's id; the other one is the negated id. So both are numbers, as stored positions need them,
and every second reading stands before every first one: it does not change which segment is the newest.
"""

from __future__ import annotations

from typing import NewType

__all__ = ["SegmentKey", "is_read_again", "key_of_reading_again", "segment_id_of"]

SegmentKey = NewType("SegmentKey", int)
"""`SegmentKey(segment_id)` is the key of the first reading."""


def key_of_reading_again(segment_id: int) -> SegmentKey:
    """The key of a segment that is read once more on request."""
    return SegmentKey(-segment_id)


def is_read_again(key: SegmentKey) -> bool:
    """Whether the segment is read once more on request."""
    return key < 0


def segment_id_of(key: SegmentKey) -> int:
    """The segment's own id."""
    return abs(key)
