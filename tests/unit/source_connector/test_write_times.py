"""Changes of one key with equal write times, and the reads for them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from schemas.mutation_event import MutationEvent
from source_connector.rows.read_request import ReadLevel
from source_connector.rows.write_times import WriteTimes
from tests.unit.source_connector.events import event, int32, pending
from tests.unit.source_connector.table_line_case import OLD, Case
from tests.unit.source_connector.test_row_task import Case as TaskCase
from tests.unit.source_connector.test_row_task import row

# Changes of five columns, each with its own time.
FIVE = [event(digest=each, live_us=9 + each, columns=(f"v{each}",)) for each in range(1, 6)]
# Other changes with the same times.
FIVE_OTHERS = [each._replace(digest=bytes(15) + bytes([each.digest[-1] + 10])) for each in FIVE]


@pytest.mark.parametrize(
    ("settled", "now", "tied"),
    [
        ([], [event(digest=1)], []),
        ([], [event(digest=1), event(digest=2)], [1, 2]),
        ([], [event(digest=1), event(digest=1)], []),  # The copies of two replicas.
        ([], [event(digest=1), event(digest=2, live_us=11)], []),
        (
            [],
            [event(digest=1, columns=("v", "w")), event(digest=2, columns=("w",)), event(digest=3, live_us=9)],
            [1, 2],
        ),
        ([], [event(digest=1), event(digest=2, columns=("w",))], []),
        ([], [event(digest=1, live_us=None), event(digest=2)], []),
        ([event(digest=1)], [event(digest=2)], [2]),
        ([event(digest=1)], [event(digest=1)], []),
        ([event(digest=1)], [event(digest=2, live_us=11)], []),
        ([event(digest=1, columns=("w",))], [event(digest=2)], []),
        ([event(digest=1), event(digest=2, columns=("w",))], [event(digest=3)], [3]),
        ([event(digest=1), event(digest=2, live_us=9)], [event(digest=3)], [3]),  # An earlier change came late.
        ([event(digest=1), event(digest=2, live_us=None)], [event(digest=3)], [3]),
        ([event(digest=1), event(digest=2, live_us=11, columns=("w",))], [event(digest=3)], [3]),
        ([event(digest=2, live_us=11, columns=("w",)), event(digest=1)], [event(digest=3)], [3]),
        ([event(digest=1), event(digest=2, live_us=11, columns=("w",))], [event(digest=1)], []),
        (
            [event(digest=1), event(digest=2, live_us=11, columns=("w",))],
            [event(digest=3), event(digest=4, live_us=11, columns=("w",))],
            [3, 4],
        ),
        ([event(digest=1), event(digest=2, live_us=11, columns=("w", "v"))], [event(digest=3)], []),  # replaced
        ([event(digest=2, live_us=11, columns=("w", "v")), event(digest=1)], [event(digest=3)], []),
        (FIVE, FIVE_OTHERS, [12, 13, 14, 15]),  # The first one is forgotten.
    ],
)
def test_changes_with_one_write_time_and_a_common_column_are_tied(
    settled: Sequence[MutationEvent], now: Sequence[MutationEvent], tied: Sequence[int]
) -> None:
    """They may be in the same work, or in the key's previous work."""
    times = WriteTimes()
    for each in pending(*settled):
        times.remember(each.cache_key, each.event)
    assert [each.event.digest[-1] for each in times.tied(pending(*now))] == tied


def test_the_keys_that_were_settled_last_are_remembered() -> None:
    """At most twice the requested number is remembered."""
    times = WriteTimes(most_young=2)
    for number in range(6):
        (each,) = pending(event(number, digest=1))
        times.remember(each.cache_key, each.event)
    found = [number for number in range(6) if times.tied(pending(event(number, digest=2)))]
    assert found == [3, 4, 5]


def test_a_change_with_the_write_time_of_another_is_proven_by_all_replicas_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replica that lacks the second change shows the first one with that time: taken for proven, it would stay the
    last record."""
    case = Case(monkeypatch)
    first, second = event(1, digest=1), event(1, digest=2)
    case.receive(first)
    case.answer((int32(1), (10).to_bytes(8, "big"), None))
    case.taken(1)
    case.receive(second)
    assert [each.request.level for each in case.around.reads] == [ReadLevel.HIGHER]
    case.answer((int32(2), (10).to_bytes(8, "big"), None))
    case.taken(2)
    case.receive(second)
    assert (case.around.reads, case.counters["records_published"], case.around.settled) == ([], 2, [1, 1, 1])
    case.receive(event(1, digest=1), table_id=OLD)
    assert case.counters["cache_hits"] == 2


def test_an_answer_of_fewer_replicas_makes_no_tied_change_known() -> None:
    """So a later copy of it is read again."""
    case = TaskCase(event(digest=1), event(digest=2))
    assert case.levels == [ReadLevel.HIGHER]
    case.answer(row(1, 10), "QUORUM", is_fallback=True)
    case.owner.acknowledge(case.task)
    assert (len(case.owner.records), case.owner.settled) == (1, [[]])


def test_a_tied_change_that_is_under_way_is_read_once_more_when_it_is_surely_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its node may have it only in the commit log, which the write time does not show."""
    now_us = time.time_ns() // 1000
    case = TaskCase(*(event(writetime_us=now_us, live_us=now_us, digest=each) for each in (1, 2)))
    case.answer(row(1, now_us), "ALL")
    case.owner.acknowledge(case.task)
    assert case.owner.settled == []
    started = time.monotonic()
    monkeypatch.setattr("source_connector.rows.row_task.time.monotonic", lambda: started + 2.5)
    case.owner.steps.pop()[1]()
    case.answer(row(2, now_us), "ALL")
    case.owner.acknowledge(case.task)
    assert (len(case.owner.records), case.owner.settled) == (2, [case.events])
