"""FollowedTable: the definition of a table, the schema of its data topic, and the table ids of its events.

    SchemaQueries ── the table in Cassandra ──> TableTracker ── projection ──> SchemaRegistration ──> the topic's registry
                                                  ^
    table ids of events, GuessedEvents ───────────┘

`FollowedTable` is the interface to these for the rest of the connector. It reads the table's definition as soon as the
known one may be outdated, and when the cluster's schema changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol, TypeVar
from uuid import UUID

from runtime.backoff import Backoff
from runtime.notices import Notices
from schemas.errors import CdcError
from schemas.hidden_columns import HiddenColumns
from source_connector.data_format import DataFormat
from source_connector.encoding.projection import Projection
from source_connector.errors import DeploymentError, TableNotFoundError
from source_connector.events.events_message import DataStaxMessage, EventsMessage, UnreadableMessage
from source_connector.host.host_protocol import SchemaRefused, SchemaTaken
from source_connector.host.record import DataSchema
from source_connector.tables.data_partitions import DataPartitions
from source_connector.tables.guessed_events import GuessedEvents
from source_connector.tables.newest_schema import NewestSchemaAnswer
from source_connector.tables.schema_changes import SchemaChangeTopic
from source_connector.tables.schema_queries import SchemaQueries
from source_connector.tables.schema_registration import SchemaRegistration
from source_connector.tables.table_definition import definition_of
from source_connector.tables.table_schema import TableSchemaReader, VersionedTable
from source_connector.tables.table_tracker import Standing, TableTracker
from source_connector.tables.version_checks import VersionChecks
from source_connector.timers import Timers

__all__ = ["FollowedTable", "SchemaStages", "TableUser"]

_T = TypeVar("_T")

# With any value of the option, ten reads must take some seconds: after them a table's events become dead letters.
_SHORTEST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStages:
    """The stages with which the tables of a source follow their definitions."""

    queries: SchemaQueries
    changes: SchemaChangeTopic
    data_partitions: DataPartitions
    send: Callable[[bytes], None]
    """Sends a frame to the host."""
    check_schema: Callable[[DataSchema], None]
    """Asks if a schema is the newest one of its topic. A `NewestSchemaAnswer` follows."""
    new_schema_id: Callable[[], int]
    columns: str
    data_format: DataFormat
    shortest_pause_s: float
    hidden: HiddenColumns | None = None


class TableUser(Protocol):
    """The user of a followed table, which gets its events and projections."""

    def on_found(self) -> None:
        """Note that the table has been found for the first time."""

    def on_projection(self, projection: Projection) -> None:
        """Take the table's new projection, before anything else uses it. May raise FetchError."""

    def place(self, message: EventsMessage, standing: Standing) -> None:
        """Take a message, now that its table is known. `standing` is never UNKNOWN."""


class FollowedTable:
    """Follows one table. DeploymentError is raised for the only table of a source; for others the lookup is repeated.

    `destination` is the topic of its records, empty for the source's own topic.
    """

    def __init__(
        self,
        stages: SchemaStages,
        schema: TableSchemaReader,
        timers: Timers,
        notices: Notices,
        user: TableUser,
        *,
        destination: str,
        is_alone: bool,
    ) -> None:
        self._stages = stages
        self._schema = schema
        self._timers = timers
        self._notices = notices
        self._user = user
        self._destination = destination
        self._is_alone = is_alone
        self._backoff = Backoff(max(stages.shortest_pause_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
        self._failures = 0
        self._is_found = self._is_planned = self._is_looking = False
        self._of_unknown_tables: list[tuple[EventsMessage, int]] = []
        self._tracker = TableTracker(
            schema.keyspace, schema.table, stages.columns, stages.data_format, self._use_projection, stages.hidden
        )
        self._registration = SchemaRegistration(stages.send, stages.check_schema, timers, notices)
        self._guessed = GuessedEvents(self._tracker, self._ask_version, timers, notices)
        self._of_absent_columns = VersionChecks[EventsMessage](
            self._ask_version,
            self._place_checked,
            timers,
            notices,
            is_agreed=lambda: self._tracker.is_agreed,
            who="events that name a column that was not found",
        )
        self.schema_id = 0
        """The id of the projection's schemas."""

    @property
    def projection(self) -> Projection:
        """The table as it is known now."""
        return self._tracker.projection

    @property
    def matched_patterns(self) -> set[str]:
        """Patterns of hidden columns that match a column of the table."""
        hidden = self._stages.hidden
        return hidden.matched(self.projection.table) if hidden is not None and self._is_found else set()

    @property
    def is_ready(self) -> bool:
        """True when rows may be read: the definition is not outdated, and the registry has its schema."""
        return self._registration.is_taken and not self._tracker.is_stale

    @property
    def is_parked(self) -> bool:
        """True while the registry refuses the table's schema, or events wait for a table that is not found."""
        return self._registration.is_refused or self._tracker.is_waiting

    def open(self) -> None:
        """Look up the table until it is found."""
        self._plan_read()

    def check_schema(self) -> None:
        """Check whether any schema of the cluster has changed."""
        if self._is_found and not self._is_looking:
            self._is_looking = True
            self.ask(self._schema.version, self._on_version)

    def mark_stale(self) -> None:
        """Note that the known definition may be outdated."""
        self._tracker.mark_stale()

    def ask(self, question: Callable[[], _T], then: Callable[[_T | CdcError], None]) -> None:
        """Ask Cassandra; `then` gets the answer later, in the source's thread."""
        self._stages.queries.ask(question, then)

    def receive(self, message: EventsMessage | DataStaxMessage) -> None:
        """Take events of the table. The user gets them by `place`, or by `understood`."""
        if isinstance(message, DataStaxMessage):
            self._guessed.add(message)
        else:
            self._place(message, None)

    def understood(self) -> Iterator[UnreadableMessage]:
        """Place the events of DataStax's agents that are understood now. Return messages that are no events."""
        self._of_absent_columns.work()
        for message in self._guessed.understood():
            if isinstance(message, EventsMessage):
                self._place(message, None)
            else:
                yield message
        if self._tracker.is_stale:
            self._plan_read()

    def schema_answered(self, answer: SchemaTaken | SchemaRefused | NewestSchemaAnswer) -> bool:
        """Take the registry's answer about a schema of any table. True if it has taken the schema of this table."""
        is_taken = False
        if isinstance(answer, NewestSchemaAnswer):
            self._registration.on_answer(answer)
        elif answer.schema_id == self.schema_id:
            is_taken = isinstance(answer, SchemaTaken)
            self._registration.answered(answer, self.projection.table.full_name)
        if self._registration.is_taken:
            self._stages.data_partitions.follow(self._destination)
        return is_taken

    def ask_registry_again(self) -> None:
        """Announce the schema once more. The answer shows if the data topic accepts anything now."""
        self._registration.ask_again()

    def _place(self, message: EventsMessage, asked: int | None, *, is_checked: bool = False) -> None:
        """Find out to which table the message belongs. `asked` is as in `TableTracker.standing`.

        `is_checked`: the schema's version was checked after the message came.
        """
        tracker = self._tracker
        standing = tracker.standing(message.table_id, asked)
        if standing is Standing.UNKNOWN:
            self._of_unknown_tables.append((message, tracker.stale_marks if asked is None else asked))
            return
        if standing is Standing.CURRENT and tracker.meet_columns(message.column_names()) and not is_checked:
            self._of_absent_columns.add(message)
            return
        self._user.place(message, standing)

    def _place_checked(self, version: UUID, messages: list[EventsMessage]) -> None:
        self._tracker.meet_version(version)
        for message in messages:
            self._place(message, None, is_checked=True)

    def _ask_version(self, then: Callable[[UUID | CdcError], None]) -> None:
        """Ask for the version that the schema has now or later."""
        self.ask(partial(self._schema.version_since, time.monotonic()), then)

    def _plan_read(self, delay_s: float = 0) -> None:
        if not self._is_planned:
            self._is_planned = True
            self._timers.after(delay_s, self._read_table)

    def _read_table(self) -> None:
        self.ask(self._schema.read_versioned, partial(self._refresh, self._tracker.stale_marks))

    def _on_version(self, version: UUID | CdcError) -> None:
        self._is_looking = False
        if isinstance(version, CdcError):
            self._notices.say("schema", str(version))
        else:
            self._tracker.meet_version(version)

    def _refresh(self, stale_marks: int, found: VersionedTable | CdcError) -> None:
        """Use the answer of a read that began at this number of `stale_marks`."""
        self._is_planned = False
        try:
            self._tracker.refresh(found, stale_marks)
        except CdcError as error:
            if self._is_alone and isinstance(error, DeploymentError):
                raise
            what = "waiting" if isinstance(error, TableNotFoundError) else "nothing is read until the schema is known"
            self._notices.say("schema", f"{what}: {error}")
            self._failures += 1
            self._plan_read(self._backoff.pause_s(self._failures))
        else:
            self._failures = 0
            if not self._is_found:
                self._is_found = True
                self._user.on_found()
        if self._is_found and not self._tracker.is_there:
            self._stages.changes.publish(self._tracker.keyspace, self._tracker.name, None)
        waiting, self._of_unknown_tables = self._of_unknown_tables, []
        for message, asked in waiting:
            self._place(message, asked)

    def _use_projection(self, projection: Projection, is_new_schema: bool) -> None:
        self._user.on_projection(projection)
        table = projection.table
        self._stages.changes.publish(table.keyspace, table.name, definition_of(table))
        if is_new_schema:
            self.schema_id = self._stages.new_schema_id()
            self._registration.announce(replace(projection.data_schema(self.schema_id), topic=self._destination))
