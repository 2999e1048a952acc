"""KnownSegments: what the reader knows of each segment: its file, how far it was read, and whether it has ended.

    listed ──> followed ──> ended                       it was read to its end
                  '──> gone ──> lost, and ended         its file went before that

A lost segment whose file comes back is listed again, as one that was never seen (LostSegments). An ended segment is not
read again, although Cassandra may link it again when it replays its commit log. The exceptions are in SecondReadings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from change_agent.cdc_raw.listing import ReadableSegment
from change_agent.cdc_raw.segment_key import SegmentKey, is_read_again
from change_agent.commitlog.reader import SegmentReader
from change_agent.commitlog.section_decoder import SegmentOptions
from change_agent.positions.inflight import InflightPositions
from change_agent.positions.offsets import StoredPositions
from change_agent.segments.followed_segment import FollowedSegment, Presence
from change_agent.segments.gap_detector import GapDetector, GoneSegments
from change_agent.segments.lost_segments import LostSegments
from change_agent.segments.second_readings import SecondReadings

__all__ = ["KnownSegments"]

_NO_OPTIONS: Final = SegmentOptions()


class KnownSegments:
    """Belongs to the reader's thread. Other threads may use `listed`, `has_listed`, `limits` and `is_settled`."""

    def __init__(
        self, positions: InflightPositions, stored: StoredPositions, options: SegmentOptions = _NO_OPTIONS
    ) -> None:
        self.options: Final = options
        self._positions: Final = positions
        self._stored = stored
        # Up to where earlier agents had read.
        self._done_place = stored.last_read_place
        self._followed: Final[dict[SegmentKey, FollowedSegment]] = {}
        # Segments that need no more reading.
        self._ended = stored.finished
        self._lost: Final = LostSegments(stored.lost)
        # Segments of gaps that the broker does not have yet. The next start finds these gaps again.
        self._unreported: set[SegmentKey] = set()
        self._second_readings: Final = SecondReadings(stored.finished)
        self._detector: Final = GapDetector(stored.segments)
        # The segments of the last listing. Each listing replaces the mapping as a whole, because other threads read it.
        self.listed: Mapping[SegmentKey, ReadableSegment] = {}
        self.has_listed = False

    def adopt(self, stored: StoredPositions) -> None:
        """Continue from these positions of another agent. To be called before the first listing."""
        self._stored, self._ended = stored, stored.finished
        self._done_place = stored.last_read_place
        self._lost.adopt(stored.lost)
        self._second_readings.adopt(stored.finished)
        self._detector.adopt(stored.segments)

    def close(self) -> None:
        """Close all files."""
        for segment in self._followed.values():
            segment.close()

    # The listing.

    def take_listing(self, segments: Sequence[ReadableSegment]) -> list[ReadableSegment]:
        """Take a new listing of the folders. Return its segments, in the order in which they are read."""
        self._take_returned(segments)
        found = self._second_readings.listed(segments, self.listed, self._ended, self._lost)
        self.listed = {each.key: each for each in found}
        self.has_listed = True
        return found

    def _take_returned(self, segments: Sequence[ReadableSegment]) -> None:
        """Let lost segments whose files are there again be read from their beginning."""
        returned = self._lost.take_returned(segments, self._positions.progress())
        if returned:
            self._ended = self._ended.removing(returned)
            self._unreported -= returned
            self._forget_stored(returned)

    def forget_second_readings(self) -> None:
        """Allow segments that were read a second time, and are gone or have a new file, to be read again.

        For the same reason, forget the stored position of a second reading that has a fault, a new file or none.
        """
        progress = self._positions.progress()
        again = self._second_readings.queued_once_more(self.listed, self._ended, progress)
        self._ended = self._ended.removing(self._second_readings.take_gone(self.listed, progress) | again)
        self._forget_stored(
            {
                key
                for key, each in self._stored.segments.items()
                if is_read_again(key) and (each.fault or key not in self.listed or key in again)
            }
        )

    def _forget_stored(self, keys: Collection[SegmentKey]) -> None:
        if keys:
            places = self._stored.segments
            self._stored = replace(self._stored, segments={key: places[key] for key in places.keys() - keys})

    def without_ended(self, segments: Iterable[ReadableSegment]) -> list[ReadableSegment]:
        """Those of these segments that are not ended."""
        return [each for each in segments if each.key not in self._ended]

    def first_readings(self) -> list[SegmentKey]:
        """The listed segments, in ascending order, without those that are read a second time."""
        return [each for each in sorted(self.listed) if not is_read_again(each)]

    # How far the log was read.

    @property
    def last_place(self) -> tuple[int, int]:
        """The segment and position up to which the events of earlier agents are acknowledged."""
        return self._stored.last_place

    @property
    def done_place(self) -> tuple[int, int]:
        """The segment and position up to which earlier agents had read."""
        return self._done_place

    @property
    def acknowledged_until_ms(self) -> int:
        """The time up to which everything that was written is acknowledged; 0 if that is not known."""
        return max(self._positions.acknowledged_until_ms, self._stored.until_ms)

    def limits(self) -> dict[SegmentKey, int]:
        """The limit up to which Cassandra has synced each segment that is not done; for any thread."""
        ended, progress = self._ended, self._positions.progress()
        return {key: each.limit for key, each in self.listed.items() if key in progress or key not in ended}

    def read_position(self, segment_id: int) -> int | None:
        """See Moments."""
        followed = self._followed.get(SegmentKey(segment_id))
        return None if followed is None or followed.reader is None else followed.reader.position

    def reached(self, segment_id: int) -> int:
        """See Clearings."""
        position = self.read_position(segment_id)
        return self._stored_position(SegmentKey(segment_id)) if position is None else position

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

    def is_wanted(self, segment_id: int) -> bool:
        """See Moments."""
        key = SegmentKey(segment_id)
        return key in self._followed or key in self._positions.progress()

    def unread(self, segment_id: int) -> list[int]:
        """See Clearings."""
        # A segment that is not listed has no index yet. It is listed, and then read, after its first sync.
        known = {*self.first_readings(), SegmentKey(segment_id)}
        return [each for each in known if 0 < each <= segment_id and each not in self._ended]

    def read_place(self) -> tuple[int, int]:
        """See Clearings."""
        read = [(each, self.read_position(each)) for each in self._followed if not is_read_again(each)]
        return max(((each, position) for each, position in read if position is not None), default=(0, 0))

    # Segments that are followed.

    def follow(self, segment: ReadableSegment) -> FollowedSegment:
        """Follow the segment from now on, and return its state."""
        key = segment.key
        followed = self._followed.get(key)
        if followed is None:
            is_expected = segment.has_index or segment.final or key in self._stored.segments
            presence = Presence.EXPECTED if is_expected else Presence.UNPUBLISHED
            followed = self._followed[key] = FollowedSegment(presence=presence)
        return followed

    def followed(self, key: SegmentKey) -> FollowedSegment | None:
        """The state of a segment; None if it is not followed."""
        return self._followed.get(key)

    def open(self, segment: ReadableSegment) -> SegmentReader:
        """Open the segment at the position up to which an earlier agent has read it. Raises CommitLogReadError.

        The reader is opened once, and stays open until the segment ends.
        """
        followed = self.follow(segment)
        if followed.reader is None:
            followed.queued_file = segment.queued_file
            followed.reader = SegmentReader(segment.path, self._stored_position(segment.key), self.options)
            if followed.presence is not Presence.UNPUBLISHED:
                self.open_account(segment.key, followed.reader.position)
        return followed.reader

    def open_account(self, key: SegmentKey, position: int) -> None:
        """Open the account of a segment whose entries up to `position` are done. No change if it is open already."""
        stored = self._stored.segments.get(key)
        self._positions.open(key, position)
        if stored is not None and stored.keep:
            self._positions.keep(key)
        if stored is not None and stored.fault is not None:
            self._positions.note_fault(key, stored.fault)

    def open_stored_account(self, key: SegmentKey) -> None:
        """Open the account of a segment that an earlier process has begun to read, if this one has not read on yet.

        Without its account, the segment would not wait for events that are published again.
        """
        if key in self._stored.segments and key not in self._followed and key not in self._ended:
            self.open_account(key, self.reached(key))

    def expect(self, key: SegmentKey, presence: Presence, position: int) -> None:
        """From now on, report the segment as a gap if it vanishes; no change if that is so already."""
        followed = self._followed[key]
        if followed.presence is Presence.UNPUBLISHED:
            followed.presence = presence
            self.open_account(key, position)
            self._detector.know([key])

    def advance(self, key: SegmentKey, position: int) -> None:
        """Note that the segment was read, and handed over, up to `position`."""
        if self._followed[key].presence is not Presence.UNPUBLISHED:
            self._positions.advance(key, position)

    def end(self, segment: ReadableSegment) -> None:
        """Note that nothing more will be read of the segment, and close its file."""
        self._ended = self._ended.adding([segment.key], self.listed)
        self._detector.finished(segment.key)
        followed = self._followed.pop(segment.key, None)
        queued_file = segment.queued_file if followed is None else followed.queued_file
        self._second_readings.note_end(segment, self.listed, queued_file)
        if followed is not None:
            followed.close()

    def drop(self, key: SegmentKey) -> None:
        """Follow the segment no longer, and close its file."""
        followed = self._followed.pop(key, None)
        if followed is not None:
            followed.close()

    # Segments that are gone.

    def misses_any(self) -> bool:
        """True when a segment that must not vanish is not listed: it may be gone, or is being moved."""
        return self._detector.misses(self.listed)

    def has_returned(self, segments: Iterable[ReadableSegment]) -> bool:
        """True when the file of a lost segment is there, and the segment is not read yet."""
        return self._lost.has_any_of(segments)

    def has_unreported(self) -> bool:
        """True while the broker does not have the gap of a lost segment."""
        progress = self._positions.progress() if self._unreported else {}
        self._unreported = {each for each in self._unreported if each in progress and not progress[each].read_to_end}
        return bool(self._unreported)

    def find_gone(self, now_ms: int) -> GoneSegments | None:
        """Note the segments that must not vanish from now on. Return those that are gone for good (each only once)."""
        new, gone = self._detector.check(self.listed, self._ended, now_ms)
        for key in new:
            self.open_account(key, self._stored_position(key))
        return gone

    def take_unlisted(self) -> list[SegmentKey]:
        """Note what the listing says of the followed segments. Return those that may vanish, and are not listed."""
        unlisted = []
        for key, followed in self._followed.items():
            segment = self.listed.get(key)
            if segment is not None:
                followed.final = segment.final
                if segment.has_index:
                    followed.presence = Presence.EXPECTED
            elif followed.presence is Presence.UNPUBLISHED:
                unlisted.append(key)
        return unlisted

    def note_gone(self, key: SegmentKey) -> None:
        """Note that the segment's file is gone: the segment has ended, but still has an account."""
        self.open_account(key, self._stored_position(key))
        self._ended = self._ended.adding([key], self.listed)

    def note_lost(self, keys: Collection[SegmentKey], *, is_reported: bool = False) -> None:
        """Note that these segments are gone and were not read in full. `is_reported`: the operator knows that already."""
        self._lost.add(keys, self.listed)
        if not is_reported:
            self._unreported.update(keys)

    def has_stored_fault(self, key: SegmentKey) -> bool:
        """True when an earlier process has stored that a part of the segment could not be read."""
        stored = self._stored.segments.get(key)
        return stored is not None and stored.fault is not None

    def _stored_position(self, key: SegmentKey) -> int:
        stored = self._stored.segments.get(key)
        return 0 if stored is None else stored.position
