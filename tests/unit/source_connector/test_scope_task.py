"""A deletion of many rows: the data topic is right when its event is settled, whatever was slow meanwhile."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from schemas.mutation_event import MutationKind, RangeBounds
from schemas.record_properties import KIND
from source_connector.encoding.projection import Projection
from source_connector.errors import RowConversionError
from source_connector.host.record import SourceRecord
from source_connector.rows.last_rows import LastRows
from source_connector.rows.partition_lanes import Work
from source_connector.rows.read_request import RawRow, Rows
from source_connector.rows.scope_task import ScopeTask
from tests.unit.source_connector.events import event, int32, pending, table
from tests.unit.source_connector.task_owner import MemoryOwner

_MARKER = "range_deletion"
_PROJECTION = Projection(table(clustering_key=("ck",)))


def row(clustering: int, value: int = 5) -> RawRow:
    """A row in the scope that was written after the deletion."""
    return (int32(1), int32(clustering), int32(value), (20).to_bytes(8, "big"), None)


def fold(records: Iterable[SourceRecord]) -> dict[bytes, bytes | None]:
    """The rows that a reader of the topic gets: a marker empties the scope, and the newest record of a key wins."""
    rows: dict[bytes, bytes | None] = {}
    for record in records:
        if record.properties[KIND] == _MARKER:
            rows.clear()
        else:
            rows[record.key] = record.value
    return rows


class Case:
    """A range deletion's task with its owner, with a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("source_connector.rows.scope_task.time.monotonic", lambda: self.now)
        bounds = RangeBounds(start=(int32(1),), start_inclusive=True, end=(int32(9),), end_inclusive=True)
        self.events = pending(event(kind=MutationKind.RANGE_DELETION, live_us=None, columns=(), bounds=bounds))
        self.owner = MemoryOwner(_PROJECTION)
        self.task = ScopeTask(Work(list(self.events)), self.owner)
        self.task.start()

    def acknowledge(self, after_s: float = 0.0) -> None:
        """Acknowledge the published records."""
        self.now += after_s
        self.owner.acknowledge(self.task)

    def begin_again(self) -> None:
        """Restart, as the table's line does when a read has failed or a row could not be converted."""
        self.task.attempts += 1
        self.task.start()

    def answer(
        self, *rows: RawRow, paging_state: bytes | None = None, consistency: str = "ALL", is_fallback: bool = False
    ) -> None:
        """Answer the last read with these rows."""
        request = self.owner.reads[-1]
        self.task.on_rows(Rows(request, rows, consistency, is_fallback=is_fallback, paging_state=paging_state))

    @property
    def kinds(self) -> list[str]:
        return [record.properties[KIND] for record in self.owner.records]

    def of(self, *rows: RawRow) -> dict[bytes, bytes | None]:
        """The fold of a topic with these rows."""
        selection = _PROJECTION.scope_selection
        return {_PROJECTION.record_key(each[:2]): _PROJECTION.record_value(selection, each, each[:2]) for each in rows}


def test_rows_are_read_when_the_topic_has_the_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that another instance published before a late marker were written before the read, so they are published
    again after it."""
    case = Case(monkeypatch)
    assert (case.kinds, case.owner.reads) == ([_MARKER], [])
    case.acknowledge(after_s=60)
    case.answer(row(3))
    assert (case.kinds, case.owner.settled) == ([_MARKER, "row"], [])
    case.acknowledge()
    assert (len(case.owner.reads), case.owner.settled) == (1, [case.events])


def test_what_differs_is_published_again_when_a_page_took_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another instance took over meanwhile: one row is newer now, one is gone, and both records come after those of
    that instance."""
    case = Case(monkeypatch)
    case.acknowledge()
    case.answer(row(3), row(4), row(5))
    case.acknowledge(after_s=60)
    assert (len(case.owner.reads), case.owner.settled) == (2, [])
    now = (row(3), row(4, 7))
    case.answer(*now)
    case.acknowledge()
    assert case.kinds == [_MARKER, "row", "row", "row", "row_deletion", "row"]
    assert fold(case.owner.records) == case.of(*now) | {_PROJECTION.record_key(row(5)[:2]): None}
    assert case.owner.settled == [case.events]


def test_rows_whose_way_took_long_and_that_are_as_they_were_are_not_published_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a slow broker, a whole partition is not published over and over; only late pages are read again."""
    case = Case(monkeypatch)
    case.acknowledge()
    case.answer(row(2), paging_state=b"2")
    case.acknowledge()
    for page, then in ((row(3), b"3"), (row(4), None)):
        case.answer(page, paging_state=then)
        case.acknowledge(after_s=6)
        assert case.owner.settled == []
        case.answer(page, paging_state=then)
    assert case.kinds == [_MARKER, "row", "row", "row"]
    assert [each.paging_state for each in case.owner.reads] == [None, b"2", b"2", b"3", b"3"]
    assert case.owner.settled == [case.events]


def test_a_deletion_settles_in_a_busy_partition_over_a_slow_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row changes between any two reads, and every page is late: there is one marker, and each page is published
    at most twice."""
    case = Case(monkeypatch)
    case.acknowledge(after_s=6)
    pages: tuple[tuple[bytes | None, range], ...] = ((b"2", range(1, 4)), (b"3", range(4, 7)), (None, range(7, 9)))
    value = 0
    for then, keys in pages:
        for _ in range(2):
            assert case.owner.settled == []
            value += 1
            case.answer(*(row(key, value) for key in keys), paging_state=then)
            case.acknowledge(after_s=6)
    assert (case.kinds.count(_MARKER), len(case.owner.records)) == (1, 1 + 2 * 8)
    assert case.owner.settled == [case.events]


def test_rows_that_others_pushed_off_a_late_page_are_looked_for_on_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two rows are inserted before them, so the page ends earlier: of the two rows after its end, one is on the next
    page and one is gone."""
    case = Case(monkeypatch)
    case.acknowledge()
    case.answer(row(3), row(4), row(5), paging_state=b"5")
    case.acknowledge(after_s=60)
    case.answer(row(1), row(2), row(3), paging_state=b"3")
    assert case.kinds == [_MARKER, "row", "row", "row", "row", "row"]
    case.acknowledge()
    assert case.owner.reads[-1].paging_state == b"3"
    case.answer(row(5), row(6))
    case.acknowledge()
    assert case.kinds[6:] == ["row_deletion", "row"]
    now = case.of(row(1), row(2), row(3), row(5), row(6))
    assert fold(case.owner.records) == now | {_PROJECTION.record_key(row(4)[:2]): None}
    assert case.owner.settled == [case.events]


def test_rows_that_were_pushed_off_are_looked_for_when_the_next_page_is_late_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That page is read again, and shows only then that nothing comes after it."""
    case = Case(monkeypatch)
    case.acknowledge()
    case.answer(row(3), row(4), paging_state=b"4")
    case.acknowledge(after_s=60)
    case.answer(row(2), row(3), paging_state=b"3")
    case.acknowledge()
    case.answer(row(6), paging_state=b"6")
    case.acknowledge(after_s=60)
    case.answer(row(6))
    assert case.kinds[1:] == ["row"] * 4 + ["row_deletion"]
    now = case.of(row(2), row(3), row(6))
    assert fold(case.owner.records) == now | {_PROJECTION.record_key(row(4)[:2]): None}


@pytest.mark.parametrize(("consistency", "is_fallback"), [("LOCAL_QUORUM", False), ("ALL", True)])
@pytest.mark.parametrize("page", [1, 2])
def test_a_deletion_is_remembered_only_if_all_replicas_answered_for_every_page(
    monkeypatch: pytest.MonkeyPatch, consistency: str, is_fallback: bool, page: int
) -> None:
    """A replica may not have had the deletion. Another replica's copy of it leads to another look."""
    case = Case(monkeypatch)
    case.acknowledge()
    for number, state in ((1, b"1"), (2, None)):
        weaker = {"consistency": consistency, "is_fallback": is_fallback} if number == page else {}
        case.answer(paging_state=state, **weaker)  # type: ignore[arg-type]
    assert case.owner.settled == [[]]


def test_no_row_counts_as_published_before_or_during_a_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker has erased it, or a null has followed it; and the task may end as a dead letter in between."""
    rows = LastRows(10)
    known = SourceRecord(1, _PROJECTION.record_key(row(3)[:2]), b"", {KIND: "row"}, None)
    case = Case(monkeypatch)
    case.owner.last_rows = rows
    rows.is_published(known)
    case.begin_again()
    assert not rows.holds(known)
    rows.is_published(known)
    case.task.unanswered = 1
    case.acknowledge()
    case.answer()
    assert case.owner.settled == [case.events]
    assert not rows.holds(known)


def unwritable(clustering: int) -> RawRow:
    """A row that does not match the table's schema."""
    return (*row(clustering)[:2], b"\x01\x02\x03", row(clustering)[3])


def test_a_row_that_cannot_be_converted_is_tried_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rows are on the topic."""
    case = Case(monkeypatch)
    case.acknowledge()
    case.answer(unwritable(3), row(4))
    with pytest.raises(RowConversionError):
        case.acknowledge()
    case.begin_again()
    case.answer(row(3))
    case.acknowledge()
    assert case.kinds == [_MARKER, "row", "row"]
    assert (fold(case.owner.records), case.owner.settled) == (case.of(row(3), row(4)), [case.events])


def test_pages_behind_a_row_that_cannot_be_converted_are_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The read of the next page failed; the retry publishes all rows, and not only the failed row."""
    case = Case(monkeypatch)
    case.acknowledge()
    case.answer(unwritable(3), row(4), paging_state=b"2")
    case.acknowledge()
    case.begin_again()
    case.acknowledge()
    case.answer(row(3), row(4), row(5))
    case.acknowledge()
    assert (fold(case.owner.records), case.owner.settled) == (case.of(row(3), row(4), row(5)), [case.events])


def test_none_of_several_rows_that_cannot_be_converted_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them still cannot be converted, and the read of the next one fails."""
    case = Case(monkeypatch)
    case.acknowledge()
    with pytest.raises(RowConversionError):
        case.answer(unwritable(3), unwritable(4))
    case.begin_again()
    case.answer(unwritable(4))
    case.begin_again()
    case.acknowledge()
    case.answer(row(3), row(4))
    case.acknowledge()
    assert (fold(case.owner.records), case.owner.settled) == (case.of(row(3), row(4)), [case.events])
