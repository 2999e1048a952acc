"""Headers, names and index files of segments."""

from __future__ import annotations

import pytest

from change_agent.cdc_raw.cdc_index import CdcIndex, index_name, parse_cdc_index, segment_name
from change_agent.commitlog.descriptor import file_id, read_descriptor
from change_agent.errors import (
    BufferUnderflowError,
    ChecksumMismatchError,
    MalformedSegmentError,
    UnsupportedVersionError,
)
from tests.agent.segment_writer import header_bytes

SEGMENT_ID = 1795226995252


def test_a_header_names_version_and_segment() -> None:
    """The first sync marker follows the header directly."""
    header = header_bytes(SEGMENT_ID)
    descriptor = read_descriptor(header + b"anything")
    assert (descriptor.version, descriptor.segment_id, descriptor.header_size) == (7, SEGMENT_ID, len(header))
    assert (descriptor.compression, descriptor.encryption) == (None, None)


def test_a_null_compression_class_is_none() -> None:
    """Some versions of Cassandra write the key without a value."""
    assert read_descriptor(header_bytes(1, parameters={"compressionClass": None})).compression is None


def test_an_encoded_segment_is_described() -> None:
    """It names the compression and its parameters. As in Cassandra, a cipher counts only together with its key."""
    header = header_bytes(1, parameters={"compressionClass": "LZ4Compressor", "compressionParameters": {"a": "b"}})
    assert read_descriptor(header).compression == "LZ4Compressor"
    assert read_descriptor(header).compression_parameters == {"a": "b"}
    parameters = {"encCipher": "AES/CBC/PKCS5Padding", "encKeyAlias": "k", "encIV": None}
    encrypted = read_descriptor(header_bytes(1, parameters=parameters))
    assert encrypted.encryption == "AES/CBC/PKCS5Padding"
    assert encrypted.encryption_parameters == {"encCipher": "AES/CBC/PKCS5Padding", "encKeyAlias": "k"}
    assert read_descriptor(header_bytes(1, parameters={**parameters, "encKeyAlias": None})).encryption is None


@pytest.mark.parametrize("version", [1, 9, 10, 2**31 - 1])
def test_an_unknown_version_is_refused_whatever_follows(version: int) -> None:
    """The version is checked before the rest of the header, which may have an unknown form."""
    for content in (header_bytes(1, version=version), header_bytes(1, version=version)[:14] + b"?" * 100):
        with pytest.raises(UnsupportedVersionError, match=f"version {version} is not supported"):
            read_descriptor(content)


@pytest.mark.parametrize("content", [b"", b"\0" * 1000, header_bytes(1)[:13], header_bytes(1)[:-1]])
def test_a_header_that_is_not_there_yet_is_an_underflow(content: bytes) -> None:
    """Cassandra creates the file first, and writes the header later."""
    with pytest.raises(BufferUnderflowError, match="no complete header"):
        read_descriptor(content)


@pytest.mark.parametrize("parameters", [[], "text", 1])
def test_parameters_that_are_no_object_are_refused(parameters: object) -> None:
    """The checksum of the header fits, but its content does not."""
    with pytest.raises(MalformedSegmentError, match="no JSON object"):
        read_descriptor(header_bytes(1, parameters=parameters))


def test_a_wrong_checksum_is_told_with_its_place() -> None:
    """Every error of the commit log names the segment, the position and the reason."""
    header = bytearray(header_bytes(1))
    header[-1] ^= 1
    with pytest.raises(ChecksumMismatchError) as caught:
        read_descriptor(bytes(header))
    located = caught.value.with_location("CommitLog-7-1.log", 5)
    assert str(located) == "CommitLog-7-1.log, position 0: the checksum of the segment's header does not match"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CommitLog-7-1795226995252.log", (7, 1795226995252)),
        ("CommitLog-6-12_cdc.idx", (6, 12)),
        ("CommitLog-7-12.log.bak", None),
        ("commitlog-7-12.log", None),
        ("CommitLog-12.log", None),
    ],
)
def test_a_file_name_holds_version_and_segment(name: str, expected: tuple[int, int] | None) -> None:
    """The same holds for segments and their index files."""
    assert file_id(name) == expected


def test_segment_and_index_name_each_other() -> None:
    """The names are those of o.a.c.db.commitlog.CommitLogDescriptor."""
    assert index_name("CommitLog-7-12.log") == "CommitLog-7-12_cdc.idx"
    assert segment_name("CommitLog-7-12_cdc.idx") == "CommitLog-7-12.log"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", None),
        (b"\n", None),
        (b"1048576", CdcIndex(offset=1048576, completed=False)),
        (b"1048", CdcIndex(offset=1048, completed=False)),
        (b"1048576\n", CdcIndex(offset=1048576, completed=False)),
        (b"1048576\nCOMPL", CdcIndex(offset=1048576, completed=False)),
        (b"1048576\nCOMPLETED", CdcIndex(offset=1048576, completed=True)),
        (b"1048576\nCOMPLETED\n", CdcIndex(offset=1048576, completed=True)),
    ],
)
def test_an_index_is_read_at_any_moment_of_its_writing(content: bytes, expected: CdcIndex | None) -> None:
    """Cassandra rewrites an index in place, so the agent may read any prefix of it."""
    assert parse_cdc_index(content) == expected


@pytest.mark.parametrize("content", [b"abc", b"-5", b"12 34", b"12\nDONE", b"\nCOMPLETED", b"9" * 11, b"\xb2"])
def test_what_is_no_index_is_refused(content: bytes) -> None:
    """The content must not be taken for an offset."""
    with pytest.raises(MalformedSegmentError, match="instead of an offset"):
        parse_cdc_index(content)
