"""Spark drivers that are killed on purpose. Tests start them as processes with JSON arguments.

`stream` reads a topic to parquet files on two executors. In its first micro-batch, a task fails once and an executor is
killed. In its second, the driver is killed after the sink has written and before Spark has committed the micro-batch.
`backfill` is killed when its first ranges are finished, `publish` when its first records are stored. `resync` is killed
between two of its steps.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_bridge import raw_stream, session_builder
from spark_bridge.jobs.backfill import backfill
from spark_bridge.jobs.cassandra_rows import CassandraAccess
from spark_bridge.jobs.publish import publish, topic_beside
from spark_bridge.jobs.publish_sender import SENT
from spark_bridge.jobs.publish_state import Kind
from spark_bridge.jobs.repair import RepairTarget
from spark_bridge.jobs.resync import resync
from spark_bridge.topics.gaps import GapsTopic
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.publish_admin import PublishAdmin
from tests.spark.streams import started
from tests.topics.events_topic import wait_until

Work = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
DRIVER_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.memory": "768m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}


def write_batch(batch: DataFrame, number: int, folder: str) -> None:
    """Write a micro-batch to a folder with its number, so that a repetition overwrites it."""
    batch.select("key", "value", "message_id").write.mode("overwrite").parquet(f"{folder}/rows/{number}")


def stream(spark: SparkSession, options: Mapping[str, str], folder: str) -> None:
    """Run `stream` as described above. It never returns."""

    def failing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch  # the task has already returned rows when it fails
            _once(folder, "task failed", _fail)
            _once(folder, "executor killed", _kill_executor)

    def write(batch: DataFrame, number: int) -> None:
        write_batch(batch.mapInArrow(failing, batch.schema), number, folder)
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    query = raw_stream(spark, options).writeStream.foreachBatch(write)
    started(query.option("checkpointLocation", f"{folder}/checkpoint").trigger(processingTime="0 seconds"))


def backfill_and_die(
    spark: SparkSession,
    options: Mapping[str, str],
    address: str,
    port: int,
    keyspace: str,
    table: str,
    progress_file: str,
) -> None:
    """Run `backfill` as described above. It never returns."""

    def die(done: int, ranges: int, rows: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    access = CassandraAccess(contact_points=(address,), port=port, consistency="ONE")
    backfill(spark, options, access, keyspace, table, ranges=4, progress_file=progress_file, on_progress=die)


def publish_and_die(spark: SparkSession, options: Mapping[str, str], target: str, kind: Kind, rows: int) -> None:
    """Publish, and kill the driver when a producer was given `rows` records and the broker has stored some of them.

    It never returns. The worker that kills the driver then waits to be killed itself.
    """
    kind_of_frame = type(spark.range(0))
    driver, map_in_arrow = os.getpid(), kind_of_frame.mapInArrow

    def dying(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = 0
        for batch in batches:
            for at in range(0, batch.num_rows, 10):
                if given >= rows:
                    _wait_for_a_record(options, kind)
                    os.kill(driver, signal.SIGKILL)
                    signal.pause()
                piece = batch.slice(at, 10)
                given += piece.num_rows
                yield piece

    def map_some(self: DataFrame, work: Work, schema: str) -> DataFrame:
        return map_in_arrow(self, lambda batches: work(dying(batches)) if schema == SENT else work(batches), schema)

    kind_of_frame.mapInArrow = map_some  # type: ignore[method-assign, assignment]
    publish(spark, options, target, {kind: None})


def _wait_for_a_record(options: Mapping[str, str], kind: Kind) -> None:
    """Wait until the broker has stored a record of the published topic."""
    parsed = BridgeOptions.from_mapping(options)
    with PublishAdmin(parsed) as admin:
        partitions = admin.partitions_of(topic_beside(parsed.only_topic, kind))
        wait_until(lambda: any(admin.last_position(each).entry >= 0 for each in partitions), "a record is stored")


def resync_and_die(
    spark: SparkSession, options: Mapping[str, str], address: str, port: int, table: str, before: str
) -> None:
    """Run resync, and kill it before the rows that differ are sent (`before="sending"`), or before the gap is closed.

    It never returns.
    """

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if before == "sending":
        RepairTarget.send = die  # type: ignore[method-assign, assignment]
    else:
        GapsTopic.close = die  # type: ignore[method-assign]
    access = CassandraAccess(contact_points=(address,), port=port, consistency="ONE")
    resync(spark, options, access, tables=[table], ranges=2)


def _once(folder: str, what: str, action: object) -> None:
    """Do the action once for all processes: only the process that creates the file does it."""
    try:
        Path(folder, what).touch(exist_ok=False)
    except FileExistsError:
        return
    assert callable(action)
    action()


def _fail() -> None:
    raise OSError("a task that fails once")


def _kill_executor() -> None:
    """Kill the grandparent of this process: it is a worker of a Python daemon, whose parent is the executor's JVM."""
    daemon = os.getppid()
    executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(executor, signal.SIGKILL)


def _main(what: str, master: str, jars: Sequence[str], arguments: Mapping[str, object]) -> None:
    builder = session_builder([Path(each) for each in jars], delta=what == "publish").master(master)
    for name, value in DRIVER_SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if what == "stream":
        stream(spark, **arguments)  # type: ignore[arg-type]
    elif what == "publish":
        publish_and_die(spark, **arguments)  # type: ignore[arg-type]
    elif what == "resync":
        resync_and_die(spark, **arguments)  # type: ignore[arg-type]
    else:
        backfill_and_die(spark, **arguments)  # type: ignore[arg-type]


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4]))
