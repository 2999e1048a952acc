"""Delta Lake and Iceberg tables behave alike in all that the jobs need, on a real file system."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.avro.functions import from_avro

from schemas.errors import ConfigError
from spark_bridge.java_classes import java_class, keep_functions
from spark_bridge.jobs import iceberg_tables, kept_records
from spark_bridge.jobs.batch_content import NO_CONTENT
from spark_bridge.jobs.batch_session import at_once, fit_session, session_of_its_own
from spark_bridge.jobs.completeness import tag_commits
from spark_bridge.jobs.delta_tables import DeltaTable
from spark_bridge.jobs.epoch_plan import EpochPlan
from spark_bridge.jobs.history_table import add_versions, has_epoch
from spark_bridge.jobs.iceberg_tables import IcebergTable
from spark_bridge.jobs.lake_table import LakeTable, TableFormat, name_key_of, update_and_insert
from spark_bridge.jobs.log_columns import LogColumns
from spark_bridge.jobs.mirror_schema import follow_schema, refuse_other_types
from spark_bridge.jobs.mirror_state import Applied, MirrorTables
from spark_bridge.jobs.publish_envelope import envelope_schema
from spark_bridge.jobs.publish_records import ChangeRecords
from spark_bridge.jobs.small_merge import local_frame
from spark_bridge.jobs.state_file import StateFile
from spark_bridge.jobs.unfinished_epoch import Unfinished, take_back
from spark_bridge.reading.folders import HadoopFolder
from spark_bridge.rows.fold_batches import KEPT_SCHEMA
from spark_bridge.rows.record_places import RECORD_SOURCE
from spark_bridge.rows.row_chain import FIRST_STEP
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.topic_schemas import AvroRecord, SchemaVersion, TopicSchemas
from tests.fixtures.spark import json_lines
from tests.spark.spark35_driver import changed_rows
from tests.unit.spark_bridge import test_user_types as user_types
from tests.unit.spark_bridge.test_mirror_schema import topic

# Spark plans dozens of small jobs for a micro-batch, which take minutes on a busy machine and seconds on an idle one.
pytestmark = [pytest.mark.timeout(1_500), pytest.mark.spark_line(">=4.1")]
_COLUMNS = "id int, `a b` string, home struct<street: string>, epoch bigint"
_WIDER = "id int, `a b` string, home struct<street: string, fee: decimal(4,1)>, epoch bigint, size int"


@pytest.mark.parametrize("made", [DeltaTable, pytest.param(IcebergTable, marks=pytest.mark.spark_line("==4.1"))])
def test_a_table_is_made_merged_altered_and_compacted(
    spark: SparkSession, tmp_path: Path, made: Callable[[SparkSession, str], LakeTable]
) -> None:
    """The table follows the schema, including fields of structs, and an epoch is appended once."""
    table = made(spark, f"{tmp_path}/history")  # Iceberg gives the name `history` a meaning of its own.

    def rows(columns: str, *values: tuple[object, ...]) -> DataFrame:
        return spark.createDataFrame(list(values), columns).coalesce(1)

    def there() -> list[str]:
        found = table.read()
        assert found is not None
        return json_lines(found)

    assert table.read() is None
    first = rows(_COLUMNS, (1, "x", ("Elm",), 1), (2, "y", None, 1))
    table.ensure(first)
    assert there() == []
    for epoch in (1, 1):
        table.append(first, writer="test", epoch=epoch)
    assert there() == ['{"id":1,"a b":"x","home":{"street":"Elm"},"epoch":1}', '{"id":2,"a b":"y","epoch":1}']
    wider = rows(_WIDER, (2, "y2", ("Oak", None), 2, 7), (3, "z", None, 2, 8)).localCheckpoint()
    table.ensure(wider)
    update, insert = update_and_insert(wider.columns)
    actions = f"WHEN MATCHED THEN {update}", f"WHEN NOT MATCHED THEN {insert}"
    assert table.merge(wider, "t.id = s.id", *actions) == {"insert": 1, "update": 1, "delete": 0}
    # Iceberg makes no snapshot for an empty merge.
    nothing = table.merge(wider.limit(0), "t.id = s.id", *actions)
    assert not any(nothing.values())
    table.rename_column("a b", "name")
    table.drop_columns(["epoch"])
    table.delete("id = 1")
    table.compact()
    assert there() == ['{"id":2,"name":"y2","home":{"street":"Oak"},"size":7}', '{"id":3,"name":"z","size":8}']


@pytest.mark.parametrize("made", [DeltaTable, IcebergTable])
def test_a_table_comes_with_its_first_rows_or_not_at_all(
    spark: SparkSession, tmp_path: Path, made: Callable[[SparkSession, str], LakeTable]
) -> None:
    """A failed write leaves no empty table, which would look like a filled one."""
    log, history = made(spark, f"{tmp_path}/changes"), made(spark, f"{tmp_path}/history")
    failing = spark.range(1).withColumn("id", F.raise_error(F.lit("this row fails")).cast("int"))
    with pytest.raises(PySparkException, match="this row fails"):
        log.append(failing.withColumn("epoch", F.lit(1).cast("bigint")), writer="test", epoch=1)
    image = "struct(id) after, cast(null as struct<id: int>) before, '01' _cdc_id, 5L changed_us, 1 step, cast(null as bigint) next_us"
    with pytest.raises(PySparkException, match="this row fails"):
        add_versions(history, failing.selectExpr(*image.split(", ")), ["id"], 1)
    assert (log.read(), history.read()) == (None, None)
    assert not has_epoch(history, 1)
    add_versions(history, spark.sql(f"SELECT {image} FROM VALUES (7) AS t(id)"), ["id"], 1)
    found = history.read()
    assert found is not None
    assert [tuple(each) for each in found.select("id", "valid_from", "valid_to", "opened").collect()] == [
        (7, 5, None, 1)
    ]
    assert (has_epoch(history, 1), has_epoch(history, 2)) == (True, False)


@pytest.mark.spark_line("==4.1")
def test_a_target_keeps_its_format(spark: SparkSession, tmp_path: Path) -> None:
    """The format of the tables is stored beside them, and another format is refused."""
    assert MirrorTables(spark, str(tmp_path)).table_format == "delta"
    applied = Applied(epoch=3, positions={"t": (1, 2, -1)}, static_columns=("s",))
    for _ in range(3):
        MirrorTables(spark, str(tmp_path), "iceberg").save_applied(applied)
    kept = MirrorTables(spark, str(tmp_path))
    assert (kept.table_format, kept.applied().positions, kept.applied().static_columns) == (
        "iceberg",
        {"t": (1, 2, -1)},
        ("s",),
    )
    assert len(list((tmp_path / "applied").glob("[0-9]*.json"))) == 2
    with pytest.raises(ConfigError, match=r"'delta' is given, but the tables below .* are 'iceberg'"):
        MirrorTables(spark, str(tmp_path), "delta")


def test_a_target_keeps_its_numbers_once_there_is_a_table(spark: SparkSession, tmp_path: Path) -> None:
    """Before there is a table, a run may choose other numbers, as the error about decimals that do not fit advises.
    Afterwards even a rebuild keeps them."""
    given = {"serviceUrl": "pulsar://h:1", "adminUrl": "http://h:2", "topic": "t"}
    plain, texts = (BridgeOptions.from_mapping({**given, **more}) for more in ({}, {"numbers": "string"}))
    tables = MirrorTables(spark, str(tmp_path))
    for options in (plain, texts):
        assert tables.with_numbers(options) == options
        tables.keep_format(options.numbers)
        assert tables.applied().numbers == options.numbers
    tables.rows.ensure(spark.range(1))
    tables.keep_format(plain.numbers)
    tables.begin_anew()
    assert MirrorTables(spark, str(tmp_path)).with_numbers(plain) == texts
    with pytest.raises(ConfigError, match=r"numbers: 'decimal' is given, but the tables below .* have 'string'"):
        tables.with_numbers(BridgeOptions.from_mapping({**given, "numbers": "decimal"}))
    # An earlier version did not store the form of numbers.
    tables.save_applied(replace(tables.applied(), numbers=None))
    tables.keep_format(plain.numbers)
    assert (tables.applied().numbers, tables.with_numbers(texts)) == (None, texts)


def test_what_an_earlier_version_kept_is_the_first_run_and_many_runs_become_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition's last run counts, even if it is a marker; a forgotten marker still hides the records before it."""
    monkeypatch.setattr(kept_records, "_MOST_RUNS", 1)
    tables = MirrorTables(spark, str(tmp_path))

    def judged(*rows: tuple[str, str, bytes]) -> DataFrame:
        named = spark.createDataFrame(
            [(*each, 1) for each in rows], "owner string, scope string, key binary, key_version bigint"
        )
        wanted = [
            F.col(each.name) if each.name in named.columns else F.lit(None).cast(each.dataType).alias(each.name)
            for each in KEPT_SCHEMA
        ]
        return named.select(*wanted, F.expr("false AS is_dropped"))

    def kept() -> list[tuple[str, str, int]]:
        found = tables.read_kept(tables.applied())
        assert found is not None
        return sorted((row.owner, row.scope, row.run) for row in found.select("owner", "scope", "run").collect())

    old = judged(("a", "row", b"1"), ("a", "row", b"2"), ("b", "row", b"3")).withColumn(
        "seen_s", F.lit(5).cast("bigint")
    )
    DeltaTable(spark, f"{tmp_path}/records").create(old.drop("is_dropped").withColumn("record_id", F.col("owner")))
    state = json.loads(json.dumps(asdict(Applied(epoch=3))))
    StateFile(spark, f"{tmp_path}/applied").write(
        json.dumps({name: each for name, each in state.items() if "run" not in name and name != "forgotten"})
    )
    assert tables.applied().runs is None
    before = kept()
    tables.take_over()
    assert kept() == before == [("a", "row", 0), ("a", "row", 0), ("b", "row", 0)]
    assert not (tmp_path / "records").exists()
    tables.take_over()  # Nothing is left to do.
    applied = tables.applied()
    assert applied.runs is not None
    run = tables.kept.write(judged(("a", "partition", b"1")), 1, 7)
    tables.kept.write(judged(("b", "row", b"9")), 1, 7)  # This run is of a micro-batch that failed.
    tables.save_applied(replace(applied, runs=(*applied.runs, run)))
    assert kept() == [("a", "partition", 1), ("a", "row", 0), ("a", "row", 0), ("b", "row", 0)]
    tables.forget(-1)
    assert kept() == [("a", "nothing", 1), ("a", "row", 0), ("a", "row", 0), ("b", "row", 0)]
    tables.merge_kept()
    assert kept() == [("b", "row", 1)]
    # Jobs that began earlier still read the replaced runs. Nobody reads the failed run.
    assert len(list((tmp_path / "kept").iterdir())) == 3


@pytest.mark.parametrize("table_format", ["delta", pytest.param("iceberg", marks=pytest.mark.spark_line("==4.1"))])
def test_small_files_become_one_in_turn_and_a_failure_stops_nothing(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    table_format: TableFormat,
) -> None:
    """Files are compacted every 50 epochs. A failure is logged, also a JVM error that PySpark does not convert, and the
    next epoch tries again."""
    tables = MirrorTables(spark, f"{tmp_path}/odd [name]", table_format)
    for number in range(2):
        one = spark.range(number, number + 1).withColumn("epoch", F.lit(number)).coalesce(1)
        tables.rows.append(one, writer="test", epoch=number)

    def files() -> int:
        found = MirrorTables(spark, tables.target).rows.read()
        assert found is not None
        name = "_file" if table_format == "iceberg" else "_metadata.file_path"
        return found.select(name).distinct().count()

    tables.save_applied(Applied(epoch=49))
    tables.compact_in_turn()
    assert files() == 2
    tables.save_applied(Applied(epoch=60))
    with monkeypatch.context() as failing:
        failing.setattr(type(tables.rows), "compact", _conflict)
        tables.compact_in_turn()
    assert "small files are not compacted yet: another one compacts" in caplog.text
    assert (files(), tables.applied().compacted) == (2, 0)
    tables.compact_in_turn()
    assert (files(), tables.applied().compacted) == (1, 60)


@pytest.mark.spark_line("==4.1")
def test_an_iceberg_table_of_an_earlier_version_is_written_as_new_ones_are(spark: SparkSession, tmp_path: Path) -> None:
    """Missing write modes are set; a mode that is set already stays."""
    table = IcebergTable(spark, f"{tmp_path}/it's/rows")
    table.bring_up_to_date()
    assert table.read() is None
    spark.range(3).coalesce(1).writeTo(table._name).using("iceberg").tableProperty("write.update.mode", "x").create()
    table = IcebergTable(spark, table.path)
    table.bring_up_to_date()
    known = table._table().properties()
    modes = [known.get(f"write.{each}.mode") for each in ("merge", "delete", "update")]
    assert modes == ["merge-on-read", "merge-on-read", "x"]
    table.delete("id = 1")
    assert table._table().currentSnapshot().summary().get("added-position-deletes") == "1"


@pytest.mark.spark_line("==4.1")
def test_compaction_leaves_no_deletes_of_files_that_are_gone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file is not rewritten. Because of such a file, Iceberg alone would keep the deletes of files that
    compaction removed."""
    monkeypatch.setitem(iceberg_tables._COMPACTED, "min-file-size-bytes", "10000")
    table = IcebergTable(spark, f"{tmp_path}/rows")
    table.create(spark.range(20_000).withColumn("epoch", F.lit(0)).coalesce(1))
    for epoch in (1, 2):
        few = spark.range(-2 * epoch, 2 - 2 * epoch).withColumn("epoch", F.lit(epoch)).coalesce(1)
        table.append(few, writer="test", epoch=epoch)
    tag_commits(spark, 1_000)
    table.delete("id IN (-1, -3)")
    tag_commits(spark, None)
    table.compact()
    last = [(each.operation(), each.summary().get("cdc.resolved")) for each in table._table().snapshots()]
    assert last[-3:] == [(each, "1970-01-01T00:00:01.000Z") for each in ("delete", "replace", "replace")]
    table.delete("id = -2")  # Iceberg updates the number of delete files with the next commit.
    found = table._table().currentSnapshot().summary()
    assert [found.get(f"total-{each}") for each in ("data-files", "delete-files")] == ["2", "1"]
    assert sorted(row.id for row in table.read().where("id < 0").collect()) == [-4]  # type: ignore[union-attr]


@pytest.mark.parametrize("table_format", ["delta", pytest.param("iceberg", marks=pytest.mark.spark_line("==4.1"))])
def test_tables_follow_names_that_collide(spark: SparkSession, tmp_path: Path, table_format: TableFormat) -> None:
    """A key column gets other letters, another one the name of a dropped column; the change log keeps its columns."""
    tables = MirrorTables(spark, str(tmp_path), table_format)
    own = "'1' _cdc_id, '1' _cdc_owner, 1L _cdc_writetime, 1L _cdc_expires_at"

    def change(row: str, epoch: int) -> DataFrame:
        return spark.sql(f"SELECT {epoch}L epoch, named_struct({row}) after").coalesce(1)

    tables.rows.create(spark.sql(f"SELECT 'k' id, 't' at, 'old' v, 'w' w, {own}").coalesce(1))
    tables.changes.append(change("'id', 'k', 'at', 't', 'v', 'old', 'w', 'w'", 1), writer="test", epoch=1)
    schemas = topic(("id at", "v w"), ("Id v", "w"))
    follow_schema(tables, EpochPlan(schemas, Applied(epoch=1, schema_version=0), NO_CONTENT, False, 0))
    found = MirrorTables(spark, str(tmp_path), table_format).rows.read()
    assert found is not None
    assert json_lines(found.select("Id", "v", "w")) == ['{"Id":"k","v":"t","w":"w"}']
    assert found.columns[:3] == ["Id", "v", "w"]
    tables.changes.append(change("'Id', 'k', 'v', 't2', 'w', 'w'", 2), writer="test", epoch=2)
    log = MirrorTables(spark, str(tmp_path), table_format).changes.read()
    assert log is not None
    assert json_lines(log.select("epoch", "after.id", "after.v")) == [
        '{"epoch":1,"id":"k","v":"old"}',
        '{"epoch":2,"id":"k","v":"t2"}',
    ]
    with pytest.raises(ConfigError, match=r"has column V as STRING.* as INT now: mirror the topic into a new target"):
        refuse_other_types(tables.changes, change("'Id', 'k', 'V', 5", 3), ["v"])


@pytest.mark.parametrize("table_format", ["delta", pytest.param("iceberg", marks=pytest.mark.spark_line("==4.1"))])
def test_tables_follow_fields_of_user_types_that_collide(
    spark: SparkSession, tmp_path: Path, table_format: TableFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two fields exchange their names, and a third one gets other letters; a run ends after each statement."""
    place = "named_struct('street', 'Elm', 'city', 'Rome', 'nr', '7')"
    row = f"'k' pk, {place} home, array({place}) places, map('x', {place}) by_name"
    own = "'1' _cdc_id, '1' _cdc_owner, 1L _cdc_writetime, 1L _cdc_expires_at"
    tables = MirrorTables(spark, str(tmp_path), table_format)
    tables.rows.create(spark.sql(f"SELECT {row}, {own}").coalesce(1))
    log = spark.sql(f"SELECT 1L epoch, named_struct('pk', 'k', 'home', {place}) after, named_struct('pk', 'k') before")
    tables.changes.append(log.coalesce(1), writer="test", epoch=1)
    key = topic(("pk", "v")).newest.key
    versions = [user_types.schema(dict.fromkeys(each.split(), "text")) for each in ("street city nr", "city street Nr")]
    schemas = TopicSchemas(
        topic="t",
        versions=tuple(SchemaVersion(version=at, key=key, value=each) for at, each in enumerate(versions)),
    )
    rename, left = LakeTable.rename_column, [0]

    def rename_or_stop(self: LakeTable, *names: str) -> None:
        if left[0] == 0:
            raise OSError("stopped")
        left[0] -= 1
        rename(self, *names)

    monkeypatch.setattr(LakeTable, "rename_column", rename_or_stop)

    def follow() -> None:
        now = MirrorTables(spark, str(tmp_path), table_format)
        follow_schema(now, EpochPlan(schemas, Applied(epoch=1, schema_version=0), NO_CONTENT, False, 0))

    for allowed in (1, 2, 3, 1):
        left[0] = allowed
        with pytest.raises(OSError, match="stopped"):
            follow()
    left[0] = 100
    follow()
    found, changed = (
        getattr(MirrorTables(spark, str(tmp_path), table_format), each).read() for each in ("rows", "changes")
    )
    wanted = '{"city":"Elm","street":"Rome","Nr":"7"}'
    assert json_lines(found.select("home", "places", "by_name")) == [
        f'{{"home":{wanted},"places":[{wanted}],"by_name":{{"x":{wanted}}}}}'
    ]
    assert json_lines(changed.select("after.home")) == [f'{{"home":{wanted}}}']


@pytest.mark.parametrize("table_format", ["delta", pytest.param("iceberg", marks=pytest.mark.spark_line("==4.1"))])
def test_an_epoch_that_all_tables_have_stays_though_the_change_log_has_other_letters(
    spark: SparkSession, tmp_path: Path, table_format: TableFormat
) -> None:
    """A key column is renamed to other letters, and a value column is dropped and added again in other letters: the
    epoch is still found complete."""
    tables = MirrorTables(spark, str(tmp_path), table_format)
    own = "'1' _cdc_owner, 1L _cdc_writetime, CAST(NULL AS BIGINT) _cdc_expires_at"
    tables.rows.create(spark.sql(f"SELECT 'k' Id, 'new' C, 'd' d, '1' _cdc_id, {own}").coalesce(1))
    versions = "1L valid_from, CAST(NULL AS BIGINT) valid_to, '1' _cdc_id, 2L opened, CAST(NULL AS BIGINT) closed"
    tables.history.create(spark.sql(f"SELECT 'k' Id, 'new' C, 'd' d, {versions}").coalesce(1))
    after = "named_struct('id', 'k', 'c', 'new', 'd', 'd', '_cdc_id', '1') after"
    log = spark.sql(f"SELECT 2L epoch, 1 step, '1' _cdc_id, {after}").coalesce(1)
    tables.changes.append(log, writer="test", epoch=2)

    def found() -> Unfinished:
        now = MirrorTables(spark, str(tmp_path), table_format)
        return take_back(now.rows, now.changes, now.history, 2)

    assert found() is Unfinished.ALL
    MirrorTables(spark, str(tmp_path), table_format).rows.update("C = 'other'", "true")
    assert found() is Unfinished.TAKEN_BACK
    assert found() is Unfinished.NOTHING


def test_what_is_published_follows_names_of_the_change_log_that_come_back(spark: SparkSession) -> None:
    """A key column has the name of a dropped value column, and a column is in other letters: values are published in
    the right column."""
    own = "'_cdc_id', 'ab', '_cdc_writetime', 1L"
    images = [
        (f"named_struct('id', 'k', 'at', 't', 'v', 'old', 'c', 'c1', {own})", 1),
        (f"named_struct('id', 'k', 'at', CAST(NULL AS STRING), 'v', 't', 'c', 'c2', {own})", 2),
    ]
    own_columns = "1 step, 'ab' _cdc_id, 'insert' op, 1L writetime, false is_there"
    log = spark.sql(
        " UNION ALL ".join(f"SELECT {epoch}L epoch, {own_columns}, {after} after" for after, epoch in images)
    )
    log = log.withColumns(
        {
            "before": F.lit(None).cast(log.schema["after"].dataType),
            "source": F.lit(None).cast(RECORD_SOURCE),
            "log_epoch": F.col("epoch"),
        }
    )
    schemas = topic(("id at", "v c"), ("id at", ""), ("id v", "C"))
    applied = Applied(epoch=2, schema_version=2, gone_until={"v": 1, "c": 1})
    made = ChangeRecords(LogColumns.of(schemas, applied, name_key_of(spark)), 1)

    def published(records: DataFrame, schema: AvroRecord, *fields: str) -> list[tuple[object, ...]]:
        read = records.select("epoch", from_avro("value", json.dumps(schema)).alias("value")).orderBy("epoch")
        return [tuple(row) for row in read.select(*[f"value.{each}" for each in fields]).collect()]

    assert published(made.rows(log), schemas.newest.value, "C") == [("c1",), ("c2",)]
    envelopes = published(made.changes(log), envelope_schema(schemas.newest), "after.id", "after.v", "after.C")
    assert envelopes == [("k", "t", "c1"), ("k", "t", "c2")]


@pytest.mark.parametrize("table_format", ["delta", pytest.param("iceberg", marks=pytest.mark.spark_line("==4.1"))])
def test_a_relative_target_is_below_the_working_directory_of_the_driver(
    spark: SparkSession, tmp_path: Path, table_format: TableFormat
) -> None:
    """Both formats resolve a relative path: Delta's SQL takes only absolute paths, and the DataFrame writer that makes
    the tables takes any."""
    relative = os.path.relpath(tmp_path, Path.cwd())
    tables = MirrorTables(spark, relative, table_format)
    assert Path(tables.target).resolve() == tmp_path
    assert Path(tables.target).is_absolute()
    assert HadoopFolder(spark, f"{relative}/checkpoint").address() == f"{tables.target}/checkpoint"
    tables.rows.create(spark.createDataFrame([(1, "x"), (2, "y")], "id int, name string"))
    MirrorTables(spark, relative, table_format).rows.delete("id = 1")
    found = MirrorTables(spark, str(tmp_path), table_format).rows.read()
    assert found is not None
    assert json_lines(found) == ['{"id":2,"name":"y"}']


@pytest.mark.parametrize("column", ["path", "filePath", "dvfilepath", "deletionvectorid"])
def test_rows_of_a_large_table_change_whatever_its_columns_are_called(
    spark: SparkSession, tmp_path: Path, column: str
) -> None:
    """Delta makes no deletion vectors for a table with a column that is named like one of Delta's own."""
    found = changed_rows(spark, str(tmp_path / "rows"), column)
    assert [tuple(json.loads(each).values()) for each in found] == [
        (0, "0"),
        (1, "merged"),
        (2, "updated"),
        (9, "merged"),
    ]


def _conflict(table: LakeTable) -> None:
    raise Py4JError(f"another one compacts {table.path}")


def test_a_folder_is_named_with_its_file_system_unless_that_is_local(spark: SparkSession, tmp_path: Path) -> None:
    """A checkpoint's local path stays unchanged. Another one gets its file system, because the data source's processes
    only know the local one as default."""
    for path in (f"{tmp_path}/checkpoint", f"file:{tmp_path}/checkpoint"):
        assert (HadoopFolder(spark, path).address(), HadoopFolder(spark, path).is_local()) == (path, True)
    on_hdfs = session_of_its_own(spark)
    on_hdfs.conf.set("fs.defaultFS", "hdfs://127.0.0.1:9")  # Nothing connects to this address.
    folder = HadoopFolder(on_hdfs, "/lake/orders/checkpoint")
    assert (folder.address(), folder.is_local()) == ("hdfs://127.0.0.1:9/lake/orders/checkpoint", False)
    assert folder.absolute() == "/lake/orders/checkpoint"
    assert HadoopFolder(on_hdfs, "lake").absolute().startswith("hdfs://127.0.0.1:9/user/")


def test_a_folder_lists_files_of_any_name(spark: SparkSession, tmp_path: Path) -> None:
    """All names come as one text, so no name may be taken for two."""
    folder = HadoopFolder(spark, str(tmp_path / "there"))
    assert folder.names() == []
    names = [*map(str, range(100)), "a b", "a, b", "line\nbreak", "ümlaut"]
    (tmp_path / "there").mkdir()
    assert folder.names() == []
    for each in names:
        (tmp_path / "there" / each).touch()
    assert sorted(folder.names()) == sorted(names)


def test_a_later_epoch_of_a_history_compiles_no_new_code(spark: SparkSession, tmp_path: Path) -> None:
    """Code with the number of an epoch in it would be compiled for each micro-batch."""
    own = session_of_its_own(spark)
    fit_session(own, 10, 0)
    image = pa.struct([("id", pa.string()), ("name", pa.string())])
    numbers = [("changed_us", pa.int64()), ("step", pa.int32()), ("next_us", pa.int64())]
    schema = pa.schema([("_cdc_id", pa.string()), ("before", image), ("after", image), *numbers])
    compilations = java_class(spark.sparkContext._jvm, "org.apache.spark.metrics.source.CodegenMetrics")
    compiled = []
    for epoch in range(1, 6):
        images = {"before": {"id": "1", "name": "before"} if epoch > 1 else None, "after": {"id": "1", "name": "after"}}
        step = {"_cdc_id": "1", **images, "changed_us": epoch, "step": FIRST_STEP, "next_us": None}
        before = compilations.METRIC_COMPILATION_TIME().getCount()
        steps = local_frame(own, pa.Table.from_pylist([step], schema=schema))
        add_versions(DeltaTable(own, str(tmp_path)), steps, ["id", "name"], epoch)
        compiled.append(compilations.METRIC_COMPILATION_TIME().getCount() - before)
    versions = own.read.format("delta").load(str(tmp_path)).select("valid_from", "valid_to", "opened", "closed")
    closed = [(epoch, epoch + 1, epoch, epoch + 1) for epoch in range(1, 5)]
    assert sorted(map(tuple, versions.collect())) == [*closed, (5, None, 5, None)]
    assert compiled[-1] == 0, compiled


def test_functions_of_columns_are_looked_up_once(spark: SparkSession) -> None:
    """PySpark asks Java for the class of its functions, and for the function, for each expression. The classes that are
    kept make the same expressions without that."""
    jvm = spark.sparkContext._jvm
    for each in ("functions", "org.apache.spark.sql.functions", "PythonUtils"):
        vars(jvm).pop(each, None)
    columns = [F.col("id"), F.struct("id", F.lit("x")), F.coalesce(F.col("id"), F.lit(1)) == 2]
    keep_functions(jvm)
    kept = {each: vars(jvm)[each] for each in ("functions", "org.apache.spark.sql.functions", "PythonUtils")}
    again = [F.col("id"), F.struct("id", F.lit("x")), F.coalesce(F.col("id"), F.lit(1)) == 2]
    assert [str(each) for each in again] == [str(each) for each in columns]
    assert spark.range(3).select(*again).collect() == spark.range(3).select(*columns).collect()
    keep_functions(jvm)
    assert {each: vars(jvm)[each] for each in kept} == kept
    assert "col" in vars(kept["org.apache.spark.sql.functions"])


def test_steps_beside_each_other_do_not_take_each_others_settings(spark: SparkSession) -> None:
    """Spark sets a session's settings as properties of the thread for each job: steps in parallel threads must not see
    each other's."""
    context = spark.sparkContext._jsc.sc()
    both = threading.Barrier(2, timeout=60)

    def write() -> object:
        context.setLocalProperty("cdc.test.setting", "the other's")
        both.wait()
        return context.getLocalProperty("cdc.test.job")

    def read() -> object:
        both.wait()
        return context.getLocalProperty("cdc.test.setting")

    context.setLocalProperty("cdc.test.job", "ours")
    try:
        assert at_once(spark, write, read) == ("ours", None)
        assert context.getLocalProperty("cdc.test.setting") is None
    finally:
        context.setLocalProperty("cdc.test.job", None)
