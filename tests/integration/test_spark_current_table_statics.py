"""Static columns in every row of the current table."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_bridge import current_table
from tests.fixtures.spark import MakeTopic, Record, table_schemas
from tests.topics.table_records import (
    BEFORE_T,
    OLD,
    WIDE,
    Case,
    partition_deletion,
    row,
    row_deletion,
    rows_by_case,
    rows_of,
    static_row,
    write_an_added_static_column,
)

pytestmark = pytest.mark.spark_line(">=4.1")

# columns: pk, a, b, v, s, t
STATICS: Sequence[Case] = [
    (
        "a static row updates every row of its partition",
        [
            row("p", 1, "x", 1, s="old"),
            row("p", 2, "x", 2, s="old"),
            row("q", 1, "x", 3),
            static_row("p", s="new", t=7),
        ],
        [("p", 1, "x", 1, "new", 7), ("p", 2, "x", 2, "new", 7), ("q", 1, "x", 3, None, None)],
    ),
    (
        "a cleared static column is null in every row",
        [static_row("p", s="s", t=1), row("p", 1, "x", 1, s="s", t=1), static_row("p", s=None, t=1)],
        [("p", 1, "x", 1, None, 1)],
    ),
    (
        "a row that was read later carries the newer static columns for all",
        [static_row("p", s="s"), row("p", 1, "x", 1, s="s"), row("p", 2, "x", 2, s="newer")],
        [("p", 1, "x", 1, "newer", None), ("p", 2, "x", 2, "newer", None)],
    ),
    (
        "a partition of static columns only is one row without clustering columns",
        [static_row("p", s="s"), row("p", 1, "x", 1, s="s"), row_deletion("p", 1, "x")],
        [("p", None, None, None, "s", None)],
    ),
    (
        "a partition whose static columns are all null, and that has no rows, is gone",
        [static_row("p", s="s"), static_row("p", s=None)],
        [],
    ),
    (
        "a partition deletion takes the static columns too",
        [static_row("p", s="s"), row("p", 1, "x", 1, s="s"), partition_deletion("p"), row("p", 2, "x", 2)],
        [("p", 2, "x", 2, None, None)],
    ),
    (
        "a static row whose partition is gone says that its columns are null",
        [
            static_row("p", s="s"),
            row("p", 1, "x", 1, s="s"),
            Record(key={"pk": "p"}, properties={"kind": "static_row", "table_id": OLD, "static_columns": '["s","t"]'}),
        ],
        [("p", 1, "x", 1, None, None)],
    ),
]


def test_static_columns(spark: SparkSession, data_topic: MakeTopic) -> None:
    """The static columns of a partition come from its newest record with a value."""
    found = rows_by_case(spark, data_topic(*WIDE), STATICS, "pk a b v s t")
    assert found == {name: rows for name, _, rows in STATICS}


def test_a_static_column_that_is_added_is_in_every_row(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Earlier rows, and a partition of only static columns, have the new column once it is written."""
    topic = data_topic(*BEFORE_T)
    write_an_added_static_column(topic, is_added=False)
    write_an_added_static_column(topic, is_added=True)
    shown = current_table(spark, topic.options).select("pk", "a", "s", "t", "v").collect()
    assert sorted(map(tuple, shown)) == [
        ("p", 1, "1", "x", 1),
        ("p", 2, "1", "x", 2),
        ("q", None, None, "y", None),
        ("r", 1, None, None, 1),
    ]


def test_static_columns_may_be_named_where_the_records_do_not(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Records of DataStax's connector do not name static columns, so the caller names them."""
    topic = data_topic(*WIDE)
    topic.write(
        Record(key={"pk": "p", "a": 1, "b": "x"}, value={"v": 1, "s": "old"}),
        Record(key={"pk": "p"}, value={"s": "new"}),
    )
    assert rows_of(spark, topic, static_columns=["s", "t"]) == [("p", 1, "x", 1, "new", None)]
    assert rows_of(spark, topic, static_columns=[]) == [("p", 1, "x", 1, "old", None)]


def test_a_table_of_many_columns_is_decoded_in_methods_that_java_compiles(
    spark: SparkSession, data_topic: MakeTopic
) -> None:
    """The condition for rows with static columns is not repeated for each column.

    HotSpot interprets methods of more than 8,000 bytes, and Spark cannot compile those of more than 64 KiB.
    """
    columns = [f"c{number}" for number in range(10)]
    topic = data_topic(
        *table_schemas(
            partition_key={"pk": "text"},
            clustering={"a": "int"},
            regular=dict.fromkeys(columns, "int"),
            static={"s": "text"},
        )
    )
    topic.write(
        Record(
            key={"pk": "p", "a": 1},
            value={"s": "x"} | dict.fromkeys(columns, 7),
            properties={"kind": "row", "table_id": OLD, "writetime": "1000", "static_columns": '["s"]'},
        )
    )
    found = current_table(spark, topic.options)
    assert [row.asDict() for row in found.collect()] == [{"pk": "p", "a": 1, "s": "x"} | dict.fromkeys(columns, 7)]
    sizes = _method_sizes(spark, found)
    assert len(sizes) >= 3
    assert 0 < min(sizes) <= max(sizes) < 8_000


def _method_sizes(spark: SparkSession, frame: DataFrame) -> list[int]:
    """The bytes of the largest method of each part of the plan that is compiled as a whole; -1: not compilable."""
    debug = spark.sparkContext._jvm.org.apache.spark.sql.execution.debug.package  # type: ignore[union-attr]
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        plan = frame.select("*")._jdf.queryExecution().executedPlan()
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")
    parts = debug.codegenStringSeq(plan)
    return [parts.apply(at)._3().maxMethodCodeSize() for at in range(parts.size())]
