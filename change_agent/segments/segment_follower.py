"""SegmentFollower: reads what is new in the segments of `cdc_raw`, in the order of their ids, and hands events on.

It never deletes anything.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Final

from change_agent.cdc_raw.listing import ReadableSegment
from change_agent.cdc_raw.watcher import CdcRawWatcher
from change_agent.commitlog.reader import SegmentReader
from change_agent.commitlog.section_decoder import SegmentOptions
from change_agent.configuration.table_filter import TableFilter
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
from change_agent.positions.inflight import InflightPositions
from change_agent.positions.offsets import StoredPositions
from change_agent.publishing.event_batch import EventBatch, Publisher
from change_agent.segments.gap_detector import GapDetector, GoneSegments
from change_agent.segments.gaps import Gap, Gaps, gap_message, gap_records
from change_agent.segments.unparking import Unparker

__all__ = ["SegmentFollower"]

_log: Final = logging.getLogger(__name__)
_NO_OPTIONS: Final = SegmentOptions()
# Behind every position of a segment.
_END: Final = 2**62
# A segment that is neither final nor moving is not waited for any longer than this by the ones behind it.
_OPEN_REST_MS: Final = 10_000
# Longer than any usual period of sync.
_SYNC_MARGIN_MS: Final = 60_000
# Nothing is wrong with such a segment: another agent, or this one with another key store, reads it.
_NOT_FOR_US: Final = (UnsupportedVersionError, UnsupportedEncodingError, SegmentKeyError)


class SegmentFollower:
    """Owns the open segments. `run` is a thread's body; `stop` may be called by any thread.

    Segments that are stored as finished are not read again, though they may come back when Cassandra replays.
    """

    def __init__(
        self,
        watcher: CdcRawWatcher,
        interpreter: MutationInterpreter,
        unparker: Unparker,
        positions: InflightPositions,
        publisher: Publisher,
        metrics: AgentMetrics,
        stored: StoredPositions,
        stopping: threading.Event,
        gaps: Gaps,
        options: SegmentOptions = _NO_OPTIONS,
    ) -> None:
        self._watcher: Final = watcher
        self._interpreter: Final = interpreter
        self._unparker: Final = unparker
        self._positions: Final = positions
        self._metrics: Final = metrics
        self._stored = stored
        self._stopping: Final = stopping
        self._gaps: Final = gaps
        self._options: Final = options
        self._open: Final[dict[int, SegmentReader]] = {}
        # Segments with nothing more to do here, and the limits at which others failed.
        self._ended = stored.finished
        # Those of them that were read again: when they are gone, they may be wanted once more.
        self._read_again = set(stored.finished.negative())
        self._failed_at: Final[dict[int, int]] = {}
        self._detector: Final = GapDetector(stored.segments)
        # Segments that Cassandra does not write any more, as long as they are not finished.
        self._final: Final[set[int]] = set()
        self._told: Final[set[int]] = set()
        self._batch: Final = EventBatch(positions, publisher, metrics, stopping)
        # Replaced as a whole, for other threads: file name and limit of every segment with an index, by id.
        self.listed: Mapping[int, ReadableSegment] = {}

    def adopt(self, stored: StoredPositions) -> None:
        """Go on from these positions in place of those of the constructor; before `run`."""
        self._stored, self._ended = stored, stored.finished
        self._detector.know(stored.segments)

    def run(self) -> None:
        """Follow until `stopping` is set."""
        try:
            while not self._stopping.is_set():
                self._read_all()
                self._unparker.run()
                self._watcher.wait()
        except StoppedError:
            return
        finally:
            for reader in self._open.values():
                reader.close()

    def limits(self) -> dict[int, int]:
        """The synced limit of each segment that is not done, by id; for any thread."""
        ended, progress = self._ended, self._positions.progress()
        return {
            segment_id: each.limit
            for segment_id, each in self.listed.items()
            if segment_id in progress or segment_id not in ended
        }

    def use_filter(self, wanted: TableFilter) -> None:
        """Publish only tables that this admits, from the next look at `cdc_raw` on; for any thread."""
        self._interpreter.use_filter(wanted)

    def wake(self) -> None:
        """End the wait for new segments; `run` returns if the agent stops."""
        self._watcher.wake()

    def _read_all(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        segments = self._watcher.segments(now_ms)
        self._metrics.ignored_files = self._watcher.ignored_files
        if segments is None:
            return
        self.listed = {each.segment_id: each for each in segments}
        self._ended = self._ended.removing(self._read_again - self.listed.keys())
        self._read_again &= self.listed.keys()
        self._look_for_gaps(now_ms)
        unread = [each for each in segments if each.segment_id not in self._ended]
        if unread:
            # What the log says may need a schema as new as the log; a clock that is ahead must not stop us.
            self._interpreter.use_schema_of(min(now_ms, max(each.index_time_ms for each in unread)))
        for segment in unread:
            if not self._read(segment):
                break
            if not segment.final and now_ms - segment.index_time_ms < _OPEN_REST_MS:
                # Cassandra completes a segment before it syncs the next: order of keys first.
                break

    def _read(self, segment: ReadableSegment) -> bool:
        """False when it was moved since it was listed: the ones behind it wait for the next look."""
        if not segment.log_exists:
            return True
        if self._failed_at.get(segment.segment_id) == segment.limit and not segment.final:
            return True
        try:
            was_begun = segment.segment_id in self._open
            reader = self._reader(segment)
            # A place is stored as soon as a segment is seen: only one behind the header says that something was read.
            is_resumed = was_begun or reader.position > reader.descriptor.header_size
            self._interpreter.begin(segment.segment_id, segment.index_time_ms, is_resumed=is_resumed)
            self._read_entries(segment.segment_id, None if segment.final else segment.limit, reader)
        except CommitLogReadError as error:
            self._hand_over(segment.segment_id, None)
            if isinstance(error, SegmentFileError) and not segment.path.exists():
                return False
            self._note_failure(segment, error)
            return True
        self._positions.note_read_until(segment.index_time_ms)
        if segment.final:
            self._interpreter.end(segment.segment_id)
            self._finish(segment)
        return True

    def _reader(self, segment: ReadableSegment) -> SegmentReader:
        reader = self._open.get(segment.segment_id)
        if reader is None:
            stored = self._stored.segments.get(segment.segment_id)
            reader = SegmentReader(segment.path, 0 if stored is None else stored.position, self._options)
            self._open[segment.segment_id] = reader
            self._open_position(segment.segment_id, reader.position)
        return reader

    def _open_position(self, segment_id: int, position: int) -> None:
        stored = self._stored.segments.get(segment_id)
        self._positions.open(segment_id, position)
        if stored is not None and stored.keep:
            self._positions.keep(segment_id)
        if stored is not None and stored.fault is not None:
            self._positions.note_fault(segment_id, stored.fault)

    def _read_entries(self, segment_id: int, limit: int | None, reader: SegmentReader) -> None:
        self._batch.begin_segment()
        before = reader.position
        while True:
            try:
                for entry in reader.read(limit):
                    if self._stopping.is_set():
                        raise StoppedError
                    self._metrics.mutations_read += 1
                    events = self._interpreter.events_of(reader.name, abs(segment_id), reader.descriptor.version, entry)
                    if events:
                        self._batch.add(segment_id, entry.position, self._interpreter.node_id, events)
                    elif events is not None:
                        self._metrics.mutations_skipped += 1
                    if self._batch.is_due():
                        self._hand_over(segment_id, entry.position)
            except ChecksumMismatchError as error:
                if error.resume_position is None:
                    raise
                self._metrics.corrupt_entries += 1
                self._metrics.note_damage(error.damage)
                self._positions.note_fault(segment_id, str(error))
                _log.error("%s; the entry is skipped, and the segment is kept in the folder for errors", error)
                self._interpreter.note_missing(segment_id, error.resume_position)
                reader.skip_to(error.resume_position)
            else:
                break
        self._metrics.bytes_read += reader.position - before
        self._hand_over(segment_id, reader.position)

    def _hand_over(self, segment_id: int, position: int | None) -> None:
        """Give what was collected to the publisher; everything of the segment up to `position` was read."""
        self._interpreter.save()
        self._batch.hand_over()
        if position is not None:
            self._positions.advance(segment_id, position)

    def _note_failure(self, segment: ReadableSegment, error: CommitLogReadError) -> None:
        if isinstance(error, BufferUnderflowError) and not segment.final:
            # Not there yet: the index was seen before the bytes, or before the header.
            self._failed_at[segment.segment_id] = segment.limit
            return
        if isinstance(error, SegmentFileError):
            self._tell_unreadable(segment, f"{error}; retrying; the other segments continue")
            return
        corrupt = not isinstance(error, _NOT_FOR_US)
        what = "is set aside" if corrupt else "stays where it is"
        self._tell_unreadable(segment, f"{error}; the segment {what}; the other segments continue", error.damage)
        self._failed_at[segment.segment_id] = segment.limit
        if segment.final and corrupt:
            self._open_position(segment.segment_id, 0)
            self._positions.note_fault(segment.segment_id, str(error))
            self._finish(segment)
        elif segment.final:
            self._end(segment)

    def _tell_unreadable(self, segment: ReadableSegment, message: str, damage: Damage | None = None) -> None:
        if segment.segment_id not in self._told:
            self._told.add(segment.segment_id)
            self._metrics.segments_unreadable += 1
            self._metrics.note_damage(damage)
            _log.error("%s", message)

    def _finish(self, segment: ReadableSegment) -> None:
        self._positions.finish(segment.segment_id)
        self._metrics.segments_finished += 1
        self._end(segment)

    def _look_for_gaps(self, now_ms: int) -> None:
        new, gone = self._detector.look(self.listed, self._ended, now_ms)
        for segment_id in new:
            stored = self._stored.segments.get(segment_id)
            self._open_position(segment_id, 0 if stored is None else stored.position)
        self._final.update(each.segment_id for each in self.listed.values() if each.final)
        if gone is not None:
            self._note_gone(gone, now_ms)

    def _note_gone(self, gone: GoneSegments, now_ms: int) -> None:
        self._interpreter.use_schema_of(0)
        lost = [each for each in gone.segment_ids if not self._is_safe(each)]
        if not lost:
            return
        progress = self._positions.progress()
        until_ms = max(self._positions.acknowledged_until_ms, self._stored.until_ms)
        # What was written in the last moments before a sync is in the next one.
        from_ms = until_ms - _SYNC_MARGIN_MS if until_ms else None
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
        self._gaps.report(Gap(records=records, on_told=lambda: self._positions.finish(*lost)))

    def _is_safe(self, segment_id: int) -> bool:
        """True when nothing of a segment that is gone is lost: what of it could be read is read then."""
        stored = self._stored.segments.get(segment_id)
        self._open_position(segment_id, 0 if stored is None else stored.position)
        reader = self._open.pop(segment_id, None)
        self._ended = self._ended.adding([segment_id], self.listed)
        self._failed_at.pop(segment_id, None)
        self._told.discard(segment_id)
        safe = stored is not None and stored.fault is not None
        if reader is not None:
            # An open file outlives its name.
            with reader:
                try:
                    self._interpreter.begin(segment_id, time.time_ns() // 1_000_000, is_resumed=True)
                    self._read_entries(segment_id, None, reader)
                    safe = segment_id in self._final
                except CommitLogReadError as error:
                    self._hand_over(segment_id, None)
                    _log.error("%s", error)
        if safe:
            self._positions.finish(segment_id)
        return safe

    def _end(self, segment: ReadableSegment) -> None:
        self._ended = self._ended.adding([segment.segment_id], self.listed)
        if segment.segment_id < 0:
            self._read_again.add(segment.segment_id)
        self._detector.finished(segment.segment_id)
        self._final.discard(segment.segment_id)
        self._failed_at.pop(segment.segment_id, None)
        self._told.discard(segment.segment_id)
        reader = self._open.pop(segment.segment_id, None)
        if reader is not None:
            reader.close()
