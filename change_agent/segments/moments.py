"""Moments: finds the time up to which the reader has read every write that the node has acknowledged.

A moment is a time that is taken before all segments are checked. Each write that the node acknowledged before this time
was complete in the log at that check. So the reader has read all these writes once it has read what the log had at the
check. Two rules say how much that is:

    mapped      A plain segment that Cassandra writes through a memory map: everything up to the last byte that is not
                zero. Space that was allocated to an entry, but is not filled yet, may stand before acknowledged
                entries. The reader stops before it, so the moment waits, too. The reader may also leave entries unread
                because they are not synced. They are passed over if they have no change of a published table: a segment
                without such a change gets no index.
    buffered    A compressed or encrypted segment, or one that is written with direct I/O: its bytes reach the file with
                their sync. When the index has moved three times after the check, every write that was acknowledged
                before the check is before the index. The first move may belong to a sync that began before the moment.
                The second move covers all of this segment, but its sync may go on to the next segment. The third sync
                begins after the second has ended.

docs/architecture.md has the proof. Cassandra source: o.a.c.db.commitlog.CommitLogSegment.sync,
AbstractCommitLogSegmentManager.sync and advanceAllocatingFrom, CommitLogSegmentManagerCDC.permitSegmentMaybe.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from change_agent.cdc_raw.listing import ReadableSegment
from change_agent.commitlog.written_end import WrittenEnd
from change_agent.errors import CommitLogReadError
from change_agent.segments.unsynced_peek import Tables, UnsyncedPeek

__all__ = ["Moments"]

_log: Final = logging.getLogger(__name__)
_INDEX_MOVES: Final = 3
# The largest number of moments that wait for the reader. When there are more, every second one is dropped.
_MOST_WAITING: Final = 32
_MOST_SEEN: Final = 256
# `behind` gives no reason for this time (plus the interval): under load a moment often waits for the reader.
_QUIET_S: Final = 2.0
# The pause after a check, as a multiple of its CPU time. If the file system does not report holes, a check reads the
# rest of a segment.
_REST: Final = 200
_NO_SEGMENT: Final = (
    "Cassandra writes to no segment in cdc_raw (was the node restarted with cdc_enabled: false? is it the right folder?"
    " is cdc_raw full?)"
)
_NOT_LINKED: Final = "the segment that Cassandra writes now is not in cdc_raw, as when cdc_raw is full"


class ReadState(Protocol):
    """How far the reader is. Used by the reader's thread, when everything that was read is handed over."""

    def read_position(self, segment_id: int) -> int | None:
        """The position up to which the segment was read and handed over; None while the segment is not open."""

    def is_ended(self, segment_id: int) -> bool:
        """True when the segment was read to its end."""

    def is_wanted(self, segment_id: int) -> bool:
        """True when the agent has opened the segment or keeps account of it: then it must be read to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """The part of a segment that a moment needs.

    `end`: the position up to which the segment must be read. `moves`: the number of moves that the index must have
    made; then the segment must be read up to the index. If both are None, the segment must be read to its end.
    """

    end: int | None = None
    moves: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    time_ms: int
    marks: Mapping[int, _Mark]


class Moments:
    """Used by the reader's thread; `behind` by any thread.

    `on_passed` is called with the time of the newest moment that was passed. `floor_ms` is the newest time that an
    earlier agent of the node has published. The times that are passed to `on_passed` never go back.
    """

    def __init__(
        self,
        interval_s: float,
        on_passed: Callable[[int], None],
        *,
        floor_ms: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.interval_s: Final = interval_s
        self._on_passed: Final = on_passed
        self._clock: Final = clock
        self._passed_ms = floor_ms
        self._due_at = 0.0
        self._waiting: Final[deque[_Moment]] = deque()
        self._files: Final[dict[int, WrittenEnd]] = {}
        # For each segment: how often its index was seen to move, and its limit; at this listing, and at the one before.
        self._moves: dict[int, tuple[int, int]] = {}
        self._moves_before: dict[int, tuple[int, int]] = {}
        self._indexed: frozenset[int] = frozenset()
        self._listed: frozenset[int] = frozenset()
        # The ids of the last `_MOST_SEEN` segments that were listed, in the order of their last listing.
        self._seen: Final[dict[int, None]] = {}
        self._peeks: Final[dict[int, UnsyncedPeek]] = {}
        self._behind = "the log was not checked yet"
        self._passed_at = time.monotonic()
        self.has_checked = False
        """True once the node's log was checked. A second agent of the node, which waits, does not check it."""

    @property
    def behind(self) -> str | None:
        """The reason why no moment was passed for a while; None while moments are passed."""
        return self._behind if time.monotonic() > self._passed_at + _QUIET_S + self.interval_s else None

    def next_ms(self) -> int | None:
        """The time of the next moment, which must be taken before the folder is listed; None while no moment is due."""
        if time.monotonic() < self._due_at:
            return None
        self._due_at = time.monotonic() + self.interval_s
        return int(self._clock() * 1000)

    def begin(self, time_ms: int | None, segments: Sequence[ReadableSegment], state: ReadState) -> None:
        """Begin a moment, unless `time_ms` is None: note what the reader must read until it is passed.

        `segments` are all segments, also those without an index. They were listed after `time_ms` was taken.
        """
        own = [each for each in segments if not each.is_read_again]
        self._listed = frozenset(each.segment_id for each in own)
        unread = [each for each in own if not state.is_ended(each.segment_id)]
        self._count_moves(unread)
        self._note_seen(unread)
        self._close_all_but({each.segment_id for each in unread if not each.final})
        if time_ms is None:
            return
        began_s = time.thread_time()
        try:
            problem = self._take(time_ms, unread, state)
        except (OSError, CommitLogReadError) as error:
            # Cassandra is just creating or removing the file.
            _log.debug("%s", error)
            problem = f"a segment cannot be checked ({error})"
        self._due_at = max(self._due_at, time.monotonic() + _REST * (time.thread_time() - began_s))
        if problem is not None:
            self._behind = problem
        self.has_checked = True

    def settle(self, state: ReadState, tables: Tables) -> None:
        """Report the newest moment that is passed. Everything that was read must be handed over."""
        if not self._waiting:
            return
        now_ms = int(self._clock() * 1000)
        if any(each.time_ms > now_ms for each in self._waiting):
            # The clock went back: writes are again acknowledged at times before these moments.
            self._waiting.clear()
            self._behind = "the clock of this machine went back"
        newest: int | None = None
        while self._waiting and (why := self._missing(self._waiting[0], state, tables)) is None:
            newest = self._waiting.popleft().time_ms
        if self._waiting:
            self._behind = why or ""
        if newest is None:
            return
        if newest < self._passed_ms:
            seconds = (self._passed_ms - newest) / 1000
            self._behind = (
                f"the clock of this machine was set back: it is {seconds:.1f} s before what was published already"
            )
            return
        self._passed_ms, self._passed_at = newest, time.monotonic()
        self._on_passed(newest)

    def close(self) -> None:
        """Close all files."""
        self._close_all_but(set())

    def _take(self, time_ms: int, unread: Sequence[ReadableSegment], state: ReadState) -> str | None:
        marks: dict[int, _Mark] = {}
        is_open = False
        for segment in unread:
            if segment.final or not segment.log_exists:
                marks[segment.segment_id] = _Mark()
                continue
            file = self._file(segment)
            end = file.find()
            if end is None:
                moves = self._moves.get(segment.segment_id, (0, 0))[0]
                marks[segment.segment_id] = _Mark(moves=moves + _INDEX_MOVES)
                is_open = is_open or segment.has_index
                continue
            before = segment.segment_id - 1
            if not is_open and end <= file.header_size and not (before in self._seen or state.is_ended(before)):
                return _NOT_LINKED
            # False for segments of an earlier run of the node: it has removed its own name for them at its start.
            is_open = is_open or file.is_written
            # A segment without entries has nothing to be read, and the reader may not have opened it yet.
            marks[segment.segment_id] = _Mark(end=end if end > file.header_size else 0)
        if not is_open:
            return _NO_SEGMENT
        self._waiting.append(_Moment(time_ms=time_ms, marks=marks))
        if len(self._waiting) > _MOST_WAITING:
            kept = list(self._waiting)
            self._waiting.clear()
            self._waiting.extend(kept[::2])
        return None

    def _missing(self, moment: _Moment, state: ReadState, tables: Tables) -> str | None:
        """A text that says what of the moment is not read yet; None when everything is read."""
        # The moves of the listing before count here: an index that the same sync created for a later segment is listed
        # by now.
        reached = max(
            (each for each, mark in moment.marks.items() if _has_moved(self._moves_before, each, mark)), default=0
        )
        for segment_id, mark in moment.marks.items():
            if state.is_ended(segment_id) or not (segment_id in self._listed or state.is_wanted(segment_id)):
                continue
            if mark.moves is not None and segment_id not in self._indexed and 0 < reached < segment_id:
                continue
            if (why := self._missing_of(segment_id, mark, state, tables)) is not None:
                return why
        return None

    def _missing_of(self, segment_id: int, mark: _Mark, state: ReadState, tables: Tables) -> str | None:
        if mark.moves is not None:
            if not _has_moved(self._moves, segment_id, mark):
                return f"segment {segment_id}: the node keeps writes in memory until their sync; its index has to move again"
            wanted = self._moves[segment_id][1]
        elif mark.end is None:
            return f"segment {segment_id} is not read to its end yet"
        else:
            wanted = mark.end
        position = state.read_position(segment_id) or 0
        if position < wanted and segment_id in self._peeks:
            position = self._peeks[segment_id].advance(position, tables)
        return f"segment {segment_id} is read up to position {position} of {wanted}" if position < wanted else None

    def _count_moves(self, unread: Sequence[ReadableSegment]) -> None:
        moves = {}
        for segment in unread:
            count, limit = self._moves.get(segment.segment_id, (0, 0))
            moves[segment.segment_id] = (count + (segment.limit != limit), segment.limit)
        self._moves_before, self._moves = self._moves, moves
        self._indexed = frozenset(each.segment_id for each in unread if each.has_index)

    def _note_seen(self, unread: Sequence[ReadableSegment]) -> None:
        for each in unread:
            self._seen.pop(each.segment_id, None)
            self._seen[each.segment_id] = None
        while len(self._seen) > _MOST_SEEN:
            del self._seen[next(iter(self._seen))]

    def _file(self, segment: ReadableSegment) -> WrittenEnd:
        found = self._files.get(segment.segment_id)
        if found is None:
            found = self._files[segment.segment_id] = WrittenEnd(segment.path)
            self._peeks[segment.segment_id] = UnsyncedPeek(segment.path)
        return found

    def _close_all_but(self, segment_ids: set[int]) -> None:
        for segment_id in self._files.keys() - segment_ids:
            self._files.pop(segment_id).close()
            self._peeks.pop(segment_id).close()


def _has_moved(moves: Mapping[int, tuple[int, int]], segment_id: int, mark: _Mark) -> bool:
    return mark.moves is not None and moves.get(segment_id, (0, 0))[0] >= mark.moves
