"""TableMetadataProvider: all tables of the node, kept up to date by a separate thread.

An answer that is older than the bytes that it explains may be wrong: a table that got `cdc = true` a moment ago would
be skipped silently. So the reader asks for metadata "as of" a moment, and learns if the node has confirmed it since.
"""

from __future__ import annotations

import logging
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
# The node is on this machine, so an attempt is cheap; and until one succeeds nothing that is not synced is read.
_BACKOFF: Final = Backoff(0.5, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTables:
    """All tables by id, dropped ones included and first, by their newest definition. A changed schema has another `version`.

    `versions` has the definitions of tables where it matters which one is used; `places` where the log begins them;
    `confirmed_at_ms` is when the node was last asked.
    """

    version: int
    node_id: UUID
    tables: Mapping[UUID, TableMetadata]
    versions: Mapping[UUID, TableVersions] = field(default_factory=dict)
    places: Sequence[LogPlace] = ()
    confirmed_at_ms: int = 0


class TableMetadataProvider(Stage):
    """Asks the node for its schema: at the interval, and when the reader wants it now. Owns connection and history.

    `known`, `as_of` and reports about the log are for other threads; the rest happens on the provider's thread. The
    history is used under the condition's lock.
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
        # Replaced as a whole: the nodes of the cluster, the replication of each keyspace, and the keyspaces whose writes are not
        # in the commit log, by the node's last answer.
        self.nodes: Sequence[Node] = ()
        self.replication: Mapping[str, Mapping[str, str]] = {}
        self.unlogged_keyspaces: frozenset[str] = frozenset()
        # The same: the last truncation of each table, and the tables that there are, by id; None before the first answer.
        self.truncations: Mapping[UUID, Truncation] = {}
        self.present: frozenset[UUID] | None = None

    def start(self) -> None:
        """Load the copy of the working directory and begin to ask the node."""
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
        """The known schema; None before the first answer of the node, if there is no copy."""
        return self._known

    @property
    def node_id(self) -> UUID | None:
        """The node's host id; None before its first answer, where there is no copy."""
        return None if self._known is None else self._known.node_id

    def as_of(self, time_ms: int, timeout_s: float, *, reread: bool = False) -> KnownTables | None:
        """Tables that the node confirmed at or after `time_ms`; None when it did not answer in time, at once while it is away.

        `reread` asks for all of the schema even when the node says that its version is the same.
        """
        with self._changed:
            now_ms = time.time_ns() // 1_000_000
            # The clock may have been set back since: nothing was or will be confirmed for a time to come.
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
        """Take what a mutation of `system_schema` at this place says; what is known then. Raises SystemSchemaError."""
        with self._changed:
            self._history.note(change, segment_id, position)
            self._publish()
            return self._known

    def settle(self, places: Sequence[LogPlace]) -> None:
        """From here on in the log the node uses the definitions of these places."""
        with self._changed:
            self._history.settle(places)

    def forget_places_before(self, segment_id: int, position: int) -> KnownTables | None:
        """Something of the log is missing there; what is known then."""
        with self._changed:
            self._history.forget_places_before(segment_id, position)
            self._publish()
            return self._known

    def archived_schema(self, began_ms: int) -> ArchivedSchema | None:
        """The history for an archive that began then; the same object as long as nothing changes. None: the node is not known."""
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
        """Ask the node at the interval, and when somebody wants it."""
        while not self.stopping.is_set():
            self._ask_or_wait()

    def _ask_or_wait(self) -> None:
        try:
            self._ask()
        except (CdcError, sqlite3.Error, OSError) as error:
            # The node is away, or the disk of the history is full: without either nothing new can be explained.
            with self._changed:
                self._failures += 1
                self.problem = str(error)
                self._changed.notify_all()
            self._notices.say("node", f"waiting for the schema: {error}")
            # While the node is away the back-off decides, whatever the reader wants.
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
        asked_at_ms = time.time_ns() // 1_000_000
        with self._changed:
            reread = self._reread_wanted
        version, truncations = self._connection.local()
        is_changed = reread or version != self._schema_version
        read = self._connection.read_schema() if is_changed else None
        self.nodes = self._connection.nodes()
        if read is not None:
            self.replication = _replication(read.schema)
            self.unlogged_keyspaces = unlogged_keyspaces(read.schema)
        if truncations != self.truncations:
            self.truncations = truncations
        with self._changed:
            if read is not None:
                # It counts as confirmed only when it is durable: before, what is known is older.
                self._history.add(read)
                self.present = frozenset(UUID(str(row["id"])) for row in read.schema["tables"])
                self.refreshes += 1
            if read is not None:
                self._publish()
            self._history.confirm(asked_at_ms)
            self._note_confirmed(asked_at_ms)
            # Else the node would be asked without a pause after the clock was set back.
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
    """By keyspace: its replication options, such as `class` and `replication_factor`."""
    return {
        str(row["keyspace_name"]): {str(name): str(value) for name, value in options.items()}
        for row in schema.get("keyspaces", ())
        if isinstance(options := row.get("replication"), Mapping)
    }
