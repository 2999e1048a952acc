"""Tables as an archive describes them, and folds of its changes without Spark: golden segments and rows of SELECT."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from change_agent.archive.segment_archive import SegmentArchive
from schemas.archived_schema import ArchivedDefinition, ArchivedSchema
from schemas.cql_type import UserType
from schemas.errors import ConfigError
from schemas.row_record import data_key_schema, data_value_schema
from spark_bridge.commitlog.archive import CommitLogArchive
from spark_bridge.commitlog.archived_table import ArchivedTable
from spark_bridge.commitlog.data_source import CommitLogReader
from spark_bridge.commitlog.options import CommitLogOptions
from spark_bridge.commitlog.partitions import CHANGE_COLUMNS
from spark_bridge.commitlog.views import Moment, as_of, overlap, rows_fold
from tests.agent.archives import NODE, archive_of
from tests.golden.segments import GOLDEN_SEGMENTS

_PLAIN = next(each for each in GOLDEN_SEGMENTS if each.line == "5.0")
_NOW_US = 1_800_000_000_000_000
_BEGAN_US = 1_000_000


def _options(url: str, table: str) -> CommitLogOptions:
    return CommitLogOptions.from_mapping(
        {"archiveUrl": url, "table": table, "values": "cql", "droppedColumns": "show", "damagedSegments": "fail"}
    )


@pytest.mark.parametrize(
    ("moment", "said"),
    [
        (date(2026, 11, 23), r"datetime.date\(2026, 11, 23\) is no moment; give a datetime"),
        (1_795_219_249.5, "1795219249.5 is no moment"),
        (None, "None is no moment"),
        (True, "True is no moment"),
        (1_764_000_000_000_000_000, "is more than a year ahead; give microseconds"),
        ("yesterday", "'yesterday' is no time in ISO 8601"),
        ("2026-11-23", "2026-11-23T00:00:00 has no zone"),
    ],
)
def test_what_is_no_moment_is_refused(moment: object, said: str) -> None:
    """The error is one line, before the archive is read."""
    with pytest.raises(ConfigError, match=said):
        as_of(cast("SparkSession", None), {"archiveUrl": "/nowhere", "table": "k.t"}, cast("Moment", moment))


def _avro(schema: object, data: bytes) -> Mapping[str, Any]:
    plain = {**cast("dict[str, object]", schema), "namespace": ""}
    return cast("Mapping[str, Any]", fastavro.schemaless_reader(io.BytesIO(data), plain, None))


def _table_rows(url: str, name: str, moment_us: int) -> list[dict[str, Any]]:
    """The table at a moment, as one task of Spark folds it."""
    options = _options(url, name)
    table = ArchivedTable.fetch(options, moment_us).table
    reader = CommitLogReader(options)
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    changes = pa.Table.from_batches(batches).select(CHANGE_COLUMNS)
    changes = changes.take(pa.compute.sort_indices(changes["partition_key"]))
    return [
        {**_avro(data_key_schema(table), row["key"]), **_avro(data_value_schema(table), row["value"])}
        for batch in rows_fold(table, moment_us)(changes.to_batches())
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("line", ["3.11", "4.0", "4.1", "5.0", "5.0-none"])
def test_collections_counters_and_statics_are_put_together(tmp_path: Path, line: str) -> None:
    """Golden segments of every version give the rows; two copies of a segment, as from two replicas, count once."""
    golden = next(each for each in GOLDEN_SEGMENTS if each.line == line)
    url = archive_of(tmp_path, [golden])
    other = tmp_path / "00000000-0000-0000-0000-000000000002"
    other.mkdir()
    for each in (tmp_path / NODE).iterdir():
        (other / each.name).write_bytes(each.read_bytes())
    collections = _table_rows(url, "golden.collections", _NOW_US)
    assert [(each["k"], each["s"], each["m"]) for each in collections if each["k"] == 1] == [(1, [2], {"x": 1, "y": 2})]
    assert [(each["k"], each["n"]) for each in _table_rows(url, "golden.counters", _NOW_US)] == [(1, 5)]
    assert len(_table_rows(url, "golden.clustered", _NOW_US)) > 0


def test_nothing_is_there_before_it_was_written(tmp_path: Path) -> None:
    """The write times count, which the golden statements set."""
    url = archive_of(tmp_path, [_PLAIN])
    assert _table_rows(url, "golden.collections", 1_700_000_000_000_014) == []
    early = _table_rows(url, "golden.collections", 1_700_000_000_000_015)
    assert [(each["s"], each["m"]) for each in early] == [([1, 2], {"x": 1})]


def test_a_moment_before_the_archive_began_is_refused(tmp_path: Path) -> None:
    """This also holds for an older table, unless partial results are allowed; the error has both times."""
    table = ArchivedTable.fetch(_options(archive_of(tmp_path, [_PLAIN]), "golden.simple"))
    assert table.began_us == _BEGAN_US
    with pytest.raises(ConfigError, match=r"1970-01-01T00:00:00\.999999\+00:00 is before the archive began"):
        table.require(_BEGAN_US - 1, partial=True)
    table.require(_NOW_US, partial=False)
    older = replace(table, began_us=table.created_us + 1)
    with pytest.raises(
        ConfigError, match=r"golden\.simple was made at 2026-.*partial=True shows what was written since"
    ):
        older.require(_NOW_US, partial=False)
    older.require(_NOW_US, partial=True)


def test_the_archive_is_whole_since_its_last_node_began(tmp_path: Path) -> None:
    """Rows whose only replica was the late node may be missing; the error names that node."""
    url = archive_of(tmp_path, [_PLAIN])
    created_us = ArchivedTable.fetch(_options(url, "golden.simple")).created_us
    late, late_ms = UUID(int=2), created_us // 1000 + 1_000
    schema = replace(CommitLogArchive(url).schema(NODE), node_id=late, began_ms=late_ms)
    SegmentArchive(url, "zstd").store_schema(schema)
    SegmentArchive(url, "zstd").store(_PLAIN.path, str(late))
    table = ArchivedTable.fetch(_options(url, "golden.simple"))
    assert (table.first_began_us, table.began_us) == (_BEGAN_US, late_ms * 1000)
    with pytest.raises(ConfigError, match=rf"before the archive of node {late} began.*partial=True shows"):
        table.require(_NOW_US, partial=False)
    table.require(_NOW_US, partial=True)
    table.require(created_us, partial=True)
    of_first = CommitLogOptions.from_mapping({"archiveUrl": url, "table": "golden.simple", "nodes": NODE})
    ArchivedTable.fetch(of_first).require(_NOW_US, partial=False)


def test_the_archive_begins_with_what_a_life_cycle_left_of_it(tmp_path: Path) -> None:
    """Its oldest segments were deleted, so it is complete since the oldest remaining one was archived. Without segments
    nothing is known."""
    other = next(each for each in GOLDEN_SEGMENTS if each.line == "4.1")
    url = archive_of(tmp_path, [other, _PLAIN])
    options, began_ms = _options(url, "golden.simple"), time.time_ns() // 1_000_000
    assert ArchivedTable.fetch(options).began_us == _BEGAN_US
    first, second = CommitLogArchive(url).segments(NODE)
    (tmp_path / NODE / f"{first.name}.zst").unlink()
    os.utime(tmp_path / NODE / f"{second.name}.zst", (1_800_000_000, 1_800_000_000))
    assert ArchivedTable.fetch(options).began_us == 1_800_000_000_000_000
    (tmp_path / NODE / f"{second.name}.zst").unlink()
    emptied = ArchivedTable.fetch(options)
    assert emptied.began_us >= began_ms * 1000
    with pytest.raises(ConfigError, match="is before the archive began"):
        emptied.require(began_ms * 1000 - 1, partial=True)


def _tracked(found: ArchivedDefinition, since_us: int, *, cdc: bool) -> ArchivedDefinition:
    rows = {**found.rows, "tables": [{**found.rows["tables"][0], "cdc": cdc}]}
    return replace(found, since_us=since_us, rows=rows)


def test_a_table_that_had_no_cdc_is_refused_unless_a_part_is_enough(tmp_path: Path) -> None:
    """Cassandra deletes segments without a change of a cdc table. A table whose cdc was off only later is complete
    until then."""
    url = archive_of(tmp_path, [_PLAIN])
    never = ArchivedTable.fetch(_options(url, "golden.counters"), _NOW_US)
    with pytest.raises(ConfigError, match=r"golden\.counters had cdc = false.*partial=True shows"):
        never.require(_NOW_US, partial=False)
    never.require(_NOW_US, partial=True)
    schema = CommitLogArchive(url).schema(NODE)
    simple = next(each for each in schema.definitions if each.rows["tables"][0]["table_name"] == "simple")
    off_us, on_us = _NOW_US - 20, _NOW_US - 10
    more = _tracked(simple, off_us, cdc=False), _tracked(simple, on_us, cdc=True)
    SegmentArchive(url, "zstd").store_schema(replace(schema, definitions=(*schema.definitions, *more)))
    ArchivedTable.fetch(_options(url, "golden.simple"), off_us - 1).require(off_us - 1, partial=False)
    for moment_us in (off_us, _NOW_US):
        with pytest.raises(ConfigError, match=r"golden\.simple had cdc = false at 2027-"):
            ArchivedTable.fetch(_options(url, "golden.simple"), moment_us).require(moment_us, partial=False)


def _with_type(found: ArchivedDefinition, types_since_us: int, fields: Sequence[str]) -> ArchivedDefinition:
    """The definition with a column of a user type that has these fields."""
    column = {**found.rows["columns"][-1], "column_name": "u", "kind": "regular", "position": -1, "type": "kind"}
    user_type = {
        "keyspace_name": "golden",
        "type_name": "kind",
        "field_names": fields,
        "field_types": ["int"] * len(fields),
    }
    rows = {**found.rows, "columns": [*found.rows["columns"], column], "types": [user_type]}
    return replace(found, since_us=_BEGAN_US, types_since_us=types_since_us, rows=rows)


def test_the_newest_user_type_counts_whichever_node_knows_it(tmp_path: Path) -> None:
    """ALTER TYPE does not change the table: a node that was down has the same definition with the older type."""
    url = archive_of(tmp_path, [_PLAIN])
    schema = CommitLogArchive(url).schema(NODE)
    simple = next(each for each in schema.definitions if each.rows["tables"][0]["table_name"] == "simple")
    older, newer = _with_type(simple, _BEGAN_US, ["a"]), _with_type(simple, _BEGAN_US + 5, ["a", "b"])
    for node, definition in ((UUID(int=1), newer), (UUID(int=2), older)):
        SegmentArchive(url, "zstd").store_schema(replace(schema, node_id=node, definitions=(definition,)))
    for moment_us, fields in ((_BEGAN_US + 4, ("a",)), (_BEGAN_US + 5, ("a", "b")), (None, ("a", "b"))):
        table = ArchivedTable.fetch(_options(url, "golden.simple"), moment_us).table
        user_type = next(each.type for each in table.regular_columns if each.name == "u")
        assert isinstance(user_type, UserType) and user_type.field_names == fields
    everything = ArchivedTable.fetch(_options(url, "golden.simple"), _BEGAN_US).columns["u"]
    assert isinstance(everything, UserType) and everything.field_names == ("a", "b")


def test_a_column_named_as_one_of_the_functions_is_found_whatever_its_case(tmp_path: Path) -> None:
    """as_of cannot show write times of such a table; the other functions show its key as a struct."""
    assert overlap(["id", "Path"], ["column", "path"]) and not overlap(["id", "paths"], ["column", "path"])
    url = archive_of(tmp_path, [_PLAIN])
    schema = CommitLogArchive(url).schema(NODE)
    simple = next(each for each in schema.definitions if each.rows["tables"][0]["table_name"] == "simple")
    column = {**simple.rows["columns"][-1], "column_name": "WriteTimes", "kind": "regular", "position": -1}
    named = replace(simple, since_us=_BEGAN_US, rows={**simple.rows, "columns": [*simple.rows["columns"], column]})
    SegmentArchive(url, "zstd").store_schema(replace(schema, definitions=(*schema.definitions, named)))
    options = {"archiveUrl": url, "table": "golden.simple"}
    with pytest.raises(
        ConfigError, match=r"writetimes: golden\.simple has a column of this name; read the write times"
    ):
        as_of(cast("SparkSession", None), options, _NOW_US, writetimes=True)


def test_a_column_that_would_take_the_name_of_a_key_column_is_refused(tmp_path: Path) -> None:
    """It was left out without a word. The key of the table is `id`; here it is `1d`, and another column is `_1d`."""
    url = archive_of(tmp_path, [_PLAIN])
    schema = CommitLogArchive(url).schema(NODE)
    simple = next(each for each in schema.definitions if each.rows["tables"][0]["table_name"] == "simple")
    columns = [
        {**each, "column_name": "1d"} if each["kind"] == "partition_key" else each for each in simple.rows["columns"]
    ]
    column = {**columns[-1], "column_name": "_1d", "kind": "regular", "position": -1, "clustering_order": "none"}
    named = replace(simple, since_us=_BEGAN_US, rows={**simple.rows, "columns": [*columns, column]})
    SegmentArchive(url, "zstd").store_schema(replace(schema, definitions=(*schema.definitions, named)))
    with pytest.raises(
        ConfigError,
        match=r"table: golden\.simple: the key column 1d and the value column _1d are both _1d in a table of",
    ):
        as_of(cast("SparkSession", None), {"archiveUrl": url, "table": "golden.simple"}, _NOW_US)


def _life(schema: ArchivedSchema, name: str, table_id: UUID) -> ArchivedDefinition:
    found = next(each for each in schema.definitions if each.rows["tables"][0]["table_name"] == name)
    rows = {**found.rows, "tables": [{**found.rows["tables"][0], "id": str(table_id)}]}
    return replace(found, table_id=table_id, rows=rows)


def test_the_life_of_a_table_is_that_of_the_moment(tmp_path: Path) -> None:
    """A table that was created again starts empty; for an earlier moment the earlier table counts."""
    url = archive_of(tmp_path, [_PLAIN])
    first = ArchivedTable.fetch(_options(url, "golden.simple"))
    schema = CommitLogArchive(url).schema(NODE)
    again = UUID(fields=(first.table.table_id.fields[0], first.table.table_id.fields[1], 0x11F5, 0x80, 1, 1))
    SegmentArchive(url, "zstd").store_schema(
        replace(schema, definitions=(*schema.definitions, _life(schema, "simple", again)))
    )
    assert ArchivedTable.fetch(_options(url, "golden.simple")).table.table_id == again
    before = ArchivedTable.fetch(_options(url, "golden.simple"), first.created_us + 1)
    assert before.table.table_id == first.table.table_id


def test_a_table_that_was_dropped_before_the_moment_is_refused(tmp_path: Path) -> None:
    """A table exists until the last report of a node that has it, as long as one node has it."""
    url = archive_of(tmp_path, [_PLAIN])
    schema = CommitLogArchive(url).schema(NODE)
    seen_ms = _NOW_US // 1000
    gone = tuple(replace(each, present=False, confirmed_ms=seen_ms) for each in schema.definitions)
    SegmentArchive(url, "zstd").store_schema(replace(schema, definitions=gone))
    table = ArchivedTable.fetch(_options(url, "golden.simple"), _NOW_US + 1)
    with pytest.raises(ConfigError, match=r"golden\.simple was dropped at or after 2027-"):
        table.require(_NOW_US + 1, partial=True)
    table.require(_NOW_US, partial=False)
    SegmentArchive(url, "zstd").store_schema(replace(schema, node_id=UUID(int=2)))
    SegmentArchive(url, "zstd").store(_PLAIN.path, str(UUID(int=2)))
    ArchivedTable.fetch(_options(url, "golden.simple"), _NOW_US + 1).require(_NOW_US + 1, partial=False)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("golden.missing", "is in no schema history of the archive; check keyspace and table"),
        ("golden.simpel", "did you mean golden.simple"),
        (None, "name the table as"),
    ],
)
def test_a_table_that_is_not_known_is_refused(tmp_path: Path, table: str | None, said: str) -> None:
    """The error comes before any segment is read."""
    options = {"archiveUrl": archive_of(tmp_path, [_PLAIN]), **({"table": table} if table else {})}
    with pytest.raises(ConfigError, match=said):
        ArchivedTable.fetch(CommitLogOptions.from_mapping(options))
