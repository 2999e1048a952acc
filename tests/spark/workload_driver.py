"""The driver of the Spark workload test: one process that updates a mirror, a change log and a history of every table.

    python -m tests.spark.workload_driver JOB.json follow | rounds | once | fresh [TABLE]

JOB.json has `jars`, `target`, and `tables`, the options of the reader by table. With `follow` it runs until it is
killed, with all tables at the same time. With `rounds` it also runs until it is killed, but one table after the other,
in large micro-batches. With `once` it ends at the current end of the topics. TABLE is the first table. With `fresh`
it writes `fresh_table` of TABLE to the Parquet files `TARGET-fresh`, and does not change the mirror.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from spark_bridge import fresh_table, session_builder
from spark_bridge.jobs.mirror import mirror
from tests.spark.settings import SETTINGS

_INTERVAL_S = 5
_AFTER_S = 60
"""A mirror starts after the first micro-batch of the one before it, or after this time. Starting all at once is
slow."""


def _follow(spark: SparkSession, options: Mapping[str, str], target: str, applied: threading.Event) -> None:
    try:
        mirror(
            spark,
            options,
            target,
            changelog=True,
            history=True,
            follow_interval_s=_INTERVAL_S,
            on_batch=lambda _: applied.set(),
        )
    except Exception:  # noqa: BLE001  (a thread's top)
        traceback.print_exc()
        os._exit(1)  # the test must see that a mirror ended


def main(job_file: Path, mode: str, first: str | None = None) -> None:
    """Run the job."""
    job = json.loads(job_file.read_text())
    tables = dict(sorted(job["tables"].items(), key=lambda each: each[0] != first))
    builder = session_builder([Path(jar) for jar in job["jars"]], delta=True).master("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    targets = {name: f"{job['target']}/{name}" for name in tables}
    if mode == "follow":
        _follow_all(spark, tables, targets)
        return
    if mode == "fresh":
        assert first is not None
        rows = fresh_table(spark, tables[first], targets[first])
        rows.write.mode("overwrite").parquet(f"{job['target']}-fresh")
        spark.stop()
        return
    while True:
        for name, options in tables.items():
            done = mirror(spark, options, targets[name], changelog=True, history=True)
            print(f"{name}: {done}", flush=True)
        if mode == "once":
            break
    spark.stop()


def _follow_all(spark: SparkSession, tables: Mapping[str, Mapping[str, str]], targets: Mapping[str, str]) -> None:
    threads: list[threading.Thread] = []
    for name, options in tables.items():
        applied = threading.Event()
        threads.append(threading.Thread(target=_follow, args=(spark, options, targets[name], applied)))
        threads[-1].start()
        applied.wait(_AFTER_S)
    for each in threads:
        each.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
