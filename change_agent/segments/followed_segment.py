"""FollowedSegment: the follower's state of one segment while it reads it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from change_agent.commitlog.reader import SegmentReader

__all__ = ["FollowedSegment", "Presence"]


class Presence(Enum):
    """Says if a segment may vanish from `cdc_raw`. The values follow a segment's life; steps may be skipped.

    UNPUBLISHED -> EARLY      a change of it is published before Cassandra has synced it
    UNPUBLISHED -> EXPECTED   it has an index, or is final
    EARLY       -> EXPECTED   it has an index
    """

    UNPUBLISHED = auto()
    """It was opened before it had an index, and nothing of it was published.

    Cassandra may remove it; that is no gap.
    """
    EARLY = auto()
    """It has a position, but no index yet.

    If a killed node removes it, the rest is read from the open file; that is no gap.
    """
    EXPECTED = auto()
    """It has an index or a stored position, or is final. If it vanishes before it was read, changes are lost."""


@dataclass(slots=True, kw_only=True)
class FollowedSegment:
    """The open file of a segment, and the state of reading it. Used by the reader's thread."""

    presence: Presence
    reader: SegmentReader | None = None
    final: bool = False
    failed_at: int | None = None
    """The limit at which it could not be read. It is tried again when its limit is another one, or when it is final."""
    is_reported: bool = False
    """True when the log has reported that it cannot be read."""
    queued_file: tuple[int, int] | None = None
    """The file that is read, if an operator has queued it (ReadableSegment)."""

    def close(self) -> None:
        """Close the file."""
        if self.reader is not None:
            self.reader.close()
