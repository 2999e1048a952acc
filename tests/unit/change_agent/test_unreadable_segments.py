"""SegmentFollower: segments that are damaged, cut or without their key. They are read as far as possible, and kept."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from change_agent.errors import Damage
from change_agent.positions.stops import EVERY_TABLE
from tests.agent.segment_writer import segment_bytes
from tests.agent.stages import MemoryTables, StagedAgent, payloads
from tests.golden.segments import ENCODED_SEGMENTS
from tests.topics.events_topic import wait_until

# Ids of a node that started now, so that no segment seems to belong to an earlier start.
_ID = time.time_ns() // 1_000_000 - 10_000
# The only commands that end such a stop, because no gap record covers it.
_RESUME = ": run cdc spark verify --repair on the tables, then cdc agent resume-progress"


def test_an_entry_with_a_bad_checksum_is_skipped_and_its_segment_set_aside(
    agent: StagedAgent, caplog: pytest.LogCaptureFixture
) -> None:
    """Later entries are published. The file is kept with a reason, and the log has the position of the damage."""
    content = bytearray(segment_bytes(_ID, [payloads(3)]))
    content[len(segment_bytes(_ID, [payloads(1)])) + 15] ^= 1
    agent.segment(_ID, bytes(content), "9\nCOMPLETED")
    wait_until(lambda: agent.metrics.segments_set_aside == 1, "the segment is set aside")
    assert len(agent.published) == 2
    assert (agent.work / "error" / f"CommitLog-7-{_ID}.log").read_bytes() == bytes(content)
    reason = json.loads((agent.work / "error" / f"CommitLog-7-{_ID}.log.reason.json").read_text())
    assert reason["reason"].startswith(f"CommitLog-7-{_ID}.log, position ")
    assert (agent.metrics.corrupt_entries, agent.metrics.segments_deleted) == (1, 0)
    assert {kind: count for kind, count in agent.metrics.damage.items() if count} == {Damage.ENTRY: 1}
    assert [f"CommitLog-7-{_ID}.log, position " in each.getMessage() for each in caplog.records] == [True, True]
    assert agent.stops.reasons()[EVERY_TABLE].endswith(f"; the entry is skipped{_RESUME}")


def test_a_segment_that_cannot_be_read_is_set_aside_and_the_others_go_on(
    agent: StagedAgent, caplog: pytest.LogCaptureFixture
) -> None:
    """Entries before the fault are published, and the file is kept. The next segment is read."""
    content = bytearray(segment_bytes(_ID, [payloads(3)]))
    content[len(segment_bytes(_ID, [payloads(1)])) + 2] ^= 1
    agent.segment(_ID, bytes(content), "9\nCOMPLETED")
    agent.segment(_ID + 1, segment_bytes(_ID + 1, [payloads(2)]), "9\nCOMPLETED")
    wait_until(lambda: agent.files() == [] and len(agent.published) == 3, "both segments are done")
    assert (agent.work / "error" / f"CommitLog-7-{_ID}.log").read_bytes() == bytes(content)
    assert (agent.metrics.segments_unreadable, agent.metrics.segments_set_aside) == (1, 1)
    assert {kind: count for kind, count in agent.metrics.damage.items() if count} == {Damage.ENTRY_SIZE: 1}
    assert len(caplog.records) == 2
    assert agent.stops.reasons()[EVERY_TABLE].endswith(f"is set aside, and changes in it are not published{_RESUME}")


def test_a_live_segment_that_cannot_be_read_is_tried_when_its_index_moves_only(
    agent: StagedAgent, caplog: pytest.LogCaptureFixture
) -> None:
    """The log reports it once. A segment that is completed later is tried once more."""
    content = bytearray(segment_bytes(_ID, [payloads(3)]))
    content[len(segment_bytes(_ID, [payloads(1)])) + 2] ^= 1
    agent.segment(_ID, bytes(content), str(len(content)))
    wait_until(lambda: agent.metrics.segments_unreadable == 1, "the fault is found")
    wait_until(lambda: bool(agent.published and caplog.records), "it is told, and the event before it is published")
    time.sleep(0.2)
    assert (len(agent.published), len(caplog.records)) == (1, 1)


def test_a_cut_segment_is_read_as_far_as_it_goes_and_set_aside(agent: StagedAgent) -> None:
    """Whole entries are published. The file is kept for the operator."""
    content = segment_bytes(_ID, [payloads(3)])
    agent.segment(_ID, content[:-5], "9\nCOMPLETED")
    wait_until(lambda: agent.metrics.segments_set_aside == 1, "the fault is found")
    assert len(agent.published) == 2
    assert len(list((agent.work / "error").iterdir())) == 2


def test_an_encrypted_segment_without_its_key_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line names the key. The other segments are read."""
    golden = next(each for each in ENCODED_SEGMENTS if each.line == "5.0-jceks")
    agent = StagedAgent(tmp_path, MemoryTables(golden.tables()))
    (agent.cdc_raw / golden.path.name).write_bytes(golden.path.read_bytes())
    (agent.cdc_raw / f"{golden.path.stem}_cdc.idx").write_text("5000\nCOMPLETED")
    agent.start()
    try:
        wait_until(lambda: agent.metrics.segments_unreadable == 1, "the segment was tried")
    finally:
        agent.stop()
    assert len(agent.files()) == 2
    [record] = caplog.records
    assert "is encrypted with the key 'Testing:1'" in record.getMessage()
