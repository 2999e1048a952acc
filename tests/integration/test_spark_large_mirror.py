"""A mirror whose tables count as large: few changes become deletion vectors, and kept records are looked up by key."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from benchmarks.spark_meter import Traffic
from spark_bridge.jobs import batch_session, epoch_plan
from spark_bridge.jobs.batch_session import PAGE_ROWS, fit_session, session_of_its_own
from spark_bridge.jobs.delta_tables import DeltaTable
from spark_bridge.jobs.history_table import add_versions
from spark_bridge.jobs.iceberg_tables import IcebergTable
from spark_bridge.jobs.kept_records import NOTHING_FORGOTTEN, KeptRecords
from spark_bridge.jobs.lake_table import is_listed
from spark_bridge.jobs.mirror_rows import merge_rows
from spark_bridge.rows.fold_batches import KEPT_SCHEMA
from tests.fixtures.mirror import MirrorOf
from tests.fixtures.spark import MakeTopic
from tests.topics.table_records import WIDE, partition_deletion, row, row_deletion, static_row

pytestmark = [pytest.mark.timeout(1_500), pytest.mark.spark_line(">=4.1")]

# Keys and owners with characters that SQL must quote.
_NAMES = ("it's", "back\\slash", "both'\\", '"', "plain")


@pytest.mark.parametrize("keeps_more", [True, pytest.param(False, marks=pytest.mark.extended)])
def test_its_rows_are_those_of_the_topic(
    mirror_of: MirrorOf, data_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, keeps_more: bool
) -> None:
    """Updates, deletions, and rows that change between a static row and a row of their own; the existing files of the
    tables stay."""
    monkeypatch.setattr(batch_session, "_LARGE_BYTES", 0)
    monkeypatch.setattr(batch_session, "_SPARSE_BYTES", 0)
    more = {"changelog": keeps_more, "history": keeps_more}
    topic = data_topic(*WIDE)
    kept = mirror_of(topic)
    topic.write(*[row(pk, a, "x", a, s=f"s {pk}") for pk in _NAMES for a in range(4)])
    topic.write(*[static_row(f"static {pk}", s="alone", t=1) for pk in _NAMES])
    with monkeypatch.context() as as_large_run:
        as_large_run.setattr(epoch_plan, "FEW_RECORDS", 0)  # The first run makes files with ranges of owners.
        kept.run(**more)
    files = set(kept.table("rows").inputFiles())
    topic.write(*[row(pk, 1, "x", 100, s=f"new {pk}") for pk in _NAMES])
    topic.write(row_deletion("it's", 2, "x"), partition_deletion("both'\\"), static_row("static it's", s="again", t=2))
    topic.write(row('static "', 5, "x", 5, s="a row"))
    asked = list[object]()
    read, merge = KeptRecords.read, DeltaTable.merge
    with monkeypatch.context() as watched:
        watched.setattr(KeptRecords, "read", lambda self, *args: (asked.extend(args[2:]), read(self, *args))[1])
        watched.setattr(DeltaTable, "merge", lambda self, *args: (asked.append(args[1]), merge(self, *args))[1])
        kept.run(**more)
    owners = {owner for each in asked if isinstance(each, list) for owner in each}
    assert {json.loads(each)["0"] for each in owners} == {*_NAMES, "static it's", 'static "'}
    assert any("t._cdc_owner IN ('" in str(each) for each in asked)
    assert kept.rows() == kept.wanted()
    if keeps_more:
        assert kept.rows() == kept.replayed() == kept.open_versions()
    assert files & set(kept.table("rows").inputFiles())
    (last,) = kept.spark.sql(f"DESCRIBE HISTORY delta.`{kept.folder}/rows` LIMIT 1").collect()
    assert int(last.operationMetrics["numTargetDeletionVectorsAdded"]) > 0
    assert int(last.operationMetrics["numTargetRowsCopied"]) == 0


@pytest.mark.spark_line("==4.1")
@pytest.mark.parametrize("keeps_more", [pytest.param(True, marks=pytest.mark.extended), False])
def test_an_iceberg_mirror_has_the_rows_of_the_topic_and_keeps_its_files(
    mirror_of: MirrorOf, data_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, keeps_more: bool
) -> None:
    """Replaced and deleted rows are noted in separate files, and the merge counts its changes."""
    monkeypatch.setattr(batch_session, "_LARGE_BYTES", 0)
    monkeypatch.setattr(batch_session, "_SPARSE_BYTES", 0)
    topic = data_topic(*WIDE)
    kept = mirror_of(topic)
    topic.write(*[row(pk, a, "x", a, s=f"s {pk}") for pk in _NAMES for a in range(4)])
    more: dict[str, object] = {"changelog": keeps_more, "history": keeps_more, "table_format": "iceberg"}
    kept.run(**more)
    files = set(kept.table("rows").select("_file").distinct().collect())
    topic.write(row("it's", 1, "x", 100, s="new"), row("plain", 9, "x", 9, s="s plain"), row_deletion('"', 2, "x"))
    done = kept.run(**more)
    assert (done.inserted, done.updated, done.deleted) == (1, 1, 1)
    assert kept.rows() == kept.wanted()
    if keeps_more:
        assert kept.rows() == kept.replayed() == kept.open_versions()
    assert files < set(kept.table("rows").select("_file").distinct().collect())


def test_few_keys_are_looked_up_in_few_pages(spark: SparkSession, tmp_path: Path) -> None:
    """For three Cassandra partitions among 20,000, all kept rows are found, and only three pages of them are read."""
    folder = f"{tmp_path}/kept"
    owners = F.hex(F.format_string("%05d", "id"))
    nulls = [F.lit(None).cast(each.dataType).alias(each.name) for each in KEPT_SCHEMA if each.name != "owner"]
    session = session_of_its_own(spark)
    fit_session(session, 0, 1 << 30, is_local=True)
    judged = session.range(20_000).coalesce(1).sort(owners).select(owners.alias("owner"), *nulls)
    kept = KeptRecords(session, folder)
    run = kept.write(judged.withColumn("is_dropped", F.lit(False)), 0, 1)
    wanted = [f"{number:05}".encode().hex() for number in (3, 7_777, 19_999)]
    with Traffic(spark) as traffic:
        found = kept.read([run], NOTHING_FORGOTTEN, wanted)
        assert found is not None
        assert sorted(row.owner for row in found.select("owner").collect()) == wanted
    assert 0 < traffic.read_rows <= 3 * PAGE_ROWS


@pytest.mark.parametrize("kind", [DeltaTable, pytest.param(IcebergTable, marks=pytest.mark.spark_line("==4.1"))])
def test_the_first_files_of_rows_and_history_have_a_range_of_keys_each(
    spark: SparkSession, tmp_path: Path, kind: type[DeltaTable | IcebergTable]
) -> None:
    """Each key is in one file of each table, independent of the order of the changes."""
    session = session_of_its_own(spark)
    session.conf.set("spark.sql.shuffle.partitions", "3")
    session.conf.set("spark.sql.adaptive.enabled", "false")  # Otherwise Spark would merge three small files into one.
    image = "struct(hex(id) AS _cdc_id, hex(id % 100) AS _cdc_owner, id)"
    steps = session.range(300).selectExpr(
        "'insert' AS op",
        "hex(id) AS _cdc_id",
        f"{image} AS after",
        f"if(id < 0, {image}, NULL) AS before",
        "id AS changed_us",
        "1 AS step",
        "CAST(NULL AS bigint) AS next_us",
    )
    rows, history = kind(session, f"{tmp_path}/rows"), kind(session, f"{tmp_path}/history")
    merge_rows(rows, steps.repartition(5), ["_cdc_id", "_cdc_owner", "id"], None, is_large=False, in_ranges=True)
    add_versions(history, steps.repartition(5), ["id"], 1, in_ranges=True)
    for table, key in ((rows, "_cdc_owner"), (history, "_cdc_id")):
        found = table.read()
        assert found is not None
        name = "_file" if kind is IcebergTable else "_metadata.file_path"
        ranges = found.groupBy(name).agg(F.min(key).alias("first"), F.max(key).alias("last")).sort("first").collect()
        assert len(ranges) == 3
        assert all(one.last < other.first for one, other in pairwise(ranges))


def test_lists_of_keys_are_short_where_they_are_looked_up() -> None:
    """Long lists are split, because Spark does not compare them with the statistics of pages; too many keys are not
    listed at all."""
    names = [f"it's {number:04}" for number in range(300)]
    listed = is_listed("owner", [*reversed(names)], is_sparse=True)
    assert listed is not None
    assert listed.count(" IN (") == 3
    assert listed.count("'it\\'s ") == 300
    assert (is_listed("owner", names, is_sparse=False) or "").count(" IN (") == 1
    for not_listed in ([], [str(each) for each in range(5_001)]):
        assert is_listed("owner", not_listed, is_sparse=True) is None
