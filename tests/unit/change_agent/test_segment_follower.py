"""SegmentFollower: golden segments that grow, end, are moved and are deleted. The broker is in memory."""

from __future__ import annotations

import json
import time
from pathlib import Path
from uuid import UUID

import pytest

from change_agent.cdc_raw.listing import ReadableSegment
from change_agent.db.mutation import MutationDecoder
from tests.agent.segment_writer import segment_bytes
from tests.agent.stages import ENTRIES, GOLDEN, MemoryTables, StagedAgent, payloads, tracked_entries
from tests.golden.segments import ENCODED_SEGMENTS, GoldenSegment
from tests.topics.events_topic import wait_until

# Ids of a node that started now, so that no segment seems to belong to an earlier start.
_ID = time.time_ns() // 1_000_000 - 10_000


def test_a_finished_segment_is_published_and_then_deleted(agent: StagedAgent) -> None:
    """Both files are deleted after the segment is stored as finished."""
    agent.segment(_ID, segment_bytes(_ID, [payloads(3), payloads(2)]), "5\nCOMPLETED")
    wait_until(lambda: agent.files() == [], "the segment is deleted")
    assert len(agent.published) == 5
    assert (agent.metrics.segments_finished, agent.metrics.segments_deleted) == (1, 1)


def test_nothing_is_deleted_before_everything_is_acknowledged(agent: StagedAgent) -> None:
    """Reading to the end is not enough."""
    agent.acknowledges = False
    agent.segment(_ID, segment_bytes(_ID, [payloads(3)]), "5\nCOMPLETED")
    wait_until(lambda: len(agent.published) == 3, "all is read")
    time.sleep(0.1)
    assert len(agent.files()) == 2
    agent.positions.acknowledge(tracked_entries(agent.published), 3, 0)
    wait_until(lambda: agent.files() == [], "the segment is deleted")


def test_a_segment_is_followed_as_its_index_moves(agent: StagedAgent) -> None:
    """The index says how far Cassandra has synced. Only that part is read, and no entry twice."""
    whole = segment_bytes(_ID, [payloads(2), payloads(4)])
    first = len(segment_bytes(_ID, [payloads(2)]))
    agent.segment(_ID, whole, str(first))
    wait_until(lambda: len(agent.published) == 2, "the first section is read")
    time.sleep(0.1)
    assert len(agent.published) == 2
    agent.index(_ID, "")
    agent.index(_ID, str(len(whole)))
    wait_until(lambda: len(agent.published) == 6, "the second section is read")
    assert len(set(agent.places())) == 6
    assert len(agent.files()) == 2


def test_segments_are_read_in_the_order_of_their_ids(tmp_path: Path, tables: MemoryTables) -> None:
    """A backlog of several segments, found at once."""
    agent = StagedAgent(tmp_path, tables)
    for segment_id in (_ID + 2, _ID, _ID + 1):
        agent.segment(segment_id, segment_bytes(segment_id, [payloads(3)]), "9\nCOMPLETED")
    agent.start()
    wait_until(lambda: agent.files() == [], "all are deleted")
    agent.stop()
    assert agent.places() == sorted(agent.places()) and len(agent.published) == 9


def test_a_restart_goes_on_behind_what_was_acknowledged(tmp_path: Path, tables: MemoryTables) -> None:
    """No event is published twice, and none is lost."""
    whole = segment_bytes(_ID, [payloads(2), payloads(4)])
    first = StagedAgent(tmp_path, tables)
    first.segment(_ID, whole, str(len(segment_bytes(_ID, [payloads(2)]))))
    first.start()
    wait_until(lambda: len(first.published) == 2, "the first section is read")
    first.stop()
    first.index(_ID, str(len(whole)))
    second = StagedAgent(tmp_path, tables)
    second.start()
    wait_until(lambda: len(second.published) == 4, "the rest is read")
    second.stop()
    assert not set(first.places()) & set(second.places())


def test_a_deleted_segment_that_comes_back_is_deleted_again_unread(tmp_path: Path, tables: MemoryTables) -> None:
    """Cassandra links segments again when it replays them. The same holds after a restart of the agent."""
    content = segment_bytes(_ID, [payloads(3)])
    for run in range(2):
        agent = StagedAgent(tmp_path, tables)
        agent.start()
        for _ in range(2):
            (tmp_path / f"CommitLog-7-{_ID}.log").unlink(missing_ok=True)
            agent.segment(_ID, content, "300\nCOMPLETED")
            wait_until(lambda: agent.files() == [], "the segment is deleted", 5)  # noqa: B023
        agent.stop()
        assert len(agent.published) == (3 if run == 0 else 0)


def test_a_segment_of_an_earlier_start_is_read_to_its_end_whatever_its_index_says(agent: StagedAgent) -> None:
    """The node was killed. The index is too small and not completed, and the log has more entries."""
    whole = segment_bytes(_ID, [payloads(2), payloads(4)])
    agent.segment(_ID, whole, str(len(segment_bytes(_ID, [payloads(2)]))))
    wait_until(lambda: len(agent.published) == 2, "the synced part is read")
    later = time.time_ns() // 1_000_000 + 5
    agent.segment(later, segment_bytes(later, [payloads(1)]), "10")
    wait_until(lambda: len(agent.published) >= 6, "the rest is read")
    wait_until(lambda: len(agent.files()) == 2, "the earlier segment is deleted")


def test_no_value_of_a_row_reaches_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Mutations are published, parked, skipped and set aside. At INFO and above, the log has only positions."""
    caplog.set_level("INFO")
    unknown = UUID(bytes=ENTRIES[0].payload[1:17])
    known = {table_id: table for table_id, table in GOLDEN.tables().items() if table_id != unknown}
    agent = StagedAgent(tmp_path, MemoryTables(known))
    whole = segment_bytes(_ID, [[each.payload for each in ENTRIES]])
    agent.segment(_ID, whole, "9\nCOMPLETED")
    damaged = bytearray(segment_bytes(_ID + 1, [[each.payload for each in ENTRIES]]))
    damaged[-20] ^= 1
    agent.segment(_ID + 1, bytes(damaged), "9\nCOMPLETED")
    agent.start()
    wait_until(lambda: agent.metrics.segments_set_aside == 1, "both are read")
    agent.stop()
    decoder = MutationDecoder(GOLDEN.tables())
    updates = [update for each in ENTRIES for update in decoder.decode(each.payload, 7).updates]
    cells = [cell.value for update in updates for row in update.rows for cell in row.cells if cell.value]
    values = {each for each in (*cells, *(update.partition_key for update in updates)) if len(each) > 4}
    assert len(values) > 5 and len(caplog.records) >= 3
    assert [each for each in values if each.hex() in caplog.text or each.decode("latin1") in caplog.text] == []


@pytest.mark.parametrize(
    "golden", [each for each in ENCODED_SEGMENTS if each.line.startswith("5.0-")], ids=lambda golden: golden.line
)
def test_an_encoded_segment_is_followed_by_decoded_positions(golden: GoldenSegment, tmp_path: Path) -> None:
    """Its index counts decoded bytes, more than the file has. A new agent continues in the middle of the segment."""
    ends = [entry.position for entry in golden.entries()]
    index = tmp_path / "cdc_raw" / f"{golden.path.stem}_cdc.idx"
    # A table without cdc, and a write to only a dropped column, cause no event.
    mutations = [json.loads(line) for line in golden.expected()]
    rows = [each["position"] for each in mutations if any(map(_makes_an_event, each["updates"]))]
    half = rows[8]
    first = StagedAgent(tmp_path, MemoryTables(golden.tables()), golden.options())
    (first.cdc_raw / golden.path.name).write_bytes(golden.path.read_bytes())
    index.write_text(str(half))
    first.start()
    try:
        wait_until(lambda: any(position == half for _, position in first.places()), "half is read")
    finally:
        first.stop()
    second = StagedAgent(tmp_path, MemoryTables(golden.tables()), golden.options())
    index.write_text(f"{ends[-1]}\nCOMPLETED")
    second.start()
    try:
        wait_until(lambda: second.metrics.segments_finished == 1, "the rest is read")
    finally:
        second.stop()
    assert not set(first.places()) & set(second.places())
    assert {position for _, position in first.places() + second.places()} == set(rows)
    assert second.metrics.segments_unreadable == 0


def _makes_an_event(update: dict[str, object]) -> bool:
    kinds = ("rows", "range_tombstones", "static_row", "partition_deletion")
    return update["table"] != "counters" and any(update[kind] for kind in kinds)


def test_a_segment_that_is_moved_between_a_look_and_its_opening_is_read_before_newer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard moves the segment then. The order of keys must hold."""
    agent = StagedAgent(tmp_path, MemoryTables(GOLDEN.tables()))
    logs = [agent.segment(each, segment_bytes(each, [payloads(3)]), "9\nCOMPLETED") for each in (_ID, _ID + 1)]
    look = agent._watcher.segments

    def look_and_move(now_ms: int) -> list[ReadableSegment] | None:
        found = look(now_ms)
        if logs[0].exists():
            logs[0].rename(agent.spill / logs[0].name)
        return found

    monkeypatch.setattr(agent._watcher, "segments", look_and_move)
    agent.start()
    wait_until(lambda: agent.metrics.segments_finished == 2, "both are read")
    agent.stop()
    read = [segment_id for segment_id, _ in agent.places()]
    assert read == sorted(read) and set(read) == {_ID, _ID + 1}
    assert agent.gaps == []
