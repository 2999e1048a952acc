"""Backoff: pauses grow, have a limit, and are random in part."""

from __future__ import annotations

import pytest

from runtime.backoff import Backoff


@pytest.mark.parametrize(("failures", "longest_s"), [(1, 0.5), (2, 1), (3, 2), (6, 10), (1_000_000, 10)])
def test_a_pause_doubles_up_to_the_longest_one_and_half_of_it_is_chance(failures: int, longest_s: float) -> None:
    """A million failures in a row cause no overflow."""
    pauses = [Backoff(0.5, 10).pause_s(failures) for _ in range(200)]
    assert longest_s / 2 <= min(pauses) < max(pauses) <= longest_s
    assert len(set(pauses)) > 100
