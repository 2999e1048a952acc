"""readUnsynced: the follower publishes changes before Cassandra has synced them. The broker is in memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from change_agent.segments.unsynced import UnsyncedReading
from tests.agent.growing_segment import GrowingSegment
from tests.agent.segment_writer import encoded_segment_bytes, header_bytes, lz4_bytes, segment_bytes
from tests.agent.stages import MemoryTables, StagedAgent, payloads
from tests.topics.events_topic import wait_until

_ID = time.time_ns() // 1_000_000 - 10_000


def _unsynced(access_mode: str = "") -> UnsyncedReading:
    return UnsyncedReading(0.001, 0.005, lambda: access_mode)


class _Node:
    """A node whose segments grow, and the agents that follow them, one after the other."""

    def __init__(self, folder: Path, tables: MemoryTables) -> None:
        self.folder = folder
        self._tables = tables
        self._segments: list[GrowingSegment] = []
        self.agent = self.start_agent()

    def start_agent(self, unsynced: UnsyncedReading | None = None) -> StagedAgent:
        self.agent = StagedAgent(self.folder, self._tables, unsynced=unsynced or _unsynced())
        self.agent.start()
        return self.agent

    def segment(self, segment_id: int) -> GrowingSegment:
        """Create a segment that is linked in cdc_raw from the beginning, as Cassandra does."""
        made = GrowingSegment(self.folder / f"CommitLog-7-{segment_id}.log", segment_id)
        os.link(made.path, self.agent.cdc_raw / made.path.name)
        self._segments.append(made)
        return made

    def published(self, count: int) -> None:
        wait_until(lambda: len(self.agent.published) >= count, f"{count} events")
        time.sleep(0.05)
        assert len(self.agent.published) == count
        assert self.agent.places() == sorted(set(self.agent.places()))

    def close(self) -> None:
        self.agent.stop()
        for segment in self._segments:
            segment.close()


@pytest.fixture
def node(tmp_path: Path, tables: MemoryTables) -> Iterator[_Node]:
    """A node without a segment, and an agent that runs."""
    made = _Node(tmp_path, tables)
    yield made
    made.close()


def test_the_pause_grows_with_many_mutations_and_with_none() -> None:
    """It never leaves the limits of the options."""
    reading = UnsyncedReading(0.001, 0.005, lambda: "")
    assert [reading.next_interval_s(0.004, mutations) for mutations in (1, 7)] == [0.001, 0.001]
    assert [reading.next_interval_s(0.001, mutations) for mutations in (8, 500)] == [0.003, 0.003]
    assert [reading.next_interval_s(interval_s, 0) for interval_s in (0.001, 0.003, 0.005)] == [0.002, 0.005, 0.005]
    assert UnsyncedReading(0.002, 0.005, lambda: "").next_interval_s(0.002, 8) == 0.005


def test_changes_are_published_before_the_index_exists(node: _Node) -> None:
    """They are not published again later. The segment is deleted when it is completed."""
    segment = node.segment(_ID)
    segment.append(payloads(3))
    node.published(3)
    segment.append(payloads(2))
    node.published(5)
    node.agent.index(_ID, str(segment.sync()))
    segment.append(payloads(1))
    node.published(6)
    node.agent.index(_ID, f"{segment.complete()}\nCOMPLETED")
    wait_until(lambda: node.agent.files() == [], "the segment is deleted")
    node.published(6)
    assert node.agent.gaps == []


def test_a_restart_goes_on_behind_what_was_acknowledged_before_any_sync(node: _Node) -> None:
    """The segment has no index yet."""
    segment = node.segment(_ID)
    segment.append(payloads(3))
    node.published(3)
    node.agent.stop()
    first = set(node.agent.places())
    segment.append(payloads(2))
    node.start_agent()
    node.published(2)
    assert not first & set(node.agent.places())


def test_the_next_segment_waits_until_the_one_before_is_written_to_its_end(node: _Node) -> None:
    """An entry that was allocated first may be written last, and the order of keys must hold."""
    first, second = node.segment(_ID), node.segment(_ID + 1)
    first.append(payloads(1))
    late = first.allocate(payloads(1)[0])
    second.append(payloads(2))
    node.published(1)
    first.write(*late)
    node.published(2)
    first.complete()
    node.published(4)
    node.agent.index(_ID, f"{first.size}\nCOMPLETED")
    wait_until(lambda: len(node.agent.files()) == 1, "the first segment is deleted")
    second.append(payloads(1))
    node.published(5)


def test_a_segment_without_a_published_change_may_go(node: _Node, tables: MemoryTables) -> None:
    """Cassandra removes the link and writes no index. There is no gap, and no position is stored."""
    tables.tables = {table_id: replace(each, cdc=False) for table_id, each in tables.tables.items()}
    segment = node.segment(_ID)
    segment.append(payloads(3))
    wait_until(lambda: node.agent.metrics.mutations_skipped == 3, "they are read")
    (node.agent.cdc_raw / segment.path.name).unlink()
    wait_until(lambda: _ID not in node.agent.segments.listed, "it is gone")
    time.sleep(0.2)
    assert node.agent.gaps == []
    assert _ID not in node.agent.stored_now().segments


def test_a_segment_without_a_published_change_may_be_left_behind(node: _Node, tables: MemoryTables) -> None:
    """Cassandra writes no index for it, and leaves the link after a restart. It is finished like any other segment."""
    tables.tables = {table_id: replace(each, cdc=False) for table_id, each in tables.tables.items()}
    segment = node.segment(_ID)
    segment.append(payloads(3))
    wait_until(lambda: node.agent.metrics.mutations_skipped == 3, "they are read")
    segment.path.unlink()
    later = time.time_ns() // 1_000_000 + 5
    node.agent.segment(later, segment_bytes(later, [payloads(1)]), "10")
    wait_until(lambda: _ID in node.agent.stored_now().finished, "it is finished")
    assert node.agent.gaps == []


def test_after_a_restart_of_the_node_no_change_waits_for_the_first_sync(node: _Node) -> None:
    """The segment of the earlier start is open as long as it has its name in Cassandra's own folder."""
    before = node.segment(_ID)
    before.append(payloads(2))
    node.agent.index(_ID, str(before.sync()))
    node.published(2)
    after = node.segment(time.time_ns() // 1_000_000 + 5)
    after.append(payloads(3))
    node.published(2)
    before.path.unlink()
    node.published(5)
    wait_until(lambda: _ID in node.agent.stored_now().finished, "the one before is finished")
    assert node.agent.gaps == []


def test_what_a_killed_node_synced_last_is_read_though_it_removes_the_segment(node: _Node) -> None:
    """At its start, the node removes the link of a segment without an index, also if it has changes."""
    segment = node.segment(_ID)
    segment.append(payloads(2))
    node.published(2)
    segment.sync()
    segment.append(payloads(1))
    segment.sync()
    (node.agent.cdc_raw / segment.path.name).unlink()
    node.published(3)
    wait_until(lambda: _ID in node.agent.stored_now().finished, "the segment is finished")
    assert node.agent.gaps == []


def test_a_segment_that_goes_while_the_agent_is_down_is_a_gap(node: _Node) -> None:
    """Writes after the last published change are not known."""
    segment = node.segment(_ID)
    segment.append(payloads(2))
    node.published(2)
    node.agent.stop()
    (node.agent.cdc_raw / segment.path.name).unlink()
    node.start_agent()
    wait_until(lambda: len(node.agent.gaps) == 1, "the gap is reported")


def test_what_a_killed_node_lost_is_told(node: _Node, caplog: pytest.LogCaptureFixture) -> None:
    """The changes were published, but the node's start reads only up to the last marker."""
    segment = node.segment(_ID)
    segment.append(payloads(2))
    node.agent.index(_ID, str(segment.sync()))
    segment.append(payloads(1))
    node.published(3)
    later = time.time_ns() // 1_000_000 + 5
    node.agent.segment(later, segment_bytes(later, [payloads(1)]), "10")
    wait_until(lambda: node.agent.metrics.unsynced_bytes_lost > 0, "it is counted")
    assert "were published before Cassandra synced them" in caplog.text


def test_an_agent_that_comes_after_the_kill_of_the_node_publishes_and_tells_the_same(
    node: _Node, caplog: pytest.LogCaptureFixture
) -> None:
    """The earlier agent may have published more than the stored positions say."""
    node.agent.stop()
    segment = node.segment(_ID)
    segment.append(payloads(2))
    node.agent.index(_ID, str(segment.sync()))
    segment.append(payloads(3))
    later = time.time_ns() // 1_000_000 + 5
    node.agent.segment(later, segment_bytes(later, [payloads(1)]), "10")
    node.start_agent()
    node.published(6)
    assert "were published before Cassandra synced them" in caplog.text
    assert node.agent.metrics.unsynced_bytes_lost > 0


@pytest.mark.parametrize(
    ("content", "access_mode", "why"),
    [
        (
            lambda plain: encoded_segment_bytes(
                _ID, {"compressionClass": "LZ4Compressor"}, [(len(plain), lz4_bytes(plain))]
            ),
            "",
            "the commit log is compressed",
        ),
        (
            lambda plain: header_bytes(_ID).ljust(4096, b"\0"),
            "direct",
            "Cassandra writes with commitlog_disk_access_mode: direct",
        ),
    ],
)
def test_where_the_log_does_not_allow_it_one_line_says_why(
    tmp_path: Path,
    tables: MemoryTables,
    caplog: pytest.LogCaptureFixture,
    content: Callable[[bytes], bytes],
    access_mode: str,
    why: str,
) -> None:
    """The usual reading continues."""
    agent = StagedAgent(tmp_path, tables, unsynced=_unsynced(access_mode))
    plain = segment_bytes(_ID, [payloads(2)])[len(header_bytes(_ID)) + 8 :]
    agent.segment(_ID, content(plain), "5")
    agent.start()
    wait_until(lambda: why in caplog.text, "it is told")
    time.sleep(0.1)
    agent.stop()
    assert caplog.text.count("readUnsynced has no effect") == 1


def test_with_cassandra_3_11_one_line_says_why(
    tmp_path: Path, tables: MemoryTables, caplog: pytest.LogCaptureFixture
) -> None:
    """A segment of 3.11 is in cdc_raw only when it is finished."""
    agent = StagedAgent(tmp_path, tables, unsynced=_unsynced())
    (agent.cdc_raw / f"CommitLog-6-{_ID}.log").write_bytes(segment_bytes(_ID, [payloads(2)], version=6))
    agent.start()
    wait_until(lambda: "3.11 hands over" in caplog.text, "it is told")
    agent.stop()
    assert caplog.text.count("readUnsynced has no effect") == 1
