"""Files with row data: the code sets modes 0700 and 0600 itself, for any umask and any user of the commands."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from cdc.main import cli
from change_agent.archive.archiving import Archiving
from change_agent.archive.segment_archive import SegmentArchive
from change_agent.cdc_raw.archiver import move_file
from change_agent.private_files import make_private_folder
from tests.agent.segment_writer import segment_bytes
from tests.agent.stages import GOLDEN, MemoryTables, StagedAgent, payloads
from tests.golden.make_state import write_state
from tests.topics.events_topic import wait_until

_ID = time.time_ns() // 1_000_000 - 10_000
_NODE = "00000000-0000-0000-0000-000000000001"
_NOBODY = 65534


@pytest.fixture(autouse=True)
def _open_to_all() -> Iterator[None]:
    """Set a umask that removes no rights, so that only the code restricts them."""
    before = os.umask(0)
    yield
    os.umask(before)


def _modes(folder: Path) -> dict[str, str]:
    """The files and folders, including this folder, whose modes are not 0600 and 0700."""
    found = {str(each.relative_to(folder)): each.lstat().st_mode for each in (folder, *folder.rglob("*"))}
    return {
        name: oct(stat.S_IMODE(mode))
        for name, mode in found.items()
        if stat.S_IMODE(mode) != (0o700 if stat.S_ISDIR(mode) else 0o600)
    }


def test_what_the_agent_stores_is_its_users_only(tmp_path: Path) -> None:
    """Positions, schema history, parked mutations, held events, numbers of partitions, and their folders."""
    work = tmp_path / "var" / "work"
    make_private_folder(work)
    write_state(work)
    assert len(list(work.rglob("*"))) > 4
    assert _modes(tmp_path / "var") == {}


def test_segments_that_are_set_aside_archived_or_handed_over_again_are_its_users_only(tmp_path: Path) -> None:
    """Segments contain the rows of every table, including password hashes of roles."""
    archive = tmp_path / "archive"
    agent = StagedAgent(
        tmp_path,
        MemoryTables(GOLDEN.tables()),
        archiving=Archiving(SegmentArchive(str(archive), "zstd"), lambda: _NODE, lambda: None),
    )
    bad = bytearray(segment_bytes(_ID + 1, [payloads(3)]))
    bad[-10] ^= 1
    for number, content in enumerate((segment_bytes(_ID, [payloads(3)]), bytes(bad))):
        agent.segment(_ID + number, content, "9\nCOMPLETED")
        (tmp_path / f"CommitLog-7-{_ID + number}.log").unlink()  # Cassandra has replayed or discarded it
    agent.start()
    wait_until(lambda: agent.files() == [], "one is archived, the other one set aside")
    agent.stop()
    packed = archive / _NODE / f"CommitLog-7-{_ID}.log.zst"
    for segment in (str(packed), f"CommitLog-7-{_ID + 1}.log"):
        result = CliRunner().invoke(cli, ["agent", "reprocess", "--working-dir", str(agent.work), segment])
        assert result.exit_code == 0
        assert _modes(agent.work) == _modes(archive) == {}
    assert len(list((agent.work / "reprocess").iterdir())) == 2


def test_a_segment_that_is_copied_to_another_disk_does_not_keep_what_others_may(tmp_path: Path) -> None:
    """The same holds for a moved segment. A segment that Cassandra still has keeps Cassandra's mode."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other_disk:
        for folder in (Path(other_disk), tmp_path):
            log = tmp_path / "CommitLog-7-1.log"
            log.write_bytes(b"segment")
            move_file(log, folder / "CommitLog-7-2.log")
            assert _modes(folder / "CommitLog-7-2.log") == {}
    log.write_bytes(b"segment")
    os.link(log, tmp_path / "CommitLog-7-3.log")
    move_file(tmp_path / "CommitLog-7-3.log", tmp_path / "CommitLog-7-4.log")
    assert _modes(tmp_path / "CommitLog-7-4.log") == {".": "0o666"}


def test_what_root_hands_over_belongs_to_the_agents_user(tmp_path: Path) -> None:
    """An agent of another user could not read a file of mode 0600 that belongs to root."""
    work = tmp_path / "work"
    (work / "error").mkdir(parents=True)
    (work / "error" / "CommitLog-7-1.log").write_bytes(b"segment")
    # Only root can give a file to another user.
    user, group = (_NOBODY, _NOBODY) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    shutil.chown(work, user, group)
    result = CliRunner().invoke(cli, ["agent", "reprocess", "--working-dir", str(work)])
    assert result.exit_code == 0
    for made in (work / "reprocess", work / "reprocess" / "CommitLog-7-1.log"):
        assert (made.stat().st_uid, made.stat().st_gid) == (user, group)
        assert _modes(made) == {}
