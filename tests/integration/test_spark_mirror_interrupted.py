"""A mirror whose run was stopped midway, or whose checkpoint is lost: every record is applied once."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_bridge.jobs.delta_tables import DeltaTable
from spark_bridge.jobs.iceberg_tables import IcebergTable
from spark_bridge.jobs.lake_table import TableFormat
from spark_bridge.jobs.mirror_state import MirrorTables
from spark_bridge.reading.data_source import CassandraCdcDataSource
from tests.fixtures.mirror import Mirror, MirrorOf, stopped_after
from tests.fixtures.spark import MakeTopic
from tests.topics.table_records import WIDE, partition_deletion, row, row_deletion

# Spark plans dozens of small jobs for a micro-batch, which take minutes on a busy machine and seconds on an idle one.
pytestmark = [pytest.mark.timeout(1_500), pytest.mark.spark_line(">=4.1")]


@pytest.mark.parametrize(
    ("table_format", "kind"),
    [
        ("delta", DeltaTable),
        pytest.param("iceberg", IcebergTable, marks=[pytest.mark.spark_line("==4.1"), pytest.mark.extended]),
    ],
)
def test_a_batch_that_failed_midway_is_applied_once(
    mirror_of: MirrorOf,
    data_topic: MakeTopic,
    table_format: TableFormat,
    kind: type[DeltaTable | IcebergTable],
) -> None:
    """A run that stops after any table leaves a micro-batch that the next run completes, so that every table is right.

    The first run stops after it has made the rows. The next one completes the first micro-batch and fails in the second
    one, after the history; the third one fails in it after all tables. The same holds for a checkpoint that is restored
    from an older copy after a failure. It also holds for a lost checkpoint, when the whole topic is read again with
    more records, although markers and tombstones were forgotten, and when files are compacted.
    """
    topic = data_topic(*WIDE)
    kept = mirror_of(topic)
    topic.write(*[row("p", a, "x", a, s="s") for a in range(4)])
    with stopped_after("rows", kind):
        kept.run(table_format=table_format)
    topic.write(row("p", 0, "x", 100), row_deletion("p", 3, "x"), row("q", 0, "y", 1))
    topic.write(row("r", 1, "x", 3), partition_deletion("r"))
    for stage, table in enumerate(("history", "kept")):
        with stopped_after(table, kind):
            kept.run()  # The run uses the format of the first run, which made some tables before it failed.
        assert kept.applied().epoch == 1, f"stage {stage}: the first micro-batch is finished, the second one is not"
    topic.write(row("p", 1, "x", 101), row_deletion("p", 2, "x"), row("q", 1, "y", 1))
    summary = kept.run(tombstone_retention_days=-1)
    assert (summary.batches, kept.applied().epoch) == (2, 3)
    assert isinstance(MirrorTables(kept.spark, str(kept.folder)).rows, kind)
    assert kept.kept().where("scope IN ('partition', 'range')").isEmpty()
    rows = kept.rows()
    assert [json.loads(each)["v"] for each in rows] == [100, 101, 1, 1]
    assert kept.replayed() == kept.open_versions() == rows == kept.wanted()
    checkpoint = kept.folder / "checkpoint"
    shutil.copytree(checkpoint, kept.folder / "older copy")
    topic.write(row("p", 0, "x", 7), row("s", 1, "z", 1))
    with stopped_after("history", kind):
        kept.run()
    checkpoint.rename(kept.folder / "newer one")
    (kept.folder / "older copy").rename(checkpoint)
    topic.write(row("p", 0, "x", 8), row("s", 1, "z", 2), row("s", 2, "z", 1))
    with stopped_after("kept", kind):
        kept.run()
    checkpoint.rename(kept.folder / "lost")
    summary = kept.run()
    assert (summary.records, summary.inserted, summary.updated, summary.deleted) == (5, 0, 0, 0)
    assert kept.replayed() == kept.open_versions() == kept.rows() == kept.wanted()
    written = kept.table("changes").where("epoch > 3").groupBy("epoch").count().collect()
    assert [tuple(each) for each in written] == [(5, 5)], "nothing of what could not be repeated, and nothing twice"
    topic.write(row_deletion("nobody", 1, "x"))
    summary = kept.run(compact=True)
    assert (summary.records, summary.deleted) == (1, 0)
    assert kept.replayed() == kept.open_versions() == kept.rows() == kept.wanted()


@pytest.mark.parametrize("is_moved", [False, True], ids=["another spelling", "another place"])
def test_a_batch_that_failed_midway_is_applied_once_though_the_folder_has_another_name(
    spark: SparkSession, data_topic: MakeTopic, tmp_path: Path, is_moved: bool
) -> None:
    """Delta notes the epochs that a writer has written by the writer's name, which is that of the folder."""
    topic = data_topic(*WIDE)
    folder = tmp_path / "mirror"
    kept = Mirror(spark, topic, folder, {})
    topic.write(row("p", 1, "x", 1, s="s"))
    kept.run()
    topic.write(row("p", 1, "x", 2), row("p", 2, "x", 2))
    with stopped_after("history"):
        kept.run()
    if is_moved:
        folder = folder.rename(tmp_path / "moved")
    kept = Mirror(spark, topic, folder, {}, target=str(folder) if is_moved else f"file:{folder}")
    kept.run()
    log = kept.table("changes").selectExpr("epoch", "op").orderBy("epoch", "op").collect()
    assert [tuple(each) for each in log] == [(1, "insert"), (2, "insert"), (2, "update")]
    assert kept.replayed() == kept.open_versions() == kept.rows() == kept.wanted()


def test_a_stream_whose_python_process_starts_late_is_begun_again(
    spark: SparkSession,
    mirror_of: MirrorOf,
    data_topic: MakeTopic,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark waits ten seconds for this process; without the retry, a longer busy machine would end the job."""
    topic = data_topic(*WIDE)
    topic.write(row("p", 1, "x", 1))
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(_late_python(tmp_path)))
    # A registration has the path of Python. `register` keeps the one that the session has.
    spark.dataSource.register(CassandraCdcDataSource)
    summary = mirror_of(topic).run()
    assert (summary.records, summary.inserted) == (1, 1)
    told = "a Python worker of Spark did not start in time; the micro-batch is done again (retry 1 of 9)"
    assert told in caplog.text
    monkeypatch.undo()
    spark.dataSource.register(CassandraCdcDataSource)


def _late_python(folder: Path) -> Path:
    """Write a Python launcher whose first process of a stream starts later than Spark waits."""
    late = folder / "late-python"
    late.write_text(
        f"""#!/bin/sh
case "$*" in *python_streaming_source_runner*) mkdir {folder}/first 2>/dev/null && sleep 60;; esac
exec {sys.executable} "$@"
"""
    )
    late.chmod(0o755)
    return late
