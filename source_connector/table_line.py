"""One table: from the events of its topics to their records. Its problems do not affect other tables.

    receive -> FollowedTable -> PartitionLanes -> (MutationCache) -> RowTask | ScopeTask <-> RowFetcher -> Outbox -> settled
                                                                         '-- Attempts: fails again and again --> dead letters

The methods stand in the order of this flow: an event comes in (`receive`, `place`), a task starts (`work`), reads (`read`,
`deliver`), publishes (`publish`, `answered`), and is settled (`settle`). Everything runs in the source's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from runtime.notices import Notices
from schemas.errors import CdcError
from schemas.mutation_event import EXPIRY_SEGMENT_ID
from source_connector.attempts import Attempts
from source_connector.encoding.projection import Projection
from source_connector.events.events_message import STALE_AFTER_S, DataStaxMessage, EventsMessage, PendingEvent
from source_connector.host.host_protocol import SchemaRefused, SchemaTaken
from source_connector.host.record import SourceRecord
from source_connector.rows.expiry_schedule import ExpirySchedule
from source_connector.rows.last_rows import LastRows
from source_connector.rows.partition_lanes import Work
from source_connector.rows.read_request import ReadRequest, Rows
from source_connector.rows.row_expiry import NextExpiry
from source_connector.rows.table_life import TableLife
from source_connector.rows.task import Reading, Task, TaskOwner, TaskState
from source_connector.rows.write_times import WriteTimes
from source_connector.stages import Stages
from source_connector.tables.data_partitions import PartitionsAdded
from source_connector.tables.followed_table import FollowedTable
from source_connector.tables.guessed_events import task_for
from source_connector.tables.newest_schema import NewestSchemaAnswer
from source_connector.tables.table_clearings import TableClearings
from source_connector.tables.table_schema import TableSchemaReader
from source_connector.tables.table_tracker import Standing

__all__ = ["TableLine"]

_log = logging.getLogger(__name__)

_ROOM_LOOK_S: Final = 0.1
_SETTLED: Final = TaskState.SETTLED


class TableLine(TaskOwner):
    """The owner of one table's tasks. `on_open` is called when the table has been found for the first time.

    `destination` is the topic of its records, empty for the source's own topic. If nothing of the table can be
    replicated, DeploymentError is raised for the only table of a source; any other table is parked. No other error is
    raised.
    """

    def __init__(
        self,
        stages: Stages,
        schema: TableSchemaReader,
        on_open: Callable[[], None],
        *,
        destination: str = "",
        expiry_topic: str = "",
        is_alone: bool = True,
    ) -> None:
        notices = Notices(_log)
        self._stages = stages
        # Every row needs these, and the dataclass of the stages is not compiled.
        self._cache, self._write_times = stages.cache, stages.write_times
        self._outbox, self._counters = stages.outbox, stages.metrics.counters
        self._fetcher = stages.fetcher
        self._latency_ms = stages.metrics.mean("replication_latency")
        self._reading, self._last_rows = stages.limits.reading, stages.last_rows
        self._on_open = on_open
        self._destination = destination
        self._life = TableLife(stages.outbox, stages.metrics, notices, stages.limits.range_deletions)
        self._table = FollowedTable(
            stages.schemas, schema, stages.timers, notices, self, destination=destination, is_alone=is_alone
        )
        self._clearings = TableClearings(
            stages.schemas.queries,
            stages.schemas.changes,
            stages.timers,
            notices,
            truncations=stages.client.truncations,
            current_id=schema.current_id,
            is_quiet=self._is_quiet,
            forget=self._forget_published,
            data_topic=destination or stages.output_topic,
            pause_s=STALE_AFTER_S if stages.is_shared else 0.0,
        )
        self._reads = 0
        self._steps_planned = 0
        self._lacking_expiries: set[Task] = set()
        """Tasks that only wait for their expiries to be stored."""
        self._attempts = Attempts(stages, self._table, self._life, notices, partial(self.settle, proven=()))
        self._expiries = ExpirySchedule(stages.expiries, expiry_topic, stages.metrics, notices, self.settle)

    # Events come in.

    def open(self) -> None:
        """Look up the table until it is found."""
        self._table.open()

    def receive(self, message: EventsMessage | DataStaxMessage) -> None:
        """Take events of the table."""
        self._table.receive(message)

    def place(self, message: EventsMessage, standing: Standing) -> None:
        """Take a message whose table is known now (FollowedTable's TableUser)."""
        if message.clearing is not None:
            self._take_clearing(message, standing)
        elif standing is Standing.DROPPED:
            self._life.drop(message)
        elif standing is Standing.FOREIGN:
            self._set_aside(message)
        else:
            self._counters["events_received"] += message.unsettled
            self._life.take(message)

    def _take_clearing(self, message: EventsMessage, standing: Standing) -> None:
        """Take a truncation or drop. One of another table, or of a table that was dropped since, is only settled."""
        if standing is Standing.CURRENT:
            self._clearings.take(message, self.projection.table)
        else:
            message.settle()

    def _set_aside(self, message: EventsMessage) -> None:
        table = ".".join(message.header[:2])
        reason = (
            f"its table id {message.table_id_text} is not that of {table} ({self.projection.table.table_id}), nor has it become so; it "
            "is another cluster's whose events come to the same topic, or of a table that a node had and the others do not"
        )
        _log.error(
            "%s: %d events of message %s go to the dead-letter topic %s: %s",
            table,
            message.unsettled,
            message.message_id,
            self._stages.dead_letters.topic,
            reason,
        )
        events = message.take_events()
        self._stages.set_events_aside(events, reason, partial(_settle_all, events))

    # Tasks start, read, publish, and settle their events.

    def work(self) -> None:
        """Start the tasks that may start now."""
        for unreadable in self._table.understood():
            self._stages.set_aside(unreadable)
        self._clearings.work()
        while self._life.has_startable() and self._may_start():
            self._start(self._life.lanes.next_startable())

    def _may_start(self) -> bool:
        return (
            self.may_read_waiting and self._life.may_publish and self._fetcher.has_room and self._outbox.has_room(self)
        )

    def _start(self, work: Work) -> None:
        """Settle events whose change is published already, and start a task for the others."""
        counters = self._counters
        fresh = [each for each in work.events if not self.is_published(each)]
        counters["cache_misses"] += len(fresh)
        if len(fresh) < len(work.events):
            counters["cache_hits"] += len(work.events) - len(fresh)
            kept = set(map(id, fresh))
            _settle_all([each for each in work.events if id(each) not in kept])
            work.events[:] = fresh
        if not fresh:
            self._life.lanes.finished(work)
            return
        task = task_for(work, self)
        self._attempts.begin(task)

    def read(self, task: Task, request: ReadRequest) -> None:
        """Queue a read. The answer comes by `deliver`, with the attempt that asked.

        A page of many rows waits while the outbox has no room, because all its records are handed over at once.
        """
        if request.is_of_many_rows and not self._outbox.has_room(self):
            self.later(task, _ROOM_LOOK_S, partial(self.read, task, request))
        else:
            self._fetcher.start(task, request)
            self._reads += 1  # only now: a key that cannot be split is an error of `start`, and no read

    def deliver(self, task: Task, attempt: int, outcome: Rows | CdcError) -> None:
        """Take the result of a read of this attempt."""
        self._reads -= 1
        self._attempts.read_over(task, attempt, outcome)

    def publish(self, task: Task, record: SourceRecord) -> None:
        """Hand a record to the host."""
        self._outbox.publish(task, record)
        self._counters["records_published"] += 1

    def answered(self, task: Task, *, refused: bool) -> None:
        """Note that the data topic has taken or refused a record of the task."""
        self._life.record_answered(task)
        self._attempts.record_answered(task, refused=refused)

    def later(
        self, task: Task, delay_s: float, step: Callable[[], None], *, counted_as: str = "", is_long: bool = False
    ) -> None:
        """Take this step of the attempt after the delay. A step that `is_long` also waits for the record of a truncation."""
        if counted_as:
            self._counters[counted_as] += 1
        if is_long:
            self._stages.timers.after(delay_s, partial(self._take_long, task, task.attempts, step))
            return
        self._steps_planned += 1
        self._stages.timers.after(delay_s, partial(self._take_planned, task, task.attempts, step))

    def _take_planned(self, task: Task, attempt: int, step: Callable[[], None]) -> None:
        self._steps_planned -= 1
        self._attempts.step(task, attempt, step)

    def _take_long(self, task: Task, attempt: int, step: Callable[[], None]) -> None:
        if self.may_read_waiting or self._life.dismisses(task):
            self._attempts.step(task, attempt, step)
        else:
            self._stages.timers.after(self._stages.limits.backoff_s, partial(self._take_long, task, attempt, step))

    def settle(self, task: Task, proven: Sequence[PendingEvent]) -> None:
        """Remember the proven events, acknowledge all events, and let the next ones of the key start.

        If expiries of the task are not stored yet, this happens when they are.
        """
        if self._lacking_expiries:
            self._lacking_expiries.discard(task)
        if self._life.dismisses(task):
            return
        if task.unstored:
            task.settles_with = proven
            self._lacking_expiries.add(task)
            return
        for pending in proven:
            # An expiry has no copies of other replicas. A later expiry of the key must not be taken for a copy of it.
            if pending.message.segment_id != EXPIRY_SEGMENT_ID:
                self._cache.remember(pending.cache_key, pending.digest)
        for pending in task.work.events:
            self._write_times.remember(pending.cache_key, pending.event)
        _settle_all(task.work.events)
        writetime_us = task.work.newest.event.writetime_us if task.work.events else None
        if writetime_us is not None:
            self._latency_ms.add(time.time() * 1000 - writetime_us / 1000)
        self._attempts.forget(task)
        task.become(_SETTLED)
        self._life.lanes.finished(task.work)

    def schedule(
        self, task: Task, pending: PendingEvent, clustering: tuple[bytes | None, ...], expiry: NextExpiry
    ) -> None:
        """Store the second in which a part of a row expires."""
        self._expiries.store(task, pending, clustering, expiry, self.projection)

    # The conditions that a truncation waits for, and its effects.

    def _is_quiet(self) -> bool:
        """True when no row is being read, no step of a task is planned, and the broker has answered for all records.

        A truncation does not wait for tasks whose attempt failed, or for tasks that wait for a column to expire. They
        continue after the truncation's record.
        """
        return not self._reads and not self._steps_planned and not self._outbox.tasks_of(self)

    def _forget_published(self, table_id: UUID) -> None:
        self._cache.forget(table_id.bytes)
        for task in self._lacking_expiries:  # its records are before the truncation, so they must not be remembered
            task.settles_with = ()
        if self._last_rows is not None:
            self._last_rows.forget()

    # The interface for tasks (TaskOwner).

    @property
    def projection(self) -> Projection:
        """The table as it is known now."""
        return self._table.projection

    @property
    def schema_id(self) -> int:
        """The id of the projection's schemas."""
        return self._table.schema_id

    @property
    def epoch(self) -> int:
        """The number of the table's life."""
        return self._life.epoch

    @property
    def may_read_waiting(self) -> bool:
        """False while a truncation is recorded, or the table's definition may be old: no waiting event is read then."""
        return self._table.is_ready and not self._clearings.holds

    @property
    def reading(self) -> Reading:
        """The requirements of a read."""
        return self._reading

    @property
    def last_rows(self) -> LastRows | None:
        """The rows that were published last, if unchanged rows are suppressed."""
        return self._last_rows

    @property
    def write_times(self) -> WriteTimes:
        """The write times of the changes that were settled last."""
        return self._write_times

    def is_published(self, pending: PendingEvent) -> bool:
        """True when the data topic has the event's change already, from another replica's copy of the event."""
        return self._cache.is_published(pending.cache_key, pending.digest)

    def knows(self, node: UUID) -> bool:
        """True when the node is part of the cluster."""
        return self._stages.client.knows(node)

    def cluster_time_s(self) -> float:
        """Seconds since the epoch, by Cassandra's clock."""
        return self._stages.client.clock.time_s()

    # The table and its topics change.

    @property
    def is_parked(self) -> bool:
        """True while the registry refuses the table's schema, or events wait for a table that is not found."""
        return self._table.is_parked

    @property
    def matched_patterns(self) -> set[str]:
        """Patterns of hidden columns that match a column of the table."""
        return self._table.matched_patterns

    @property
    def partitions_in_work(self) -> int:
        """Partitions of the table with events that are decoded and not settled."""
        return len(self._life.lanes)

    def check_schema(self) -> None:
        """Check whether any schema of the cluster has changed."""
        self._table.check_schema()

    def on_found(self) -> None:
        """Note that the table has been found for the first time (TableUser)."""
        self._on_open()

    def on_projection(self, projection: Projection) -> None:
        """Take the table's new projection (TableUser). Raises FetchError."""
        self._stages.fetcher.prepare(projection)
        if self._life.begins_anew(projection.table, self):
            self._attempts.forget_all()

    def schema_answered(self, answer: SchemaTaken | SchemaRefused | NewestSchemaAnswer) -> None:
        """Take the registry's answer about a schema of any table."""
        if self._table.schema_answered(answer):
            self._attempts.schema_taken()

    def partitions_added(self, found: PartitionsAdded) -> None:
        """Wait for the records in flight, because a key's next record may go to another partition."""
        if found.destination != self._destination:
            return
        self._life.wait_for_records(self)
        self._counters["data_topic_partitions_added"] += found.now - found.before
        _log.warning(
            "%s has %d partitions now, %d before: within a minute keys may move to other partitions; the connector waits for the "
            "records in flight first. Consumers must order a key's records in several partitions by publish time",
            found.topic,
            found.now,
            found.before,
        )


def _settle_all(events: Sequence[PendingEvent]) -> None:
    for pending in events:
        pending.message.settle()
