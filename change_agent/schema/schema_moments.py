"""SchemaMoments: chooses the definitions to decode an entry with, if its tables had several.

Most entries do not need this: their tables had one definition, or all their definitions decode the same bytes and agree
on `cdc`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol
from uuid import UUID

from change_agent.cdc_raw.segment_key import SegmentKey, is_read_again
from change_agent.db.mutation import MutationDecoder
from change_agent.db.values import Mutation
from change_agent.db.write_time import lowest_write_time_us
from change_agent.errors import BufferUnderflowError, CommitLogReadError
from change_agent.positions.segment_ids import SegmentIds
from change_agent.schema.schema_store import LogPlace
from change_agent.schema.table_versions import LogEvidence, TableVersions, WrittenWhen
from schemas.table_metadata import TableMetadata

__all__ = ["SchemaMoments", "SchemaOfLog"]

# Maximum number of cached decoders, one for each set of definitions.
_KEPT_DECODERS: Final = 64
_LAST_US: Final = 2**63 - 1


class SchemaOfLog(Protocol):
    """Tables and their definitions: an agent's KnownTables, or the schema of an archive."""

    @property
    def tables(self) -> Mapping[UUID, TableMetadata]:
        """The newest definitions by id."""

    @property
    def versions(self) -> Mapping[UUID, TableVersions]:
        """All definitions of each table for which the choice of the definition matters."""

    @property
    def places(self) -> Sequence[LogPlace]:
        """Positions in the log where definitions begin."""


class SchemaMoments:
    """Chooses definitions for entries. Used by the reader's thread.

    `ids` are the tables for which the definition has to be chosen.
    """

    def __init__(self, finished: SegmentIds) -> None:
        # Segments that were read to their end. No part of the log is missing within a run of consecutive ids.
        self._complete = finished
        self._tables: Mapping[UUID, TableMetadata] = {}
        self._versions: Mapping[UUID, TableVersions] = {}
        self._places: Mapping[UUID, list[LogPlace]] = {}
        self._decoders: Final[dict[tuple[int, ...], MutationDecoder]] = {}
        self._segment_id = -1
        self._unbroken_from = 0
        self._earliest_us = self._latest_us = self._confirmed_us = 0
        # The newest segment that was read, and the time until which its entries that were read were written.
        self._read_segment_id = self._read_until_us = 0
        self.ids: frozenset[bytes] = frozenset()

    def use(self, known: SchemaOfLog) -> None:
        """Choose from these definitions from now on."""
        places: dict[UUID, list[LogPlace]] = defaultdict(list)
        for place in known.places:
            places[place.table_id].append(place)
        self._places = places
        if known.versions is not self._versions or known.tables is not self._tables:
            self._decoders.clear()
        self._tables, self._versions = known.tables, known.versions
        self.ids = frozenset(table_id.bytes for table_id in known.versions)

    def begin(self, segment_id: int, latest_ms: int, confirmed_ms: int, *, goes_back: bool = False) -> None:
        """Begin with entries of the segment with this key, which were written at or before `latest_ms`.

        The node confirmed the schema at `confirmed_ms`. `goes_back`: entries of the segment that were read before are
        read again.
        """
        # The log is read in the order in which it was written. So the latest time of the earlier entries is the
        # earliest time of these, unless the reader went back to an earlier segment, or the clock was set back.
        is_next = segment_id >= self._read_segment_id and self._read_until_us <= latest_ms * 1000 and not goes_back
        self._earliest_us = self._read_until_us if is_next else 0
        self._latest_us, self._confirmed_us = latest_ms * 1000, confirmed_ms * 1000
        if segment_id != self._segment_id:
            before = self._first_of_run_before(segment_id)
            self._segment_id, self._unbroken_from = segment_id, segment_id if before is None else before

    def note_read(self, segment_id: int, until_ms: int) -> None:
        """Note that everything of the segment that was written until `until_ms` (since the epoch) was read."""
        if segment_id >= self._read_segment_id:
            self._read_segment_id, self._read_until_us = segment_id, until_ms * 1000

    def end(self, segment_id: int) -> None:
        """Note that the segment was read to its end."""
        self._complete = self._complete.adding([segment_id])

    def forget_complete(self) -> None:
        """Forget which segments were read to their end: another agent has read the log in the meantime."""
        self._complete = SegmentIds()

    def follows(self, segment_id: int) -> bool:
        """True if the segment before this one was read to its end, so that no part of the log is missing in between."""
        return self._first_of_run_before(segment_id) is not None

    def _first_of_run_before(self, segment_id: int) -> int | None:
        """The first of the unbroken run of completely read segments before this one; None if there is no run.

        None also for a segment that is read again, because it is not read in the order of the log.
        """
        return None if is_read_again(SegmentKey(segment_id)) else self._complete.first_of_run(segment_id - 1)

    def unsettled(self, segment_id: int, position: int) -> list[LogPlace]:
        """Places before this position after which the node may still have used the previous definition."""
        found = [each for places in self._places.values() for each in places if not each.settled]
        return [each for each in found if _is_before(each, segment_id, position)]

    def decoders(self, payload: bytes, position: int) -> Iterator[MutationDecoder]:
        """Decoders for an entry that ends at `position`: the best one, then others to try if the bytes do not fit."""
        yield from self._decoders_of(self._choices(payload, position))

    def decode(self, payload: bytes, position: int, version: int) -> Mutation:
        """The mutation of an entry that ends at `position`, decoded by the first decoder that fits.

        If no decoder fits, raises the CommitLogReadError of the first one.
        """
        failure: CommitLogReadError | None = None
        for decoder in self.decoders(payload, position):
            try:
                return decoder.decode(payload, version)
            except CommitLogReadError as error:
                failure = failure or error
        assert failure is not None
        raise failure

    def parked_decoders(self, payload: bytes) -> Iterator[MutationDecoder]:
        """Decoders for a parked mutation: only its own write time is used to choose them."""
        when = WrittenWhen(written_us=_written_us(payload), earliest_us=0, latest_us=_LAST_US, confirmed_us=0)
        yield from self._decoders_of({each: self._versions[each].definitions(when, None) for each in self._versions})

    def _decoders_of(self, choices: Mapping[UUID, tuple[TableMetadata, ...]]) -> Iterator[MutationDecoder]:
        for attempt in range(max(map(len, choices.values()), default=1)):
            chosen = {
                table_id: definitions[min(attempt, len(definitions) - 1)] for table_id, definitions in choices.items()
            }
            yield self._decoder(chosen)

    def _choices(self, payload: bytes, position: int) -> dict[UUID, tuple[TableMetadata, ...]]:
        when = WrittenWhen(
            written_us=_written_us(payload),
            earliest_us=self._earliest_us,
            latest_us=self._latest_us,
            confirmed_us=self._confirmed_us,
        )
        return {
            table_id: versions.definitions(when, self._evidence(table_id, versions, position, when))
            for table_id, versions in self._versions.items()
        }

    def _evidence(
        self, table_id: UUID, versions: TableVersions, position: int, when: WrittenWhen
    ) -> LogEvidence | None:
        last: LogPlace | None = None
        for place in self._places.get(table_id, ()):
            if _is_before(place, self._segment_id, position) and (
                last is None or (place.segment_id, place.position) > (last.segment_id, last.position)
            ):
                last = place
        if last is None or (last.segment_id < self._unbroken_from and not versions.is_last(last.since_us, when)):
            return None
        # The node makes its changes one by one. So every change in an earlier segment is complete in this one.
        return LogEvidence(since_us=last.since_us, settled=last.settled or last.segment_id < self._segment_id)

    def _decoder(self, chosen: Mapping[UUID, TableMetadata]) -> MutationDecoder:
        key = tuple(map(id, chosen.values()))
        decoder = self._decoders.get(key)
        if decoder is None:
            if len(self._decoders) >= _KEPT_DECODERS:
                self._decoders.clear()
            decoder = self._decoders[key] = MutationDecoder({**self._tables, **chosen})
        return decoder


def _is_before(place: LogPlace, segment_id: int, position: int) -> bool:
    """True if the log has the place before this position.

    A segment that is read again is compared only with its own places: the order of the others is not known.
    """
    is_comparable = min(place.segment_id, segment_id) >= 0 or place.segment_id == segment_id
    return is_comparable and (place.segment_id, place.position) < (segment_id, position)


def _written_us(payload: bytes) -> int:
    try:
        return lowest_write_time_us(payload)
    except BufferUnderflowError:
        return 0
