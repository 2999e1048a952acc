"""`cdc decode`: options that select mutations, and output for people."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from cdc.segment_printer import StartPosition
from schemas.errors import ConfigError
from tests.golden.segments import ENCODED_SEGMENTS, GoldenSegment

GOLDEN = GoldenSegment("5.0")
SEGMENT_ID = 1795228134954


def _decode(
    *arguments: object, memory_limit: int | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cdc.main", "decode", *map(str, arguments)]

    def limit() -> None:
        assert memory_limit is not None
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))

    return subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
        preexec_fn=None if memory_limit is None else limit,
    )


def _position(line: str) -> int:
    return int(json.loads(line)["position"])


def test_only_what_is_of_the_named_tables_is_printed() -> None:
    """A table is named with or without its keyspace. Of a mutation of several tables, only these parts are printed."""
    done = _decode(GOLDEN.path, "--schema", GOLDEN.schema_file, "--table", "golden.simple", "--table", "dense")
    found = [
        (update["table"], mutation["position"])
        for mutation in map(json.loads, done.stdout.splitlines())
        for update in mutation["updates"]
    ]
    # The batch at 1466 also writes to golden.collections.
    assert found == [
        ("simple", 344),
        ("simple", 401),
        ("simple", 461),
        ("simple", 514),
        ("simple", 1466),
        ("dense", 1842),
        ("dense", 1903),
    ]


def test_a_table_that_is_not_in_the_schema_is_refused() -> None:
    """Otherwise a misspelled table would look like an empty segment."""
    done = _decode(GOLDEN.path, "--schema", GOLDEN.schema_file, "--table", "simpel", "--table", "dense")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "cdc: --table: not in the schema: simpel\n"


@pytest.mark.parametrize(
    "golden", [GOLDEN, *(each for each in ENCODED_SEGMENTS if each.line.startswith("5.0"))], ids=lambda each: each.line
)
def test_reading_goes_on_behind_a_position_of_any_encoding(golden: GoldenSegment) -> None:
    """The positions are those in the output, which may be larger than the file."""
    options = ["--commitlog-options", golden.options_file] if golden.options_file.exists() else []
    middle = _position(golden.expected()[9])
    done = _decode(golden.path, "--schema", golden.schema_file, *options, "--from", f"{golden.path.name}:{middle}")
    assert done.stdout.splitlines() == golden.expected()[10:]
    assert done.returncode == 0


def test_segments_before_the_position_are_passed_over_and_later_ones_read_whole() -> None:
    """The ids in the names decide. The segment of 5.0 is older than that of 4.1."""
    later = GoldenSegment("4.1")
    arguments = [GOLDEN.path, later.path, "--schema", later.schema_file]
    assert _decode(*arguments, "--from", f"{SEGMENT_ID}:0").stdout.splitlines() == later.expected()
    assert (
        _decode(*arguments, "--from", f"1795228196280:{_position(later.expected()[-2])}").stdout.splitlines()
        == later.expected()[-1:]
    )
    assert _decode(*arguments, "--from", "1795228196281:0").stdout == ""


@pytest.mark.parametrize("text", ["", "5", "5:", ":5", "CommitLog.log:5", "5:-1", "CommitLog-7-5.log"])
def test_what_is_no_position_is_refused(text: str) -> None:
    """The message shows an example of a position."""
    with pytest.raises(ConfigError, match="is not SEGMENT:POSITION, such as CommitLog-7-"):
        StartPosition.parse(text)


def test_a_position_inside_an_entry_is_an_error_and_no_wrong_row() -> None:
    """The checksum of a size does not fit at such a position."""
    done = _decode(GOLDEN.path, "--schema", GOLDEN.schema_file, "--from", f"{SEGMENT_ID}:350")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{GOLDEN.path.name}, position 350: " in done.stderr


def test_a_person_can_read_a_mutation() -> None:
    """Values and times are readable, and deletions are described in words."""
    done = _decode(GOLDEN.path, "--schema", GOLDEN.schema_file, "--format", "pretty")
    lines = done.stdout.splitlines()
    shown = [
        f"{GOLDEN.path.name}, position 1046, 112 bytes",
        "  golden.clustered  p = 3",
        "    delete  a from the start up to 5  at 1970-01-01 00:00:00.000012",
        "    delete  a from 5 (not included) up to the end  at 1970-01-01 00:00:00.000011",
        '    insert  a = 5, b = "row"  at 1970-01-01 00:00:00.000013',
        "      v = 1",
        '    update  a = 4, b = "other"  at 1970-01-01 00:00:00.000014, ttl 77 s, expires 2026-11-21 02:30:18',
        "      w = 1",
    ]
    at = lines.index(shown[0])
    assert lines[at : at + len(shown)] == shown
    at = lines.index(f"{GOLDEN.path.name}, position 1355, 131 bytes")
    assert lines[at + 3 : at + 7] == [
        "      l deleted up to 2023-11-14 22:13:20.000015",
        '      m["y"] = 2',
        "      s - 1",
        "      u.zip deleted",
    ]
    assert "      n = 5 (of 1 shards)" in lines


def test_statistics_are_counted_and_nothing_is_printed() -> None:
    """The numbers come before the names, which may be long."""
    done = _decode(GOLDEN.path, "--schema", GOLDEN.schema_file, "--stats")
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        GOLDEN.path.name,
        "  version 7, plain, 1,903 bytes, read to position 1,903",
        "  written 1969-12-31 23:59:59.999994",
        "       to 2255-03-14 16:00:00.000000",
    ]
    assert lines[4].startswith("  20 mutations, 3 of tables not in the schema, in ")
    assert lines[5:8] == [
        "  mutations  rows  cells  deletions  bytes  table",
        "          7     6      7          5    448  golden.clustered",
        "          3     3     12          0    376  golden.collections",
    ]
    assert lines[-1].startswith("decoder: ")


def test_statistics_are_json_where_that_is_asked_for() -> None:
    """One object for each segment, also for a segment that ends with a fault."""
    done = _decode(GOLDEN.path, "--schema", GOLDEN.schema_file, "--stats", "--json", "--table", "dense")
    (stats,) = map(json.loads, done.stdout.splitlines())
    assert stats.pop("decode_seconds") >= 0
    (table,) = stats.pop("tables")
    del table["table_id"]
    assert table == {"table": "golden.dense", "mutations": 2, "rows": 2, "cells": 2, "deletions": 0, "bytes": 100}
    assert stats == {
        "segment": GOLDEN.path.name,
        "file_size": 1903,
        "version": 7,
        "encoding": "plain",
        "position": 1903,
        "mutations": 2,
        "skipped": 3,
        "faults": 0,
        "earliest_us": 1700000000000021,
        "latest_us": 1700000000000022,
    }
    assert _decode(GOLDEN.path, "--schema", GOLDEN.schema_file, "--json").returncode == 2


def _crc(*values: int) -> bytes:
    return zlib.crc32(b"".join(value.to_bytes(4, "big") for value in values)).to_bytes(4, "big")


def test_a_length_of_two_gigabytes_takes_no_memory(tmp_path: Path) -> None:
    """A plain segment, whose sparse file has the length of its entry, with a right checksum. 600 MB are enough."""
    content = GOLDEN.path.read_bytes()[:20]
    end, size = 0x7FFF_FFFF, 0x7FFF_0000
    content += end.to_bytes(4, "big") + _crc(SEGMENT_ID & 0xFFFFFFFF, SEGMENT_ID >> 32, 20)
    content += size.to_bytes(4, "big") + _crc(size)
    segment = tmp_path / GOLDEN.path.name
    segment.write_bytes(content)
    os.truncate(segment, end)
    done = _decode(segment, "--schema", GOLDEN.schema_file, memory_limit=600_000_000)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"cdc: MalformedSegmentError: {segment.name}, position 28: an entry claims a mutation of 2147418112 bytes, and a"
        " segment may have 268435456 (commitlog_segment_size of the options raises this)\n"
    )


def test_a_reader_that_stops_early_is_no_error() -> None:
    """`cdc decode ... | head -1` does this."""
    segments = " ".join([str(GOLDEN.path)] * 40)
    command = f"{sys.executable} -m cdc.main decode {segments} --schema {GOLDEN.schema_file} | head -1"
    done = subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == GOLDEN.expected()[:1]
    assert done.stderr == ""
