"""SegmentReader: framing, resuming, following a growing segment, and refused content."""

from __future__ import annotations

import os
import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest

from change_agent.commitlog.reader import SegmentReader
from change_agent.errors import (
    BufferUnderflowError,
    ChecksumMismatchError,
    CommitLogReadError,
    Damage,
    MalformedSegmentError,
    UnsupportedVersionError,
)
from tests.agent.segment_writer import entry_bytes, header_bytes, segment_bytes, sync_marker_bytes

SEGMENT_ID = 5_000_000_001
NAME = f"CommitLog-7-{SEGMENT_ID}.log"
FIRST = len(header_bytes(SEGMENT_ID))  # position of the first sync marker
PAYLOADS = [bytes([65 + index]) * (10 + index) for index in range(6)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of the test's segment."""
    return tmp_path / NAME


def _entries(path: Path, start: int = 0, limit: int | None = None) -> list[bytes]:
    with SegmentReader(path, start) as reader:
        return [entry.payload for entry in reader.read(limit)]


def _error(path: Path) -> CommitLogReadError:
    with SegmentReader(path) as reader, pytest.raises(CommitLogReadError) as caught:
        list(reader.read())
    return caught.value


def test_sections_are_read_in_order(path: Path) -> None:
    """An entry's position is the end of its checksum. A section may be empty."""
    path.write_bytes(segment_bytes(SEGMENT_ID, [PAYLOADS[:2], [], PAYLOADS[2:]]))
    with SegmentReader(path) as reader:
        entries = list(reader.read())
        assert reader.position == entries[-1].position == path.stat().st_size
    assert [entry.payload for entry in entries] == PAYLOADS
    assert entries[0].position == FIRST + 8 + 12 + 10
    assert entries[0].size == 10


def test_zeros_behind_the_last_section_end_the_segment(path: Path) -> None:
    """Cassandra allocates segments at their full size."""
    path.write_bytes(segment_bytes(SEGMENT_ID, [PAYLOADS]) + b"\0" * 5000)
    assert _entries(path) == PAYLOADS


def test_zeros_end_the_last_section_too(path: Path) -> None:
    """As in Cassandra, a size of zero is the end of the log."""
    body = b"".join(map(entry_bytes, PAYLOADS[:2])) + b"\0" * 100
    marker = sync_marker_bytes(SEGMENT_ID, FIRST, FIRST + 8 + len(body))
    path.write_bytes(header_bytes(SEGMENT_ID) + marker + body + b"\0" * 1000)
    assert _entries(path) == PAYLOADS[:2]


def test_a_hole_of_zeros_is_not_taken_for_the_end(path: Path) -> None:
    """If another section follows, entries were lost, which must be reported."""
    content = bytearray(segment_bytes(SEGMENT_ID, [PAYLOADS[:2], PAYLOADS[2:]]))
    hole = FIRST + 8 + 22
    content[hole : hole + 23] = b"\0" * 23
    path.write_bytes(content)
    error = _error(path)
    assert isinstance(error, MalformedSegmentError)
    assert error.damage is Damage.ZEROS
    assert (
        str(error) == f"{NAME}, position {hole}: there are zeros instead of an entry, and the log continues after them"
    )


def test_reading_follows_the_limit_of_a_growing_segment(path: Path) -> None:
    """Cassandra fills a file of a fixed size. The index gives the limit."""
    sections = [PAYLOADS[:2], PAYLOADS[2:3], PAYLOADS[3:]]
    path.write_bytes(b"\0" * 4096)
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), header_bytes(SEGMENT_ID), 0)
        seen: list[bytes] = []
        with SegmentReader(path) as reader:
            assert list(reader.read(FIRST)) == []
            assert reader.position == FIRST
            for count in (1, 2, 3):
                written = segment_bytes(SEGMENT_ID, sections[:count])
                os.pwrite(file.fileno(), written, 0)
                seen += [entry.payload for entry in reader.read(len(written))]
                assert seen == [payload for section in sections[:count] for payload in section]
                assert reader.position == len(written)


def test_a_limit_inside_a_section_holds_back_what_ends_behind_it(path: Path) -> None:
    """The index of a node that crashed may have any position."""
    path.write_bytes(segment_bytes(SEGMENT_ID, [PAYLOADS]))
    end = FIRST + 8 + 22 + 23
    assert _entries(path, 0, end - 1) == PAYLOADS[:1]
    assert _entries(path, 0, end) == PAYLOADS[:2]
    with SegmentReader(path) as reader:
        assert [entry.payload for entry in reader.read(end)] == PAYLOADS[:2]
        assert [entry.payload for entry in reader.read()] == PAYLOADS[2:]


def test_reading_starts_where_another_reader_stopped(path: Path) -> None:
    """The start is the end of an entry, of a section, or of the segment."""
    path.write_bytes(segment_bytes(SEGMENT_ID, [PAYLOADS[:3], PAYLOADS[3:]]))
    with SegmentReader(path) as reader:
        entries = list(reader.read())
    for index, entry in enumerate(entries):
        assert _entries(path, entry.position) == PAYLOADS[index + 1 :]


def test_a_reader_that_is_left_early_remembers_its_place(path: Path) -> None:
    """The position is that of the last returned entry, although the reader has read ahead."""
    path.write_bytes(segment_bytes(SEGMENT_ID, [PAYLOADS]))
    with SegmentReader(path) as reader:
        first = next(reader.read())
        assert reader.position == first.position
        assert [entry.payload for entry in reader.read()] == PAYLOADS[1:]


def test_a_bad_mutation_can_be_skipped(path: Path) -> None:
    """The size has its own checksum, so the error has the position of the next entry."""
    content = bytearray(segment_bytes(SEGMENT_ID, [PAYLOADS]))
    start = FIRST + 8
    content[start + 8] ^= 0xFF
    path.write_bytes(content)
    with SegmentReader(path) as reader:
        with pytest.raises(ChecksumMismatchError, match="an entry's mutation") as caught:
            list(reader.read())
        assert (caught.value.segment, caught.value.position, reader.position) == (NAME, start, start)
        assert caught.value.resume_position == start + 22
        reader.skip_to(start + 22)
        assert [entry.payload for entry in reader.read()] == PAYLOADS[1:]


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (9, "an entry claims a mutation of 9 bytes"),
        (-1, "an entry claims a mutation of -1 bytes"),
        (1000, "an entry claims a mutation of 1000 bytes, more than its section holds"),
        (2**31 - 1, "an entry claims a mutation of 2147483647 bytes, more than its section holds"),
    ],
)
def test_a_size_that_cannot_be_true_is_refused(path: Path, size: int, reason: str) -> None:
    """The checksum of the size fits."""
    raw = struct.pack(">i", size)
    body = entry_bytes(PAYLOADS[0]) + raw + struct.pack(">I", zlib.crc32(raw)) + b"x" * 40
    marker = sync_marker_bytes(SEGMENT_ID, FIRST, FIRST + 8 + len(body))
    path.write_bytes(header_bytes(SEGMENT_ID) + marker + body + b"\0" * 4000)
    assert str(_error(path)) == f"{NAME}, position {FIRST + 30}: {reason}"


@pytest.mark.parametrize("section_end", [0, 1, FIRST, FIRST + 7])
def test_a_marker_that_points_back_is_refused(path: Path, section_end: int) -> None:
    """A circular chain of markers would never end."""
    path.write_bytes(header_bytes(SEGMENT_ID) + sync_marker_bytes(SEGMENT_ID, FIRST, section_end) + b"\0" * 100)
    assert str(_error(path)) == f"{NAME}, position {FIRST}: a sync marker points back to position {section_end}"


def test_bytes_that_are_too_few_for_an_entry_are_refused(path: Path) -> None:
    """The bytes are between the last entry of a section and the next marker."""
    body = entry_bytes(PAYLOADS[0]) + b"\0\0\1"
    path.write_bytes(
        header_bytes(SEGMENT_ID) + sync_marker_bytes(SEGMENT_ID, FIRST, FIRST + 8 + len(body)) + body + b"\0" * 50
    )
    assert "3 bytes are left after the last entry" in str(_error(path))


def test_a_cut_section_yields_its_whole_entries_first(path: Path) -> None:
    """According to its marker, the section is longer than the file."""
    path.write_bytes(segment_bytes(SEGMENT_ID, [PAYLOADS])[:-1])
    seen: list[bytes] = []
    with (
        SegmentReader(path) as reader,
        pytest.raises(BufferUnderflowError, match="the segment is cut: it ends at position"),
    ):
        seen.extend(entry.payload for entry in reader.read())
    assert seen == PAYLOADS[:-1]


def test_a_segment_under_another_name_is_refused(path: Path) -> None:
    """The header decides which segment this is."""
    path.write_bytes(segment_bytes(SEGMENT_ID + 1, [PAYLOADS]))
    with pytest.raises(MalformedSegmentError, match=f"the header names segment {SEGMENT_ID + 1}"):
        SegmentReader(path)


def test_an_unknown_version_is_told_with_the_segment(path: Path) -> None:
    """Version 9 has been seen in practice."""
    path.write_bytes(header_bytes(SEGMENT_ID, version=9) + b"\0" * 100)
    with pytest.raises(UnsupportedVersionError) as caught:
        SegmentReader(path)
    assert (caught.value.segment, caught.value.version) == (NAME, 9)


def test_a_missing_file_is_an_error_of_ours(path: Path) -> None:
    """The archiver may have deleted the file just before. The original error is the cause."""
    with pytest.raises(CommitLogReadError, match="cannot be read: No such file or directory") as caught:
        SegmentReader(path)
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_memory_does_not_grow_with_the_segment(path: Path) -> None:
    """16 MB of entries are read with less than 2 MB of memory."""
    section = [b"x" * 1000] * 1000
    path.write_bytes(segment_bytes(SEGMENT_ID, [section] * 16))
    tracemalloc.start()
    try:
        with SegmentReader(path) as reader:
            assert sum(1 for _ in reader.read()) == 16_000
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
