"""Reads that come before the write of their event is visible: it is in the commit log, but not yet in the memtable."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from schemas.mutation_event import EXPIRY_SEGMENT_ID, MutationEvent, MutationKind, RangeBounds
from schemas.table_metadata import TableMetadata
from source_connector.encoding.projection import Projection
from source_connector.events.events_message import PendingEvent
from source_connector.rows.early_reads import LaterDeletions, Outcome, is_young, outcome_of, pause_s
from source_connector.rows.last_rows import LastRows
from source_connector.rows.partition_lanes import PartitionLanes
from source_connector.rows.read_request import RawRow, ReadLevel, Rows
from source_connector.rows.row_task import RowTask
from source_connector.rows.scope_task import ScopeTask
from tests.cql.tables import table_of
from tests.unit.source_connector.events import event, int32, pending, table
from tests.unit.source_connector.task_owner import MemoryOwner

_TEXTS = table_of({"pk": "int"}, regular={"v": "int", "tags": "set<int>"})
_SELECTION = Projection(_TEXTS).row_selection
_DELETION = MutationKind.ROW_DELETION


def _row(value: int | None, writetime_us: int | None) -> RawRow:
    """The values of `v` and `tags`, and the write time of `v`."""
    time_bytes = None if writetime_us is None else writetime_us.to_bytes(8, "big")
    return (None if value is None else int32(value), int32(0), time_bytes)


@pytest.mark.parametrize(
    ("told", "later", "row", "outcome"),
    [
        (event(), (), None, Outcome.IMPOSSIBLE),  # It was written, but there is no row.
        (event(), (), _row(4, 9), Outcome.IMPOSSIBLE),
        (event(), (), _row(None, None), Outcome.IMPOSSIBLE),
        (event(), (), _row(4, 11), Outcome.POSSIBLE),  # It was overwritten since.
        (event(), (event(kind=_DELETION, live_us=None),), None, Outcome.POSSIBLE),  # deleted since, which is known
        (event(), (event(live_us=None),), _row(None, None), Outcome.POSSIBLE),
        (event(), (event(live_us=20),), None, Outcome.IMPOSSIBLE),
        # The deletion's time is before the write, whose event comes first all the same.
        (event(), (event(kind=_DELETION, live_us=None, writetime_us=9),), None, Outcome.IMPOSSIBLE),
        (event(), (event(live_us=None, writetime_us=9),), _row(None, None), Outcome.IMPOSSIBLE),
        (
            event(),
            [event(kind=_DELETION, live_us=None, writetime_us=each) for each in (11, 9)],
            None,
            Outcome.POSSIBLE,
        ),
        (event(), (event(kind=_DELETION, live_us=None, writetime_us=None),), None, Outcome.POSSIBLE),
        (
            event(live_us=None, columns=()),
            (event(kind=_DELETION, live_us=None, writetime_us=9),),
            None,
            Outcome.IMPOSSIBLE,
        ),
        (event(), (event(live_us=None, columns=("tags",)),), _row(None, None), Outcome.IMPOSSIBLE),  # another column
        (event(), (event(live_us=None, columns=()),), None, Outcome.IMPOSSIBLE),  # it writes the row again
        (event(expiry_time_s=100), (), None, Outcome.POSSIBLE),  # expired
        (event(columns=("tags",)), (), None, Outcome.IMPOSSIBLE),
        (event(columns=("tags",)), (), _row(4, 9), Outcome.UNKNOWN),
        (
            event(live_us=None),
            (),
            _row(4, 9),
            Outcome.IMPOSSIBLE,
        ),  # The column was deleted, and an older value is there.
        (event(live_us=None), (), _row(4, 10), Outcome.IMPOSSIBLE),  # A deletion wins over a cell of the same time.
        (event(live_us=None), (), _row(4, 11), Outcome.POSSIBLE),
        (event(live_us=None), (), _row(None, None), Outcome.POSSIBLE),
        (event(live_us=None), (), None, Outcome.UNKNOWN),
        (event(live_us=None, columns=("tags",)), (), _row(4, 9), Outcome.UNKNOWN),
        (event(live_us=None, columns=()), (), None, Outcome.IMPOSSIBLE),  # A row of only its key.
        (event(live_us=None, columns=()), (), _row(None, None), Outcome.POSSIBLE),
        (event(kind=_DELETION, live_us=None), (), None, Outcome.POSSIBLE),
        (event(kind=_DELETION, live_us=None), (), _row(4, 10), Outcome.IMPOSSIBLE),
        (event(kind=_DELETION, live_us=None), (), _row(4, 11), Outcome.POSSIBLE),
        (event(kind=_DELETION, live_us=None), (), _row(None, None), Outcome.UNKNOWN),
    ],
)
def test_a_row_tells_whether_it_can_be_what_an_event_made_of_it(
    told: MutationEvent, later: Sequence[MutationEvent], row: RawRow | None, outcome: Outcome
) -> None:
    """The write times of present values decide, and missing values."""
    assert outcome_of(told, LaterDeletions(later), _SELECTION, row, now_s=200.0) is outcome


def test_an_event_is_young_while_its_write_may_be_under_way() -> None:
    """This lasts two seconds, Cassandra's time limit of a write. An event without a write time stands for no change."""
    (young,) = pending(event(writetime_us=50_000_000))
    (timeless,) = pending(event(writetime_us=None))
    assert [is_young(young, now) for now in (49.0, 51.9, 52.1)] == [True, True, False]
    assert not is_young(timeless, 0)


def test_the_pauses_grow_up_to_a_quarter_of_a_second() -> None:
    """Most such reads are only some milliseconds early."""
    assert [pause_s(reads) for reads in (1, 2, 3, 9)] == [0.02, 0.04, 0.08, 0.25]


class _Case:
    """A row's task for events that were just written."""

    def __init__(
        self, *events: MutationEvent, of: TableMetadata | None = None, lanes: PartitionLanes | None = None
    ) -> None:
        self.owner = MemoryOwner(Projection(of or table()))
        self.events = pending(*events)
        self.lanes = lanes or PartitionLanes()
        for each in self.events:
            self.lanes.add(each)
        self.task = RowTask(self.lanes.next_startable(), self.owner)
        self.task.start()

    def answer(self, row: RawRow | None, consistency: str = "ALL") -> None:
        request = self.owner.reads[-1]
        rows = () if row is None else (row,)
        self.task.on_rows(Rows(request=request, rows=rows, consistency=consistency, is_fallback=False))

    def go_on(self) -> None:
        """Let the task's pause end."""
        self.owner.steps.pop()[1]()


def _now_us() -> int:
    return time.time_ns() // 1000


def _cell(value: int, writetime_us: int) -> RawRow:
    return (int32(value), writetime_us.to_bytes(8, "big"))


def test_a_row_without_the_write_of_its_event_is_not_published_even_when_all_replicas_answered() -> None:
    """The node has the write in its commit log, not in its memtable: it is asked again until the write is visible."""
    now_us = _now_us()
    case = _Case(event(writetime_us=now_us, live_us=now_us))
    case.answer(_cell(4, 9), "LOCAL_QUORUM")
    case.answer(_cell(4, 9))
    case.go_on()
    case.answer(None)
    case.go_on()
    assert case.owner.records == []
    case.answer(_cell(5, now_us))
    case.task.on_all_acknowledged()
    assert [record.value for record in case.owner.records] == [b"\x02\x0a"]
    assert [each.level for each in case.owner.reads] == [ReadLevel.FIRST] + 3 * [ReadLevel.HIGHER]
    assert case.owner.settled == [case.events]


def test_what_never_shows_is_published_when_the_time_of_a_write_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row was deleted by a change whose event has not come yet; the task does not wait for ever."""
    now_us = _now_us()
    case = _Case(event(writetime_us=now_us, live_us=now_us))
    case.answer(None, "LOCAL_QUORUM")
    case.answer(None)
    assert case.owner.records == []
    monkeypatch.setattr("source_connector.rows.row_task.time.time", lambda: now_us / 1e6 + 2.5)
    case.go_on()
    case.answer(None)
    case.task.on_all_acknowledged()
    assert [record.value for record in case.owner.records] == [None]
    assert case.owner.settled == [case.events]


def test_an_answer_that_is_late_makes_its_read_no_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row may have been read before its write was visible, so it is read again."""
    now_us = _now_us()
    case = _Case(event(writetime_us=now_us, live_us=now_us))
    case.answer(None, "LOCAL_QUORUM")
    _pass_two_seconds(monkeypatch)
    case.answer(None)
    assert case.owner.records == []
    case.go_on()
    case.answer(_cell(5, now_us))
    assert [record.value for record in case.owner.records] == [b"\x02\x0a"]


def test_a_clock_that_is_behind_holds_up_nothing_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event looks young for an hour, but the task only waits two seconds by the machine's own clock."""
    now_us = _now_us() + 3_600_000_000
    case = _Case(event(writetime_us=now_us, live_us=now_us))
    case.answer(None, "LOCAL_QUORUM")
    case.answer(None)
    _pass_two_seconds(monkeypatch)
    case.go_on()
    case.answer(None)
    assert [record.value for record in case.owner.records] == [None]


def test_a_deletion_that_comes_meanwhile_explains_what_is_not_there() -> None:
    """One record settles both events: the row's null."""
    now_us = _now_us()
    case = _Case(event(writetime_us=now_us, live_us=now_us, digest=1))
    case.answer(None, "LOCAL_QUORUM")
    case.answer(None)
    deletion = event(kind=_DELETION, writetime_us=now_us + 5, live_us=None, columns=(), digest=2)
    (behind,) = pending(deletion)
    case.lanes.add(behind)
    case.go_on()
    case.answer(None)
    case.task.on_all_acknowledged()
    assert [record.value for record in case.owner.records] == [None]
    assert case.task.work.events == [*case.events, behind]
    assert [len(each) for each in case.owner.settled] == [2]


def test_a_change_that_came_with_a_new_column_waits_for_a_read_that_has_it() -> None:
    """It waits while the table's definition may be old and also when it is new, because this task reads by its first
    definition."""
    now_us = _now_us()
    case = _Case(event(writetime_us=now_us, live_us=now_us, digest=1))
    case.answer(None, "LOCAL_QUORUM")
    case.answer(None)
    (behind,) = pending(event(writetime_us=now_us + 5, live_us=now_us + 5, columns=("v", "x"), digest=2))
    case.lanes.add(behind)
    case.owner.may_read_waiting = False
    case.go_on()
    case.answer(None)
    case.owner.may_read_waiting, case.owner.projection = True, Projection(table(columns=("v", "x")))
    case.go_on()
    case.answer(_cell(5, now_us + 5))
    case.task.on_all_acknowledged()
    assert (case.task.work.events, case.owner.settled) == (case.events, [case.events])
    case.lanes.finished(case.task.work)
    assert case.lanes.next_startable().events == [behind]


def test_a_row_that_was_deleted_and_is_there_still_is_read_again() -> None:
    """The cells are older than the deletion, so the deletion is not visible yet."""
    now_us = _now_us()
    case = _Case(event(kind=_DELETION, writetime_us=now_us, live_us=None, columns=()))
    case.answer(_cell(4, now_us - 1))
    assert case.owner.records == []
    case.go_on()
    case.answer(None)
    case.task.on_all_acknowledged()
    assert [record.value for record in case.owner.records] == [None]
    assert case.owner.settled == [case.events]


def test_where_no_write_time_tells_the_row_is_published_at_once_and_read_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This is a collection: a changed row is published again before the event is settled and its copies are
    suppressed."""
    now_us = _now_us()
    case = _Case(event(writetime_us=now_us, live_us=now_us, columns=("tags",)), of=_TEXTS)
    case.answer((int32(4), None, None))
    case.task.on_all_acknowledged()
    assert (len(case.owner.records), case.owner.settled) == (1, [])
    _pass_two_seconds(monkeypatch)
    case.go_on()
    case.answer((int32(6), None, None))
    case.task.on_all_acknowledged()
    first, second = (record.value for record in case.owner.records)
    assert first != second
    assert case.owner.settled == [case.events]


def test_a_row_that_is_gone_at_the_second_read_is_left_to_the_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write does not delete the row. The deletion has its own event, which publishes the null or the marker."""
    now_us = _now_us()
    case = _Case(event(writetime_us=now_us, live_us=now_us, columns=("tags",)), of=_TEXTS)
    case.answer((int32(4), None, None))
    case.task.on_all_acknowledged()
    _pass_two_seconds(monkeypatch)
    case.go_on()
    case.answer(None)
    assert (len(case.owner.records), case.owner.settled) == (1, [case.events])


def test_a_row_whose_columns_were_deleted_is_published_when_it_is_gone_at_the_second_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The deleted columns were its last cells, and the first read came before their deletion."""
    case = _Case(event(writetime_us=_now_us(), live_us=None, columns=("tags",)), of=_TEXTS)
    case.answer((int32(4), None, None))
    case.task.on_all_acknowledged()
    _pass_two_seconds(monkeypatch)
    case.go_on()
    case.answer(None)
    case.task.on_all_acknowledged()
    assert ([record.value is None for record in case.owner.records], case.owner.settled) == (
        [False, True],
        [case.events],
    )


def test_a_row_that_seems_unchanged_is_read_once_more_before_its_event_is_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unchanged rows are not published, but this one may be from before the change."""
    now_us = _now_us()
    told = event(writetime_us=now_us, live_us=now_us, columns=("tags",))
    rows = LastRows(10)
    before = _Case(told._replace(writetime_us=1), of=_TEXTS)
    case = _Case(told, of=_TEXTS)
    before.owner.last_rows = case.owner.last_rows = rows
    before.answer((int32(4), None, None))
    before.task.on_all_acknowledged()
    case.answer((int32(4), None, None))
    assert (case.owner.records, case.owner.settled) == ([], [])
    _pass_two_seconds(monkeypatch)
    case.go_on()
    case.answer((int32(6), None, None))
    case.task.on_all_acknowledged()
    assert (len(case.owner.records), case.owner.settled) == (1, [case.events])


def test_a_later_change_of_the_row_makes_that_second_read() -> None:
    """The second read does not delay a key that changes all the time; a copy of the same change waits."""
    now_us = _now_us()
    told = event(writetime_us=now_us, live_us=now_us, columns=("tags",), digest=1)
    case = _Case(told, of=_TEXTS)
    case.answer((int32(4), None, None))
    case.lanes.add(pending(told)[0])
    case.task.on_all_acknowledged()
    assert case.owner.settled == []
    case.lanes.add(pending(told._replace(digest=b"2"))[0])
    case.go_on()
    assert case.owner.settled == [[]]


def test_what_waits_settles_an_event_that_may_not_be_visible_with_its_own_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first event is not acknowledged before, because the waiting one may never be read. A copy that is already
    published causes no read."""
    now_us = _now_us()
    told = event(writetime_us=now_us, live_us=now_us, columns=("tags",), digest=1)
    case = _Case(told, of=_TEXTS)
    case.answer((int32(4), None, None))
    later = pending(told._replace(digest=b"2"))[0]
    case.owner.published = {b"2"}
    case.lanes.add(later)
    case.task.on_all_acknowledged()
    assert case.owner.settled == []
    case.owner.published = set()
    case.go_on()
    assert (case.owner.settled, case.task.work.events) == ([[]], [])
    case.lanes.finished(case.task.work)
    work = case.lanes.next_startable()
    assert work.events == [*case.events, later]
    again = RowTask(work, case.owner)
    again.start()
    answer = partial(Rows, rows=((int32(6), None, None),), consistency="ALL", is_fallback=False)
    again.on_rows(answer(request=case.owner.reads[-1]))
    again.on_all_acknowledged()
    assert case.owner.settled == [[]]
    _pass_two_seconds(monkeypatch)
    case.go_on()
    again.on_rows(answer(request=case.owner.reads[-1]))
    assert case.owner.settled == [[], [*case.events, later]]


def test_an_event_is_handed_over_for_two_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node's clock is ahead, so the event looks young for an hour, and the row changes all the time."""
    now_us = _now_us() + 3_600_000_000
    told = event(writetime_us=now_us, live_us=now_us, columns=("tags",), digest=1)
    case = _Case(told, of=_TEXTS)
    case.answer((int32(4), None, None))
    case.lanes.add(pending(told._replace(digest=b"2"))[0])
    case.task.on_all_acknowledged()
    case.lanes.finished(case.task.work)
    _pass_two_seconds(monkeypatch)
    again = RowTask(case.lanes.next_startable(), case.owner)
    again.start()
    case.lanes.add(pending(told._replace(digest=b"3"))[0])
    request = case.owner.reads[-1]
    again.on_rows(Rows(request=request, rows=((int32(6), None, None),), consistency="ALL", is_fallback=False))
    again.on_all_acknowledged()
    assert (case.owner.settled, again.work.events) == ([[], case.events], case.events)


def test_an_increment_that_a_later_one_hides_is_read_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """All replicas answered. The node has the increment in its commit log; the later one came through another node."""
    now_us = _now_us()
    counters = replace(table(), flags=frozenset({"counter", "compound"}))
    case = _Case(event(writetime_us=now_us, live_us=now_us), of=counters)
    case.answer(_cell(4, now_us + 5), "LOCAL_QUORUM")
    case.answer(_cell(4, now_us + 5))
    case.task.on_all_acknowledged()
    assert (len(case.owner.records), case.owner.settled) == (1, [])
    _pass_two_seconds(monkeypatch)
    case.go_on()
    case.answer(_cell(5, now_us + 5))
    case.task.on_all_acknowledged()
    assert ([record.value for record in case.owner.records], case.owner.settled) == (
        [b"\x02\x08", b"\x02\x0a"],
        [case.events],
    )


def test_an_expiry_is_no_such_read() -> None:
    """An expiry's task may find that the row was written again, and publish nothing."""
    now_us = _now_us()
    told = event(writetime_us=now_us, live_us=now_us, columns=("tags",), digest=1)
    case = _Case(told, of=_TEXTS)
    case.answer((int32(4), None, None))
    expiry = event(writetime_us=None, live_us=None, expiry_time_s=605, digest=2)
    case.lanes.add(pending(expiry, segment_id=EXPIRY_SEGMENT_ID)[0])
    case.task.on_all_acknowledged()
    case.go_on()
    assert (case.owner.settled, len(case.owner.steps)) == ([], 1)


def test_a_change_of_the_static_row_is_no_such_read() -> None:
    """It waits for the row's task, and then reads another row."""
    now_us = _now_us()
    told = event(writetime_us=now_us, live_us=now_us, columns=("tags",), digest=1)
    case = _Case(told, of=_TEXTS)
    case.answer((int32(4), None, None))
    case.lanes.add(pending(told._replace(kind=MutationKind.STATIC_ROW, key=b"static", digest=b"2"))[0])
    case.task.on_all_acknowledged()
    case.go_on()
    assert (case.owner.settled, len(case.owner.steps)) == ([], 1)


def _pass_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.monotonic()
    monkeypatch.setattr("source_connector.rows.row_task.time.monotonic", lambda: started + 2.5)


def _scope(now_us: int) -> tuple[MemoryOwner, ScopeTask, list[PendingEvent]]:
    bounds = RangeBounds(start=(int32(1),), start_inclusive=True, end=(int32(9),), end_inclusive=True)
    deletion = event(kind=MutationKind.RANGE_DELETION, writetime_us=now_us, live_us=None, columns=(), bounds=bounds)
    owner = MemoryOwner(Projection(table(clustering_key=("ck",))))
    events = pending(deletion)
    lanes = PartitionLanes()
    lanes.add(events[0])
    task = ScopeTask(lanes.next_startable(), owner)
    task.start()
    owner.acknowledge(task)
    return owner, task, events


def _survivor(clustering: int, writetime_us: int | None) -> RawRow:
    time_bytes = None if writetime_us is None else writetime_us.to_bytes(8, "big")
    return (int32(1), int32(clustering), int32(5), time_bytes)


def test_rows_that_a_range_deletion_takes_are_no_survivors_of_it() -> None:
    """A cell from before the deletion shows that the page was read early: it is read again before it is published."""
    now_us = _now_us()
    owner, task, events = _scope(now_us)
    early, survivor = _survivor(3, now_us - 1), _survivor(4, now_us + 1)
    task.on_rows(Rows(request=owner.reads[-1], rows=(early, survivor), consistency="ALL", is_fallback=False))
    assert len(owner.records) == 1
    owner.steps.pop()[1]()
    task.on_rows(Rows(request=owner.reads[-1], rows=(survivor,), consistency="ALL", is_fallback=False))
    owner.acknowledge(task)
    assert [record.properties.get("kind") for record in owner.records] == ["range_deletion", "row"]
    assert owner.settled == [events]


def test_a_page_of_a_scope_whose_answer_is_late_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been read before the deletion was visible."""
    now_us = _now_us()
    owner, task, events = _scope(now_us)
    _pass_two_seconds(monkeypatch)
    task.on_rows(Rows(request=owner.reads[-1], rows=(_survivor(3, now_us - 1),), consistency="ALL", is_fallback=False))
    assert len(owner.records) == 1
    owner.steps.pop()[1]()
    task.on_rows(Rows(request=owner.reads[-1], rows=(), consistency="ALL", is_fallback=False))
    assert [record.properties.get("kind") for record in owner.records] == ["range_deletion"]
    assert owner.settled == [events]


def test_a_scope_whose_rows_tell_no_time_is_gone_through_twice() -> None:
    """The marker is published again, too: after the first marker, the topic has a row that the deletion deleted."""
    now_us = _now_us()
    owner, task, events = _scope(now_us)
    task.on_rows(Rows(request=owner.reads[-1], rows=(_survivor(3, None),), consistency="ALL", is_fallback=False))
    owner.acknowledge(task)
    assert owner.settled == []
    task._started_at -= 3
    owner.steps.pop()[1]()
    owner.acknowledge(task)
    task.on_rows(Rows(request=owner.reads[-1], rows=(), consistency="ALL", is_fallback=False))
    kinds = [record.properties.get("kind") for record in owner.records]
    assert kinds == ["range_deletion", "row", "range_deletion"]
    assert owner.settled == [events]
