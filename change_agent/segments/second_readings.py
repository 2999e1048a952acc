"""SecondReadings: segments that are read a second time: on request, and spilled ones that may not have been read at all.

A segment counts as finished when it was reported as a gap, too. If the disk of the spilled segments was away when the agent
started, they come back unread, and must not be deleted before they were read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from change_agent.cdc_raw.listing import ReadableSegment
from change_agent.cdc_raw.segment_key import SegmentKey, key_of_reading_again
from change_agent.positions.inflight import SegmentProgress
from change_agent.positions.segment_ids import SegmentIds

__all__ = ["SecondReadings"]

_log: Final = logging.getLogger(__name__)


class SecondReadings:
    """Which segments are read a second time, and which of them may be wanted once more. For the thread that reads."""

    def __init__(self, finished: SegmentIds) -> None:
        """`finished`: keys of the segments that earlier processes have finished."""
        # Segments that this process has read to their end, or has seen in `cdc_raw` when they were finished.
        self._known_here = SegmentIds()
        self._read_twice: Final = set(finished.read_again())

    def listed(
        self, segments: Sequence[ReadableSegment], before: Mapping[SegmentKey, ReadableSegment], ended: SegmentIds
    ) -> list[ReadableSegment]:
        """The same segments, in the order of their keys; a spilled and finished one that may be unread gets the key of a second
        reading. `before`: the listing before this one.

        A segment that an earlier process has read and not deleted is read again, too: its events are published twice.
        """
        self._note_moved(segments, before, ended)
        keys, found = {each.key for each in segments}, []
        for segment in segments:
            if not segment.is_spilled or segment.key not in ended or segment.key in self._known_here:
                found.append(segment)
                continue
            again = replace(segment, key=key_of_reading_again(segment.segment_id))
            if again.key in keys:
                continue  # an operator has queued it, too: it is read from there first
            if again.key not in before:
                _log.warning("%s counts as finished, but may be unread: it is read before it is deleted", segment.path)
            found.append(again)
        return sorted(found, key=lambda each: each.key)

    def _note_moved(
        self, segments: Sequence[ReadableSegment], before: Mapping[SegmentKey, ReadableSegment], ended: SegmentIds
    ) -> None:
        """The guard moves finished segments, too, while they wait for the archive."""
        moved = [
            each.key
            for each in segments
            if each.is_spilled and each.key in ended and each.key in before and not before[each.key].is_spilled
        ]
        self._known_here = self._known_here.adding(moved, before)

    def note_end(self, segment: ReadableSegment, listed: Mapping[SegmentKey, ReadableSegment]) -> None:
        """This process has read the segment to its end."""
        self._known_here = self._known_here.adding([segment.key], listed)
        if segment.is_read_again:
            self._read_twice.add(segment.key)

    def take_gone(
        self, listed: Mapping[SegmentKey, ReadableSegment], progress: Mapping[SegmentKey, SegmentProgress]
    ) -> set[SegmentKey]:
        """Those whose files are gone: they may be wanted once more, and are read from their beginning then.

        A segment whose events are not all acknowledged stays: its folder may be away for a moment only. One with a fault goes: it
        may have been set aside, mended and queued again before its end was stored.
        """
        gone = {
            each
            for each in self._read_twice - listed.keys()
            if each not in progress or progress[each].fault is not None
        }
        self._read_twice.difference_update(gone)
        return gone
