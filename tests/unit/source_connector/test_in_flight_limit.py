"""The number of statements in flight follows Cassandra's answers."""

from __future__ import annotations

from source_connector.rows.in_flight_limit import InFlightLimit


class Case:
    """A limit with a clock that a test advances; the number of statements in flight is always at the limit."""

    def __init__(self, longest: int = 32) -> None:
        self.now = 0.0
        self.limit = InFlightLimit(longest, lambda: self.now)

    def answers(self, count: int, latency_s: float) -> int:
        for _ in range(count):
            self.now += 0.01
            self.limit.answered(latency_s, self.limit.value - 1)
        return self.limit.value


def test_it_grows_while_answers_are_fast_and_never_beyond_the_option() -> None:
    """It grows from 8 to 32, by one for each round of answers."""
    case = Case()
    assert case.answers(9, 0.005) == 9
    assert case.answers(1000, 0.005) == 32


def test_late_answers_lower_it_once_each_half_second() -> None:
    """All statements of one slow moment count as one sign."""
    case = Case()
    case.answers(1000, 0.005)
    assert case.answers(20, 0.2) == 24
    assert case.answers(200, 0.2) < 16


def test_a_cluster_that_is_slower_for_good_becomes_the_measure() -> None:
    """The limit recovers although the answers stay slow."""
    case = Case()
    case.answers(1000, 0.005)
    lowest = min(case.answers(50, 0.2) for _ in range(10))
    assert lowest < case.answers(3000, 0.2)


def test_timeouts_lower_it_to_one_at_least() -> None:
    """One read remains, to find out when the timeouts are over."""
    case = Case()
    for _ in range(100):
        case.now += 1
        case.limit.overloaded()
    assert case.limit.value == 1


def test_it_does_not_grow_while_it_is_not_used() -> None:
    """Fast answers in a quiet hour do not show what a busy cluster can do."""
    case = Case()
    for _ in range(1000):
        case.limit.answered(0.001, 0)
    assert case.limit.value == 8
