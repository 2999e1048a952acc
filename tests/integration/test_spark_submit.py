"""The jobs as an operator runs them: under a real spark-submit, following a topic."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

import cdc.spark_job
from cdc.sandbox import artifacts
from tests.fixtures.spark import DataTopic, Record, spark_command
from tests.spark.settings import SETTINGS
from tests.topics.table_records import PLAIN

# Spark starts two drivers, one after the other, which took 19 minutes on a machine with a load of 19.
pytestmark = pytest.mark.timeout(3_000)
_WITHIN_S = 900


def test_a_submitted_change_log_follows_the_topic(
    spark: SparkSession, data_topic: Callable[..., DataTopic], tmp_path: Path
) -> None:
    """`spark-submit cdc/spark_job.py changelog --follow` writes existing records, and records that come while it runs.

    Then `history` and `latest` of the same topic run in a session of their own process.
    """
    topic = data_topic(*PLAIN)
    topic.write(Record(key={"id": 1}, value={"name": "a"}))
    jars = [str(jar) for name in ("spark-avro", "spark-delta") for jar in artifacts.ensure(name)]
    settings = [part for name, value in SETTINGS.items() for part in ("--conf", f"{name}={value}")]
    submit = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[1]", "--jars", ",".join(jars)]
    url, admin = topic.options["serviceUrl"], topic.options["adminUrl"]
    job = ["changelog", "--service-url", url, "--admin-url", admin, "--topic", topic.name]
    target = tmp_path / "lake"
    log = tmp_path / "submit.log"
    command = [*submit, *settings, cdc.spark_job.__file__, *job, "--target", str(target), "--follow", "1"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
        )
    try:
        _wait_for(target, 1, process, log)
        topic.write(Record(key={"id": 1}, value={"name": "b"}), Record(key={"id": 1}), batch=2)
        _wait_for(target, 2, process, log)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    found = spark.read.format("delta").load(f"{target}/changes").orderBy("epoch", "step")
    assert [tuple(each) for each in found.selectExpr("op", "before.name", "after.name").collect()] == [
        ("insert", None, "a"),
        ("update", "a", "b"),
        ("delete", "b", None),
    ]
    assert "micro-batch: 1 record, 1 inserted, 0 updated, 0 deleted" in log.read_text()
    topic.write(Record(key={"id": 2}, value={"name": "c"}))
    where = ["--service-url", url, "--admin-url", admin, "--topic", topic.name]
    kept = spark_command(spark, "history", *where, "--target", str(target))
    # After a kill before Spark's own note of the last micro-batch, Spark repeats it, with nothing to do.
    assert kept.exit_code == 0
    assert re.match(rf"{target}/history: .* 1 row inserted, 0 updated, 0 deleted, ", kept.stdout)
    versions = spark.read.format("delta").load(f"{target}/history").selectExpr("id", "name", "valid_to IS NULL")
    assert [tuple(each) for each in versions.collect()] == [(2, "c", True)]
    for more in ([], ["--mirror", str(target)]):
        shown = spark_command(spark, "latest", *where, *more)
        assert (shown.exit_code, [json.loads(line)["name"] for line in shown.stdout.splitlines()]) == (0, ["c"])


def _wait_for(target: Path, epoch: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until this micro-batch was applied, which is its last step."""
    deadline = time.monotonic() + _WITHIN_S
    while _applied_epoch(target) < epoch:
        assert process.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.1)


def _applied_epoch(target: Path) -> int:
    states = sorted((target / "applied").glob("[0-9]*.json"), key=lambda each: int(each.stem))
    try:
        return cast("int", json.loads(states[-1].read_text())["epoch"]) if states else 0
    except FileNotFoundError:  # Two newer states have replaced this file meanwhile.
        return 0
