"""SecondReadings: the segments that are read a second time: on request, or because a spilled segment may be unread.

A segment also counts as finished after it was reported as a gap. If the disk of the spilled segments was not mounted
when the agent started, such segments come back later without having been read. They must not be deleted before they are
read. Earlier versions did not store which finished segments were lost (LostSegments), so each finished segment that is
found in the folder may be one.

A segment that an operator has queued may be queued once more as soon as its file is gone, also while the agent is down.
So a queued file counts as read only if this process has read it. After a restart it is read once more.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Final

from change_agent.cdc_raw.listing import ReadableSegment
from change_agent.cdc_raw.segment_key import SegmentKey, key_of_reading_again
from change_agent.positions.inflight import SegmentProgress
from change_agent.positions.segment_ids import SegmentIds

__all__ = ["SecondReadings"]

_log: Final = logging.getLogger(__name__)


class SecondReadings:
    """Knows which segments are read a second time, and which of them may be read again later.

    Used by the reader's thread.
    """

    def __init__(self, finished: SegmentIds) -> None:
        """`finished`: keys of the segments that earlier processes have finished."""
        # Segments that this process has read to their end, or has seen in `cdc_raw` before they were spilled as
        # finished.
        self._known_here = SegmentIds()
        # The queued files that this process has read to their end.
        self._read_files: Final[dict[SegmentKey, tuple[int, int] | None]] = {}
        self._read_twice: Final = set(finished.read_again())

    def adopt(self, finished: SegmentIds) -> None:
        """Continue from the finished segments of another machine."""
        self._read_twice.clear()
        self._read_twice.update(finished.read_again())

    def listed(
        self,
        segments: Sequence[ReadableSegment],
        before: Mapping[SegmentKey, ReadableSegment],
        ended: SegmentIds,
        lost: Container[SegmentKey],
    ) -> list[ReadableSegment]:
        """Return the same segments, in the order of their keys. `before`: the listing before this one.

        A segment of `lost` keeps its key, because it waits for its first reading.
        A spilled and finished segment that may be unread gets the key of a second reading. That includes a segment that
        an earlier process has read and not deleted: its events are published twice.
        """
        self._note_moved(segments, before, ended)
        keys, found = {each.key for each in segments}, []
        for segment in segments:
            is_read = segment.key not in ended or segment.key in self._known_here
            if not segment.is_spilled or is_read or segment.key in lost:
                found.append(segment)
                continue
            again = replace(segment, key=key_of_reading_again(segment.segment_id))
            if again.key in keys:
                continue  # an operator has queued the segment, too: that file is read first
            if again.key not in before:
                _log.warning("%s counts as finished, but may be unread: it is read before it is deleted", segment.path)
            found.append(again)
        return sorted(found, key=lambda each: each.key)

    def _note_moved(
        self, segments: Sequence[ReadableSegment], before: Mapping[SegmentKey, ReadableSegment], ended: SegmentIds
    ) -> None:
        """Note finished segments that the guard has moved since the last listing: they need no second reading.

        The guard also moves finished segments, for example while they wait for the archive.
        """
        moved = [
            each.key
            for each in segments
            if each.is_spilled and each.key in ended and each.key in before and not before[each.key].is_spilled
        ]
        self._known_here = self._known_here.adding(moved, before)

    def note_end(
        self,
        segment: ReadableSegment,
        listed: Mapping[SegmentKey, ReadableSegment],
        queued_file: tuple[int, int] | None,
    ) -> None:
        """Note that this process has read the segment to its end. `queued_file`: the file that it has read."""
        self._known_here = self._known_here.adding([segment.key], listed)
        if segment.is_read_again:
            self._read_twice.add(segment.key)
            self._read_files[segment.key] = queued_file

    def has_read(self, segment: ReadableSegment) -> bool:
        """False for a queued file that this process has not read to its end. Any thread may call this."""
        return segment.queued_file is None or self._read_files.get(segment.key) == segment.queued_file

    def queued_once_more(
        self,
        listed: Mapping[SegmentKey, ReadableSegment],
        ended: SegmentIds,
        progress: Mapping[SegmentKey, SegmentProgress],
    ) -> set[SegmentKey]:
        """Return the queued segments that count as finished, but whose files are to be read.

        A segment in `progress` waits: storing its end would end the account of this reading.
        """
        return {
            key
            for key, each in listed.items()
            if each.queued_file is not None and key in ended and key not in progress and not self.has_read(each)
        }

    def take_gone(
        self, listed: Mapping[SegmentKey, ReadableSegment], progress: Mapping[SegmentKey, SegmentProgress]
    ) -> set[SegmentKey]:
        """Return, and forget, the second readings whose files are gone.

        If such a file comes back, it is read from its beginning. A segment in `progress` is not returned: its folder
        may be missing only for a moment, or storing its end would end the account of the next reading.
        """
        gone = {each for each in self._read_twice - listed.keys() if each not in progress}
        self._read_twice.difference_update(gone)
        for each in gone:
            self._read_files.pop(each, None)
        return gone
