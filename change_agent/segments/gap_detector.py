"""GapDetector: notices that a segment with changes was deleted from `cdc_raw` before it was read to its end.

With `cdc_block_writes: false` (Cassandra 4.1 or later), Cassandra deletes the oldest segments when `cdc_raw` is full,
instead of refusing writes. A missing id alone proves nothing: segments without a change of a CDC table are also
linked, numbered and deleted. A gap is a segment that had an index, or was read in part, and is missing; it was seen
by this process or, by the stored positions, by an earlier one. Cassandra deletes the oldest segments first, so before
unseen segments are deleted, a seen one was deleted.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from change_agent.cdc_raw.listing import ReadableSegment
from change_agent.cdc_raw.segment_key import SegmentKey, is_read_again

__all__ = ["GapDetector", "GoneSegments"]

# How many listings in a row must miss a segment: one listing may miss a segment that is being moved.
_LOOKS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneSegments:
    """Segments that are gone together. Their changes were written before `to_ms` (since the epoch)."""

    segments: tuple[SegmentKey, ...]
    to_ms: int


class GapDetector:
    """Knows the segments that must not vanish. Used by the reader's thread."""

    def __init__(self, unfinished: Iterable[SegmentKey]) -> None:
        self._missed: Final[dict[SegmentKey, int]] = {}
        self.know(unfinished)

    def know(self, unfinished: Iterable[SegmentKey]) -> None:
        """Add segments that must not vanish. Segments that are read a second time are left out: they may vanish."""
        self._missed.update((each, 0) for each in unfinished if not is_read_again(each))

    def adopt(self, unfinished: Iterable[SegmentKey]) -> None:
        """Know these segments instead of those so far."""
        self._missed.clear()
        self.know(unfinished)

    def finished(self, segment: SegmentKey) -> None:
        """Note that the segment was read to its end; it may vanish."""
        self._missed.pop(segment, None)

    def misses(self, listed: Container[SegmentKey]) -> bool:
        """True when a segment that must not vanish is not listed: it may be gone, or is being moved."""
        return any(each not in listed for each in self._missed)

    def check(
        self, listed: Mapping[SegmentKey, ReadableSegment], ended: Container[int], now_ms: int
    ) -> tuple[list[SegmentKey], GoneSegments | None]:
        """Return the segments that must not vanish from now on, and those that are gone for good (each only once)."""
        new = []
        for key, segment in listed.items():
            if key in ended:
                continue
            if key not in self._missed:
                if not segment.has_index:
                    # Cassandra may remove a segment without an index. With 3.11, only the agent removes segments.
                    continue
                new.append(key)
                self._missed[key] = 0
            elif segment.log_exists:
                self._missed[key] = 0
        absent = [each for each in self._missed if each not in listed or not listed[each].log_exists]
        for each in absent:
            self._missed[each] += 1
        gone = tuple(sorted(each for each in absent if self._missed[each] >= _LOOKS))
        if not gone:
            return new, None
        for each in gone:
            del self._missed[each]
        later = [each.index_time_ms for each in listed.values() if each.key > gone[-1] and each.log_exists]
        return new, GoneSegments(segments=gone, to_ms=min(later, default=now_ms))
