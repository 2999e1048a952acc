"""Archives and reprocessing: segments are deleted after they are archived, and archived segments can be read again.

No name leads a file out of its folder.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import cramjam
import fsspec
import pytest
from click.testing import CliRunner

from cdc.main import cli
from change_agent.archive.archiving import Archiving
from change_agent.archive.segment_archive import (
    ArchiveError,
    LastArchive,
    SegmentArchive,
    archive_problem,
    fetch_segment,
)
from change_agent.cdc_raw.archiver import SegmentArchiver
from change_agent.cdc_raw.listing import ReadableSegment
from change_agent.cdc_raw.segment_key import SegmentKey, key_of_reading_again
from change_agent.positions.offsets import OffsetStore, StoredPositions, StoredSegment
from change_agent.positions.segment_ids import SegmentIds
from change_agent.schema.schema_history import SchemaHistory
from schemas.archived_schema import ArchivedDefinition, ArchivedPlace, ArchivedSchema
from tests.agent.segment_writer import segment_bytes
from tests.agent.stages import GOLDEN, MemoryTables, StagedAgent, payloads, tracked_entries
from tests.golden.make_state import NODE_ID, STATE
from tests.golden.segments import GOLDEN_SEGMENTS
from tests.topics.events_topic import wait_until

_ID = time.time_ns() // 1_000_000 - 10_000
_NODE = "00000000-0000-0000-0000-000000000001"


def _agent(folder: Path, url: str | None = None, schema: ArchivedSchema | None = None) -> StagedAgent:
    archiving = None if url is None else Archiving(SegmentArchive(url, "zstd"), lambda: _NODE, lambda: schema)
    return StagedAgent(folder, MemoryTables(GOLDEN.tables()), archiving=archiving)


@pytest.fixture
def store() -> Iterator[fsspec.AbstractFileSystem]:
    """An object store in memory, empty."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    yield memory
    memory.store.clear()


@pytest.mark.parametrize("compression", ["zstd", "none"])
@pytest.mark.parametrize("place", ["folder", "file-url", "memory"])
def test_an_archived_segment_can_be_fetched_as_it_was(
    tmp_path: Path, store: fsspec.AbstractFileSystem, compression: str, place: str
) -> None:
    """The segment is larger than the chunks in which it is packed."""
    log = tmp_path / "CommitLog-7-5.log"
    log.write_bytes(bytes(range(256)) * 10_000)
    root = {
        "folder": str(tmp_path / "archive"),
        "file-url": f"file://{tmp_path}/archive",
        "memory": "memory://archive",
    }[place]
    SegmentArchive(root, compression).store(log, _NODE)  # type: ignore[arg-type]
    (tmp_path / "out").mkdir()
    suffix = ".zst" if compression == "zstd" else ""
    fetched = fetch_segment(f"{root}/{_NODE}/CommitLog-7-5.log{suffix}", tmp_path / "out")
    assert fetched == tmp_path / "out" / "CommitLog-7-5.log"
    assert fetched.read_bytes() == log.read_bytes()


def test_a_finished_segment_is_archived_and_then_deleted(tmp_path: Path) -> None:
    """It is stored under the node's id, and its bytes are those that Cassandra wrote."""
    agent = _agent(tmp_path, str(tmp_path / "archive"))
    content = segment_bytes(_ID, [payloads(3)])
    agent.segment(_ID, content, "9\nCOMPLETED")
    agent.start()
    wait_until(lambda: agent.files() == [], "the segment is deleted")
    agent.stop()
    archived = tmp_path / "archive" / _NODE / f"CommitLog-7-{_ID}.log.zst"
    assert bytes(cramjam.zstd.decompress(archived.read_bytes())) == content
    assert agent.metrics.segments_archived == 1


def _golden_history(folder: Path, began_ms: int = 1_000) -> ArchivedSchema:
    """The stored schema history of a real node's agent, in the form in which it is archived."""
    shutil.copyfile(STATE / "1" / "schema.sqlite", folder / "schema.sqlite")
    history = SchemaHistory(folder)
    history.load()
    archived = history.archived(NODE_ID, began_ms)
    history.close()
    return archived


def _stored_history(archive: Path) -> ArchivedSchema:
    return ArchivedSchema.of_text((archive / str(NODE_ID) / "schema-history.json").read_bytes())


def test_the_schema_history_stands_in_the_archive_before_the_segment_that_needs_it(tmp_path: Path) -> None:
    """A real segment can be decoded with its node's archived history. Only the user who wrote the file can read it."""
    golden = next(each for each in GOLDEN_SEGMENTS if each.line == "5.0")
    history = _golden_history(tmp_path)
    archive = tmp_path / "archive"
    archive.mkdir()
    agent = _agent(tmp_path, str(archive), history)
    # Nothing can be stored while this folder is in the way.
    (archive / _NODE / "schema-history.json.tmp").mkdir(parents=True)
    agent.segment(_ID, segment_bytes(_ID, [payloads(3)]), "9\nCOMPLETED")
    agent.start()
    wait_until(lambda: agent.metrics.archive_failures >= 1, "it was tried")
    assert [each.name for each in (archive / _NODE).iterdir()] == ["schema-history.json.tmp"]
    (archive / _NODE / "schema-history.json.tmp").rmdir()
    wait_until(lambda: agent.files() == [], "the segment is deleted", 20)
    agent.stop()
    stored = archive / str(NODE_ID) / "schema-history.json"
    assert ArchivedSchema.of_text(stored.read_bytes()).text() == replace(history, first_segment=_ID).text()
    assert stored.stat().st_mode & 0o777 == 0o600
    result = CliRunner().invoke(cli, ["decode", str(golden.path), "--schema", str(stored)])
    assert result.stdout.splitlines() == golden.expected()


def test_an_archives_schema_history_keeps_what_a_new_working_directory_does_not_know(tmp_path: Path) -> None:
    """The agent of a replaced machine knows neither dropped tables nor the log positions of their changes."""
    archive = SegmentArchive(str(tmp_path / "archive"), "zstd")
    history = _golden_history(tmp_path)
    dropped = ArchivedDefinition(
        table_id=UUID(int=9), since_us=5, types_since_us=0, confirmed_ms=6, present=True, rows={"tables": []}
    )
    place = ArchivedPlace(segment_id=3, position=4, table_id=UUID(int=9), since_us=5)
    archive.store_schema(replace(history, definitions=(dropped,), places=(place,), began_ms=500))
    archive.store_schema(history)
    found = _stored_history(tmp_path / "archive")
    assert found.began_ms == 500 and found.places == (place,)
    assert {each.key for each in found.definitions} == {dropped.key} | {each.key for each in history.definitions}
    assert [each.present for each in found.definitions if each.table_id == UUID(int=9)] == [False]


def test_the_history_names_the_first_segment_whatever_the_order_in_which_they_are_archived(tmp_path: Path) -> None:
    """A segment with parked mutations is archived later than its successors. A restart keeps the first segment."""
    history = _golden_history(tmp_path)
    for ids in ((_ID + 1, _ID, _ID + 2), (_ID + 3,)):
        archiving = Archiving(SegmentArchive(str(tmp_path / "archive"), "zstd"), lambda: _NODE, lambda: history)
        for segment_id in ids:
            log = tmp_path / f"CommitLog-7-{segment_id}.log"
            log.write_bytes(segment_bytes(segment_id, [payloads(1)]))
            wait_until(partial(archiving.is_archived, log), "it is archived")
        archiving.close()
        assert _stored_history(tmp_path / "archive").first_segment == _ID


def test_deleted_segments_give_their_place_to_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Cassandra may delete a segment that is archived already, or that still waits.

    No caller asks for either again, so both must leave the queue.
    """
    archiving = Archiving(SegmentArchive(str(tmp_path / "archive"), "zstd"), lambda: _NODE, lambda: None)
    stored = tmp_path / "archive" / _NODE

    def segment(segment_id: int) -> Path:
        log = tmp_path / f"CommitLog-7-{segment_id}.log"
        log.write_bytes(segment_bytes(segment_id, [payloads(1)]))
        return log

    deleted = [segment(_ID + number) for number in range(3)]
    for log in deleted:
        assert not archiving.is_archived(log)
        wait_until(partial((stored / f"{log.name}.zst").exists), "it is stored")
        log.unlink()
    lacking = segment(_ID + 3)
    real = lacking.rename(tmp_path / "elsewhere")
    lacking.mkdir()  # It exists and cannot be read.
    assert not archiving.is_archived(lacking)
    wait_until(lambda: all(future.done() for _, future in archiving._futures.values()), "it has failed")
    lacking.rmdir()
    wait_until(partial(archiving.is_archived, segment(_ID + 4)), "a later one is archived")
    archiving.close()
    assert real.exists()
    assert f"the archive has no {lacking}: it was deleted or moved before it was stored" in caplog.text
    assert str(deleted[0]) not in caplog.text


def test_an_archive_begins_anew_after_a_time_without_it(tmp_path: Path) -> None:
    """Segments that went to another archive, or to none, are missing in this one.

    The history goes on after a restart, and with a new working directory.
    """
    url, history = str(tmp_path / "archive"), _golden_history(tmp_path)
    began: list[tuple[int, int | None]] = []
    for at, (name, to) in enumerate([("a", url), ("a", url), ("b", url), ("b", None), ("b", url), ("b", url)]):
        last = LastArchive(tmp_path / name, to)
        (tmp_path / name).mkdir(exist_ok=True)
        if to is None:
            last.note()
        else:
            SegmentArchive(to, "zstd", last).store_schema(replace(history, began_ms=at, first_segment=at))
            found = _stored_history(tmp_path / "archive")
            began.append((found.began_ms, found.first_segment))
    assert began == [(0, 0), (0, 0), (0, 0), (4, 4), (4, 4)]
    SegmentArchive(str(tmp_path / "other"), "zstd", LastArchive(tmp_path / "b", str(tmp_path / "other"))).store_schema(
        history
    )
    SegmentArchive(url, "zstd", LastArchive(tmp_path / "b", url)).store_schema(replace(history, began_ms=9))
    assert _stored_history(tmp_path / "archive").began_ms == 9


def test_a_damaged_schema_history_is_set_aside_and_a_newer_one_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged history does not stop the archive. The file of a newer version is not overwritten."""
    archive = SegmentArchive(str(tmp_path / "archive"), "zstd")
    history = _golden_history(tmp_path)
    archive.store_schema(history)
    stored = tmp_path / "archive" / str(NODE_ID) / "schema-history.json"
    text = stored.read_text()
    stored.write_text(text[:-100])
    archive.store_schema(history)
    assert stored.read_text() == text
    assert stored.with_name("schema-history.json.damaged").read_text() == text[:-100]
    assert "set aside as schema-history.json.damaged" in caplog.text
    newer = text.replace('"format":1', '"format":2', 1)
    stored.write_text(newer)
    with pytest.raises(ArchiveError, match="is of format 2, and this version knows 1"):
        archive.store_schema(history)
    assert stored.read_text() == newer


def test_a_failing_archive_deletes_nothing_and_goes_on_when_it_works_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file has the name of the folder that should be created. The log reports the failure once."""
    (tmp_path / "archive").write_text("in the way")
    agent = _agent(tmp_path, str(tmp_path / "archive"))
    for number in range(3):
        agent.segment(_ID + number, segment_bytes(_ID + number, [payloads(1)]), "9\nCOMPLETED")
    agent.start()
    wait_until(lambda: agent.metrics.archive_failures >= 3, "it was tried")
    assert len(agent.published) == 3 and len(agent.files()) == 6
    (tmp_path / "archive").unlink()
    wait_until(lambda: agent.files() == [], "all are archived and deleted", 20)
    agent.stop()
    assert len(list((tmp_path / "archive" / _NODE).iterdir())) == 3
    [error] = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert "cannot be archived (" in error and "it is not deleted, trying again" in error


def test_an_archived_segment_that_cannot_be_deleted_is_archived_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is not writable for a while. Only the deletion is repeated."""
    stored: list[str] = []

    class Archive(SegmentArchive):
        def store(self, log: Path, node_id: str) -> None:
            stored.append(log.name)
            super().store(log, node_id)

    unlink, denied = Path.unlink, 0

    def refuse(path: Path, missing_ok: bool = False) -> None:
        nonlocal denied
        if path.parent.name == "cdc_raw" and denied < 30:
            denied += 1
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    archiving = Archiving(Archive(str(tmp_path / "archive"), "zstd"), lambda: _NODE, lambda: None)
    agent = StagedAgent(tmp_path, MemoryTables(GOLDEN.tables()), archiving=archiving)
    agent.segment(_ID, segment_bytes(_ID, [payloads(3)]), "9\nCOMPLETED")
    agent.start()
    wait_until(lambda: agent.files() == [], "the segment is deleted", 20)
    agent.stop()
    assert denied == 30
    assert stored == [f"CommitLog-7-{_ID}.log"] and agent.metrics.segments_archived == 1


def test_a_segment_that_was_set_aside_is_published_again_by_reprocess(tmp_path: Path) -> None:
    """The file was repaired meanwhile. Its events are published and it is deleted, also when this is repeated."""
    good = segment_bytes(_ID, [payloads(3)])
    bad = bytearray(good)
    bad[len(segment_bytes(_ID, [payloads(1)])) + 15] ^= 1
    agent = _agent(tmp_path)
    agent.segment(_ID, bytes(bad), "9\nCOMPLETED")
    agent.start()
    wait_until(lambda: agent.metrics.segments_set_aside == 1, "the segment is set aside")
    error = agent.work / "error"
    for again in (1, 2):
        (error / f"CommitLog-7-{_ID}.log").write_bytes(good)
        result = CliRunner().invoke(cli, ["agent", "reprocess", "--working-dir", str(agent.work)])
        assert (result.exit_code, result.output) == (0, f"1 segments wait in {agent.work / 'reprocess'}\n")
        wait_until(lambda: len(agent.published) == 2 + 3 * again, "it is read again", 5)  # noqa: B023
        wait_until(lambda: not list((agent.work / "reprocess").iterdir()), "it is deleted")
        assert list(error.iterdir()) == []
        # The stored account of the first reading must be closed before the second one begins.
        wait_until(lambda: not any(agent.stored_now().finished.read_again()), "it is forgotten")
    agent.stop()
    assert {each.header.segment_id for each in agent.published} == {_ID}
    assert agent.gaps == []


def test_a_segment_that_is_still_damaged_is_set_aside_again(tmp_path: Path) -> None:
    """Reprocessing does not lose the damaged file either."""
    bad = _damaged()
    agent = _agent(tmp_path)
    (agent.work / "error").mkdir()
    (agent.work / "error" / f"CommitLog-7-{_ID}.log").write_bytes(bad)
    agent.start()
    result = CliRunner().invoke(cli, ["agent", "reprocess", "--working-dir", str(agent.work), f"CommitLog-7-{_ID}.log"])
    assert result.exit_code == 0
    wait_until(lambda: agent.metrics.segments_set_aside == 1, "it is set aside")
    agent.stop()
    assert len(agent.published) == 2
    assert (agent.work / "error" / f"CommitLog-7-{_ID}.log").read_bytes() == bad
    assert json.loads((agent.work / "error" / f"CommitLog-7-{_ID}.log.reason.json").read_text())["segment"]


def test_a_segment_that_was_set_aside_twice_is_not_deleted_before_its_events_are_acknowledged(tmp_path: Path) -> None:
    """Both readings have the same key. The end of the first one must not count as the end of the second."""
    good, bad = segment_bytes(_ID, [payloads(3)]), _damaged()
    agent = _agent(tmp_path)
    (agent.work / "error").mkdir()
    agent.start()
    waiting = agent.work / "reprocess" / f"CommitLog-7-{_ID}.log"
    for turn, content in enumerate((bad, good)):
        agent.acknowledges = turn == 0
        (agent.work / "error" / waiting.name).write_bytes(content)
        result = CliRunner().invoke(cli, ["agent", "reprocess", "--working-dir", str(agent.work), waiting.name])
        assert result.exit_code == 0
        wait_until(lambda: len(agent.published) == (2, 5)[turn], "it is read")  # noqa: B023
        if turn == 0:
            wait_until(lambda: agent.metrics.segments_set_aside == 1 and not agent.positions.progress(), "set aside")
    _is_kept_until_acknowledged(agent, waiting)
    agent.stop()


def test_a_segment_that_is_queued_again_before_its_end_is_settled_is_not_deleted_unread(tmp_path: Path) -> None:
    """The thread that deletes files was blocked meanwhile, and its positions list the segment as finished."""
    goes_on = threading.Event()

    def deletable(finished: SegmentIds) -> SegmentIds:
        assert not finished.runs or goes_on.wait(20)
        return finished

    key = key_of_reading_again(_ID)
    agent = StagedAgent(tmp_path, MemoryTables(GOLDEN.tables()), deletable=deletable)
    waiting = agent.work / "reprocess" / f"CommitLog-7-{_ID}.log"
    waiting.parent.mkdir()
    _queue(agent)
    agent.start()
    wait_until(lambda: key in agent.stored_now().finished, "it is read and stored")
    agent.acknowledges = False
    waiting.unlink()
    wait_until(lambda: not agent.segments.listed, "it is seen to be gone")
    _queue(agent)
    wait_until(lambda: len(agent.published) == 6, "it is read once more")
    goes_on.set()
    wait_until(lambda: not agent.stored_now().finished.runs, "its end is not stored any more")
    assert waiting.exists() and agent.stored_now().segments.keys() == {key}
    agent.positions.acknowledge(tracked_entries(agent.published[3:]), 3, 0)
    wait_until(lambda: not waiting.exists(), "it is deleted")
    agent.stop()


def _stop_while_read_again(folder: Path, stored: StoredSegment) -> None:
    """Store the state of an agent that was killed while it read a segment once more on request."""
    store = OffsetStore(folder / "work")
    store.store(StoredPositions(segments={key_of_reading_again(_ID): stored}))
    store.close()
    (folder / "work" / "reprocess").mkdir()


def _is_kept_until_acknowledged(agent: StagedAgent, waiting: Path) -> None:
    """Check that the mended segment, whose three events came after two, is deleted only when they are acknowledged."""
    key = key_of_reading_again(_ID)
    wait_until(lambda: agent.stored_now().segments.keys() == {key}, "the second reading is stored")
    time.sleep(0.1)
    assert waiting.exists() and agent.stored_now().segments.keys() == {key}
    agent.positions.acknowledge(tracked_entries(agent.published[2:]), 3, 0)
    wait_until(lambda: not waiting.exists(), "it is deleted")


def _damaged() -> bytes:
    """A segment whose last entry is damaged."""
    content = bytearray(segment_bytes(_ID, [payloads(3)]))
    content[-10] ^= 1
    return bytes(content)


def _queue(agent: StagedAgent) -> None:
    waiting = agent.work / "reprocess" / f"CommitLog-7-{_ID}.log"
    waiting.with_suffix(".tmp").write_bytes(segment_bytes(_ID, [payloads(3)]))
    waiting.with_suffix(".tmp").rename(waiting)


def test_a_segment_is_reprocessed_from_its_beginning_after_one_that_a_restart_interrupted(tmp_path: Path) -> None:
    """The interrupted reading goes on at its stored position. The next one reads the whole segment."""
    _stop_while_read_again(tmp_path, StoredSegment(position=len(segment_bytes(_ID, [payloads(2)]))))
    agent = _agent(tmp_path)
    _queue(agent)
    agent.start()
    wait_until(lambda: len(agent.published) == 1, "the rest is read")
    wait_until(lambda: agent.stored_now().segments == {}, "its account is closed")
    wait_until(lambda: not any(agent.stored_now().finished.read_again()), "it is forgotten")
    _queue(agent)
    wait_until(lambda: not list((agent.work / "reprocess").iterdir()), "it is deleted again")
    agent.stop()
    assert len(agent.published) == 1 + 3


def test_a_segment_that_is_queued_again_while_the_agent_is_down_is_read(tmp_path: Path) -> None:
    """The agent was killed when it had deleted the file of the first turn, and still has that turn as finished."""
    store = OffsetStore(tmp_path / "work")
    for _ in range(2):
        store.store(StoredPositions(finished=SegmentIds.of([key_of_reading_again(_ID), _ID])))
    store.close()
    (tmp_path / "work" / "reprocess").mkdir()
    agent = _agent(tmp_path)
    _queue(agent)
    agent.start()
    wait_until(lambda: not list((agent.work / "reprocess").iterdir()), "it is deleted")
    wait_until(lambda: not any(agent.stored_now().finished.read_again()), "it is forgotten")
    agent.stop()
    assert len(agent.published) == 3


def test_a_segment_that_is_queued_again_before_it_was_seen_to_be_gone_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first file was just deleted. At the start, the first turn went on at a stored place; this one does not.

    The reader may be busy with other segments for long. Meanwhile, the thread that deletes files knows only the first
    file.
    """
    _stop_while_read_again(tmp_path, StoredSegment(position=len(segment_bytes(_ID, [payloads(2)]))))
    agent = _agent(tmp_path)
    may_list = threading.Event()
    segments = agent._watcher.segments

    def listed(now_ms: int) -> list[ReadableSegment] | None:
        assert not agent.published or may_list.wait(20)
        return segments(now_ms)

    monkeypatch.setattr(agent._watcher, "segments", listed)
    waiting = agent.work / "reprocess" / f"CommitLog-7-{_ID}.log"
    _queue(agent)
    agent.start()
    wait_until(lambda: not waiting.exists(), "the rest of the first one is read, and it is deleted")
    _queue(agent)
    time.sleep(0.3)
    assert waiting.exists()
    may_list.set()
    wait_until(lambda: not waiting.exists(), "it is deleted again")
    agent.stop()
    assert len(agent.published) == 1 + 3


def test_a_file_that_replaces_one_that_is_read_is_read_as_well(tmp_path: Path) -> None:
    """The open file goes on to its end, and nothing is deleted unread."""
    agent = _agent(tmp_path)
    agent.acknowledges = False
    waiting = agent.work / "reprocess" / f"CommitLog-7-{_ID}.log"
    waiting.parent.mkdir()
    _queue(agent)
    agent.start()
    wait_until(lambda: len(agent.published) == 3, "the first one is read")
    _queue(agent)
    time.sleep(0.1)
    agent.acknowledges = True
    agent.positions.acknowledge(tracked_entries(agent.published[:3]), 3, 0)
    wait_until(lambda: not waiting.exists(), "the second one is deleted")
    agent.stop()
    assert len(agent.published) == 6


def test_a_segment_that_is_queued_already_is_not_queued_once_more(tmp_path: Path) -> None:
    """The agent may have read a part of the file that waits. It cannot tell both apart after a restart."""
    error, waiting = tmp_path / "error", tmp_path / "reprocess"
    for each in (error, waiting):
        each.mkdir()
        (each / f"CommitLog-7-{_ID}.log").write_bytes(b"entries")
    (error / f"CommitLog-7-{_ID + 1}.log").write_bytes(b"entries")
    result = CliRunner().invoke(cli, ["agent", "reprocess", "--working-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output == (
        f"cdc: CommitLog-7-{_ID}.log is queued already: try again when the agent has read it, and it is gone from {waiting}\n"
        f"2 segments wait in {waiting}\n"
    )
    assert [each.name for each in error.iterdir()] == [f"CommitLog-7-{_ID}.log"]


def test_a_new_machine_reprocesses_a_segment_that_the_lost_machine_had_reprocessed(tmp_path: Path) -> None:
    """The copy of the positions lists that reading as finished, and the new machine has no file of the segment."""
    agent = _agent(tmp_path)
    agent.follower.adopt(StoredPositions(finished=SegmentIds.of([key_of_reading_again(_ID), _ID])))
    agent.start()
    wait_until(lambda: agent.segments.has_listed, "the folders are listed")
    (agent.work / "reprocess").mkdir(exist_ok=True)
    _queue(agent)
    wait_until(lambda: not list((agent.work / "reprocess").iterdir()), "it is read and deleted")
    agent.stop()
    assert len(agent.published) == 3


@pytest.mark.parametrize("queued", ["before the start", "after the start"])
def test_a_segment_that_was_set_aside_before_a_kill_is_reprocessed_from_its_beginning(
    tmp_path: Path, queued: str
) -> None:
    """The end and the fault were stored, and the file was moved to error/. The kill came before the move was stored."""
    end = len(segment_bytes(_ID, [payloads(3)]))
    _stop_while_read_again(tmp_path, StoredSegment(position=end, fault="a checksum is wrong"))
    agent = _agent(tmp_path)
    if queued == "before the start":
        _queue(agent)
    agent.start()
    if queued == "after the start":
        wait_until(lambda: bool(agent.passed) or agent.moments.has_checked, "the folders are listed")
        _queue(agent)
    wait_until(lambda: not list((agent.work / "reprocess").iterdir()), "it is deleted")
    agent.stop()
    assert len(agent.published) == 3
    assert agent.metrics.segments_set_aside == 0


def test_a_reprocessed_segment_is_found_in_the_folder_for_errors(tmp_path: Path) -> None:
    """The archiver looks for the segment's own id, also when the key stands for a repeated reading."""
    (tmp_path / f"CommitLog-7-{_ID}.log").touch()
    archiver = SegmentArchiver(tmp_path)
    keys = [SegmentKey(_ID), key_of_reading_again(_ID), key_of_reading_again(_ID + 1)]
    assert [archiver.is_set_aside(each) for each in keys] == [True, True, False]


def test_archived_segments_are_decoded_and_reprocessed_from_where_they_are(tmp_path: Path) -> None:
    """`cdc decode` and `cdc agent reprocess` accept the packed file, and leave it in the archive."""
    golden = GOLDEN_SEGMENTS[-1]
    SegmentArchive(str(tmp_path / "archive"), "zstd").store(golden.path, _NODE)
    packed = tmp_path / "archive" / _NODE / f"{golden.path.name}.zst"
    result = CliRunner().invoke(cli, ["decode", str(packed), "--schema", str(golden.schema_file)])
    assert result.stdout.splitlines() == golden.expected()
    (tmp_path / "work").mkdir()
    result = CliRunner().invoke(cli, ["agent", "reprocess", "--working-dir", str(tmp_path / "work"), str(packed)])
    assert result.exit_code == 0
    assert (tmp_path / "work" / "reprocess" / golden.path.name).read_bytes() == golden.path.read_bytes()
    assert packed.exists()


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "x.log", "CommitLog-7-1.log/..", "CommitLog-7-1.log.gz", "CommitLog-7-1_cdc.idx", ""]
)
def test_a_name_that_is_no_segments_is_refused_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    """The name becomes a file name in the target folder, so only names of segments are accepted."""
    (tmp_path / "in").mkdir()
    with pytest.raises(ArchiveError, match="is not named like a segment"):
        fetch_segment(f"{tmp_path}/in/{name}", tmp_path / "in")
    assert list((tmp_path / "in").iterdir()) == []


@pytest.mark.parametrize("protocol", ["nosuch", "lacking"])
def test_a_url_that_no_library_can_read_is_one_line(protocol: str, tmp_path: Path) -> None:
    """`cdc agent reprocess`, `cdc decode` and `cdc trace` take URLs, and s3fs is not installed everywhere."""
    fsspec.register_implementation("lacking", "no_such_module.FileSystem", clobber=True, errtxt="Install it")
    source = f"{protocol}://bucket/CommitLog-7-1.log"
    with pytest.raises(ArchiveError, match=f"^{source} cannot be read \\("):
        fetch_segment(source, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_packed_segment_that_was_cut_anywhere_is_refused(tmp_path: Path) -> None:
    """A part of a segment must not get the name of a segment."""
    log = tmp_path / "CommitLog-7-5.log"
    log.write_bytes(b"some bytes" * 50)
    SegmentArchive(str(tmp_path), "zstd").store(log, "n")
    packed = tmp_path / "n" / "CommitLog-7-5.log.zst"
    whole = packed.read_bytes()
    (tmp_path / "out").mkdir()
    for length in range(1, len(whole)):
        packed.write_bytes(whole[:length])
        with pytest.raises(ArchiveError, match="is not whole"):
            fetch_segment(str(packed), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("/var/archive", None),
        ("file:///var/archive", None),
        ("nothing://bucket/x", "nothing:// cannot be used"),
        ("sftp://me:secret@host/x", "must hold no password"),
    ],
)
def test_an_archive_url_is_checked_and_may_hold_no_secret(url: str, problem: str | None) -> None:
    """The reported problem does not repeat the password."""
    found = archive_problem(url)
    assert (found is None) == (problem is None)
    assert found is None or (problem is not None and found.startswith(problem) and "secret" not in found)


def test_a_segment_that_is_mended_and_queued_before_its_move_is_stored_is_read_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that moved it to the folder for errors is busy with the archive. The mended file has the same key."""
    bad = _damaged()
    agent = _agent(tmp_path)
    files, goes_on = agent._writer._finished_segments, threading.Event()
    let_go = files.let_go

    def slow(*given: Any) -> frozenset[SegmentKey]:
        moved = let_go(*given)
        assert not moved or goes_on.wait(20)
        return moved

    monkeypatch.setattr(files, "let_go", slow)
    waiting = agent.work / "reprocess" / f"CommitLog-7-{_ID}.log"
    waiting.parent.mkdir()
    waiting.write_bytes(bad)
    agent.start()
    wait_until(lambda: not waiting.exists() and not agent.segments.listed, "it is moved, and seen to be gone")
    agent.acknowledges = False
    _queue(agent)
    time.sleep(0.1)
    goes_on.set()
    wait_until(lambda: len(agent.published) == 2 + 3, "all of it is read")
    _is_kept_until_acknowledged(agent, waiting)
    agent.stop()


def test_a_queued_segment_that_is_damaged_and_removed_by_hand_can_be_queued_again(tmp_path: Path) -> None:
    """Nothing can be moved to the folder for errors. Its account must not wait for that."""
    bad = _damaged()
    agent = _agent(tmp_path)
    agent.acknowledges = False
    waiting = agent.work / "reprocess" / f"CommitLog-7-{_ID}.log"
    waiting.parent.mkdir()
    waiting.write_bytes(bad)
    agent.start()
    wait_until(lambda: len(agent.published) == 2, "it is read")
    waiting.unlink()
    wait_until(lambda: not agent.segments.listed, "it is seen to be gone")
    agent.acknowledges = True
    agent.positions.acknowledge(tracked_entries(agent.published), 2, 0)
    wait_until(lambda: not agent.positions.progress(), "its account is closed")
    _queue(agent)
    wait_until(lambda: not waiting.exists(), "the mended one is deleted")
    agent.stop()
    assert len(agent.published) == 2 + 3
