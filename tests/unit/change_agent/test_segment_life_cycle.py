"""The life cycle of segments: without index, of other versions, of earlier starts, damaged, moved, on a full disk.

Real files and all stages of an agent; the schema and the broker are in memory. The cases are known failures of other
readers of `cdc_raw`.
"""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

import pytest

from change_agent.cdc_raw.archiver import SegmentArchiver
from change_agent.positions.offsets import OffsetStore, StoredPositions
from tests.agent.segment_writer import segment_bytes
from tests.agent.stages import GOLDEN, MemoryTables, StagedAgent, payloads, tracked_entries
from tests.golden.segments import GOLDEN_SEGMENTS
from tests.topics.events_topic import wait_until

# Ids of a node that started now, so that no segment seems to belong to an earlier start.
_ID = time.time_ns() // 1_000_000 - 10_000
_OLD_S = 60.0


def _age(path: Path, seconds: float = _OLD_S) -> None:
    # The time is also earlier than the ids, which were created when the tests were collected.
    then = min(time.time(), _ID / 1000) - seconds
    os.utime(path, (then, then))


def _forget_by_cassandra(agent: StagedAgent, segment_id: int) -> None:
    """Remove the segment from Cassandra's own commit log folder."""
    (agent.cdc_raw.parent / f"CommitLog-7-{segment_id}.log").unlink()


def test_a_hard_link_without_index_is_neither_read_nor_deleted(agent: StagedAgent) -> None:
    """Cassandra links a new segment long before it has a change. It is not lag, and the agent must not delete it."""
    agent.segment(_ID, segment_bytes(_ID, [payloads(3)]), None)
    agent.segment(_ID + 1, segment_bytes(_ID + 1, [payloads(1)]), "9\nCOMPLETED")
    wait_until(lambda: len(agent.published) == 1, "the other segment is read")
    wait_until(lambda: agent.files() == [f"CommitLog-7-{_ID}.log"], "the other segment is deleted")
    assert [each.header.segment_id for each in agent.published] == [_ID + 1]


def test_an_orphan_without_index_that_cassandra_has_unlinked_is_read_and_deleted(agent: StagedAgent) -> None:
    """The stop of a node left it behind, and it counts for cdc_total_space. It may have changes, so it is read."""
    log = agent.segment(_ID, segment_bytes(_ID, [payloads(3)]), None)
    _age(log)
    _forget_by_cassandra(agent, _ID)
    wait_until(lambda: agent.files() == [], "the orphan is deleted")
    assert len(agent.published) == 3


def test_an_orphan_of_an_earlier_start_of_the_node_is_read_and_deleted(agent: StagedAgent) -> None:
    """It was last written before the creation of a segment of a later start, which has an index."""
    log = agent.segment(_ID, segment_bytes(_ID, [[]]), None)
    _age(log)
    agent.segment(_ID + 1_000, segment_bytes(_ID + 1_000, [payloads(1)]), "9")
    wait_until(lambda: f"CommitLog-7-{_ID}.log" not in agent.files(), "the orphan is deleted")
    assert f"CommitLog-7-{_ID + 1_000}.log" in agent.files()


def test_a_segment_that_was_made_in_advance_is_not_taken_for_an_orphan_when_ids_are_ahead_of_the_clock(
    agent: StagedAgent,
) -> None:
    """After its clock was set back, Cassandra continues from its highest id. The newest link may still get changes."""
    ahead = _ID + 86_400_000
    agent.segment(ahead, segment_bytes(ahead, [payloads(1)]), "100")
    agent.segment(ahead + 1, segment_bytes(ahead + 1, [[]]), None)
    agent.segment(_ID, segment_bytes(_ID, [payloads(2)]), "9\nCOMPLETED")
    wait_until(lambda: f"CommitLog-7-{_ID}.log" not in agent.files(), "a look was taken")
    time.sleep(0.1)
    assert f"CommitLog-7-{ahead + 1}.log" in agent.files()


def test_a_torn_or_shrinking_index_never_takes_the_reader_back(agent: StagedAgent) -> None:
    """Cassandra rewrites it in place, so it may be empty or have only its first digits.

    Nothing is read twice or deleted.
    """
    first = len(segment_bytes(_ID, [payloads(2)]))
    agent.segment(_ID, segment_bytes(_ID, [payloads(2), payloads(4)]), str(first))
    wait_until(lambda: len(agent.published) == 2, "the first section is read")
    for torn in ("", str(first)[:1], str(first)[:-1], "\n", f"{first}\nCOMP"):
        agent.index(_ID, torn)
        time.sleep(0.05)
    assert (len(agent.published), len(agent.files())) == (2, 2)
    agent.index(_ID, "99999\nCOMPLETED")
    wait_until(lambda: agent.files() == [], "the segment is finished")
    assert len(set(agent.places())) == len(agent.published) == 6


def test_an_index_that_replay_writes_below_the_end_of_the_log_loses_nothing(agent: StagedAgent) -> None:
    """After a crash it has the physical length of the file, which may be below the last position.

    The markers decide.
    """
    agent.segment(_ID, segment_bytes(_ID, [payloads(2), payloads(4)]), "40\nCOMPLETED")
    wait_until(lambda: agent.files() == [], "the segment is finished")
    assert len(agent.published) == 6


def test_a_segment_of_cassandra_3_11_has_no_index_and_is_read_when_it_appears(tmp_path: Path) -> None:
    """Cassandra 3.11 moves a segment to cdc_raw when it is complete. Such a file may be left after an upgrade."""
    golden = next(each for each in GOLDEN_SEGMENTS if each.version == 6)
    agent = StagedAgent(tmp_path, MemoryTables(golden.tables()))
    agent.start()
    try:
        (tmp_path / golden.path.name).write_bytes(golden.path.read_bytes())
        (tmp_path / golden.path.name).rename(agent.cdc_raw / golden.path.name)
        wait_until(lambda: agent.metrics.segments_finished == 1, "the segment is finished")
    finally:
        agent.stop()
    assert len(agent.published) > 10
    assert agent.metrics.segments_unreadable == 0


def test_a_segment_of_an_unknown_version_is_left_untouched_and_told(
    agent: StagedAgent, caplog: pytest.LogCaptureFixture
) -> None:
    """A later Cassandra wrote it. It is reported and not deleted, and the other segments are read."""
    content = bytearray(segment_bytes(_ID, [payloads(3)]))
    content[3] = 9
    agent.segment(_ID, bytes(content), "9\nCOMPLETED")
    agent.segment(_ID + 1, segment_bytes(_ID + 1, [payloads(1)]), "9\nCOMPLETED")
    wait_until(lambda: len(agent.published) == 1 and len(agent.files()) == 2, "the other segment is done")
    assert agent.files() == [f"CommitLog-7-{_ID}.log", f"CommitLog-7-{_ID}_cdc.idx"]
    assert not (agent.work / "error").exists()
    [record] = caplog.records
    assert "version 9 is not supported" in record.getMessage()


def test_a_faulty_segment_is_not_set_aside_before_its_good_events_are_acknowledged(agent: StagedAgent) -> None:
    """A fault is no reason to give up the file or the good events."""
    agent.acknowledges = False
    content = bytearray(segment_bytes(_ID, [payloads(3)]))
    content[len(segment_bytes(_ID, [payloads(1)])) + 15] ^= 1
    agent.segment(_ID, bytes(content), "9\nCOMPLETED")
    wait_until(lambda: agent.metrics.segments_finished == 1, "all is read")
    time.sleep(0.1)
    assert len(agent.files()) == 2
    agent.positions.acknowledge(tracked_entries(agent.published), 2, 0)
    wait_until(lambda: agent.files() == [], "the segment is set aside")
    assert (agent.work / "error" / f"CommitLog-7-{_ID}.log").exists()


def test_a_fault_that_was_skipped_before_a_restart_still_sets_the_segment_aside(tmp_path: Path) -> None:
    """The stored position is after the bad entry, but the file must not count as read in full."""
    content = bytearray(segment_bytes(_ID, [payloads(2), payloads(1)]))
    content[len(segment_bytes(_ID, [payloads(1)])) + 15] ^= 1
    first = StagedAgent(tmp_path, MemoryTables(GOLDEN.tables()))
    first.segment(_ID, bytes(content), str(len(segment_bytes(_ID, [payloads(2)]))))
    first.start()
    wait_until(lambda: first.metrics.corrupt_entries == 1, "the bad entry is met")
    first.stop()
    second = StagedAgent(tmp_path, MemoryTables(GOLDEN.tables()))
    second.index(_ID, "9999\nCOMPLETED")
    second.start()
    wait_until(lambda: second.files() == [], "the segment is finished")
    second.stop()
    assert len(second.published) == 1
    assert (tmp_path / "work" / "error" / f"CommitLog-7-{_ID}.log").exists()


def test_what_is_no_segment_is_told_once_counted_and_left_alone(
    agent: StagedAgent, caplog: pytest.LogCaptureFixture
) -> None:
    """Foreign names, a folder, links, a pipe and an empty file. The agent deletes none of them."""
    cdc_raw = agent.cdc_raw
    (cdc_raw / "notes.txt").write_text("mine")
    (cdc_raw / "CommitLog-7-99999999999999999999.log").write_text("its id is no Java long")
    (cdc_raw / f"CommitLog-7-{_ID}.log").mkdir()
    (cdc_raw / f"CommitLog-7-{_ID}_cdc.idx").write_text("9\nCOMPLETED")
    (cdc_raw / f"CommitLog-7-{_ID + 1}.log").symlink_to("/etc/passwd")
    (cdc_raw / f"CommitLog-7-{_ID + 1}_cdc.idx").write_text("9\nCOMPLETED")
    (cdc_raw / f"CommitLog-7-{_ID + 2}_cdc.idx").symlink_to(f"CommitLog-7-{_ID}_cdc.idx")
    (cdc_raw / f"CommitLog-6-{_ID + 3}.log").touch()
    _age(cdc_raw / f"CommitLog-6-{_ID + 3}.log")
    os.mkfifo(cdc_raw / f"CommitLog-7-{_ID + 4}.log")
    before = agent.files()
    wait_until(lambda: agent.metrics.ignored_files == 7, "all are seen")
    agent.segment(_ID + 9, segment_bytes(_ID + 9, [payloads(1)]), "9\nCOMPLETED")
    wait_until(lambda: agent.metrics.segments_deleted == 1, "a segment beside them is finished")
    assert agent.files() == before
    assert len(caplog.records) == 7
    assert (agent.metrics.segments_gone_unread, agent.metrics.segments_unreadable) == (0, 0)


def test_a_finished_segment_that_cannot_be_deleted_is_told_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder in its place stands for a file system that refuses. When the folder is gone, the file is deleted."""
    archiver = SegmentArchiver(tmp_path / "error")
    log = tmp_path / "CommitLog-7-1.log"
    (log / "inside").mkdir(parents=True)
    assert [archiver.delete(log), archiver.delete(log)] == [False, False]
    assert len(caplog.records) == 1
    (log / "inside").rmdir()
    log.rmdir()
    log.touch()
    assert archiver.delete(log)


@pytest.mark.parametrize(("folder", "elsewhere"), [("cdc_raw", 0), ("spill", 2)])
def test_finished_segments_that_cannot_be_deleted_are_counted_until_they_are(
    folder: str, elsewhere: int, agent: StagedAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rights of a folder may change while the agent runs. Only the log told why cdc_raw filled up."""
    denied = True
    unlink = Path.unlink
    place = agent.cdc_raw.parent / folder

    def refuse(path: Path, *arguments: object, **options: object) -> None:
        if denied and path.parent == place:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        unlink(path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "unlink", refuse)
    for number in range(2):
        content = segment_bytes(_ID + number, [payloads(3)])
        if folder == "cdc_raw":
            agent.segment(_ID + number, content, "9\nCOMPLETED")
        else:  # a segment is moved there as a whole, and is read without an index
            (tmp_path / "moved").write_bytes(content)
            (tmp_path / "moved").rename(place / f"CommitLog-7-{_ID + number}.log")
    wait_until(lambda: agent.metrics.segments_not_deleted == 2, "both are counted")
    wait_until(lambda: agent.metrics.segments_not_deleted_elsewhere == elsewhere, "with their folder")
    denied = False
    wait_until(lambda: not list(place.iterdir()), "they are deleted")
    wait_until(lambda: agent.metrics.segments_not_deleted == 0, "none is left")


def test_while_positions_cannot_be_stored_no_segment_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a full disk, the log has one line and events are published. Segments are deleted when there is space."""
    agent = StagedAgent(tmp_path, MemoryTables(GOLDEN.tables()))
    full = True
    store = OffsetStore.store

    def refuse(self: OffsetStore, positions: StoredPositions) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        store(self, positions)

    monkeypatch.setattr(OffsetStore, "store", refuse)
    agent.segment(_ID, segment_bytes(_ID, [payloads(3)]), "9\nCOMPLETED")
    agent.start()
    wait_until(lambda: len(agent.published) == 3, "events go on")
    wait_until(lambda: bool(caplog.records), "storing fails")
    time.sleep(0.1)
    assert len(agent.files()) == 2
    assert [each.getMessage() for each in caplog.records] == [
        "positions cannot be stored ([Errno 28] No space left on device); no segment is deleted until they can, "
        "trying again"
    ]
    full = False
    wait_until(lambda: agent.files() == [], "the segment is deleted")
    agent.stop()


def test_a_segment_of_which_reading_is_denied_is_tried_again_and_never_set_aside(
    agent: StagedAgent, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing rights do not mean damage. The log reports it once, and the segment is read when it is readable."""
    content = segment_bytes(_ID, [payloads(3)])
    denied = True
    opened = Path.open

    def refuse(path: Path, *arguments: object, **options: object) -> object:
        if denied and path.name == f"CommitLog-7-{_ID}.log" and arguments == ("rb",):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *arguments, **options)  # type: ignore[call-overload]

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refuse)
        (agent.cdc_raw / f"CommitLog-7-{_ID}.log").write_bytes(content)
        agent.index(_ID, "9\nCOMPLETED")
        wait_until(lambda: agent.metrics.segments_unreadable == 1, "it was tried")
        time.sleep(0.1)
    denied = False
    wait_until(lambda: agent.files() == [], "it is finished")
    assert len(agent.published) == 3
    assert [each.getMessage() for each in caplog.records] == [
        f"CommitLog-7-{_ID}.log, position 0: the segment cannot be read: Permission denied; retrying; the other segments continue"
    ]
    assert not (agent.work / "error").exists()


def test_a_reason_file_says_what_to_do(tmp_path: Path) -> None:
    """An operator who finds the folder months later needs no other document."""
    log = tmp_path / "CommitLog-7-1.log"
    log.write_bytes(b"bytes")
    assert SegmentArchiver(tmp_path / "error").set_aside(log, "position 5: broken")
    told = json.loads((tmp_path / "error" / "CommitLog-7-1.log.reason.json").read_text())
    assert (told["segment"], told["reason"]) == ("CommitLog-7-1.log", "position 5: broken")
    assert "cdc agent reprocess" in told["what_now"]
    assert not log.exists()


@pytest.mark.parametrize("faulty", [False, True], ids=["deleted", "set aside"])
def test_a_segment_that_went_before_the_newest_positions_were_damaged_is_not_taken_for_lost(
    tmp_path: Path, faulty: bool
) -> None:
    """Nothing was stored after the segment was deleted. The generation before says that it may be missing."""
    content = bytearray(segment_bytes(_ID, [payloads(2), payloads(4)]))
    if faulty:
        content[len(segment_bytes(_ID, [payloads(3)])) + 25] ^= 1
    agent = StagedAgent(tmp_path, MemoryTables(GOLDEN.tables()))
    agent.segment(_ID, bytes(content), str(len(segment_bytes(_ID, [payloads(2)]))))
    agent.start()
    wait_until(lambda: len(agent.stored_now().segments) == 1, "the segment is begun")
    agent.index(_ID, f"{len(content)}\nCOMPLETED")
    wait_until(lambda: agent.files() == [], "the segment is finished")
    if faulty:
        assert (agent.work / "error" / f"CommitLog-7-{_ID}.log").exists()
    agent.stop()
    both = [agent.work / name for name in ("positions-a.json", "positions-b.json")]
    newest = max(both, key=lambda each: json.loads(each.read_bytes().partition(b"\n")[2])["generation"])
    newest.write_bytes(newest.read_bytes()[:-3])
    after = StagedAgent(tmp_path, MemoryTables(GOLDEN.tables()))
    after.start()
    wait_until(lambda: _ID in after.stored_now().finished, "it is finished")
    time.sleep(0.3)
    after.stop()
    assert after.gaps == [] and after.metrics.segments_gone_unread == 0
    assert _ID in after.stored_now().finished
