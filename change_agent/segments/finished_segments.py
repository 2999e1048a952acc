"""FinishedSegmentFiles: archives and deletes the files of segments that are done, and sets faulty segments aside."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from pathlib import Path
from typing import Final

from change_agent.archive.archiving import Archiving
from change_agent.cdc_raw.archiver import SegmentArchiver
from change_agent.cdc_raw.listing import ReadableSegment
from change_agent.cdc_raw.segment_key import SegmentKey, is_read_again
from change_agent.metrics import AgentMetrics
from change_agent.parking.parked import ParkedMutations
from change_agent.segments.known_segments import KnownSegments

__all__ = ["FinishedSegmentFiles"]


class FinishedSegmentFiles:
    """Handles segments that are just finished, were left behind by a crash, or were linked again by a replay.

    Used by the positions' thread.
    """

    def __init__(
        self,
        segments: KnownSegments,
        archiver: SegmentArchiver,
        parked: ParkedMutations,
        metrics: AgentMetrics,
        archiving: Archiving | None = None,
    ) -> None:
        self._segments: Final = segments
        self._archiver: Final = archiver
        self._parked: Final = parked
        self._metrics: Final = metrics
        self._archiving: Final = archiving
        # Archived segments that could not be deleted yet.
        self._archived: Final[set[Path]] = set()

    def let_go(
        self, finished: Container[SegmentKey], lost: Container[SegmentKey], faulty: Mapping[SegmentKey, str]
    ) -> frozenset[SegmentKey]:
        """Delete the listed segments of `finished`, and set the segments of `faulty` (with the reason) aside.

        Return the faulty segments that are set aside. A segment with parked mutations is kept while they wait. A segment
        of `lost` is not deleted, because it came back and is not read; an index that it has left behind is. A segment of
        `finished` is not deleted while it is read again: its file was queued again before that was stored. Neither is a
        file that was queued since the last listing.
        """
        # A faulty segment that is not listed may have been moved by an earlier process that ended before it stored
        # that. A queued one may have been removed by hand. It needs no account any more.
        missing = faulty.keys() - self._segments.listed.keys()
        set_aside = {each for each in missing if is_read_again(each) or self._archiver.is_set_aside(each)}
        not_deleted = elsewhere = 0
        for key, segment in self._segments.listed.items():
            if key in lost:
                if not segment.log_exists:
                    self._archiver.delete_index(segment.path)
            elif key in finished and self._segments.is_settled(key) and _is_same_file(segment):
                if not self._is_parked(segment) and self._is_kept_elsewhere(segment):
                    self._metrics.segments_deleted += self._archiver.delete(segment.path)
                    if segment.path.exists():
                        not_deleted += 1
                        elsewhere += segment.is_spilled or segment.is_read_again
                    else:
                        self._archived.discard(segment.path)
            elif key in faulty and self._archiver.set_aside(segment.path, faulty[key]):
                self._metrics.segments_set_aside += 1
                set_aside.add(key)
        self._metrics.segments_not_deleted = not_deleted
        self._metrics.segments_not_deleted_elsewhere = elsewhere
        return frozenset(set_aside)

    def present(self) -> Collection[SegmentKey] | None:
        """Keys of the segments whose files exist; None before the first listing."""
        return self._segments.listed.keys() if self._segments.has_listed else None

    def _is_parked(self, segment: ReadableSegment) -> bool:
        """True when the segment has parked mutations, and its file must be kept in case their store is damaged."""
        first_file = segment.is_spilled or not segment.is_read_again
        return first_file and segment.segment_id in self._parked.segment_ids

    def _is_kept_elsewhere(self, segment: ReadableSegment) -> bool:
        """True when the archive has the segment, or does not need it.

        Without an archive no segment is archived. Segments that are read again on request are not archived again. A
        spilled segment that is read a second time is: it may have been reported as a gap before, so the archive may
        lack it.
        """
        if self._archiving is None or (segment.is_read_again and not segment.is_spilled):
            return True
        if segment.path in self._archived:
            return True
        archived = self._archiving.is_archived(segment.path)
        if archived:
            self._archived.add(segment.path)
        self._metrics.segments_archived += archived
        self._metrics.archive_failures = self._archiving.failures
        return archived


def _is_same_file(segment: ReadableSegment) -> bool:
    """False when the file of a queued segment is gone, or is another one than in the listing, which was not read.

    While the reader reads other segments, there is no new listing. But an operator may queue the segment once more as
    soon as its file is gone.
    """
    if segment.queued_file is None:
        return True
    try:
        found = segment.path.stat()
    except OSError:
        return False
    return (found.st_ino, found.st_mtime_ns) == segment.queued_file
