"""The driver of the test on a standalone cluster: it runs every job of the bridge once, and a worker dies in the first.

    python -m tests.spark.cluster_driver ARGUMENTS.json

The arguments: `master`, `jars`, `answer` (the file for the results as JSON), `options` of the data topic, `target` of
the mirror, `victim` (the worker's process id), `archive` with its `archived_table` and the `moment_us` to show,
`events_prefix`, and Cassandra's table: `address`, `port`, `keyspace`, `table`.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession

from spark_bridge import as_of, current_table, fresh_table, session_builder
from spark_bridge.jobs.backfill import backfill
from spark_bridge.jobs.cassandra_rows import CassandraAccess
from spark_bridge.jobs.mirror import mirror
from spark_bridge.jobs.mirror_state import MirrorTables
from spark_bridge.jobs.publish import publish
from spark_bridge.jobs.resync import Outcome, resync
from spark_bridge.jobs.verify import verify
from tests.spark.kill_driver import DRIVER_SETTINGS

_LOOK_S = 0.01
_JOBS_BEFORE = 3


@dataclass
class WorkerKill:
    """Kills a worker with its executors while tasks of the mirror run."""

    spark: SparkSession
    victim: int
    active_tasks: int = 0

    def run(self) -> None:
        """Wait until some jobs are over and a stage has running tasks, then kill."""
        tracker = self.spark.sparkContext.statusTracker()
        while True:
            jobs = tracker.getActiveJobsIds()
            stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
            active = sum(each.numActiveTasks for each in stages if each is not None)
            if jobs and max(jobs) >= _JOBS_BEFORE and active:
                self.active_tasks = active
                worker = psutil.Process(self.victim)
                for each in (worker, *worker.children(recursive=True)):
                    each.kill()
                return
            time.sleep(_LOOK_S)


def _lines(rows: DataFrame) -> list[str]:
    own = [name for name in rows.columns if name.startswith("_cdc")]
    return sorted(row.line for row in rows.drop(*own).selectExpr("to_json(struct(*)) AS line").collect())


def run_all(spark: SparkSession, given: Mapping[str, Any]) -> dict[str, object]:
    """Run the jobs one after the other, and return the results of each."""
    options, target = given["options"], given["target"]
    access = CassandraAccess(contact_points=(given["address"],), port=given["port"], consistency="ONE")
    kill = WorkerKill(spark, given["victim"])
    killer = threading.Thread(target=kill.run, daemon=True)
    killer.start()
    mirrored = mirror(spark, options, target, changelog=True, history=True)
    killed_within = not killer.is_alive()
    tables = MirrorTables(spark, target)
    found = {each: getattr(tables, each).read() for each in ("rows", "changes", "history")}
    archived = {"archiveUrl": given["archive"], "table": given["archived_table"]}
    prefix = given["events_prefix"]
    sent = backfill(spark, options, access, given["keyspace"], given["table"], ranges=4, events_prefix=prefix)
    compared = verify(spark, options, access, given["keyspace"], given["table"], mirror_target=target, settle_s=0)
    published = publish(spark, options, target, {"rows": None, "changes": None})
    # No connector runs, so the gap stays open although the executors have sent the rows.
    healed = resync(spark, {**options, "eventsTopicPrefix": prefix}, access, connector_timeout_s=1)
    return {
        "killed_within": killed_within,
        "active_tasks": kill.active_tasks,
        "records": mirrored.records,
        "rows": _lines(found["rows"]),
        "changes": found["changes"].count(),
        "open_versions": found["history"].where("valid_to IS NULL").count(),
        "current": _lines(current_table(spark, options)),
        "fresh": _lines(fresh_table(spark, options, target)),
        "as_of": _lines(as_of(spark, archived, given["moment_us"], partial=True)),
        "sent": sent.rows,
        "compared": compared.rows,
        "published": list(published.records.values()),
        "left_open": [each.reason for each in healed.tables if each.outcome is Outcome.LEFT_OPEN],
        "differences": [asdict(each) for each in compared.differences],
    }


def main(arguments_file: Path) -> None:
    """Run all jobs, and write the results."""
    given = json.loads(arguments_file.read_text())
    builder = session_builder([Path(each) for each in given["jars"]], delta=True).master(given["master"])
    for name, value in DRIVER_SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    Path(given["answer"]).write_text(json.dumps(run_all(spark, given)))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
