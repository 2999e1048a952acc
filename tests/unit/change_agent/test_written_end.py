"""WrittenEnd: up to where a segment is written, judged by its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from change_agent.commitlog.written_end import WrittenEnd
from tests.agent.growing_segment import GrowingSegment
from tests.agent.segment_writer import encoded_segment_bytes, header_bytes, lz4_bytes
from tests.agent.stages import payloads

_SIZE = 1024 * 1024


@pytest.fixture(params=["sparse", "allocated"])
def segment(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[GrowingSegment]:
    """A sparse file, as Cassandra creates it, and a file with all blocks allocated."""
    made = GrowingSegment(tmp_path / "CommitLog-7-5.log", 5, _SIZE)
    if request.param == "allocated":
        made.write(made.last_marker, bytes(_SIZE - made.last_marker))
    yield made
    made.close()


def _end_of(path: Path) -> int | None:
    with WrittenEnd(path) as end:
        return end.find()


def test_an_empty_segment_ends_with_its_header(segment: GrowingSegment) -> None:
    """Only zeros follow the header."""
    assert _end_of(segment.path) == len(header_bytes(5))


def test_the_end_is_that_of_the_last_entry(segment: GrowingSegment) -> None:
    """The checksum of the entry may end with zeros."""
    position = segment.append(payloads(3))
    found = _end_of(segment.path)
    assert found is not None
    assert position - 4 < found <= position
    segment.sync()
    assert _end_of(segment.path) == found


def test_an_entry_behind_one_that_is_not_written_is_seen(segment: GrowingSegment) -> None:
    """The distance does not matter."""
    with WrittenEnd(segment.path) as end:
        start = segment.append(payloads(1))
        assert end.find() is not None
        segment.allocate(bytes(300_000))
        late = segment.append(payloads(1))
        found = end.find()
        assert found is not None
        assert start + 300_000 < found <= late


def test_a_compressed_segment_does_not_tell(tmp_path: Path) -> None:
    """The node writes such a segment only when it syncs."""
    path = tmp_path / "CommitLog-7-5.log"
    path.write_bytes(encoded_segment_bytes(5, {"compressionClass": "LZ4Compressor"}, [(5, lz4_bytes(b"bytes"))]))
    assert _end_of(path) is None


def test_a_file_that_grows_with_its_syncs_does_not_tell(tmp_path: Path) -> None:
    """commitlog_disk_access_mode: direct writes such files."""
    path = tmp_path / "CommitLog-7-5.log"
    made = GrowingSegment(path, 5, _SIZE)
    position = made.append(payloads(3))
    made.close()
    with path.open("r+b") as file:
        file.truncate((position // 4096 + 1) * 4096)
    assert _end_of(path) is None


def test_what_is_mapped_stays_so_when_it_is_nearly_full(segment: GrowingSegment) -> None:
    """The node chooses the way of writing at its start."""
    with WrittenEnd(segment.path) as end:
        segment.append(payloads(1))
        assert end.find() is not None
        segment.write(_SIZE - 10, b"x")
        assert end.find() == _SIZE - 9
