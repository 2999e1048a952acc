"""Moments: the time until which every acknowledged write was read.

A follower reads real files, as Cassandra writes them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from change_agent.cdc_raw.listing import ReadableSegment
from change_agent.cdc_raw.segment_key import SegmentKey
from change_agent.commitlog.entry import CommitLogEntry
from change_agent.segments.moments import Moments
from change_agent.segments.unsynced import UnsyncedReading
from tests.agent.growing_segment import GrowingSegment
from tests.agent.segment_writer import encoded_segment_bytes, entry_bytes, header_bytes, lz4_bytes
from tests.agent.stages import MemoryTables, StagedAgent, payloads
from tests.topics.events_topic import wait_until

_ID = time.time_ns() // 1_000_000 - 10_000
_SIZE = 1024 * 1024


class _Node:
    """A node whose segments grow, and its agent. Their common clock is ahead by `hours`."""

    def __init__(self, folder: Path, tables: MemoryTables, *, unsynced: bool) -> None:
        self.folder = folder
        self.hours = 0
        early = UnsyncedReading(0.001, 0.005, lambda: "") if unsynced else None
        self.agent = StagedAgent(folder, tables, unsynced=early, clock=lambda: time.time() + 3600 * self.hours)
        self._segments: list[GrowingSegment] = []

    def start(self) -> None:
        self.agent.start()

    def segment(self, segment_id: int, *, is_linked: bool = True) -> GrowingSegment:
        made = GrowingSegment(self.folder / f"CommitLog-7-{segment_id}.log", segment_id, _SIZE)
        if is_linked:
            self.link(made)
        self._segments.append(made)
        return made

    def link(self, segment: GrowingSegment) -> None:
        os.link(segment.path, self.agent.cdc_raw / segment.path.name)

    def now_ms(self) -> int:
        return int((time.time() + 3600 * self.hours) * 1000)

    def passes(self, events: int) -> None:
        """Wait until a moment after now is passed, and check that this number of events was published before it."""
        asked = self.now_ms() + 1
        wait_until(lambda: any(each[0] >= asked for each in self.agent.passed), "a new moment is passed")
        assert next(count for time_ms, count in self.agent.passed if time_ms >= asked) == events

    def stands(self) -> None:
        """Check that no later moment is passed."""
        asked = self.now_ms() + 1
        time.sleep(0.3)
        assert not [each for each in self.agent.passed if each[0] >= asked]

    def close(self) -> None:
        self.agent.stop()
        for segment in self._segments:
            segment.close()


@pytest.fixture(params=[True, False], ids=["readUnsynced", "synced"])
def node(tmp_path: Path, tables: MemoryTables, request: pytest.FixtureRequest) -> Iterator[_Node]:
    """A node without a segment, and an agent that runs."""
    made = _Node(tmp_path, tables, unsynced=request.param)
    made.start()
    yield made
    made.close()


@pytest.fixture
def eager(tmp_path: Path, tables: MemoryTables) -> Iterator[_Node]:
    """The same as `node`, always with readUnsynced."""
    made = _Node(tmp_path, tables, unsynced=True)
    made.start()
    yield made
    made.close()


def test_an_idle_node_moves_on(node: _Node) -> None:
    """All of its writes are synced, and no further write follows."""
    segment = node.segment(_ID)
    segment.append(payloads(3))
    node.agent.index(_ID, str(segment.sync()))
    node.passes(events=3)
    node.passes(events=3)


def test_the_next_segment_which_is_empty_needs_no_answer_of_the_node(tmp_path: Path, tables: MemoryTables) -> None:
    """Cassandra creates it in advance, and a node that was killed leaves it behind."""
    node = _Node(tmp_path, tables, unsynced=False)
    segment = node.segment(_ID)
    segment.append(payloads(3))
    node.agent.index(_ID, str(segment.sync()))
    node.start()
    node.passes(events=3)
    tables.answers = False
    node.segment(_ID + 1)
    node.passes(events=3)
    node.close()


def test_nothing_is_said_without_a_segment(node: _Node) -> None:
    """A running node always has a segment. Without one, the folder is the wrong one, or cdc_raw is full."""
    node.stands()


def test_a_node_that_was_restarted_with_cdc_disabled_stops_it(eager: _Node) -> None:
    """Its name in the commit log folder is gone, and the node does not link its next segments."""
    segment = eager.segment(_ID)
    segment.append(payloads(3))
    eager.agent.index(_ID, str(segment.sync()))
    eager.passes(events=3)
    segment.path.unlink()
    eager.segment(_ID + 1, is_linked=False)
    eager.stands()
    third = eager.segment(_ID + 2)
    third.append(payloads(1))
    eager.agent.index(_ID + 2, str(third.sync()))
    eager.passes(events=4)


def test_what_is_not_synced_is_waited_for(tmp_path: Path, tables: MemoryTables) -> None:
    """Cassandra may have acknowledged an unsynced write."""
    node = _Node(tmp_path, tables, unsynced=False)
    segment = node.segment(_ID)
    segment.append(payloads(2))
    node.agent.index(_ID, str(segment.sync()))
    segment.append(payloads(1))
    node.start()
    node.stands()
    node.agent.index(_ID, str(segment.sync()))
    node.passes(events=3)
    node.close()


def test_an_answered_write_behind_one_that_is_not_written_stops_it(eager: _Node) -> None:
    """Space is allocated in order, but filled in any order. A write after zeros may be acknowledged."""
    segment = eager.segment(_ID)
    segment.append(payloads(1))
    eager.passes(events=1)
    late = segment.allocate(bytes(200_000))
    segment.append(payloads(1))
    eager.stands()
    segment.write(*late)
    eager.passes(events=2)


def test_an_answered_write_in_the_next_segment_stops_it(eager: _Node) -> None:
    """The segment before may still get an entry."""
    first, second = eager.segment(_ID), eager.segment(_ID + 1)
    first.append(payloads(1))
    eager.passes(events=1)
    late = first.allocate(payloads(1)[0])
    second.append(payloads(1))
    eager.stands()
    first.write(*late)
    first.complete()
    eager.passes(events=3)


def test_a_segment_that_is_not_linked_stops_it(node: _Node) -> None:
    """Cassandra links it when cdc_raw has room again. Another thread may write to it just before."""
    first = node.segment(_ID)
    first.append(payloads(1))
    node.agent.index(_ID, f"{first.complete()}\nCOMPLETED")
    second = node.segment(_ID + 1, is_linked=False)
    node.segment(_ID + 2)
    wait_until(lambda: len(node.agent.published) == 1, "the first one is read")
    node.stands()
    second.append(payloads(1))
    limit = second.sync()
    # An index without its segment would count as a deleted segment.
    node.link(second)
    node.agent.index(_ID + 1, str(limit))
    node.passes(events=2)


def test_writes_without_cdc_need_no_index(tmp_path: Path, tables: MemoryTables) -> None:
    """A segment with only such writes gets no index."""
    tables.tables = {table_id: replace(each, cdc=False) for table_id, each in tables.tables.items()}
    node = _Node(tmp_path, tables, unsynced=False)
    node.segment(_ID).append(payloads(5))
    node.start()
    node.passes(events=0)
    node.close()


def test_a_compressed_log_needs_three_syncs(tmp_path: Path, tables: MemoryTables) -> None:
    """Between the syncs, the node keeps its writes in memory."""
    node = _Node(tmp_path, tables, unsynced=False)
    log = node.folder / f"CommitLog-7-{_ID}.log"

    def sync(count: int) -> None:
        plain = _entries(count)
        content = encoded_segment_bytes(_ID, {"compressionClass": "LZ4Compressor"}, plain)
        log.write_bytes(content)
        if count == 1:
            os.link(log, node.agent.cdc_raw / log.name)
        node.agent.index(_ID, str(_length(count)))

    sync(1)
    node.start()
    wait_until(lambda: len(node.agent.published) == 1, "the first sync is read")
    for count in (2, 3):
        asked = node.now_ms()
        sync(count)
        wait_until(lambda count=count: len(node.agent.published) == count, "a sync is read")  # type: ignore[misc]
        time.sleep(0.1)
        assert not [each for each in node.agent.passed if each[0] >= asked]
    sync(4)
    wait_until(lambda: bool(node.agent.passed), "a moment is passed")
    assert node.agent.passed[0][1] == 4
    node.stands()
    node.close()


def _entries(count: int) -> list[tuple[int, bytes]]:
    plain = [entry_bytes(each) for each in payloads(count)]
    return [(len(each), lz4_bytes(each)) for each in plain]


def _length(count: int) -> int:
    header = len(header_bytes(_ID, parameters={"compressionClass": "LZ4Compressor"}))
    return header + sum(8 + len(entry_bytes(each)) for each in payloads(count))


def test_a_clock_that_goes_back_is_waited_for(eager: _Node) -> None:
    """Passed times only grow, and the reason for the wait is reported."""
    eager.segment(_ID).append(payloads(1))
    eager.passes(events=1)
    eager.hours = -1
    wait_until(lambda: "was set back" in (eager.agent.moments.behind or ""), "the reason is told")
    told = len(eager.agent.passed)
    time.sleep(0.2)
    assert len(eager.agent.passed) == told
    eager.hours = 0
    eager.passes(events=1)
    times = [each[0] for each in eager.agent.passed]
    assert times == sorted(times)


def test_a_segment_that_cannot_be_read_stops_every_table(node: _Node) -> None:
    """Its changes are not published.

    The damage exists before the segment is linked, because readUnsynced reads at once.
    """
    segment = node.segment(_ID, is_linked=False)
    position = segment.append(payloads(2))
    segment.write(position - 6, b"\xff\xff\xff")
    node.link(segment)
    node.segment(_ID + 1).append(payloads(1))
    node.agent.index(_ID, f"{segment.complete()}\nCOMPLETED")
    wait_until(lambda: "*" in node.agent.stops.reasons(), "it is told")


class _Reader:
    """A reader that has opened the first segment, and has read the others."""

    def __init__(self) -> None:
        self.ended: set[int] = set()

    def read_position(self, segment_id: int) -> int | None:
        return None if segment_id == _ID else _SIZE

    def is_ended(self, segment_id: int) -> bool:
        return segment_id in self.ended

    def is_wanted(self, segment_id: int) -> bool:
        return segment_id == _ID

    def confirm_schema(self) -> bool:
        return True

    def is_unpublished(self, entry: CommitLogEntry, version: int) -> bool:
        return False


def test_a_segment_that_one_look_misses_is_still_waited_for(tmp_path: Path) -> None:
    """The segment is being moved, and its changes are not read yet."""
    passed: list[int] = []
    moments, reader = Moments(0.01, passed.append), _Reader()
    open_segment = GrowingSegment(tmp_path / f"CommitLog-7-{_ID + 1}.log", _ID + 1, _SIZE)
    os.link(open_segment.path, tmp_path / "linked.log")
    open_segment.append(payloads(1))
    whole, growing = (
        ReadableSegment(
            key=SegmentKey(_ID + number),
            path=tmp_path / ("gone.log", "linked.log")[number],
            limit=100,
            final=number == 0,
            log_exists=True,
            index_time_ms=0,
            has_index=True,
        )
        for number in (0, 1)
    )
    moments.begin(1_000, [whole, growing], reader)
    moments.begin(None, [growing], reader)
    moments.settle(reader, reader)
    assert passed == []
    reader.ended.add(_ID)
    moments.settle(reader, reader)
    assert passed == [1_000]
    moments.close()
    open_segment.close()
