"""Gaps: what proves that unread changes are gone, what does not, and how they are reported."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest

from change_agent.cdc_raw.listing import ReadableSegment, SegmentListing
from change_agent.cdc_raw.segment_key import SegmentKey
from change_agent.errors import PublishError
from change_agent.positions.offsets import OffsetStore, StoredPositions
from change_agent.positions.segment_ids import SegmentIds
from change_agent.positions.stops import EVERY_TABLE, Stop, Stops
from change_agent.publishing.event_producers import EventProducer
from change_agent.segments.gap_detector import GapDetector
from change_agent.segments.gaps import Gap, GapReporter
from change_agent.segments.unsynced import UnsyncedReading
from schemas.gap_record import decode_gap, encode_gap, gaps_topic
from tests.agent.growing_segment import GrowingSegment
from tests.agent.segment_writer import segment_bytes
from tests.agent.stages import ENTRIES, GOLDEN, MemoryTables, StagedAgent, payloads, tracked_entries
from tests.topics.events_topic import wait_until
from tests.topics.gaps import GAP
from tests.unit.change_agent.memory_broker import AcknowledgingProducer

_ID = time.time_ns() // 1_000_000 - 10_000
_RECORD = replace(
    GAP, keyspace="k", table="t", first_segment_id=_ID, first_position=100, last_segment_id=_ID + 3, from_ms=None
)


def _agent(folder: Path, max_events: int = 10_000) -> StagedAgent:
    return StagedAgent(folder, MemoryTables(GOLDEN.tables()), max_events=max_events)


def _remove(agent: StagedAgent, segment_id: int) -> None:
    """Remove the log, then its index, as Cassandra does."""
    (agent.cdc_raw / f"CommitLog-7-{segment_id}.log").unlink()
    (agent.cdc_raw / f"CommitLog-7-{segment_id}_cdc.idx").unlink()


def _lose_a_segment(folder: Path) -> None:
    """Run an agent that reads a part of the segment and stores its position. Then remove the segment."""
    agent = _agent(folder)
    agent.segment(_ID, segment_bytes(_ID, [payloads(2)]), "150")
    agent.start()
    wait_until(lambda: agent.stored != agent._store.load(), "the segment is known")
    agent.stop()
    _remove(agent, _ID)


def test_segments_that_were_seen_and_went_unread_are_one_gap(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first was read in part, the second not at all.

    Each table gets one record, which begins at the last position.
    """
    agent = _agent(tmp_path)
    first = len(segment_bytes(_ID, [payloads(2)]))
    agent.segment(_ID, segment_bytes(_ID, [payloads(2), payloads(4)]), str(first))
    agent.segment(_ID + 1, segment_bytes(_ID + 1, [payloads(3)]), "300")
    agent.start()
    wait_until(lambda: len(agent.published) == 2, "the first section is read")
    # The second segment waits while the first may grow. Both must be removed between two listings, not during one.
    (tmp_path / "gone").mkdir()
    agent.cdc_raw.rename(tmp_path / "gone" / "cdc_raw")
    agent.cdc_raw.mkdir()
    wait_until(lambda: len(agent.gaps) == 1, "the gap is found")
    agent.gaps[0].on_reported()
    wait_until(lambda: agent.positions.progress() == {}, "its segments are done with")
    agent.stop()
    records = agent.gaps[0].records
    tables = [each.table for each in records]
    assert {"clustered", "simple"} <= set(tables) and len(set(tables)) == len(tables)
    assert (records[0].first_segment_id, records[0].last_segment_id) == (_ID, _ID + 1)
    # The open file was read to its end.
    assert records[0].first_position == len(segment_bytes(_ID, [payloads(2), payloads(4)]))
    assert records[0].from_ms is not None and records[0].from_ms < records[0].to_ms
    assert agent.metrics.segments_gone_unread == 2
    [told] = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert told.startswith(f"2 segments ({_ID} to {_ID + 1}) went from cdc_raw before they were read to their end")
    # An operator who repairs the tables in another way has to tell the agent, because no gap record is closed.
    assert agent.stops.reasons()[EVERY_TABLE].endswith(
        ": run cdc spark resync; or run cdc spark verify --repair on the tables, then cdc agent resume-progress"
    )


def test_a_segment_that_went_while_the_agent_was_down_is_a_gap(tmp_path: Path) -> None:
    """The stored positions name the segment. The next start misses it; after the report it is not reported again."""
    _lose_a_segment(tmp_path)
    for told in (False, True):
        agent = _agent(tmp_path)
        agent.start()
        wait_until(lambda: len(agent.gaps) == 1, "the gap is found", 5)  # noqa: B023
        if told:
            agent.gaps[0].on_reported()
            wait_until(lambda: agent.positions.progress() == {}, "its segment is done with", 5)  # noqa: B023
        agent.stop()
    last = _agent(tmp_path)
    last.segment(_ID + 5, segment_bytes(_ID + 5, [payloads(1)]), "9\nCOMPLETED")
    last.start()
    wait_until(lambda: last.files() == [], "another segment is finished")
    last.stop()
    assert last.gaps == []


def _read_a_part(folder: Path, segment_id: int, synced_s: float) -> None:
    """Run an agent that reads the first part of a segment, synced at this time. Then remove the segment."""
    agent = _agent(folder)
    whole, first = segment_bytes(segment_id, [payloads(2), payloads(4)]), len(segment_bytes(segment_id, [payloads(2)]))
    agent.segment(segment_id, whole, str(first))
    _date(agent, segment_id, synced_s)
    agent.start()
    wait_until(lambda: agent.stored_now().until_ms > 0, "the first part is read")
    agent.stop()
    assert len(agent.published) == 2
    _remove(agent, segment_id)


def _date(agent: StagedAgent, segment_id: int, synced_s: float) -> None:
    os.utime(agent.cdc_raw / f"CommitLog-7-{segment_id}_cdc.idx", (synced_s, synced_s))


@pytest.mark.parametrize("reprocessed", [False, True], ids=["newer segments", "and a file in reprocess"])
def test_a_gap_begins_before_the_first_lost_change_whatever_is_read_behind_it(
    tmp_path: Path, reprocessed: bool
) -> None:
    """The newer segment, and a segment that an operator has queued, are read before the loss is certain.

    The next start, before the gap is reported, finds the same gap.
    """
    hour_ago = time.time() - 3600
    lost_id = int(hour_ago * 1000) - 10_000
    _read_a_part(tmp_path, lost_id, hour_ago)
    content = segment_bytes(lost_id + 5, [payloads(3)])
    for turn in range(2):
        agent = _agent(tmp_path)
        if turn == 0:
            agent.segment(lost_id + 5, content, str(len(content)))
            _date(agent, lost_id + 5, time.time() - 20)
        if reprocessed:
            (agent.work / "reprocess").mkdir(exist_ok=True)
            again = segment_bytes(lost_id - 1000 + turn, [payloads(1)])
            (agent.work / "reprocess" / f"CommitLog-7-{lost_id - 1000 + turn}.log").write_bytes(again)
        agent.start()
        wait_until(lambda: len(agent.gaps) == 1, "the gap is found")  # noqa: B023
        if turn == 0:
            wait_until(lambda: len(agent.published) == 3 + reprocessed, "the rest is read")  # noqa: B023
        agent.stop()
        from_ms = agent.gaps[0].records[0].from_ms
        assert from_ms is not None and hour_ago - 61 <= from_ms / 1000 <= hour_ago - 59
    last = _agent(tmp_path)
    last.start()
    wait_until(lambda: len(last.gaps) == 1, "the gap is found")
    last.gaps[0].on_reported()
    wait_until(lambda: last.stored_now().until_ms > (hour_ago + 3000) * 1000, "the times go on behind it")
    last.stop()


def test_a_gap_begins_before_a_segment_that_could_not_be_read_although_those_behind_it_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A completed segment is not readable, and is removed. The segment before it was synced two hours ago."""
    two_hours_ago = time.time() - 7200
    first_id = int(two_hours_ago * 1000) - 10_000
    agent = _agent(tmp_path)
    content = segment_bytes(first_id, [payloads(3)])
    agent.segment(first_id, content, f"{len(content)}\nCOMPLETED")
    _date(agent, first_id, two_hours_ago)
    agent.start()
    wait_until(lambda: agent.files() == [] and agent.stored_now().until_ms > 0, "the first is finished")
    opened = Path.open

    def refuse(path: Path, *arguments: object, **options: object) -> object:
        if path.name == f"CommitLog-7-{first_id + 1}.log" and arguments == ("rb",):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    agent.segment(first_id + 1, content, f"{len(content)}\nCOMPLETED")
    content = segment_bytes(first_id + 2, [payloads(2)])
    agent.segment(first_id + 2, content, str(len(content)))
    wait_until(lambda: len(agent.published) == 5, "the one behind it is read")
    _remove(agent, first_id + 1)
    wait_until(lambda: len(agent.gaps) == 1, "the gap is found")
    agent.stop()
    from_ms = agent.gaps[0].records[0].from_ms
    assert from_ms is not None and from_ms <= two_hours_ago * 1000


@pytest.mark.parametrize("set_aside", [False, True], ids=["deleted unread", "set aside"])
def test_a_segment_with_a_fault_that_went_while_the_agent_was_down_is_safe_only_in_the_folder_for_errors(
    tmp_path: Path, set_aside: bool
) -> None:
    """A fault in its first part says nothing about the rest, which Cassandra may have removed unread.

    The loss is reported once.
    """
    content = bytearray(segment_bytes(_ID, [payloads(2), payloads(4)]))
    content[len(segment_bytes(_ID, [payloads(1)])) + 15] ^= 1
    first = _agent(tmp_path)
    log = first.segment(_ID, bytes(content), str(len(segment_bytes(_ID, [payloads(2)]))))
    first.start()
    wait_until(lambda: first.metrics.corrupt_entries == 1, "the bad entry is met")
    first.stop()
    if set_aside:
        (first.work / "error").mkdir()
        log.rename(first.work / "error" / log.name)
        (first.cdc_raw / f"CommitLog-7-{_ID}_cdc.idx").unlink()
    else:
        _remove(first, _ID)
    agent = _agent(tmp_path)
    assert agent.stored.segments[SegmentKey(_ID)].fault is not None
    agent.start()
    if set_aside:
        wait_until(lambda: agent.positions.progress() == {} and _ID in agent.stored_now().finished, "it is finished")
    else:
        wait_until(lambda: len(agent.gaps) == 1, "the gap is found")
        agent.gaps[0].on_reported()
        wait_until(lambda: _ID in agent.stored_now().finished, "it counts as finished")
    agent.stop()
    assert len(agent.gaps) == agent.metrics.segments_gone_unread == (not set_aside)
    assert (agent.stored_now().segments, _ID in agent.stored_now().lost) == ({}, not set_aside)
    _expect_no_gap(tmp_path)


def _expect_no_gap(folder: Path) -> None:
    """Check that the next start reads and deletes a newer segment, and reports no loss."""
    agent = _agent(folder)
    content = segment_bytes(_ID + 9, [payloads(1)])
    agent.segment(_ID + 9, content, f"{len(content)}\nCOMPLETED")
    agent.start()
    wait_until(lambda: agent.files() == [], "another segment is finished")
    agent.stop()
    assert agent.gaps == []


def test_a_segment_with_a_fault_that_went_while_it_was_read_is_no_gap_and_is_kept_when_it_comes_back(
    tmp_path: Path,
) -> None:
    """It was read to its end from the open file. Only the bad entry is missing, and that was reported.

    It cannot be set aside before it comes back.
    """
    content = bytearray(segment_bytes(_ID, [payloads(1), payloads(2), [each.payload for each in ENTRIES] * 40]))
    content[len(segment_bytes(_ID, [payloads(1), payloads(1)])) + 15] ^= 1
    agent = _agent(tmp_path, max_events=1)
    agent.acknowledges = False
    agent.segment(_ID, bytes(content), str(len(segment_bytes(_ID, [payloads(1)]))))
    agent.start()
    wait_until(lambda: len(agent.published) == 1, "the first section is read")
    agent.index(_ID, f"{len(content)}\nCOMPLETED")
    wait_until(lambda: agent.positions.waits_for_room, "reading waits for room")
    _remove(agent, _ID)
    agent.acknowledges = True
    agent.positions.acknowledge(tracked_entries(agent.published[:1]), 1, agent.published[0].size)
    wait_until(lambda: _ID in agent.stored_now().finished, "it is finished")
    agent.stop()
    assert (agent.gaps, agent.metrics.corrupt_entries) == ([], 1)
    _expect_no_gap(tmp_path)
    last = _agent(tmp_path)
    last.segment(_ID, bytes(content), f"{len(content)}\nCOMPLETED")
    last.start()
    wait_until(lambda: last.metrics.segments_set_aside == 1, "it is set aside")
    last.stop()
    assert (last.work / "error" / f"CommitLog-7-{_ID}.log").read_bytes() == bytes(content)


@pytest.mark.parametrize("restarted", [False, True], ids=["same process", "after a restart"])
def test_spilled_segments_whose_disk_was_away_are_read_when_it_is_there_again(tmp_path: Path, restarted: bool) -> None:
    """The agent starts before the disk is mounted.

    The segments are reported as a gap, and must not be deleted unread.
    """
    first = _agent(tmp_path)
    first.acknowledges = False
    (first.spill / f"CommitLog-7-{_ID}.log").write_bytes(segment_bytes(_ID, [payloads(3)]))
    first.start()
    wait_until(lambda: _ID in first.stored_now().segments, "the segment is known")
    first.stop()
    first.spill.rename(tmp_path / "disk")
    agent = _agent(tmp_path)
    agent.start()
    wait_until(lambda: len(agent.gaps) == 1, "the gap is found")
    agent.gaps[0].on_reported()
    wait_until(lambda: _ID in agent.stored_now().finished, "it counts as finished")
    if restarted:
        agent.stop()
        agent = _agent(tmp_path)
        agent.start()
    agent.spill.rmdir()
    (tmp_path / "disk").rename(agent.spill)
    wait_until(lambda: list(agent.spill.iterdir()) == [], "the segment is deleted")
    wait_until(lambda: not any(agent.stored_now().finished.read_again()), "its second account is forgotten")
    agent.stop()
    assert len(set(agent.places())) == len(agent.published) == 3
    assert {each.header.segment_id for each in agent.published} == {_ID}


def _complete_segments(agent: StagedAgent, count: int) -> None:
    for segment_id in range(_ID, _ID + count):
        content = segment_bytes(segment_id, [payloads(3)])
        agent.segment(segment_id, content, f"{len(content)}\nCOMPLETED")


def _lose_all(folder: Path, count: int) -> StagedAgent:
    """Return an agent that started before the disk of cdc_raw was mounted, and has reported all segments as a gap."""
    first = _agent(folder)
    first.acknowledges = False
    _complete_segments(first, count)
    first.start()
    wait_until(lambda: _ID + count - 1 in first.stored_now().segments, "the segments are known")
    first.stop()
    first.cdc_raw.rename(folder / "disk")
    agent = _agent(folder)
    agent.start()
    wait_until(lambda: len(agent.gaps) == 1, "the gap is found")
    agent.gaps[0].on_reported()
    wait_until(lambda: _ID in agent.stored_now().finished, "they count as finished")
    return agent


def _mount(agent: StagedAgent) -> None:
    agent.cdc_raw.rmdir()
    (agent.cdc_raw.parent / "disk").rename(agent.cdc_raw)


@pytest.mark.parametrize("restarted", [False, True], ids=["same process", "after a restart"])
def test_segments_of_a_gap_that_come_back_are_read_in_order_before_they_are_deleted(
    tmp_path: Path, restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent starts before the disk of cdc_raw is mounted."""
    agent = _lose_all(tmp_path, 3)
    if restarted:
        agent.stop()
        agent = _agent(tmp_path)
        agent.start()
    _mount(agent)
    wait_until(lambda: agent.files() == [], "the segments are deleted")
    wait_until(lambda: agent.positions.progress() == {}, "they are stored as finished")
    agent.stop()
    assert [each.header.segment_id for each in agent.published] == [_ID] * 3 + [_ID + 1] * 3 + [_ID + 2] * 3
    assert (agent.stored_now().lost, agent.stored_now().segments) == (SegmentIds(), {})
    assert len(agent.gaps) == (not restarted)
    assert f"CommitLog-7-{_ID}.log counts as lost, and is there again" in caplog.text
    _expect_no_gap(tmp_path)


def test_a_segment_of_a_gap_that_a_replay_links_again_is_read_before_it_is_deleted(tmp_path: Path) -> None:
    """Cassandra removed it from a full cdc_raw, and is killed before its tables are flushed.

    That happens with `cdc_block_writes: false`. Events that were published before are published again. The finished
    segment beside it is deleted unread.
    """
    agent = _agent(tmp_path)
    content = segment_bytes(_ID, [payloads(2), payloads(4)])
    agent.segment(_ID, content, str(len(segment_bytes(_ID, [payloads(2)]))))
    agent.start()
    wait_until(lambda: len(agent.published) == 2, "the first section is read")
    agent.stop()
    _remove(agent, _ID)
    agent = _agent(tmp_path)
    finished = segment_bytes(_ID + 1, [payloads(1)])
    agent.segment(_ID + 1, finished, f"{len(finished)}\nCOMPLETED")
    agent.start()
    wait_until(lambda: len(agent.gaps) == 1 and agent.files() == [], "the gap is found")
    agent.gaps[0].on_reported()
    wait_until(lambda: _ID in agent.stored_now().finished, "it counts as finished")
    for each in (_ID, _ID + 1):
        log = tmp_path / f"CommitLog-7-{each}.log"
        os.link(log, agent.cdc_raw / log.name)
        agent.index(each, f"{log.stat().st_size}\nCOMPLETED")
    wait_until(lambda: agent.files() == [], "both are deleted")
    agent.stop()
    assert [each.header.segment_id for each in agent.published] == [_ID + 1, *[_ID] * len(set(agent.places()[1:]))]
    assert len({place for segment_id, place in agent.places() if segment_id == _ID}) >= 4


def test_a_segment_of_a_gap_that_comes_back_while_the_node_still_writes_it_is_followed(tmp_path: Path) -> None:
    """For a while the agent saw an empty cdc_raw. The node continued, and its new changes are not part of the gap."""
    whole, synced = segment_bytes(_ID, [payloads(2), payloads(4)]), len(segment_bytes(_ID, [payloads(2)]))
    first = _agent(tmp_path)
    first.segment(_ID, whole, str(synced))
    first.start()
    wait_until(lambda: len(first.published) == 2, "the first section is read")
    first.stop()
    first.cdc_raw.rename(tmp_path / "disk")
    agent = _agent(tmp_path)
    agent.start()
    wait_until(lambda: len(agent.gaps) == 1, "the gap is found")
    agent.gaps[0].on_reported()
    wait_until(lambda: _ID in agent.stored_now().finished, "it counts as finished")
    _mount(agent)
    wait_until(lambda: _ID in agent.stored_now().segments, "its position is stored again")
    assert _ID not in agent.stored_now().finished
    assert len(agent.files()) == 2
    agent.index(_ID, f"{len(whole)}\nCOMPLETED")
    wait_until(lambda: agent.files() == [], "it is deleted")
    agent.stop()
    assert len(agent.places()) == len(set(agent.places())) >= 4


def test_a_segment_that_comes_back_before_its_gap_is_reported_waits_for_that(tmp_path: Path) -> None:
    """It is not deleted, and not read under the account that the report ends.

    Only an index that it left behind is deleted.
    """
    _lose_a_segment(tmp_path)
    agent = _agent(tmp_path)
    agent.index(_ID, "150")
    agent.start()
    wait_until(lambda: len(agent.gaps) == 1, "the gap is found")
    log = tmp_path / f"CommitLog-7-{_ID}.log"
    os.link(log, agent.cdc_raw / log.name)
    agent.index(_ID, "150\nCOMPLETED")
    time.sleep(0.2)
    assert (agent.published, len(agent.files())) == ([], 2)
    agent.gaps[0].on_reported()
    wait_until(lambda: agent.files() == [], "it is deleted")
    agent.stop()
    assert len(agent.published) == 2


def test_no_time_is_promised_while_a_segment_that_came_back_waits_for_the_report_of_its_gap(tmp_path: Path) -> None:
    """It may have changes that the gap does not cover."""
    _lose_a_segment(tmp_path)
    agent = StagedAgent(tmp_path, MemoryTables(GOLDEN.tables()), unsynced=UnsyncedReading(0.001, 0.005, lambda: ""))
    live = GrowingSegment(tmp_path / f"CommitLog-7-{_ID + 1}.log", _ID + 1, 1024 * 1024)
    os.link(live.path, agent.cdc_raw / live.path.name)
    live.append(payloads(1))
    agent.start()
    wait_until(lambda: len(agent.gaps) == 1 and bool(agent.passed), "the gap is found, and times are promised", 5)
    os.link(tmp_path / f"CommitLog-7-{_ID}.log", agent.cdc_raw / f"CommitLog-7-{_ID}.log")
    agent.index(_ID, "150\nCOMPLETED")
    wait_until(lambda: _ID in agent.segments.listed, "it is listed")
    time.sleep(0.1)
    promised = len(agent.passed)
    time.sleep(0.2)
    assert len(agent.passed) == promised
    agent.gaps[0].on_reported()
    wait_until(lambda: len(agent.passed) > promised, "times are promised")
    agent.stop()
    live.close()
    assert agent.passed[promised][1] == 3


def test_the_index_that_a_lost_segment_has_left_behind_is_deleted(tmp_path: Path) -> None:
    """Cassandra is killed between the deletions of the segment and of its index."""
    _lose_a_segment(tmp_path)
    agent = _agent(tmp_path)
    agent.index(_ID, "150")
    agent.start()
    wait_until(lambda: len(agent.gaps) == 1, "the gap is found")
    agent.gaps[0].on_reported()
    wait_until(lambda: agent.files() == [], "the index is deleted")
    agent.stop()
    assert (agent.published, agent.metrics.segments_deleted) == ([], 0)


def test_after_a_kill_at_any_moment_a_segment_of_a_gap_is_read_or_deleted_as_the_positions_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start may find any state that was stored while the segment was lost, came back, was read and was deleted."""
    found: list[StoredPositions] = []
    store = OffsetStore.store

    def record(self: OffsetStore, positions: StoredPositions) -> None:
        store(self, positions)
        found.append(positions)

    with monkeypatch.context() as patched:
        patched.setattr(OffsetStore, "store", record)
        agent = _lose_all(tmp_path, 1)
        _mount(agent)
        wait_until(lambda: agent.files() == [] and agent.positions.progress() == {}, "the segment is deleted")
        agent.stop()
    kinds = {(_ID in each.segments, _ID in each.finished, _ID in each.lost) for each in found}
    assert kinds >= {(True, False, False), (False, True, True), (False, True, False)}
    assert (False, False, True) not in kinds
    for number, positions in enumerate(found):
        folder = tmp_path / str(number)
        folder.mkdir()
        offsets = OffsetStore(folder / "work")
        offsets.store(positions)
        offsets.close()
        after = _agent(folder)
        _complete_segments(after, 1)
        after.start()
        wait_until(lambda: after.files() == [], "it is deleted")  # noqa: B023
        after.stop()
        is_read = _ID in positions.finished and _ID not in positions.lost
        stored = positions.segments.get(SegmentKey(_ID))
        read_to = (_ID, 0 if stored is None else stored.position)
        assert after.places() == [each for each in agent.places() if each > read_to and not is_read], positions
        assert after.gaps == []


def _finished(folder: Path, archive: object = None) -> StagedAgent:
    """An agent whose stored positions list the segment as finished."""
    store = OffsetStore(folder / "work")
    store.store(StoredPositions(segments={}, finished=SegmentIds.of([_ID])))
    store.close()
    return StagedAgent(folder, MemoryTables(GOLDEN.tables()), archiving=archive)


def test_a_spilled_segment_that_is_read_once_more_is_not_read_again_when_its_disk_is_away_for_a_moment(
    tmp_path: Path,
) -> None:
    """Its events wait for the broker. Acknowledgements of the first reading would end the account of a second one."""
    (tmp_path / "work").mkdir()
    agent = _finished(tmp_path)
    agent.acknowledges = False
    log = agent.spill / f"CommitLog-7-{_ID}.log"
    log.write_bytes(segment_bytes(_ID, [payloads(3)]))
    agent.start()
    wait_until(lambda: len(agent.published) == 3, "it is read")
    agent.spill.rename(tmp_path / "disk")
    wait_until(lambda: not agent.segments.listed, "its disk is away")
    (tmp_path / "disk").rename(agent.spill)
    wait_until(lambda: bool(agent.segments.listed), "its disk is there again")
    agent.positions.acknowledge(tracked_entries(list(agent.published)), 3, 0)
    wait_until(lambda: not log.exists(), "it is deleted")
    agent.stop()
    assert len(agent.published) == 3


def test_a_finished_segment_that_the_guard_moves_is_not_read_once_more(tmp_path: Path) -> None:
    """It was in cdc_raw all the time, and waited for the archive."""

    class Archive:
        failures = 0
        is_there = False

        def is_archived(self, log: Path) -> bool:
            return self.is_there

    (tmp_path / "work").mkdir()
    archive = Archive()
    agent = _finished(tmp_path, archive)
    content = segment_bytes(_ID, [payloads(3)])
    log = agent.segment(_ID, content, f"{len(content)}\nCOMPLETED")
    agent.start()
    wait_until(lambda: _ID in agent.segments.listed, "it is listed")
    log.rename(agent.spill / log.name)
    (agent.cdc_raw / f"CommitLog-7-{_ID}_cdc.idx").unlink()
    wait_until(lambda: any(each.is_spilled for each in agent.segments.listed.values()), "it is found where it is now")
    archive.is_there = True
    wait_until(lambda: list(agent.spill.iterdir()) == [], "it is deleted")
    agent.stop()
    assert agent.published == []


def test_no_time_is_promised_before_a_segment_is_missed_that_went_while_the_agent_was_down(tmp_path: Path) -> None:
    """All listed segments are read at the first look, and only the second look finds the gap."""
    _lose_a_segment(tmp_path)
    agent = StagedAgent(tmp_path, MemoryTables(GOLDEN.tables()), unsynced=UnsyncedReading(0.001, 0.005, lambda: ""))
    live = GrowingSegment(tmp_path / f"CommitLog-7-{_ID + 1}.log", _ID + 1, 1024 * 1024)
    os.link(live.path, agent.cdc_raw / live.path.name)
    live.append(payloads(1))
    promised_before: list[int] = []

    class Gaps(list[Gap]):
        def append(self, gap: Gap) -> None:
            promised_before.append(len(agent.passed))
            super().append(gap)

    agent.gaps = Gaps()
    agent.start()
    wait_until(lambda: len(agent.gaps) == 1 and bool(agent.passed), "the gap is found, and times are promised", 5)
    agent.stop()
    live.close()
    assert promised_before == [0]


def test_a_finished_segment_that_is_removed_while_it_is_read_is_read_to_its_end(tmp_path: Path) -> None:
    """An open file can be read after its deletion. Nothing is lost, and no gap is reported."""
    rows = [entry.payload for entry in ENTRIES] * 40
    agent = _agent(tmp_path, max_events=1)
    agent.acknowledges = False
    agent.segment(_ID, segment_bytes(_ID, [rows]), "9\nCOMPLETED")
    agent.start()
    wait_until(lambda: len(agent.published) > 0, "reading began and waits for room")
    read = len(agent.published)
    _remove(agent, _ID)
    agent.acknowledges = True
    agent.positions.acknowledge(
        tracked_entries(agent.published[:read]), read, sum(e.size for e in agent.published[:read])
    )
    wait_until(lambda: agent.metrics.segments_finished == 1 or agent.positions.progress() == {}, "it is finished")
    agent.stop()
    assert len(agent.published) > read and len(set(agent.places())) >= len(rows) // 2
    assert agent.gaps == []


@pytest.mark.parametrize("content", ["", "12x"], ids=["empty", "no index at all"])
def test_a_segment_whose_index_says_nothing_to_a_new_agent_is_not_gone(tmp_path: Path, content: str) -> None:
    """Cassandra truncates an index before it rewrites it, and may be killed in between. The segment still exists."""
    (tmp_path / f"CommitLog-7-{_ID}.log").write_bytes(segment_bytes(_ID, [payloads(2)]))
    (tmp_path / f"CommitLog-7-{_ID}_cdc.idx").write_text(content)
    listing, detector = SegmentListing(tmp_path), GapDetector([_ID])
    for _ in range(4):
        listed = {each.segment_id: each for each in listing.segments(_ID + 10_000) or ()}
        assert (listed[_ID].limit, listed[_ID].final, listed[_ID].log_exists) == (0, False, True)
        assert detector.check(listed, (), _ID + 10_000) == ([], None)
    newer = int(time.time() * 1000) + 60_000
    (tmp_path / f"CommitLog-7-{newer}.log").write_bytes(segment_bytes(newer, [payloads(1)]))
    (tmp_path / f"CommitLog-7-{newer}_cdc.idx").write_text("100")
    # After a later start of the node, the first segment gets no more changes, and is read to its end.
    assert [each.final for each in listing.segments(newer) or ()] == [True, False]


def _listed(folder: Path) -> dict[SegmentKey, ReadableSegment]:
    return {each.key: each for each in SegmentListing(folder).segments(_ID + 10_000) or ()}


def _written_at(folder: Path, segment_id: int, time_s: int) -> Path:
    """Write a segment whose index has this modification time."""
    log, index = folder / f"CommitLog-7-{segment_id}.log", folder / f"CommitLog-7-{segment_id}_cdc.idx"
    log.write_bytes(segment_bytes(segment_id, [payloads(2)]))
    index.write_text("100")
    os.utime(index, (time_s, time_s))
    return log


def test_a_segment_that_one_look_misses_is_no_gap(tmp_path: Path) -> None:
    """It may be on its way to another folder. Only consecutive misses count."""
    log = _written_at(tmp_path, _ID, 100)
    detector, away = GapDetector([_ID]), tmp_path / "away"
    for _ in range(3):
        log.rename(away)
        assert detector.check(_listed(tmp_path), (), _ID)[1] is None
        away.rename(log)
        assert detector.check(_listed(tmp_path), (), _ID)[1] is None
    log.unlink()
    assert detector.check(_listed(tmp_path), (), _ID)[1] is None
    gone = detector.check(_listed(tmp_path), (), _ID)[1]
    assert gone is not None and gone.segments == (_ID,)


def test_a_gap_ends_where_the_next_segment_was_written(tmp_path: Path) -> None:
    """The index of an earlier segment is older than the lost changes, so it must not end their time window."""
    for number, time_s in enumerate((100, 200, 300, 400)):
        _written_at(tmp_path, _ID + number, time_s)
    detector = GapDetector([_ID + 1])
    (tmp_path / f"CommitLog-7-{_ID + 1}.log").unlink()
    (tmp_path / f"CommitLog-7-{_ID + 1}_cdc.idx").unlink()
    assert detector.check(_listed(tmp_path), (), _ID)[1] is None
    gone = detector.check(_listed(tmp_path), (), _ID)[1]
    assert gone is not None and (gone.segments, gone.to_ms) == ((_ID + 1,), 300_000)


def test_a_stop_waits_for_another_process_that_changes_the_file(tmp_path: Path) -> None:
    """The file is read, changed and replaced.

    Without the lock, the command could undo a stop, or the agent could undo a removal.
    """
    stops = Stops(tmp_path)
    with (tmp_path / "stops.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        noting = threading.Thread(target=stops.note, args=("k.t", "gone"))
        noting.start()
        noting.join(0.1)
        assert noting.is_alive() and not (tmp_path / "stops.json").exists()
    noting.join(10)
    assert stops.reasons() == {"k.t": "gone"}


def test_an_empty_index_without_its_segment_is_nothing(tmp_path: Path) -> None:
    """An empty index was left behind."""
    (tmp_path / f"CommitLog-7-{_ID}_cdc.idx").touch()
    assert SegmentListing(tmp_path).segments(_ID) == []


def test_links_without_an_index_that_cassandra_removes_are_no_gap(tmp_path: Path) -> None:
    """They held no change of a table with CDC. Such ids are missing regularly."""
    agent = _agent(tmp_path)
    log = agent.segment(_ID, segment_bytes(_ID, [payloads(2)]), None)
    agent.segment(_ID + 7, segment_bytes(_ID + 7, [payloads(1)]), "9\nCOMPLETED")
    agent.start()
    wait_until(lambda: agent.metrics.segments_deleted == 1, "a look was taken")
    log.unlink()
    time.sleep(0.2)
    agent.stop()
    assert agent.gaps == [] and agent.metrics.segments_gone_unread == 0


def test_a_segment_that_was_set_aside_just_before_a_kill_is_no_gap(tmp_path: Path) -> None:
    """The agent was killed after it had moved the file and before it stored that."""
    content = bytearray(segment_bytes(_ID, [payloads(2), payloads(1)]))
    content[len(segment_bytes(_ID, [payloads(1)])) + 15] ^= 1
    first = _agent(tmp_path)
    first.segment(_ID, bytes(content), str(len(segment_bytes(_ID, [payloads(2)]))))
    first.start()
    wait_until(lambda: first.metrics.corrupt_entries == 1, "the bad entry is met")
    first.stop()
    (tmp_path / "work" / "error").mkdir()
    (first.cdc_raw / f"CommitLog-7-{_ID}.log").rename(tmp_path / "work" / "error" / f"CommitLog-7-{_ID}.log")
    (first.cdc_raw / f"CommitLog-7-{_ID}_cdc.idx").unlink()
    second = _agent(tmp_path)
    second.start()
    wait_until(lambda: _ID in second._writer._stored.finished, "it is stored as finished")
    second.stop()
    assert second.gaps == []


class _Producers:
    """A broker that refuses the first requests."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.sent: SimpleQueue[tuple[str, bytes]] = SimpleQueue()
        self.stored: list[bytes] = []
        self.reads = 0

    def open_for(self, topic: str, record_name: str, schema_text: str) -> EventProducer:
        self._refuse(topic)
        return AcknowledgingProducer(lambda payload: self.sent.put((topic, payload)))

    def read_all(self, topic: str) -> list[bytes]:
        self._refuse(topic)
        self.reads += 1
        return self.stored

    def _refuse(self, topic: str) -> None:
        self.refusals -= 1
        if self.refusals >= 0:
            raise PublishError(topic, "not now")


def test_a_gap_is_told_when_the_broker_is_there_and_only_then_done_with(tmp_path: Path) -> None:
    """The name of the topic has the configured prefix."""
    producers = _Producers(refusals=1)
    done: SimpleQueue[bool] = SimpleQueue()
    reporter = GapReporter(producers, gaps_topic("persistent://public/default/mine-"), Stops(tmp_path))
    reporter.start()
    reporter.report(Gap(records=[_RECORD], on_reported=lambda: done.put(True)))
    assert done.get(timeout=10)
    topic, payload = producers.sent.get()
    reporter.stop()
    assert (topic, decode_gap(payload)) == ("persistent://public/default/mine-gaps", _RECORD)


def test_a_table_goes_on_when_its_gap_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The gaps topic is read again after a failure. Messages that are not gap records are skipped."""
    caplog.set_level("INFO")
    stops = Stops(tmp_path)
    stops.note("k.t", "gone", [_RECORD])
    stops.note("k.u", "corrupt")
    producers = _Producers(refusals=1)
    reporter = GapReporter(producers, "gaps", stops, check_s=0.01)
    reporter.start()
    wait_until(
        lambda: "cannot be applied: gaps: not now; retrying; cdc agent resume-progress" in caplog.text,
        "it cannot be read",
    )
    producers.stored = [encode_gap(_RECORD), b"other"]
    wait_until(lambda: producers.reads > 3, "it was read, and has no closing")
    assert set(stops.reasons()) == {"k.t", "k.u"}
    producers.stored = [*producers.stored, encode_gap(_RECORD.closed(1, "sent"))]
    wait_until(lambda: set(stops.reasons()) == {"k.u"}, "the table goes on")
    reporter.stop()
    assert "gaps: the gaps of k.t are closed: their progress continues" in caplog.text


def test_a_gap_of_another_machine_is_closed_although_this_one_had_no_stop_at_its_start(tmp_path: Path) -> None:
    """The stops of the copy of the positions come later, and no gap is reported with them."""
    stops = Stops(tmp_path)
    producers = _Producers(refusals=0)
    producers.stored = [encode_gap(_RECORD), encode_gap(_RECORD.closed(1, "sent"))]
    reporter = GapReporter(producers, "gaps", stops, check_s=0.01)
    reporter.start()
    time.sleep(0.1)
    assert producers.reads == 0
    assert stops.restore({"k.t": Stop(reason="gone", gaps=(_RECORD,))})
    wait_until(lambda: not stops.reasons(), "the table goes on", 10)
    reporter.stop()


def test_a_gap_that_the_topic_lacks_is_told_again_so_that_it_can_be_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent ended before it could report the gap, and then found it with a later beginning.

    Or the topic was deleted.
    """
    stops = Stops(tmp_path)
    later = replace(_RECORD, first_position=200)
    stops.note(EVERY_TABLE, "gone", [_RECORD])
    stops.note(EVERY_TABLE, "gone", [later])
    producers = _Producers(refusals=0)
    producers.stored = [encode_gap(later)]
    reporter = GapReporter(producers, "gaps", Stops(tmp_path), check_s=0.01)
    reporter.start()
    topic, payload = producers.sent.get(timeout=10)
    producers.stored = [*producers.stored, payload]
    reads = producers.reads
    wait_until(lambda: producers.reads > reads + 3, "it was read with both gaps")
    assert (topic, decode_gap(payload)) == ("gaps", _RECORD)
    told = caplog.text.count("gaps lacks 1 gaps whose tables stand still: they are reported again")
    producers.stored += [encode_gap(each.closed(1, "sent")) for each in (_RECORD, later)]
    wait_until(lambda: not stops.reasons(), "all tables go on")
    reporter.stop()
    assert producers.sent.qsize() + 1 == told <= 3
