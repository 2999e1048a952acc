"""The raw rows on PySpark 3.5, by the pulsar-spark connector, equal those of `cassandra_cdc` on 4.1."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from schemas.cql_value import AvroValue
from spark_bridge import current_table
from spark_bridge.topics.options import OAUTH2_PLUGIN
from tests.fixtures.spark import MakeTopic, Record, table_schemas
from tests.fixtures.spark35 import Spark35, Spark35Error
from tests.spark.spark35_driver import raw_rows
from tests.topics.numbered_records import KEY_AND_VALUE, texts
from tests.topics.table_records import WIDE, partition_deletion, range_deletion, row, row_deletion, static_row

pytestmark = pytest.mark.spark35
_, WIDER_VALUE = table_schemas(partition_key={"id": "int"}, regular={"name": "text", "size": "int"})


def numbered(first: int, last: int) -> list[Record]:
    times = {"writetime": str(1_795_219_250_000_000), "kind": "row"}
    return [Record(key={"id": n}, value={"name": f"row {n}"}, properties=times) for n in range(first, last + 1)]


def values(rows: list[str]) -> list[str]:
    """The texts of rows, sorted by the number in them."""
    found = [bytes.fromhex(each["value"])[2:].decode() for each in map(json.loads, rows)]
    return sorted(found, key=lambda text: int(text.split()[1]))


def assert_same(spark: SparkSession, spark35: Spark35, options: Mapping[str, str], count: int) -> None:
    mine, theirs = raw_rows(spark, dict(options)), spark35.call("raw_rows", options=dict(options))
    assert theirs["rows"] == mine["rows"]
    assert len(theirs["rows"]) == count
    assert StructType.fromJson(json.loads(theirs["schema"])) == StructType.fromJson(json.loads(str(mine["schema"])))


def test_both_readers_give_the_same_raw_rows(
    spark: SparkSession, spark35: Spark35, data_topic: MakeTopic, is_extended: bool
) -> None:
    """All columns are equal: batches, single messages, tombstones, times, partitions, alternating schema versions."""
    assert spark35.version.startswith("3.5.")
    for partitions in (0, 3) if is_extended else (0,):
        topic = data_topic(*KEY_AND_VALUE, partitions=partitions)
        topic.write(*numbered(1, 40), batch=7)
        topic.write(Record(key={"id": 1}), Record(key={"id": 2}, event_time_ms=1_795_219_250_123), batch=1)
        if not partitions:
            assert_same(spark, spark35, topic.options, 42)
        wrong = {"writetime": "12.5", "kind": "row"}
        topic.write(Record(key={"id": 3}, value={"name": None, "size": 3}, properties=wrong), value_schema=WIDER_VALUE)
        ids = topic.write(*numbered(41, 43), Record(key={"id": 4}), batch=2)  # with the older schema again
        topic.write(Record(key={"id": 5}, value={"name": None, "size": 5}), value_schema=WIDER_VALUE)
        assert_same(spark, spark35, topic.options, 48)
        if not partitions:
            at = json.dumps({topic.name: ":".join(ids[1].split(":")[:2])})
            assert_same(spark, spark35, {**topic.options, "startingOffsets": at}, 3)
            assert_same(spark, spark35, {**topic.options, "endingOffsets": at}, 45)
            assert_same(spark, spark35, {**topic.options, "startingOffsets": "2096-01-01T00:00:00Z"}, 0)


def test_a_stream_on_3_5_goes_on_where_it_was(spark35: Spark35, data_topic: MakeTopic, tmp_path: Path) -> None:
    """A stream that is started again, also after a failed micro-batch, neither loses nor repeats rows; its start
    position stays exclusive."""
    topic = data_topic(*KEY_AND_VALUE, partitions=2)
    topic.write(*numbered(1, 20), batch=3)
    whole = {"options": dict(topic.options), "folder": str(tmp_path / "whole")}
    assert values(spark35.call("stream_rows", **whole)) == texts(1, 20)
    topic.write(*numbered(21, 30), batch=4)
    with pytest.raises(Spark35Error, match="stopped after the write"):
        spark35.call("stream_rows", fail_after_write=True, **whole)
    topic.write(*numbered(31, 31))
    assert values(spark35.call("stream_rows", **whole)) == texts(1, 31)
    single = data_topic(*KEY_AND_VALUE)
    ids = single.write(*numbered(1, 9), batch=3)
    second = json.dumps({single.name: ":".join(ids[3].split(":")[:2])})
    part = {"options": {**single.options, "startingOffsets": second}, "folder": str(tmp_path / "part")}
    with pytest.raises(Spark35Error, match="stopped after the write"):
        spark35.call("stream_rows", fail_after_write=True, **part)
    assert values(spark35.call("stream_rows", **part)) == texts(7, 9)
    single.write(*numbered(10, 12), batch=3)
    assert values(spark35.call("stream_rows", **part)) == texts(7, 12)


def test_views_and_jobs_stand_on_the_3_5_reader(
    spark: SparkSession, spark35: Spark35, data_topic: MakeTopic, tmp_path: Path
) -> None:
    """The current table and the mirrors of a topic with all kinds of records equal those of Spark 4.1."""
    topic = data_topic(*WIDE)
    topic.write(*[row(pk, a, b, a, s=f"s{a}") for pk in "pqr" for a in range(4) for b in "xy"], batch=5)
    topic.write(row_deletion("p", 1, "x"), range_deletion("q", start={"a": 2}), static_row("p", s="only", t=3))
    topic.write(partition_deletion("r"), row("r", 1, "y", 5), batch=2)
    wanted = sorted(current_table(spark, topic.options).toJSON().collect())
    assert len(wanted) > 10
    assert spark35.call("table_rows", options=dict(topic.options)) == wanted
    for job in ("mirrored_rows", "iceberg_rows"):
        assert spark35.call(job, options=dict(topic.options), target=str(tmp_path / job)) == wanted
    topic.write(row_deletion("p", 2, "x"), row("p", 3, "x", 77))
    wanted = sorted(current_table(spark, topic.options).toJSON().collect())
    for job in ("mirrored_rows", "iceberg_rows"):
        assert spark35.call("fresh_rows", options=dict(topic.options), target=str(tmp_path / job)) == wanted
    for job in ("mirrored_rows", "iceberg_rows"):
        assert spark35.call(job, options=dict(topic.options), target=str(tmp_path / job)) == wanted


@pytest.mark.parametrize("column", ["path", "Path", "filepath", "name"])
def test_rows_of_a_large_table_change_whatever_its_columns_are_called(
    spark35: Spark35, tmp_path: Path, column: str
) -> None:
    """Delta makes no deletion vectors for a table with a column that is named like one of Delta's own."""
    found = spark35.call("changed_rows", folder=str(tmp_path / "rows"), column=column)
    assert [tuple(json.loads(each).values()) for each in found] == [
        (0, "0"),
        (1, "merged"),
        (2, "updated"),
        (9, "merged"),
    ]


def test_the_count_check_names_what_a_reader_left_out(
    spark: SparkSession, spark35: Spark35, data_topic: MakeTopic
) -> None:
    """`missing` gives the message id of each record of the topic that a DataFrame lacks."""
    topic = data_topic(*KEY_AND_VALUE, partitions=2)
    ids = topic.write(*numbered(1, 30), batch=4)
    assert spark35.call("missing", options=dict(topic.options), left_out="") == []
    assert spark35.call("missing", options=dict(topic.options), left_out=ids[17]) == [ids[17]]


@pytest.mark.parametrize(
    ("function", "more", "said"),
    [
        pytest.param(
            "stream_rows",
            {"maxRowsPerTrigger": "5", "checkpointLocation": "x"},
            "maxRowsPerTrigger: is not possible on PySpark 3.5",
            id="a limit",
        ),
        pytest.param(
            "raw_rows",
            {
                "authPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
                "authParams": "token:tell-nobody",
            },
            "authParams: must be file:///path on PySpark 3.5",
            id="a secret that the connector would log",
        ),
        pytest.param(
            "raw_rows",
            {
                "authPluginClassName": OAUTH2_PLUGIN,
                "authParams": '{"issuer_url": "http://localhost:1", "private_key": "data:application/json;base64,tell-nobody"}',
            },
            "authPluginClassName: AuthenticationOAuth2 is not possible on PySpark 3.5",
            id="OAuth2",
        ),
        pytest.param(
            "raw_rows",
            {"topic": "persistent://public/spark/no-such-topic"},
            "topic persistent://public/spark/no-such-topic: does not exist",
            id="a missing topic",
        ),
        pytest.param("raw_rows", {"topix": "x"}, "topix: is no option of cassandra_cdc", id="an unknown option"),
    ],
)
def test_what_3_5_cannot_do_is_one_clear_error(
    spark35: Spark35, data_topic: MakeTopic, tmp_path: Path, function: str, more: dict[str, str], said: str
) -> None:
    """The options are refused before anything is read, and no secret is in the message."""
    arguments = {"folder": str(tmp_path)} if function == "stream_rows" else {}
    with pytest.raises(Spark35Error) as error:
        spark35.call(function, options={**data_topic(*KEY_AND_VALUE).options, **more}, **arguments)
    assert said in str(error.value)
    assert "tell-nobody" not in str(error.value)


def test_a_changed_table_comes_out_right_on_3_5(spark: SparkSession, spark35: Spark35, data_topic: MakeTopic) -> None:
    """A column is added within the stream: each record is decoded by its own schema version."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(Record(key={"id": 1}, value={"name": "a"}))
    _, newer = table_schemas(partition_key={"id": "int"}, regular={"name": "text", "amount": "decimal"})
    amount: dict[str, AvroValue] = {"bigint": b"\x01\x2c", "scale": 2}
    topic.write(Record(key={"id": 2}, value={"name": "b", "amount": amount}), value_schema=newer)
    topic.write(Record(key={"id": 3}, value={"name": "c"}))
    assert spark35.call("table_rows", options=dict(topic.options)) == [
        '{"id":1,"name":"a"}',
        '{"id":2,"amount":3.000000000000000000,"name":"b"}',
        '{"id":3,"name":"c"}',
    ]
