"""Events of DataStax's agents: they wait until the schema is checked, and the kind of some of them remains a guess.

These events name no table id and no columns, so the table's metadata must be as new as they are. The schema is checked
once for all events that have arrived, before any of them is processed, by an answer that was requested after they
arrived. While the nodes disagree about the schema, the metadata may come from a node that lags. Then the events wait
for agreement, or until the disagreement has lasted for so long that no node lags.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

from runtime.notices import Notices
from schemas.cql_type import NativeType
from schemas.mutation_event import MalformedEventsError, MutationEvent, MutationKind, RangeBounds
from source_connector.encoding.projection import Projection
from source_connector.events.datastax_events import as_mutation_events
from source_connector.events.events_message import DataStaxMessage, EventsMessage, PendingEvent, UnreadableMessage
from source_connector.rows.partition_lanes import Work
from source_connector.rows.read_request import ReadLevel, Rows
from source_connector.rows.row_task import RowTask
from source_connector.rows.scope_task import ScopeTask
from source_connector.rows.task import Task, TaskOwner
from source_connector.tables.table_tracker import TableTracker
from source_connector.tables.version_checks import AskVersion, VersionChecks
from source_connector.timers import Timers

__all__ = ["GuessedEvents", "GuessedRowTask", "GuessedStaticTask", "microsecond_bounds", "task_for"]

_MICROSECOND_NS: Final = 1000


class GuessedEvents:
    """Messages that wait for the table's metadata. `ask_version` asks for the version of the cluster's schema."""

    def __init__(self, table: TableTracker, ask_version: AskVersion, timers: Timers, notices: Notices) -> None:
        self._table = table
        self._notices = notices
        self._checks = VersionChecks[DataStaxMessage](
            ask_version,
            self._on_version,
            timers,
            notices,
            is_agreed=lambda: table.is_agreed,
            who="events of DataStax's agents",
        )
        self._checking: list[DataStaxMessage] = []
        """Messages that came before the last read."""

    def add(self, message: DataStaxMessage) -> None:
        """Add a message as it was received."""
        self._checks.add(message)

    def understood(self) -> Iterator[EventsMessage | UnreadableMessage]:
        """The messages that can be processed or set aside now; none while the metadata may be too old."""
        self._checks.work()
        if self._table.is_stale:
            return
        checked, self._checking = self._checking, []
        if not self._table.is_believed:
            if checked:
                name = self._table.projection.table.full_name
                self._notices.say(
                    name, f"{name}: events of DataStax's agents wait while the nodes disagree about the schema"
                )
            self._checks.add_again(checked)
            self._checks.work()
            return
        for message in checked:
            try:
                content = as_mutation_events(message.event, self._table.projection)
            except MalformedEventsError as error:
                yield message.unreadable(str(error))
            else:
                yield message.understood(content)

    def _on_version(self, version: UUID, messages: list[DataStaxMessage]) -> None:
        self._table.meet_version(version)
        self._checking += messages


def task_for(work: Work, owner: TaskOwner) -> Task:
    """The task that settles the work."""
    is_certain = all(pending.message.raw is None for pending in work.events)
    if work.is_of_one_row:
        return RowTask(work, owner) if is_certain else GuessedRowTask(work, owner)
    if work.newest.event.kind is not MutationKind.STATIC_ROW:
        return ScopeTask(work, owner)
    return RowTask(work, owner) if is_certain else GuessedStaticTask(work, owner)


class GuessedRowTask(RowTask):
    """A row whose key may be cut: DataStax's agents leave out the nanoseconds of a `time` below a microsecond.

    If there is no row with the given key, the rows of the same microsecond are read and published after the null.
    """

    def on_rows(self, rows: Rows) -> None:
        """Publish the row. If there is none, read the rows of its microsecond."""
        may_be_elsewhere = not rows.rows and (
            rows.request.level is ReadLevel.HIGHER or rows.is_fallback or not self.owner.reading.proves
        )
        newest = self.work.newest
        bounds = microsecond_bounds(self._projection, newest.event) if may_be_elsewhere else None
        if bounds is None:
            super().on_rows(rows)
            return
        absent = newest.event._replace(kind=MutationKind.RANGE_DELETION, bounds=bounds, columns=())
        ScopeTask(self.work.with_newest(PendingEvent(absent, newest.message)), self.owner).start()


def microsecond_bounds(projection: Projection, event: MutationEvent) -> RangeBounds | None:
    """The scope of all rows whose first `time` column of the clustering key is in the event's microsecond.

    None if the clustering key has no `time`.
    """
    for at, column in enumerate(projection.table.clustering_key):
        value = event.clustering[at] if at < len(event.clustering) else None
        if column.type == NativeType("time") and value is not None:
            last = (int.from_bytes(value, "big") + _MICROSECOND_NS - 1).to_bytes(8, "big")
            ends = (value, last) if not column.reversed else (last, value)
            prefix = tuple(each for each in event.clustering[:at] if each is not None)
            return RangeBounds(
                start=(*prefix, ends[0]), start_inclusive=True, end=(*prefix, ends[1]), end_inclusive=True
            )
    return None


class GuessedStaticTask(RowTask):
    """A static write or a partition delete: the event does not say which.

    If a static cell has exactly its write time, it is a static write. Otherwise it is treated as a partition delete:
    the marker is published and then every row that is still there, which is right for both.
    """

    def start(self) -> None:
        """Read the static row. If no static column is published, begin with the deletion: no read can tell the kind."""
        if self.owner.projection.static_selection.value_columns:
            super().start()
        else:
            self._start_deletion()

    def on_rows(self, rows: Rows) -> None:
        """Publish the static row, or continue with the partition."""
        row = rows.rows[0] if rows.rows else None
        writetimes = {} if row is None else self._selection.writetimes_us(row)
        if self.work.newest.event.writetime_us in writetimes.values():
            super().on_rows(rows)
        else:
            self._start_deletion()

    def _start_deletion(self) -> None:
        newest = self.work.newest
        event = newest.event
        deletion = event._replace(kind=MutationKind.PARTITION_DELETION, deletion_time_us=event.writetime_us, columns=())
        ScopeTask(self.work.with_newest(PendingEvent(deletion, newest.message)), self.owner).start()
