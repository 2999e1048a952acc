"""The lives of a table: each lasts from a CREATE to a DROP, and has a number, its epoch.

A reader of the data topic starts an empty table at the first record with a new table id. No record of an older id may
follow that record: it would be the old table's key with the new table's row. So waiting events of an earlier epoch are
dropped, and a task of an earlier epoch is dismissed at its next step. The first read of the new epoch waits until the
broker has answered for every record of the old one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, final

from runtime.notices import Notices
from schemas.mutation_event import MutationKind
from schemas.table_metadata import TableMetadata, is_earlier_life
from source_connector.events.events_message import EventsMessage, PendingEvent
from source_connector.metrics import Metrics
from source_connector.rows.outbox import Outbox
from source_connector.rows.partition_lanes import PartitionLanes
from source_connector.rows.task import Task, TaskOwner, TaskState

__all__ = ["TableLife"]

_RANGE_DELETION: Final = MutationKind.RANGE_DELETION
# While so much work may start, a message's later events remain bytes. A table that may hold more decoded events has a
# higher limit. One read settles all waiting events of a key, so the number must not be small.
_ENOUGH_STARTABLE: Final = 100
_DECODED_TOGETHER: Final = 50


@final
class TableLife:
    """The current epoch and its lanes, and the records that the broker must answer for before more are published."""

    def __init__(self, outbox: Outbox, metrics: Metrics, notices: Notices, range_deletions: bool) -> None:
        self._outbox = outbox
        self._metrics = metrics
        self._notices = notices
        self._range_deletions = range_deletions
        self._table: TableMetadata | None = None
        self._awaited: set[Task] = set()
        self.epoch = 0
        self.lanes = PartitionLanes()
        """Events of this epoch that are decoded and not settled."""
        self._arrived: deque[EventsMessage] = deque()
        """Messages of this epoch with events that are not in the lanes yet, oldest first."""

    @property
    def may_publish(self) -> bool:
        """False while the broker owes an answer about a record that must come before all others."""
        return not self._awaited

    def begins_anew(self, table: TableMetadata, owner: TaskOwner) -> bool:
        """Take the table's new definition. True when it begins a new epoch. `owner` is the owner of the table's tasks.

        No epoch begins if nothing shows which of two tables is the later one. Nor does one begin if the table id is the
        same: then events of both lives wait together, and each leads to the current row.
        """
        before = self._table
        if before is not None and is_earlier_life(table, before):
            return False
        self._table = table
        if before is None or before.table_id == table.table_id or not is_earlier_life(before, table):
            return False
        waiting = self.lanes.waiting()
        for message in self._arrived:
            waiting += message.take_events()
        self._arrived.clear()
        self.epoch += 1
        self.lanes = PartitionLanes()
        self._awaited = self._outbox.tasks_of(owner)
        self._drop(waiting)
        return True

    def wait_for_records(self, owner: TaskOwner) -> None:
        """Publish nothing before the broker has answered for the records that it has now."""
        self._awaited |= self._outbox.tasks_of(owner)

    def record_answered(self, task: Task) -> None:
        """Note that the broker has answered for a record of the task."""
        if self._awaited and not task.unanswered:
            self._awaited.discard(task)

    def take(self, message: EventsMessage) -> None:
        """Take the message's events; range deletions only if they are published."""
        self._arrived.append(message)
        self._fill_lanes()

    def has_startable(self) -> bool:
        """Put events into the lanes if more may be there. True if the lanes have work that may start."""
        if self._arrived:
            self._fill_lanes()
        return self.lanes.startable > 0

    def _fill_lanes(self) -> None:
        """Put events into the lanes, in their order: those that are decoded, and others as long as little may start.

        Work that waits behind other work does not count. So no key and no partition keeps the others from starting.
        """
        arrived = self._arrived
        while arrived:
            first = arrived[0]
            if not first.pending and self.lanes.startable >= max(_ENOUGH_STARTABLE, first.ahead):
                return
            events = first.take_some(_DECODED_TOGETHER)
            if first.is_taken:
                arrived.popleft()
            for pending in events:
                self._add(pending)

    def _add(self, pending: PendingEvent) -> None:
        if self._range_deletions or pending.kind is not _RANGE_DELETION:
            self.lanes.add(pending)
        else:
            self._metrics.counters["range_deletions_left_out"] += 1
            pending.message.settle()

    def drop(self, message: EventsMessage) -> None:
        """Settle events of a dropped table: its rows do not exist, and no record may carry its table id."""
        self._drop(message.take_events())

    def dismisses(self, task: Task) -> bool:
        """True for a task of an earlier epoch: its events are settled, and it takes no more steps."""
        if task.epoch == self.epoch:
            return False
        if task.state is not TaskState.DISMISSED:
            task.become(TaskState.DISMISSED)
            self._drop(task.work.events)
        return True

    def _drop(self, events: Sequence[PendingEvent]) -> None:
        if not events:
            return
        self._metrics.counters["events_of_dropped_tables"] += len(events)
        table_id = events[0].message.table_id_text
        self._notices.say("dropped", f"{len(events)} events of the dropped table with id {table_id} are left out")
        for pending in events:
            pending.message.settle()
