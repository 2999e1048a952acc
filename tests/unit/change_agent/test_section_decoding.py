"""Sections that Cassandra would not write: wrong lengths, compression bombs, unknown encodings, missing keys."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest

from change_agent.commitlog.reader import SegmentReader
from change_agent.commitlog.section_decoder import SegmentOptions
from change_agent.errors import (
    CommitLogReadError,
    KeyStoreError,
    MalformedSegmentError,
    SegmentKeyError,
    UnsupportedEncodingError,
)
from tests.agent.segment_writer import (
    COMPRESSORS,
    encoded_segment_bytes,
    encrypted_block_bytes,
    entry_bytes,
    header_bytes,
)

SEGMENT_ID = 1795226995252
PAYLOAD = b"a mutation"
ENTRY = entry_bytes(PAYLOAD)
KEY, IV = b"K" * 16, b"I" * 16
ENCRYPTED = {"encCipher": "AES/CBC/PKCS5Padding", "encKeyAlias": "k", "encIV": IV.hex()}


class _Keys:
    def __init__(self, key: bytes = KEY) -> None:
        self._key = key

    def secret_key(self, alias: str) -> bytes:
        if alias != "k":
            raise KeyStoreError("no such key")
        return self._key


every_compressor = pytest.mark.parametrize("name", COMPRESSORS)


def _block(plain: bytes, *, plain_length: int | None = None, length: int | None = None, key: bytes = KEY) -> bytes:
    return encrypted_block_bytes(plain, key, IV, plain_length=plain_length, length=length)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of the test's segment."""
    return tmp_path / f"CommitLog-7-{SEGMENT_ID}.log"


def _write(path: Path, parameters: object, *sections: tuple[int, bytes]) -> None:
    path.write_bytes(encoded_segment_bytes(SEGMENT_ID, parameters, sections))


def _payloads(path: Path, options: SegmentOptions | None = None) -> list[bytes]:
    with SegmentReader(path, options=options or SegmentOptions(keys=_Keys())) as reader:
        return [entry.payload for entry in reader.read()]


def _error(path: Path, options: SegmentOptions | None = None) -> CommitLogReadError:
    with pytest.raises(CommitLogReadError) as caught:
        _payloads(path, options)
    assert caught.value.segment == path.name
    assert caught.value.position is not None
    return caught.value


@every_compressor
@pytest.mark.parametrize("package", ["", "org.apache.cassandra.io.compress."])
def test_a_class_is_known_with_and_without_its_package(name: str, package: str, path: Path) -> None:
    """A node that closes a segment writes an empty section. The parameters have no effect on reading."""
    parameters = {"compressionClass": package + name, "compressionParameters": {"compression_level": "9"}}
    compress = COMPRESSORS[name]
    _write(path, parameters, (len(ENTRY), compress(ENTRY)), (0, compress(b"")), (2 * len(ENTRY), compress(ENTRY * 2)))
    assert _payloads(path) == [PAYLOAD] * 3


def test_deflate_makes_nothing_of_nothing(path: Path) -> None:
    """With buffers on the heap, Cassandra's compressor writes no byte for an empty section."""
    _write(path, {"compressionClass": "DeflateCompressor"}, (0, b""), (len(ENTRY), zlib.compress(ENTRY)))
    assert _payloads(path) == [PAYLOAD]


@every_compressor
@pytest.mark.parametrize("claimed", [0, len(ENTRY) - 1, len(ENTRY) + 1, 100_000, 2**31 - 1, -1])
def test_a_length_that_lies_is_refused(name: str, claimed: int, path: Path) -> None:
    """A length that is too small would lose entries and make all later positions wrong."""
    _write(path, {"compressionClass": name}, (claimed, COMPRESSORS[name](ENTRY)))
    error = _error(path)
    assert isinstance(error, MalformedSegmentError)
    assert error.position == len(header_bytes(SEGMENT_ID, parameters={"compressionClass": name}))


@every_compressor
def test_bytes_that_the_compressor_did_not_write_are_refused(name: str, path: Path) -> None:
    """The section may have no bytes at all."""
    for encoded in (b"", b"\xff" * 40):
        _write(path, {"compressionClass": name}, (len(ENTRY), encoded))
        assert isinstance(_error(path), MalformedSegmentError)


@pytest.mark.parametrize("name", ["LZ4Compressor", "SnappyCompressor", "DeflateCompressor", "ZstdCompressor"])
def test_a_bomb_is_refused_before_memory_is_taken(name: str, path: Path) -> None:
    """The bomb claims its real length, which is larger than a segment may be, or a small one."""
    bomb = COMPRESSORS[name](bytes(32 << 20))
    for claimed in (32 << 20, 2**31 - 1, 1000):
        _write(path, {"compressionClass": name}, (claimed, bomb))
        tracemalloc.start()
        try:
            error = _error(path, SegmentOptions(max_segment_size=1 << 20))
            assert tracemalloc.get_traced_memory()[1] < 5_000_000
        finally:
            tracemalloc.stop()
        assert isinstance(error, MalformedSegmentError)


def test_a_few_bytes_cannot_claim_much_memory(path: Path) -> None:
    """The length is refused because these bytes cannot hold it, although a segment may be so large."""
    for name in ("LZ4Compressor", "SnappyCompressor", "DeflateCompressor", "ZstdCompressor"):
        claimed = 200 << 20
        _write(path, {"compressionClass": name}, (claimed, claimed.to_bytes(4, "little") + b"x" * 1000))
        tracemalloc.start()
        try:
            error = _error(path)
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()
        assert "claim to be 209715200 bytes, which they cannot hold" in error.reason


def test_a_segment_larger_than_the_limit_says_what_raises_it(path: Path) -> None:
    """The limit counts all sections. It is commitlog_segment_size if that is larger than the default."""
    section = (len(ENTRY), COMPRESSORS["NoopCompressor"](ENTRY))
    _write(path, {"compressionClass": "NoopCompressor"}, section, section)
    size = len(header_bytes(SEGMENT_ID, parameters={"compressionClass": "NoopCompressor"})) + 2 * (8 + len(ENTRY))
    assert _payloads(path, SegmentOptions(max_segment_size=size)) == [PAYLOAD] * 2
    error = _error(path, SegmentOptions(max_segment_size=size - 1))
    assert "commitlog_segment_size of the options raises this" in str(error)


def test_a_section_that_is_too_long_is_not_read(path: Path) -> None:
    """The encoded bytes may be only a little longer than the decoded ones."""
    _write(path, {"compressionClass": "LZ4Compressor"}, (1000, bytes(3_000_000)))
    tracemalloc.start()
    try:
        error = _error(path, SegmentOptions(max_segment_size=1_000_000))
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()
    assert "a section claims 3000004 encoded bytes, and a segment may have 1000000" in error.reason


def test_a_class_that_is_not_cassandras_is_refused(path: Path) -> None:
    """The error has the name of the class, and the supported ones."""
    _write(path, {"compressionClass": "com.example.MyCompressor"})
    error = _error(path)
    assert isinstance(error, UnsupportedEncodingError)
    assert str(error) == (
        f"{path.name}, position 0: compressed (com.example.MyCompressor) commit logs are not supported (supported:"
        " DeflateCompressor, LZ4Compressor, NoopCompressor, SnappyCompressor, ZstdCompressor); the segment stays"
    )


def test_blocks_make_a_section(path: Path) -> None:
    """Entries may cross blocks. A compressor in the same header is not used."""
    blocks = _block(ENTRY[:5]) + _block(ENTRY[5:] + ENTRY[:7]) + _block(ENTRY[7:])
    _write(path, {**ENCRYPTED, "compressionClass": "DeflateCompressor"}, (2 * len(ENTRY), blocks), (0, b""))
    assert _payloads(path) == [PAYLOAD] * 2


def test_a_header_without_alias_is_not_encrypted(path: Path) -> None:
    """The same holds in Cassandra, which writes both or none."""
    _write(path, {"encCipher": "x", "compressionClass": "NoopCompressor"}, (len(ENTRY), ENTRY))
    assert _payloads(path) == [PAYLOAD]


@pytest.mark.parametrize(
    ("length", "encoded"),
    [
        (len(ENTRY) + 1, _block(ENTRY)),
        (len(ENTRY) - 1, _block(ENTRY)),
        (len(ENTRY), b""),
        (len(ENTRY), _block(ENTRY)[:-1]),
        (len(ENTRY), _block(ENTRY) + b"\0" * 7),
        (len(ENTRY), _block(ENTRY) + b"\0" * 8),
        (len(ENTRY), _block(ENTRY, plain_length=30)),
        (len(ENTRY), _block(ENTRY, length=0)),
        (len(ENTRY), _block(ENTRY, length=-1)),
        (len(ENTRY), _block(ENTRY, length=2**31 - 1)),
        (len(ENTRY), struct.pack(">ii", 2**31 - 16, 5) + b"x" * 64),
        (len(ENTRY), struct.pack(">ii", -16, 5) + b"x" * 64),
        (len(ENTRY), _block(ENTRY, key=b"L" * 16)),
        (2**31 - 1, _block(ENTRY)),
    ],
)
def test_blocks_that_do_not_fit_are_refused(length: int, encoded: bytes, path: Path) -> None:
    """The section's length, a block's length or the key is wrong."""
    _write(path, ENCRYPTED, (length, encoded))
    assert isinstance(_error(path), MalformedSegmentError)


def test_a_key_that_cannot_be_had_is_told_with_its_alias(path: Path) -> None:
    """No keys are given, the store lacks the key, or AES has no keys of its size."""
    _write(path, ENCRYPTED, (len(ENTRY), _block(ENTRY)))
    error = _error(path, SegmentOptions())
    assert isinstance(error, SegmentKeyError)
    assert str(error) == (
        f"{path.name}, position 0: the segment is encrypted with the key 'k': give transparent_data_encryption_options"
        " (cdc decode: --commitlog-options); the segment stays"
    )
    error = _error(path, SegmentOptions(keys=_Keys(b"K" * 5)))
    assert isinstance(error, SegmentKeyError)
    assert "KKKKK" not in str(error)
    _write(path, {**ENCRYPTED, "encKeyAlias": "other"})
    assert "'other': no such key; the segment stays" in str(_error(path))


@pytest.mark.parametrize("iv", [None, "", "00" * 15, "00" * 17, "zz" * 16])
def test_a_wrong_initialization_vector_is_refused(iv: str | None, path: Path) -> None:
    """AES needs 16 bytes."""
    _write(path, {**ENCRYPTED, "encIV": iv})
    assert isinstance(_error(path), MalformedSegmentError)


def test_a_cipher_that_is_not_known_is_refused(path: Path) -> None:
    """A file must not be decrypted with another cipher."""
    _write(path, {**ENCRYPTED, "encCipher": "AES/GCM/NoPadding"})
    error = _error(path)
    assert isinstance(error, UnsupportedEncodingError)
    assert r"encrypted (AES/GCM/NoPadding)" in str(error)
