"""Events of a message that are decoded only when they may start."""

from __future__ import annotations

import pytest

from schemas.mutation_event import MutationKind
from source_connector.host.host_protocol import SchemaTaken
from source_connector.tables.newest_schema import NewestSchemaAnswer
from tests.unit.source_connector.events import event, int32, table
from tests.unit.source_connector.table_line_case import GOOD, NEW, OLD, Case


def started(case: Case) -> list[bytes]:
    """The partition keys of the reads, in their order."""
    return [read.request.partition_key for read in case.around.reads]


def test_all_events_of_a_message_start_in_their_order_however_many_are_decoded_when_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is room for all. The message is settled once, with its last event."""
    case = Case(monkeypatch)
    case.receive(*map(event, range(1000)), decoded=30)
    assert started(case) == [int32(each) for each in range(1000)]
    for key in range(1000):
        case.answer(GOOD, key=key)
        case.taken(key + 1)
    assert sum(case.around.settled) == case.counters["events_received"] == 1000


def test_while_much_work_waits_for_room_the_later_events_remain_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory depends on what may start, not on how large messages are. Later messages come behind earlier ones."""
    case = Case(monkeypatch)
    case.around.has_room = False
    case.receive(*map(event, range(1000)), decoded=30)
    case.receive(*map(event, range(1000, 2000)), decoded=30)
    assert case.line.partitions_in_work == 130
    case.around.has_room = True
    case.line.work()
    assert started(case) == [int32(each) for each in range(2000)]


def test_a_key_with_most_of_the_waiting_events_does_not_keep_other_keys_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first read is not answered. What waits behind it, or behind a deletion of its partition, takes no turn."""
    case = Case(monkeypatch)
    hot = [event(1, digest=number) for number in range(400)]
    case.receive(*hot, event(1, kind=MutationKind.PARTITION_DELETION), *hot, event(2), decoded=30)
    assert started(case) == [int32(1), int32(2)]
    assert case.counters["events_received"] == 802


def test_the_reads_of_a_busy_key_are_as_few_as_if_all_events_were_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits without room is decoded as long as it concerns few keys, so that one read settles all of a key."""
    case = Case(monkeypatch)
    case.around.has_room = False
    case.receive(*(event(number % 50, digest=number) for number in range(1000)), decoded=30)
    case.around.has_room = True
    case.line.work()
    for key in range(50):
        case.answer(GOOD, key=key)
        case.taken(key + 1)
    assert [len(read.task.work.events) for read in case.around.reads] == [19] * 50


def test_what_a_table_may_hold_is_decoded_ahead_so_that_one_read_settles_all_events_of_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The table has a share of 300 events, and changes of 300 keys in turns. With a look ahead of 100 keys only, a key's
    next event was decoded after its read, and each event had a read of its own."""
    case = Case(monkeypatch)
    room = property(lambda around: len(around.reads) < 50)
    monkeypatch.setattr(type(case.around), "has_room", room, raising=False)
    case.receive(*(event(number % 300, digest=number) for number in range(1200)), decoded=300)
    sequence = 0
    while case.around.reads:
        case.answer_to(case.around.reads.pop(0), GOOD)
        sequence += 1
        case.taken(sequence)
    assert sum(case.around.settled) == 1200
    assert case.counters["records_published"] <= 700


def test_later_events_of_a_table_that_was_created_again_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are settled with those that wait. None is read in the new table."""
    case = Case(monkeypatch)
    case.around.has_room = False
    for first in (0, 1000):
        case.receive(*map(event, range(first, first + 1000)), decoded=30)
    case.create_again()
    assert sum(case.around.settled) == case.counters["events_of_dropped_tables"] == 2000
    case.around.has_room = True
    case.receive(event(2), table_id=NEW)
    assert started(case) == [int32(2)]


def test_later_events_of_an_older_table_are_settled_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of a dropped table is taken whole."""
    case = Case(monkeypatch)
    case.create_again()
    case.receive(*map(event, range(1000)), table_id=OLD, decoded=30)
    case.pass_time()
    assert (started(case), sum(case.around.settled)) == ([], 1000)


def test_range_deletions_among_later_events_are_left_out_by_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are settled when they are decoded."""
    case = Case(monkeypatch, range_deletions=False)
    deletions = [event(number, kind=MutationKind.RANGE_DELETION) for number in range(300)]
    case.receive(event(1000), *deletions, event(2000), decoded=1)
    assert started(case) == [int32(1000), int32(2000)]
    assert (sum(case.around.settled), case.counters["range_deletions_left_out"]) == (300, 300)


def test_a_column_that_only_later_events_name_is_looked_up_before_a_row_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the first rows would be published without the column, although an event of their message has it."""
    case = Case(monkeypatch)
    case.around.current, case.around.number = table(columns=("v", "x"), table_id=OLD), case.around.number + 1
    case.receive(event(1), event(2, columns=("v", "x")), decoded=1)
    case.pass_time()
    case.line.schema_answered(SchemaTaken(2))
    case.line.schema_answered(NewestSchemaAnswer(schema_id=2, is_newest=True))
    case.pass_time()
    assert [sorted(read.request.projection.column_names) for read in case.around.reads] == [["pk", "v", "x"]] * 2
