"""No name or link leads the agent's files out of their folders."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from change_agent.archive.segment_archive import SegmentArchive, fetch_segment
from change_agent.cdc_raw.archiver import move_file
from change_agent.cdc_raw.folder import list_folder

_LOG = "CommitLog-7-1.log"


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file outside that a link points to."""
    path = tmp_path / "precious"
    path.write_text("keep me")
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A segment."""
    path = tmp_path / "cdc_raw" / _LOG
    path.parent.mkdir()
    path.write_bytes(b"segment")
    return path


@pytest.fixture
def other_disk() -> Iterator[Path]:
    """A folder on another file system, to which files are copied."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", [_LOG, f"{_LOG}.tmp"])
def test_a_link_in_the_spill_folder_is_not_written_through(
    name: str, log: Path, precious: Path, other_disk: Path, tmp_path: Path
) -> None:
    """A moved or copied segment replaces the link."""
    for folder in (other_disk, tmp_path / "spill"):
        folder.mkdir(exist_ok=True)
        (folder / name).symlink_to(precious)
        log.write_bytes(b"segment")
        move_file(log, folder / _LOG)
        assert (folder / _LOG).read_bytes() == b"segment"
        assert not (folder / _LOG).is_symlink()
    assert precious.read_text() == "keep me"


@pytest.mark.parametrize("name", [_LOG, f"{_LOG}.tmp"])
def test_a_link_in_the_archive_is_not_written_through(name: str, log: Path, precious: Path, tmp_path: Path) -> None:
    """The same holds for the folder to which a segment is fetched."""
    archive, back = tmp_path / "archive" / "node", tmp_path / "back"
    for folder in (archive, back):
        folder.mkdir(parents=True)
        (folder / name).symlink_to(precious)
    SegmentArchive(str(archive.parent), "none").store(log, "node")
    assert (archive / _LOG).read_bytes() == b"segment"
    assert fetch_segment(str(log), back).read_bytes() == b"segment"
    assert precious.read_text() == "keep me"


def test_a_link_or_a_pipe_in_place_of_a_segment_is_left_alone(log: Path, precious: Path) -> None:
    """A link could lead anywhere, and Cassandra creates neither links nor pipes."""
    (log.parent / "CommitLog-7-2.log").symlink_to(precious)
    (log.parent / "CommitLog-7-2_cdc.idx").symlink_to(precious)
    content = list_folder(log.parent)
    assert list(content.logs) == [1]
    assert sorted(content.strangers) == ["CommitLog-7-2.log", "CommitLog-7-2_cdc.idx"]
