"""The data source `cassandra_cdc` in batch: raw rows of real topics."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Iterable

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from spark_bridge import raw_batch, session_builder
from spark_bridge.reading.data_source import CassandraCdcDataSource
from spark_bridge.reading.planning import plan_batch
from spark_bridge.reading.readers import register_source
from spark_bridge.reading.topic_reader import read_range
from spark_bridge.topics.options import BridgeOptions
from tests.fixtures.spark import DataTopic, MakeTopic, Record
from tests.servers.interface import PulsarServer
from tests.topics.numbered_records import KEY_AND_VALUE, names, numbered, read

pytestmark = pytest.mark.spark_line(">=4.1")


def test_every_raw_column_of_a_record(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Key and value are Avro bytes, and the other columns have the metadata of the record."""
    topic = data_topic(*KEY_AND_VALUE)
    before = dt.datetime.now() - dt.timedelta(seconds=60)  # noqa: DTZ005  (as Spark's rows)
    properties = {"writetime": "1795219250123456", "kind": "row", "node": "n1"}
    (message_id,) = topic.write(
        Record(key={"id": 7}, value={"name": "Ann"}, properties=properties, event_time_ms=1_795_219_250_123)
    )
    (row,) = read(spark, topic.options).collect()
    ledger, entry, partition, _ = message_id.split(":")
    assert row.asDict() | {"publish_time": None} == {
        "key": b"\x0e",
        "value": b"\x02\x06Ann",
        "op": "u",
        "writetime": 1_795_219_250_123_456,
        "event_time": dt.datetime.fromtimestamp(1_795_219_250.123),  # noqa: DTZ006  (as Spark gives rows)
        "topic": topic.name,
        "partition": -1,
        "message_id": f"{ledger}:{entry}:{partition}",
        "schema_version": 0,
        "publish_time": None,
        "properties": properties,
    }
    assert row.publish_time > before


def test_a_child_session_reads_while_another_session_is_active(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Spark looks up the name of a data source in the active session, whichever session registered it."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 2))
    active = SparkSession.getActiveSession()
    child = spark.newSession()
    assert names(raw_batch(child, topic.options)) == names(read(spark, topic.options))
    assert SparkSession.getActiveSession() == active


def test_a_source_is_registered_once_for_a_session(spark: SparkSession) -> None:
    """Spark would log a warning at each view of a topic that it replaces the source."""
    from pyspark.sql.datasource import DataSource  # PySpark 3.5 has none

    class First(DataSource):
        @classmethod
        def name(cls) -> str:
            return "registered_once"

        def schema(self) -> str:
            return "first int"

    class Second(First):
        def schema(self) -> str:
            return "second int"

    child = spark.newSession()
    for each in (First, Second):
        register_source(child, each)
    assert child.read.format("registered_once").load().columns == ["first"]
    other = spark.newSession()
    register_source(other, Second)
    assert other.read.format("registered_once").load().columns == ["second"]


def test_a_tombstone_is_op_d_with_a_null_value(spark: SparkSession, data_topic: MakeTopic) -> None:
    """A null value on the topic is a null value in Spark, alone and within a batch."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(Record(key={"id": 1}), batch=1)
    topic.write(*numbered(1, 2), Record(key={"id": 1}), Record(key={"id": 2}, value={"name": None}), batch=4)
    rows = read(spark, topic.options).select("key", "value", "op", "writetime", "event_time").collect()
    assert rows == [
        Row(key=b"\x02", value=None, op="d", writetime=None, event_time=None),
        Row(key=b"\x02", value=b"\x02\x0arow 1", op="u", writetime=None, event_time=None),
        Row(key=b"\x04", value=b"\x02\x0arow 2", op="u", writetime=None, event_time=None),
        Row(key=b"\x02", value=None, op="d", writetime=None, event_time=None),
        Row(key=b"\x04", value=b"\x00", op="u", writetime=None, event_time=None),
    ]


def test_batched_entries_are_read_once_and_whole(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Messages of one entry share their position; each comes once, independent of the division of the range."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 20), batch=7)
    topic.write(*numbered(21, 22), batch=1)
    for min_partitions in ("1", "3", "50"):
        rows = read(spark, topic.options, minPartitions=min_partitions).collect()
        assert [bytes(row.value)[2:].decode() for row in rows] == [f"row {n}" for n in range(1, 23)]
        assert len({row.message_id for row in rows}) == 22


def test_all_partitions_of_a_topic_are_read(spark: SparkSession, data_topic: MakeTopic) -> None:
    """The records of every partition are read in the partition's order, with the partition's number."""
    topic = data_topic(*KEY_AND_VALUE, partitions=3)
    ids = topic.write(*numbered(1, 30), batch=4)
    rows = read(spark, topic.options).collect()
    assert sorted(bytes(row.value)[2:].decode() for row in rows) == sorted(f"row {n}" for n in range(1, 31))
    assert {row.partition for row in rows} == {0, 1, 2}
    assert sorted(row.message_id for row in rows) == sorted(each.removesuffix(":-1") for each in ids)
    assert {row.topic for row in rows} == {topic.name}


@pytest.mark.parametrize("partitions", [0, 2])
def test_an_empty_topic_has_no_rows(spark: SparkSession, data_topic: MakeTopic, partitions: int) -> None:
    """A topic to which nothing was ever written is an empty DataFrame, not an error."""
    topic = data_topic(*KEY_AND_VALUE, partitions=partitions)
    assert read(spark, topic.options).collect() == []


def test_a_topic_with_empty_partitions(spark: SparkSession, data_topic: MakeTopic) -> None:
    """One record in a topic of four partitions: three of them have nothing to read."""
    topic = data_topic(*KEY_AND_VALUE, partitions=4)
    topic.write(*numbered(1, 1))
    assert names(read(spark, topic.options)) == ["row 1"]


def test_a_partition_that_the_broker_has_deleted_is_empty(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Pulsar deletes a partition without data when it is idle for a minute; the topic still counts it."""
    topic = data_topic(*KEY_AND_VALUE, partitions=2)
    (message_id,) = topic.write(*numbered(1, 1))
    other = 1 - int(message_id.split(":")[2])
    topic.admin.delete(f"/{topic.name.replace('://', '/')}-partition-{other}").raise_for_status()
    assert names(read(spark, topic.options, minPartitions="8")) == ["row 1"]
    assert names(read(spark, topic.options, startingOffsets="latest")) == []


def test_reading_starts_after_a_given_position_or_at_the_end(spark: SparkSession, data_topic: MakeTopic) -> None:
    """`startingOffsets`: a position is the last entry that is not read; `latest` leaves nothing for a batch."""
    topic = data_topic(*KEY_AND_VALUE)
    ids = topic.write(*numbered(1, 4))
    position = ":".join(ids[1].split(":")[:2])
    assert names(read(spark, topic.options, startingOffsets=json.dumps({topic.name: position}))) == ["row 3", "row 4"]
    assert names(read(spark, topic.options, startingOffsets="latest")) == []


def trimmed_topic(pulsar: PulsarServer, topic: DataTopic) -> None:
    """Roll the topic's ledger over and let Pulsar drop what retention no longer holds."""
    path = topic.name.replace("://", "/")
    topic.admin.post(
        f"/{path}/retention", json={"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    ).raise_for_status()
    deadline = time.monotonic() + 180
    topic.admin.put(f"/{path}/unload").raise_for_status()
    while time.monotonic() < deadline:
        topic.admin.post(f"/{path}/trim")
        ledgers = topic.admin.get(f"/{path}/internalStats").json().get("ledgers", [])
        if len(ledgers) == 1:
            # Without retention the broker would delete the topic when nobody has read it for a minute.
            forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
            topic.admin.post(f"/{path}/retention", json=forever).raise_for_status()
            return
        time.sleep(0.2)
    raise AssertionError(f"still there: {ledgers}")


def test_a_topic_whose_head_was_trimmed(spark: SparkSession, data_topic: MakeTopic, pulsar: PulsarServer) -> None:
    """Retention has dropped the first ledger: the remaining records are read, from the beginning and from a position in
    the dropped ledger."""
    topic = data_topic(*KEY_AND_VALUE)
    ids = topic.write(*numbered(1, 3))
    trimmed_topic(pulsar, topic)
    assert names(read(spark, topic.options)) == []
    topic.write(*numbered(4, 6), batch=2)
    in_the_dropped_ledger = json.dumps({topic.name: ":".join(ids[0].split(":")[:2])})
    assert names(read(spark, topic.options)) == ["row 4", "row 5", "row 6"]
    assert names(read(spark, topic.options, minPartitions="2")) == ["row 4", "row 5", "row 6"]
    with pytest.raises(PySparkException, match=f"topic partition {topic.name}: records after position"):
        read(spark, topic.options, startingOffsets=in_the_dropped_ledger).collect()
    kept = read(spark, topic.options, startingOffsets=in_the_dropped_ledger, failOnDataLoss="false")
    assert names(kept) == ["row 4", "row 5", "row 6"]


def test_a_planned_range_stays_the_same_when_it_is_read_again(data_topic: MakeTopic) -> None:
    """The end is fixed when the query is planned: a task that runs again reads the same records."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 5), batch=5)
    options = BridgeOptions.from_mapping(topic.options)
    (span,) = plan_batch(options)
    topic.write(*numbered(6, 9), batch=2)
    for _ in range(2):
        read_ids = [each for batch in read_range(options, span) for each in batch.column("message_id").to_pylist()]
        assert [each.rpartition(":")[2] for each in read_ids] == ["0", "1", "2", "3", "4"]


def test_the_session_builder_fetches_spark_avro_where_no_jar_is_given() -> None:
    """Users need no path, because Spark downloads the package itself."""
    settings = session_builder()._options
    assert settings["spark.jars.packages"] == "org.apache.spark:spark-avro_2.13:4.1.1"
    assert CassandraCdcDataSource.name() == "cassandra_cdc"


def test_python_processes_find_the_compiled_pyspark(spark: SparkSession) -> None:
    """They use the compiled files and not the packed sources, which each process would compile again."""

    def modules(_: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"file": [pyspark.__file__]})

    (row,) = spark.range(1).coalesce(1).mapInArrow(modules, "file string").collect()
    assert row.file == pyspark.__file__
