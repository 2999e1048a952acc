"""MutationInterpreter: an entry's payload to events, by the schema that the node confirms; parks what stays unreadable."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Final, Protocol
from uuid import UUID

from change_agent.commitlog.entry import CommitLogEntry
from change_agent.db.mutation import MutationDecoder
from change_agent.errors import CommitLogReadError, UnknownTableError
from change_agent.metrics import AgentMetrics
from change_agent.mutation_events import MutationEventBuilder, TableEvent, is_published
from change_agent.parked import ParkedMutation, ParkedMutations
from change_agent.table_filter import TableFilter
from change_agent.table_metadata import KnownTables
from schemas.cql_value import CqlValueError
from schemas.table_metadata import TableMetadata

__all__ = ["MutationInterpreter", "StoppedError"]

_log: Final = logging.getLogger(__name__)
# Between two looks at the schema for a mutation that does not fit it.
_REREAD_PAUSE_S: Final = 2.0
_ANSWER_TIMEOUT_S: Final = 1.0


class StoppedError(Exception):
    """The agent stops; the entry was not interpreted."""


class TableSource(Protocol):
    """Says which tables there are: a TableMetadataProvider."""

    def as_of(self, time_ms: int, timeout_s: float, *, reread: bool = False) -> KnownTables | None:
        """Tables that are sure for this time since the epoch; None when that could not be said in time."""


class MutationInterpreter:
    """Used by the reader's thread."""

    def __init__(
        self,
        tables: TableSource,
        parked: ParkedMutations,
        metrics: AgentMetrics,
        stopping: threading.Event,
        *,
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
        self._version = 0
        self._node_id = UUID(int=0)
        self._tables: Mapping[UUID, TableMetadata] = {}
        self._decoder = MutationDecoder({})
        self._unpublished: frozenset[bytes] = frozenset()
        # Tables that two looks at the schema did not find: no more waiting until it changes.
        self._hopeless: set[bytes] = set()
        # Tables that the log was told about: one line for each, however many mutations.
        self._told: Final[set[UUID]] = set()

    @property
    def node_id(self) -> UUID:
        """The node whose schema is used."""
        return self._node_id

    @property
    def schema_version(self) -> int:
        """Another number when the schema was read again."""
        return self._version

    @property
    def published_tables(self) -> list[TableMetadata]:
        """Tables whose changes are published, dropped ones first."""
        return [table for table_id, table in self._tables.items() if table_id.bytes not in self._unpublished]

    def save(self) -> None:
        """Make durable what was parked. To be called before anything behind it may be acknowledged."""
        self._parked.save()

    def use_filter(self, wanted: TableFilter) -> None:
        """Publish only tables that this admits, from the next segment's look on; for any thread."""
        self._wanted_filter = wanted

    def _is_published(self, table: TableMetadata) -> bool:
        return is_published(table) and self._filter.admits(table.keyspace, table.name)

    def use_schema_of(self, time_ms: int) -> None:
        """Interpret by what the node says at or after this time (since the epoch); waits for it. Raises StoppedError."""
        self._use(self._known(time_ms))

    def events_of(self, segment: str, segment_id: int, version: int, entry: CommitLogEntry) -> list[TableEvent] | None:
        """The events of an entry; None when it was parked. Raises StoppedError."""
        payload = entry.payload
        # One update, of a table without events: most of what a node writes for itself.
        if payload[0] == 1 and payload[1:17] in self._unpublished:
            return []
        try:
            return self._interpret(version, entry)
        except (CommitLogReadError, CqlValueError) as error:
            return self._try_again(segment, segment_id, version, entry, error)

    def events_of_parked(self, parked: ParkedMutation) -> list[TableEvent] | str:
        """The events of a parked mutation, or why there are still none."""
        try:
            mutation = self._decoder.decode(parked.payload, parked.version)
            return self._builder.events_of(mutation, parked.position)
        except (CommitLogReadError, CqlValueError) as error:
            return str(error)

    def _interpret(self, version: int, entry: CommitLogEntry) -> list[TableEvent]:
        return self._builder.events_of(self._decoder.decode(entry.payload, version), entry.position)

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
                if self._stopping.wait(pause_s):
                    raise StoppedError
                self._use(self._known(_now_ms(), reread=True))
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
                segment=segment, segment_id=segment_id, position=entry.position, version=version, table_id=table_id,
                reason=reason, payload=entry.payload, parked_at_ms=_now_ms(),
            )
        )  # fmt: skip
        self._metrics.mutations_parked += 1
        if table_id not in self._told:
            self._told.add(table_id)
            _log.error(
                "%s, position %d: parked: %s; it is tried again when the schema changes, `cdc parked` lists what waits",
                segment, entry.position, reason,
            )  # fmt: skip

    def _known(self, time_ms: int, *, reread: bool = False) -> KnownTables:
        while not self._stopping.is_set():
            known = self._source.as_of(time_ms, _ANSWER_TIMEOUT_S, reread=reread)
            if known is not None:
                return known
        raise StoppedError

    def _use(self, known: KnownTables) -> None:
        if known.version == self._version and self._wanted_filter is self._filter:
            return
        self._version = known.version
        self._node_id = known.node_id
        if known.tables == self._tables and self._wanted_filter is self._filter:
            return
        self._filter = self._wanted_filter
        self._tables = known.tables
        self._decoder = MutationDecoder(known.tables)
        self._unpublished = frozenset(
            table_id.bytes for table_id, table in known.tables.items() if not self._is_published(table)
        )
        self._builder.leave_out(self._unpublished)
        self._hopeless.clear()
        if len(self._unpublished) == len(known.tables):
            _log.warning("waiting for a table WITH cdc = true: there is none yet, or the patterns leave all out")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
