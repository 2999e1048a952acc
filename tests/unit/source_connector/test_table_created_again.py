"""A table is dropped and created again while its line runs: what happens to events of the old table."""

from __future__ import annotations

import pytest

from schemas.mutation_event import MutationKind
from source_connector.errors import FetchError
from tests.unit.source_connector.events import event, int32, table
from tests.unit.source_connector.table_line_case import GOOD, NEW, OLD, UNFORESEEN, Case


def test_what_waits_for_a_retry_when_its_table_is_created_again_is_not_published_behind_the_new_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its read failed because of the DROP. A retry would publish the new table's row with the old table's id."""
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
    """This holds for any answer. The event is settled once, and the marker of a deletion was published before."""
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
    """This holds for events without room, events that wait for their key, and events that a deletion of the partition
    holds back."""
    case = Case(monkeypatch)
    case.receive(event(1), event(1, digest=1), event(1, kind=MutationKind.PARTITION_DELETION), event(1, digest=2))
    case.around.has_room = False
    case.receive(event(2))
    case.create_again()
    assert case.around.settled == [1, 1, 1, 1]
    case.around.has_room = True
    case.answer(GOOD)
    case.receive(event(2), table_id=NEW)
    assert [read.request.partition_key for read in case.around.reads] == [int32(2)]
    case.answer(GOOD, key=2)
    assert (case.published, case.line.partitions_in_work) == ([NEW], 1)
    assert (case.around.settled, case.counters["events_of_dropped_tables"]) == ([1, 1, 1, 1, 1], 5)


@pytest.mark.parametrize("refused", [False, True])
def test_the_new_table_waits_for_the_records_of_the_old_one_that_are_with_the_broker(
    monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """A refused record is not sent again, and the new table's events are still published."""
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
    assert (case.published, case.around.reads, case.around.dead_letters) == ([OLD, OLD, NEW], [], [])
    assert (case.around.settled, case.line.partitions_in_work) == ([1, 1, 1], 0)


def test_a_letter_that_is_under_way_when_its_table_is_created_again_settles_its_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is settled exactly once."""
    case = Case(monkeypatch, max_failures=1)
    case.receive(event(1))
    case.answer(UNFORESEEN)
    case.create_again()
    ((_, then),) = case.around.dead_letters
    then()
    assert (case.published, case.around.settled) == ([], [1])


def test_events_of_the_newer_table_outlive_a_node_that_shows_the_older_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node lags so long that it is believed. No event is dropped as one of an old table, neither then nor after the
    node has caught up."""
    case = Case(monkeypatch)
    case.create_again()
    case.around.has_room = False
    case.receive(event(1), table_id=NEW)
    for current in (OLD, NEW):
        case.around.current, case.around.number = table(table_id=current), case.around.number + 1
        case.line.check_schema()
        for _ in range(10):
            case.pass_time()
        case.line.check_schema()
    case.around.has_room = True
    case.pass_time()
    case.answer(GOOD)
    assert (case.published, case.counters["events_of_dropped_tables"]) == ([NEW], 0)


@pytest.mark.parametrize("is_agreed", [True, False])
def test_events_of_a_table_that_never_appears_are_set_aside(monkeypatch: pytest.MonkeyPatch, is_agreed: bool) -> None:
    """They are another cluster's, or forged. While they wait the table counts as parked; then a dead letter gives the
    reason, and other events continue."""
    case = Case(monkeypatch)
    case.around.is_agreed = is_agreed
    case.receive(event(1), table_id=NEW)
    case.receive(event(2))
    case.pass_time()
    assert (case.line.is_parked, case.around.dead_letters, case.around.reads) == (True, [], [])
    for _ in range(9):
        case.pass_time()
    (((letter,), then),) = case.around.dead_letters
    assert f"its table id {NEW} is not that of ks.t ({OLD})" in letter.reason
    assert (case.line.is_parked, case.around.settled) == (False, [])
    then()
    assert (case.around.settled, case.counters["events_dead_lettered"]) == ([1], 1)
    case.answer(GOOD, key=2)
    assert case.published == [OLD]


def test_an_event_of_a_table_that_came_back_under_its_old_id_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """The id counted as dropped; `CREATE TABLE ... WITH ID` made it valid again."""
    case = Case(monkeypatch)
    case.create_again()
    case.receive(event(1), table_id=OLD)
    case.pass_time()
    assert case.around.settled == [1]
    case.around.current, case.around.number = table(table_id=OLD), case.around.number + 1
    case.receive(event(2), table_id=OLD)
    case.pass_time()
    case.answer(GOOD, key=2)
    assert case.published == [OLD]


def test_what_is_under_way_when_an_earlier_id_comes_back_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generation shows that the table with the earlier id is the later one, and its records say so."""
    case = Case(monkeypatch)
    for table_id, generation in ((NEW, 20), (OLD, 30)):
        case.around.current = table(table_id=table_id, generation=generation)
        case.around.number += 1
        case.line.check_schema()
        case.line.work()
        case.timers.run_due()
        case.receive(event(generation), table_id=table_id)
    case.answer(GOOD, key=20)
    case.answer(GOOD, key=30)
    assert (case.published, case.around.settled) == ([OLD], [1])
    assert b"table_generation\x00\x00\x00\x0230" in case.around.frames[-1]


def test_a_node_that_lags_gets_seconds_whatever_the_option_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, with `query.backoffInMs: 1`, ten looks without the new table would be over within half a second."""
    case = Case(monkeypatch, shortest_pause_s=0.001)
    case.around.is_agreed = False
    case.receive(event(1), table_id=NEW)
    for _ in range(1_000):
        case.now += 0.01
        case.timers.run_due()
        case.line.work()
    assert case.around.dead_letters == []
    case.around.current = table(table_id=NEW)
    case.pass_time()
    assert (case.around.dead_letters, len(case.around.reads)) == ([], 1)
