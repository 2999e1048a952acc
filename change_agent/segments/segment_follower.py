"""SegmentFollower: reads new entries of the segments of `cdc_raw`, in the order of their ids, and passes events on.

    listing ──> MissingSegments.check ──> each unread segment: EntryReading.read ──> read_tail (`readUnsynced`)

It never deletes anything. KnownSegments has the state of all segments; this module has the order of the steps, and what
happens when a segment cannot be read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from change_agent.cdc_raw.listing import ReadableSegment
from change_agent.cdc_raw.segment_key import SegmentKey
from change_agent.cdc_raw.watcher import CdcRawWatcher
from change_agent.errors import (
    BufferUnderflowError,
    CommitLogReadError,
    Damage,
    SegmentFileError,
    SegmentKeyError,
    UnsupportedEncodingError,
    UnsupportedVersionError,
)
from change_agent.events.mutation_interpreter import StoppedError
from change_agent.parking.parked import ParkedMutations
from change_agent.positions.offsets import StoredPositions
from change_agent.positions.stops import EVERY_TABLE, REPAIR
from change_agent.segments.clearings import Clearings
from change_agent.segments.entry_reading import EntryReading
from change_agent.segments.followed_segment import Presence
from change_agent.segments.gaps import GapReporter
from change_agent.segments.late_events import LateEvents
from change_agent.segments.missing_segments import MissingSegments
from change_agent.segments.moments import Moments
from change_agent.segments.read_again import ReadAgain
from change_agent.segments.reader_parts import ReaderParts
from change_agent.segments.unparking import Unparker
from change_agent.segments.unsynced import UnsyncedReading

__all__ = ["SegmentFollower"]

_log: Final = logging.getLogger(__name__)
# How long later segments wait for a segment that is not final and whose index does not change.
_OPEN_REST_MS: Final = 10_000
# These errors do not mean damage: another version of the agent, or another key store, can read the segment.
_NOT_FOR_US: Final = (UnsupportedVersionError, UnsupportedEncodingError, SegmentKeyError)


class SegmentFollower:
    """`run` is the body of a thread; `wake` may be called by any thread.

    `is_set_aside` tells if the folder for errors holds a segment.
    """

    def __init__(
        self,
        parts: ReaderParts,
        watcher: CdcRawWatcher,
        parked: ParkedMutations,
        gaps: GapReporter,
        is_set_aside: Callable[[SegmentKey], bool],
        *,
        unsynced: UnsyncedReading | None = None,
        moments: Moments | None = None,
        clearings: Clearings | None = None,
    ) -> None:
        self._watcher: Final = watcher
        self._segments: Final = parts.segments
        self._interpreter: Final = parts.interpreter
        self._positions: Final = parts.positions
        self._metrics: Final = parts.metrics
        self._stopping: Final = parts.stopping
        self._stops: Final = parts.stops
        self._unsynced: Final = unsynced
        self._moments: Final = moments
        self._clearings: Final = clearings
        late = LateEvents(parts.interpreter, parts.positions, parts.publisher, parts.metrics, parts.stopping)
        self._unparker: Final = Unparker(parked, parts.interpreter, late, parts.metrics)
        self._reading: Final = EntryReading(parts, unsynced, clearings)
        self._missing: Final = MissingSegments(parts, self._reading, gaps, is_set_aside)
        self._repeating: Final = ReadAgain(parts.interpreter, late, parts.segments)
        # The place behind which another agent's positions let this one continue.
        self._begins_behind: tuple[int, int] | None = None
        # The segment that Cassandra is probably writing; its unsynced entries are read. None without `readUnsynced`.
        self._tail: ReadableSegment | None = None
        # False when an earlier segment is missing, or was passed over in this pass. Then `note_read_until` is not
        # called.
        self._is_unbroken = True

    def adopt(self, stored: StoredPositions) -> None:
        """Continue from these positions of another agent. To be called before `run`."""
        self._segments.adopt(stored)
        self._begins_behind = stored.last_place

    def run(self) -> None:
        """Read segments until `stopping` is set."""
        try:
            if self._begins_behind is not None:
                self._interpreter.begin_behind(*self._begins_behind)
            while not self._stopping.is_set():
                self._read_all()
                self._unparker.run()
                self._wait()
        except StoppedError:
            return
        finally:
            self._segments.close()
            if self._moments is not None:
                self._moments.close()

    def wake(self) -> None:
        """End the wait for new segments; `run` returns if the agent stops."""
        self._watcher.wake()

    def _wait(self) -> None:
        """Wait until the folder changes, at most for the poll interval. With `readUnsynced`, read entries meanwhile."""
        poll_s = self._watcher.poll_interval_s
        if self._moments is not None:
            poll_s = min(poll_s, self._moments.interval_s)
        if self._unsynced is None or self._tail is None:
            self._watcher.wait(poll_s)
            return
        until_s = time.monotonic() + poll_s
        interval_s = self._unsynced.min_interval_s
        while not self._watcher.wait(interval_s) and time.monotonic() < until_s:
            reader = self._segments.open(self._tail)
            before = self._metrics.mutations_read
            if not self._reading.read_tail(self._tail.key, reader) or reader.is_complete():
                return
            if self._moments is not None:
                self._moments.settle(self._segments, self._interpreter)
            self._publish_clearings()
            interval_s = self._unsynced.next_interval_s(interval_s, self._metrics.mutations_read - before)

    def _read_all(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        # Taken before the folder is listed: writes that were acknowledged before this time are in the listed segments.
        moment_ms = None if self._moments is None else self._moments.next_ms()
        segments = self._watcher.segments(now_ms)
        self._metrics.ignored_files = self._watcher.ignored_files
        if segments is None:
            return
        segments = self._segments.take_listing(segments)
        if self._segments.misses_any() or self._segments.has_returned(segments):
            # A moment includes only listed segments that count as unread: it would be passed without the changes of the
            # missing segment.
            moment_ms = None
        if self._moments is not None:
            self._moments.begin(moment_ms, [*segments, *self._watcher.unlisted], self._segments)
        self._read_new(segments, now_ms)
        if self._moments is not None:
            self._moments.settle(self._segments, self._interpreter)
        self._publish_clearings()

    def _read_new(self, segments: list[ReadableSegment], now_ms: int) -> None:
        self._segments.forget_second_readings()
        self._missing.check(now_ms)
        unread = self._segments.without_ended(segments)
        if unread:
            # Entries may need a schema as new as the log. min(): file times of a clock that is ahead must not stop us.
            self._interpreter.use_schema_of(min(now_ms, max(each.index_time_ms for each in unread)))
        self._find_clearings()
        if self._clearings is not None:
            self._clearings.publish_passed(self._segments, self._repeating.publish)
        self._tail = None
        # The next pass reports a missing segment as a gap. The gap's time window begins where reading was complete.
        self._is_unbroken = not (self._segments.misses_any() or self._segments.has_unreported())
        unsynced = self._unsynced
        for segment in unread:
            if unsynced is None and not (segment.has_index or segment.final):
                break
            if not self._read(segment):
                break
            if segment.final:
                continue
            if unsynced is not None and self._read_ahead(segment, unsynced):
                continue
            # Unsynced entries of later segments are not read: the changes of a key stay in order.
            unsynced = None
            if now_ms - segment.index_time_ms < _OPEN_REST_MS:
                # Cassandra completes a segment before it syncs the next.
                break

    def _find_clearings(self) -> None:
        if self._clearings is not None:
            self._clearings.find(next(iter(self._segments.first_readings()), None), self._segments.done_place)

    def _publish_clearings(self) -> None:
        """Publish truncations and drops that are due. Everything that was read must be handed over."""
        if self._clearings is not None:
            self._find_clearings()
            self._clearings.publish_due(self._segments, self._repeating.publish)

    def _read_ahead(self, segment: ReadableSegment, unsynced: UnsyncedReading) -> bool:
        """Read unsynced entries; True when the whole segment is written and read, so the next one may be read."""
        followed = self._segments.followed(segment.key)
        if followed is None or followed.reader is None:
            return False
        reader = followed.reader
        if not unsynced.may_read(reader) or not self._reading.read_tail(segment.key, reader):
            return False
        if not reader.is_complete():
            self._tail = segment
        return reader.is_complete()

    def _read(self, segment: ReadableSegment) -> bool:
        """Read the segment.

        False when it was moved after it was listed: then later segments wait for the next listing.
        """
        if not segment.log_exists:
            return self._pass_over(segment)
        followed = self._segments.follow(segment)
        if followed.failed_at == segment.limit and not segment.final:
            return self._pass_over(segment)
        try:
            was_begun = followed.reader is not None
            reader = self._segments.open(segment)
            if segment.final:
                self._segments.expect(segment.key, Presence.EXPECTED, reader.position)
            # A position is stored as soon as a segment is listed. Only a position after the header shows that an entry
            # was read.
            is_resumed = was_begun or reader.position > reader.descriptor.header_size
            self._interpreter.begin(segment.key, segment.index_time_ms, is_resumed=is_resumed)
            self._reading.read(segment.key, reader, None if segment.final else segment.limit)
        except CommitLogReadError as error:
            self._reading.hand_over(segment.key, None)
            if not (segment.has_index or segment.final):
                # Cassandra is just creating the segment.
                _log.debug("%s", error)
                return True
            if isinstance(error, SegmentFileError) and not segment.path.exists():
                return False
            self._note_failure(segment, error)
            return self._pass_over(segment)
        self._interpreter.note_read(segment.key, segment.index_time_ms)
        if self._is_unbroken and not segment.is_read_again:
            self._positions.note_read_until(segment.index_time_ms)
        if segment.final:
            self._reading.note_unsynced(reader)
            self._interpreter.end(segment.key)
            self._finish(segment)
        return True

    def _pass_over(self, segment: ReadableSegment) -> bool:
        """Leave the segment unread and continue with later ones; returns True for `_read`.

        `_is_unbroken` becomes False, unless this would have been a second reading.
        """
        self._is_unbroken = self._is_unbroken and segment.is_read_again
        return True

    def _note_failure(self, segment: ReadableSegment, error: CommitLogReadError) -> None:
        if isinstance(error, BufferUnderflowError) and not segment.final:
            # The index was seen before the bytes that it counts, or before the header.
            self._segments.follow(segment).failed_at = segment.limit
            return
        if isinstance(error, SegmentFileError):
            self._report_unreadable(segment, f"{error}; retrying; the other segments continue")
            return
        corrupt = not isinstance(error, _NOT_FOR_US)
        what = "is set aside" if corrupt else "stays where it is"
        self._report_unreadable(segment, f"{error}; the segment {what}; the other segments continue", error.damage)
        self._segments.follow(segment).failed_at = segment.limit
        if segment.final:
            self._stops.note(EVERY_TABLE, f"{error}; the segment {what}, and changes in it are not published: {REPAIR}")
        if segment.final and corrupt:
            self._segments.open_account(segment.key, 0)
            self._positions.note_fault(segment.key, str(error))
            self._finish(segment)
        elif segment.final:
            self._segments.end(segment)

    def _report_unreadable(self, segment: ReadableSegment, message: str, damage: Damage | None = None) -> None:
        followed = self._segments.follow(segment)
        if not followed.is_reported:
            followed.is_reported = True
            self._metrics.segments_unreadable += 1
            self._metrics.note_damage(damage)
            _log.error("%s", message)

    def _finish(self, segment: ReadableSegment) -> None:
        self._positions.finish(segment.key)
        self._metrics.segments_finished += 1
        self._segments.end(segment)
