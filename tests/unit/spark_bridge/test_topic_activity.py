"""Lags of a long topic are counted in bounded memory."""

from __future__ import annotations

import random

import pytest

from spark_bridge.reading.raw_columns import RawRow, to_arrow
from spark_bridge.rows import topic_activity
from spark_bridge.rows.topic_activity import TopicActivity

_PUBLISHED_US = 1_700_000_000_000_000


def test_percentiles_of_more_lags_than_are_kept_are_nearly_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lags are 0 to 99.999 s in random order, and at most 1,000 of them are kept."""
    monkeypatch.setattr(topic_activity, "_MOST_LAGS", 1_000)
    lags_ms = random.Random(7).sample(range(100_000), 20_000)
    found = TopicActivity("t")
    for start in range(0, len(lags_ms), 500):
        rows: list[RawRow] = [
            (b"k", b"v", {"writetime": str(_PUBLISHED_US - lag * 1_000)}, "1:1:0", 0, None, _PUBLISHED_US)
            for lag in lags_ms[start : start + 500]
        ]
        found.add(to_arrow("t", 0, rows))
    assert found.records == len(lags_ms)
    assert len(found._lags) <= 1_000
    assert found.lag_s(0.5) == pytest.approx(50, abs=5)
    assert found.lag_s(0.99) == pytest.approx(99, abs=1)
