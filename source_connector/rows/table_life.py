"""A table's lives: one lasts from its CREATE to its DROP. What belongs to an earlier one ends with it.

A reader of the data topic starts an empty table at the first record with a new table id. No record of an older id may
follow that record: it would be the old table's key with the new table's row. So the lanes end with their life. What
was in flight learns of this at its next step (an answer of Cassandra or the broker, or a retry that is due). The new
life's first read waits until the broker has answered for every record of an older one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from runtime.notices import Notices
from schemas.mutation_event import MutationKind
from schemas.table_metadata import TableMetadata, is_earlier_life
from source_connector.events.events_message import EventsMessage, PendingEvent
from source_connector.metrics import Metrics
from source_connector.rows.outbox import Outbox
from source_connector.rows.partition_lanes import PartitionLanes

if TYPE_CHECKING:
    from source_connector.rows.row_task import Task, TaskOwner

__all__ = ["TableLife"]


@final
class TableLife:
    """The lanes of the table as it is now, and what is left of the table as it was."""

    def __init__(self, outbox: Outbox, metrics: Metrics, notices: Notices, range_deletions: bool) -> None:
        self._outbox = outbox
        self._metrics = metrics
        self._notices = notices
        self._range_deletions = range_deletions
        self._table: TableMetadata | None = None
        self._leaving: set[Task] = set()
        self.lanes = PartitionLanes()
        """Of events that are not settled."""

    @property
    def may_publish(self) -> bool:
        """False while the broker owes an answer about a record that is to come before all others."""
        return not self._leaving

    def begins_anew(self, table: TableMetadata, owner: TaskOwner) -> bool:
        """The table is this one from here on; True when that is a new life. `owner` is whose tasks they are.

        Where nothing tells which table is the later one, or that it is the earlier one, nothing is taken for dropped. Nor
        under the same id: events of both lives wait together, and each leads to the row as it is.
        """
        before = self._table
        if before is not None and is_earlier_life(table, before):
            return False
        self._table = table
        if before is None or before.table_id == table.table_id or not is_earlier_life(before, table):
            return False
        waiting = self.lanes.waiting()
        self.lanes = PartitionLanes()
        self._leaving = self._outbox.tasks_of(owner)
        self._drop(waiting)
        return True

    def wait_for_records(self, owner: TaskOwner) -> None:
        """Nothing is published before the broker has answered for what is on its way."""
        self._leaving |= self._outbox.tasks_of(owner)

    def take(self, message: EventsMessage) -> None:
        """The message's events take their places in the lanes; range deletions only where they are to be published."""
        for pending in message.take_events():
            if self._range_deletions or pending.event.kind is not MutationKind.RANGE_DELETION:
                self.lanes.add(pending)
            else:
                self._metrics.counters["range_deletions_left_out"] += 1
                pending.message.settle()

    def drop(self, message: EventsMessage) -> None:
        """The rows of a dropped table do not exist, and its records carry its table id: nothing is to be published."""
        self._drop(message.take_events())

    def dismisses(self, task: Task) -> bool:
        """To be asked at each step of a task. True when it is of an earlier life: its events are settled, it has no more steps."""
        if self._leaving and not task.unanswered:
            self._leaving.discard(task)
        if task.work.lanes is self.lanes:
            return False
        events, task.work.events = task.work.events, []
        self._drop(events)
        return True

    def _drop(self, events: Sequence[PendingEvent]) -> None:
        if not events:
            return
        self._metrics.counters["events_of_dropped_tables"] += len(events)
        table_id = events[0].message.table_id_text
        self._notices.say(
            "dropped", f"{len(events)} events of the dropped table with id {table_id} need nothing any more"
        )
        for pending in events:
            pending.message.settle()
