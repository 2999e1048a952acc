"""An event that fails: whether it is the event's fault or an outage, and the effect on other events."""

from __future__ import annotations

import logging
from uuid import UUID

import pytest

from schemas.hidden_columns import ColumnPattern, HiddenColumns, Hiding
from schemas.mutation_event import EXPIRY_SEGMENT_ID, MutationKind, RangeBounds, decode_events
from source_connector.errors import FetchError
from source_connector.events.datastax_events import DataStaxEvent
from source_connector.host.host_protocol import SchemaRefused, SchemaTaken
from source_connector.rows.read_request import RawRow, Rows
from source_connector.tables.data_partitions import PartitionsAdded
from source_connector.tables.newest_schema import NewestSchemaAnswer
from tests.unit.source_connector.events import NODE, event, event_of, int32, read_at, table
from tests.unit.source_connector.table_line_case import GOOD, NEW, OLD, UNFORESEEN, UNWRITABLE, Case


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
    """After three attempts it becomes a dead letter, which settles the event when it is written; other events are
    published meanwhile."""
    case = Case(monkeypatch)
    poison = event(1)
    case.receive(poison, event(2))
    for _ in range(3):
        assert case.around.dead_letters == []
        case.answer(outcome)
        case.pass_time()
    case.answer(GOOD, key=2)
    assert case.counters["records_published"] == 1
    (((letter,), then),) = case.around.dead_letters
    assert letter.reason.startswith(reason)
    assert (letter.topic, letter.message_id, letter.table) == ("events", "(1,2,3,4)", "ks.t")
    assert decode_events(letter.data).events == (poison,)
    assert (case.around.reads, case.around.settled) == ([], [])
    then()
    assert (case.around.settled, case.counters["events_dead_lettered"]) == ([1], 1)


def test_an_outage_is_never_an_events_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty attempts fail while Cassandra is away, and the next one succeeds."""
    case = Case(monkeypatch)
    case.receive(event(1))
    for _ in range(25):
        case.answer(FetchError("ks.t", "NoHostAvailable", is_outage=True))
        case.pass_time()
        case.answer(FetchError("ks.t", "ReadTimeout"))
        case.pass_time()
    case.answer(GOOD)
    assert (case.counters["records_published"], case.around.dead_letters) == (1, [])


@pytest.mark.parametrize("versions", [{OLD, NEW}, FetchError("system.peers", "OperationTimedOut")])
def test_what_cassandra_refuses_counts_only_where_the_nodes_agree_about_the_schema(
    monkeypatch: pytest.MonkeyPatch, versions: set[UUID] | FetchError
) -> None:
    """A node that is behind refuses statements that others take, so the event waits. Once the nodes agree, three more
    attempts lead to a dead letter."""
    case = Case(monkeypatch)
    case.receive(event(1))
    refused = FetchError("ks.t", "InvalidRequest: Undefined column name a", refresh_schema=True, is_invalid=True)
    case.around.versions = versions
    for _ in range(20):
        case.answer(refused)
        case.pass_time()
    assert (case.around.dead_letters, case.counters["reads_refused_in_disagreement"]) == ([], 20)
    case.around.versions = {OLD}
    for _ in range(3):
        assert case.around.dead_letters == []
        case.answer(refused)
        case.pass_time()
    assert len(case.around.dead_letters) == 1


LATE = FetchError("ks.t", "ReadFailure: READ_TOO_MANY_TOMBSTONES", is_of_key=True)


def test_a_key_that_cannot_be_read_is_set_aside_when_others_are_read_and_takes_what_waits_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first failure does not count. Then there are three more, each after reads of other keys that succeeded."""
    case = Case(monkeypatch)
    case.receive(event(1))
    for number in range(4):
        assert case.around.dead_letters == []
        case.receive(event(2 + number), event(1, digest=number + 1))
        case.answer(GOOD, key=2 + number)
        case.answer(LATE)
        case.pass_time()
    ((letters, then),) = case.around.dead_letters
    assert [letter.key for letter in letters] == ["00000001"] * 4
    assert "READ_TOO_MANY_TOMBSTONES; reads of other keys are answered" in letters[0].reason
    then()
    case.line.work()
    assert case.counters["events_dead_lettered"] == 4
    case.answer(GOOD)  # An event that came after the last attempt finds the partition readable.
    assert case.counters["records_published"] == 5


def test_a_failure_inside_nodes_counts_only_where_they_agree_about_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is behind lacks the new field of a type, and fails for rows that have it."""
    case = Case(monkeypatch)
    case.receive(event(1))
    inside = FetchError("ks.t", "ServerError: index out of bounds", refresh_schema=True, is_of_key=True)

    def fail(number: int) -> None:
        case.receive(event(100 + number))
        case.answer(GOOD, key=100 + number)
        case.answer(inside, key=1)
        case.pass_time()

    case.around.versions = {OLD, NEW}
    for number in range(20):
        fail(number)
    assert (case.around.dead_letters, case.counters["reads_refused_in_disagreement"]) == ([], 19)
    case.around.versions = {OLD}
    for number in range(20, 23):
        assert case.around.dead_letters == []
        fail(number)
    assert len(case.around.dead_letters) == 1


def test_a_key_is_not_at_fault_while_as_many_reads_fail_as_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this case the cluster is overloaded."""
    case = Case(monkeypatch)
    case.receive(event(1), event(2))
    for number in range(20):
        case.receive(event(100 + number))
        case.answer(GOOD, key=100 + number)
        case.answer(LATE, key=2)
        case.answer(LATE, key=1)
        case.pass_time()
    assert case.around.dead_letters == []


def test_a_key_that_was_found_at_fault_stays_so_when_it_has_held_up_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are two such keys, whose events fill the room for waiting events: neither of them counts as a read of
    another key."""
    case = Case(monkeypatch)
    case.receive(event(1), event(2))
    for key in (1, 2):
        case.answer(LATE, key=key)
    case.pass_time()
    case.receive(event(3), event(4), event(5))
    for key in (3, 4, 5):
        case.answer(GOOD, key=key)
    for _ in range(3):
        assert case.around.dead_letters == []
        for key in (1, 2):
            case.answer(LATE, key=key)
        case.pass_time()
    assert [letter.key for letters, _ in case.around.dead_letters for letter in letters] == ["00000001", "00000002"]


def test_a_refused_record_is_at_fault_only_where_others_of_its_table_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that refuses everything is an outage; a broker that refuses only this record is not."""
    case = Case(monkeypatch)
    case.receive(event(1))

    def refuse(seq: int) -> None:
        case.answer(GOOD)
        task = case.outbox.answered(seq, refused=True)
        case.line.answered(task, refused=True)
        case.pass_time()

    for seq in range(1, 11):
        refuse(seq)
    assert case.around.dead_letters == []
    for seq in range(11, 17, 2):
        case.receive(event(2, digest=seq))
        case.answer(GOOD, key=2)
        case.line.answered(case.outbox.answered(seq, refused=False), refused=False)
        refuse(seq + 1)
    assert [letter.key for letters, _ in case.around.dead_letters for letter in letters] == ["00000001"]


def test_a_deletion_whose_marker_is_refused_is_settled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt settles it; late results of the first attempt are ignored."""
    case = Case(monkeypatch)
    case.receive(event(1, kind=MutationKind.PARTITION_DELETION), event(2))
    case.taken(1, refused=True)
    case.pass_time()
    case.taken(2)
    while any(read.request.partition_key == int32(1) for read in case.around.reads):
        case.answer(None)
    assert (case.around.settled, case.line.partitions_in_work) == ([1], 1)


def test_a_page_of_rows_is_not_read_while_the_broker_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all its records would be handed over at once, in addition to those that already wait."""
    case = Case(monkeypatch)
    case.receive(event(1, kind=MutationKind.PARTITION_DELETION))
    outbox = case.outbox
    share = outbox._share_of(case.line)
    before = outbox._bytes, share.bytes
    outbox._bytes = share.bytes = 10**9
    case.taken(1)
    case.pass_time()
    assert case.around.reads == []
    outbox._bytes, share.bytes = before
    case.pass_time()
    assert len(case.around.reads) == 1


@pytest.mark.parametrize("wanted", [True, False])
def test_a_range_deletion_that_is_not_wanted_is_settled_without_a_record(
    monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    """It holds nothing back, and a deletion of the whole partition still gets its marker."""
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
    """The answer has rows or an error, and comes before the next attempt or while that reads."""
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
    """Only the dead letter settles the event."""
    case = Case(monkeypatch, max_failures=1)
    case.receive(event(1))
    read = case.around.reads[0]
    case.answer(UNFORESEEN)
    case.answer_to(read, GOOD)
    ((_, then),) = case.around.dead_letters
    then()
    case.answer_to(read, GOOD)
    assert (case.counters["records_published"], case.around.settled) == (0, [1])


def test_what_is_on_its_way_comes_before_records_that_may_go_to_another_partition(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The data topic got more partitions: nothing is read before the broker has answered. Other topics continue."""
    caplog.set_level(logging.WARNING)  # an agent that another test has started sets the level of all loggers
    case = Case(monkeypatch)
    case.receive(event(1), event(2))
    case.answer(GOOD)
    case.answer(GOOD, key=2)
    assert set(case.around.followed) == {""}
    case.line.partitions_added(PartitionsAdded(destination="another", topic="another", before=1, now=2))
    case.line.partitions_added(PartitionsAdded(destination="", topic="data-ks.t", before=2, now=5))
    case.receive(event(1, digest=1), event(3))
    case.taken(1)
    assert case.around.reads == []
    case.taken(2)
    assert {read.request.partition_key for read in case.around.reads} == {int32(1), int32(3)}
    assert case.counters["data_topic_partitions_added"] == 3
    assert [each.message.partition(":")[0] for each in caplog.records] == ["data-ks.t has 5 partitions now, 2 before"]


def fail_in_the_middle_of_a_page(case: Case) -> None:
    """Fail within a partition deletion: its marker and one row are published, and the next row ends the attempt."""
    case.receive(event(1, kind=MutationKind.PARTITION_DELETION))
    case.taken(1)
    (read,) = case.around.reads
    case.around.reads.clear()
    torn: RawRow = (int32(1), int32(5), b"torn write time", None)
    case.line.deliver(read.task, read.attempt, Rows(read.request, ((int32(1), *GOOD), torn), "ALL", False))
    assert case.counters["records_published"] == 2


def test_the_next_attempt_waits_for_the_records_of_the_one_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their acknowledgement must not continue the failed attempt: two attempts would settle the event twice."""
    case = Case(monkeypatch)
    fail_in_the_middle_of_a_page(case)
    case.pass_time()
    assert case.counters["records_published"] == 2
    case.taken(2)
    assert (case.around.reads, case.around.settled) == ([], [])
    case.pass_time()
    assert (case.counters["records_published"], case.counters["retries"]) == (3, 1)


def test_an_event_is_set_aside_after_the_records_that_it_had_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the broker has these records, their answers have not come yet."""
    case = Case(monkeypatch, max_failures=1)
    fail_in_the_middle_of_a_page(case)
    case.pass_time()
    assert case.around.dead_letters == []
    case.taken(2)
    case.pass_time()
    assert (len(case.around.dead_letters), case.around.settled) == (1, [])


def test_nothing_is_read_while_the_registry_refuses_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for new events and for retries."""
    case = Case(monkeypatch)
    case.receive(event(1))
    case.answer(FetchError("ks.t", "ReadTimeout"))
    case.line.schema_answered(SchemaRefused(1, "incompatible"))
    case.receive(event(2))
    case.pass_time()
    assert (case.line.is_parked, case.around.reads) == (True, [])
    case.line.schema_answered(SchemaTaken(1))
    case.line.schema_answered(NewestSchemaAnswer(schema_id=1, is_newest=True))
    case.pass_time()
    assert {read.request.partition_key for read in case.around.reads} == {int32(1), int32(2)}


def test_an_answer_that_comes_when_its_event_is_settled_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement may be sent twice, and answered twice."""
    case = Case(monkeypatch)
    case.receive(event(1))
    read = case.around.reads[0]
    case.answer(GOOD)
    case.taken(1)
    case.answer_to(read, GOOD)
    assert (case.counters["records_published"], case.around.settled) == (1, [1])


def test_a_task_of_a_dropped_table_is_dismissed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's answer and the end of its pause come after the table was created again."""
    case = Case(monkeypatch)
    fail_in_the_middle_of_a_page(case)
    case.create_again()
    case.taken(2)
    case.pass_time()
    assert (case.around.settled, case.counters["events_of_dropped_tables"]) == ([1], 1)


def test_log_lines_have_no_key_where_it_is_hidden(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The lines have the position in the commit log instead. The dead letter has the key, for a resend."""
    patterns = [ColumnPattern.parse(Hiding.HASH, "ks.t.pk")]
    case = Case(monkeypatch, hidden=HiddenColumns(patterns=patterns, hash_key=32 * b"k"))
    poison = event(0x5EC7E7)
    case.receive(poison)
    for _ in range(3):
        case.answer(UNWRITABLE, key=0x5EC7E7)
        case.pass_time()
    (((letter,), _),) = case.around.dead_letters
    assert decode_events(letter.data).events == (poison,)
    told = "\n".join([letter.reason, *(each.getMessage() for each in caplog.records)])
    assert "7:100: row (hidden) of ks.t cannot be converted" in told and "goes to the dead-letter topic" in told
    assert int32(0x5EC7E7).hex() not in told and poison.key.hex() not in told


@pytest.mark.parametrize("dropped", [["ks.t.s"], []], ids=["dropped", "published"])
def test_a_partition_delete_of_a_datastax_agent_has_a_marker(
    monkeypatch: pytest.MonkeyPatch, dropped: list[str]
) -> None:
    """No static column is published, so no read of one can show that the event is a static write."""
    hidden = HiddenColumns(patterns=[ColumnPattern.parse(Hiding.DROP, each) for each in dropped]) if dropped else None
    case = Case(monkeypatch, hidden=hidden, current=table(clustering_key=("c",), static=("s",), table_id=OLD))
    case.receive_guess(
        DataStaxEvent(
            key={"pk": 1, "c": None}, digest=16 * b"d", node_id=NODE, segment_id=1, position=2, writetime_us=10
        )
    )
    if not dropped:
        case.answer(None)
    case.taken(1)
    assert (case.counters["records_published"], case.around.settled) == (1, [])
    (page,) = case.around.reads
    assert page.request.kind is MutationKind.PARTITION_DELETION
    case.answer(None)
    assert case.around.settled == [1]


EXPIRING: RawRow = (int32(5), (10).to_bytes(8, "big"), int32(4), read_at(601))


def test_an_event_is_settled_when_record_and_expiry_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two may come in either order. If the connector is killed before, it gets the event again."""
    for is_record_first in (True, False):
        case = Case(monkeypatch, publishes_expiry=True)
        case.receive(event(1))
        case.answer(EXPIRING)
        ((due,), (target,)) = case.around.expiries, case.around.targets
        assert (due.key, due.is_static, due.second, due.columns, target) == (event(1).key, False, 605, ("v",), "events")
        steps = [lambda case=case: case.taken(1), case.around.stored[0]]
        for step in steps if is_record_first else steps[::-1]:
            assert case.around.settled == []
            step()
        assert case.around.settled == [1]


def test_a_second_that_is_stored_is_not_stored_for_each_change_of_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row with an expiring column may change a thousand times before that second."""
    case = Case(monkeypatch, publishes_expiry=True)
    for position in (100, 200):
        case.receive(event(1, digest=position))
        case.answer(EXPIRING)
        if position == 100:
            case.around.stored[0]()
        case.taken(position // 100)
    assert (len(case.around.expiries), case.around.settled) == (1, [1, 1])


def test_a_second_that_has_come_is_stored_again_when_its_column_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is read together with the expiry, from a node whose clock is behind: the next read of the key finds the
    column gone."""
    case = Case(monkeypatch, publishes_expiry=True)
    case.receive(event(1, digest=1))
    case.answer(EXPIRING)
    (due,) = case.around.expiries
    case.around.stored.pop()()
    case.taken(1)
    case.receive(event(1, digest=2))
    case.receive(event_of(due), segment_id=EXPIRY_SEGMENT_ID)
    case.receive(event(1, digest=3))
    for number in (2, 3):
        case.answer((*EXPIRING[:2], int32(1), read_at(604)))
        case.taken(number)
    assert [event_of(each) for each in case.around.expiries] == [event_of(due)] * 2
    case.around.stored.pop()()
    assert case.around.settled == [1, 1, 1, 1]
    case.receive(event_of(due), segment_id=EXPIRY_SEGMENT_ID)
    case.answer(None)
    case.taken(4)
    assert (case.counters["records_published"], len(case.around.settled)) == (4, 5)


def test_one_expiry_is_never_taken_for_a_copy_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns of a key expire one after the other, and both expiries are read."""
    case = Case(monkeypatch, publishes_expiry=True)
    for number in (1, 2):
        due = event(1, writetime_us=None, live_us=None, expiry_time_s=605)
        case.receive(due, segment_id=EXPIRY_SEGMENT_ID)
        case.answer(None)
        case.taken(number)
    assert (case.counters["records_published"], case.around.settled) == (2, [1, 1])
