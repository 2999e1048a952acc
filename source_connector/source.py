"""The connector itself: events in, records out. The only module that sees all stages.

    EventsConsumer -> PartitionLanes -> (MutationCache) -> RowTask | ScopeTask <-> RowFetcher -> HostConnection
          ^-- settled: acknowledged when all of a message's events are <---- ACK / FAIL from the host --'

Everything below runs in one thread, fed by one inbox. The other threads only post to it: the consumer's (messages),
the driver's (answers), the host reader's (ACK, FAIL, CLOSE). Stop order: consumer, Cassandra, process.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, cast
from uuid import UUID

from schemas.errors import CdcError
from schemas.mutation_event import MutationKind
from source_connector.cassandra_client import CassandraClient
from source_connector.errors import DeploymentError, FetchError, TableNotFoundError
from source_connector.events_consumer import EventsConsumer
from source_connector.events_message import EventsMessage, PendingEvent
from source_connector.host_connection import HostConnection
from source_connector.host_protocol import (
    Ack,
    Close,
    Fail,
    HostFrame,
    SchemaRefused,
    SchemaTaken,
    encode_metric,
)
from source_connector.mutation_cache import MutationCache
from source_connector.notices import Notices
from source_connector.outbox import Outbox
from source_connector.partition_lanes import PartitionLanes, Work
from source_connector.projection import Projection
from source_connector.read_request import ReadRequest, Rows
from source_connector.record import SourceRecord
from source_connector.row_encoder import DataFormat
from source_connector.row_fetcher import Answer, RowFetcher
from source_connector.row_task import RowTask, Task
from source_connector.schema_registration import SchemaRegistration
from source_connector.scope_task import ScopeTask
from source_connector.table_schema import TableSchemaReader
from source_connector.table_tracker import Standing, TableTracker
from source_connector.timers import Timers, backoff_s

__all__ = ["CassandraSource", "Inbox", "Limits"]

_log = logging.getLogger(__name__)

_SCHEMA_LOOK_S: Final = 5.0
_OUTAGE_LOOK_S: Final = 3.0
_METRICS_S: Final = 5.0
_HANDLED_AT_ONCE: Final = 200

Inbox = queue.SimpleQueue[EventsMessage | Answer | HostFrame | Exception]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Which columns in which format, and how long between attempts."""

    columns: str
    data_format: DataFormat
    backoff_s: float
    max_backoff_s: float


class CassandraSource:
    """Publishes the current row for every event. `run` returns when the host closes; it raises what must end it."""

    def __init__(
        self,
        *,
        inbox: Inbox,
        host: HostConnection,
        consumer: EventsConsumer,
        client: CassandraClient,
        schema: TableSchemaReader,
        fetcher: RowFetcher,
        cache: MutationCache,
        limits: Limits,
    ) -> None:
        self._inbox = inbox
        self._host = host
        self._consumer = consumer
        self._client = client
        self._fetcher = fetcher
        self._cache = cache
        self._limits = limits
        self._table = TableTracker(schema, limits.columns, limits.data_format, self._use_projection)
        self._lanes = PartitionLanes()
        self._of_unknown_tables: list[EventsMessage] = []
        self._outbox = Outbox(host)
        self._timers = Timers()
        self._to_be_retried: set[Task] = set()
        self._refreshes_failed = 0
        self._is_refresh_due = False
        self._notices = Notices(_log)
        self._registration = SchemaRegistration(host.send, self._timers, self._notices)
        self._counters: Counter[str] = Counter()
        self._is_closing = False

    # What tasks ask for (row_task.Desk).

    @property
    def projection(self) -> Projection:
        """The table as it is known now."""
        return self._table.projection

    @property
    def schema_id(self) -> int:
        """Of the projection's schemas."""
        return self._table.schema_id

    def read(self, task: Task, request: ReadRequest) -> None:
        """Queue a read; the answer comes through the inbox."""
        self._fetcher.start(task, request)

    def publish(self, task: Task, record: SourceRecord) -> None:
        """Hand a record to the host."""
        self._outbox.publish(task, record)
        self._counters["records_published"] += 1

    def settle(self, task: Task, proven: Sequence[PendingEvent]) -> None:
        """Remember what is proven, acknowledge the events, let the next ones of the key start."""
        for pending in proven:
            self._cache.remember(pending.event.key, pending.event.digest)
        for pending in task.work.events:
            self._consumer.settled(pending.message)
        self._lanes.finished(task.work)

    def knows(self, node: UUID) -> bool:
        """True when the node is part of the cluster."""
        return self._client.knows(node)

    # The loop.

    def run(self) -> None:
        """Work until the host says CLOSE. Raises DeploymentError, and whatever ended a stage's thread."""
        try:
            self._until_it_works(self._client.connect)
            self._until_it_works(self._table.refresh)
            self._timers.after(_SCHEMA_LOOK_S, self._look_at_schema)
            self._timers.after(_METRICS_S, self._send_metrics)
            if not self._is_closing:
                self._consumer.start()
            while not self._is_closing:
                self._turn()
        finally:
            self._consumer.close()
            self._client.close()

    def _turn(self) -> None:
        """Take what has come, start what may start, write what is to be written."""
        with contextlib.suppress(queue.Empty):
            self._handle(self._inbox.get(timeout=self._timers.wait_s()))
            for _ in range(_HANDLED_AT_ONCE):
                self._handle(self._inbox.get_nowait())
        self._timers.run_due()
        if self._table.is_stale:
            self._plan_refresh(0)
        while self._may_start():
            self._start(self._lanes.next_startable())
        self._deliver(self._fetcher.flush())
        self._host.flush()

    def _may_start(self) -> bool:
        return (
            self._lanes.has_startable
            and not self._table.is_stale
            and self._registration.is_taken
            and self._fetcher.has_room
            and self._outbox.has_room
        )

    def _handle(self, item: EventsMessage | Answer | HostFrame | Exception) -> None:
        match item:
            case EventsMessage():
                self._receive(item)
            case Answer():
                self._deliver(self._fetcher.answered(item))
            case Ack(seq=seq):
                self._host_answered(seq, refused=False)
            case Fail(seq=seq):
                self._host_answered(seq, refused=True)
            case SchemaTaken() | SchemaRefused():
                self._registration.answered(item, self.projection.table.full_name)
            case Close():
                self._is_closing = True
            case Exception():
                raise item

    # Events and their tasks.

    def _receive(self, message: EventsMessage) -> None:
        standing = self._table.standing(message.table_id)
        if standing is Standing.UNKNOWN:
            self._of_unknown_tables.append(message)
        elif standing is Standing.DROPPED:
            self._drop(message)
        else:
            for pending in message.take_events():
                self._table.meet_columns(pending.event.columns)
                self._lanes.add(pending)
            self._counters["events_received"] += message.unsettled

    def _drop(self, message: EventsMessage) -> None:
        """The rows of a dropped table do not exist, and its records carry its table id: nothing is to be published."""
        count = len(message.take_events())
        self._counters["events_of_dropped_tables"] += count
        self._notices.say(
            "dropped", f"{count} events of the dropped table with id {message.table_id} need nothing any more"
        )
        self._consumer.settled(message, count)

    def _start(self, work: Work) -> None:
        fresh = [each for each in work.events if not self._cache.is_published(each.event.key, each.event.digest)]
        if len(fresh) < len(work.events):
            self._counters["copies_dropped"] += len(work.events) - len(fresh)
            for pending in work.events:
                if pending not in fresh:
                    self._consumer.settled(pending.message)
            work.events[:] = fresh
        if not fresh:
            self._lanes.finished(work)
            return
        is_row = work.is_of_one_row or work.newest.event.kind is MutationKind.STATIC_ROW
        task: Task = RowTask(work, self) if is_row else ScopeTask(work, self)
        self._guarded(task, task.start)

    def _deliver(self, over: Sequence[tuple[object, Rows | CdcError]]) -> None:
        """Reads that are over, to their tasks."""
        for ticket, outcome in over:
            task = cast("Task", ticket)
            self._guarded(task, partial(_take, task, outcome))

    def _host_answered(self, seq: int, *, refused: bool) -> None:
        task = self._outbox.answered(seq, refused=refused)
        if task.unanswered or task in self._to_be_retried:
            return
        if task.was_refused:
            self._counters["records_refused"] += 1
            self._retry(task, "the data topic refused its record; the instance's log says why")
        else:
            self._guarded(task, task.on_all_acknowledged)

    def _guarded(self, task: Task, step: Callable[[], None]) -> None:
        """One step of a task: what goes wrong concerns this task only."""
        try:
            step()
        except DeploymentError:
            raise
        except FetchError as error:
            self._table.is_stale |= error.refresh_schema
            self._retry(task, str(error), _OUTAGE_LOOK_S if error.is_outage else self._limits.max_backoff_s)
        except CdcError as error:
            # A user type may have grown since: its values are longer than what is known of it.
            self._counters["rows_not_converted"] += 1
            self._table.is_stale = True
            self._retry(task, str(error))

    def _retry(self, task: Task, reason: str, longest_s: float | None = None) -> None:
        """Later, and again and again; its events stay unacknowledged as long."""
        if task in self._to_be_retried:
            return
        self._to_be_retried.add(task)
        delay_s = backoff_s(task.attempts, self._limits.backoff_s, longest_s or self._limits.max_backoff_s)
        task.attempts += 1
        self._counters["retries"] += 1
        newest = task.work.newest
        place = f"key {newest.event.key.hex()} of {newest.message.segment_id}:{newest.event.position}"
        self._notices.say(
            reason.partition(":")[0], f"{place}: {reason}; attempt {task.attempts + 1} in {delay_s:.1f} s"
        )
        self._timers.after(delay_s, partial(self._start_again, task))

    def _start_again(self, task: Task) -> None:
        if self._table.is_stale or not self._registration.is_taken or task.unanswered:
            self._timers.after(self._limits.backoff_s, partial(self._start_again, task))
        else:
            self._to_be_retried.discard(task)
            self._guarded(task, task.start)

    # The table's schema.

    def _plan_refresh(self, delay_s: float) -> None:
        if not self._is_refresh_due:
            self._is_refresh_due = True
            self._timers.after(delay_s, self._refresh)

    def _refresh(self) -> None:
        self._is_refresh_due = False
        try:
            self._table.refresh()
            self._refreshes_failed = 0
        except (FetchError, TableNotFoundError) as error:
            self._notices.say("schema", f"nothing is read until the schema is known again: {error}")
            self._refreshes_failed += 1
            self._plan_refresh(backoff_s(self._refreshes_failed, self._limits.backoff_s, 5.0))
        waiting, self._of_unknown_tables = self._of_unknown_tables, []
        for message in waiting:
            self._receive(message)

    def _use_projection(self, projection: Projection, is_new_schema: bool) -> None:
        self._fetcher.prepare(projection)
        if is_new_schema:
            self._registration.announce(projection.data_schema(self._table.schema_id))

    def _look_at_schema(self) -> None:
        self._timers.after(_SCHEMA_LOOK_S, self._look_at_schema)
        try:
            self._table.look()
        except FetchError as error:
            self._notices.say("schema", str(error))

    # Waiting, warnings, metrics.

    def _until_it_works(self, attempt: Callable[[], None]) -> None:
        """What may come later is waited for; CLOSE ends the waiting."""
        for number in itertools.count():
            if self._is_closing:
                return
            try:
                attempt()
            except (FetchError, TableNotFoundError) as error:
                self._notices.say("start", f"waiting: {error}")
            else:
                return
            with contextlib.suppress(queue.Empty):
                self._handle(self._inbox.get(timeout=min(5.0, 0.5 * 2.0 ** min(number, 4))))

    def _send_metrics(self) -> None:
        self._timers.after(_METRICS_S, self._send_metrics)
        for name, value in self._counters.items():
            self._host.send(encode_metric(name, value))
        self._host.send(encode_metric("partitions_in_work", len(self._lanes)))
        self._host.send(encode_metric("tables_parked", self._registration.is_refused))


def _take(task: Task, outcome: Rows | CdcError) -> None:
    if isinstance(outcome, CdcError):
        raise outcome
    task.on_rows(outcome)
