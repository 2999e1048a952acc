"""MutationInterpreter: decodes entries to events with the schema of their time, and parks what it cannot decode."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar
from uuid import UUID

from change_agent.commitlog.entry import CommitLogEntry
from change_agent.commitlog.reader import EntriesTaker
from change_agent.configuration.table_filter import TableFilter
from change_agent.db.mutation import MutationDecoder
from change_agent.errors import CommitLogReadError, NativeCoreError, UnknownTableError
from change_agent.events.entry_encoder import EntryEncoder
from change_agent.events.mutation_events import EventKeys, MutationEventBuilder, TableEvent, is_published
from change_agent.format_version import version_rules
from change_agent.metrics import AgentMetrics
from change_agent.native_core import EncodedEntries, EncodedRun, native_core
from change_agent.parking.parked import ParkedMutation, ParkedMutations
from change_agent.positions.segment_ids import SegmentIds
from change_agent.schema.schema_moments import SchemaMoments
from change_agent.schema.schema_mutations import SCHEMA_KEYSPACE, SchemaChange, schema_change_of
from change_agent.schema.schema_store import LogPlace
from change_agent.schema.table_metadata import KnownTables
from change_agent.sqlite_file import UnwritableFileError
from schemas.cql_value import CqlValueError
from schemas.system_schema import SystemSchemaError
from schemas.table_metadata import TableMetadata

__all__ = ["MutationInterpreter", "StoppedError"]

_log: Final = logging.getLogger(__name__)
_Result = TypeVar("_Result")
# Seconds between two reads of the schema for a mutation that does not fit it.
_REREAD_PAUSE_S: Final = 2.0
_ANSWER_TIMEOUT_S: Final = 1.0
_PAUSE_S: Final = 0.2
_NONE: Final = SegmentIds()
# With more parked mutations than this, the reader waits for an unavailable node: it may know the missing definitions.
_MAX_PARKED_UNASKED: Final = 10_000


class StoppedError(Exception):
    """The agent stops; the entry was not interpreted."""


class TableSource(Protocol):
    """Source of the schema: a TableMetadataProvider."""

    @property
    def known(self) -> KnownTables | None:
        """The newest known schema, even if the node has not confirmed it recently."""

    def as_of(self, time_ms: int, timeout_s: float, *, reread: bool = False) -> KnownTables | None:
        """The schema, if the node confirmed it at or after this time (since the epoch); else None after the timeout."""

    def note(self, change: SchemaChange, segment_id: int, position: int) -> KnownTables | None:
        """Take a change of the schema at this position of the log.

        Return the schema after it. Raises SystemSchemaError.
        """

    def settle(self, places: Sequence[LogPlace]) -> None:
        """Note that all entries that are read from now on were written with the definitions of these places."""

    def forget_places_before(self, segment_id: int, position: int) -> KnownTables | None:
        """Note that a part of the log before this position is missing. Return the known schema."""


class MutationInterpreter:
    """Decodes entries to events. Used by the reader's thread."""

    def __init__(
        self,
        tables: TableSource,
        parked: ParkedMutations,
        metrics: AgentMetrics,
        stopping: threading.Event,
        *,
        finished: SegmentIds = _NONE,
        reread_pause_s: float = _REREAD_PAUSE_S,
    ) -> None:
        self._source: Final = tables
        self._parked: Final = parked
        self._metrics: Final = metrics
        self._stopping: Final = stopping
        self._reread_pause_s: Final = reread_pause_s
        self._builder: Final = MutationEventBuilder()
        self._filter = TableFilter()
        self._wanted_filter = self._filter
        self._moments: Final = SchemaMoments(finished)
        self._version = 0
        self._wanted_ms = self._confirmed_ms = 0
        self._is_confirmed = False
        self._segment_id = 0
        self._node_id = UUID(int=0)
        self._tables: Mapping[UUID, TableMetadata] = {}
        self._decoder = MutationDecoder({})
        self._core: Final = native_core()
        self._encoder: EntryEncoder | None = None
        self._core_failed = False
        # Ids of tables without events; of these, the tables whose mutations need not be decoded.
        self._left_out: frozenset[bytes] = frozenset()
        self._unpublished: frozenset[bytes] = frozenset()
        # They are asked for several times a second, also by other threads.
        self._published_tables: tuple[TableMetadata, ...] = ()
        self._left_out_tables: tuple[TableMetadata, ...] = ()
        # Ids of the tables of `system_schema`, of `system.local`, and of all tables that `_interpret_with_care` is for:
        # both of these, and tables whose definitions differ.
        self._schema_ids: frozenset[bytes] = frozenset()
        self._local_id = b""
        self._special: frozenset[bytes] = frozenset()
        # Tables with a mutation that two more reads of the schema did not explain. Until the schema changes, their
        # mutations are parked without another read.
        self._hopeless: set[bytes] = set()
        # Tables whose parked mutations were logged: the log gets one line for each table.
        self._reported: Final[set[UUID]] = set()
        self.truncations_noted = 0
        """Number of entries in which the node wrote or removed its record of a truncation (`truncated_at`)."""

    @property
    def node_id(self) -> UUID:
        """Host id of the node whose schema is used."""
        return self._node_id

    @property
    def schema_version(self) -> int:
        """Version of the schema that is used (KnownTables); 0 before the first one."""
        return self._version

    @property
    def published_tables(self) -> tuple[TableMetadata, ...]:
        """Tables whose changes are published, dropped tables first. The object stays the same until the schema changes.

        If several tables have the same name, the last one is the present table.
        """
        return self._published_tables

    @property
    def left_out_ids(self) -> frozenset[bytes]:
        """Ids of the tables whose changes are not published: those without CDC, and those that the filter leaves out."""
        return self._left_out

    @property
    def left_out_tables(self) -> tuple[TableMetadata, ...]:
        """Tables, also dropped ones, that are not published by their newest definition and the filter. The object stays
        the same until the schema changes.

        Changes that were written while such a table had `cdc = true` are still published, if the filter admits it.
        """
        return self._left_out_tables

    def confirm_schema(self) -> bool:
        """Use the schema that the node has now. Return False if the node does not answer."""
        self.use_schema_of(_now_ms())
        return self._is_confirmed

    def is_unpublished(self, entry: CommitLogEntry, version: int) -> bool:
        """True if an entry certainly has no change of a published table. The entry is neither published nor parked."""
        payload = entry.payload
        first = payload[1:17]
        if first in self._schema_ids:
            # This change of the schema may give a table `cdc = true`: later entries need the node's newest schema.
            return self.confirm_schema()
        if payload[0] == 1:
            return first in self._left_out
        try:
            updates = self._decoder.decode(payload, version).updates
        except (CommitLogReadError, CqlValueError):
            return False
        return all(each.table.table_id.bytes in self._left_out for each in updates)

    def save(self) -> None:
        """Store the parked mutations durably. Raises StoppedError.

        This must be called before a later entry may be acknowledged.
        """
        self._until_written(self._parked.save)

    def use_filter(self, wanted: TableFilter) -> None:
        """Publish only tables that this filter admits, from the next use of a schema on. Any thread may call this."""
        self._wanted_filter = wanted

    def use_schema_of(self, time_ms: int) -> None:
        """Use the schema that the node confirms at or after this time (since the epoch).

        If the node does not answer, use the newest known schema.
        """
        self._wanted_ms = time_ms
        known = self._source.as_of(time_ms, _ANSWER_TIMEOUT_S)
        self._is_confirmed = known is not None
        if (known := known or self._source.known) is not None:
            self._use(known)

    def begin(self, segment_id: int, latest_ms: int, *, is_resumed: bool, goes_back: bool = False) -> None:
        """Begin with entries of this segment, which were written at or before `latest_ms`. Raises StoppedError.

        `goes_back`: entries of the segment that were read before are read again.

        If the node does not answer, the entries can be read only if no part of the log is missing between them and the
        entries read before: then the log itself has every change of the schema. Otherwise this waits for the node.
        """
        if not (self._is_confirmed or (self._version and (is_resumed or self._moments.follows(segment_id)))):
            self._use(self._known(self._wanted_ms))
            self._is_confirmed = True
        self._segment_id = segment_id
        self._moments.begin(segment_id, latest_ms, self._confirmed_ms, goes_back=goes_back)

    def note_read(self, segment_id: int, until_ms: int) -> None:
        """Note that everything of the segment that was written until `until_ms` (since the epoch) was read."""
        self._moments.note_read(segment_id, until_ms)

    def end(self, segment_id: int) -> None:
        """Note that the segment was read to its end."""
        self._moments.end(segment_id)

    def note_missing(self, segment_id: int, position: int) -> None:
        """Note that an entry before this position could not be read. It may have been a change of the schema."""
        if (known := self._until_written(lambda: self._source.forget_places_before(segment_id, position))) is not None:
            self._use(known)

    def begin_behind(self, segment_id: int, position: int) -> None:
        """Begin behind this position of the log, up to which another agent has read it. Raises StoppedError.

        The changes of the schema before it are not known here, so this waits for the node.
        """
        self.note_missing(segment_id, position)
        self._moments.forget_complete()
        self._use(self._known(_now_ms()))

    def taker(self, segment: str, version: int) -> EntriesTaker | None:
        """A function that takes entries of the current segment with the native core; None without a core.

        It uses the schema of the moment of each call. `events_of` interprets the entries that it does not take.
        """
        if self._core is None:
            return None
        unsigned_times = version_rules(version).unsigned_deletion_times

        def take(window: bytes, offset: int, position: int, end: int) -> EncodedEntries | None:
            if self._encoder is None:
                return None
            try:
                return self._encoder.take(window, offset, position, end, unsigned_times=unsigned_times)
            except NativeCoreError as error:
                self._report_failure(error.with_location(segment, position))
                return None

        return take

    def _report_failure(self, error: NativeCoreError) -> None:
        level = logging.DEBUG if self._core_failed else logging.ERROR
        self._core_failed = True
        _log.log(level, "%s; plain Python reads the entry, nothing is lost: please report it", error)

    def runs_of(self, entries: EncodedEntries) -> list[tuple[EventKeys, EncodedRun]]:
        """The events of the entries that the taker took last, with the keys of their tables."""
        assert self._encoder is not None
        found = []
        for index, run in entries.runs:
            keys = self._builder.keys_of(self._encoder.tables[index])
            assert keys is not None
            found.append((keys, run))
        return found

    def events_of(self, segment: str, segment_id: int, version: int, entry: CommitLogEntry) -> list[TableEvent] | None:
        """The events of an entry of the current segment; None if it was parked. Raises StoppedError."""
        payload = entry.payload
        try:
            if payload[0] == 1:
                table = payload[1:17]
                # One update of a table without events. Most of the writes that a node makes for itself are such
                # entries.
                if table in self._unpublished:
                    return []
                if table not in self._special:  # `_interpret` without a call, because every event passes here
                    return self._builder.events_of(self._decoder.decode(payload, version), entry.position)
            return self._interpret_with_care(version, entry)
        except (CommitLogReadError, CqlValueError) as error:
            return self._try_again(segment, segment_id, version, entry, error)

    def events_of_parked(self, parked: ParkedMutation) -> list[TableEvent] | str:
        """The events of a parked mutation, or the reason why it still cannot be decoded."""
        reason = ""
        for decoder in self._moments.parked_decoders(parked.payload):
            try:
                return self._builder.events_of(decoder.decode(parked.payload, parked.version), parked.position)
            except (CommitLogReadError, CqlValueError) as error:
                reason = reason or str(error)
        return reason

    def _interpret(self, version: int, entry: CommitLogEntry) -> list[TableEvent]:
        payload = entry.payload
        if payload[0] != 1 or payload[1:17] in self._special:
            return self._interpret_with_care(version, entry)
        return self._builder.events_of(self._decoder.decode(payload, version), entry.position)

    def _interpret_with_care(self, version: int, entry: CommitLogEntry) -> list[TableEvent]:
        """Interpret an entry of `system_schema` or `system.local`, or one whose tables had definitions that differ."""
        first = entry.payload[1:17]
        if first in self._schema_ids:
            self._note_schema_change(version, entry)
            return []
        if first == self._local_id:
            self._note_local_state(version, entry)
            return []
        failure: CommitLogReadError | CqlValueError | None = None
        for decoder in self._moments.decoders(entry.payload, entry.position):
            try:
                return self._builder.events_of(decoder.decode(entry.payload, version), entry.position)
            except UnknownTableError:
                raise
            except (CommitLogReadError, CqlValueError) as error:
                failure = failure or error
        assert failure is not None
        raise failure

    def _note_schema_change(self, version: int, entry: CommitLogEntry) -> None:
        try:
            change = schema_change_of(self._moments.decode(entry.payload, entry.position, version))
            if change.tables or change.types:
                known = self._until_written(lambda: self._source.note(change, self._segment_id, entry.position))
                if known is not None:
                    self._use(known)
        except (CommitLogReadError, CqlValueError, SystemSchemaError) as error:
            # For example an entry of an earlier Cassandra version, after an upgrade. The node still returns its schema.
            _log.warning(
                "segment %d, position %d: a change of the schema cannot be read (%s); the agent uses the schema of the node",
                self._segment_id,
                entry.position,
                error,
            )
            self.note_missing(self._segment_id, entry.position)

    def _note_local_state(self, version: int, entry: CommitLogEntry) -> None:
        try:
            mutation = self._moments.decode(entry.payload, entry.position, version)
        except CommitLogReadError:
            return  # the end of the segment settles the places, too
        written = {cell.column.name for update in mutation.updates for row in update.rows for cell in row.cells}
        self.truncations_noted += "truncated_at" in written
        unsettled = self._moments.unsettled(self._segment_id, entry.position)
        if unsettled and "schema_version" in written:
            self._until_written(lambda: self._source.settle(unsettled))

    def _try_again(
        self,
        segment: str,
        segment_id: int,
        version: int,
        entry: CommitLogEntry,
        error: CommitLogReadError | CqlValueError,
    ) -> list[TableEvent] | None:
        table = error.table_id.bytes if isinstance(error, UnknownTableError) else entry.payload[1:17]
        if table not in self._hopeless:
            for pause_s in (0.0, self._reread_pause_s):
                self._pause(pause_s)
                self._ask_again()
                try:
                    return self._interpret(version, entry)
                except (CommitLogReadError, CqlValueError) as again:
                    error = again
            self._hopeless.add(table)
        self._park(segment, segment_id, version, entry, UUID(bytes=table.ljust(16, b"\0")), str(error))
        return None

    def _park(
        self, segment: str, segment_id: int, version: int, entry: CommitLogEntry, table_id: UUID, reason: str
    ) -> None:
        self._parked.park(
            ParkedMutation(
                segment=segment,
                segment_id=segment_id,
                position=entry.position,
                version=version,
                table_id=table_id,
                reason=reason,
                payload=entry.payload,
                parked_at_ms=_now_ms(),
            )
        )
        if self._parked.must_save:
            self.save()
        self._metrics.mutations_parked += 1
        if table_id not in self._reported:
            self._reported.add(table_id)
            _log.error(
                "%s, position %d: parked: %s; it is retried when the schema changes; `cdc parked` lists parked mutations",
                segment,
                entry.position,
                reason,
            )

    def _until_written(self, action: Callable[[], _Result]) -> _Result:
        """Repeat `action` until its write is durable: reading must not continue before. Raises StoppedError."""
        reported = ""
        while True:
            try:
                return action()
            except UnwritableFileError as error:
                self._metrics.count_write_failure()
                _log.log(logging.DEBUG if str(error) == reported else logging.ERROR, "%s; reading waits for it", error)
                reported = str(error)
                self._pause(_PAUSE_S)

    def _pause(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise StoppedError

    def _ask_again(self) -> None:
        now_ms = _now_ms()
        known = self._source.as_of(now_ms, _ANSWER_TIMEOUT_S, reread=True)
        if known is None and (self._is_confirmed or self._parked.count > _MAX_PARKED_UNASKED):
            known = self._known(now_ms, reread=True)
        if known is not None:
            self._use(known)

    def _known(self, time_ms: int, *, reread: bool = False) -> KnownTables:
        while (known := self._source.as_of(time_ms, _ANSWER_TIMEOUT_S, reread=reread)) is None:
            self._pause(_PAUSE_S)
        return known

    def _use(self, known: KnownTables) -> None:
        self._confirmed_ms = known.confirmed_at_ms
        if known.version == self._version and self._wanted_filter is self._filter:
            return
        self._version = known.version
        self._node_id = known.node_id
        self._moments.use(known)
        if known.tables != self._tables:
            self._use_tables(known)
        # Equal mappings may have another order: a table may have been dropped and created again.
        self._tables = known.tables
        self._filter = self._wanted_filter
        self._leave_out()

    def _use_tables(self, known: KnownTables) -> None:
        self._decoder = MutationDecoder(known.tables)
        tables = known.tables.values()
        self._schema_ids = frozenset(each.table_id.bytes for each in tables if each.keyspace == SCHEMA_KEYSPACE)
        self._local_id = next((each.table_id.bytes for each in tables if each.full_name == "system.local"), b"")
        self._hopeless.clear()

    def _leave_out(self) -> None:
        """Find the tables that have no events, and the tables whose mutations need a closer check."""
        differing, tables = self._moments.ids, self._tables.values()
        admitted = [each for each in tables if self._filter.admits(each.keyspace, each.name)]
        published = {each.table_id.bytes for each in admitted if is_published(each) or each.table_id.bytes in differing}
        left_out = self._left_out = frozenset(each.table_id.bytes for each in tables) - published
        self._published_tables = tuple(each for each in tables if each.table_id.bytes not in left_out)
        self._left_out_tables = tuple(
            each for each in tables if each.table_id.bytes in left_out or not is_published(each)
        )
        self._builder.leave_out(left_out)
        self._unpublished = left_out - self._schema_ids - {self._local_id}
        self._special = (differing - left_out) | self._schema_ids | {self._local_id}
        if self._core is not None:
            careful = differing | self._schema_ids | {self._local_id}
            plain = [each for each in tables if each.table_id.bytes not in careful]
            self._encoder = EntryEncoder(self._core, plain, left_out=left_out, skipped=self._unpublished)
        if not published:
            _log.warning("waiting for a table WITH cdc = true: there is none yet, or the patterns exclude all of them")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
