"""A line of one table between stages in memory, for unit tests that give it events and answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from schemas.hidden_columns import HiddenColumns
from schemas.mutation_event import MutationEvent, MutationEvents, encode_events
from schemas.table_metadata import TableMetadata
from schemas.truncation import Truncation
from source_connector.data_format import DataFormat
from source_connector.encoding.projection import Projection
from source_connector.errors import FetchError
from source_connector.events.datastax_events import DataStaxEvent
from source_connector.events.dead_letter_writer import DeadLetterWriter
from source_connector.events.dead_letters import DeadLetter
from source_connector.events.due_rows import DueRow, DueRows
from source_connector.events.events_message import DataStaxMessage, EventsMessage, RawMessage, UnreadableMessage
from source_connector.events.events_reader import read_events
from source_connector.events.expiry_topics import ExpiryTopics
from source_connector.events.mutation_cache import PythonCache
from source_connector.host.host_connection import HostConnection
from source_connector.host.host_protocol import SchemaTaken
from source_connector.metrics import Metrics
from source_connector.rows.cassandra_client import CassandraClient
from source_connector.rows.cluster_clock import ClusterClock
from source_connector.rows.outbox import Outbox
from source_connector.rows.read_groups import WaitingRead
from source_connector.rows.read_request import RawRow, ReadRequest, Rows
from source_connector.rows.row_fetcher import RowFetcher
from source_connector.rows.task import Reading, Task
from source_connector.stages import Limits, Stages
from source_connector.table_line import TableLine
from source_connector.tables.data_partitions import DataPartitions
from source_connector.tables.followed_table import SchemaStages
from source_connector.tables.newest_schema import NewestSchemaAnswer
from source_connector.tables.schema_changes import ClearingToPublish, SchemaChangeTopic
from source_connector.tables.schema_queries import SchemaQueries
from source_connector.tables.table_definition import TableDefinition
from source_connector.tables.table_schema import TableSchemaReader, VersionedTable
from source_connector.timers import Timers
from tests.unit.source_connector.events import NODE, AtOnce, int32, table

__all__ = ["GOOD", "NEW", "OLD", "UNFORESEEN", "UNWRITABLE", "Case", "Neighbours"]

# Time UUIDs in ascending order of time.
OLD, NEW = (UUID(f"0000000{number}-0000-11f0-8000-000000000000") for number in (1, 2))
GOOD: RawRow = (int32(5), (10).to_bytes(8, "big"), None)
UNWRITABLE: RawRow = (b"\x01\x02\x03", (10).to_bytes(8, "big"), None)
UNFORESEEN: RawRow = ()


class Neighbours:
    """Stages in memory: reads wait for a test, frames and dead letters are kept, and only a test advances the time."""

    def __init__(self) -> None:
        self.reads: list[WaitingRead] = []
        self.dead_letters: list[tuple[Sequence[DeadLetter], Callable[[], None]]] = []
        self.frames: list[bytes] = []
        self.settled: list[MutationEvent | int] = []
        self.due_rows = DueRows(100)
        self._expiries: list[DueRow] = []
        self._stored: list[Callable[[], None]] = []
        self._targets: list[str] = []
        self.has_room = self.has_bytes = True
        self.followed: list[str] = []
        self.noted: dict[UUID, Truncation | None] = {}
        self.clearings: list[ClearingToPublish] = []
        self.topic = "dead"
        self.current = table(table_id=OLD)
        self.number = 5
        self.is_agreed = True
        self.versions: set[UUID] | FetchError = {UUID(int=5)}

    # The methods of RowFetcher, CassandraClient, TableSchemaReader, HostConnection, DeadLetterWriter,
    # SchemaChangeTopic, DataPartitions, Origin

    keyspace, table = "ks", "t"

    def prepare(self, projection: Projection) -> None: ...

    def publish(self, keyspace: str, table: str, definition: TableDefinition | None) -> None: ...

    def start(self, task: Task, request: ReadRequest) -> None:
        self.reads.append(WaitingRead(task, request))

    def follow(self, destination: str) -> None:
        self.followed.append(destination)

    def knows(self, node: UUID) -> bool:
        return True

    def truncations(self, table_id: UUID) -> dict[UUID, Truncation | None]:
        return self.noted

    def current_id(self) -> object:
        return self.current.table_id

    is_on = True

    def publish_clearing(self, told: ClearingToPublish) -> None:
        self.clearings.append(told)

    @property
    def clock(self) -> ClusterClock:
        return ClusterClock()

    def read(self) -> TableMetadata:
        return self.current

    def version(self) -> UUID:
        return UUID(int=self.number)

    def version_since(self, asked_after: float) -> UUID:
        return self.version()

    def schema_versions(self) -> set[UUID]:
        if isinstance(self.versions, FetchError):
            raise self.versions
        return self.versions

    def read_versioned(self) -> VersionedTable:
        return VersionedTable(self.version(), self.read(), self.is_agreed)

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)

    @property
    def expiries(self) -> list[DueRow]:
        self._take_due_rows()
        return self._expiries

    @property
    def stored(self) -> list[Callable[[], None]]:
        self._take_due_rows()
        return self._stored

    @property
    def targets(self) -> list[str]:
        self._take_due_rows()
        return self._targets

    def _take_due_rows(self) -> None:
        for then, _, message, row in self.due_rows.take():
            self._expiries.append(row)
            self._stored.append(then)
            self._targets.append(message.topic)

    def write(self, dead_letters: Sequence[DeadLetter], then: Callable[[], None]) -> None:
        self.dead_letters.append((dead_letters, then))


class _Origin:
    def __init__(self, neighbours: Neighbours) -> None:
        self._neighbours = neighbours

    def settled(self, message: EventsMessage | DataStaxMessage | UnreadableMessage, events: int) -> None:
        self._neighbours.settled.append(events)


class Case:
    """A line of `ks.t` with a registered schema."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        max_failures: int = 3,
        *,
        range_deletions: bool = True,
        hidden: HiddenColumns | None = None,
        publishes_expiry: bool = False,
        current: TableMetadata | None = None,
        shortest_pause_s: float = 0.1,
        is_shared: bool = False,
    ) -> None:
        self.now = 0.0
        monkeypatch.setattr("source_connector.timers.time.monotonic", lambda: self.now)
        self.around = Neighbours()
        self.around.current = current or self.around.current
        self.timers = Timers()
        self.outbox = Outbox(cast("HostConnection", self.around))
        self.metrics = Metrics()
        self.counters = self.metrics.counters
        limits = Limits(
            range_deletions=range_deletions,
            backoff_s=0.1,
            max_backoff_s=60,
            max_failures=max_failures,
            reading=Reading(),
        )
        stages = Stages(
            client=cast("CassandraClient", self.around),
            fetcher=cast("RowFetcher", self.around),
            cache=PythonCache(max_capacity=9, max_digests=3, expire_after_s=60),
            outbox=self.outbox,
            timers=self.timers,
            dead_letters=cast("DeadLetterWriter", self.around),
            metrics=self.metrics,
            last_rows=None,
            expiries=cast("ExpiryTopics", self.around) if publishes_expiry else None,
            limits=limits,
            is_shared=is_shared,
            schemas=SchemaStages(
                queries=cast("SchemaQueries", AtOnce()),
                changes=cast("SchemaChangeTopic", self.around),
                data_partitions=cast("DataPartitions", self.around),
                send=self.around.send,
                check_schema=lambda schema: None,
                new_schema_id=itertools.count(1).__next__,
                columns=".*",
                data_format=DataFormat.KEY_VALUE_AVRO,
                shortest_pause_s=shortest_pause_s,
                hidden=hidden,
            ),
        )
        self.line = TableLine(stages, cast("TableSchemaReader", self.around), lambda: None)
        self.line.open()
        self.timers.run_due()
        self.line.schema_answered(SchemaTaken(1))
        self.line.schema_answered(NewestSchemaAnswer(schema_id=1, is_newest=True))

    def receive(
        self, *events: MutationEvent, table_id: UUID = OLD, segment_id: int = 7, decoded: int | None = None
    ) -> None:
        """Receive a message, of which the first events are `decoded`, or all."""
        content = MutationEvents(
            node_id=NODE,
            segment_id=segment_id,
            keyspace="ks",
            table="t",
            table_id=table_id,
            key_schema="",
            events=events,
        )
        later = None
        if decoded is not None:
            content, later = read_events(encode_events(content), decoded)
        message_id: Any = "(1,2,3,4)"
        origin = _Origin(self.around)
        message = EventsMessage(
            identity=b"", message_id=message_id, content=content, topic="events", origin=origin, later=later
        )
        self.line.receive(message)
        self.line.work()

    def receive_guess(self, event: DataStaxEvent) -> None:
        """Receive an event of a DataStax agent, and answer the look at the schema for which it waits."""
        message_id: Any = "(1,2,3,4)"
        self.line.receive(
            DataStaxMessage(
                identity=b"",
                message_id=message_id,
                topic="events",
                event=event,
                raw=RawMessage(data=b""),
                origin=_Origin(self.around),
            )
        )
        self.line.work()
        self.timers.run_due()
        self.line.work()

    def answer(self, outcome: RawRow | Exception | None, key: int = 1) -> None:
        """Answer the last read of a key."""
        at = max(at for at, read in enumerate(self.around.reads) if read.request.partition_key == int32(key))
        self.answer_to(self.around.reads.pop(at), outcome)

    def answer_to(self, read: WaitingRead, outcome: RawRow | Exception | None) -> None:
        if isinstance(outcome, FetchError):
            self.line.deliver(read.task, read.attempt, outcome)
            return
        rows = cast("Sequence[RawRow]", () if outcome is None else (outcome,))
        self.line.deliver(read.task, read.attempt, Rows(read.request, rows, "ALL", is_fallback=False))

    def create_again(self, *, is_noticed: bool = True) -> None:
        """Drop the table and create it again; an event of the new table, or a look at the schema, shows it."""
        self.around.current, self.around.number = table(table_id=NEW), self.around.number + 1
        if is_noticed:
            self.line.check_schema()
            self.line.work()
            self.timers.run_due()

    def taken(self, seq: int, *, refused: bool = False) -> None:
        """The broker's answer about a record."""
        self.line.answered(self.outbox.answered(seq, refused=refused), refused=refused)
        self.line.work()

    @property
    def published(self) -> list[UUID]:
        """The table id of each record that was handed to the host, in their order."""
        texts = [(frame.find(str(each).encode()), each) for frame in self.around.frames for each in (OLD, NEW)]
        return [each for at, each in texts if at >= 0]

    def pass_time(self) -> None:
        """Run all planned steps."""
        for _ in range(3):
            self.now += 100
            self.timers.run_due()
            self.line.work()
