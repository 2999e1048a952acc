"""PartitionCounts: the number of partitions of each topic is stored, and a change is an error that says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from change_agent.errors import PartitionsChangedError, PublishError
from change_agent.publishing.partition_counts import PartitionCounts


def test_the_first_number_is_the_one_that_counts(tmp_path: Path) -> None:
    """The number is stored for the next process. Each topic has its own number."""
    PartitionCounts(tmp_path).check("events-ks.a", 4)
    again = PartitionCounts(tmp_path)
    again.check("events-ks.a", 4)
    again.check("events-ks.b", 0)
    with pytest.raises(PartitionsChangedError, match=r"events-ks\.a: has 8 partitions and had 4 when") as raised:
        again.check("events-ks.a", 8)
    assert "remove its line from" in str(raised.value)
    assert json.loads(again.path.read_text()) == {"events-ks.a": 4, "events-ks.b": 0}


def test_who_removes_the_line_accepts_the_new_number(tmp_path: Path) -> None:
    """The new number is accepted at once, without a restart."""
    counts = PartitionCounts(tmp_path)
    counts.check("events-ks.a", 4)
    counts.path.write_text("{}")
    counts.check("events-ks.a", 8)
    assert json.loads(counts.path.read_text()) == {"events-ks.a": 8}


def test_a_damaged_file_is_told_by_its_path(tmp_path: Path) -> None:
    """Without the stored number, a guess could break the order of a row's events."""
    counts = PartitionCounts(tmp_path)
    counts.path.write_text("{")
    with pytest.raises(PublishError, match=r"topic-partitions\.json: cannot be read"):
        counts.check("events-ks.a", 4)
