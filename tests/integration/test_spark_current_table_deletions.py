"""The current table without deleted rows: deletions of rows, of partitions, and of ranges with every form of bound."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.sql import SparkSession

from tests.fixtures.spark import MakeTopic, Record
from tests.topics.table_records import WIDE, Case, partition_deletion, range_deletion, row, row_deletion, rows_by_case

pytestmark = pytest.mark.spark_line(">=4.1")

# columns: pk, a, b, s, t, v
WIPED: Sequence[Case] = [
    (
        "a partition deletion removes the rows before it, of its partition only",
        [row("p", 1, "x", 1), row("q", 1, "x", 2), partition_deletion("p"), row("p", 2, "y", 3)],
        [("p", 2, "y", None, None, 3), ("q", 1, "x", None, None, 2)],
    ),
    (
        "survivors of a partition deletion are published again after it",
        [row("p", 1, "x", 1), row("p", 2, "x", 2), partition_deletion("p"), row("p", 2, "x", 2)],
        [("p", 2, "x", None, None, 2)],
    ),
    (
        "deleting a row takes that row only",
        [row("p", 1, "x", 1), row("p", 1, "y", 2), row_deletion("p", 1, "x")],
        [("p", 1, "y", None, None, 2)],
    ),
    (
        "a partition deletion before a row deletion changes nothing for the row",
        [row("p", 1, "x", 1), partition_deletion("p"), row_deletion("p", 1, "x"), row("p", 1, "x", 5)],
        [("p", 1, "x", None, None, 5)],
    ),
    (
        "records without a kind: a null value without clustering columns deletes the partition (DataStax)",
        [Record(key={"pk": "p", "a": 1, "b": "x"}, value={"v": 1}), Record(key={"pk": "p"})],
        [],
    ),
    (
        "a record of nulls is a row",
        [row("p", 1, "x", None)],
        [("p", 1, "x", None, None, None)],
    ),
]


def test_deletions_of_partitions_and_rows(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Markers and tombstones apply in the order of the topic."""
    found = rows_by_case(spark, data_topic(*WIDE), WIPED, "pk a b s t v")
    assert found == {name: rows for name, _, rows in WIPED}


GRID = [row("p", a, b, v) for v, (a, b) in enumerate((a, b) for a in (1, 2, 3) for b in "xyz")]
RANGES: Sequence[tuple[str, Record, str]] = [
    ("a = 2", range_deletion("p", start={"a": 2}, end={"a": 2}), "1x 1y 1z 3x 3y 3z"),
    ("a > 1", range_deletion("p", start={"a": 1}, start_inclusive=False), "1x 1y 1z"),
    ("a >= 2", range_deletion("p", start={"a": 2}), "1x 1y 1z"),
    ("a < 3", range_deletion("p", end={"a": 3}, end_inclusive=False), "3x 3y 3z"),
    ("a <= 2", range_deletion("p", end={"a": 2}), "3x 3y 3z"),
    (
        "a = 2 and b > 'x'",
        range_deletion("p", start={"a": 2, "b": "x"}, start_inclusive=False, end={"a": 2}),
        "1x 1y 1z 2x 3x 3y 3z",
    ),
    (
        "a = 2 and b >= 'x' and b < 'z'",
        range_deletion("p", start={"a": 2, "b": "x"}, end={"a": 2, "b": "z"}, end_inclusive=False),
        "1x 1y 1z 2z 3x 3y 3z",
    ),
    ("(a, b) > (2, 'y')", range_deletion("p", start={"a": 2, "b": "y"}, start_inclusive=False), "1x 1y 1z 2x 2y"),
    (
        "a = 2 and b > 'x', where b is descending",
        range_deletion("p", start={"a": 2}, end={"a": 2, "b": "x"}, end_inclusive=False, backwards=["b"]),
        "1x 1y 1z 2x 3x 3y 3z",
    ),
    (
        "a > 1, where a is descending",
        range_deletion("p", end={"a": 1}, end_inclusive=False, backwards=["a"]),
        "1x 1y 1z",
    ),
    ("the whole of another partition", range_deletion("q", start={"a": 0}), "1x 1y 1z 2x 2y 2z 3x 3y 3z"),
]


def test_range_deletions_take_the_rows_between_their_bounds(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Ranges are deleted with every form of bound: prefixes, exclusive bounds, several columns, descending columns."""
    cases: list[Case] = [(name, [*GRID, marker, row("p", 9, "later", 0)], []) for name, marker, _ in RANGES]
    found = rows_by_case(spark, data_topic(*WIDE), cases, "pk a b")
    left = {name: " ".join(f"{a}{b}" for _, a, b in rows) for name, rows in found.items()}
    assert left == {name: f"{rows} 9later" for name, _, rows in RANGES}


def test_a_range_of_addresses_is_compared_by_their_bytes(spark: SparkSession, data_topic: MakeTopic) -> None:
    """In Avro an inet is a text. The marker of the deletion tells its type."""
    rows = [row("p", 1, address, 0) for address in ("9.0.0.0", "10.0.0.1", "10.0.0.9", "100.0.0.0")]
    bounds = {"start": {"a": 1, "b": "9.0.0.0"}, "end": {"a": 1, "b": "10.0.0.9"}}
    marker = range_deletion("p", **bounds, start_inclusive=False, types={"b": "inet"})
    found = rows_by_case(spark, data_topic(*WIDE), [("addresses", [*rows, marker], [])], "pk a b")
    assert found == {"addresses": [("p", 1, "100.0.0.0"), ("p", 1, "9.0.0.0")]}
