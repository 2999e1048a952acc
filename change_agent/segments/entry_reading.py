"""EntryReading: reads the entries of open segments, and hands their events over to the publisher, in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Final

from change_agent.cdc_raw.segment_key import SegmentKey, segment_id_of
from change_agent.commitlog.entry import CommitLogEntry
from change_agent.commitlog.reader import EntriesTaker, SegmentReader
from change_agent.errors import ChecksumMismatchError, SegmentFileError
from change_agent.events.mutation_interpreter import StoppedError
from change_agent.native_core import EncodedEntries
from change_agent.positions.stops import EVERY_TABLE, REPAIR
from change_agent.publishing.event_batch import EventBatch
from change_agent.segments.clearings import Clearings
from change_agent.segments.followed_segment import Presence
from change_agent.segments.reader_parts import ReaderParts
from change_agent.segments.unsynced import UnsyncedReading

__all__ = ["EntryReading"]

_log: Final = logging.getLogger(__name__)


class EntryReading:
    """Used by the reader's thread. All methods that read raise StoppedError when the agent stops."""

    def __init__(self, parts: ReaderParts, unsynced: UnsyncedReading | None, clearings: Clearings | None) -> None:
        self._segments: Final = parts.segments
        self._interpreter: Final = parts.interpreter
        self._positions: Final = parts.positions
        self._metrics: Final = parts.metrics
        self._stops: Final = parts.stops
        self._stopping: Final = parts.stopping
        self._batch: Final = EventBatch(parts.positions, parts.publisher, parts.metrics, parts.stopping)
        self._unsynced: Final = unsynced
        self._clearings: Final = clearings

    def read(self, key: SegmentKey, reader: SegmentReader, limit: int | None) -> None:
        """Read up to the limit; None: up to the segment's end. Raises CommitLogReadError.

        A damaged entry is reported and skipped, if it is known where the next one begins.
        """
        self._batch.begin_segment()
        before = reader.position
        while True:
            try:
                self._read_to(key, reader, limit)
            except ChecksumMismatchError as error:
                if error.resume_position is None:
                    raise
                self._note_damaged_entry(key, before, error)
                self._interpreter.note_missing(key, error.resume_position)
                reader.skip_to(error.resume_position)
            else:
                break
        if limit is None and self._unsynced is not None and self._unsynced.may_read(reader):
            # A part of the unsynced entries may be published already. So all of them are published, and reported.
            self._read_some(key, reader, reader.read_unsynced_by(self._taker(reader)))
        self._metrics.bytes_read += reader.position - before
        self.hand_over(key, reader.position)

    def read_rest(self, key: SegmentKey, reader: SegmentReader) -> None:
        """Read a segment whose file has no name any more to its end. Raises CommitLogReadError."""
        self._interpreter.begin(key, time.time_ns() // 1_000_000, is_resumed=True)
        self.read(key, reader, None)

    def read_tail(self, key: SegmentKey, reader: SegmentReader) -> bool:
        """Read the entries that Cassandra has written since its last sync; False when the file cannot be read now."""
        before = reader.position
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
                self.hand_over(key, reader.position)
        return True

    def hand_over(self, key: SegmentKey, position: int | None) -> None:
        """Give the collected events to the publisher.

        `position`: how far the segment was read; None if that is not known.
        """
        self._interpreter.save()
        self._batch.hand_over()
        if position is not None:
            self._segments.advance(key, position)

    def note_unsynced(self, reader: SegmentReader) -> None:
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

    def _note_damaged_entry(self, key: SegmentKey, before: int, error: ChecksumMismatchError) -> None:
        self._metrics.corrupt_entries += 1
        self._metrics.note_damage(error.damage)
        self._segments.expect(key, Presence.EARLY, before)
        self._positions.note_fault(key, str(error))
        self._stops.note(EVERY_TABLE, f"{error}; the entry is skipped: {REPAIR}")
        _log.error("%s; the entry is skipped, and the segment is kept in the folder for errors", error)

    def _read_to(self, key: SegmentKey, reader: SegmentReader, limit: int | None) -> None:
        """Read up to the limit. A truncation is published between the entries before and behind its position."""
        clearings = self._clearings
        while clearings is not None and (stop := clearings.stop_in(key, reader.position)) is not None:
            if limit is not None and stop > limit:
                break
            self._read_some(key, reader, reader.read_by(self._taker(reader), stop))
            self.hand_over(key, reader.position)
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
                self._segments.expect(key, Presence.EARLY, before)
                self._batch.add(key, entry.position, self._interpreter.node_id, events)
            elif events is not None:
                self._metrics.mutations_skipped += 1
            else:
                self._segments.expect(key, Presence.EARLY, before)
            if self._batch.is_due():
                self.hand_over(key, entry.position)

    def _add_encoded(self, key: SegmentKey, before: int, taken: EncodedEntries) -> None:
        self._metrics.mutations_read += taken.entries
        self._metrics.mutations_skipped += taken.skipped
        if runs := self._interpreter.runs_of(taken):
            if not self._batch.has_room(sum(len(run) for _, run in runs)):
                self.hand_over(key, None)
            self._segments.expect(key, Presence.EARLY, before)
            self._batch.add_runs(key, taken.events_end, self._interpreter.node_id, runs, taken.last_writetime_us or 0)
        if self._batch.is_due():
            self.hand_over(key, taken.end)
