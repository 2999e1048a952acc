"""Token ranges, and what a job says of its access to Cassandra."""

from __future__ import annotations

import itertools

import pytest

from schemas.errors import ConfigError
from spark_bridge.jobs.cassandra_rows import CassandraAccess, token_ranges

SMALLEST, LARGEST = -(1 << 63), (1 << 63) - 1


@pytest.mark.parametrize("count", [1, 2, 3, 64, 1000])
def test_ranges_cover_the_ring_without_gap_or_overlap(count: int) -> None:
    """(start, end] each; no partition has the smallest token of all."""
    ranges = token_ranges(count)
    assert len(ranges) == count
    assert (ranges[0][0], ranges[-1][1]) == (SMALLEST, LARGEST)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))
    assert all(low < high for low, high in ranges)


def test_a_range_of_tokens_is_divided_alike_and_a_wrong_one_is_refused() -> None:
    """(start, end]; a range narrower than the count gives fewer parts."""
    assert token_ranges(2, (-10, 10)) == [(-10, 0), (0, 10)]
    assert token_ranges(64, (0, 2)) == [(0, 1), (1, 2)]
    for wrong in ((5, 5), (5, 4), (0, 1 << 63)):
        with pytest.raises(ConfigError, match="is no range of tokens"):
            token_ranges(1, wrong)


def test_the_password_is_not_shown_and_the_level_is_checked() -> None:
    """`repr` has no password; a wrong consistency level is named before anything is connected."""
    access = CassandraAccess(contact_points=("127.0.0.1",), username="u", password="tell-nobody", consistency="MOST")
    assert "tell-nobody" not in repr(access)
    with pytest.raises(ConfigError, match="consistency: 'MOST' is no consistency level of Cassandra"):
        access.open()
