"""A truncation waits for tasks in progress, and tasks whose next read would take waiting events wait for the
truncation."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from schemas.mutation_event import EXPIRY_SEGMENT_ID, MutationEvent
from schemas.truncation import Truncation
from source_connector.errors import FetchError
from tests.unit.source_connector.events import event, read_at
from tests.unit.source_connector.table_line_case import GOOD, Case
from tests.unit.source_connector.test_table_clearings import _NOTED, _OTHER, _stored, _tell
from tests.unit.source_connector.test_table_line import EXPIRING

_NOT_YET = Truncation(3, 1, 5)


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Case:
    """A table on two nodes, of which the second one has not truncated it yet."""
    made = Case(monkeypatch, publishes_expiry=True)
    monkeypatch.setattr("source_connector.tables.table_clearings.time.monotonic", lambda: made.now)
    made.around.noted = {_OTHER: _NOT_YET}
    return made


def _pass(case: Case, seconds: float = 1) -> None:
    case.now += seconds
    case.timers.run_due()
    case.line.work()


def _wait_for_expiry(case: Case) -> None:
    """Process an expiry whose column is still there for four seconds, so that it is read again then."""
    due = event(1, digest=1, writetime_us=None, live_us=None, expiry_time_s=605)
    case.receive(due, segment_id=EXPIRY_SEGMENT_ID)
    case.answer((*EXPIRING[:2], (4).to_bytes(4, "big"), read_at(601)))


def _expect_both_behind_the_truncation(case: Case) -> None:
    """Check that the record is stored, and that the first event and the waiting one are read and settled together."""
    _stored(case)
    _pass(case)
    assert _read(case) == [1, 2]
    case.answer(GOOD)
    case.taken(1)
    assert case.around.settled == [1, 1, 1]


def _truncated_everywhere(case: Case) -> None:
    case.around.noted = {_OTHER: Truncation(3, 9, _NOTED.time_ms)}
    _pass(case)
    _pass(case)


def _digests(events: Sequence[MutationEvent]) -> list[int]:
    return [each.digest[-1] for each in events]


def _read(case: Case) -> list[int]:
    """The digests of the events of the last read."""
    return _digests([each.event for each in case.around.reads[-1].task.work.events])


def test_a_failed_read_is_tried_again_behind_the_truncation_with_what_survived_it(case: Case) -> None:
    """Published before the record's positions, the surviving row would be deleted by readers, and it would have no
    further event."""
    case.receive(event(1, digest=1))
    case.answer(FetchError("ks.t", "timeout", is_outage=True))
    _tell(case)
    case.receive(event(1, digest=2))
    for _ in range(3):
        _pass(case)
    assert (case.around.reads, case.around.settled, case.around.clearings) == ([], [], [])
    _truncated_everywhere(case)
    assert (case.around.reads, len(case.around.clearings)) == ([], 1)  # A retry does not hold up a truncation.
    _expect_both_behind_the_truncation(case)


def test_a_read_that_came_too_early_is_repeated_before_the_truncation_without_what_survived_it(case: Case) -> None:
    """The truncation waits for the task, and the task does not take the events after the truncation."""
    now_us = time.time_ns() // 1000
    case.receive(event(1, digest=1, writetime_us=now_us, live_us=now_us))
    case.answer(None)
    case.answer(None)  # Of all replicas.
    assert case.counters["reads_too_early"] == 1
    _tell(case)
    case.receive(event(1, digest=2, writetime_us=now_us, live_us=now_us))
    case.around.noted = {_OTHER: _NOTED}
    case.now += 0.001  # The pause is not over.
    case.timers.run_due()
    case.line.work()
    assert case.around.clearings == []
    _pass(case)
    assert _read(case) == [1]
    case.answer((GOOD[0], now_us.to_bytes(8, "big"), None))
    assert case.around.clearings == []
    case.taken(1)
    _pass(case)
    _stored(case)
    assert _read(case) == [2]


def test_a_truncation_that_all_nodes_have_done_waits_for_the_pause_of_a_read_that_came_too_early(case: Case) -> None:
    """The next read is not asked for yet, and it would take place during the hold."""
    now_us = time.time_ns() // 1000
    case.receive(event(1, digest=1, writetime_us=now_us, live_us=now_us))
    case.answer(None)
    case.answer(None)  # Of all replicas.
    case.around.noted = {_OTHER: _NOTED}
    _tell(case)
    _pass(case, 0.001)  # The pause is not over.
    assert (case.around.reads, case.around.clearings) == ([], [])
    _pass(case)
    assert _read(case) == [1]
    case.answer((GOOD[0], now_us.to_bytes(8, "big"), None))
    case.taken(1)
    case.line.work()
    assert len(case.around.clearings) == 1


def test_an_expiry_that_is_stored_behind_the_truncation_makes_no_event_known(case: Case) -> None:
    """The record is before the truncation's positions. A replica's copy after them may be of a row that survived on
    that replica."""
    case.receive(event(1, digest=1))
    case.answer(EXPIRING)
    case.taken(1)
    _tell(case)
    _truncated_everywhere(case)
    _stored(case)
    case.around.stored.pop()()
    assert case.around.settled == [1, 1]
    case.receive(event(1, digest=1))
    assert _read(case) == [1]


def test_a_change_that_comes_during_the_hold_of_an_expiry_is_read_again_when_no_replica_shows_it_yet(
    case: Case,
) -> None:
    """The change is in the commit log and not yet in the table: a read at this time must not count as its row."""
    _wait_for_expiry(case)
    _tell(case)
    for _ in range(5):
        _pass(case)
    now_us = time.time_ns() // 1_000
    case.receive(event(1, digest=2, writetime_us=now_us, live_us=now_us))
    _truncated_everywhere(case)
    _stored(case)
    _pass(case)
    assert _read(case) == [1, 2]
    case.answer(None)
    assert (case.counters["reads_too_early"], case.counters["records_published"]) == (1, 0)


def test_a_column_that_is_about_to_expire_holds_up_no_truncation(case: Case) -> None:
    """Its next read comes seconds later, after the truncation, together with the surviving events."""
    _wait_for_expiry(case)
    assert case.counters["expiries_looked_at_again"] == 1
    _tell(case)
    case.receive(event(1, digest=2))
    _truncated_everywhere(case)
    assert len(case.around.clearings) == 1
    for _ in range(5):
        _pass(case)
    assert case.around.reads == []
    _expect_both_behind_the_truncation(case)
