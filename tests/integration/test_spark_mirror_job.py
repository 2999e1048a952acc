"""The job `mirror` on real topics: its rows equal the current table, and change log and history agree with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from tests.fixtures.mirror import Mirror, MirrorOf
from tests.fixtures.spark import MakeTopic, Record
from tests.topics.table_records import PLAIN, WIDE, partition_deletion, range_deletion, row, row_deletion, static_row

# Spark plans dozens of small jobs for a micro-batch, which take minutes on a busy machine and seconds on an idle one.
pytestmark = [pytest.mark.timeout(1_500), pytest.mark.spark_line(">=4.1")]

_FEW_PIECES = 25
"""Limit of code fragments that Spark compiles for one micro-batch only, because they hold the epoch and the time. A
micro-batch has some 200 fragments in all."""


def said(time_us: int) -> Mapping[str, str]:
    return {"writetime": str(time_us)}


def test_a_mirror_follows_what_happens_to_rows(spark: SparkSession, data_topic: MakeTopic, tmp_path: Path) -> None:
    """Rows by key; the change log distinguishes inserts, updates and deletes, with both images and times.

    A change log and a history that are switched on later begin with the rows of the mirror. Records without a write
    time use their publish time, and their versions are closed: within a micro-batch, in a later one, and where the
    history begins later. Only Spark can read the target: Hadoop's ViewFs stands for s3a:// without s3fs, and Python
    cannot read the checkpoint.
    """
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.viewfs.mounttable.only-spark.link./lake", tmp_path.as_uri())
    topic = data_topic(*PLAIN)
    kept = Mirror(spark, topic, tmp_path / "mirror", {}, target="viewfs://only-spark/lake/mirror")
    topic.write(
        Record(key={"id": 10}, value={"name": "a"}),
        Record(key={"id": 20}, value={"name": "there before"}, properties=said(1)),
    )
    first = kept.run(changelog=False, history=False)
    assert (first.batches, first.records, first.inserted, first.updated, first.deleted) == (1, 2, 2, 0, 0)
    topic.write(
        Record(key={"id": 1}, value={"name": "a"}, properties=said(10)),
        Record(key={"id": 2}, value={"name": "b"}, properties=said(11)),
        Record(key={"id": 3}, properties=said(12)),
        Record(key={"id": 10}, value={"name": "b"}),
        Record(key={"id": 10}, value={"name": "c"}),
    )
    second = kept.run()
    assert (second.batches, second.records, second.inserted, second.updated, second.deleted) == (1, 5, 2, 1, 0)
    topic.write(
        Record(key={"id": 1}, value={"name": "a2"}, properties=said(20)),
        Record(key={"id": 2}, properties=said(21)),
        Record(key={"id": 4}, value={"name": "d"}, properties=said(22)),
        Record(key={"id": 4}, properties=said(23)),
        Record(key={"id": 10}, value={"name": "d"}),
    )
    third = kept.run()
    assert (third.batches, third.records, third.inserted, third.updated, third.deleted) == (1, 5, 0, 2, 1)
    rows = ['{"id":1,"name":"a2"}', '{"id":10,"name":"d"}', '{"id":20,"name":"there before"}']
    assert kept.replayed() == kept.open_versions() == kept.rows() == kept.wanted() == rows
    log = kept.table("changes").selectExpr(
        "coalesce(after.id, before.id) id", "op", "before.name", "after.name", "writetime"
    )
    told = [tuple(each) for each in log.orderBy("epoch", "step").collect()]
    assert sorted((each[1:] for each in told if each[0] < 10), key=lambda each: each[3]) == [
        ("insert", None, "a", 10),
        ("insert", None, "b", 11),
        ("update", "a", "a2", 20),
        ("delete", "b", None, 21),
        ("insert", None, "d", 22),
        ("delete", "d", None, 23),
    ]
    assert [each[1:4] for each in told if each[0] == 10] == [
        ("insert", None, "a"),
        ("update", "a", "b"),
        ("update", "b", "c"),
        ("update", "c", "d"),
    ]
    found = [tuple(each) for each in kept.table("history").select("id", "name", "valid_from", "valid_to").collect()]
    assert sorted((each for each in found if each[0] != 10), key=str) == [
        (1, "a", 10, 20),
        (1, "a2", 20, None),
        (2, "b", 11, 21),
        (20, "there before", 1, None),
        (4, "d", 22, 23),
    ]
    # Two changes have the same time, and they come in this order.
    closed = (each[1:] for each in found if each[0] == 10 and each[3] is not None)
    versions = sorted(closed, key=lambda each: each[1:])
    assert [each[0] for each in versions] == ["a", "b", "c"]
    assert all(since <= until for _, since, until in versions)
    again = kept.run()
    assert (again.records, again.inserted, again.updated, again.deleted) == (0, 0, 0, 0)


def test_every_record_of_a_micro_batch_is_a_change(mirror_of: MirrorOf, data_topic: MakeTopic) -> None:
    """Changes of one row in a micro-batch are logged separately: its own, those of static columns, and markers.

    A change log and a history that are switched on later begin with the rows of the mirror.
    """
    topic = data_topic(*WIDE)
    kept = mirror_of(topic)
    topic.write(row("p", 1, "x", 1, s="s"))
    kept.run(changelog=False, history=False)
    topic.write(
        row("p", 1, "x", 2, s="s"),
        row("p", 1, "x", 3, s="s"),
        row("p", 2, "x", 9, s="s"),
        static_row("p", s="s2"),
        row_deletion("p", 2, "x"),
        range_deletion("p", start={"a": 1}),
        row("p", 1, "x", 4, s="s2"),
        partition_deletion("p"),
        row("p", 1, "x", 5),
    )
    summary = kept.run()
    assert (summary.records, summary.inserted, summary.updated, summary.deleted) == (9, 0, 1, 0)
    log = kept.table("changes").selectExpr(
        "coalesce(after.a, before.a) a", "epoch", "step", "op", "before.v", "before.s", "after.v", "after.s"
    )
    assert [tuple(each)[3:] for each in log.where("a = 1").orderBy("epoch", "step").collect()] == [
        ("insert", None, None, 1, "s"),
        ("update", 1, "s", 2, "s"),
        ("update", 2, "s", 3, "s"),
        ("update", 3, "s", 3, "s2"),
        ("delete", 3, "s2", None, None),
        ("insert", None, None, 4, "s2"),
        ("delete", 4, "s2", None, None),
        ("insert", None, None, 5, None),
    ]
    assert [tuple(each)[3:] for each in log.where("a = 2").orderBy("epoch", "step").collect()] == [
        ("insert", None, None, 9, "s"),
        ("update", 9, "s", 9, "s2"),
        ("delete", 9, "s2", None, None),
    ]
    versions = kept.table("history").select("a", "v", "s", F.isnull("valid_to")).collect()
    assert sorted(map(tuple, versions), key=str) == [
        (1, 1, "s", False),
        (1, 2, "s", False),
        (1, 3, "s", False),
        (1, 3, "s2", False),
        (1, 4, "s2", False),
        (1, 5, None, True),
        (2, 9, "s", False),
        (2, 9, "s2", False),
    ]
    assert kept.replayed() == kept.open_versions() == kept.rows() == kept.wanted()


def test_a_limit_cuts_a_backlog_into_micro_batches(mirror_of: MirrorOf, data_topic: MakeTopic) -> None:
    """One run processes all micro-batches, and the rows equal those of the whole topic.

    A micro-batch uses the code that Spark compiled for the previous one.
    """
    topic = data_topic(*PLAIN)
    topic.write(*[Record(key={"id": n % 4}, value={"name": f"row {n}"}) for n in range(12)], batch=2)
    kept = mirror_of(topic, maxRowsPerTrigger="5")
    codegen = kept.spark.sparkContext._jvm.org.apache.spark.metrics.source.CodegenMetrics
    compiled: list[int] = []
    summary = kept.run(on_batch=lambda _: compiled.append(codegen.METRIC_COMPILATION_TIME().getCount()))
    assert (summary.batches, summary.records) == (3, 12)
    assert kept.rows() == kept.wanted()
    assert compiled[2] - compiled[1] < _FEW_PIECES
