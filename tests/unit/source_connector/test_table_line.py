"""What becomes of an event that fails: its own fault or an outage, and what its neighbours notice."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from schemas.mutation_event import MutationEvent, MutationEvents, MutationKind, RangeBounds, decode_events
from schemas.table_metadata import TableMetadata
from source_connector.errors import FetchError
from source_connector.events.dead_letter_writer import DeadLetterWriter
from source_connector.events.dead_letters import DeadLetter
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
from source_connector.tables.schema_looks import SchemaLooks
from source_connector.tables.table_definition import TableDefinition
from source_connector.tables.table_schema import TableLook, TableSchemaReader
from source_connector.timers import Timers
from tests.unit.source_connector.events import NODE, AtOnce, event, int32, table

# Time UUIDs in order of time.
OLD, NEW = (UUID(f"0000000{number}-0000-11f0-8000-000000000000") for number in (1, 2))


class Neighbours:
    """In-memory stages: reads wait for a test's answer, frames and letters are kept, time passes at a word."""

    def __init__(self) -> None:
        self.reads: list[tuple[object, ReadRequest]] = []
        self.letters: list[tuple[object, Sequence[DeadLetter]]] = []
        self.frames: list[bytes] = []
        self.settled: list[MutationEvent | int] = []
        self.has_room = True
        self.topic = "dead"
        self.current = table(table_id=OLD)
        self.number = 5

    # RowFetcher, CassandraClient, TableSchemaReader, HostConnection, DeadLetterWriter, SchemaChangeTopic, Origin

    keyspace, table = "ks", "t"

    def prepare(self, projection: Projection) -> None: ...

    def tell(self, keyspace: str, table: str, definition: TableDefinition | None) -> None: ...

    def start(self, ticket: object, request: ReadRequest) -> None:
        self.reads.append((ticket, request))

    def knows(self, node: UUID) -> bool:
        return True

    def read(self) -> TableMetadata:
        return self.current

    def version(self) -> UUID:
        return UUID(int=self.number)

    def look(self) -> TableLook:
        return TableLook(self.version(), self.read())

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

    def __init__(self, monkeypatch: pytest.MonkeyPatch, max_failures: int = 3, *, range_deletions: bool = True) -> None:
        self.now = 0.0
        monkeypatch.setattr("source_connector.timers.time.monotonic", lambda: self.now)
        self.around = Neighbours()
        self.timers = Timers()
        self.outbox = Outbox(cast("HostConnection", self.around))
        self.metrics = Metrics()
        self.counters = self.metrics.counters
        limits = Limits(
            columns=".*", range_deletions=range_deletions, data_format=DataFormat.KEY_VALUE_AVRO, backoff_s=0.1,
            max_backoff_s=60, max_failures=max_failures, reading=Reading(),
        )  # fmt: skip
        stages = Stages(
            client=cast("CassandraClient", self.around),
            fetcher=cast("RowFetcher", self.around),
            cache=MutationCache(max_capacity=9, max_digests=3, expire_after_s=60),
            outbox=self.outbox,
            looks=cast("SchemaLooks", AtOnce()),
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

    def receive(self, *events: MutationEvent, table_id: UUID = OLD) -> None:
        content = MutationEvents(
            node_id=NODE, segment_id=7, keyspace="ks", table="t", table_id=table_id, key_schema="", events=events
        )
        message_id: Any = "(1,2,3,4)"
        origin = _Origin(self.around)
        message = EventsMessage(identity=b"", message_id=message_id, content=content, topic="events", origin=origin)
        self.line.receive(message)
        self.line.work()

    def answer(self, outcome: RawRow | Exception | None, key: int = 1) -> None:
        """Answer the last read of a key."""
        at = max(at for at, (_, request) in enumerate(self.around.reads) if request.partition_key == int32(key))
        self.answer_to(self.around.reads.pop(at), outcome)

    def answer_to(self, read: tuple[object, ReadRequest], outcome: RawRow | Exception | None) -> None:
        ticket, request = read
        task, attempt = cast("tuple[Task, int]", ticket)
        if isinstance(outcome, FetchError):
            self.line.deliver(task, attempt, outcome)
            return
        rows = () if outcome is None else (outcome,)
        self.line.deliver(task, attempt, Rows(request, cast("Sequence[RawRow]", rows), "ALL", is_fallback=False))

    def create_again(self, *, is_noticed: bool = True) -> None:
        """The table is dropped and created again; that is noticed by an event of it, or by a look at the schema."""
        self.around.current, self.around.number = table(table_id=NEW), self.around.number + 1
        if is_noticed:
            self.line.look_at_schema()
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


def test_what_waits_for_a_retry_when_its_table_is_created_again_is_not_published_behind_the_new_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its read failed for the DROP; tried again it would find the new table's row, and tell it by the old table's id."""
    case = Case(monkeypatch)
    case.receive(event(1))
    case.answer(FetchError("ks.t", "Unknown CF"))
    case.create_again(is_noticed=False)
    case.receive(event(2), table_id=NEW)
    case.pass_time()
    case.answer(GOOD, key=2)
    assert (case.published, case.around.reads) == ([NEW], [])
    assert (case.around.settled, case.counters["events_of_dropped_tables"]) == ([1], 1)


def test_a_read_that_is_under_way_when_its_table_is_created_again_is_not_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever its answer is; its event is settled once, and the deletion's marker was there before."""
    case = Case(monkeypatch)
    case.receive(event(1), event(2), event(3, kind=MutationKind.PARTITION_DELETION))
    case.taken(1)
    case.create_again()
    case.answer(GOOD)
    case.answer(FetchError("ks.t", "Unknown CF"), key=2)
    case.answer(None, key=3)
    case.pass_time()
    assert case.published == [OLD]
    assert (case.around.reads, case.around.settled) == ([], [1, 1, 1])
    assert case.counters["events_of_dropped_tables"] == 3


def test_what_has_not_started_when_its_table_is_created_again_never_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what had no room, nor what waits behind its key, nor what a deletion of its partition holds back."""
    case = Case(monkeypatch)
    case.receive(event(1), event(1, digest=1), event(1, kind=MutationKind.PARTITION_DELETION), event(1, digest=2))
    case.around.has_room = False
    case.receive(event(2))
    case.create_again()
    assert case.around.settled == [1, 1, 1, 1]
    case.around.has_room = True
    case.answer(GOOD)
    case.receive(event(2), table_id=NEW)
    assert [request.partition_key for _, request in case.around.reads] == [int32(2)]
    case.answer(GOOD, key=2)
    assert (case.published, case.line.partitions_in_work) == ([NEW], 1)
    assert (case.around.settled, case.counters["events_of_dropped_tables"]) == ([1, 1, 1, 1, 1], 5)


@pytest.mark.parametrize("refused", [False, True])
def test_the_new_table_waits_for_the_records_of_the_old_one_that_are_with_the_broker(
    monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """A refused one is not handed over again; the new table's events are published all the same."""
    case = Case(monkeypatch)
    case.receive(event(1), event(2))
    case.answer(GOOD)
    case.answer(GOOD, key=2)
    case.create_again()
    case.receive(event(1), table_id=NEW)
    case.taken(1)
    assert case.around.reads == []
    case.taken(2, refused=refused)
    case.answer(GOOD)
    case.taken(3)
    case.pass_time()
    assert (case.published, case.around.reads, case.around.letters) == ([OLD, OLD, NEW], [], [])
    assert (case.around.settled, case.line.partitions_in_work) == ([1, 1, 1], 0)


def test_a_letter_that_is_under_way_when_its_table_is_created_again_settles_its_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once."""
    case = Case(monkeypatch, max_failures=1)
    case.receive(event(1))
    case.answer(UNFORESEEN)
    case.create_again()
    ((ticket, _),) = case.around.letters
    case.line.letters_written(cast("tuple[TableLine, Task]", ticket)[1])
    assert (case.published, case.around.settled) == ([], [1])


def test_events_of_the_newer_table_outlive_a_node_that_shows_the_older_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where it lags for so long that it is believed: nothing of them is taken for dropped, then or when it has caught up."""
    case = Case(monkeypatch)
    case.create_again()
    case.around.has_room = False
    case.receive(event(1), table_id=NEW)
    for current in (OLD, NEW):
        case.around.current, case.around.number = table(table_id=current), case.around.number + 1
        case.line.look_at_schema()
        for _ in range(10):
            case.pass_time()
        case.line.look_at_schema()
    case.around.has_room = True
    case.pass_time()
    case.answer(GOOD)
    assert (case.published, case.counters["events_of_dropped_tables"]) == ([NEW], 0)


def test_a_deletion_whose_marker_is_refused_is_settled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the attempt that follows; what the first one read, or would have read, is nobody's any more."""
    case = Case(monkeypatch)
    case.receive(event(1, kind=MutationKind.PARTITION_DELETION), event(2))
    case.taken(1, refused=True)
    case.pass_time()
    case.taken(2)
    while any(request.partition_key == int32(1) for _, request in case.around.reads):
        case.answer(None)
    assert (case.around.settled, case.line.partitions_in_work) == ([1], 1)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_range_deletion_that_is_not_wanted_is_settled_without_a_record(
    monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    """It holds nothing back, and a deletion of the whole partition has its marker as ever."""
    case = Case(monkeypatch, range_deletions=wanted)
    everything = RangeBounds(start=(), start_inclusive=True, end=(), end_inclusive=True)
    case.receive(
        event(1, kind=MutationKind.RANGE_DELETION, bounds=everything), event(2, kind=MutationKind.PARTITION_DELETION)
    )
    kinds = [
        kind for frame in case.around.frames for kind in (b"range_deletion", b"partition_deletion") if kind in frame
    ]
    assert kinds == ([b"range_deletion", b"partition_deletion"] if wanted else [b"partition_deletion"])
    assert case.around.settled == ([] if wanted else [1])
    assert (case.counters["range_deletions_left_out"], case.line.partitions_in_work) == (not wanted, 1 + wanted)


def test_an_answer_of_an_earlier_attempt_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows or an error, before the next attempt and while it reads."""
    case = Case(monkeypatch)
    case.receive(event(1), event(2))
    first = case.around.reads[0]
    case.answer(UNFORESEEN)
    case.answer_to(first, GOOD)
    assert case.counters["records_published"] == 0
    case.pass_time()
    case.answer_to(first, GOOD)
    case.answer_to(first, FetchError("ks.t", "ReadTimeout"))
    assert (case.counters["records_published"], case.counters["retries"]) == (0, 1)
    case.answer(GOOD)
    assert case.counters["records_published"] == 1


def test_an_answer_that_comes_when_its_event_was_set_aside_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The letter settles the event, and nothing else does."""
    case = Case(monkeypatch, max_failures=1)
    case.receive(event(1))
    read = case.around.reads[0]
    case.answer(UNFORESEEN)
    case.answer_to(read, GOOD)
    ((ticket, _),) = case.around.letters
    case.line.letters_written(cast("tuple[TableLine, Task]", ticket)[1])
    case.answer_to(read, GOOD)
    assert (case.counters["records_published"], case.around.settled) == (0, [1])
