"""Typed rows of a table that changes: each record is decoded by its own schema version, in batch and as a stream."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from spark_bridge import changes, typed
from tests.fixtures.spark import MakeTopic, Record, table_schemas
from tests.spark.streams import run_to_its_end, started

pytestmark = pytest.mark.spark_line(">=4.1")

BEFORE = table_schemas(partition_key={"id": "int"}, regular={"b": "text", "old": "int"})
AFTER = table_schemas(partition_key={"id": "int"}, regular={"a": "int", "b": "text", "c": "list<decimal>"})


def test_columns_added_and_dropped_in_mid_stream(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Each record is decoded by its own version: added columns are null in earlier ones, and dropped ones are gone."""
    topic = data_topic(*BEFORE)
    topic.write(Record(key={"id": 1}, value={"b": "x", "old": 9}), Record(key={"id": 2}), batch=2)
    topic.write(Record(key={"id": 3}, value={"a": 5, "b": "y", "c": []}), value_schema=AFTER[1])
    topic.write(Record(key={"id": 4}, value={"b": "z", "old": 8}))
    rows = changes(spark, topic.options).select("key.id", "schema_version", "op", "value.*").collect()
    assert rows == [
        Row(id=1, schema_version=0, op="u", a=None, b="x", c=None),
        Row(id=2, schema_version=0, op="d", a=None, b=None, c=None),
        Row(id=3, schema_version=1, op="u", a=5, b="y", c=[]),
        Row(id=4, schema_version=0, op="u", a=None, b="z", c=None),
    ]


def test_a_renamed_key_column_goes_by_its_new_name(spark: SparkSession, data_topic: MakeTopic) -> None:
    """ALTER TABLE RENAME does not change the bytes of a key, so earlier keys get the new name, too."""
    topic = data_topic(*table_schemas(partition_key={"id": "int"}, clustering={"ck": "text"}, regular={"v": "int"}))
    topic.write(Record(key={"id": 1, "ck": "a"}, value={"v": 1}))
    renamed, _ = table_schemas(partition_key={"id": "int"}, clustering={"place": "text"}, regular={"v": "int"})
    topic.writer.write(topic.name, renamed, topic.value_schema, [Record(key={"id": 2, "place": "b"}, value={"v": 2})])
    rows = changes(spark, topic.options).select("key.*", "value.*").collect()
    assert rows == [Row(id=1, place="a", v=1), Row(id=2, place="b", v=2)]


def test_a_schema_that_came_after_the_query_began_is_named(
    spark: SparkSession, data_topic: MakeTopic, tmp_path: Path
) -> None:
    """A running stream has fixed columns: after ALTER TABLE it ends with such an error, and a restart continues."""
    topic = data_topic(*BEFORE)
    topic.write(Record(key={"id": 1}, value={"b": "x"}))

    def run() -> list[Row]:
        raw = spark.readStream.format("cassandra_cdc").options(**topic.options).load()
        rows = typed(raw, topic.options).select("key.*", "value.*")
        seen: list[Row] = []

        def sink(frame: DataFrame, batch: int) -> None:
            seen.extend(frame.collect())
            if batch == 0:
                topic.write(Record(key={"id": 2}, value={"a": 7}), value_schema=AFTER[1])

        stream = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
        query = started(stream.trigger(processingTime="0 seconds"))
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return seen

    with pytest.raises(PySparkException) as error:
        run()
    assert "has schema version 1, which this query does not know (it knows 0); start it again" in str(error.value)
    assert run() == [Row(id=2, a=7, b=None, c=None)]


def test_a_micro_batch_is_typed_by_the_newest_schema(
    spark: SparkSession, data_topic: MakeTopic, tmp_path: Path
) -> None:
    """In `foreachBatch` each batch has the current columns, so ALTER TABLE does not end the query."""
    topic = data_topic(*BEFORE)
    topic.write(Record(key={"id": 1}, value={"b": "x"}))
    seen: list[Row] = []

    def sink(raw: DataFrame, batch: int) -> None:
        seen.extend(typed(raw, topic.options).select("key.*", "value.*").collect())
        if batch == 0:
            topic.write(Record(key={"id": 2}, value={"a": 7}), value_schema=AFTER[1])

    raw = spark.readStream.format("cassandra_cdc").options(**topic.options).load()
    stream = raw.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
    query = started(stream.trigger(processingTime="0 seconds"))
    query.processAllAvailable()
    query.stop()
    assert seen == [Row(id=1, b="x", old=None), Row(id=2, a=7, b=None, c=None)]


def test_typed_columns_in_a_stream(spark: SparkSession, data_topic: MakeTopic) -> None:
    """`typed` works on a streaming DataFrame as on a batch DataFrame."""
    topic = data_topic(*AFTER)
    topic.write(Record(key={"id": 1}, value={"a": 1, "c": [{"bigint": b"\x0f", "scale": 1}]}), Record(key={"id": 2}))
    raw = spark.readStream.format("cassandra_cdc").options(**topic.options).load()
    rows = typed(raw, topic.options).select("key.id", "op", "value.c")
    run_to_its_end(rows.writeStream.format("memory").queryName("typed_rows").trigger(availableNow=True))
    assert spark.table("typed_rows").orderBy(F.col("id")).collect() == [
        Row(id=1, op="u", c=[Decimal("1.5")]),
        Row(id=2, op="d", c=None),
    ]
