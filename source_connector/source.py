"""The connector itself: events in, records out. The only module that sees all stages.

    EventsConsumer -> PartitionLanes -> (MutationCache) -> RowTask | ScopeTask <-> RowFetcher -> HostConnection
          ^-- settled: acknowledged when all of a message's events are <---- ACK / FAIL from the host --'

Everything below runs in one thread, fed by one inbox. The other threads only post to it: the consumer's (messages),
the driver's (answers), the host reader's (ACK, FAIL, CLOSE). Stop order: consumer, Cassandra, process.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import queue
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from schemas.errors import CdcError
from schemas.mutation_event import MutationKind
from schemas.table_metadata import TableMetadata
from source_connector.cassandra_client import CassandraClient
from source_connector.errors import DeploymentError, FetchError, TableNotFoundError
from source_connector.events_consumer import EventsConsumer
from source_connector.events_message import EventsMessage, PendingEvent
from source_connector.host_connection import HostConnection
from source_connector.host_protocol import Ack, Close, Fail, HostFrame, encode_metric, encode_record, encode_schema
from source_connector.mutation_cache import MutationCache
from source_connector.partition_lanes import PartitionLanes, Work
from source_connector.projection import Projection
from source_connector.read_request import ReadRequest, Rows
from source_connector.record import SourceRecord
from source_connector.row_fetcher import Answer, RowFetcher
from source_connector.row_task import RowTask, Task
from source_connector.scope_task import ScopeTask
from source_connector.table_schema import TableSchemaReader

__all__ = ["CassandraSource", "Inbox", "Limits"]

_log = logging.getLogger(__name__)

_SCHEMA_LOOK_S: Final = 5.0
_METRICS_S: Final = 5.0
_SAY_AGAIN_AFTER_S: Final = 30.0
_MAX_UNANSWERED_BYTES: Final = 32 * 1024 * 1024
_HANDLED_AT_ONCE: Final = 200

Inbox = queue.SimpleQueue[EventsMessage | Answer | HostFrame | Exception]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much at once, and how long between attempts."""

    columns: str
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
        self._schema = schema
        self._fetcher = fetcher
        self._cache = cache
        self._limits = limits
        self._lanes = PartitionLanes()
        self._projection: Projection | None = None
        self._schema_id = 0
        self._schema_version: UUID | None = None
        self._is_schema_stale = True
        self._unknown_columns: set[str] = set()
        self._dropped_tables: set[UUID] = set()
        self._of_other_tables: list[EventsMessage] = []
        self._unanswered: dict[int, tuple[Task, int]] = {}
        self._unanswered_bytes = 0
        self._next_seq = 1
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_ids = itertools.count()
        self._refresh_attempts = 0
        self._said_at: dict[str, float] = {}
        self._counters: Counter[str] = Counter()
        self._is_closing = False

    # The stages' side: what tasks ask for (row_task.Desk).

    @property
    def projection(self) -> Projection:
        """The table as it is known now."""
        assert self._projection is not None
        return self._projection

    @property
    def schema_id(self) -> int:
        """Of the projection's schemas."""
        return self._schema_id

    def read(self, task: Task, request: ReadRequest) -> None:
        """Start a read; the answer comes through the inbox."""
        self._fetcher.start(task, request)

    def publish(self, task: Task, record: SourceRecord) -> None:
        """Hand a record to the host."""
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        frame = encode_record(seq, record)
        self._unanswered[seq] = task, len(frame)
        self._unanswered_bytes += len(frame)
        task.unanswered += 1
        self._host.send(frame)
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
            self._after(0, self._look_at_schema)
            self._after(_METRICS_S, self._send_metrics)
            self._until_it_works(self._refresh_schema)
            if not self._is_closing:
                self._consumer.start()
            while not self._is_closing:
                self._turn()
        finally:
            self._consumer.close()
            self._client.close()

    def _turn(self) -> None:
        """Take what has come, start what may start, write what is to be written."""
        wait_s = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
        try:
            self._handle(self._inbox.get(timeout=wait_s))
            for _ in range(_HANDLED_AT_ONCE):
                self._handle(self._inbox.get_nowait())
        except queue.Empty:
            pass
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()
        while self._may_start():
            self._start(self._lanes.next_startable())
        self._deliver(self._fetcher.flush())
        self._host.flush()

    def _may_start(self) -> bool:
        return (
            self._lanes.has_startable
            and not self._is_schema_stale
            and self._fetcher.has_room
            and self._unanswered_bytes < _MAX_UNANSWERED_BYTES
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
            case Close():
                self._is_closing = True
            case Exception():
                raise item

    # Events.

    def _receive(self, message: EventsMessage) -> None:
        table = self.projection.table
        if message.table_id in self._dropped_tables:
            self._drop(message)
        elif message.table_id != table.table_id:
            self._of_other_tables.append(message)
            self._is_schema_stale = True
            self._after(0, self._try_refresh)
        else:
            known = self.projection.column_names
            for pending in message.take_events():
                self._lanes.add(pending)
                if not self._is_schema_stale and not known.issuperset(pending.event.columns):
                    self._meet_unknown_columns(set(pending.event.columns) - known)
            self._counters["events_received"] += message.unsettled

    def _meet_unknown_columns(self, names: set[str]) -> None:
        """A column that was added since; or one that was dropped since, which asking again does not bring back."""
        if not names <= self._unknown_columns:
            self._unknown_columns |= names
            self._is_schema_stale = True
            self._after(0, self._try_refresh)

    def _start(self, work: Work) -> None:
        fresh = []
        for pending in work.events:
            if self._cache.is_published(pending.event.key, pending.event.digest):
                self._counters["copies_dropped"] += 1
                self._consumer.settled(pending.message)
            else:
                fresh.append(pending)
        work.events[:] = fresh
        if not fresh:
            self._lanes.finished(work)
            return
        task: Task = RowTask(work, self) if work.is_of_one_row or _is_static(work) else ScopeTask(work, self)
        self._guarded(task, task.start)

    def _deliver(self, over: Sequence[tuple[object, Rows | CdcError]]) -> None:
        """Reads that are over, to their tasks."""
        for ticket, outcome in over:
            task: Task = ticket  # type: ignore[assignment]  # our own tickets
            self._guarded(task, partial(_take, task, outcome))

    def _host_answered(self, seq: int, *, refused: bool) -> None:
        task, size = self._unanswered.pop(seq)
        self._unanswered_bytes -= size
        task.unanswered -= 1
        task.was_refused |= refused
        if task.unanswered:
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
        except FetchError as error:
            if error.refresh_schema:
                self._is_schema_stale = True
                self._after(0, self._try_refresh)
            self._retry(task, str(error))
        except DeploymentError:
            raise
        except CdcError as error:
            # A user type may have grown since: its values are longer than what is known of it.
            self._counters["rows_not_converted"] += 1
            self._after(0, self._try_refresh)
            self._retry(task, str(error))

    def _retry(self, task: Task, reason: str) -> None:
        """Later, and again and again; its events stay unacknowledged as long."""
        delay_s = self._backoff_s(task.attempts)
        task.attempts += 1
        self._counters["retries"] += 1
        event = task.work.newest.event
        self._say(
            reason.partition(":")[0],
            f"key {event.key.hex()} at {task.work.newest.message.segment_id}:{event.position} is tried again in "
            f"{delay_s:.1f} s (attempt {task.attempts}): {reason}",
        )
        self._after(delay_s, lambda: self._start_again(task))

    def _start_again(self, task: Task) -> None:
        if self._is_schema_stale or task.unanswered:
            self._after(self._limits.backoff_s, lambda: self._start_again(task))
            return
        self._guarded(task, lambda: _restart(task))

    # The table.

    def _try_refresh(self) -> None:
        try:
            self._refresh_schema()
        except (FetchError, TableNotFoundError) as error:
            self._say("schema", str(error))
            self._is_schema_stale = True
            self._after(self._backoff_s(self._refresh_attempts), self._try_refresh)
            self._refresh_attempts += 1

    def _refresh_schema(self) -> None:
        """Read the table's metadata and work by it from now on. Raises FetchError, TableNotFoundError."""
        version = self._schema.version()
        table = self._schema.read()
        if self._projection is None or table != self._projection.table:
            projection = Projection(table, self._limits.columns)
            self._fetcher.prepare(projection)
            if self._projection is None or not projection.schema_equals(self._projection):
                self._schema_id += 1
                frame = encode_schema(self._schema_id, table.name, projection.key_schema, projection.value_schema)
                self._host.send(frame)
                _log.info("%s: table %s, schema %d", table.full_name, table.table_id, self._schema_id)
            self._projection = projection
        self._schema_version = version
        self._is_schema_stale = False
        self._refresh_attempts = 0
        self._sort_other_tables(table)

    def _sort_other_tables(self, table: TableMetadata) -> None:
        """Messages of another table id: of a table that is gone, or of one that this node does not show yet."""
        waiting, self._of_other_tables = self._of_other_tables, []
        for message in waiting:
            if message.table_id == table.table_id:
                self._receive(message)
            elif _is_newer(message.table_id, table.table_id):
                self._of_other_tables.append(message)
            else:
                self._dropped_tables.add(message.table_id)
                self._drop(message)
        if self._of_other_tables:
            raise TableNotFoundError(f"{table.full_name} with id {self._of_other_tables[0].table_id}")

    def _drop(self, message: EventsMessage) -> None:
        """The rows of a dropped table do not exist, and its records carry its table id: nothing is to be published."""
        count = len(message.take_events())
        self._counters["events_of_dropped_tables"] += count
        self._say("dropped table", f"{count} events of the dropped table id {message.table_id} need nothing any more")
        self._consumer.settled(message, count)

    def _look_at_schema(self) -> None:
        self._after(_SCHEMA_LOOK_S, self._look_at_schema)
        if self._is_schema_stale:
            return
        try:
            if self._schema.version() != self._schema_version:
                self._unknown_columns.clear()
                self._try_refresh()
        except FetchError as error:
            self._say("schema", str(error))

    # Time.

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._timer_ids), action))

    def _backoff_s(self, attempts: int) -> float:
        longest = min(self._limits.max_backoff_s, self._limits.backoff_s * 2.0 ** min(attempts, 30))
        return longest * random.uniform(0.5, 1)

    def _until_it_works(self, attempt: Callable[[], None]) -> None:
        """What may come later is waited for; CLOSE ends the waiting."""
        for number in itertools.count():
            try:
                attempt()
            except (FetchError, TableNotFoundError) as error:
                self._say("start", f"waiting: {error}")
            else:
                return
            with contextlib.suppress(queue.Empty):
                self._handle(self._inbox.get(timeout=min(5.0, 0.5 * 2.0 ** min(number, 4))))
            if self._is_closing:
                return

    def _say(self, subject: str, text: str) -> None:
        """A warning, at most once in a while for each subject; the counters have the rest."""
        if time.monotonic() - self._said_at.get(subject, -_SAY_AGAIN_AFTER_S) >= _SAY_AGAIN_AFTER_S:
            self._said_at[subject] = time.monotonic()
            _log.warning("%s", text)

    def _send_metrics(self) -> None:
        self._after(_METRICS_S, self._send_metrics)
        for name, value in self._counters.items():
            self._host.send(encode_metric(name, value))
        self._host.send(encode_metric("partitions_in_work", len(self._lanes)))


def _is_static(work: Work) -> bool:
    return work.newest.event.kind is MutationKind.STATIC_ROW


def _take(task: Task, outcome: Rows | CdcError) -> None:
    if isinstance(outcome, CdcError):
        raise outcome
    task.on_rows(outcome)


def _restart(task: Task) -> None:
    task.was_refused = False
    task.start()


def _is_newer(table_id: UUID, than: UUID) -> bool:
    """True when both ids tell their time (Cassandra's own do) and the first is the later one."""
    return table_id.version == 1 == than.version and table_id.time > than.time
