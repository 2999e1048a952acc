"""When a consistency level is left out, and when it is used again."""

from __future__ import annotations

from source_connector.rows.level_breaker import LevelBreaker, LevelState


def test_a_level_without_an_answer_is_left_out_and_comes_back_by_one_probe() -> None:
    """One statement probes the level after 5 s; the others wait for its result."""
    breaker = LevelBreaker()
    assert breaker.may_ask(0)
    assert breaker.silent(1)
    assert not breaker.silent(1)
    assert [breaker.may_ask(at) for at in (1, 5.9, 6, 6.1)] == [False, False, True, False]
    breaker.answered(7)
    assert breaker.state is LevelState.ASKED
    assert breaker.may_ask(7)


def test_an_answer_to_a_statement_from_before_does_not_bring_the_level_back() -> None:
    """Replicas other than the silent one have answered."""
    breaker = LevelBreaker()
    breaker.silent(1)
    breaker.answered(2)
    assert not breaker.may_ask(2)


def test_a_probe_that_fails_or_is_never_heard_of_is_followed_by_another_one() -> None:
    """Otherwise the level would be left out for ever."""
    breaker = LevelBreaker()
    breaker.silent(0)
    assert breaker.may_ask(5)
    assert not breaker.silent(7)
    assert [breaker.may_ask(at) for at in (11.9, 12)] == [False, True]
    assert [breaker.may_ask(at) for at in (16.9, 17)] == [False, True]


def test_a_level_that_does_not_last_is_left_out_longer_each_time() -> None:
    """Some partitions have no replica on the silent node, so probes of these do not show that the node is back."""
    breaker = LevelBreaker()
    now, pauses = 0.0, []
    for _ in range(6):
        breaker.silent(now)
        pauses.append(breaker.pause_s)
        now += breaker.pause_s
        assert breaker.may_ask(now)
        breaker.answered(now)
    assert pauses == [5, 10, 20, 30, 30, 30]
    breaker.silent(now + 61)
    assert breaker.pause_s == 5
