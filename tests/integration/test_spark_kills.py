"""Streams whose tasks, executors and drivers die inside a micro-batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_bridge import raw_stream
from tests.fixtures.spark import MakeTopic, Record, killed_driver
from tests.fixtures.spark_cluster import SparkCluster
from tests.spark.kill_driver import write_batch
from tests.spark.streams import started
from tests.topics.numbered_records import KEY_AND_VALUE

pytestmark = pytest.mark.spark_line(">=4.1")


def ids(spark: SparkSession, folder: str, batch: str) -> list[str]:
    return sorted(row.message_id for row in spark.read.parquet(f"{folder}/rows/{batch}").collect())


@pytest.mark.extended
def test_no_record_is_lost_or_doubled_when_a_task_an_executor_and_the_driver_die(
    spark: SparkSession, spark_cluster: SparkCluster, data_topic: MakeTopic, tmp_path: Path
) -> None:
    """A task fails and an executor is killed in the first micro-batch, and the driver is killed in the second; another
    driver runs the third one."""
    topic = data_topic(*KEY_AND_VALUE)
    written = topic.write(*[Record(key={"id": n}, value={"name": f"row {n}"}) for n in range(300)], batch=10)
    folder = str(tmp_path)
    options = {
        **topic.options,
        "maxRowsPerTrigger": "100",
        "minPartitions": "2",
        "checkpointLocation": f"{folder}/checkpoint",
    }
    arguments = {"options": options, "folder": folder}
    assert killed_driver("stream", spark_cluster.master, arguments, tmp_path / "spark") == -9
    assert sorted(each.name for each in tmp_path.glob("* *")) == ["executor killed", "task failed"]
    assert ids(spark, folder, "0") == sorted(written[:100])
    topic.write(Record(key={"id": 300}, value={"name": "after the kill"}))
    stream = raw_stream(spark, options).writeStream.foreachBatch(lambda batch, at: write_batch(batch, at, folder))
    started(stream.option("checkpointLocation", f"{folder}/checkpoint")).stop()
    assert ids(spark, folder, "1") == sorted(written[100:200])
    rows = spark.read.parquet(f"{folder}/rows/*").collect()
    assert len(rows) == len({row.message_id for row in rows}) == 301
    names = sorted(bytes(row.value)[2:].decode() for row in rows)
    assert names == sorted([*[f"row {n}" for n in range(300)], "after the kill"])
