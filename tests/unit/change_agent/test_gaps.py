"""Gaps: what proves that unread changes are gone, what does not, and what is told about them."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from queue import SimpleQueue
from uuid import UUID

import pytest

from change_agent.cdc_raw.listing import SegmentListing
from change_agent.cdc_raw.segment_key import SegmentKey
from change_agent.errors import PublishError
from change_agent.positions.offsets import OffsetStore, StoredPositions
from change_agent.positions.segment_ids import SegmentIds
from change_agent.positions.stops import EVERY_TABLE, Stops
from change_agent.publishing.event_producers import EventProducer, OnResult
from change_agent.segments.gap_detector import GapDetector
from change_agent.segments.gaps import Gap, GapReporter
from change_agent.segments.unsynced import UnsyncedReading
from schemas.gap_record import GapRecord, decode_gap, encode_gap, gaps_topic
from tests.agent.growing_segment import GrowingSegment
from tests.agent.segment_writer import segment_bytes
from tests.agent.stages import ENTRIES, GOLDEN, MemoryTables, StagedAgent, payloads, tracked_entries
from tests.topics.events_topic import wait_until

_ID = time.time_ns() // 1_000_000 - 10_000
_RECORD = GapRecord(
    node_id=UUID(int=1),
    keyspace="k",
    table="t",
    table_id=UUID(int=2),
    first_segment_id=_ID,
    first_position=100,
    last_segment_id=_ID + 3,
    from_ms=None,
    to_ms=1_795_000_000_000,
    detected_ms=1_795_000_000_001,
    reason="gone",
)


def _agent(folder: Path, max_events: int = 10_000) -> StagedAgent:
    return StagedAgent(folder, MemoryTables(GOLDEN.tables()), max_events=max_events)


def _remove(agent: StagedAgent, segment_id: int) -> None:
    """Cassandra's way: the log, then its index."""
    (agent.cdc_raw / f"CommitLog-7-{segment_id}.log").unlink()
    (agent.cdc_raw / f"CommitLog-7-{segment_id}_cdc.idx").unlink()


def _lose_a_segment(folder: Path) -> None:
    """An agent has read a part of it and stored its position. It ends, and Cassandra removes the segment."""
    agent = _agent(folder)
    agent.segment(_ID, segment_bytes(_ID, [payloads(2)]), "150")
    agent.start()
    wait_until(lambda: agent.stored != agent._store.load(), "the segment is known")
    agent.stop()
    _remove(agent, _ID)


def test_segments_that_were_seen_and_went_unread_are_one_gap(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first was read in part, the second not at all: one record a table, from the last position on."""
    agent = _agent(tmp_path)
    first = len(segment_bytes(_ID, [payloads(2)]))
    agent.segment(_ID, segment_bytes(_ID, [payloads(2), payloads(4)]), str(first))
    agent.segment(_ID + 1, segment_bytes(_ID + 1, [payloads(3)]), "300")
    agent.start()
    wait_until(lambda: len(agent.published) == 2, "the first section is read")
    # While the first may still grow, the second waits. Both go between two looks, and not in the middle of one.
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
    # the open file was read on, as far as it went
    assert records[0].first_position == len(segment_bytes(_ID, [payloads(2), payloads(4)]))
    assert records[0].from_ms is not None and records[0].from_ms < records[0].to_ms
    assert agent.metrics.segments_gone_unread == 2
    [told] = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert told.startswith(f"2 segments ({_ID} to {_ID + 1}) went from cdc_raw before they were read to their end")
    # Who repairs the tables otherwise has to tell the agent, which sees no acknowledged record.
    assert agent.stops.reasons()[EVERY_TABLE].endswith(
        ": run cdc spark resync; or run cdc spark verify --repair on the tables, then cdc agent resume-progress"
    )


def test_a_segment_that_went_while_the_agent_was_down_is_a_gap(tmp_path: Path) -> None:
    """Stored positions know it; the next start misses it, and asks no more once it was told."""
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
    """An agent has read the first part of a segment, which was synced then, and ends. Cassandra removes the segment."""
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
    """The newer segment is read before the loss is sure; so is what an operator has queued. The start after that, before the gap
    is reported, finds the same."""
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
    """Reading of a completed segment is denied, and it goes. What was read before it was synced two hours ago."""
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
    """A fault in its first part says nothing about the rest, which Cassandra may have removed unread."""
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
    agent.stop()
    assert len(agent.gaps) == agent.metrics.segments_gone_unread == (not set_aside)


@pytest.mark.parametrize("restarted", [False, True], ids=["same process", "after a restart"])
def test_spilled_segments_whose_disk_was_away_are_read_when_it_is_there_again(tmp_path: Path, restarted: bool) -> None:
    """The agent starts before the disk is mounted: the segments are reported as a gap, and must not be deleted unread."""
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


def _finished(folder: Path, archive: object = None) -> StagedAgent:
    """An agent whose stored positions call the segment finished."""
    store = OffsetStore(folder / "work")
    store.store(StoredPositions(segments={}, finished=SegmentIds.of([_ID])))
    store.close()
    return StagedAgent(folder, MemoryTables(GOLDEN.tables()), archiving=archive)


def test_a_spilled_segment_that_is_read_once_more_is_not_read_again_when_its_disk_is_away_for_a_moment(
    tmp_path: Path,
) -> None:
    """Its events wait for the broker: acknowledgements of the first reading would end the account of a second one."""
    (tmp_path / "work").mkdir()
    agent = _finished(tmp_path)
    agent.acknowledges = False
    log = agent.spill / f"CommitLog-7-{_ID}.log"
    log.write_bytes(segment_bytes(_ID, [payloads(3)]))
    agent.start()
    wait_until(lambda: len(agent.published) == 3, "it is read")
    agent.spill.rename(tmp_path / "disk")
    wait_until(lambda: not agent.follower.listed, "its disk is away")
    (tmp_path / "disk").rename(agent.spill)
    wait_until(lambda: bool(agent.follower.listed), "its disk is there again")
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
    wait_until(lambda: _ID in agent.follower.listed, "it is listed")
    log.rename(agent.spill / log.name)
    (agent.cdc_raw / f"CommitLog-7-{_ID}_cdc.idx").unlink()
    wait_until(lambda: any(each.is_spilled for each in agent.follower.listed.values()), "it is found where it is now")
    archive.is_there = True
    wait_until(lambda: list(agent.spill.iterdir()) == [], "it is deleted")
    agent.stop()
    assert agent.published == []


def test_no_time_is_promised_before_a_segment_is_missed_that_went_while_the_agent_was_down(tmp_path: Path) -> None:
    """All that is listed at the start is read at once, and only the second look finds the gap."""
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
    """An open file outlives its name: nothing is lost, and nothing is told."""
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
    """Cassandra empties an index before it writes it anew, and may be killed between: the segment is there all the same."""
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
    # a later start of the node writes another segment: the first gets no more changes, and is read to its end
    assert [each.final for each in listing.segments(newer) or ()] == [True, False]


def test_an_empty_index_without_its_segment_is_nothing(tmp_path: Path) -> None:
    """Somebody left it behind."""
    (tmp_path / f"CommitLog-7-{_ID}_cdc.idx").touch()
    assert SegmentListing(tmp_path).segments(_ID) == []


def test_links_without_an_index_that_cassandra_removes_are_no_gap(tmp_path: Path) -> None:
    """They held no change of a table with CDC: ids are missing all the time."""
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
    """The file was moved, and the process did not live to store that."""
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
    """A broker that refuses a few times."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.sent: SimpleQueue[tuple[str, bytes]] = SimpleQueue()
        self.stored: list[bytes] = []
        self.reads = 0

    def open_for(self, topic: str, record_name: str, schema_text: str) -> EventProducer:
        self._refuse(topic)
        return _Producer(topic, self.sent)

    def read_all(self, topic: str) -> list[bytes]:
        self._refuse(topic)
        self.reads += 1
        return self.stored

    def _refuse(self, topic: str) -> None:
        self.refusals -= 1
        if self.refusals >= 0:
            raise PublishError(topic, "not now")


class _Producer:
    def __init__(self, topic: str, sent: SimpleQueue[tuple[str, bytes]]) -> None:
        self._topic, self._sent = topic, sent

    def send(self, payload: bytes, key: str | None, on_result: OnResult) -> bool:
        self._sent.put((self._topic, payload))
        on_result(None)
        return True

    def is_connected(self) -> bool:
        return True

    def close(self) -> None:
        pass


def test_a_gap_is_told_when_the_broker_is_there_and_only_then_done_with(tmp_path: Path) -> None:
    """The topic is that of the prefix."""
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
    """The gaps topic is read again after a failure, and messages that are not gap records are skipped."""
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
