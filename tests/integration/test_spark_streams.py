"""The data source `cassandra_cdc` as a stream: checkpoints, failed micro-batches, growing topics, a killed broker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from cdc.sandbox import Sandbox, SandboxOptions
from tests.fixtures.spark import MakeTopic, RecordWriter, keep_everything
from tests.spark.streams import run_to_its_end, started
from tests.topics.numbered_records import KEY_AND_VALUE, names, numbered

pytestmark = pytest.mark.spark_line(">=4.1")


def run_to_the_end(spark: SparkSession, options: Mapping[str, str], folder: Path, **more: str) -> None:
    """Run a streaming query once over all records, and write them to parquet files."""
    frame = spark.readStream.format("cassandra_cdc").options(**options, **more).load()
    stream = frame.writeStream.format("parquet").option("path", str(folder / "rows"))
    run_to_its_end(stream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True))


def test_a_stream_goes_on_where_its_checkpoint_ends(spark: SparkSession, data_topic: MakeTopic, tmp_path: Path) -> None:
    """The query is stopped and started again after more writes: no record is repeated or left out."""
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
    """`latest` is resolved once: records that are written while the query is down are read after its restart."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 3))
    run_to_the_end(spark, topic.options, tmp_path, startingOffsets="latest")
    topic.write(*numbered(4, 5))
    run_to_the_end(spark, topic.options, tmp_path, startingOffsets="latest")
    assert names(spark.read.parquet(str(tmp_path / "rows"))) == ["row 4", "row 5"]


def test_a_failed_micro_batch_is_read_again_as_it_was(
    spark: SparkSession, data_topic: MakeTopic, tmp_path: Path
) -> None:
    """The sink fails, more is written, and the query restarts: the same batch comes first, then the new records."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 6), batch=2)
    batches: list[tuple[int, list[str]]] = []

    def sink(frame: DataFrame, batch: int) -> None:
        batches.append((batch, names(frame)))
        if len(batches) == 1:
            raise OSError("the sink is full")

    def run() -> None:
        frame = spark.readStream.format("cassandra_cdc").options(**topic.options).load()
        stream = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
        run_to_its_end(stream.trigger(availableNow=True))

    with pytest.raises(PySparkException, match="the sink is full"):
        run()
    topic.write(*numbered(7, 8))
    run()  # The failed batch, from the checkpoint.
    run()  # The records since then.
    first = [f"row {n}" for n in range(1, 7)]
    assert batches == [(0, first), (0, first), (1, ["row 7", "row 8"])]


def test_a_stream_follows_the_topic(spark: SparkSession, data_topic: MakeTopic) -> None:
    """A running query reads new records, and partitions that are added to the topic."""
    topic = data_topic(*KEY_AND_VALUE, partitions=1)
    frame = spark.readStream.format("cassandra_cdc").options(**topic.options).load()
    stream = frame.writeStream.format("memory").queryName("followed")
    query = started(stream.trigger(processingTime="100 milliseconds"))
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
    """Pulsar is killed under a query and restarted: the query continues, and neither repeats nor omits a record."""
    with Sandbox(SandboxOptions(nodes=0)) as sandbox:
        server = sandbox.pulsar
        keep_everything(server, "public/spark")
        options = {"serviceUrl": server.service_url, "adminUrl": server.admin_url, "topic": "public/spark/data"}
        options["operationTimeoutSeconds"] = "1200"  # a loaded machine may take minutes to start Pulsar
        writer = RecordWriter(server.service_url, record_writer_process.classes)
        writer.write("public/spark/data", *KEY_AND_VALUE, numbered(1, 10), batch=4)
        frame = spark.readStream.format("cassandra_cdc").options(**options).load()
        stream = frame.writeStream.format("memory").queryName("survived")
        query = started(stream.trigger(processingTime="100 milliseconds"))
        server.kill()
        time.sleep(1)
        server.start()
        writer.write("public/spark/data", *KEY_AND_VALUE, numbered(11, 30), batch=4)
        writer.close()
        query.processAllAvailable()
        query.stop()
    assert sorted(names(spark.table("survived"))) == sorted(f"row {n}" for n in range(1, 31))
