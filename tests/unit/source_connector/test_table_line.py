"""What becomes of an event that fails: its own fault or an outage, and what its neighbours notice."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from schemas.mutation_event import MutationEvent, MutationEvents, decode_events
from schemas.table_metadata import TableMetadata
from source_connector.errors import FetchError
from source_connector.events.dead_letters import DeadLetter, DeadLetterWriter
from source_connector.events.events_message import EventsMessage, UnreadableMessage
from source_connector.events.mutation_cache import MutationCache
from source_connector.host.host_connection import HostConnection
from source_connector.host.host_protocol import SchemaTaken
from source_connector.host.outbox import Outbox
from source_connector.metrics import Metrics
from source_connector.rows.cassandra_client import CassandraClient
from source_connector.rows.projection import Projection
from source_connector.rows.read_request import RawRow, ReadRequest, Rows
from source_connector.rows.row_encoder import DataFormat
from source_connector.rows.row_fetcher import RowFetcher
from source_connector.rows.row_task import Reading, Task
from source_connector.stages import Limits, Stages
from source_connector.table_line import TableLine
from source_connector.tables.newest_schema import SchemaLookedAt
from source_connector.tables.schema_changes import SchemaChangeTopic
from source_connector.tables.table_definition import TableDefinition
from source_connector.tables.table_schema import TableSchemaReader
from source_connector.timers import Timers
from tests.unit.source_connector.events import NODE, event, int32, table


class Neighbours:
    """In-memory stages: reads wait for a test's answer, frames and letters are kept, time passes at a word."""

    def __init__(self) -> None:
        self.reads: list[tuple[Task, ReadRequest]] = []
        self.letters: list[tuple[object, Sequence[DeadLetter]]] = []
        self.frames: list[bytes] = []
        self.settled: list[MutationEvent | int] = []
        self.has_room = True
        self.topic = "dead"

    # RowFetcher, CassandraClient, TableSchemaReader, HostConnection, DeadLetterWriter, SchemaChangeTopic, Origin

    keyspace, table = "ks", "t"

    def prepare(self, projection: Projection) -> None: ...

    def tell(self, keyspace: str, table: str, definition: TableDefinition | None) -> None: ...

    def start(self, task: Task, request: ReadRequest) -> None:
        self.reads.append((task, request))

    def knows(self, node: UUID) -> bool:
        return True

    def read(self) -> TableMetadata:
        return table()

    def version(self) -> UUID:
        return UUID(int=5)

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)

    def write(self, ticket: object, letters: Sequence[DeadLetter]) -> None:
        self.letters.append((ticket, letters))


class _Origin:
    def __init__(self, neighbours: Neighbours) -> None:
        self._neighbours = neighbours

    def settled(self, message: EventsMessage | UnreadableMessage, events: int) -> None:
        message.unsettled -= events
        self._neighbours.settled.append(events)


class Case:
    """A line of `ks.t` whose schema is registered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, max_failures: int = 3) -> None:
        self.now = 0.0
        monkeypatch.setattr("source_connector.timers.time.monotonic", lambda: self.now)
        self.around = Neighbours()
        self.timers = Timers()
        self.outbox = Outbox(cast("HostConnection", self.around))
        self.metrics = Metrics()
        self.counters = self.metrics.counters
        limits = Limits(
            columns=".*", data_format=DataFormat.KEY_VALUE_AVRO, backoff_s=0.1, max_backoff_s=60,
            max_failures=max_failures, reading=Reading(),
        )  # fmt: skip
        stages = Stages(
            client=cast("CassandraClient", self.around),
            fetcher=cast("RowFetcher", self.around),
            cache=MutationCache(max_capacity=9, max_digests=3, expire_after_s=60),
            outbox=self.outbox,
            timers=self.timers,
            letters=cast("DeadLetterWriter", self.around),
            changes=cast("SchemaChangeTopic", self.around),
            metrics=self.metrics,
            last_rows=None,
            limits=limits,
            send=self.around.send,
            look_at_schema=lambda schema: None,
            new_schema_id=itertools.count(1).__next__,
        )
        self.line = TableLine(stages, cast("TableSchemaReader", self.around), lambda: None)
        self.line.open()
        self.timers.run_due()
        self.line.schema_answered(SchemaTaken(1))
        self.line.schema_answered(SchemaLookedAt(schema_id=1, is_newest=True))

    def receive(self, *events: MutationEvent) -> None:
        content = MutationEvents(
            node_id=NODE, segment_id=7, keyspace="ks", table="t", table_id=UUID(int=1), key_schema="", events=events
        )
        message_id: Any = "(1,2,3,4)"
        origin = _Origin(self.around)
        message = EventsMessage(identity=b"", message_id=message_id, content=content, topic="events", origin=origin)
        self.line.receive(message)
        self.line.work()

    def answer(self, outcome: RawRow | Exception | None, key: int = 1) -> None:
        """Answer the last read of a key."""
        at = max(at for at, (_, request) in enumerate(self.around.reads) if request.partition_key == int32(key))
        task, request = self.around.reads.pop(at)
        if isinstance(outcome, FetchError):
            self.line.deliver(task, outcome)
            return
        rows = () if outcome is None else (outcome,)
        self.line.deliver(task, Rows(request, cast("Sequence[RawRow]", rows), "ALL", is_fallback=False))

    def pass_time(self) -> None:
        """Whatever was planned happens."""
        for _ in range(3):
            self.now += 100
            self.timers.run_due()
            self.line.work()


GOOD: RawRow = (int32(5), (10).to_bytes(8, "big"))
UNWRITABLE: RawRow = (b"\x01\x02\x03", (10).to_bytes(8, "big"))
UNFORESEEN: RawRow = ()


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (UNWRITABLE, "row 00000001 of ks.t cannot be converted"),
        (UNFORESEEN, "IndexError: "),
        (FetchError("ks.t", "InvalidRequest: what?", refresh_schema=True, is_invalid=True), "cannot read ks.t: Inval"),
    ],
)
def test_an_event_that_fails_for_its_own_sake_is_set_aside_and_holds_up_nothing(
    monkeypatch: pytest.MonkeyPatch, outcome: RawRow | Exception, reason: str
) -> None:
    """Three attempts, then a letter; the event is settled when the letter is written; others were published meanwhile."""
    case = Case(monkeypatch)
    poison = event(1)
    case.receive(poison, event(2))
    for _ in range(3):
        assert case.around.letters == []
        case.answer(outcome)
        case.pass_time()
    case.answer(GOOD, key=2)
    assert case.counters["records_published"] == 1
    ((ticket, (letter,)),) = case.around.letters
    assert letter.reason.startswith(reason)
    assert (letter.topic, letter.message_id, letter.table) == ("events", "(1,2,3,4)", "ks.t")
    assert decode_events(letter.data).events == (poison,)
    assert (case.around.reads, case.around.settled) == ([], [])
    _, task = cast("tuple[TableLine, Task]", ticket)
    case.line.letters_written(task)
    assert (case.around.settled, case.counters["events_dead_lettered"]) == ([1], 1)


def test_an_outage_is_never_an_events_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty attempts while Cassandra is away, and the fifty-first succeeds."""
    case = Case(monkeypatch)
    case.receive(event(1))
    for _ in range(25):
        case.answer(FetchError("ks.t", "NoHostAvailable", is_outage=True))
        case.pass_time()
        case.answer(FetchError("ks.t", "ReadTimeout"))
        case.pass_time()
    case.answer(GOOD)
    assert (case.counters["records_published"], case.around.letters) == (1, [])


def test_a_refused_record_is_at_fault_only_where_others_of_its_table_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that takes nothing is an outage; one that takes all but this record is not."""
    case = Case(monkeypatch)
    case.receive(event(1))

    def refuse(seq: int) -> None:
        case.answer(GOOD)
        task = case.outbox.answered(seq, refused=True)
        case.line.answered(task, refused=True)
        case.pass_time()

    for seq in range(1, 11):
        refuse(seq)
    assert case.around.letters == []
    for seq in range(11, 17, 2):
        case.receive(event(2, digest=seq))
        case.answer(GOOD, key=2)
        case.line.answered(case.outbox.answered(seq, refused=False), refused=False)
        refuse(seq + 1)
    assert [letter.key for _, letters in case.around.letters for letter in letters] == ["00000001"]
