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

__all__ = ["GapDetector", "GoneSegments"]

# Looks at the folders in a row that must miss a segment: one that is moved may be missed by one look.
_LOOKS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneSegments:
    """Segments, by id, that are gone together; what they held was written before `to_ms` (since the epoch)."""

    segment_ids: tuple[int, ...]
    to_ms: int


class GapDetector:
    """Knows the segments that must not vanish. Used by the reader's thread."""

    def __init__(self, unfinished: Iterable[int]) -> None:
        self._missed: Final[dict[int, int]] = {}
        self.know(unfinished)

    def know(self, unfinished: Iterable[int]) -> None:
        """These must not vanish either. What is read again on request (negative ids) may."""
        self._missed.update((each, 0) for each in unfinished if each > 0)

    def finished(self, segment_id: int) -> None:
        """The segment was read to its end; it may go."""
        self._missed.pop(segment_id, None)

    def look(
        self, listed: Mapping[int, ReadableSegment], ended: Container[int], now_ms: int
    ) -> tuple[list[int], GoneSegments | None]:
        """New segments to be known, and those that are gone for good (told once)."""
        new = []
        for segment_id, segment in listed.items():
            if segment_id in ended:
                continue
            if segment_id not in self._missed:
                if not segment.has_index:
                    # Cassandra may remove a link without index, and nobody one of 3.11.
                    continue
                new.append(segment_id)
                self._missed[segment_id] = 0
            elif segment.log_exists:
                self._missed[segment_id] = 0
        absent = [each for each in self._missed if each not in listed or not listed[each].log_exists]
        for each in absent:
            self._missed[each] += 1
        gone = tuple(sorted(each for each in absent if self._missed[each] >= _LOOKS))
        if not gone:
            return new, None
        for each in gone:
            del self._missed[each]
        later = [each.index_time_ms for each in listed.values() if each.segment_id > gone[-1] and each.log_exists]
        return new, GoneSegments(segment_ids=gone, to_ms=min(later, default=now_ms))
