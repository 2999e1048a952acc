"""The demo's Spark job, in a separate process: prints each table and its newest changes, and compares every row.

    python -m cdc.demo.spark_job JOB.json RESULT.json

`cdc.demo.job` describes both files. The process opens its session at once, and reads when its standard input ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

import spark_bridge
from cdc.demo.comparison import differences
from cdc.demo.job import Job, TableJob, TableResult
from cdc.demo.line import connect

__all__ = ["local_session"]

_SHOWN_ROWS: Final = 5
_SHOWN_CHARACTERS: Final = 36


def local_session(jars: Sequence[Path]) -> SparkSession:
    """A session on this machine's loopback address that reads data topics."""
    spark = (
        spark_bridge.session_builder(jars)
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # the job is short: Java's best compiler would take more time than it saves
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        # as for a mirror's small micro-batches: Spark's preparations would take more time than the work
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark_bridge.register(spark)
    return spark


def _show_changes(changes: DataFrame, key: Sequence[str]) -> None:
    """Print the newest changes: operation, time, key, and the row as JSON."""
    columns = [
        F.col("op"),
        F.timestamp_micros("writetime").alias("written"),
        *[F.col("key").getField(name).alias(name) for name in key],
        F.to_json("value").alias("row"),
    ]
    changes.orderBy(F.col("writetime").desc()).select(*columns).show(_SHOWN_ROWS, truncate=_SHOWN_CHARACTERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """One table as read by Spark: its records and its rows, both cached in memory, and their numbers."""

    table: TableJob
    changes: DataFrame
    current: DataFrame
    records: int
    rows: int


def _read(spark: SparkSession, job: Job, table: TableJob) -> _Read:
    options = {"serviceUrl": job["service_url"], "adminUrl": job["admin_url"], "topic": table["topic"]}
    changes = spark_bridge.changes(spark, options).cache()
    current = spark_bridge.current_table(spark, options).cache()
    return _Read(table=table, changes=changes, current=current, records=changes.count(), rows=current.count())


def _compare(job: Job, read: _Read) -> TableResult:
    key = read.table["key"]
    name = f"{read.table['keyspace']}.{read.table['table']}"
    print(f"\n== {name}: the table now ({read.rows:,} rows, the first {_SHOWN_ROWS})")
    read.current.orderBy(*key).show(_SHOWN_ROWS, truncate=_SHOWN_CHARACTERS)
    print(f"== {name}: the newest of {read.records:,} records")
    _show_changes(read.changes, key)
    with connect(job["cassandra_address"], job["cassandra_port"]) as session:
        cassandra: list[Mapping[str, object]] = list(session.execute(f"SELECT * FROM {name}"))
    rows = [row.asDict(recursive=True) for row in read.current.collect()]
    return {
        "table": name,
        "rows": len(rows),
        "records": read.records,
        "differences": differences(name, key, cassandra, rows),
    }


def main(job_file: Path, result_file: Path) -> None:
    """Run the job."""
    job: Job = json.loads(job_file.read_text())
    spark = local_session([Path(jar) for jar in job["jars"]])
    sys.stdin.read()
    # A small table needs most of its time for planning and compiling in one thread, so the tables are read in parallel.
    with ThreadPoolExecutor() as pool:
        tables = list(pool.map(partial(_read, spark, job), job["tables"]))
    result_file.write_text(json.dumps([_compare(job, each) for each in tables]))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
