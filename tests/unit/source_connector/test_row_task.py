"""When a read proves that it includes a change, and what follows when it does not."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from uuid import UUID

import pytest

from schemas.mutation_event import EXPIRY_SEGMENT_ID, NO_MARKER, MutationEvent, MutationKind
from source_connector.encoding.projection import Projection
from source_connector.rows.last_rows import LastRows
from source_connector.rows.partition_lanes import Work
from source_connector.rows.read_request import RawRow, ReadLevel, Rows
from source_connector.rows.row_task import RowTask, holds_change, may_be_overtaken
from source_connector.rows.task import Reading
from tests.unit.source_connector.events import NODE, column, event, int32, pending, read_at, table
from tests.unit.source_connector.task_owner import MemoryOwner


@pytest.mark.parametrize(
    ("columns", "live_us", "writetimes", "proven"),
    [
        (("a",), 10, {"a": 10}, True),
        (("a", "b"), 10, {"a": 10, "b": 99}, True),
        (("a", "b"), 10, {"a": 11, "b": 12}, True),
        (("a", "b"), 10, {"b": 10}, True),  # The other one was deleted, or has expired.
        (("a", "b"), 10, {"a": 11}, False),  # A later write of one column may have come without this one.
        (("a", "b"), 10, {"a": 11, "b": 9}, False),
        (("a",), 10, {"a": 9}, False),
        (("a",), 10, {}, False),
        (("a",), None, {"a": 10}, False),
        ((), 10, {"a": 10}, False),
    ],
)
def test_write_times_prove_a_change_or_not(
    columns: tuple[str, ...], live_us: int | None, writetimes: dict[str, int], proven: bool
) -> None:
    """The event's own cell proves it, or a later cell in place of each of them."""
    assert holds_change(event(columns=columns, live_us=live_us), writetimes) is proven


def row(value: int | None, writetime_us: int | None, ttl_s: int | None = None) -> RawRow:
    time = None if writetime_us is None else writetime_us.to_bytes(8, "big")
    return (None if value is None else int32(value), time, None if ttl_s is None else int32(ttl_s), read_at(601))


class Case:
    """A task with its owner, and answers to its reads."""

    def __init__(
        self,
        *events: MutationEvent,
        node: UUID = NODE,
        reading: Reading | None = None,
        last_rows: LastRows | None = None,
        projection: Projection | None = None,
        segment_id: int = 7,
    ) -> None:
        self.owner = MemoryOwner(projection or Projection(table()), node)
        self.owner.reading = reading or Reading()
        self.owner.last_rows = last_rows
        self.events = pending(*events, segment_id=segment_id)
        self.task = RowTask(Work(list(self.events)), self.owner)
        self.task.start()

    def answer(
        self,
        found: RawRow | None,
        consistency: str = "LOCAL_QUORUM",
        *,
        is_fallback: bool = False,
        coordinator: UUID | None = None,
    ) -> None:
        rows = () if found is None else (found,)
        request = self.owner.reads[-1]
        self.task.on_rows(
            Rows(
                request=request,
                rows=rows,
                consistency=consistency,
                is_fallback=is_fallback,
                coordinator=coordinator,
            )
        )

    @property
    def levels(self) -> list[ReadLevel]:
        return [request.level for request in self.owner.reads]


FIRST, HIGHER = ReadLevel.FIRST, ReadLevel.HIGHER


def test_a_proven_read_is_published_and_remembered_when_it_is_acknowledged() -> None:
    """There is one read and one record, and nothing is settled before the data topic has the record."""
    case = Case(event())
    case.answer(row(5, 10))
    assert (case.levels, case.owner.settled) == ([FIRST], [])
    assert [record.value for record in case.owner.records] == [b"\x02\x0a"]
    case.task.on_all_acknowledged()
    assert case.owner.settled == [case.events]


def test_a_later_increment_does_not_prove_an_earlier_one() -> None:
    """The later one may have reached a replica before the earlier one: only the event's own write time, or all
    replicas, prove it."""
    counters = Projection(replace(table(), flags=frozenset({"counter", "compound"})))
    later = Case(event(writetime_us=10, live_us=10), projection=counters)
    later.answer(row(4, 11))
    assert (later.levels, later.owner.records) == ([FIRST, HIGHER], [])
    later.answer(row(5, 11), "ALL")
    later.owner.acknowledge(later.task)
    assert later.owner.settled == [later.events]
    same = Case(event(writetime_us=10, live_us=10), projection=counters)
    same.answer(row(5, 10))
    assert (same.levels, len(same.owner.records)) == ([FIRST], 1)


def test_a_row_that_is_older_than_its_event_is_read_again_at_the_higher_level() -> None:
    """Only the result of that read is published."""
    case = Case(event(writetime_us=10, live_us=10))
    case.answer(row(4, 9))
    assert (case.levels, case.owner.records) == ([FIRST, HIGHER], [])
    case.answer(row(5, 10), "ALL")
    case.task.on_all_acknowledged()
    assert [record.value for record in case.owner.records] == [b"\x02\x0a"]
    assert case.owner.settled == [case.events]


class CountingFlags(frozenset[str]):
    """The flags of a table, which are looked at when it is judged whether a row shows a later write."""

    looks = 0

    def __contains__(self, flag: object) -> bool:
        type(self).looks += 1
        return super().__contains__(flag)


def test_whether_a_row_shows_its_only_event_is_judged_once() -> None:
    """It was judged twice for an event that the row does not show, with the same result."""
    flags = CountingFlags(["compound"])
    case = Case(event(writetime_us=10, live_us=10), projection=Projection(replace(table(), flags=flags)))
    before = flags.looks
    case.answer(row(4, 9))
    assert case.levels == [FIRST, HIGHER]
    assert flags.looks - before == 1


def test_what_no_write_time_can_prove_goes_to_the_higher_level_at_once() -> None:
    """A deleted column, a row of only its key, and a deleted row need one read of all replicas."""
    for unprovable in (event(live_us=None), event(columns=()), event(kind=MutationKind.ROW_DELETION, live_us=None)):
        case = Case(unprovable)
        case.answer(None, "ALL")
        case.task.on_all_acknowledged()
        assert case.levels == [HIGHER]
        assert [record.value for record in case.owner.records] == [None]
        assert case.owner.settled == [case.events]


@pytest.mark.parametrize(
    ("consistency", "is_fallback", "node"),
    [("LOCAL_QUORUM", True, NODE), ("QUORUM", False, NODE), ("ALL", False, UUID(int=9))],
)
def test_an_unproven_read_is_published_but_not_remembered(consistency: str, is_fallback: bool, node: UUID) -> None:
    """A lower level answered, not all replicas were asked, or the event's node is no longer in the cluster."""
    case = Case(event(live_us=None), node=node)
    case.answer(None, consistency, is_fallback=is_fallback)
    case.task.on_all_acknowledged()
    assert len(case.owner.records) == 1
    assert case.owner.settled == [[]]


def test_a_fallback_of_the_first_level_is_published_without_asking_for_more() -> None:
    """If there are too few replicas for a quorum, there are also too few for a higher level."""
    case = Case(event())
    case.answer(row(5, 10), "LOCAL_ONE", is_fallback=True)
    case.task.on_all_acknowledged()
    assert (case.levels, case.owner.settled) == ([FIRST], [[]])


def test_events_that_are_settled_together_are_proven_one_by_one() -> None:
    """The newer write replaces the older cell; the record has the newest times."""
    newer = event(writetime_us=20, live_us=20, expiry_time_s=800, marker_expiry_s=800, position=300)
    case = Case(event(writetime_us=10, live_us=10, expiry_time_s=900, marker_expiry_s=900), newer)
    case.answer(row(5, 20, 200))
    case.task.on_all_acknowledged()
    assert case.owner.settled == [case.events]
    (record,) = case.owner.records
    assert (record.properties["writetime"], record.properties["expires_at"]) == ("20", "800")
    assert record.properties["segpos"] == "7:300"


def test_a_record_that_took_long_is_read_again_before_its_event_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another instance may have published meanwhile: an equal row settles the event, and another row is published."""
    now = [0.0]
    monkeypatch.setattr("source_connector.rows.row_task.time.monotonic", lambda: now[0])
    case = Case(event())
    case.answer(row(5, 10))
    now[0] = 6.0
    case.task.on_all_acknowledged()
    assert (len(case.owner.reads), case.owner.settled) == (2, [])
    case.answer(row(6, 20))
    case.task.on_all_acknowledged()
    assert [record.value for record in case.owner.records] == [b"\x02\x0a", b"\x02\x0c"]
    assert case.owner.settled == [case.events]


def test_a_busy_row_over_a_slow_topic_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record takes 6 s, and the row changes each time: the row is read once more, and not for ever."""
    now = [0.0]
    monkeypatch.setattr("source_connector.rows.row_task.time.monotonic", lambda: now[0])
    case = Case(event())
    for value in range(2):
        case.answer(row(value, 10 + value))
        now[0] += 6.0
        case.task.on_all_acknowledged()
    assert (len(case.owner.reads), len(case.owner.records), len(case.owner.settled)) == (2, 2, 1)


def test_a_record_of_an_event_that_another_instance_may_have_had_is_looked_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record was quick, but the event waited so long that another instance may have had the partition meanwhile."""
    now = [100.0]
    monkeypatch.setattr("source_connector.rows.row_task.time.monotonic", lambda: now[0])
    for overtaken_after, reads in ((99.0, 2), (105.0, 1)):
        case = Case(event())
        case.events[0].message.overtaken_after = overtaken_after
        case.answer(row(5, 10))
        case.task.on_all_acknowledged()
        assert len(case.owner.reads) == reads
        if reads == 2:
            case.answer(row(5, 10))
        assert (case.owner.settled, len(case.owner.records)) == ([case.events], 1)


def test_of_events_that_are_settled_together_the_first_tells_if_another_instance_may_have_had_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message of the last one came later, perhaps after the other instance had given the partition up."""
    now = [100.0]
    monkeypatch.setattr("source_connector.rows.row_task.time.monotonic", lambda: now[0])
    first, second = *pending(event()), *pending(event(digest=1))
    first.message.overtaken_after, second.message.overtaken_after = 99.0, 105.0
    work = Work([first, second])
    assert may_be_overtaken(work, 100.0)
    first.message.overtaken_after = 105.0
    assert not may_be_overtaken(work, 100.0)


def test_without_the_check_the_first_level_is_believed() -> None:
    """There is one read at the first level for each event; a fallback still suppresses no copy."""
    for is_fallback in (False, True):
        case = Case(event(live_us=None), reading=Reading(proves=False))
        case.answer(None, is_fallback=is_fallback)
        case.task.on_all_acknowledged()
        assert case.levels == [FIRST]
        assert case.owner.settled == [[] if is_fallback else case.events]


def test_a_copy_is_suppressed_only_by_a_read_of_the_events_own_node_where_that_is_asked_for() -> None:
    """The option of DataStax's connector applies in addition to the proof."""
    for coordinator, remembered in ((NODE, 1), (UUID(int=77), 0)):
        case = Case(event(), reading=Reading(only_by_event_node=True))
        case.answer(row(5, 10), coordinator=coordinator)
        if not remembered:
            case.answer(row(5, 10), "ALL", coordinator=coordinator)
        case.task.on_all_acknowledged()
        assert [len(each) for each in case.owner.settled] == [remembered]


def test_a_row_that_did_not_change_is_settled_without_a_record_where_that_is_asked_for() -> None:
    """The next event of the key has the same row; then the row changes and is published."""
    rows = LastRows(10)
    published = []
    for value in (5, 5, 6):
        case = Case(event(), last_rows=rows)
        case.answer(row(value, 10))
        if case.owner.records:
            case.task.on_all_acknowledged()
        assert case.owner.settled == [case.events]
        published.append(len(case.owner.records))
    assert published == [1, 0, 1]


def test_a_row_is_published_after_an_attempt_whose_record_may_be_on_the_topic() -> None:
    """The attempt published another row and failed. Then the row is again the one that was published before."""
    rows = LastRows(10)
    case = Case(event(), last_rows=rows)
    case.answer(row(5, 10))
    case.task.on_all_acknowledged()
    case = Case(event(), last_rows=rows)
    case.answer(row(6, 10))
    case.task.start()
    case.answer(row(5, 10))
    assert [each.value for each in case.owner.records] == [b"\x02\x0c", b"\x02\x0a"]


def test_an_element_that_goes_now_is_scheduled_though_its_row_did_not_change() -> None:
    """The element was written again with a TTL: the value is equal, and records do not have TTLs of elements."""
    rows, made = LastRows(10), table()
    tags = column("tags", cql_type="set<text>")
    projection = Projection(replace(made, regular_columns=(*made.regular_columns, tags)))
    one_tag = (1).to_bytes(4, "big") + (1).to_bytes(4, "big") + b"a"
    published, seconds = [], []
    for second in (None, 700):
        change = event(columns=("tags",), expiry_time_s=second, marker_expiry_s=NO_MARKER)
        case = Case(change, last_rows=rows, projection=projection)
        case.answer((int32(5), one_tag, (10).to_bytes(8, "big"), None, read_at(601)), "ALL")
        if case.owner.records:
            case.owner.acknowledge(case.task)
        assert len(case.owner.settled) == 1
        published.append(len(case.owner.records))
        seconds.append([each.second for _, each in case.owner.expiries])
    assert (published, seconds) == ([1, 0], [[], [700]])


def expiry_case(*, columns: tuple[str, ...] = ("v",)) -> Case:
    """A key whose column v should expire at second 605; the coordinator reads at second 601."""
    digest = hashlib.md5(b"expiry", usedforsecurity=False).digest()
    due = event(writetime_us=None, live_us=None, expiry_time_s=605, marker_expiry_s=NO_MARKER)._replace(digest=digest)
    return Case(due._replace(columns=columns), segment_id=EXPIRY_SEGMENT_ID)


def test_a_record_with_a_ttl_is_scheduled_for_the_second_in_which_its_first_cell_goes() -> None:
    """The coordinator read at second 601; a row without a TTL is not scheduled."""
    case = Case(event(marker_expiry_s=NO_MARKER))
    case.answer(row(5, 10, ttl_s=4))
    ((clustering, expiry),) = case.owner.expiries
    assert (clustering, expiry.second, expiry.columns) == ((), 605, ("v",))
    case = Case(event())
    case.answer(row(5, 10))
    assert case.owner.expiries == []


def test_what_has_gone_is_published_and_says_that_no_change_caused_it() -> None:
    """The record has the row as it is now, from a read at the higher level: null, or smaller."""
    for found, value in ((None, None), (row(None, None), b"\0")):
        case = expiry_case()
        assert case.levels == [HIGHER]
        case.answer(found, "ALL")
        (record,) = case.owner.records
        assert (record.value, record.properties["kind"], record.properties["expiry"]) == (value, "row", "true")
        assert "writetime" not in record.properties
        case.owner.acknowledge(case.task)
        assert len(case.owner.settled) == 1


@pytest.mark.parametrize("ttl_s", [None, 600])
def test_a_row_whose_life_was_extended_gives_no_record(ttl_s: int | None) -> None:
    """The event of the later write has published it, and schedules its own second."""
    case = expiry_case()
    case.answer(row(5, 12, ttl_s=ttl_s), "ALL")
    assert (case.owner.records, case.owner.expiries, case.owner.settled) == ([], [], [case.events])


def test_a_cell_that_is_still_there_is_looked_at_again_when_its_node_has_the_second() -> None:
    """The node's clock is four seconds behind, as its TTL shows; a row that never expires is given up in the end."""
    case = expiry_case()
    case.answer(row(5, 10, ttl_s=4), "ALL")
    ((pause_s, step),) = case.owner.steps
    assert (case.owner.records, case.owner.settled, 4 < pause_s < 5) == ([], [], True)
    step()
    case.answer(None, "ALL")
    assert [record.value for record in case.owner.records] == [None]
    case = expiry_case()
    for _ in range(4):
        case.answer(row(5, 10, ttl_s=1), "ALL")
        if len(case.owner.steps) > len(case.levels) - 1:
            case.owner.steps[-1][1]()
    assert (case.owner.records, case.owner.settled) == ([], [case.events])


def test_an_expired_row_is_published_again_when_a_truncation_may_have_come_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the row waits for its next expiry, a truncation may be recorded, and it removes the record from the topic."""
    now = [0.0]
    monkeypatch.setattr("source_connector.rows.row_task.time.monotonic", lambda: now[0])
    case = expiry_case()
    case.answer(row(None, None), "ALL")
    now[0] = 6.0
    case.owner.acknowledge(case.task)  # so late that the row is read again
    case.answer(row(5, 10, ttl_s=4), "ALL")
    ((_, step),) = case.owner.steps
    step()
    case.answer(row(None, None), "ALL")
    assert [each.value for each in case.owner.records] == [b"\0", b"\0"]


def test_a_row_marker_shows_nothing_so_the_row_is_looked_at_twice() -> None:
    """A row of only its key is gone at the second read, or kept by a later write."""
    for again, records in ((None, 1), (row(None, None), 0)):
        case = expiry_case(columns=())
        case.answer(row(None, None), "ALL")
        ((pause_s, step),) = case.owner.steps
        step()
        case.answer(again, "ALL")
        assert (pause_s, len(case.owner.records)) == (1.0, records)


def test_an_expiry_that_is_read_with_a_change_is_part_of_its_record() -> None:
    """Both wait for the key: there is one read and one record, and the next expiry follows from that read."""
    case = expiry_case()
    change = pending(event())
    case.task.work.events[:] = [*change, *case.events]
    case.answer(row(5, 10), "ALL")
    assert len(case.owner.records) == 1
