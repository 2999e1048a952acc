"""Spark drivers that are killed on purpose: processes of their own, started by tests with JSON arguments.

`stream` reads a topic into parquet files on two executors. In its first micro-batch a task fails once and an executor is
killed; in its second the driver is killed after the sink has written and before Spark has noted it. `backfill` is killed
when its first ranges are finished.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_bridge import raw_stream, session_builder
from spark_bridge.jobs.backfill import backfill
from spark_bridge.jobs.cassandra_rows import CassandraAccess

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
    """A sink that is idempotent by the micro-batch's number."""
    batch.select("key", "value", "message_id").write.mode("overwrite").parquet(f"{folder}/rows/{number}")


def stream(spark: SparkSession, options: Mapping[str, str], folder: str) -> None:
    """See above; never returns."""

    def failing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch  # the task has given rows when it is lost
            _once(folder, "task failed", _fail)
            _once(folder, "executor killed", _kill_executor)

    def write(batch: DataFrame, number: int) -> None:
        write_batch(batch.mapInArrow(failing, batch.schema), number, folder)
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    query = raw_stream(spark, options).writeStream.foreachBatch(write)
    query.option("checkpointLocation", f"{folder}/checkpoint").trigger(
        processingTime="0 seconds"
    ).start().awaitTermination()


def backfill_and_die(
    spark: SparkSession,
    options: Mapping[str, str],
    address: str,
    port: int,
    keyspace: str,
    table: str,
    progress_file: str,
) -> None:
    """See above; never returns."""

    def die(done: int, ranges: int, rows: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    access = CassandraAccess(contact_points=(address,), port=port, consistency="ONE")
    backfill(spark, options, access, keyspace, table, ranges=4, progress_file=progress_file, on_progress=die)


def _once(folder: str, what: str, action: object) -> None:
    """Whoever makes the file does it."""
    try:
        Path(folder, what).touch(exist_ok=False)
    except FileExistsError:
        return
    assert callable(action)
    action()


def _fail() -> None:
    raise OSError("a task that fails once")


def _kill_executor() -> None:
    """This is a worker of a daemon of an executor's JVM, or the daemon's place is taken by the JVM itself."""
    daemon = os.getppid()
    executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(executor, signal.SIGKILL)


def _main(what: str, master: str, jars: Sequence[str], arguments: Mapping[str, object]) -> None:
    builder = session_builder([Path(each) for each in jars]).master(master)
    for name, value in DRIVER_SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if what == "stream":
        stream(spark, **arguments)  # type: ignore[arg-type]
    else:
        backfill_and_die(spark, **arguments)  # type: ignore[arg-type]


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4]))
