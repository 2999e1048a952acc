"""One table: from the events of its topic to their records. Its problems do not affect other tables.

    receive -> PartitionLanes -> (MutationCache) -> RowTask | ScopeTask <-> RowFetcher -> Outbox -> acknowledged
                                                        '-- fails again and again --> dead letters -> acknowledged

Everything runs in the source's thread. A failure that concerns Cassandra or the broker as a whole is retried without
end. A failure that concerns one event only is retried a limited number of times: a row that cannot be written, a key
that Cassandra refuses or cannot read, an unexpected exception. Then the event becomes a dead letter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import UUID

from runtime.backoff import Backoff
from runtime.notices import Notices
from schemas.errors import CdcError
from schemas.mutation_event import MutationKind
from source_connector.encoding.projection import Projection
from source_connector.errors import FetchError, UnexpectedError
from source_connector.events.dead_letters import DeadLetter
from source_connector.events.events_message import DataStaxMessage, EventsMessage, PendingEvent
from source_connector.host.host_protocol import SchemaRefused, SchemaTaken
from source_connector.host.record import SourceRecord
from source_connector.rows.key_faults import KeyFaults
from source_connector.rows.last_rows import LastRows
from source_connector.rows.partition_lanes import Work
from source_connector.rows.read_request import ReadRequest, Rows
from source_connector.rows.row_task import Reading, RowTask, Task
from source_connector.rows.table_life import TableLife
from source_connector.stages import Stages
from source_connector.tables.data_partitions import PartitionsAdded
from source_connector.tables.guessed_events import GuessedEvents, task_for
from source_connector.tables.newest_schema import SchemaLookedAt
from source_connector.tables.schema_registration import SchemaRegistration
from source_connector.tables.schema_watch import SchemaWatch
from source_connector.tables.table_definition import definition_of
from source_connector.tables.table_schema import TableSchemaReader
from source_connector.tables.table_tracker import Standing, TableTracker

__all__ = ["TableLine"]

_log = logging.getLogger(__name__)

_OUTAGE_LOOK_S: Final = 3.0
_ROOM_LOOK_S: Final = 0.1
_OWN_FAULT: Final = (
    "reads of other keys are answered, so it is this key's partition (too many tombstones, a damaged SSTable): when it is mended, "
    "send the event again (`cdc connector resend`)"
)
_OF_MANY_ROWS: Final = (MutationKind.RANGE_DELETION, MutationKind.PARTITION_DELETION)


class TableLine:
    """The owner of one table's tasks. `on_open` is called when the table has been found for the first time.

    `destination` is the topic of its records, empty for the source's own. A table that is alone in its source raises
    DeploymentError when nothing of it can be replicated; any other waits, parked. No other error gets out.
    """

    def __init__(
        self, stages: Stages, schema: TableSchemaReader, on_open: Callable[[], None],
        *, destination: str = "", is_alone: bool = True,
    ) -> None:  # fmt: skip
        self._stages = stages
        self._on_open = on_open
        self._destination = destination
        self._is_followed = False
        self._table = TableTracker(
            schema.keyspace, schema.table, stages.limits.columns, stages.limits.data_format, self._use_projection
        )
        self._of_unknown_tables: list[tuple[EventsMessage, int]] = []
        self._to_be_retried: set[Task] = set()
        self._being_parked: set[Task] = set()
        self._taken = 0
        self._taken_at_refusal: dict[Task, int] = {}
        self._faults = KeyFaults()
        self._notices = Notices(_log)
        self._life = TableLife(stages.outbox, stages.metrics, self._notices, stages.limits.range_deletions)
        self._registration = SchemaRegistration(stages.send, stages.look_at_schema, stages.timers, self._notices)
        self._watch = SchemaWatch(
            self._table, schema, stages.looks, stages.timers, self._notices,
            is_alone=is_alone, shortest_pause_s=stages.limits.backoff_s, on_refresh=self._on_refresh,
        )  # fmt: skip
        self._guessed = GuessedEvents(self._table, self._watch.ask_version, stages.timers, self._notices)
        self.schema_id = 0
        """Of the projection's schemas."""

    # What tasks ask for (row_task.TaskOwner).

    @property
    def projection(self) -> Projection:
        """The table as it is known now."""
        return self._table.projection

    def read(self, task: Task, request: ReadRequest) -> None:
        """Queue a read; the answer comes by `deliver`, with the attempt that asked.

        A page of many rows waits while the broker is behind, for all its records are handed over at once.
        """
        if request.kind in _OF_MANY_ROWS and not self._stages.outbox.has_room(self):
            self._stages.timers.after(_ROOM_LOOK_S, partial(self._read_page, task, task.attempts, request))
        else:
            self._stages.fetcher.start((task, task.attempts), request)

    def _read_page(self, task: Task, attempt: int, request: ReadRequest) -> None:
        if attempt == task.attempts and not self._life.dismisses(task):
            self.read(task, request)

    def publish(self, task: Task, record: SourceRecord) -> None:
        """Hand a record to the host."""
        self._stages.outbox.publish(task, record)
        self._stages.metrics.counters["records_published"] += 1

    def settle(self, task: Task, proven: Sequence[PendingEvent]) -> None:
        """Remember what is proven, acknowledge the events, let the next ones of the key start."""
        if self._life.dismisses(task):
            return
        for pending in proven:
            self._stages.cache.remember(pending.cache_key, pending.event.digest)
        for pending in task.work.events:
            pending.message.settle()
        writetime_us = task.work.newest.event.writetime_us
        if writetime_us is not None:
            self._stages.metrics.observe("replication_latency", time.time() * 1000 - writetime_us / 1000)
        self._taken_at_refusal.pop(task, None)
        self._faults.forget(task)
        self._life.lanes.finished(task.work)

    @property
    def reading(self) -> Reading:
        """What is asked of a read."""
        return self._stages.limits.reading

    @property
    def last_rows(self) -> LastRows | None:
        """What was published last, where unchanged rows are not wanted."""
        return self._stages.last_rows

    def knows(self, node: UUID) -> bool:
        """True when the node is part of the cluster."""
        return self._stages.client.knows(node)

    def cluster_time_s(self) -> float:
        """Seconds since the epoch, by Cassandra's clock."""
        return self._stages.client.clock.time_s()

    def later(self, task: Task, delay_s: float, step: Callable[[], None], *, counted_as: str = "") -> None:
        """Take this step of the task after the delay."""
        if counted_as:
            self._stages.metrics.counters[counted_as] += 1
        self._stages.timers.after(delay_s, partial(self._guarded, task, step))

    # What the source tells.

    @property
    def is_parked(self) -> bool:
        """True while the registry refuses the table's schema, or events wait for a table that no look finds."""
        return self._registration.is_refused or self._table.is_waiting

    @property
    def partitions_in_work(self) -> int:
        """Partitions of the table with events that are not settled."""
        return len(self._life.lanes)

    def open(self) -> None:
        """Look for the table until it is there."""
        self._watch.plan()

    def receive(self, message: EventsMessage | DataStaxMessage) -> None:
        """Events of the table."""
        if isinstance(message, DataStaxMessage):
            self._guessed.add(message)
            return
        self._place(message, None)

    def _place(self, message: EventsMessage, asked: int | None) -> None:
        """To where its table id belongs; `asked` as in `TableTracker.standing`."""
        standing = self._table.standing(message.table_id, asked)
        if standing is Standing.UNKNOWN:
            self._of_unknown_tables.append((message, self._table.stale_marks if asked is None else asked))
        elif standing is Standing.DROPPED:
            self._life.drop(message)
        elif standing is Standing.FOREIGN:
            self._set_aside(message)
        else:
            self._stages.metrics.counters["events_received"] += message.unsettled
            self._table.meet_columns(message.column_names())
            self._life.take(message)

    def work(self) -> None:
        """Start what may start now."""
        for message in self._guessed.understood():
            if isinstance(message, EventsMessage):
                self.receive(message)
            else:
                self._stages.set_aside(message)
        if self._table.is_stale:
            self._watch.plan()
        while self._life.lanes.has_startable and self._may_start():
            self._start(self._life.lanes.next_startable())

    def deliver(self, task: Task, attempt: int, outcome: Rows | CdcError) -> None:
        """A read of the task is over; nobody waits for that of an earlier attempt."""
        if attempt == task.attempts:
            if isinstance(outcome, Rows):
                task.reads_answered += 1
                self._faults.answered += 1
            self._guarded(task, partial(_take, task, outcome))

    def answered(self, task: Task, *, refused: bool) -> None:
        """The data topic has, or has not, taken a record of the task."""
        self._taken += not refused
        if self._life.dismisses(task) or task.unanswered or task in self._to_be_retried or task in self._being_parked:
            return
        if task.was_refused:
            self._refused(task)
        else:
            self._guarded(task, task.on_all_acknowledged)

    def schema_answered(self, answer: SchemaTaken | SchemaRefused | SchemaLookedAt) -> None:
        """The registry's answer about a schema of any table."""
        if isinstance(answer, SchemaLookedAt):
            self._registration.looked_at(answer)
        elif answer.schema_id == self.schema_id:
            self._taken += isinstance(answer, SchemaTaken)
            self._registration.answered(answer, self.projection.table.full_name)
        if self._registration.is_taken:
            self._stages.data_partitions.follow(self._destination)

    def partitions_added(self, found: PartitionsAdded) -> None:
        """A key's next record may go to another partition: what is on its way comes first."""
        if found.destination != self._destination:
            return
        self._life.wait_for_records(self)
        self._stages.metrics.counters["data_topic_partitions_added"] += found.now - found.before
        _log.warning(
            "%s has %d partitions now, %d before: within a minute keys may go to other partitions; records that are on their way are "
            "waited for first. A reader of its own has to order a key's records in several partitions by the time of publication",
            found.topic, found.now, found.before,
        )  # fmt: skip

    def _set_aside(self, message: EventsMessage) -> None:
        table = ".".join(message.header[:2])
        reason = (
            f"its table id {message.table_id_text} is not that of {table} ({self.projection.table.table_id}), nor has it become so; it "
            "is another cluster's whose events come to the same topic, or of a table that a node had and the others do not"
        )
        _log.error(
            "%s: %d events of message %s go to the dead-letter topic %s: %s",
            table, message.unsettled, message.message_id, self._stages.letters.topic, reason,
        )  # fmt: skip
        events = message.take_events()
        self._stages.letters.write((self, events), [DeadLetter.of_event(each, reason) for each in events])

    def letters_written(self, task: Task | Sequence[PendingEvent]) -> None:
        """The dead-letter topic has the task's events, or these."""
        if not isinstance(task, Task):
            self._stages.metrics.counters["events_dead_lettered"] += len(task)
            for pending in task:
                pending.message.settle()
            return
        self._being_parked.discard(task)
        self._stages.metrics.counters["events_dead_lettered"] += len(task.work.events)
        self.settle(task, ())

    def look_at_schema(self) -> None:
        """Whether any schema of the cluster has changed."""
        self._watch.look()

    # Events and their tasks.

    def _may_start(self) -> bool:
        stages = self._stages
        return (
            not self._table.is_stale
            and self._registration.is_taken
            and self._life.may_publish
            and stages.fetcher.has_room
            and stages.outbox.has_room(self)
        )

    def _start(self, work: Work) -> None:
        is_published = self._stages.cache.is_published
        counters = self._stages.metrics.counters
        fresh = [each for each in work.events if not is_published(each.cache_key, each.event.digest)]
        counters["cache_misses"] += len(fresh)
        if len(fresh) < len(work.events):
            counters["cache_hits"] += len(work.events) - len(fresh)
            for pending in work.events:
                if pending not in fresh:
                    pending.message.settle()
            work.events[:] = fresh
        if not fresh:
            self._life.lanes.finished(work)
            return
        task = task_for(work, self)
        self._guarded(task, task.start)

    def _guarded(self, task: Task, step: Callable[[], None]) -> None:
        """One step of a task: what goes wrong concerns this task only."""
        if self._life.dismisses(task):
            return
        try:
            step()
        except FetchError as error:
            if error.refresh_schema:
                self._table.mark_stale()
            if error.is_invalid:
                self._ask_whether_nodes_agree(task, str(error))
            elif error.is_of_key and self._faults.is_fault_of(task):
                self._stages.metrics.counters["keys_not_read"] += 1
                self._failed(task, f"{error}; {_OWN_FAULT}")
            else:
                self._retry(task, str(error), _OUTAGE_LOOK_S if error.is_outage else None)
        except CdcError as error:
            # A user type may have grown since: its values are longer than what is known of it.
            self._stages.metrics.counters["rows_not_converted"] += 1
            self._table.mark_stale()
            self._failed(task, str(error))
        except Exception as error:  # noqa: BLE001  # an event that nobody has foreseen stops no other
            _log.debug("unexpected", exc_info=error)
            self._stages.metrics.counters["unexpected_errors"] += 1
            self._failed(task, str(UnexpectedError(error)))

    def _ask_whether_nodes_agree(self, task: Task, reason: str) -> None:
        """A node that is behind with the schema refuses what the others take: that is not the event's fault."""
        if task in self._to_be_retried or task in self._being_parked:
            return
        self._to_be_retried.add(task)
        then = partial(self._refused_by_cassandra, task, reason)
        self._stages.looks.ask(self._stages.client.schema_versions, then)

    def _refused_by_cassandra(self, task: Task, reason: str, versions: set[UUID] | CdcError) -> None:
        if self._life.dismisses(task):
            return
        self._to_be_retried.discard(task)
        if not isinstance(versions, CdcError) and len(versions) == 1:
            self._failed(task, reason)
            return
        self._stages.metrics.counters["reads_refused_in_disagreement"] += 1
        why = f"it is not known whether the nodes agree about the schema ({versions})"
        if not isinstance(versions, CdcError):
            why = f"the nodes have {len(versions)} versions of the schema; see `nodetool describecluster`"
        self._retry(task, f"{reason}; that does not count as the event's fault, for {why}", _OUTAGE_LOOK_S)

    def _refused(self, task: Task) -> None:
        """Nobody says why. Where the topic takes others of the table meanwhile, it is this record's fault.

        On a quiet table there are none; there the host makes a producer again, which a sound topic lets it.
        """
        self._stages.metrics.counters["records_refused"] += 1
        reason = (
            f"the data topic refused its record of {task.refused_bytes:,} bytes; the instance's log says why, and brokers "
            "take 5 MiB unless their maxMessageSize says otherwise"
        )
        before = self._taken_at_refusal.get(task)
        self._taken_at_refusal[task] = self._taken
        self._registration.ask_again()
        if before is None or before == self._taken:
            self._retry(task, reason)
        else:
            self._failed(task, reason)

    def _failed(self, task: Task, reason: str) -> None:
        """It seems to be the event's fault: after the last attempt it becomes a dead letter."""
        task.failures += 1
        if task.failures < self._stages.limits.max_failures:
            self._retry(task, reason)
        elif task not in self._being_parked:
            self._being_parked.add(task)
            task.attempts += 1
            self._park(task, reason)

    def _park(self, task: Task, reason: str) -> None:
        if task.unanswered:  # of its earlier records
            self.later(task, self._stages.limits.backoff_s, partial(self._park, task, reason))
            return
        _log.error(
            "%s: goes to the dead-letter topic after %d failed attempts, %s: %s",
            task.work.place, task.failures, self._stages.letters.topic, reason,
        )  # fmt: skip
        self._stages.letters.write((self, task), [DeadLetter.of_event(each, reason) for each in task.work.events])

    def _retry(self, task: Task, reason: str, longest_s: float | None = None) -> None:
        """Later, and again and again; its events stay unacknowledged as long."""
        if task in self._to_be_retried or task in self._being_parked:
            return
        self._to_be_retried.add(task)
        limits = self._stages.limits
        task.attempts += 1
        delay_s = Backoff(limits.backoff_s, longest_s or limits.max_backoff_s).pause_s(task.attempts)
        self._stages.metrics.counters["retries"] += 1
        self._notices.say(
            reason.partition(":")[0], f"{task.work.place}: {reason}; attempt {task.attempts + 1} in {delay_s:.1f} s"
        )
        self._stages.timers.after(delay_s, partial(self._start_again, task))

    def _start_again(self, task: Task) -> None:
        stages = self._stages
        has_room = stages.fetcher.has_bytes and stages.outbox.has_room(self)
        is_to_wait = self._table.is_stale or not self._registration.is_taken or task.unanswered or not has_room
        if is_to_wait and not self._life.dismisses(task):
            self._stages.timers.after(self._stages.limits.backoff_s, partial(self._start_again, task))
        else:
            self._to_be_retried.discard(task)
            if isinstance(task, RowTask) and task.work.lanes is self._life.lanes:
                self._life.lanes.take_behind(task.work)  # one read for all that wait for it
            self._guarded(task, task.start)

    # The table's schema.

    def _on_refresh(self) -> None:
        if self._watch.is_open and not self._is_followed:
            self._is_followed = True
            self._on_open()
        if self._watch.is_open and not self._table.is_there:
            self._stages.changes.tell(self._table.keyspace, self._table.name, None)
        waiting, self._of_unknown_tables = self._of_unknown_tables, []
        for message, asked in waiting:
            self._place(message, asked)

    def _use_projection(self, projection: Projection, is_new_schema: bool) -> None:
        self._stages.fetcher.prepare(projection)
        if self._life.begins_anew(projection.table, self):
            for of_tasks in (self._to_be_retried, self._being_parked, self._taken_at_refusal):
                of_tasks.clear()
            self._faults.clear()
        self._stages.changes.tell(projection.table.keyspace, projection.table.name, definition_of(projection.table))
        if is_new_schema:
            self.schema_id = self._stages.new_schema_id()
            self._registration.announce(replace(projection.data_schema(self.schema_id), topic=self._destination))


def _take(task: Task, outcome: Rows | CdcError) -> None:
    if isinstance(outcome, CdcError):
        raise outcome
    task.on_rows(outcome)
