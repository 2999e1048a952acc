"""The connector itself: events in, records out. The only module that sees all stages.

    EventsConsumer -> TableLine (one a table) <-> RowFetcher
          ^               '-> Outbox -> HostConnection -> data topic
          '-- settled: acknowledged when all of a message's events are <-- ACK / FAIL from the host

Everything below runs in one thread, fed by one inbox. The other threads only post to it: the readers' (messages), the
driver's (answers), the host reader's (ACK, FAIL, CLOSE), the dead letters' (written). Stop order: consumer, Cassandra,
process.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
from collections.abc import Callable, Sequence
from typing import Final, cast

from schemas.errors import CdcError
from source_connector.dead_letters import DeadLetter, DeadLettersWritten
from source_connector.errors import FetchError
from source_connector.events_consumer import EventsConsumer
from source_connector.events_message import EventsMessage, UnreadableMessage
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
from source_connector.notices import Notices
from source_connector.read_request import Rows
from source_connector.row_fetcher import Answer
from source_connector.row_task import Task
from source_connector.table_line import Stages, TableLine
from source_connector.table_schema import TableSchemaReader

__all__ = ["CassandraSource", "Inbox"]

_log = logging.getLogger(__name__)

_SCHEMA_LOOK_S: Final = 5.0
_METRICS_S: Final = 5.0
_HANDLED_AT_ONCE: Final = 200

Posted = EventsMessage | UnreadableMessage | Answer | HostFrame | DeadLettersWritten | Exception
Inbox = queue.SimpleQueue[Posted]


class CassandraSource:
    """Publishes the current row for every event. `run` returns when the host closes; it raises what must end it."""

    def __init__(
        self,
        *,
        inbox: Inbox,
        host: HostConnection,
        consumer: EventsConsumer,
        stages: Stages,
        schema: TableSchemaReader,
        topics: Sequence[str],
    ) -> None:
        self._inbox = inbox
        self._host = host
        self._consumer = consumer
        self._stages = stages
        self._topics = topics
        self._line = TableLine(stages, schema, self._follow)
        self._notices = Notices(_log)
        self._is_closing = False

    def run(self) -> None:
        """Work until the host says CLOSE. Raises DeploymentError, and whatever ended a stage's thread."""
        timers = self._stages.timers
        try:
            self._until_it_works(self._stages.client.connect)
            self._line.open()
            timers.after(_SCHEMA_LOOK_S, self._look_at_schema)
            timers.after(_METRICS_S, self._send_metrics)
            while not self._is_closing:
                self._turn()
        finally:
            self._consumer.close()
            self._stages.letters.close()
            self._stages.client.close()

    def _follow(self) -> None:
        for topic in self._topics:
            self._consumer.follow(topic)

    def _turn(self) -> None:
        """Take what has come, start what may start, write what is to be written."""
        with contextlib.suppress(queue.Empty):
            self._handle(self._inbox.get(timeout=self._stages.timers.wait_s()))
            for _ in range(_HANDLED_AT_ONCE):
                self._handle(self._inbox.get_nowait())
        self._stages.timers.run_due()
        self._line.work()
        self._deliver(self._stages.fetcher.flush())
        self._host.flush()

    def _handle(self, item: Posted) -> None:
        match item:
            case EventsMessage():
                self._line.receive(item)
            case Answer():
                self._deliver(self._stages.fetcher.answered(item))
            case Ack(seq=seq):
                self._host_answered(seq, refused=False)
            case Fail(seq=seq):
                self._host_answered(seq, refused=True)
            case SchemaTaken() | SchemaRefused():
                self._line.schema_answered(item)
            case UnreadableMessage():
                self._set_aside(item)
            case DeadLettersWritten():
                self._written(item.ticket)
            case Close():
                self._is_closing = True
            case Exception():
                raise item

    def _deliver(self, over: Sequence[tuple[object, Rows | CdcError]]) -> None:
        """Reads that are over, to their tasks."""
        for ticket, outcome in over:
            task = cast("Task", ticket)
            cast("TableLine", task.desk).deliver(task, outcome)

    def _host_answered(self, seq: int, *, refused: bool) -> None:
        task = self._stages.outbox.answered(seq, refused=refused)
        cast("TableLine", task.desk).answered(task, refused=refused)

    def _set_aside(self, message: UnreadableMessage) -> None:
        """A message that is no event, now or ever."""
        letters = self._stages.letters
        _log.error(
            "%s message %s is set aside, to the dead-letter topic %s: %s",
            message.topic, message.message_id, letters.topic, message.reason,
        )  # fmt: skip
        self._stages.counters["messages_dead_lettered"] += 1
        letters.write(message, [DeadLetter.of_message(message)])

    def _written(self, ticket: object) -> None:
        if isinstance(ticket, UnreadableMessage):
            ticket.origin.settled(ticket, 1)
        else:
            line, task = cast("tuple[TableLine, Task]", ticket)
            line.letters_written(task)

    # Waiting, metrics.

    def _look_at_schema(self) -> None:
        self._stages.timers.after(_SCHEMA_LOOK_S, self._look_at_schema)
        self._line.look_at_schema()

    def _until_it_works(self, attempt: Callable[[], None]) -> None:
        """What may come later is waited for; CLOSE ends the waiting."""
        for number in itertools.count():
            if self._is_closing:
                return
            try:
                attempt()
            except FetchError as error:
                self._notices.say("start", f"waiting: {error}")
            else:
                return
            with contextlib.suppress(queue.Empty):
                self._handle(self._inbox.get(timeout=min(5.0, 0.5 * 2.0 ** min(number, 4))))

    def _send_metrics(self) -> None:
        self._stages.timers.after(_METRICS_S, self._send_metrics)
        for name, value in self._stages.counters.items():
            self._host.send(encode_metric(name, value))
        self._host.send(encode_metric("partitions_in_work", self._line.partitions_in_work))
        self._host.send(encode_metric("tables_parked", self._line.is_parked))
