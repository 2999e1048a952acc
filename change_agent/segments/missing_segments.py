"""MissingSegments: what happens to a segment whose file is gone before it was read to its end.

An open file can be read although its name was removed, so its rest is read first. What is then still unread is lost: it
is reported on the gaps topic, and all tables' progress stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from change_agent.cdc_raw.segment_key import SegmentKey, is_read_again
from change_agent.errors import CommitLogReadError
from change_agent.positions.stops import EVERY_TABLE, REPAIR
from change_agent.segments.entry_reading import EntryReading
from change_agent.segments.followed_segment import Presence
from change_agent.segments.gap_detector import GoneSegments
from change_agent.segments.gaps import Gap, GapReporter, gap_message, gap_records
from change_agent.segments.reader_parts import ReaderParts

__all__ = ["MissingSegments"]

_log: Final = logging.getLogger(__name__)
# Larger than every position in a segment.
_END: Final = 2**62
# Longer than any usual period of sync.
_SYNC_MARGIN_MS: Final = 60_000


class MissingSegments:
    """Used by the reader's thread. `is_set_aside` tells if the folder for errors holds a segment."""

    def __init__(
        self, parts: ReaderParts, reading: EntryReading, gaps: GapReporter, is_set_aside: Callable[[SegmentKey], bool]
    ) -> None:
        self._segments: Final = parts.segments
        self._interpreter: Final = parts.interpreter
        self._positions: Final = parts.positions
        self._metrics: Final = parts.metrics
        self._stops: Final = parts.stops
        self._reading: Final = reading
        self._gaps: Final = gaps
        self._is_set_aside: Final = is_set_aside

    def check(self, now_ms: int) -> None:
        """Compare the last listing with the segments that are known, and process those that are gone."""
        gone = self._segments.find_gone(now_ms)
        for key in self._segments.take_unlisted():
            self._leave_unpublished(key)
        if gone is not None:
            self._note_gone(gone, now_ms)
        self._abandon_faulty()

    def _leave_unpublished(self, key: SegmentKey) -> None:
        """Read the rest of a segment that is not listed any more and had no index; then close it.

        Cassandra has removed the segment or synced a later one. Usually the segment then has no change of a table with
        CDC. But a node that was killed removes the name at its next start even if the segment has changes.
        """
        followed = self._segments.followed(key)
        if followed is None:
            return
        if followed.reader is not None:
            try:
                self._reading.read_rest(key, followed.reader)
            except CommitLogReadError as error:
                _log.debug("%s", error)
        if followed.presence is Presence.UNPUBLISHED:
            self._segments.drop(key)

    def _note_gone(self, gone: GoneSegments, now_ms: int) -> None:
        self._interpreter.use_schema_of(0)
        lost = [each for each in gone.segments if not self._is_safe(each)]
        if not lost:
            return
        progress = self._positions.progress()
        until_ms = self._segments.acknowledged_until_ms
        # Writes of the last moments before a sync are in the next one.
        from_ms = until_ms - _SYNC_MARGIN_MS if until_ms else None
        self._segments.note_lost(lost)
        self._metrics.segments_gone_unread += len(lost)
        self._interpreter.note_missing(lost[-1], _END)
        _log.error("%s", gap_message(lost, from_ms, gone.to_ms))
        records = gap_records(
            lost,
            first_position=progress[lost[0]].position,
            from_ms=from_ms,
            to_ms=gone.to_ms,
            detected_ms=now_ms,
            node_id=self._interpreter.node_id,
            tables=self._interpreter.published_tables,
        )
        # Noted before the gap is reported: a gap can be closed as soon as it is reported. The records cover all changes
        # that are lost, so the progress continues when they are closed.
        self._stops.note(
            EVERY_TABLE,
            f"{len(lost)} segments went from cdc_raw before they were read: run cdc spark resync; or {REPAIR}",
            records,
        )
        self._gaps.report(Gap(records=records, on_reported=lambda: self._positions.abandon(*lost)))

    def _is_safe(self, key: SegmentKey) -> bool:
        """Read the rest of a missing segment, if its file is still open. True when nothing of the segment is lost."""
        self._segments.note_gone(key)
        # An earlier process read it to its end and moved it to the folder for errors, but ended before it could store
        # that.
        safe = self._segments.has_stored_fault(key) and self._is_set_aside(key)
        followed = self._segments.followed(key)
        if followed is not None and followed.reader is not None:
            try:
                self._reading.read_rest(key, followed.reader)
                self._reading.note_unsynced(followed.reader)
                safe = followed.final or followed.presence is Presence.EARLY
            except CommitLogReadError as error:
                self._reading.hand_over(key, None)
                _log.error("%s", error)
        self._segments.drop(key)
        if safe:
            self._positions.finish(key)
        return safe

    def _abandon_faulty(self) -> None:
        """End the accounts of faulty segments that were read to their end and are gone: no file can be set aside.

        Their faults were reported. If such a file comes back, it is read again, and set aside.
        """
        listed = self._segments.listed
        gone = [
            key
            for key, each in self._positions.progress().items()
            if each.read_to_end and each.fault is not None and key not in listed and not is_read_again(key)
        ]
        if gone := [key for key in gone if not self._is_set_aside(key)]:
            self._segments.note_lost(gone, is_reported=True)
            self._positions.abandon(*gone)
