"""TableMetadataProvider: all tables of the node, kept up to date by a separate thread.

Metadata that is older than the entries that it explains may be wrong: a table that got `cdc = true` a moment ago would
be skipped silently. So the reader asks for metadata "as of" a time, and gets it only if the node has confirmed it at or
after that time.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from change_agent.schema.node_connection import Node, NodeConnection
from change_agent.schema.schema_history import SchemaHistory
from change_agent.schema.schema_mutations import SchemaChange
from change_agent.schema.schema_store import LogPlace
from change_agent.schema.table_versions import TableVersions
from runtime.backoff import Backoff
from runtime.notices import Notices
from runtime.stage import Stage
from schemas.archived_schema import ArchivedSchema
from schemas.errors import CdcError
from schemas.system_schema import SystemSchema, unlogged_keyspaces
from schemas.table_metadata import TableMetadata
from schemas.truncation import Truncation

__all__ = ["KnownTables", "TableMetadataProvider"]

_log: Final = logging.getLogger(__name__)
# The node is on this machine, so an attempt is cheap. Until one succeeds, entries that are not synced are not read.
_BACKOFF: Final = Backoff(0.5, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTables:
    """All tables by id, with their newest definition. Dropped tables are included, and come first.

    A changed schema has another `version`. `versions` has all definitions of each table for which the choice of the
    definition matters. `places` are the positions in the log where definitions begin. `confirmed_at_ms` is the time of
    the last question that the node answered.
    """

    version: int
    node_id: UUID
    tables: Mapping[UUID, TableMetadata]
    versions: Mapping[UUID, TableVersions] = field(default_factory=dict)
    places: Sequence[LogPlace] = ()
    confirmed_at_ms: int = 0


class TableMetadataProvider(Stage):
    """Asks the node for its schema, at the interval and when the reader needs it. Owns connection and history.

    Other threads use `known`, `as_of`, and the methods that report changes of the log. Everything else runs on the
    provider's thread. The history is used under the condition's lock.
    """

    def __init__(self, connection: NodeConnection, history: SchemaHistory, interval_s: float) -> None:
        super().__init__("reader of the schema")
        self._connection: Final = connection
        self._history: Final = history
        self._interval_s: Final = interval_s
        self._changed: Final = threading.Condition()
        self._failures = 0
        self._notices: Final = Notices(_log, again_after_s=None)
        self._known: KnownTables | None = None
        self._confirmed_at_ms = 0
        self._wanted_at_ms = 0
        self._reread_wanted = False
        self._schema_version: UUID | None = None
        self._archived: tuple[int, ArchivedSchema] | None = None
        self.refreshes = 0
        self.problem: str | None = None
        # From the node's last answer, each replaced as a whole: the nodes of the cluster, the replication of each
        # keyspace, and the keyspaces whose writes are not in the commit log.
        self.nodes: Sequence[Node] = ()
        self.nodes_asked_at = -math.inf
        """When the node was asked for the nodes, by `time.monotonic`."""
        self.replication: Mapping[str, Mapping[str, str]] = {}
        self.unlogged_keyspaces: frozenset[str] = frozenset()
        # Likewise: the last truncation by table id, and the ids of the tables that the node has (None before its first
        # answer).
        self.truncations: Mapping[UUID, Truncation] = {}
        self.present: frozenset[UUID] | None = None

    def start(self) -> None:
        """Load the schema that the working directory has, and start to ask the node."""
        self._history.load()
        self._confirmed_at_ms = self._history.confirmed_at_ms
        self._publish()
        super().start()

    def wake(self) -> None:
        """End all waits: a reader that waits gets None."""
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """End the thread, and close connection and history."""
        super().stop()
        self._connection.close()
        self._history.close()

    @property
    def known(self) -> KnownTables | None:
        """The newest known schema; None before the node's first answer if no schema was stored."""
        return self._known

    @property
    def node_id(self) -> UUID | None:
        """The node's host id; None before its first answer if no schema was stored."""
        return None if self._known is None else self._known.node_id

    def as_of(self, time_ms: int, timeout_s: float, *, reread: bool = False) -> KnownTables | None:
        """The schema, if the node confirmed it at or after `time_ms`; else None.

        None comes after the timeout, or at once while the node does not answer. `reread` reads the whole schema again
        even if its version is the same.
        """
        with self._changed:
            now_ms = time.time_ns() // 1_000_000
            # The clock may have been set back. A `time_ms` in the future then means now, and a confirmation in the
            # future is dropped.
            time_ms = min(time_ms, now_ms)
            if self._confirmed_at_ms > now_ms:
                self._note_confirmed(0)
            if time_ms > self._confirmed_at_ms or reread:
                self._wanted_at_ms = max(self._wanted_at_ms, time_ms)
                self._reread_wanted = self._reread_wanted or reread
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: self._is_answered(time_ms) or self.stopping.is_set() or self._failures > 0, timeout_s
                )
            return self._known if self._is_answered(time_ms) else None

    def _is_answered(self, time_ms: int) -> bool:
        return self._confirmed_at_ms >= time_ms and self._known is not None and not self._reread_wanted

    def note(self, change: SchemaChange, segment_id: int, position: int) -> KnownTables | None:
        """Take a change of the schema at this position of the log. Return the schema after it.

        Raises SystemSchemaError, UnwritableFileError.
        """
        with self._changed:
            self._history.note(change, segment_id, position)
            self._publish()
            return self._known

    def settle(self, places: Sequence[LogPlace]) -> None:
        """Note that all entries that are read from now on were written with the definitions of these places."""
        with self._changed:
            self._history.settle(places)

    def forget_places_before(self, segment_id: int, position: int) -> KnownTables | None:
        """Note that a part of the log before this position is missing. Return the known schema."""
        with self._changed:
            self._history.forget_places_before(segment_id, position)
            self._publish()
            return self._known

    def archived_schema(self, began_ms: int) -> ArchivedSchema | None:
        """The schema history for an archive that began at `began_ms`; None while the node's id is not known.

        The object stays the same until the schema changes.
        """
        with self._changed:
            known = self._known
            if known is None:
                return None
            if self._archived is None or self._archived[0] != known.version:
                self._archived = known.version, self._history.archived(known.node_id, began_ms)
            return self._archived[1]

    def _publish(self) -> None:
        history = self._history
        if history.node_id is not None:
            self._known = KnownTables(
                version=1 if self._known is None else self._known.version + 1,
                node_id=history.node_id,
                tables=history.tables,
                versions=history.versions,
                places=tuple(history.places),
                confirmed_at_ms=self._confirmed_at_ms,
            )

    def run(self) -> None:
        """Ask the node at the interval, and when a caller of `as_of` waits for an answer."""
        while not self.stopping.is_set():
            self._ask_or_wait()

    def _ask_or_wait(self) -> None:
        try:
            self._ask()
        except (CdcError, sqlite3.Error, OSError) as error:
            # The node does not answer, or the history cannot be written: new definitions cannot be used until both
            # work.
            with self._changed:
                self._failures += 1
                self.problem = str(error)
                self._changed.notify_all()
            self._notices.say("node", f"waiting for the schema: {error}")
            # While the node does not answer, the back-off alone decides when to ask again.
            self._wait(_BACKOFF.pause_s(self._failures), lambda: False)
        else:
            self._notices.clear("node", "the node answers again")
            self._failures = 0
            self.problem = None
            self._wait(self._interval_s, self._is_wanted)

    def _wait(self, seconds: float, is_wanted: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.stopping.is_set() or is_wanted(), seconds)

    def _is_wanted(self) -> bool:
        return self._reread_wanted or self._wanted_at_ms > self._confirmed_at_ms

    def _ask(self) -> None:
        asked_at_ms, asked_at = time.time_ns() // 1_000_000, time.monotonic()
        with self._changed:
            reread = self._reread_wanted
        version, truncations, own = self._connection.local()
        # Before the schema, which may take long, or may be one that the history cannot store.
        self.nodes = (own, *self._connection.others())
        self.nodes_asked_at = asked_at
        is_changed = reread or version != self._schema_version
        read = self._connection.read_schema() if is_changed else None
        if read is not None:
            self.replication = _replication(read.schema)
            self.unlogged_keyspaces = unlogged_keyspaces(read.schema)
        if truncations != self.truncations:
            self.truncations = truncations
        with self._changed:
            if read is not None:
                # It counts as confirmed only when it is stored: until then, the known schema is an older one.
                self._history.add(read)
                self.present = frozenset(UUID(str(row["id"])) for row in read.schema["tables"])
                self.refreshes += 1
                self._publish()
            self._history.confirm(asked_at_ms)
            self._note_confirmed(asked_at_ms)
            # A wanted time in the future, after the clock was set back, would let the node be asked without a pause.
            self._wanted_at_ms = min(self._wanted_at_ms, time.time_ns() // 1_000_000)
            if reread:
                self._reread_wanted = False
            self._schema_version = version
            self._changed.notify_all()

    def _note_confirmed(self, time_ms: int) -> None:
        self._confirmed_at_ms = time_ms
        if self._known is not None:
            self._known = replace(self._known, confirmed_at_ms=time_ms)


def _replication(schema: SystemSchema) -> dict[str, dict[str, str]]:
    """Replication options by keyspace, such as `class` and `replication_factor`."""
    return {
        str(row["keyspace_name"]): {str(name): str(value) for name, value in options.items()}
        for row in schema.get("keyspaces", ())
        if isinstance(options := row.get("replication"), Mapping)
    }
