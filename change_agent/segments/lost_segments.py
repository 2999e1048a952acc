"""LostSegments: the segments that count as finished although they were not read in full, because their files were gone.

Such a file may come back: the disk of `cdc_raw` or `spillDir` is mounted late, or the node replays its commit log and
links the segment again. Then the segment is read from its beginning before it is deleted.

    gone ──> lost ─────────────────────> stored as lost ────────────────────> read, like a segment that was never seen
                 the gap is reported                    its file is there
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Iterable
from typing import Final

from change_agent.cdc_raw.listing import ReadableSegment
from change_agent.cdc_raw.segment_key import SegmentKey
from change_agent.positions.segment_ids import SegmentIds

__all__ = ["LostSegments"]

_log: Final = logging.getLogger(__name__)


class LostSegments:
    """Used by the reader's thread."""

    def __init__(self, lost: SegmentIds) -> None:
        """`lost`: keys of the segments that earlier processes have stored as lost."""
        self._lost = lost

    def __contains__(self, key: object) -> bool:
        return key in self._lost

    def adopt(self, lost: SegmentIds) -> None:
        """Continue from these stored keys."""
        self._lost = lost

    def add(self, keys: Collection[SegmentKey], present: Collection[SegmentKey]) -> None:
        """Add segments that are gone. `present`: the keys of the segments whose files are there."""
        self._lost = self._lost.adding(keys, present)

    def has_any_of(self, segments: Iterable[ReadableSegment]) -> bool:
        """True when the file of a lost segment is there, and the segment is not read yet."""
        return any(each.key in self._lost and each.log_exists for each in segments)

    def take_returned(
        self, segments: Iterable[ReadableSegment], accounted: Container[SegmentKey]
    ) -> frozenset[SegmentKey]:
        """Return, and forget, the lost segments whose files are there again.

        A segment in `accounted` waits: its loss is not stored yet, and storing it would end the account of this reading.
        """
        found = [each for each in segments if each.key in self._lost and each.log_exists and each.key not in accounted]
        for each in found:
            _log.warning("%s counts as lost, and is there again: it is read before it is deleted", each.path)
        keys = frozenset(each.key for each in found)
        self._lost = self._lost.removing(keys)
        return keys
