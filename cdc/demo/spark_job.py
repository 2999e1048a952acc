"""The demo's Spark job, a process of its own: prints each table and its newest changes, and compares every row.

    python -m cdc.demo.spark_job JOB.json RESULT.json

Both files are described in `cdc.demo.job`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
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
        # short work on a small machine: the best compiler would cost more than it gives
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark_bridge.register(spark)
    return spark


def _show_changes(changes: DataFrame, key: Sequence[str]) -> None:
    """The newest changes: what happened, when, to which row, and its columns as JSON."""
    columns = [
        F.col("op"),
        F.timestamp_micros("writetime").alias("written"),
        *[F.col("key").getField(name).alias(name) for name in key],
        F.to_json("value").alias("row"),
    ]
    changes.orderBy(F.col("writetime").desc()).select(*columns).show(_SHOWN_ROWS, truncate=_SHOWN_CHARACTERS)


def _compare(spark: SparkSession, job: Job, each: TableJob) -> TableResult:
    options = {"serviceUrl": job["service_url"], "adminUrl": job["admin_url"], "topic": each["topic"]}
    name = f"{each['keyspace']}.{each['table']}"
    changes = spark_bridge.changes(spark, options).cache()
    current = spark_bridge.current_table(spark, options).cache()
    print(f"\n== {name}: the table now ({current.count():,} rows, the first {_SHOWN_ROWS})")
    current.orderBy(*each["key"]).show(_SHOWN_ROWS, truncate=_SHOWN_CHARACTERS)
    print(f"== {name}: the newest of {changes.count():,} records")
    _show_changes(changes, each["key"])
    with connect(job["cassandra_address"], job["cassandra_port"]) as session:
        cassandra: list[Mapping[str, object]] = list(session.execute(f"SELECT * FROM {name}"))
    rows = [row.asDict(recursive=True) for row in current.collect()]
    return {
        "table": name,
        "rows": len(rows),
        "records": changes.count(),
        "differences": differences(name, each["key"], cassandra, rows),
    }


def main(job_file: Path, result_file: Path) -> None:
    """Run the job."""
    job: Job = json.loads(job_file.read_text())
    spark = local_session([Path(jar) for jar in job["jars"]])
    results = [_compare(spark, job, each) for each in job["tables"]]
    result_file.write_text(json.dumps(results))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
