"""How the number of statements under way follows Cassandra's answers."""

from __future__ import annotations

from source_connector.rows.in_flight_limit import InFlightLimit


class Case:
    """A limit whose clock a test moves; as many statements are under way as may be."""

    def __init__(self, longest: int = 32) -> None:
        self.now = 0.0
        self.limit = InFlightLimit(longest, lambda: self.now)

    def answers(self, count: int, latency_s: float) -> int:
        for _ in range(count):
            self.now += 0.01
            self.limit.answered(latency_s, self.limit.value - 1)
        return self.limit.value


def test_it_grows_while_answers_are_fast_and_never_beyond_the_option() -> None:
    """From 8 to 32, one more for each round of answers."""
    case = Case()
    assert case.answers(9, 0.005) == 9
    assert case.answers(1000, 0.005) == 32


def test_late_answers_lower_it_once_each_half_second() -> None:
    """All that was under way in one slow moment is one sign."""
    case = Case()
    case.answers(1000, 0.005)
    assert case.answers(20, 0.2) == 24
    assert case.answers(200, 0.2) < 16


def test_a_cluster_that_is_slower_for_good_becomes_the_measure() -> None:
    """The limit recovers, though answers stay as slow as they are."""
    case = Case()
    case.answers(1000, 0.005)
    lowest = min(case.answers(50, 0.2) for _ in range(10))
    assert lowest < case.answers(3000, 0.2)


def test_timeouts_lower_it_to_one_at_least() -> None:
    """There is always one read that tells when it is over."""
    case = Case()
    for _ in range(100):
        case.now += 1
        case.limit.overloaded()
    assert case.limit.value == 1


def test_it_does_not_grow_while_it_is_not_used() -> None:
    """Fast answers of a quiet hour say nothing about a busy one."""
    case = Case()
    for _ in range(1000):
        case.limit.answered(0.001, 0)
    assert case.limit.value == 8
