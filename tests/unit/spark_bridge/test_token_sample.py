"""Random parts of the ring."""

from __future__ import annotations

from uuid import UUID

import pytest

from schemas.errors import ConfigError
from schemas.hidden_columns import ColumnPattern, HiddenColumns, Hiding
from schemas.table_metadata import TableMetadata
from spark_bridge.jobs.token_sample import TokenSample
from tests.cql.tables import table_of


def table(partition_type: str) -> TableMetadata:
    return table_of({"pk": partition_type}, name="shop.t", table_id=UUID("a5559b20-e53e-11f1-a9d7-973e92e688cb"))


@pytest.mark.parametrize(("fraction", "share"), [(1, 1), (0.5, 0.5), (0.01, 0.01), (0.3, 2 / 7)])
def test_a_sample_is_about_its_fraction_of_the_ring_and_knows_its_tokens(fraction: float, share: float) -> None:
    """The sample has two ranges of enough pieces; each range includes its end and excludes its start."""
    sample = TokenSample.draw(table("int"), fraction, 2)
    assert len(sample.ranges) == 2
    assert sum(high - low for low, high in sample.ranges) / 2**64 == pytest.approx(share, rel=1e-6)
    for low, high in sample.ranges:
        assert sample.holds(low + 1)
        assert sample.holds(high)
    ends = {high for _, high in sample.ranges}
    assert all(sample.holds(low) == (low in ends) for low, _ in sample.ranges)
    assert all(sample.holds(high + 1) == (high in {low for low, _ in sample.ranges}) for _, high in sample.ranges)


def test_a_seed_draws_the_same_ranges_again() -> None:
    """The sample has three of 3,000 pieces."""
    drawn = [TokenSample.draw(table("int"), 0.001, 3, seed=seed) for seed in (7, 7, 8)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("fraction", [0, -0.5, 1.01, float("nan")])
def test_a_fraction_that_is_none_is_refused(fraction: float) -> None:
    """The error comes before the first read."""
    with pytest.raises(ConfigError, match=r"sample: .* is no part of the table"):
        TokenSample.draw(table("int"), fraction, 2)


@pytest.mark.parametrize("partition_type", ["time", "frozen<list<int>>", "frozen<tuple<int, text>>"])
def test_a_partition_key_whose_token_the_topic_does_not_tell_is_refused(partition_type: str) -> None:
    """Such a table can only be compared as a whole."""
    with pytest.raises(ConfigError, match=r"sample: shop\.t has a time, a collection, .* compare it whole"):
        TokenSample.draw(table(partition_type), 0.5, 2)


def test_hashes_of_partition_keys_tell_no_token() -> None:
    """The topic's side could not be sampled alike."""
    patterns = [ColumnPattern.parse(Hiding.HASH, "shop.t.pk")]
    published = HiddenColumns(patterns=patterns, hash_key=32 * b"k").of(table("int"))
    with pytest.raises(ConfigError, match=r"sample: shop.t has hashes on the topic for its partition key"):
        TokenSample.draw(table("int"), 0.5, 2, published=published)
