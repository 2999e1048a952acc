"""FollowedSegment: the follower's state of one segment while it reads it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from change_agent.commitlog.reader import SegmentReader

__all__ = ["FollowedSegment", "Presence"]


class Presence(Enum):
    """Whether a segment may vanish from `cdc_raw`. The order is that of a segment's life; a step may be left out.

    UNPUBLISHED -> EARLY      a change of it is published before Cassandra has synced it
    UNPUBLISHED -> EXPECTED   it has an index, or is final
    EARLY       -> EXPECTED   the same
    """

    UNPUBLISHED = auto()
    """It was opened before it had an index, and nothing of it was published: Cassandra may remove it, and no one misses it."""
    EARLY = auto()
    """It has a stored position and no index yet. A node that was killed removes it; what an open file has left is all."""
    EXPECTED = auto()
    """It has an index, a stored position, or its end: when it is gone unread, changes are lost."""


@dataclass(slots=True, kw_only=True)
class FollowedSegment:
    """The open file of a segment, and how reading it went. Used by the reader's thread."""

    presence: Presence
    reader: SegmentReader | None = None
    final: bool = False
    failed_at: int | None = None
    """The limit at which it could not be read; it is tried again at another one."""
    is_reported: bool = False
    """The log has said that it cannot be read."""

    def close(self) -> None:
        """Close the file."""
        if self.reader is not None:
            self.reader.close()
