"""Compressed and encrypted segments of real nodes: whole, cut, with wrong bits, and growing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from change_agent.commitlog.reader import SegmentReader
from change_agent.commitlog.segment import SYNC_MARKER_SIZE
from change_agent.errors import BufferUnderflowError, Damage
from tests.golden.segments import ENCODED_SEGMENTS, GoldenSegment, decoded_and_expected, read_until_error

pytestmark = pytest.mark.parametrize("golden", ENCODED_SEGMENTS, ids=lambda golden: golden.line)

# One segment of each encoding gets all its bits flipped. The others use the same code.
_THOROUGH = {"5.0-lz4", "5.0-snappy", "5.0-deflate", "5.0-zstd", "5.0-noop", "5.0-jceks"}


def test_every_mutation_is_what_cassandra_reads(golden: GoldenSegment) -> None:
    """The expected lines, including the positions, come from Cassandra's own reader."""
    lines, expected = decoded_and_expected(golden)
    assert lines == expected
    assert len(lines) == 20


def test_the_encoding_is_that_of_the_header(golden: GoldenSegment) -> None:
    """The name of the file does not contain the encoding."""
    kind = golden.line.rpartition("-")[2]
    with SegmentReader(golden.path, options=golden.options()) as reader:
        descriptor = reader.descriptor
    if kind in {"jceks", "p12"}:
        assert descriptor.encryption == "AES/CBC/PKCS5Padding"
        assert descriptor.encryption_parameters["encKeyAlias"] == "Testing:1"
    else:
        assert descriptor.encryption is None
        assert f"{kind}compressor" == str(descriptor.compression).rpartition(".")[2].lower()


def test_a_read_resumes_behind_any_entry(golden: GoldenSegment) -> None:
    """Positions count decoded bytes, so they may be larger than the file."""
    entries, options = golden.entries(), golden.options()
    for index, entry in enumerate(entries):
        with SegmentReader(golden.path, entry.position, options) as reader:
            assert list(reader.read()) == entries[index + 1 :]


def test_a_limit_that_grows_yields_every_entry_once(golden: GoldenSegment) -> None:
    """The limit is the offset of an index, which counts decoded bytes.

    It may have any value while Cassandra rewrites the index.
    """
    entries, seen = golden.entries(), []
    with SegmentReader(golden.path, options=golden.options()) as reader:
        for limit in range(0, entries[-1].position + 20, 7):
            for entry in reader.read(limit):
                assert entry.position <= limit
                seen.append(entry)
    assert seen == entries


@pytest.mark.exhaustive
def test_a_segment_cut_anywhere_yields_its_whole_sections(golden: GoldenSegment, tmp_path: Path) -> None:
    """A section cannot be decoded in part. A cut section ends in a typed error."""
    whole, content, options = golden.entries(), golden.path.read_bytes(), golden.options()
    path = tmp_path / golden.path.name
    clean_ends, step = 0, 1 if golden.line in _THOROUGH else 5
    path.write_bytes(content)
    for cut in reversed(range(0, len(content), step)):
        os.truncate(path, cut)
        entries, error = read_until_error(path, options)
        assert entries == whole[: len(entries)]
        if error is None:
            # There is no room for another marker. Cassandra takes such a segment as full, and so does the agent.
            clean_ends += 1
        else:
            assert isinstance(error, BufferUnderflowError)
            assert error.segment == path.name
            assert error.position is not None
    if step == 1:
        assert clean_ends % SYNC_MARKER_SIZE == 0
    assert 0 < clean_ends < len(content) / 4


def test_a_segment_that_grows_is_read_as_soon_as_a_section_is_whole(golden: GoldenSegment, tmp_path: Path) -> None:
    """One reader follows a file that grows. It returns every entry once, and tries again after each underflow."""
    whole, content, options = golden.entries(), golden.path.read_bytes(), golden.options()
    path = tmp_path / golden.path.name
    path.write_bytes(content[:400])
    seen = []
    with SegmentReader(path, options=options) as reader, path.open("ab", buffering=0) as file:
        for start in range(400, len(content), 11):
            file.write(content[start : start + 11])
            try:
                for entry in reader.read():
                    seen.append(entry)  # noqa: PERF402  # what comes before an underflow counts
            except BufferUnderflowError:
                continue
    assert seen == whole


@pytest.mark.exhaustive
def test_a_segment_with_any_bit_flipped_stops_at_it(golden: GoldenSegment, tmp_path: Path) -> None:
    """The entries before the bad byte are right. Then a typed error follows, unless the bit has no meaning."""
    whole, content, options = golden.entries(), golden.path.read_bytes(), golden.options()
    path = tmp_path / golden.path.name
    path.write_bytes(content)
    step = 1 if golden.line in _THOROUGH else 41
    with path.open("r+b", buffering=0) as file:
        harmless, damages = 0, set()
        for bit in range(0, len(content) * 8, step):
            at = bit // 8
            os.pwrite(file.fileno(), bytes([content[at] ^ (1 << bit % 8)]), at)
            entries, error = read_until_error(path, options)
            os.pwrite(file.fileno(), content[at : at + 1], at)
            assert entries == whole[: len(entries)]
            if error is None:
                harmless += 1
                assert entries == whole
            else:
                assert error.segment == path.name
                damages.add(error.damage)
    assert step > 1 or {Damage.HEADER, Damage.SYNC_MARKER, Damage.SECTION} <= damages
    # Different compressed bytes may have the same content: another match of an LZ4 block, or an unused bit of a Zstd
    # header.
    assert harmless <= len(content) * 8 / step * 0.01
