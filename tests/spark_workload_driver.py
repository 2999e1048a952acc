"""The driver of the Spark workload test: one process that keeps a mirror, a change log and a history of every table.

    python -m tests.spark_workload_driver JOB.json [follow]

JOB.json: `jars`, `target`, and `tables`, the options of the reader by table. With `follow` it runs until it is killed,
without to the end that the topics have now.
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

from spark_bridge import session_builder
from spark_bridge.jobs.mirror import mirror
from tests.spark_settings import SETTINGS

_INTERVAL_S = 5
_AFTER_S = 60
"""One mirror starts after another's first micro-batch, or so long, for the start of all at once is slow."""


def _follow(spark: SparkSession, options: Mapping[str, str], target: str, applied: threading.Event) -> None:
    try:
        mirror(
            spark, options, target, changelog=True, history=True, follow_interval_s=_INTERVAL_S,
            on_batch=lambda _: applied.set(),
        )  # fmt: skip
    except Exception:  # noqa: BLE001  (a thread's top)
        traceback.print_exc()
        os._exit(1)  # whatever ended one of them, the test is to see it


def main(job_file: Path, *, is_following: bool) -> None:
    """Run the job."""
    job = json.loads(job_file.read_text())
    builder = session_builder([Path(jar) for jar in job["jars"]], delta=True).master("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    targets = {name: f"{job['target']}/{name}" for name in job["tables"]}
    if not is_following:
        for name, options in job["tables"].items():
            mirror(spark, options, targets[name], changelog=True, history=True)
        spark.stop()
        return
    threads: list[threading.Thread] = []
    for name, options in job["tables"].items():
        applied = threading.Event()
        threads.append(threading.Thread(target=_follow, args=(spark, options, targets[name], applied)))
        threads[-1].start()
        applied.wait(_AFTER_S)
    for each in threads:
        each.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_following=sys.argv[2:] == ["follow"])
