"""SegmentFollower: reads new entries of the segments of `cdc_raw`, in the order of their ids, and passes events on.

It never deletes anything. The module has more than 500 lines because its steps share one state: the open segments, the
batch, and the set of ended segments. Steps that do not need all of it are in other modules (FollowedSegment, Moments,
GapDetector, Clearings, LostSegments, SecondReadings, UnsyncedReading).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from change_agent.cdc_raw.listing import ReadableSegment
from change_agent.cdc_raw.segment_key import SegmentKey, is_read_again, segment_id_of
from change_agent.cdc_raw.watcher import CdcRawWatcher
from change_agent.commitlog.entry import CommitLogEntry
from change_agent.commitlog.reader import EntriesTaker, SegmentReader
from change_agent.commitlog.section_decoder import SegmentOptions
from change_agent.errors import (
    BufferUnderflowError,
    ChecksumMismatchError,
    CommitLogReadError,
    Damage,
    SegmentFileError,
    SegmentKeyError,
    UnsupportedEncodingError,
    UnsupportedVersionError,
)
from change_agent.events.mutation_interpreter import MutationInterpreter, StoppedError
from change_agent.metrics import AgentMetrics
from change_agent.native_core import EncodedEntries
from change_agent.positions.inflight import InflightPositions, TrackedEntry
from change_agent.positions.offsets import StoredPositions
from change_agent.positions.stops import EVERY_TABLE, Stops
from change_agent.publishing.event_batch import EventBatch, Publisher
from change_agent.segments.clearings import Clearings
from change_agent.segments.followed_segment import FollowedSegment, Presence
from change_agent.segments.gap_detector import GapDetector, GoneSegments
from change_agent.segments.gaps import Gap, Gaps, gap_message, gap_records
from change_agent.segments.late_events import LateEvents
from change_agent.segments.lost_segments import LostSegments
from change_agent.segments.moments import Moments
from change_agent.segments.read_again import ReadAgain, ReadPart
from change_agent.segments.second_readings import SecondReadings
from change_agent.segments.unparking import Unparker
from change_agent.segments.unsynced import UnsyncedReading
from schemas.gap_record import GapRecord

__all__ = ["SegmentFollower"]

_log: Final = logging.getLogger(__name__)
_NO_OPTIONS: Final = SegmentOptions()
# Larger than every position in a segment.
_END: Final = 2**62
# How long later segments wait for a segment that is not final and whose index does not change.
_OPEN_REST_MS: Final = 10_000
# Longer than any usual period of sync.
_SYNC_MARGIN_MS: Final = 60_000
# For stops that a closing record on the gaps topic does not end.
_REPAIR: Final = "run cdc spark verify --repair on the tables, then cdc agent resume-progress"
# These errors do not mean damage: another version of the agent, or another key store, can read the segment.
_NOT_FOR_US: Final = (UnsupportedVersionError, UnsupportedEncodingError, SegmentKeyError)


class SegmentFollower:
    """Owns the open segments. `run` is the body of a thread; `wake` may be called by any thread.

    Segments that are stored as finished are not read again, although Cassandra may link them again when it replays its
    commit log. The exceptions are lost segments (LostSegments) and some spilled segments (SecondReadings).
    """

    def __init__(
        self,
        watcher: CdcRawWatcher,
        interpreter: MutationInterpreter,
        unparker: Unparker,
        late: LateEvents,
        positions: InflightPositions,
        publisher: Publisher,
        metrics: AgentMetrics,
        stored: StoredPositions,
        stopping: threading.Event,
        gaps: Gaps,
        options: SegmentOptions = _NO_OPTIONS,
        unsynced: UnsyncedReading | None = None,
        moments: Moments | None = None,
        stops: Stops | None = None,
        clearings: Clearings | None = None,
    ) -> None:
        self._watcher: Final = watcher
        self._interpreter: Final = interpreter
        self._unparker: Final = unparker
        self._positions: Final = positions
        self._metrics: Final = metrics
        self._stored = stored
        # Up to where earlier agents had read.
        self._done_place = stored.last_read_place
        self._is_taken_over = False
        self._stopping: Final = stopping
        self._gaps: Final = gaps
        self._options: Final = options
        self._unsynced: Final = unsynced
        self._moments: Final = moments
        self._stops: Final = stops
        self._clearings: Final = clearings
        self._repeating: Final = ReadAgain(interpreter, late, options)
        # The segment that Cassandra is probably writing; its unsynced entries are read. None without `readUnsynced`.
        self._tail: ReadableSegment | None = None
        self._followed: Final[dict[SegmentKey, FollowedSegment]] = {}
        # Segments that need no more reading.
        self._ended = stored.finished
        self._lost: Final = LostSegments(stored.lost)
        self._second_readings: Final = SecondReadings(stored.finished)
        self._is_set_aside: Callable[[SegmentKey], bool] = lambda _: False
        self._detector: Final = GapDetector(stored.segments)
        self._batch: Final = EventBatch(positions, publisher, metrics, stopping)
        # False when an earlier segment is missing, or was passed over in this pass. Then `note_read_until` is not
        # called.
        self._is_unbroken = True
        # Segments of gaps that the broker does not have yet. The next start finds these gaps again.
        self._unreported: set[SegmentKey] = set()
        # The segments of the last listing. Each listing replaces the mapping as a whole, because other threads read it.
        self.listed: Mapping[SegmentKey, ReadableSegment] = {}
        self.has_listed = False

    def adopt(self, stored: StoredPositions) -> None:
        """Continue from these positions of another agent. To be called before `run`."""
        self._stored, self._ended = stored, stored.finished
        self._done_place = stored.last_read_place
        self._is_taken_over = True
        self._lost.adopt(stored.lost)
        self._second_readings.adopt(stored.finished)
        self._detector.adopt(stored.segments)

    def ask_for_set_aside(self, is_set_aside: Callable[[SegmentKey], bool]) -> None:
        """Use this function to ask if the folder for errors holds a missing segment. To be called before `run`."""
        self._is_set_aside = is_set_aside

    def run(self) -> None:
        """Read segments until `stopping` is set."""
        try:
            if self._is_taken_over:
                self._interpreter.begin_behind(*self._stored.last_place)
            while not self._stopping.is_set():
                self._read_all()
                self._unparker.run()
                self._wait()
        except StoppedError:
            return
        finally:
            for segment in self._followed.values():
                segment.close()
            if self._moments is not None:
                self._moments.close()

    def limits(self) -> dict[SegmentKey, int]:
        """The limit up to which Cassandra has synced each segment that is not done; for any thread."""
        ended, progress = self._ended, self._positions.progress()
        return {key: each.limit for key, each in self.listed.items() if key in progress or key not in ended}

    def wake(self) -> None:
        """End the wait for new segments; `run` returns if the agent stops."""
        self._watcher.wake()

    def read_position(self, segment_id: int) -> int | None:
        """See Moments."""
        return self._read_position(SegmentKey(segment_id))

    def _read_position(self, segment: SegmentKey) -> int | None:
        followed = self._followed.get(segment)
        return None if followed is None or followed.reader is None else followed.reader.position

    def reached(self, segment_id: int) -> int:
        """See Clearings."""
        key = SegmentKey(segment_id)
        position, stored = self._read_position(key), self._stored.segments.get(key)
        if position is None:
            return 0 if stored is None else stored.position
        return position

    def is_ended(self, segment_id: int) -> bool:
        """See Moments."""
        return segment_id in self._ended

    def is_settled(self, key: SegmentKey) -> bool:
        """True when the segment was read to its end and its account is closed; for any thread.

        A stored finished segment may be read again: then its file is a new one, which must not be deleted.
        """
        segment = self.listed.get(key)
        is_other_file = segment is not None and not self._second_readings.has_read(segment)
        return key in self._ended and key not in self._positions.progress() and not is_other_file

    def unread(self, segment_id: int) -> list[int]:
        """See Clearings."""
        # A segment that is not listed has no index yet. It is listed, and then read, after its first sync.
        known = {*self._first_readings(), SegmentKey(segment_id)}
        return [each for each in known if 0 < each <= segment_id and each not in self._ended]

    def _first_readings(self) -> list[SegmentKey]:
        """The listed segments, in ascending order, without those that are read a second time."""
        return [each for each in sorted(self.listed) if not is_read_again(each)]

    def read_place(self) -> tuple[int, int]:
        """See Clearings."""
        read = [(each, self._read_position(each)) for each in self._followed if not is_read_again(each)]
        return max(((each, position) for each, position in read if position is not None), default=(0, 0))

    def is_wanted(self, segment_id: int) -> bool:
        """See Moments."""
        key = SegmentKey(segment_id)
        return key in self._followed or key in self._positions.progress()

    def confirm_schema(self) -> bool:
        """See Moments."""
        return self._interpreter.confirm_schema()

    def is_unpublished(self, entry: CommitLogEntry, version: int) -> bool:
        """See Moments."""
        return self._interpreter.is_unpublished(entry, version)

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
            reader = self._reader(self._tail)
            before = reader.position
            if not self._read_tail(self._tail, reader) or reader.is_complete():
                return
            if self._moments is not None:
                self._moments.settle(self)
            self._publish_clearings()
            interval_s = self._unsynced.next_interval_s(interval_s, found=reader.position > before)

    def _read_all(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        # Taken before the folder is listed: writes that were acknowledged before this time are in the listed segments.
        moment_ms = None if self._moments is None else self._moments.next_ms()
        segments = self._watcher.segments(now_ms)
        self._metrics.ignored_files = self._watcher.ignored_files
        if segments is None:
            return
        self._take_returned(segments)
        segments = self._second_readings.listed(segments, self.listed, self._ended, self._lost)
        self.listed = {each.key: each for each in segments}
        self.has_listed = True
        if self._detector.misses(self.listed) or self._lost.has_any_of(segments):
            # A moment includes only listed segments that count as unread: it would be passed without the changes of the
            # missing segment.
            moment_ms = None
        if self._moments is not None:
            self._moments.begin(moment_ms, [*segments, *self._watcher.unlisted], self)
        self._read_new(segments, now_ms)
        if self._moments is not None:
            self._moments.settle(self)
        self._publish_clearings()

    def _read_new(self, segments: list[ReadableSegment], now_ms: int) -> None:
        self._forget_second_readings()
        self._check_gaps(now_ms)
        unread = [each for each in segments if each.key not in self._ended]
        if unread:
            # Entries may need a schema as new as the log. min(): file times of a clock that is ahead must not stop us.
            self._interpreter.use_schema_of(min(now_ms, max(each.index_time_ms for each in unread)))
        self._find_clearings()
        if self._clearings is not None:
            self._clearings.publish_passed(self, self._publish_again)
        self._tail = None
        # The next pass reports a missing segment as a gap. The gap's time window begins where reading was complete.
        self._is_unbroken = not (self._detector.misses(self.listed) or self._has_unreported())
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

    def _has_unreported(self) -> bool:
        progress = self._positions.progress() if self._unreported else {}
        self._unreported = {each for each in self._unreported if each in progress and not progress[each].read_to_end}
        return bool(self._unreported)

    def _take_returned(self, segments: Sequence[ReadableSegment]) -> None:
        """Let lost segments whose files are there again be read from their beginning."""
        returned = self._lost.take_returned(segments, self._positions.progress())
        if returned:
            self._ended = self._ended.removing(returned)
            self._unreported -= returned
            places = self._stored.segments
            self._stored = replace(self._stored, segments={key: places[key] for key in places.keys() - returned})

    def _forget_second_readings(self) -> None:
        """Allow segments that were read a second time, and are gone or have a new file, to be read again.

        For the same reason, forget the stored position of a second reading that has a fault, a new file or none.
        """
        progress = self._positions.progress()
        again = self._second_readings.queued_once_more(self.listed, self._ended, progress)
        self._ended = self._ended.removing(self._second_readings.take_gone(self.listed, progress) | again)
        places = self._stored.segments
        old = {
            key
            for key, each in places.items()
            if is_read_again(key) and (each.fault or key not in self.listed or key in again)
        }
        if old:
            self._stored = replace(self._stored, segments={key: places[key] for key in places.keys() - old})

    def _find_clearings(self) -> None:
        if self._clearings is not None:
            self._clearings.find(next(iter(self._first_readings()), None), self._done_place)

    def _publish_clearings(self) -> None:
        """Publish truncations and drops that are due. Everything that was read must be handed over."""
        if self._clearings is not None:
            self._find_clearings()
            self._clearings.publish_due(self, self._publish_again)

    def _publish_again(self, table_id: UUID, segment_id: int, position: int) -> Sequence[TrackedEntry]:
        """Publish the events of a table again, from this position in the log on. Return their entries.

        Events of deleted segments cannot be published again; the log reports that.
        """
        if segment_id in self._ended and segment_id not in self.listed:
            _log.warning(
                "segment %d was published and deleted before the truncation of table %s in it was found; writes that were under way "
                "then may be taken for removed: verify the table",
                segment_id,
                table_id,
            )
        parts = []
        for each in self._first_readings():
            end = _END if each in self._ended else self.reached(each)
            start = position if each == segment_id else 0
            if each >= segment_id > 0 and end > start:
                self._open_stored(each)
                parts.append(ReadPart(segment_id=each, path=self.listed[each].path, start=start, end=end))
        return self._repeating.run(table_id, parts)

    def _open_stored(self, key: SegmentKey) -> None:
        """Open the account of a segment that an earlier process has begun to read, if this one has not read on yet.

        Without its account, the segment would not wait for events that are published again.
        """
        if key in self._stored.segments and key not in self._followed and key not in self._ended:
            self._open_position(key, self.reached(key))

    def _read_ahead(self, segment: ReadableSegment, unsynced: UnsyncedReading) -> bool:
        """Read unsynced entries; True when the whole segment is written and read, so the next one may be read."""
        followed = self._followed.get(segment.key)
        if followed is None or followed.reader is None:
            return False
        reader = followed.reader
        if not unsynced.may_read(reader) or not self._read_tail(segment, reader):
            return False
        if not reader.is_complete():
            self._tail = segment
        return reader.is_complete()

    def _read_tail(self, segment: ReadableSegment, reader: SegmentReader) -> bool:
        """Read the entries that Cassandra has written since its last sync; False when the file cannot be read now."""
        key, before = segment.key, reader.position
        self._interpreter.begin(key, time.time_ns() // 1_000_000, is_resumed=True)
        self._batch.begin_segment()
        try:
            self._read_some(key, reader, reader.read_unsynced_by(self._taker(reader)))
        except SegmentFileError as error:
            _log.debug("%s", error)
            return False
        finally:
            if reader.position > before:
                self._metrics.bytes_read += reader.position - before
                self._hand_over(key, reader.position)
        return True

    def _read(self, segment: ReadableSegment) -> bool:
        """Read the segment.

        False when it was moved after it was listed: then later segments wait for the next listing.
        """
        if not segment.log_exists:
            return self._pass_over(segment)
        followed = self._followed_segment(segment)
        if followed.failed_at == segment.limit and not segment.final:
            return self._pass_over(segment)
        try:
            was_begun = followed.reader is not None
            reader = self._reader(segment)
            if segment.final:
                self._expect(segment.key, Presence.EXPECTED, reader.position)
            # A position is stored as soon as a segment is listed. Only a position after the header shows that an entry
            # was read.
            is_resumed = was_begun or reader.position > reader.descriptor.header_size
            self._interpreter.begin(segment.key, segment.index_time_ms, is_resumed=is_resumed)
            self._read_entries(segment.key, None if segment.final else segment.limit, reader)
        except CommitLogReadError as error:
            self._hand_over(segment.key, None)
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
            self._note_unsynced(reader)
            self._interpreter.end(segment.key)
            self._finish(segment)
        return True

    def _pass_over(self, segment: ReadableSegment) -> bool:
        """Leave the segment unread and continue with later ones; returns True for `_read`.

        `_is_unbroken` becomes False, unless this would have been a second reading.
        """
        self._is_unbroken = self._is_unbroken and segment.is_read_again
        return True

    def _note_unsynced(self, reader: SegmentReader) -> None:
        """Report published changes of a finished segment that the node did not replay at its start."""
        if reader.unsynced_size:
            self._metrics.unsynced_bytes_lost += reader.unsynced_size
            _log.warning(
                "%s: the %d bytes before position %d were published before Cassandra synced them, and the node was killed or"
                " lost its power before: it does not have these writes after its start, other replicas may",
                reader.name,
                reader.unsynced_size,
                reader.position,
            )

    def _followed_segment(self, segment: ReadableSegment) -> FollowedSegment:
        key = segment.key
        followed = self._followed.get(key)
        if followed is None:
            is_expected = segment.has_index or segment.final or key in self._stored.segments
            presence = Presence.EXPECTED if is_expected else Presence.UNPUBLISHED
            followed = self._followed[key] = FollowedSegment(presence=presence)
        return followed

    def _reader(self, segment: ReadableSegment) -> SegmentReader:
        followed = self._followed_segment(segment)
        if followed.reader is None:
            stored = self._stored.segments.get(segment.key)
            position = 0 if stored is None else stored.position
            followed.queued_file = segment.queued_file
            followed.reader = SegmentReader(segment.path, position, self._options)
            if followed.presence is not Presence.UNPUBLISHED:
                self._open_position(segment.key, followed.reader.position)
        return followed.reader

    def _open_position(self, key: SegmentKey, position: int) -> None:
        stored = self._stored.segments.get(key)
        self._positions.open(key, position)
        if stored is not None and stored.keep:
            self._positions.keep(key)
        if stored is not None and stored.fault is not None:
            self._positions.note_fault(key, stored.fault)

    def _read_entries(self, key: SegmentKey, limit: int | None, reader: SegmentReader) -> None:
        self._batch.begin_segment()
        before = reader.position
        while True:
            try:
                self._read_to(key, reader, limit)
            except ChecksumMismatchError as error:
                if error.resume_position is None:
                    raise
                self._metrics.corrupt_entries += 1
                self._metrics.note_damage(error.damage)
                self._expect(key, Presence.EARLY, before)
                self._positions.note_fault(key, str(error))
                self._stop(EVERY_TABLE, f"{error}; the entry is skipped: {_REPAIR}")
                _log.error("%s; the entry is skipped, and the segment is kept in the folder for errors", error)
                self._interpreter.note_missing(key, error.resume_position)
                reader.skip_to(error.resume_position)
            else:
                break
        if limit is None and self._unsynced is not None and self._unsynced.may_read(reader):
            # A part of the unsynced entries may be published already. So all of them are published, and reported.
            self._read_some(key, reader, reader.read_unsynced_by(self._taker(reader)))
        self._metrics.bytes_read += reader.position - before
        self._hand_over(key, reader.position)

    def _read_to(self, key: SegmentKey, reader: SegmentReader, limit: int | None) -> None:
        """Read up to the limit. A truncation is published between the entries before and behind its position."""
        clearings = self._clearings
        while clearings is not None and (stop := clearings.stop_in(key, reader.position)) is not None:
            if limit is not None and stop > limit:
                break
            self._read_some(key, reader, reader.read_by(self._taker(reader), stop))
            self._hand_over(key, reader.position)
            clearings.publish_at(key, stop)
            if reader.position < stop:
                # The segment ends before the clearing's position, or this position is not the end of an entry.
                break
        self._read_some(key, reader, reader.read_by(self._taker(reader), limit))

    def _taker(self, reader: SegmentReader) -> EntriesTaker | None:
        return self._interpreter.taker(reader.name, reader.descriptor.version)

    def _read_some(
        self, key: SegmentKey, reader: SegmentReader, entries: Iterable[CommitLogEntry | EncodedEntries]
    ) -> None:
        before = reader.position
        for entry in entries:
            if self._stopping.is_set():
                raise StoppedError
            if not isinstance(entry, CommitLogEntry):
                self._add_encoded(key, before, entry)
                continue
            self._metrics.mutations_read += 1
            events = self._interpreter.events_of(reader.name, segment_id_of(key), reader.descriptor.version, entry)
            if events:
                self._expect(key, Presence.EARLY, before)
                self._batch.add(key, entry.position, self._interpreter.node_id, events)
            elif events is not None:
                self._metrics.mutations_skipped += 1
            else:
                self._expect(key, Presence.EARLY, before)
            if self._batch.is_due():
                self._hand_over(key, entry.position)

    def _add_encoded(self, key: SegmentKey, before: int, taken: EncodedEntries) -> None:
        self._metrics.mutations_read += taken.entries
        self._metrics.mutations_skipped += taken.skipped
        if runs := self._interpreter.runs_of(taken):
            if not self._batch.has_room(sum(len(run) for _, run in runs)):
                self._hand_over(key, None)
            self._expect(key, Presence.EARLY, before)
            self._batch.add_runs(key, taken.events_end, self._interpreter.node_id, runs, taken.last_writetime_us or 0)
        if self._batch.is_due():
            self._hand_over(key, taken.end)

    def _expect(self, key: SegmentKey, presence: Presence, position: int) -> None:
        """From now on, report the segment as a gap if it vanishes; no change if that is so already."""
        followed = self._followed[key]
        if followed.presence is Presence.UNPUBLISHED:
            followed.presence = presence
            self._open_position(key, position)
            self._detector.know([key])

    def _hand_over(self, key: SegmentKey, position: int | None) -> None:
        """Give the collected events to the publisher.

        `position`: how far the segment was read; None if that is not known.
        """
        self._interpreter.save()
        self._batch.hand_over()
        if position is not None and self._followed[key].presence is not Presence.UNPUBLISHED:
            self._positions.advance(key, position)

    def _note_failure(self, segment: ReadableSegment, error: CommitLogReadError) -> None:
        if isinstance(error, BufferUnderflowError) and not segment.final:
            # The index was seen before the bytes that it counts, or before the header.
            self._followed_segment(segment).failed_at = segment.limit
            return
        if isinstance(error, SegmentFileError):
            self._report_unreadable(segment, f"{error}; retrying; the other segments continue")
            return
        corrupt = not isinstance(error, _NOT_FOR_US)
        what = "is set aside" if corrupt else "stays where it is"
        self._report_unreadable(segment, f"{error}; the segment {what}; the other segments continue", error.damage)
        self._followed_segment(segment).failed_at = segment.limit
        if segment.final:
            self._stop(EVERY_TABLE, f"{error}; the segment {what}, and changes in it are not published: {_REPAIR}")
        if segment.final and corrupt:
            self._open_position(segment.key, 0)
            self._positions.note_fault(segment.key, str(error))
            self._finish(segment)
        elif segment.final:
            self._end(segment)

    def _stop(self, table: str, reason: str, gaps: Sequence[GapRecord] = ()) -> None:
        """Stop the progress of the table until an operator lets it continue.

        If `gaps` are given, they cover all changes that are lost, and the progress continues when they are closed.
        """
        if self._stops is not None:
            self._stops.note(table, reason, gaps)

    def _report_unreadable(self, segment: ReadableSegment, message: str, damage: Damage | None = None) -> None:
        followed = self._followed_segment(segment)
        if not followed.is_reported:
            followed.is_reported = True
            self._metrics.segments_unreadable += 1
            self._metrics.note_damage(damage)
            _log.error("%s", message)

    def _finish(self, segment: ReadableSegment) -> None:
        self._positions.finish(segment.key)
        self._metrics.segments_finished += 1
        self._end(segment)

    def _check_gaps(self, now_ms: int) -> None:
        new, gone = self._detector.check(self.listed, self._ended, now_ms)
        for key in new:
            stored = self._stored.segments.get(key)
            self._open_position(key, 0 if stored is None else stored.position)
        for key, followed in list(self._followed.items()):
            segment = self.listed.get(key)
            if segment is None and followed.presence is Presence.UNPUBLISHED:
                self._leave_unpublished(key, followed)
            elif segment is not None and segment.has_index:
                followed.presence = Presence.EXPECTED
            if segment is not None:
                followed.final = segment.final
        if gone is not None:
            self._note_gone(gone, now_ms)
        self._abandon_faulty()

    def _leave_unpublished(self, key: SegmentKey, followed: FollowedSegment) -> None:
        """Read the rest of a segment that is not listed any more and had no index; then close it.

        Cassandra has removed the segment or synced a later one. Usually the segment then has no change of a table with
        CDC. But a node that was killed removes the name at its next start even if the segment has changes.
        """
        if followed.reader is not None:
            try:
                self._interpreter.begin(key, time.time_ns() // 1_000_000, is_resumed=True)
                self._read_entries(key, None, followed.reader)
            except CommitLogReadError as error:
                _log.debug("%s", error)
        if followed.presence is Presence.UNPUBLISHED:
            del self._followed[key]
            followed.close()

    def _note_gone(self, gone: GoneSegments, now_ms: int) -> None:
        self._interpreter.use_schema_of(0)
        lost = [each for each in gone.segments if not self._is_safe(each)]
        if not lost:
            return
        progress = self._positions.progress()
        until_ms = max(self._positions.acknowledged_until_ms, self._stored.until_ms)
        # Writes of the last moments before a sync are in the next one.
        from_ms = until_ms - _SYNC_MARGIN_MS if until_ms else None
        self._lost.add(lost, self.listed)
        self._unreported.update(lost)
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
        # Noted before the gap is reported: a gap can be closed as soon as it is reported.
        self._stop(
            EVERY_TABLE,
            f"{len(lost)} segments went from cdc_raw before they were read: run cdc spark resync; or {_REPAIR}",
            records,
        )
        self._gaps.report(Gap(records=records, on_reported=lambda: self._positions.abandon(*lost)))

    def _is_safe(self, key: SegmentKey) -> bool:
        """Read the rest of a missing segment, if its file is still open. True when nothing of the segment is lost."""
        stored = self._stored.segments.get(key)
        self._open_position(key, 0 if stored is None else stored.position)
        self._ended = self._ended.adding([key], self.listed)
        # An earlier process read it to its end and moved it to the folder for errors, but ended before it could store
        # that.
        safe = stored is not None and stored.fault is not None and self._is_set_aside(key)
        followed = self._followed.get(key)
        if followed is not None and followed.reader is not None:
            # An open file can be read after its name was removed.
            with followed.reader as reader:
                try:
                    self._interpreter.begin(key, time.time_ns() // 1_000_000, is_resumed=True)
                    self._read_entries(key, None, reader)
                    self._note_unsynced(reader)
                    safe = followed.final or followed.presence is Presence.EARLY
                except CommitLogReadError as error:
                    self._hand_over(key, None)
                    _log.error("%s", error)
        self._followed.pop(key, None)
        if safe:
            self._positions.finish(key)
        return safe

    def _abandon_faulty(self) -> None:
        """End the accounts of faulty segments that were read to their end and are gone: no file can be set aside.

        Their faults were reported. If such a file comes back, it is read again, and set aside.
        """
        gone = [
            key
            for key, each in self._positions.progress().items()
            if each.read_to_end and each.fault is not None and key not in self.listed and not is_read_again(key)
        ]
        if gone := [key for key in gone if not self._is_set_aside(key)]:
            self._lost.add(gone, self.listed)
            self._positions.abandon(*gone)

    def _end(self, segment: ReadableSegment) -> None:
        self._ended = self._ended.adding([segment.key], self.listed)
        self._detector.finished(segment.key)
        followed = self._followed.pop(segment.key, None)
        queued_file = segment.queued_file if followed is None else followed.queued_file
        self._second_readings.note_end(segment, self.listed, queued_file)
        if followed is not None:
            followed.close()
