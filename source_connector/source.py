"""The connector itself: events in, records out. The only module that knows all stages.

    EventsConsumer -> TableLine (one a table) <-> RowFetcher
          ^               '-> Outbox -> HostConnection -> data topic
          '-- settled: acknowledged when all of a message's events are <-- ACK / FAIL from the host

Everything below runs in one thread, which one inbox feeds. The other threads only post to the inbox: the readers
(messages), the driver (answers), the schema checks, the host reader (ACK, FAIL, CLOSE), the dead letters (written).
Stop order: consumer, Cassandra, process.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final
from uuid import UUID

from runtime.notices import Notices
from schemas.errors import CdcError
from source_connector.configuration.table_selection import TablePlace, TableSelection
from source_connector.errors import DeploymentError, EventsTopicError, FetchError
from source_connector.events.dead_letter_writer import DeadLettersWritten
from source_connector.events.events_consumer import EventsConsumer
from source_connector.events.events_message import DataStaxMessage, EventsMessage, UnreadableMessage
from source_connector.events.expiry_topics import ExpiriesStored
from source_connector.events.topic_reader import ReceivedMessage
from source_connector.host.host_connection import HostConnection
from source_connector.host.host_protocol import (
    Acks,
    Close,
    Fail,
    HostFrame,
    SchemaRefused,
    SchemaTaken,
    encode_metric,
)
from source_connector.rows.cassandra_client import CassandraClient
from source_connector.rows.row_fetcher import Answer, ReadOver
from source_connector.stages import Stages
from source_connector.table_line import TableLine
from source_connector.tables.data_partitions import PartitionsAdded
from source_connector.tables.data_topic_policies import DataTopicPolicies
from source_connector.tables.newest_schema import NewestSchemaAnswer
from source_connector.tables.schema_queries import SchemaAnswer
from source_connector.tables.table_schema import TableSchemaReader

__all__ = ["CassandraSource", "Inbox"]

_log = logging.getLogger(__name__)

_CONNECT_FOR_S: Final = 30.0
_CONNECT_PAUSE_S: Final = 2.0
_SCHEMA_CHECK_S: Final = 5.0
_METRICS_S: Final = 5.0
_BEAT_S: Final = 1.0
_SLOTS_S: Final = 0.5
_TOPIC_LOOK_S: Final = 10.0
_PATTERNS_CHECK_S: Final = 30.0
_HANDLED_AT_ONCE: Final = 200

Posted = (
    ReceivedMessage
    | Answer
    | HostFrame
    | NewestSchemaAnswer
    | SchemaAnswer
    | PartitionsAdded
    | DeadLettersWritten
    | ExpiriesStored
    | Exception
)
Inbox = queue.SimpleQueue[Posted]


class CassandraSource:
    """Publishes the current row for every event. `run` returns when the host closes, and raises errors that end it."""

    def __init__(
        self,
        *,
        inbox: Inbox,
        host: HostConnection,
        consumer: EventsConsumer,
        stages: Stages,
        selection: TableSelection,
        policies: DataTopicPolicies,
    ) -> None:
        self._inbox = inbox
        self._host = host
        self._consumer = consumer
        self._stages = stages
        self._selection = selection
        self._policies = policies
        self._lines: dict[tuple[str, str], TableLine] = {}
        self._by_topic: dict[str, TableLine] = {}
        # The table that each topic belongs to.
        self._owners: dict[str, str] = {}
        self._turns: deque[TableLine] = deque()
        self._unreadable: set[str] = set()
        self._tables_seen_at: UUID | None = None
        self._notices = Notices(_log)
        self._is_closing = False

    def run(self) -> None:
        """Work until the host sends CLOSE. Raises DeploymentError, and each error that ended a stage's thread."""
        timers = self._stages.timers
        try:
            self._connect()
            self._stages.schemas.changes.start()
            for place in self._selection.named():
                self._serve(place)
            self._find_tables()
            timers.after(_SCHEMA_CHECK_S, self._check_schema)
            timers.after(_METRICS_S, self._send_metrics)
            timers.after(_PATTERNS_CHECK_S, self._check_patterns)
            self._check_slots()
            self._beat()
            while not self._is_closing:
                self._turn()
        finally:
            self._stages.schemas.changes.ask_to_stop()
            self._stages.schemas.data_partitions.ask_to_stop()
            if self._stages.expiries is not None:
                self._stages.expiries.ask_to_stop()
            self._consumer.close()
            self._stages.dead_letters.ask_to_stop()
            self._stages.client.close()

    def _serve(self, place: TablePlace) -> None:
        """Serve one more table. Its events are read as soon as the table has been found."""
        if (place.keyspace, place.table) in self._lines or self._shares_a_topic(place):
            return

        def follow() -> None:
            for topic in place.events_topics:
                self._consumer.follow(topic)
            if self._stages.expiries is not None:
                self._stages.expiries.follow(place.expiry_topic)

        line = TableLine(
            self._stages,
            TableSchemaReader(self._stages.client, place.keyspace, place.table),
            follow,
            destination=place.destination,
            expiry_topic=place.expiry_topic,
            is_alone=self._selection.only is not None,
        )
        self._lines[place.keyspace, place.table] = line
        self._by_topic.update(dict.fromkeys(place.events_topics, line))
        self._turns.append(line)
        line.open()

    def _shares_a_topic(self, place: TablePlace) -> bool:
        """Return True, and report it, if a topic of the table belongs to another table.

        A template such as `{keyspace}_{table}` may give two tables one topic. Readers would take the records of one
        table for an earlier life of the other.
        """
        name = f"{place.keyspace}.{place.table}"
        topics = [each for each in (*place.events_topics, place.destination) if each]
        for topic in topics:
            owner = self._owners.setdefault(topic, name)
            if owner != name:
                self._notices.say(
                    f"shared {name}",
                    f"{name} is not served: its topic {topic} is that of {owner}; separate keyspace and table in the option"
                    " events.topic or destination by a character that their names do not have, such as a dot",
                )
                return True
        return False

    def _turn(self) -> None:
        """Handle the posted items, start tasks and reads that may start, and write frames to the host."""
        with contextlib.suppress(queue.Empty):
            self._handle(self._inbox.get(timeout=self._stages.timers.wait_s()))
            for _ in range(_HANDLED_AT_ONCE):
                self._handle(self._inbox.get_nowait())
        self._stages.timers.run_due()
        self._turns.rotate()  # so that no table is always the first
        for line in self._turns:
            line.work()
        self._deliver(self._stages.fetcher.flush())
        self._host.flush()

    def _handle(self, item: Posted) -> None:
        match item:
            case EventsMessage() | DataStaxMessage():
                self._by_topic[_base_name(item.topic)].receive(item)
            case Answer():
                self._deliver(self._stages.fetcher.answered(item))
            case Acks(seqs=seqs):
                self._host_answered(seqs, refused=False)
            case Fail(seq=seq):
                self._host_answered((seq,), refused=True)
            case SchemaTaken() | SchemaRefused() | NewestSchemaAnswer():
                for line in self._turns:
                    line.schema_answered(item)
            case PartitionsAdded():
                for line in self._turns:
                    line.partitions_added(item)
            case SchemaAnswer():
                item.deliver()
            case UnreadableMessage():
                self._stages.set_aside(item)
            case DeadLettersWritten():
                item.then()
            case ExpiriesStored():
                for then in item.then:
                    then()
            case Close():
                self._is_closing = True
            case EventsTopicError() if self._selection.only is None:
                self._cannot_read(item)
            case Exception():
                raise item

    def _deliver(self, over: Sequence[ReadOver]) -> None:
        """Deliver finished reads to the tables of their tasks."""
        for read, outcome in over:
            read.task.owner.deliver(read.task, read.attempt, outcome)

    def _host_answered(self, seqs: Sequence[int], *, refused: bool) -> None:
        outbox = self._stages.outbox
        for seq in seqs:
            task = outbox.answered(seq, refused=refused)
            task.owner.answered(task, refused=refused)

    def _cannot_read(self, error: EventsTopicError) -> None:
        """Check the topic of one of many tables again later: an operator may repair it. The other tables continue."""
        self._unreadable.add(error.topic)
        self._notices.say(
            error.topic, f"{error}; it is checked again every {_TOPIC_LOOK_S:.0f} s, other tables continue"
        )
        self._stages.timers.after(_TOPIC_LOOK_S, partial(self._read_again, error.topic))

    def _read_again(self, topic: str) -> None:
        self._unreadable.discard(topic)
        self._consumer.again(topic)

    # Waiting, metrics.

    def _beat(self) -> None:
        if self._stages.last_rows is not None:
            self._stages.timers.after(_BEAT_S, self._beat)
            self._stages.last_rows.beat()

    def _check_slots(self) -> None:
        """Wake the loop regularly: if no statement is answered, `flush` must notice that some have waited too long."""
        self._stages.timers.after(_SLOTS_S, self._check_slots)

    def _check_schema(self) -> None:
        self._stages.timers.after(_SCHEMA_CHECK_S, self._check_schema)
        for line in self._turns:
            line.check_schema()
        self._find_tables()

    def _check_patterns(self) -> None:
        """Report patterns that hide no column of several tables: a misspelled pattern would publish values in clear."""
        hidden = self._stages.schemas.hidden
        if hidden is None or self._selection.only is not None:
            return
        matched = set[str]().union(*(line.matched_patterns for line in self._turns))
        for pattern in hidden.patterns:
            if pattern.text not in matched:
                _log.warning(
                    "%s: %s matches no column of the %d tables that were found so far; correct it, unless its table is still to come",
                    pattern.hiding.value,
                    pattern.text,
                    len(self._turns),
                )

    def _find_tables(self) -> None:
        """Look for tables that a pattern selects, if the schema has changed since the last check."""
        if self._selection.has_patterns:
            self._stages.schemas.queries.ask(
                partial(_tables_since, self._stages.client, self._tables_seen_at), self._found
            )

    def _found(self, found: tuple[UUID | None, Sequence[tuple[str, str, bool]]] | CdcError) -> None:
        if isinstance(found, CdcError):
            self._notices.say("tables", f"tables that were added are not seen yet: {found}")
            return
        self._tables_seen_at, tables = found
        for place in self._selection.found(tables):
            self._serve(place)

    def _connect(self) -> None:
        """Connect to Cassandra. CLOSE ends the attempts.

        Raises DeploymentError after a while, so that the source's status shows that Cassandra does not answer.
        """
        give_up_at = time.monotonic() + _CONNECT_FOR_S
        while not self._is_closing:
            try:
                self._stages.client.connect()
            except FetchError as error:
                reason = str(error)
            else:
                # A source without a table logs nothing else, and `cdc status` would show the warning as its state.
                self._notices.clear("start", "Cassandra answers")
                return
            if time.monotonic() >= give_up_at:
                raise DeploymentError(
                    f"{reason} (tried for {_CONNECT_FOR_S:.0f} s); see that Cassandra is up and that the options lead to it: "
                    "Pulsar starts the instance again and again"
                )
            self._notices.say("start", f"waiting: {reason}")
            with contextlib.suppress(queue.Empty):
                self._handle(self._inbox.get(timeout=_CONNECT_PAUSE_S))

    def _send_metrics(self) -> None:
        self._stages.timers.after(_METRICS_S, self._send_metrics)
        lines, stages = self._turns, self._stages
        stages.metrics.counters["cache_evictions"] = stages.cache.evictions
        stages.metrics.counters["partitions_taken_over"] = self._consumer.partitions_gotten
        measured = {
            "cache_size": len(stages.cache),
            "query_executors": stages.fetcher.in_flight_limit,
            "partitions_in_work": sum(line.partitions_in_work for line in lines),
            "tables": len(lines),
            "tables_parked": sum(line.is_parked for line in lines),
            "events_topics_refused": len(self._unreadable),
            "data_topic_hazards": self._policies.hazards,
            "data_topics_not_judged": self._policies.unknown,
        }
        for name, value in stages.metrics.to_report(measured):
            self._host.send(encode_metric(name, value))


def _tables_since(client: CassandraClient, seen_at: UUID | None) -> tuple[UUID | None, Sequence[tuple[str, str, bool]]]:
    """The schema's version, and all tables; no tables if the version is `seen_at`. Raises FetchError.

    The version is None if the nodes have several: another node may have answered with the tables, without the new ones.
    """
    version = client.schema_version()
    if version == seen_at:
        return version, ()
    before = client.schema_versions()
    tables = client.tables()
    return version if before == client.schema_versions() == {version} else None, tables


def _base_name(topic: str) -> str:
    """The topic's name without the number of the partition."""
    base, _, number = topic.rpartition("-partition-")
    return base if base and number.isdecimal() else topic
