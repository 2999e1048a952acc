"""The reader of archives compared with Cassandra's own, on golden segments of every kind, and errors of archives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql.datasource import EqualTo, In

from schemas.errors import ConfigError
from spark_bridge.commitlog.data_source import CommitLogReader, PushdownReader, SegmentTask
from spark_bridge.commitlog.options import CommitLogOptions
from spark_bridge.errors import ArchiveReadError
from tests.agent.archives import NODE, archive_of
from tests.agent.segment_writer import header_bytes
from tests.golden.segments import ENCODED_SEGMENTS, GOLDEN_SEGMENTS, GoldenSegment

_PLAIN = next(each for each in GOLDEN_SEGMENTS if each.line == "5.0")

Row = Mapping[str, Any]


def _options(url: str, **given: str) -> CommitLogOptions:
    return CommitLogOptions.from_mapping({"archiveUrl": url, **given})


def _read(reader: CommitLogReader) -> Iterator[Row]:
    """Read as Spark does: plan, then run every task."""
    for partition in reader.partitions():
        for batch in reader.read(partition):
            yield from batch.to_pylist()


def _rows(url: str, **given: str) -> list[Row]:
    return list(_read(CommitLogReader(_options(url, **given))))


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def _row(row: Row) -> Row:
    marker, deletion = row["marker"], row["deletion"]
    return {
        "clustering": [_hex(each) for each in row["clustering"] or ()],
        "liveness": marker
        and {
            "timestamp": marker["writetime"],
            "ttl": marker["ttl"],
            "local_expiration_time": marker["expires_at"],
        },
        "deletion": deletion and _deletion(deletion),
        "complex_deletions": [{"column": each["column"], **_deletion(each)} for each in row["complex_deletions"]],
        "cells": [
            {
                "column": each["column"],
                "path": _hex(each["path"]),
                "value": _hex(each["value"]),
                "timestamp": each["writetime"],
                "ttl": each["ttl"],
                "local_deletion_time": each["local_deletion_time"],
            }
            for each in row["cells"]
        ],
    }


def _deletion(deletion: Row) -> Row:
    return {"timestamp": deletion["writetime"], "local_deletion_time": deletion["local_deletion_time"]}


def _update(rows: list[Row]) -> Row:
    """The rows of one update in the form that Cassandra's reader prints."""
    first = rows[0]
    by_kind = {kind: [each for each in rows if each["kind"] == kind] for kind in {each["kind"] for each in rows}}
    (partition,) = by_kind.get("partition_deletion", [None])
    (static,) = by_kind.get("static_row", [None])
    return {
        "table": first["table"],
        "table_id": first["table_id"],
        "partition_key": first["partition_key"].hex(),
        "partition_deletion": partition and _deletion(partition["deletion"]),
        "static_row": static and _row(static),
        "rows": [
            _row(each) for each in rows if each["kind"] in {"row", "row_deletion"} and each["clustering"] is not None
        ],
        "range_tombstones": [
            {
                "start": [_hex(part) for part in each["range"]["start"]],
                "start_inclusive": each["range"]["start_inclusive"],
                "end": [_hex(part) for part in each["range"]["end"]],
                "end_inclusive": each["range"]["end_inclusive"],
                "timestamp": each["deletion"]["writetime"],
                "local_deletion_time": each["deletion"]["local_deletion_time"],
            }
            for each in by_kind.get("range_deletion", [])
        ],
    }


def _updates(rows: list[Row]) -> dict[tuple[int, str], Row]:
    """Updates by position and table, without empty ones."""
    found: dict[tuple[int, str], list[Row]] = {}
    for each in rows:
        found.setdefault((each["position"], each["table_id"]), []).append(each)
    return {place: _update(each) for place, each in found.items()}


def _expected(golden: GoldenSegment) -> dict[tuple[int, str], Row]:
    mutations = [json.loads(each) for each in golden.expected()]
    return {
        (each["position"], update["table_id"]): update
        for each in mutations
        for update in each["updates"]
        if update["partition_deletion"] or update["static_row"] or update["rows"] or update["range_tombstones"]
    }


@pytest.mark.parametrize("golden", [*GOLDEN_SEGMENTS, *ENCODED_SEGMENTS], ids=lambda each: each.line)
def test_an_archive_says_what_cassandras_own_reader_says(tmp_path: Path, golden: GoldenSegment) -> None:
    """Every cell, deletion and marker is equal, in plain, compressed and encrypted segments of every version."""
    more = {"commitlogOptions": str(golden.options_file)} if golden.options_file.exists() else {}
    rows = _rows(archive_of(tmp_path, [golden]), values="cql", damagedSegments="report", **more)
    mine = [each for each in rows if each["keyspace"] == "golden"]
    assert {each["segment"] for each in mine} == {golden.path.name}
    assert {each["node"] for each in mine} == {NODE}
    assert _updates(mine) == _expected(golden)


def test_a_task_is_a_segment_and_only_the_wanted_table_is_read(tmp_path: Path) -> None:
    """Changes of other tables do not come, and neither do faults of unknown tables."""
    second = next(each for each in GOLDEN_SEGMENTS if each.line == "4.1")
    url = archive_of(tmp_path, [second, _PLAIN])
    tables = {update["table"] for update in _expected(_PLAIN).values()}
    one = min(tables)
    reader = CommitLogReader(_options(url, table=f"golden.{one}"))
    tasks = [each.value for each in reader.partitions()]
    assert [each.segment.name for each in tasks] == sorted([second.path.name, _PLAIN.path.name])
    rows = _rows(url, table=f"golden.{one}", values="cql")
    assert {each["table"] for each in rows} == {one}
    with pytest.raises(ConfigError, match=r"golden\.missing is in no schema history"):
        _rows(url, table="golden.missing")


def test_filters_of_a_query_prune_segments_and_stay_sparks(tmp_path: Path) -> None:
    """Spark applies the filters again; filters that cannot prune segments are ignored."""
    second = next(each for each in GOLDEN_SEGMENTS if each.line == "4.1")
    url = archive_of(tmp_path, [second, _PLAIN])
    reader = PushdownReader(_options(url))
    filters = [
        EqualTo(("segment",), _PLAIN.path.name),
        In(("table",), ("missing", "simple")),
        EqualTo(("kind",), "row"),
    ]
    assert list(reader.pushFilters(filters)) == filters
    (partition,) = reader.partitions()
    assert isinstance(partition.value, SegmentTask)
    assert partition.value.segment.name == _PLAIN.path.name
    rows = [row for batch in reader.read(partition) for row in batch.to_pylist()]
    assert {each["table"] for each in rows} == {"simple"}


def test_times_leave_out_segments_and_rows(tmp_path: Path) -> None:
    """Rows are filtered by their write time; segments that cannot have such rows are not planned."""
    url = archive_of(tmp_path, [_PLAIN])
    whole = [each["writetime"] for each in _rows(url, values="cql", table="golden.clustered")]
    middle_ms = sorted(whole)[len(whole) // 2] // 1000
    middle = datetime.fromtimestamp(middle_ms / 1000, UTC).isoformat()
    later = [each["writetime"] for each in _rows(url, values="cql", table="golden.clustered", startingTime=middle)]
    assert sorted(later) == sorted(each for each in whole if each >= middle_ms * 1000) and 0 < len(later) < len(whole)
    ending = _rows(url, values="cql", table="golden.clustered", endingTime="2100-01-01T00:00:00Z")
    assert len(ending) == len(whole)
    assert CommitLogReader(_options(url, endingTime="2020-01-01T00:00:00Z")).partitions() == []
    packed = tmp_path / NODE / f"{_PLAIN.path.name}.zst"
    os.utime(packed, (0, 0))
    assert CommitLogReader(_options(url, startingTime="2020-01-01T00:00:00Z")).partitions() == []


def test_keys_and_values_are_json_of_their_types(tmp_path: Path) -> None:
    """Every value of every type is text that JSON reads, in the data topic's form."""
    url = archive_of(tmp_path, [_PLAIN])
    for table in {update["table"] for update in _expected(_PLAIN).values()}:
        rows = _rows(url, table=f"golden.{table}")
        as_bytes = _rows(url, table=f"golden.{table}", values="cql")
        for row, raw in zip(rows, as_bytes, strict=True):
            key = json.loads(row["partition_key"])
            assert list(key.values()) == [int.from_bytes(raw["partition_key"], "big", signed=True)]
            assert len(json.loads(row["clustering"] or "{}")) == len(raw["clustering"] or ())
            for cell, raw_cell in zip(row["cells"] or (), raw["cells"] or (), strict=True):
                assert (cell["value"] is None) == (raw_cell["value"] is None)
                assert (cell["path"] is None) == (raw_cell["path"] is None)
                json.loads(cell["value"] or "null"), json.loads(cell["path"] or "null")


def _json_cells(url: str, table: str, column: str) -> set[tuple[str, str | None, str | None]]:
    rows = _rows(url, table=f"golden.{table}")
    return {
        (row["partition_key"], cell["path"], cell["value"])
        for row in rows
        for cell in row["cells"] or ()
        if cell["column"] == column
    }


def test_cells_of_collections_have_their_paths(tmp_path: Path) -> None:
    """The path is the element of a set, the key of a map, or the field of a user type; a counter's value is its sum."""
    url = archive_of(tmp_path, [_PLAIN])
    key = '{"k":1}'
    ((_, path, value),) = _json_cells(url, "collections", "l")
    assert (UUID(json.loads(path or "")).version, value) == (1, '"a"')
    assert _json_cells(url, "collections", "s") == {(key, "1", None), (key, "2", "2"), (key, "1", "1")}
    assert _json_cells(url, "collections", "m") == {(key, '"y"', "2"), (key, '"x"', "1")}
    assert _json_cells(url, "collections", "u") == {(key, '"street"', '"S"'), (key, '"zip"', "1"), (key, '"zip"', None)}
    assert _json_cells(url, "counters", "n") == {(key, None, "5")}


def test_an_archive_without_its_schema_history_is_one_error_that_says_what_to_do(tmp_path: Path) -> None:
    """The error says what is missing, where, and what to do. A damaged and a newer history give such an error, too."""
    url = archive_of(tmp_path, [_PLAIN], with_schema=False)
    with pytest.raises(
        ArchiveReadError, match=rf"{NODE}/schema-history.json: is missing, .* an agent of this version writes it"
    ):
        _rows(url)
    stored = tmp_path / NODE / "schema-history.json"
    stored.write_text("{")
    with pytest.raises(ArchiveReadError, match=r"no whole schema history .* bring back a copy"):
        _rows(url)
    stored.write_text('{"format": 7}')
    with pytest.raises(ArchiveReadError, match="is of format 7, and this version knows 1"):
        _rows(url)


@pytest.mark.parametrize(("folder", "said"), [("missing", "is not there"), (".", "holds no folder of a node")])
def test_a_folder_that_is_no_archive_is_an_error(tmp_path: Path, folder: str, said: str) -> None:
    """The error names the folder."""
    with pytest.raises(ArchiveReadError, match=said):
        _rows(str(tmp_path / folder))


def test_a_cut_segment_is_read_to_the_cut_and_reported_or_fails(tmp_path: Path) -> None:
    """The rows before the cut come first, then one row of kind `fault`."""
    url = archive_of(tmp_path, [_PLAIN])
    (tmp_path / NODE / f"{_PLAIN.path.name}.zst").unlink()
    content = _PLAIN.path.read_bytes()
    cut = tmp_path / NODE / _PLAIN.path.name
    cut.write_bytes(content[: len(content) // 2])
    *rows, fault = _rows(url, values="cql")
    mine = _updates([each for each in rows if each["keyspace"] == "golden"])
    expected = _expected(_PLAIN)
    assert 0 < len(mine) < len(expected) and mine.items() <= expected.items()
    assert fault["kind"] == "fault" and "the segment is cut" in fault["fault"]
    assert (fault["segment"], fault["node"]) == (_PLAIN.path.name, NODE)
    with pytest.raises(ArchiveReadError, match=rf"{_PLAIN.path.name}, position \d+: the segment is cut"):
        _rows(url, table="golden.simple", damagedSegments="fail")


def test_a_packed_segment_that_is_cut_is_reported(tmp_path: Path) -> None:
    """No part of it can be unpacked."""
    url = archive_of(tmp_path, [_PLAIN])
    packed = tmp_path / NODE / f"{_PLAIN.path.name}.zst"
    packed.write_bytes(packed.read_bytes()[:-20])
    (fault,) = _rows(url)
    assert fault["kind"] == "fault" and "is not whole" in fault["fault"]


def test_a_segment_of_a_newer_version_is_an_error_that_names_it(tmp_path: Path) -> None:
    """The version is found in its name when the read is planned, or in its header."""
    url = archive_of(tmp_path, [_PLAIN])
    (tmp_path / NODE / "CommitLog-9-5.log").write_bytes(header_bytes(5, version=9))
    with pytest.raises(ArchiveReadError, match=r"CommitLog-9-5\.log: commit log version 9 is not supported"):
        _rows(url)
    (tmp_path / NODE / "CommitLog-9-5.log").rename(tmp_path / NODE / "CommitLog-7-5.log")
    with pytest.raises(ArchiveReadError, match=r"CommitLog-7-5\.log: commit log version 9 is not supported"):
        _rows(url)


def test_an_encrypted_segment_without_its_key_is_an_error(tmp_path: Path) -> None:
    """It names the segment and the key."""
    golden = next(each for each in ENCODED_SEGMENTS if each.line == "5.0-jceks")
    with pytest.raises(ArchiveReadError, match=rf"{golden.path.name}.*is encrypted with the key"):
        _rows(archive_of(tmp_path, [golden]))


def test_wrong_options_are_told_together() -> None:
    """The error comes before the first read."""
    with pytest.raises(ConfigError) as error:
        CommitLogOptions.from_mapping({"archiveurl": "/x", "table": "t", "startingTime": "noon", "colour": "red"})
    assert [each.option for each in error.value.problems] == ["colour", "table", "startingTime"]


_PLAIN_WORKER = """
import logging, sys
from spark_bridge.commitlog.data_source import CommitLogReader
from spark_bridge.commitlog.options import CommitLogOptions
logging.basicConfig(format="%(message)s")
reader = CommitLogReader(CommitLogOptions.from_mapping({"archiveUrl": sys.argv[1]}))
count = 0
for partition in reader.partitions() * 2:
    count += sum(batch.num_rows for batch in reader.read(partition))
print(count)
"""


def test_a_worker_without_the_compiled_decoder_reads_the_same_and_says_so_once(tmp_path: Path) -> None:
    """Its log has one line for all segments that it reads."""
    url = archive_of(tmp_path, [_PLAIN])
    done = subprocess.run(
        [sys.executable, "-c", _PLAIN_WORKER, url],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        env={**os.environ, "CDC_DECODER": "python"},
    )
    assert int(done.stdout) == 2 * len(_rows(url))
    (line,) = done.stderr.splitlines()
    assert line.startswith("commit log segments are decoded by plain Python (CDC_DECODER=python) on this worker")
