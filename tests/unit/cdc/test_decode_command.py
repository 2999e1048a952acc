"""`cdc decode` on golden segments: output, exit codes, and one line for each error."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from cdc.schema_source import load_schema, parse_contact_point, save_schema
from schemas.errors import ConfigError
from tests.golden.segments import ENCODED_SEGMENTS, GOLDEN_SEGMENTS, GoldenSegment

GOLDEN = GoldenSegment("5.0")
# The segment has three mutations of system tables, which are not in its schema file.
SKIPPED = "cdc: skipped 3 mutations, of 3 tables not in the schema"


def _decode(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cdc.main", "decode", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_several_segments_are_printed_one_after_the_other() -> None:
    """Only the schema of one of them is given. Mutations of the other's tables are counted on stderr."""
    other = GoldenSegment("4.1")
    done = _decode(GOLDEN.path, other.path, "--schema", GOLDEN.schema_file)
    assert done.stdout.splitlines() == GOLDEN.expected()
    assert done.stderr.startswith("cdc: skipped ")
    assert done.stderr.endswith(" tables not in the schema\n")
    assert done.returncode == 0


def test_a_corrupt_segment_is_one_line_and_stays_where_it_is(tmp_path: Path) -> None:
    """stderr has type, segment, position and reason, and the exit code is 1. Mutations before the fault are printed."""
    content = bytearray(GOLDEN.path.read_bytes())
    content[1000] ^= 1
    segment = tmp_path / GOLDEN.path.name
    segment.write_bytes(content)
    done = _decode(segment, "--format", "mutations", "--schema", GOLDEN.schema_file)
    start = max(position for position in map(_position, GOLDEN.expected()) if position < 1000)
    assert done.stdout.splitlines() == [line for line in GOLDEN.expected() if _position(line) < 1000]
    assert done.stderr == (
        f"cdc: ChecksumMismatchError: {segment.name}, position {start}:"
        f" the checksum of an entry's mutation does not match\n{SKIPPED}\n"
    )
    assert done.returncode == 1
    assert segment.read_bytes() == bytes(content)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("a..b", "'a..b' is no host name ("),
        ("no-such-host.invalid", "cannot read the schema from no-such-host.invalid:9042 (is the node up"),
    ],
)
def test_a_contact_point_that_cannot_be_looked_up_is_one_line(host: str, said: str) -> None:
    """No traceback is shown."""
    done = _decode(GOLDEN.path, "--contact-point", host)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert done.stderr.startswith(f"cdc: {said}")


def test_a_mutation_that_does_not_fit_its_schema_is_told_and_the_next_one_printed(tmp_path: Path) -> None:
    """A bad mutation does not hide later ones."""
    schema = json.loads(GOLDEN.schema_file.read_bytes())
    schema["columns"] = [row for row in schema["columns"] if (row["table_name"], row["column_name"]) != ("dense", "v")]
    schema_file = tmp_path / "schema.json"
    schema_file.write_text(json.dumps(schema))
    done = _decode(GOLDEN.path, "--schema", schema_file)
    assert done.stdout.splitlines() == GOLDEN.expected()[:-2]
    assert done.stderr.splitlines() == [
        f"cdc: UnknownColumnError: {GOLDEN.path.name}, position {_position(line)}:"
        " table golden.dense has no column 'v' in the known schema; read the schema again"
        for line in GOLDEN.expected()[-2:]
    ] + [SKIPPED]
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (),
            "cdc: --schema: give either --schema FILE or --contact-point HOST[:PORT]\n"
            "cdc: SEGMENT: name at least one commit log segment\n",
        ),
        ((GOLDEN.path, "nowhere.log", "--schema", GOLDEN.schema_file), "cdc: SEGMENT: nowhere.log is no file\n"),
        (
            (GOLDEN.path, "--schema", "nowhere.json"),
            "cdc: --schema: cannot read nowhere.json: No such file or directory\n",
        ),
        (
            (GOLDEN.path, "--schema", GOLDEN.schema_file, "--write-schema", "x"),
            "cdc: --write-schema: saves the schema of a node: give --contact-point too\n",
        ),
        (
            (GOLDEN.path, "--schema", GOLDEN.schema_file, "--password-file", "x"),
            "cdc: --password-file: give --username too\n",
        ),
        ((GOLDEN.path, "--contact-point", "host:port"), "cdc: --contact-point: 'host:port' is not HOST or HOST:PORT\n"),
    ],
)
def test_wrong_usage_is_told_in_one_line_each(arguments: Sequence[object], message: str) -> None:
    """All problems are reported at once, with exit code 2 and no traceback."""
    done = _decode(*arguments)
    assert (done.stderr, done.stdout, done.returncode) == (message, "", 2)


def test_a_node_that_is_not_there_is_one_line() -> None:
    """No server listens on port 1."""
    done = _decode("--contact-point", "127.0.0.1:1", "--write-schema", "unused.json")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(
        "cdc: cannot read the schema from 127.0.0.1:1 (is the node up, is this its CQL port?)"
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("not json", "is not JSON"),
        ("[1]", "must hold an object with the lists keyspaces, tables, views, columns, types, dropped_columns"),
        ('{"tables": [{"keyspace_name": "k"}]}', "column 'table_name' must be text in the row"),
        ('{"tables": 5}', "'tables' must be a list of row objects"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_file_that_is_no_schema_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    """The message names the file and the problem."""
    path = tmp_path / "schema.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=reason):
        load_schema(path)


def test_a_saved_schema_is_read_again(tmp_path: Path) -> None:
    """The file has the rows of system_schema as plain JSON."""
    rows: Mapping[str, Sequence[Mapping[str, object]]] = json.loads(GOLDEN.schema_file.read_bytes())
    path = tmp_path / "schema.json"
    save_schema(rows, path)
    assert json.loads(path.read_bytes()) == rows
    assert load_schema(path) == GOLDEN.tables()


def test_the_dropped_columns_of_a_node_are_known_with_their_time() -> None:
    """The golden schemas were written with the code of --write-schema."""
    for golden in GOLDEN_SEGMENTS:
        (table,) = (table for table in golden.tables().values() if table.name == "dropped")
        assert {column.name for column in table.dropped_columns} == {"gone", "gone_set", "again"}
        assert all(column.dropped_time_us > 1_700_000_000_000_000 for column in table.dropped_columns)
        assert isinstance(table.table_id, UUID)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1", ("node1", 9042)),
        ("10.0.0.1:19042", ("10.0.0.1", 19042)),
        ("[2001:db8::1]:19042", ("2001:db8::1", 19042)),
        ("[2001:db8::1]", ("2001:db8::1", 9042)),
        ("2001:db8::1", ("2001:db8::1", 9042)),
    ],
)
def test_a_contact_point_is_a_host_and_perhaps_a_port(text: str, expected: tuple[str, int]) -> None:
    """The default is Cassandra's native transport port."""
    assert parse_contact_point(text) == expected


@pytest.mark.parametrize("text", ["", ":9042", "host:", "host:x", "host:0", "host:65536"])
def test_what_is_no_contact_point_is_refused(text: str) -> None:
    """The message names the option."""
    with pytest.raises(ConfigError, match="--contact-point"):
        parse_contact_point(text)


def _position(line: str) -> int:
    return int(json.loads(line)["position"])


@pytest.mark.parametrize("golden", [each for each in ENCODED_SEGMENTS if each.line in {"5.0-zstd", "5.0-jceks"}])
def test_an_encoded_segment_is_printed_as_a_plain_one(golden: GoldenSegment) -> None:
    """A compressed segment needs no options. An encrypted one needs the file of options, which names the key store."""
    options = ["--commitlog-options", golden.options_file] if golden.options_file.exists() else []
    done = _decode(golden.path, "--schema", golden.schema_file, *options)
    assert done.stdout.splitlines() == golden.expected()
    assert done.stderr.startswith("cdc: skipped ")
    assert done.returncode == 0


def test_an_encrypted_segment_without_its_key_is_one_line(tmp_path: Path) -> None:
    """The exit code is 1 without the options, and 2 if they are wrong. No password is printed."""
    golden = next(each for each in ENCODED_SEGMENTS if each.line == "5.0-jceks")
    done = _decode(golden.path, "--schema", golden.schema_file)
    assert done.stderr == (
        f"cdc: SegmentKeyError: {golden.path.name}, position 0: the segment is encrypted with the key 'Testing:1':"
        " give transparent_data_encryption_options (cdc decode: --commitlog-options); the segment stays\n"
    )
    assert done.returncode == 1
    options = tmp_path / "options.json"
    options.write_text(
        golden.options_file.read_text().replace("../../", f"{golden.parent.parent}/").replace("store-", "my-")
    )
    done = _decode(golden.path, "--schema", golden.schema_file, "--commitlog-options", options)
    assert done.stdout == ""
    assert "keys.jceks: the password is wrong, or the file is damaged" in done.stderr
    assert "my-secret" not in done.stderr
    assert done.returncode == 2
