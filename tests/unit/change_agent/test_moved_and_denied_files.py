"""Files on another disk, on a full disk, and without the right to read them.

The errors are those of the real system.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from change_agent.cdc_raw.archiver import move_file
from change_agent.cdc_raw.listing import SegmentListing

_REPOSITORY = Path(__file__).parents[3]
_ID = time.time_ns() // 1_000_000 - 10_000
_NOBODY = 65534
# A file system in memory, which differs from that of the test's folder.
_OTHER_DISK = Path("/dev/shm")


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system."""
    folder = Path(tempfile.mkdtemp(dir=_OTHER_DISK))
    assert folder.stat().st_dev != tmp_path.stat().st_dev
    yield folder
    shutil.rmtree(folder)


@contextmanager
def _without_privileges() -> Iterator[None]:
    """Root may read every file, so act as `nobody`."""
    privileged = os.geteuid() == 0
    if privileged:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        if privileged:
            os.seteuid(0)


@pytest.fixture
def cdc_raw() -> Iterator[Path]:
    """A folder that every user may enter, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_segment_is_moved_to_another_disk_whole(tmp_path: Path, other_disk: Path) -> None:
    """It keeps its modification time, which says how new a schema it needs."""
    log = tmp_path / "CommitLog-7-1.log"
    log.write_bytes(bytes(range(256)) * 10_000)
    os.utime(log, (1_700_000_000, 1_700_000_000))
    move_file(log, other_disk / log.name)
    assert (other_disk / log.name).read_bytes() == bytes(range(256)) * 10_000
    assert (other_disk / log.name).stat().st_mtime == 1_700_000_000
    assert not log.exists() and [each.name for each in other_disk.iterdir()] == [log.name]


def test_a_disk_that_fills_up_during_a_move_leaves_the_segment_where_it_is(tmp_path: Path, other_disk: Path) -> None:
    """The copied part is deleted."""
    log = tmp_path / "CommitLog-7-1.log"
    log.write_bytes(bytes(3_000_000))
    program = (
        "import resource, sys; from pathlib import Path; from change_agent.cdc_raw.archiver import move_file\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))\n"
        "try: move_file(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "except OSError as error: print(error.strerror)\n"
    )
    command = [sys.executable, "-c", program, str(log), str(other_disk / log.name)]
    done = subprocess.run(command, cwd=_REPOSITORY, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "File too large\n"
    assert log.stat().st_size == 3_000_000
    assert list(other_disk.iterdir()) == []


def test_an_index_that_may_not_be_read_is_told_once_and_the_others_go_on(
    cdc_raw: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The segment waits for its index, and is read when the index can be read."""
    for number in (1, 2):
        (cdc_raw / f"CommitLog-7-{_ID + number}.log").write_bytes(b"x")
        (cdc_raw / f"CommitLog-7-{_ID + number}_cdc.idx").write_text("100\nCOMPLETED")
    denied = cdc_raw / f"CommitLog-7-{_ID + 1}_cdc.idx"
    denied.chmod(0)
    listing = SegmentListing(cdc_raw)
    now_ms = time.time_ns() // 1_000_000
    with _without_privileges():
        found = [listing.segments(now_ms) for _ in range(2)]
    told = [[(each.segment_id, each.limit, each.final) for each in segments or ()] for segments in found]
    assert told == [[(_ID + 1, 0, False), (_ID + 2, 100, True)]] * 2
    assert listing.ignored_files == 1
    [record] = caplog.records
    assert "is left alone: it cannot be read (Permission denied); its segment waits" in record.getMessage()
    denied.chmod(0o644)
    with _without_privileges():
        assert [each.limit for each in listing.segments(now_ms) or ()] == [100, 100]
    assert listing.ignored_files == 0


@pytest.mark.parametrize("name", ["raw", "spill"])
def test_a_folder_that_may_not_be_listed_is_told_once_and_looked_at_again(
    cdc_raw: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that cannot be listed is not taken for deleted."""
    folders = {each: cdc_raw / each for each in ("raw", "spill")}
    for each in folders.values():
        each.mkdir()
    listing = SegmentListing(folders["raw"], [folders["spill"]])
    denied = folders[name]
    denied.chmod(0)
    with _without_privileges():
        assert [listing.segments(0), listing.segments(0)] == [None, None]
    denied.chmod(0o755)
    with _without_privileges():
        assert listing.segments(0) == []
    [record] = caplog.records
    assert "cannot be listed (Permission denied); trying again" in record.getMessage()
