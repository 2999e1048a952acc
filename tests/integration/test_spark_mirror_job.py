"""The job `mirror` on real topics: its rows are those of the current table, and change log and history agree with them."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from spark_bridge import current_table
from spark_bridge.jobs.delta_tables import DeltaTable
from spark_bridge.jobs.iceberg_tables import IcebergTable
from spark_bridge.jobs.lake_table import LakeTable, TableFormat
from spark_bridge.jobs.mirror import MirrorSummary, mirror
from spark_bridge.jobs.mirror_state import MirrorTables
from tests.fix_spark import PY4J_LEAVES_SOCKETS_OPEN, DataTopic, Record, json_lines, table_schemas
from tests.spark_settings import PATIENCE_S
from tests.table_records import (
    BEFORE_T,
    OLD,
    PLAIN,
    WIDE,
    partition_deletion,
    range_deletion,
    row,
    row_deletion,
    static_row,
    write_an_added_static_column,
)

# Spark plans dozens of small jobs a micro-batch: a busy machine takes minutes where a quiet one takes seconds.
pytestmark = [
    pytest.mark.filterwarnings(PY4J_LEAVES_SOCKETS_OPEN),
    pytest.mark.timeout(1_500),
    pytest.mark.spark_line(">=4.1"),
]
MakeTopic = Callable[..., DataTopic]
Rows = list[str]


def texts(rows: DataFrame) -> Rows:
    """Rows as JSON text without what the mirror adds, in an order."""
    own = [name for name in rows.columns if name.startswith("_cdc")]
    return json_lines(rows.drop(*own, "valid_from", "valid_to", "opened", "closed"))


class Mirror:
    """A mirror of one topic with all it can keep, and what the tests look at."""

    def __init__(self, spark: SparkSession, topic: DataTopic, folder: Path, options: Mapping[str, str]) -> None:
        self.spark = spark
        self._topic = topic
        self.folder = folder
        self._options = {**topic.options, **options}

    def run(self, **more: object) -> MirrorSummary:
        return mirror(
            self.spark,
            self._options,
            str(self.folder),
            **{"changelog": True, "history": True, **more},  # type: ignore[arg-type]
        )

    def table(self, name: Literal["rows", "records", "changes", "history"]) -> DataFrame:
        found: DataFrame | None = getattr(MirrorTables(self.spark, str(self.folder)), name).read()
        assert found is not None
        return found

    def has_rows(self) -> bool:
        """Whether there is a table of them by now."""
        return MirrorTables(self.spark, str(self.folder)).rows.read() is not None

    def wanted(self) -> Rows:
        return texts(current_table(self.spark, self._topic.options))

    def rows(self) -> Rows:
        return texts(self.table("rows"))

    def replayed(self) -> Rows:
        """The rows that the change log leaves when it is run from the start."""
        rows: dict[str, str] = {}
        log = self.table("changes").selectExpr(
            "epoch", "step", "op", "_cdc_id", "to_json(before) old", "to_json(after) new"
        )
        for each in log.orderBy("epoch", "step").collect():
            match each.op:
                case "insert":
                    assert each._cdc_id not in rows
                case "update" | "delete":
                    assert each._cdc_id in rows
            rows.pop(each._cdc_id, None)
            if each.op != "delete":
                rows[each._cdc_id] = each.new
        frame = self.spark.read.schema(self.table("rows").schema).json(
            self.spark.sparkContext.parallelize(list(rows.values()))
        )
        return texts(frame)

    def open_versions(self) -> Rows:
        return texts(self.table("history").where("valid_to IS NULL"))


def _until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.fixture
def mirror_of(spark: SparkSession, tmp_path: Path) -> Callable[..., Mirror]:
    """`mirror_of(topic, **options)`: a mirror in a folder of the test's own."""
    return lambda topic, **options: Mirror(spark, topic, tmp_path / "mirror", options)


def test_a_mirror_follows_inserts_updates_and_deletes(mirror_of: Callable[..., Mirror], data_topic: MakeTopic) -> None:
    """Rows by key; the change log tells inserts, updates and deletes apart, with both images and times."""
    topic = data_topic(*PLAIN)
    kept = mirror_of(topic)

    def said(time_us: int) -> Mapping[str, str]:
        return {"writetime": str(time_us)}

    topic.write(
        Record(key={"id": 1}, value={"name": "a"}, properties=said(10)),
        Record(key={"id": 2}, value={"name": "b"}, properties=said(11)),
        Record(key={"id": 3}, properties=said(12)),
    )
    first = kept.run()
    assert (first.records, first.inserted, first.updated, first.deleted) == (3, 2, 0, 0)
    topic.write(
        Record(key={"id": 1}, value={"name": "a2"}, properties=said(20)),
        Record(key={"id": 2}, properties=said(21)),
        Record(key={"id": 4}, value={"name": "d"}, properties=said(22)),
        Record(key={"id": 4}, properties=said(23)),
    )
    second = kept.run()
    assert (second.records, second.inserted, second.updated, second.deleted) == (4, 0, 1, 1)
    assert kept.rows() == kept.wanted() == ['{"id":1,"name":"a2"}']
    log = kept.table("changes").selectExpr("op", "before.name", "after.name", "writetime").collect()
    assert sorted(map(tuple, log), key=lambda each: each[3]) == [
        ("insert", None, "a", 10),
        ("insert", None, "b", 11),
        ("update", "a", "a2", 20),
        ("delete", "b", None, 21),
        ("insert", None, "d", 22),
        ("delete", "d", None, 23),
    ]
    versions = kept.table("history").select("id", "name", "valid_from", "valid_to").collect()
    assert sorted(map(tuple, versions), key=str) == [
        (1, "a", 10, 20),
        (1, "a2", 20, None),
        (2, "b", 11, 21),
        (4, "d", 22, 23),
    ]
    again = kept.run()
    assert (again.records, again.inserted, again.updated, again.deleted) == (0, 0, 0, 0)


def test_versions_of_records_without_a_write_time_are_closed(
    mirror_of: Callable[..., Mirror], data_topic: MakeTopic
) -> None:
    """They count from their publication: within a micro-batch, in a later one, and where the history begins later."""
    topic = data_topic(*PLAIN)
    kept = mirror_of(topic)
    topic.write(Record(key={"id": 1}, value={"name": "a"}))
    kept.run(history=False)
    topic.write(Record(key={"id": 1}, value={"name": "b"}), Record(key={"id": 1}, value={"name": "c"}))
    kept.run()
    topic.write(Record(key={"id": 1}, value={"name": "d"}))
    kept.run()
    versions = kept.table("history").orderBy("valid_from").collect()
    assert [each.name for each in versions] == ["a", "b", "c", "d"]
    assert all(each.valid_from <= each.valid_to for each in versions[:-1])
    assert kept.open_versions() == kept.rows() == ['{"id":1,"name":"d"}']


def random_record(chance: random.Random, number: int) -> Record:
    pk, a, b = chance.choice("pq"), chance.randrange(3), chance.choice("xy")
    made = row(pk, a, b, number, s=f"s{number}")
    return chance.choice([
        made,
        row(pk, a, b, None),
        Record(key=made.key, value=made.value, properties={**made.properties, "expires_at": str(int(time.time()) + 600)}),
        Record(key=made.key, value=made.value, properties={**made.properties, "expires_at": "1000"}),
        row_deletion(pk, a, b),
        static_row(pk, s=f"static {number}", t=number),
        partition_deletion(pk) if number % 3 == 0 else made,
        range_deletion(pk, start={"a": a}),
        range_deletion(pk, end={"a": a, "b": b}, end_inclusive=False),
    ])  # fmt: skip


def test_a_static_column_that_is_added_is_in_every_row_of_a_mirror(
    mirror_of: Callable[..., Mirror], data_topic: MakeTopic
) -> None:
    """The change log tells of each row that it changes, and the history has a version with it."""
    topic = data_topic(*BEFORE_T)
    kept = mirror_of(topic)
    write_an_added_static_column(topic, is_added=False)
    kept.run()
    write_an_added_static_column(topic, is_added=True)
    kept.run()
    log = kept.table("changes").where("op = 'update'").selectExpr("after.pk", "after.a", "before.t", "after.t")
    assert sorted(map(tuple, log.collect())) == [("p", 1, None, "x"), ("p", 2, None, "x"), ("q", None, None, "y")]
    closed = kept.table("history").where("valid_to IS NOT NULL").select("pk", "a", "s", "t").collect()
    assert sorted(map(tuple, closed)) == [("p", 1, "1", None), ("p", 2, "1", None), ("q", None, "2", None)]
    assert kept.replayed() == kept.open_versions() == kept.rows()
    # the column that was added comes last in a mirror
    assert [json.loads(each) for each in kept.rows()] == [json.loads(each) for each in kept.wanted()]


def test_markers_static_columns_and_expiry_over_many_batches(
    mirror_of: Callable[..., Mirror], data_topic: MakeTopic
) -> None:
    """However the records are cut into micro-batches, the rows are those of the whole topic."""
    topic = data_topic(*WIDE)
    kept = mirror_of(topic)
    chance = random.Random(20261121)
    for stage in range(3):
        topic.write(*[random_record(chance, stage * 30 + n) for n in range(30)], batch=3)
        kept.run(compact=stage == 1, tombstone_retention_days=0 if stage == 0 else 7)
        assert kept.rows() == kept.wanted()
    assert kept.replayed() == kept.open_versions() == kept.rows()


def test_every_record_of_a_micro_batch_is_a_change(mirror_of: Callable[..., Mirror], data_topic: MakeTopic) -> None:
    """Changes of one row that come together are told one by one: its own, its partition's static columns, markers.

    A change log and a history that are switched on later begin with the rows that the mirror has.
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


@contextmanager
def stopped_after(table: str, kind: type[DeltaTable | IcebergTable] = DeltaTable) -> Iterator[None]:
    """A run within fails as soon as this table of the mirror was merged into."""
    write = kind.merge

    def stop_after(self: LakeTable, *args: object) -> None:
        write(self, *args)  # type: ignore[arg-type]
        if self.path.endswith(table):
            raise OSError(f"stopped after {table}")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kind, "merge", stop_after)
        # a micro-batch's error comes through Spark, that of an expiry at the end of a run does not
        with pytest.raises((PySparkException, OSError), match=f"stopped after {table}"):
            yield


@pytest.mark.parametrize(
    ("table_format", "kind"),
    [("delta", DeltaTable), pytest.param("iceberg", IcebergTable, marks=pytest.mark.spark_line("==4.1"))],
)
def test_a_batch_that_failed_midway_is_applied_once(
    mirror_of: Callable[..., Mirror],
    data_topic: MakeTopic,
    table_format: TableFormat,
    kind: type[DeltaTable | IcebergTable],
) -> None:
    """Stopped after the history, or all but the last table, was written; run again, every table is right.

    So it is when the checkpoint is lost and the whole topic is read again, and when many files become few.
    """
    topic = data_topic(*WIDE)
    kept = mirror_of(topic)
    topic.write(*[row("p", a, "x", a, s="s") for a in range(4)])
    kept.run(table_format=table_format)
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


@pytest.mark.parametrize("table", ["history", "rows"])
def test_an_expiry_that_failed_midway_is_finished_before_the_next_records(
    mirror_of: Callable[..., Mirror], data_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """They have another epoch in change log and history: none of them is taken for what the expiry has written."""
    topic = data_topic(*PLAIN)
    kept = mirror_of(topic)
    passing = {"expires_at": str(int(time.time()) + 3_600), "writetime": "5"}
    topic.write(
        Record(key={"id": 1}, value={"name": "stays"}, properties={"writetime": "5"}),
        Record(key={"id": 2}, value={"name": "goes"}, properties=passing),
    )
    kept.run()
    monkeypatch.setattr(time, "time", lambda: time.time_ns() / 1e9 + 7_200)
    with stopped_after(table):
        kept.run()
    topic.write(
        Record(key={"id": 3}, value={"name": "new"}, properties={"writetime": "6"}),
        Record(key={"id": 1}, value={"name": "changed"}, properties={"writetime": "6"}),
    )
    kept.run()
    assert kept.rows() == ['{"id":1,"name":"changed"}', '{"id":3,"name":"new"}']
    assert kept.replayed() == kept.open_versions() == kept.rows()
    gone = kept.table("changes").where("op = 'delete'").selectExpr("before.name").collect()
    assert [each.name for each in gone] == ["goes"]


def test_rows_expire_whose_batch_failed_midway(
    mirror_of: Callable[..., Mirror], data_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When they are merged already the batch, run again, changes none of them; when they expire must not be forgotten."""
    topic = data_topic(*PLAIN)
    kept = mirror_of(topic)
    passing = {"expires_at": str(int(time.time()) + 3_600)}
    topic.write(Record(key={"id": 1}, value={"name": "goes"}, properties=passing))
    with stopped_after("records"):
        kept.run()
    kept.run()
    assert kept.rows() == ['{"id":1,"name":"goes"}']
    monkeypatch.setattr(time, "time", lambda: time.time_ns() / 1e9 + 7_200)
    kept.run()
    assert kept.rows() == kept.replayed() == kept.open_versions() == []


def test_a_limit_cuts_a_backlog_into_micro_batches(mirror_of: Callable[..., Mirror], data_topic: MakeTopic) -> None:
    """One run goes through all of them, and the rows are those of the whole topic."""
    topic = data_topic(*PLAIN)
    topic.write(*[Record(key={"id": n % 4}, value={"name": f"row {n}"}) for n in range(12)], batch=2)
    kept = mirror_of(topic, maxRowsPerTrigger="5")
    summary = kept.run()
    assert (summary.batches, summary.records) == (3, 12)
    assert kept.rows() == kept.wanted()


def test_what_a_marker_took_stays_away_when_the_marker_is_forgotten(
    mirror_of: Callable[..., Mirror], data_topic: MakeTopic
) -> None:
    """A row that was written again with a TTL expires; static columns are those of the newest record, or gone."""
    topic = data_topic(*WIDE)
    kept = mirror_of(topic)

    def expiring(a: int, time_s: int) -> Record:
        made = row("p", a, "x", a)
        return Record(key=made.key, value=made.value, properties={**made.properties, "expires_at": str(time_s)})

    topic.write(
        *[expiring(1, int(time.time()) + 600), range_deletion("p", start={"a": 1}), expiring(1, 1000)],
        *[static_row("q", s="old"), row("q", 1, "x", 1, s="new"), row_deletion("q", 1, "x")],
        *[static_row("r", s="gone"), row("r", 1, "x", 1, s="gone"), partition_deletion("r")],
    )
    kept.run(tombstone_retention_days=-1)
    assert kept.table("records").where("scope IN ('partition', 'range')").isEmpty()
    topic.write(*[row_deletion(pk, 9, "x") for pk in "pqr"])
    kept.run()
    assert kept.rows() == kept.wanted() == ['{"pk":"q","s":"new"}']


def test_rows_expire_while_a_followed_topic_is_silent(
    mirror_of: Callable[..., Mirror], data_topic: MakeTopic, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without records there are no micro-batches, but time goes on; the job ends when its query is stopped."""
    topic = data_topic(*PLAIN)
    kept = mirror_of(topic)
    passing = {"expires_at": str(int(time.time()) + 3_600)}
    topic.write(
        Record(key={"id": 1}, value={"name": "stays"}),
        Record(key={"id": 2}, value={"name": "goes"}, properties=passing),
    )
    known = {query.id for query in spark.streams.active}
    job = threading.Thread(target=kept.run, kwargs={"follow_interval_s": 1})
    job.start()
    try:
        _until(lambda: kept.has_rows() and kept.rows() == ['{"id":1,"name":"stays"}', '{"id":2,"name":"goes"}'])
        monkeypatch.setattr(time, "time", lambda: time.time_ns() / 1e9 + 7_200)
        _until(lambda: kept.rows() == ['{"id":1,"name":"stays"}'])
    finally:
        _until(lambda: any(query.id not in known for query in spark.streams.active))
        for query in spark.streams.active:
            if query.id not in known:
                query.stop()
        job.join(PATIENCE_S)
    assert not job.is_alive()
    assert kept.replayed() == kept.open_versions() == kept.rows()


def test_replaying_the_whole_topic_resurrects_nothing(
    mirror_of: Callable[..., Mirror], data_topic: MakeTopic, spark: SparkSession
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


def test_columns_and_the_table_itself_change(mirror_of: Callable[..., Mirror], data_topic: MakeTopic) -> None:
    """ALTER TABLE ADD and DROP in mid-stream; DROP and CREATE TABLE empties the mirror."""
    topic = data_topic(*PLAIN)
    kept = mirror_of(topic)
    ids = {"table_id": OLD, "writetime": "5"}
    topic.write(Record(key={"id": 1}, value={"name": "a"}, properties=ids))
    kept.run()
    _, added = table_schemas(partition_key={"id": "int"}, regular={"name": "text", "price": "decimal", "size": "int"})
    topic.write(Record(key={"id": 2}, value={"name": "b", "size": 7}, properties=ids), value_schema=added)
    kept.run()
    assert kept.rows() == kept.wanted() == ['{"id":1,"name":"a"}', '{"id":2,"name":"b","size":7}']
    _, dropped = table_schemas(partition_key={"id": "int"}, regular={"price": "decimal", "size": "int"})
    topic.write(Record(key={"id": 3}, value={"size": 8}, properties=ids), value_schema=dropped)
    kept.run()
    assert "name" not in kept.table("rows").columns
    assert kept.rows() == kept.wanted() == ['{"id":1}', '{"id":2,"size":7}', '{"id":3,"size":8}']
    assert kept.open_versions() == kept.rows()
    newer = {"table_id": "b5559b20-e53e-11f1-a9d7-973e92e688cb", "writetime": "6"}
    topic.write(Record(key={"id": 9}, value={"size": 1}, properties=newer), value_schema=dropped)
    summary = kept.run()
    assert (summary.inserted, summary.deleted) == (1, 3)
    assert kept.rows() == kept.wanted() == ['{"id":9,"size":1}']
    assert kept.replayed() == kept.open_versions() == kept.rows()


def test_a_target_may_be_where_only_spark_can_look(spark: SparkSession, data_topic: MakeTopic, tmp_path: Path) -> None:
    """Hadoop's ViewFs stands for s3a:// where there is no s3fs: Python cannot read the checkpoint."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.viewfs.mounttable.only-spark.link./lake", tmp_path.as_uri())
    topic = data_topic(*PLAIN)
    for name in "ab":
        topic.write(Record(key={"id": 1}, value={"name": name}))
        summary = mirror(spark, topic.options, "viewfs://only-spark/lake/mirror")
        assert (summary.batches, summary.records) == (1, 1)
    rows = MirrorTables(spark, str(tmp_path / "mirror")).rows.read()
    assert rows is not None
    assert texts(rows) == ['{"id":1,"name":"b"}']
