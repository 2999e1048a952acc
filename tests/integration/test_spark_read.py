"""The data source `cassandra_cdc`: raw rows of real topics, in batch and as a stream."""

from __future__ import annotations

import datetime as dt
import json
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import pulsar as pulsar_client
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from cdc.sandbox import Sandbox, SandboxOptions
from spark_bridge import session_builder
from spark_bridge.reading.data_source import CassandraCdcDataSource
from spark_bridge.reading.planning import plan_batch
from spark_bridge.reading.topic_reader import read_range
from spark_bridge.topics.options import OAUTH2_PLUGIN, TOKEN_PLUGIN, BridgeOptions
from tests.fix_spark import PY4J_LEAVES_SOCKETS_OPEN, DataTopic, Record, RecordWriter, keep_everything, table_schemas
from tests.servers import PulsarServer
from tests.spark_settings import PATIENCE_S

pytestmark = [pytest.mark.filterwarnings(PY4J_LEAVES_SOCKETS_OPEN), pytest.mark.spark_line(">=4.1")]
MakeTopic = Callable[..., DataTopic]
KEY_AND_VALUE = table_schemas(partition_key={"id": "int"}, regular={"name": "text"})


def read(spark: SparkSession, options: Mapping[str, str], **more: str) -> DataFrame:
    return spark.read.format("cassandra_cdc").options(**options, **more).load()


def numbered(first: int, last: int) -> list[Record]:
    return [Record(key={"id": n}, value={"name": f"row {n}"}) for n in range(first, last + 1)]


def names(frame: DataFrame) -> list[str]:
    """The text after the two bytes of Avro that say: not null, so long."""
    return [bytes(row.value)[2:].decode() for row in frame.collect()]


def test_every_raw_column_of_a_record(spark: SparkSession, data_topic: MakeTopic) -> None:
    """The raw contract: key and value as Avro bytes, and all that the record says about itself."""
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


def test_a_tombstone_is_op_d_with_a_null_value(spark: SparkSession, data_topic: MakeTopic) -> None:
    """A null value on the topic is a null value in Spark, alone or in the middle of a batch."""
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
    """Messages of one entry share their position; however the range is divided, each comes exactly once."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 20), batch=7)
    topic.write(*numbered(21, 22), batch=1)
    for min_partitions in ("1", "3", "50"):
        rows = read(spark, topic.options, minPartitions=min_partitions).collect()
        assert [bytes(row.value)[2:].decode() for row in rows] == [f"row {n}" for n in range(1, 23)]
        assert len({row.message_id for row in rows}) == 22


def test_all_partitions_of_a_topic_are_read(spark: SparkSession, data_topic: MakeTopic) -> None:
    """A partitioned topic: every partition's records, in the partition's order, with its number."""
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
    deadline = time.monotonic() + 30
    topic.admin.put(f"/{path}/unload").raise_for_status()
    while time.monotonic() < deadline:
        topic.admin.post(f"/{path}/trim")
        ledgers = topic.admin.get(f"/{path}/internalStats").json()["ledgers"]
        if len(ledgers) == 1:
            return
        time.sleep(0.2)
    raise AssertionError(f"still there: {ledgers}")


def test_a_topic_whose_head_was_trimmed(spark: SparkSession, data_topic: MakeTopic, pulsar: PulsarServer) -> None:
    """Retention has dropped the first ledger: what is left is read, from the beginning and from a position in it."""
    topic = data_topic(*KEY_AND_VALUE)
    ids = topic.write(*numbered(1, 3))
    trimmed_topic(pulsar, topic)
    assert names(read(spark, topic.options)) == []
    topic.write(*numbered(4, 6), batch=2)
    in_the_dropped_ledger = json.dumps({topic.name: ":".join(ids[0].split(":")[:2])})
    assert names(read(spark, topic.options)) == ["row 4", "row 5", "row 6"]
    assert names(read(spark, topic.options, minPartitions="2")) == ["row 4", "row 5", "row 6"]
    with pytest.raises(PySparkException, match=f"topic partition {topic.name}: what came after position"):
        read(spark, topic.options, startingOffsets=in_the_dropped_ledger).collect()
    kept = read(spark, topic.options, startingOffsets=in_the_dropped_ledger, failOnDataLoss="false")
    assert names(kept) == ["row 4", "row 5", "row 6"]


def test_a_planned_range_stays_the_same_when_it_is_read_again(data_topic: MakeTopic) -> None:
    """The end is fixed when the query is planned: a task that is run again reads the same, whatever came since."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 5), batch=5)
    options = BridgeOptions.from_mapping(topic.options)
    (span,) = plan_batch(options)
    topic.write(*numbered(6, 9), batch=2)
    for _ in range(2):
        read_ids = [each for batch in read_range(options, span) for each in batch.column("message_id").to_pylist()]
        assert [each.rpartition(":")[2] for each in read_ids] == ["0", "1", "2", "3", "4"]


# --- streams


def run_to_the_end(spark: SparkSession, options: Mapping[str, str], folder: Path, **more: str) -> None:
    """One run of a streaming query over all there is, into parquet files."""
    frame = spark.readStream.format("cassandra_cdc").options(**options, **more).load()
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)


def test_a_stream_goes_on_where_its_checkpoint_ends(spark: SparkSession, data_topic: MakeTopic, tmp_path: Path) -> None:
    """Written, read, stopped, written more, started again: nothing twice, nothing left out."""
    topic = data_topic(*KEY_AND_VALUE, partitions=2)
    topic.write(*numbered(1, 10), batch=3)
    run_to_the_end(spark, topic.options, tmp_path)
    topic.write(*numbered(11, 25), batch=4)
    run_to_the_end(spark, topic.options, tmp_path)
    run_to_the_end(spark, topic.options, tmp_path)
    rows = spark.read.parquet(str(tmp_path / "rows"))
    assert sorted(names(rows)) == sorted(f"row {n}" for n in range(1, 26))


def test_a_stream_from_latest_keeps_its_start_over_a_restart(
    spark: SparkSession, data_topic: MakeTopic, tmp_path: Path
) -> None:
    """`latest` is decided once: what is written while the query is down is read when it comes back."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 3))
    run_to_the_end(spark, topic.options, tmp_path, startingOffsets="latest")
    topic.write(*numbered(4, 5))
    run_to_the_end(spark, topic.options, tmp_path, startingOffsets="latest")
    assert names(spark.read.parquet(str(tmp_path / "rows"))) == ["row 4", "row 5"]


def test_a_failed_micro_batch_is_read_again_as_it_was(
    spark: SparkSession, data_topic: MakeTopic, tmp_path: Path
) -> None:
    """The sink fails, more is written, the query is started again: the same batch comes first, then the rest."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 6), batch=2)
    batches: list[tuple[int, list[str]]] = []

    def sink(frame: DataFrame, batch: int) -> None:
        batches.append((batch, names(frame)))
        if len(batches) == 1:
            raise OSError("the sink is full")

    def run() -> bool | None:
        frame = spark.readStream.format("cassandra_cdc").options(**topic.options).load()
        stream = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
        return stream.trigger(availableNow=True).start().awaitTermination(300)

    with pytest.raises(PySparkException, match="the sink is full"):
        run()
    topic.write(*numbered(7, 8))
    assert run()  # the failed batch, from the checkpoint
    assert run()  # what came since
    first = [f"row {n}" for n in range(1, 7)]
    assert batches == [(0, first), (0, first), (1, ["row 7", "row 8"])]


def test_a_stream_follows_the_topic(spark: SparkSession, data_topic: MakeTopic, tmp_path: Path) -> None:
    """A query that keeps running sees what is written meanwhile, and partitions that are added to the topic."""
    topic = data_topic(*KEY_AND_VALUE, partitions=1)
    frame = spark.readStream.format("cassandra_cdc").options(**topic.options).load()
    stream = frame.writeStream.format("memory").queryName("followed").option("checkpointLocation", str(tmp_path))
    query = stream.trigger(processingTime="100 milliseconds").start()
    try:
        for first in (1, 11):
            topic.write(*numbered(first, first + 9), batch=5)
            query.processAllAvailable()
            assert sorted(names(spark.table("followed"))) == sorted(f"row {n}" for n in range(1, first + 10))
            topic.admin.post(f"/{topic.name.replace('://', '/')}/partitions", json=3).raise_for_status()
    finally:
        query.stop()
    assert {row.partition for row in spark.table("followed").collect()} == {0, 1, 2}


def test_a_stream_sits_out_a_broker_that_was_killed(spark: SparkSession, record_writer_process: RecordWriter) -> None:
    """Pulsar is killed under a running query and comes back: the query goes on, nothing twice, nothing left out."""
    with Sandbox(SandboxOptions(nodes=0)) as sandbox:
        server = sandbox.pulsar
        keep_everything(server, "public/spark")
        options = {"serviceUrl": server.service_url, "adminUrl": server.admin_url, "topic": "public/spark/data"}
        options["operationTimeoutSeconds"] = str(PATIENCE_S)  # a loaded machine may take a minute to start Pulsar
        writer = RecordWriter(server.service_url, record_writer_process.classes)
        writer.write("public/spark/data", *KEY_AND_VALUE, numbered(1, 10), batch=4)
        frame = spark.readStream.format("cassandra_cdc").options(**options).load()
        stream = frame.writeStream.format("memory").queryName("survived")
        query = stream.trigger(processingTime="100 milliseconds").start()
        query.processAllAvailable()
        server.kill()
        time.sleep(1)
        server.start()
        writer.write("public/spark/data", *KEY_AND_VALUE, numbered(11, 30), batch=4)
        writer.close()
        query.processAllAvailable()
        query.stop()
    assert sorted(names(spark.table("survived"))) == sorted(f"row {n}" for n in range(1, 31))


# --- what is wrong is said in one line


def test_all_wrong_options_are_named_at_once(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Unknown options with the nearest known one, bad values, and missing options, in one error at `load()`."""
    with pytest.raises(PySparkException) as error:
        spark.read.format("cassandra_cdc").options(serviceURI="x", topic="a,b", minPartitions="many").load()
    text = str(error.value)
    assert "serviceuri: is no option of cassandra_cdc; did you mean serviceUrl?" in text
    assert "serviceUrl: is missing" in text
    assert "adminUrl: is missing" in text
    assert (
        "topic: names one topic, such as 'persistent://public/default/data-shop.orders'; topics takes several" in text
    )
    assert "minPartitions: " in text


def test_positions_of_partitions_that_do_not_exist_are_refused(spark: SparkSession, data_topic: MakeTopic) -> None:
    """`startingOffsets` names each partition of the topic, and nothing else."""
    topic = data_topic(*KEY_AND_VALUE)
    with pytest.raises(PySparkException) as error:
        read(spark, topic.options, startingOffsets='{"nosuch": "1:2"}').collect()
    assert "startingOffsets: names 'nosuch', which is no partition of the topic" in str(error.value)
    assert f"startingOffsets: says nothing about '{topic.name}'" in str(error.value)


def test_a_missing_topic_is_named_and_not_created(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Looking for a topic must not make one, although the broker allows auto-creation."""
    topic = data_topic(*KEY_AND_VALUE)
    missing = topic.name + "-missing"
    for _ in range(2):
        with pytest.raises(PySparkException) as error:
            read(spark, {**topic.options, "topic": missing}).collect()
        assert f"topic {missing}: does not exist" in str(error.value)
    assert topic.admin.get(f"/{missing.replace('://', '/')}/partitions").status_code == httpx.codes.NOT_FOUND


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def test_an_admin_service_that_is_down_is_named_soon(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Nobody listens at adminUrl: one line with the address, within seconds."""
    topic = data_topic(*KEY_AND_VALUE)
    url = f"http://127.0.0.1:{free_port()}"
    started = time.monotonic()
    with pytest.raises(PySparkException) as error:
        read(spark, {**topic.options, "adminUrl": url}).collect()
    assert f"Pulsar at {url}: the admin service does not answer" in str(error.value)
    assert "check the option adminUrl" in str(error.value)
    assert time.monotonic() - started < 20


def test_a_broker_that_is_down_is_named_with_topic_and_position(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Nobody listens at serviceUrl: the task ends within `operationTimeoutSeconds`."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 1))
    url = f"pulsar://127.0.0.1:{free_port()}"
    started = time.monotonic()
    with pytest.raises(PySparkException) as error:
        read(spark, {**topic.options, "serviceUrl": url}, operationTimeoutSeconds="2").collect()
    expected = f"topic partition {topic.name} after position -1:-1: the broker at {url} gives no reader"
    assert expected in str(error.value)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("key", ["user 1", "клиент"])
def test_a_topic_of_other_messages_is_refused(
    spark: SparkSession, data_topic: MakeTopic, pulsar: PulsarServer, key: str
) -> None:
    """A message whose key is no base64 was not written by the connector."""
    topic = data_topic(*KEY_AND_VALUE)
    client = pulsar_client.Client(
        pulsar.service_url, logger=pulsar_client.ConsoleLogger(pulsar_client.LoggerLevel.Error)
    )
    client.create_producer(topic.name).send(b"{}", partition_key=key)
    client.close()
    with pytest.raises(PySparkException) as error:
        read(spark, topic.options).collect()
    assert "has a key that is not base64: this is no topic of KEY_VALUE SEPARATED records" in str(error.value)


@pytest.mark.parametrize(
    ("plugin", "params"),
    [
        (TOKEN_PLUGIN, "token:tell-nobody"),
        (
            OAUTH2_PLUGIN,
            '{"issuer_url": "http://127.0.0.1:1", "private_key": "data:application/json;base64,tell-nobody"}',
        ),
    ],
)
def test_secrets_do_not_show_in_plans_or_errors(
    spark: SparkSession, data_topic: MakeTopic, plugin: str, params: str
) -> None:
    """The options travel with the query, but what `explain` and an error print does not hold the token, or the key."""
    topic = data_topic(*KEY_AND_VALUE)
    secret = {"authPluginClassName": plugin, "authParams": params}
    frame = read(spark, topic.options, **secret)
    assert "tell-nobody" not in frame._jdf.queryExecution().toString()
    with pytest.raises(PySparkException) as error:
        read(spark, {**topic.options, "adminUrl": "nowhere"}, **secret).collect()
    assert "adminUrl" in str(error.value)
    assert "tell-nobody" not in str(error.value)


def test_the_session_builder_fetches_spark_avro_where_no_jar_is_given() -> None:
    """Users need no path: Spark resolves the package itself."""
    settings = session_builder()._options
    assert settings["spark.jars.packages"] == "org.apache.spark:spark-avro_2.13:4.1.1"
    assert CassandraCdcDataSource.name() == "cassandra_cdc"
