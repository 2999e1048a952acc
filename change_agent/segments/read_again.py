"""ReadAgain: publishes the events of one table again, from a position in the log up to the reader's position.

It is used only for the events after a truncation that was found late. Consumers drop the copies, or read the current
row again. A segment stays until the events that are published again are acknowledged, or held on disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from change_agent.cdc_raw.segment_key import SegmentKey
from change_agent.commitlog.entry import CommitLogEntry
from change_agent.commitlog.reader import SegmentReader
from change_agent.errors import CommitLogReadError
from change_agent.events.mutation_interpreter import MutationInterpreter
from change_agent.positions.accounts import TrackedEntry
from change_agent.segments.known_segments import KnownSegments
from change_agent.segments.late_events import LateEvents

__all__ = ["ReadAgain"]

_log: Final = logging.getLogger(__name__)
# Larger than every position in a segment.
_END: Final = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The part of a segment that is read again. `start` is the beginning of an entry, or 0."""

    segment_id: int
    path: Path
    start: int
    end: int


class ReadAgain:
    """Used by the reader's thread."""

    def __init__(self, interpreter: MutationInterpreter, late: LateEvents, segments: KnownSegments) -> None:
        self._interpreter: Final = interpreter
        self._late: Final = late
        self._segments: Final = segments

    def publish(self, table_id: UUID, segment_id: int, position: int) -> Sequence[TrackedEntry]:
        """Publish the events of a table again, from this position in the log on. Return their entries.

        Events of deleted segments, and those behind a damage, cannot be published again; the log reports that. Raises
        StoppedError.
        """
        if self._segments.is_ended(segment_id) and SegmentKey(segment_id) not in self._segments.listed:
            _log.warning(
                "segment %d was published and deleted before the truncation of table %s in it was found; writes that were under way "
                "then may be taken for removed: verify the table",
                segment_id,
                table_id,
            )
        found: list[TrackedEntry] = []
        count = 0
        for part in self._parts(segment_id, position):
            try:
                for entry, events in self._read(table_id, part):
                    found.append(entry)
                    count += events
            except CommitLogReadError as error:
                _log.warning(
                    "%s; writes of table %s that were under way during its truncation may be taken for removed: verify it",
                    error,
                    table_id,
                )
        if count:
            _log.info("%d events of table %s behind its truncation are published once more", count, table_id)
        return found

    def _parts(self, segment_id: int, position: int) -> Sequence[_Part]:
        """What was read of the listed segments from this position on. The segments get accounts, if they have none."""
        segments, parts = self._segments, []
        for each in segments.first_readings():
            end = _END if segments.is_ended(each) else segments.reached(each)
            start = position if each == segment_id else 0
            if each >= segment_id > 0 and end > start:
                segments.open_stored_account(each)
                parts.append(_Part(segment_id=each, path=segments.listed[each].path, start=start, end=end))
        return parts

    def _read(self, table_id: UUID, part: _Part) -> Iterator[tuple[TrackedEntry, int]]:
        """Yield the entries with events of the table, and the number of these events."""
        with SegmentReader(part.path, part.start, self._segments.options) as reader:
            now_ms = time.time_ns() // 1_000_000
            self._interpreter.begin(part.segment_id, now_ms, is_resumed=True, goes_back=True)
            version = reader.descriptor.version
            for entry in _entries(reader, part.end):
                payload = entry.payload
                if payload[0] == 1 and payload[1:17] != table_id.bytes:
                    continue
                events = self._interpreter.events_of(reader.name, part.segment_id, version, entry)
                mine = [each for each in events or () if each.keys.table.table_id == table_id]
                if mine:
                    keeps = SegmentKey(part.segment_id)
                    yield self._late.publish(mine, part.segment_id, entry.position, keeps=keeps), len(mine)


def _entries(reader: SegmentReader, end: int) -> Iterator[CommitLogEntry]:
    for entry in reader.read():
        if entry.position > end:
            return
        yield entry
    for entry in reader.read_unsynced():
        if entry.position > end:
            return
        yield entry
