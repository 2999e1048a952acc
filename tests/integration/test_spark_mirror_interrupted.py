"""A mirror whose run was stopped midway, or whose checkpoint is lost: every record is applied once."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from spark_bridge.jobs.delta_tables import DeltaTable
from spark_bridge.jobs.iceberg_tables import IcebergTable
from spark_bridge.jobs.lake_table import TableFormat
from spark_bridge.jobs.mirror_state import MirrorTables
from tests.fix_mirror import MirrorOf, stopped_after
from tests.fix_spark import PY4J_LEAVES_SOCKETS_OPEN, MakeTopic
from tests.table_records import WIDE, partition_deletion, row, row_deletion

# Spark plans dozens of small jobs a micro-batch: a busy machine takes minutes where a quiet one takes seconds.
pytestmark = [
    pytest.mark.filterwarnings(PY4J_LEAVES_SOCKETS_OPEN),
    pytest.mark.timeout(1_500),
    pytest.mark.spark_line(">=4.1"),
]


@pytest.mark.parametrize(
    ("table_format", "kind"),
    [("delta", DeltaTable), pytest.param("iceberg", IcebergTable, marks=pytest.mark.spark_line("==4.1"))],
)
def test_a_batch_that_failed_midway_is_applied_once(
    mirror_of: MirrorOf,
    data_topic: MakeTopic,
    table_format: TableFormat,
    kind: type[DeltaTable | IcebergTable],
) -> None:
    """Stopped after the rows were made, after the history, or all but the last table, was written; run again, every table is right.

    So it is when the checkpoint is lost and the whole topic is read again, and when many files become few.
    """
    topic = data_topic(*WIDE)
    kept = mirror_of(topic)
    topic.write(*[row("p", a, "x", a, s="s") for a in range(4)])
    with stopped_after("rows", kind):
        kept.run(table_format=table_format)
    kept.run(table_format=table_format)
    assert kept.replayed() == kept.open_versions() == kept.rows() == kept.wanted()
    assert isinstance(MirrorTables(kept.spark, str(kept.folder)).rows, kind)
    for stage, table in enumerate(("history", "records")):
        topic.write(row("p", stage, "x", 100 + stage), row_deletion("p", 3 - stage, "x"), row("q", stage, "y", 1))
        with stopped_after(table, kind):
            kept.run()
        kept.run()
        assert kept.rows() == kept.wanted()
        assert kept.replayed() == kept.open_versions() == kept.rows()
    (kept.folder / "checkpoint").rename(kept.folder / "lost")
    summary = kept.run(compact=True)
    assert (summary.inserted, summary.updated, summary.deleted) == (0, 0, 0)
    assert kept.replayed() == kept.open_versions() == kept.rows() == kept.wanted()


def test_replaying_the_whole_topic_resurrects_nothing(
    mirror_of: MirrorOf, data_topic: MakeTopic, spark: SparkSession
) -> None:
    """The checkpoint is lost and all is read again, long after tombstones were forgotten: nothing changes."""
    topic = data_topic(*WIDE)
    kept = mirror_of(topic)
    topic.write(row("p", 1, "x", 1), row("p", 2, "x", 2), row("q", 1, "x", 3), row_deletion("p", 1, "x"))
    topic.write(partition_deletion("q"))
    kept.run(tombstone_retention_days=-1)
    (kept.folder / "checkpoint").rename(kept.folder / "lost")
    summary = kept.run()
    assert (summary.inserted, summary.updated, summary.deleted) == (0, 0, 0)
    assert kept.rows() == ['{"pk":"p","a":2,"b":"x","v":2}']
