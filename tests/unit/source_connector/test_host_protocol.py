"""Frames between host and child: golden bytes on which the Java and the Python side agree, and refused bytes."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from cdc.sandbox.prerequisites import java_home
from source_connector.data_format import DataFormat
from source_connector.errors import HostProtocolError
from source_connector.host import record_frame
from source_connector.host.host_connection import LogLines
from source_connector.host.host_protocol import (
    MAX_FRAME_LENGTH,
    Acks,
    Close,
    Fail,
    FrameDecoder,
    HostFrame,
    OpenRequest,
    SchemaRefused,
    SchemaTaken,
    encode_error,
    encode_metric,
    encode_opened,
    encode_schema,
)
from source_connector.host.record import DataSchema, SourceRecord
from source_connector.host.record_frame import encode_record
from source_connector.nar_start import refusal

_REPOSITORY: Final = Path(__file__).parents[3]
_HOST: Final = _REPOSITORY / "source_connector" / "nar"

OPEN_JSON: Final = (
    '{"config":{"events":{"topic":["a","b\\u0022\\u005c\\u000a"]}},'
    '"instance":{"guarantee":null,"instances":2},"pulsar":{"isTlsAllowInsecureConnection":true}}'
)
FROM_HOST: Final = {
    "open": (len(OPEN_JSON) + 1).to_bytes(4, "big") + b"\x00" + OPEN_JSON.encode(),
    "ack": bytes.fromhex("00000009010000000000000102"),
    "fail": bytes.fromhex("00000009020000000000000001"),
    "close": bytes.fromhex("0000000103"),
    "taken": bytes.fromhex("00000009040000000000000007"),
    "refused": bytes.fromhex("0000000b050000000000000007c3a9"),
}
RECORD: Final = SourceRecord(schema_id=3, key=b"\x02", value=b"", properties={"kind": "row", "é": ""}, event_time_ms=5)
TOMBSTONE: Final = SourceRecord(schema_id=3, key=b"\x02", value=None, properties={})
FROM_CHILD: Final = [
    (encode_opened(), "0000000106", "type OPENED"),
    (
        encode_schema(
            DataSchema(
                schema_id=1, data_format=DataFormat.JSON, name="t", key_schema="{}", value_schema="[]", topic="d"
            )
        ),
        "0000001c0700000001020000000174000000027b7d000000025b5d0000000164",
        "SchemaFrame[id=1, format=2, name=t, keySchema={}, valueSchema=[], topic=d]",
    ),
    (
        encode_record(258, RECORD),
        "0000003a080000000000000102000000030000000000000005000000010201000000000002"
        "000000046b696e6400000003726f7700000002c3a900000000",
        "record 258 3 5 02  {kind=row, é=}",
    ),
    (
        encode_record(1, TOMBSTONE),
        "0000001d08000000000000000100000003ffffffffffffffff0000000102000000",
        "record 1 3 -1 02 null {}",
    ),
    (encode_metric("m", 1.5), "0000000e09000000016d3ff8000000000000", "metric m 1.5"),
    (encode_error("why"), "000000080a00000003776879", "error why"),
]


def decoded(data: bytes, size: int = 1 << 16) -> list[HostFrame]:
    decoder = FrameDecoder()
    return [frame for at in range(0, len(data), size) for frame in decoder.feed(data[at : at + size])]


@pytest.mark.parametrize(
    ("frame", "expected"),
    [pytest.param(frame, expected, id=shown.split(" ")[0]) for frame, expected, shown in FROM_CHILD],
)
def test_a_frame_to_the_host_has_its_bytes(frame: bytes, expected: str) -> None:
    """The bytes follow the specification in the module's docstring."""
    assert frame.hex() == expected


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"kind": "row", "table_id": "t", "segpos": "7:300", "writetime": "10"},
        {"é": "\U0001f600", "": "\0"},
        {"lone": "\ud800"},
        {str(number): "x" for number in range(0xFFFF)},
    ],
)
@pytest.mark.parametrize("value", [None, b"", bytes(300)])
def test_the_native_core_writes_a_record_as_python_does(properties: dict[str, str], value: bytes | None) -> None:
    """What the core refuses, such as a half of a surrogate pair, Python writes."""
    record = SourceRecord(2**32 - 1, b"key", value, properties, event_time_ms=-(2**63))
    assert encode_record(2**64 - 1, record) == record_frame._encoded(2**64 - 1, record, -(2**63))


@pytest.mark.parametrize("size", [1, 2, 7, 1 << 16])
def test_frames_of_the_host_are_read_however_they_are_cut(size: int) -> None:
    """A pipe does not keep the boundaries of frames."""
    frames = decoded(b"".join(FROM_HOST.values()), size)
    request = OpenRequest(
        config={"events": {"topic": ["a", 'b"\\\n']}},
        instance={"instances": "2"},
        pulsar={"isTlsAllowInsecureConnection": "True"},
    )
    assert frames == [request, Acks([258]), Fail(1), Close(), SchemaTaken(7), SchemaRefused(7, "é")]


@pytest.mark.parametrize("size", [1, 12, 13, 20, 1 << 16])
def test_acknowledgements_that_came_together_stay_together(size: int) -> None:
    """They are handed over as one object for many rows; a frame between them keeps its position."""
    acks = [b"\0\0\0\x09\x01" + seq.to_bytes(8, "big") for seq in range(1, 41)]
    frames = decoded(b"".join([*acks[:30], FROM_HOST["fail"], *acks[30:]]), size)
    answered = [(seq, frame) for frame in frames if isinstance(frame, Acks) for seq in frame.seqs]
    assert [seq for seq, _ in answered] == list(range(1, 41))
    before = [seq for frame in frames[: frames.index(Fail(1))] if isinstance(frame, Acks) for seq in frame.seqs]
    assert before == list(range(1, 31))
    assert len(decoded(b"".join(acks))) == 1


def test_the_java_side_writes_and_reads_the_same_frames(tmp_path: Path) -> None:
    """The host's own classes are compiled from the sources of the archive."""
    java = java_home() / "bin"
    sources = [str(_HOST / "Frames.java"), str(_HOST / "Json.java"), str(_REPOSITORY / "tests/java/FramesCheck.java")]
    subprocess.run([str(java / "javac"), "-d", str(tmp_path), *sources], check=True, capture_output=True, timeout=60)
    cut = encode_record(1, RECORD)
    hostile = [
        cut[:20],
        b"\0\0\0\0\x06",
        b"\xff\xff\xff\xff\x06",
        b"\0\0\0\x01\x0b",
        b"\0\0\0\x06\x0a\x7f\xff\xff\xff\x00",
    ]
    frames = [frame for frame, _, _ in FROM_CHILD] + hostile
    command = [str(java / "java"), "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-Dstdout.encoding=UTF-8", "-cp"]
    command += [str(tmp_path), "org.cassandracdc.source.FramesCheck", *(frame.hex() for frame in frames)]
    printed = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout.decode().splitlines()
    assert dict(line.split(" ") for line in printed[:6]) == {name: data.hex() for name, data in FROM_HOST.items()}
    assert printed[6:-5] == [shown for _, _, shown in FROM_CHILD]
    assert [line.split(" ")[0] for line in printed[-5:]] == ["refused"] * 5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\0\0\0\0\x01", "a length of 0 in a frame of type 1"),
        ((MAX_FRAME_LENGTH + 1).to_bytes(4, "big") + b"\x01", "a length of 67108865"),
        (b"\0\0\0\x02\x01\x00", "1 bytes instead of 8 in a frame of type 1"),
        (b"\0\0\0\x0a\x04\0\0\0\0\0\0\0\7x", "9 bytes instead of 8 in a frame of type 4"),
        (b"\0\0\0\x04\x05\0\0\0", "3 bytes instead of 8 in a frame of type 5"),
        (b"\0\0\0\x01\x63", "not a frame that a host sends in a frame of type 99"),
        (b"\0\0\0\x03\x00{}", "2 bytes that are no OPEN document"),
        (b"\0\0\xc3\x51\x00" + 50_000 * b"[", "50000 bytes that are no OPEN document"),
    ],
)
def test_bytes_that_are_no_frames_are_an_error(data: bytes, message: str) -> None:
    """Host and child may be of different archives, so the child ends."""
    with pytest.raises(HostProtocolError, match=message):
        decoded(data)


def test_an_open_document_that_cannot_be_read_does_not_show_what_stands_in_it() -> None:
    """The document has passwords."""
    text = b'{"config": {"auth.password": "hunter2"}, '
    with pytest.raises(HostProtocolError) as raised:
        decoded((len(text) + 1).to_bytes(4, "big") + b"\x00" + text)
    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_another_python_is_refused_by_the_first_thing_that_runs() -> None:
    """The error comes as a frame, although none of our modules can be imported there."""
    text = (
        f"option python: '{sys.executable}' is None, but the archive was built for cpython-311-x86_64-linux-gnu: set the "
        "option 'python' to an interpreter of that kind, or build the archive with this one"
    )
    assert refusal("cpython-311-x86_64-linux-gnu", None) == encode_error(text)


def test_a_line_of_the_log_has_its_level_before_it() -> None:
    """The host passes the level to Pulsar's log; each line of a text has a level."""
    lines = LogLines("%(name)s: %(message)s")
    levels = (logging.ERROR, logging.WARNING, logging.INFO)
    records = [logging.LogRecord("x", level, "", 1, "a\nb", (), None) for level in levels]
    assert [lines.format(record) for record in records] == ["<3>x: a\n<3>b", "<4>x: a\n<4>b", "<6>x: a\n<6>b"]


def test_a_record_larger_than_a_frame_is_refused_before_it_is_written() -> None:
    """A part of a frame would break the connection."""
    record = SourceRecord(schema_id=1, key=b"", value=bytes(MAX_FRAME_LENGTH), properties={})
    with pytest.raises(HostProtocolError, match="are more than a frame holds"):
        encode_record(1, record)


def test_the_open_document_is_json() -> None:
    """The golden frame's document can be read as JSON."""
    assert json.loads(OPEN_JSON)["config"]["events"]["topic"] == ["a", 'b"\\\n']


def test_the_java_part_stays_thin() -> None:
    """It has fewer than 400 lines of code, without blank lines, comments and their continuations."""
    lines = [line.strip() for path in _HOST.glob("*.java") for line in path.read_text().splitlines()]
    code = [line for line in lines if line and not line.startswith(("//", "/*", "*"))]
    assert 300 < len(code) < 400
