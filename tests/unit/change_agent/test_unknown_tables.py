"""SegmentFollower: mutations that the schema cannot decode are parked. Without a confirmed schema nothing is read."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import UUID

import pytest

from change_agent.parking.parked import read_parked
from tests.agent.segment_writer import entry_bytes, segment_bytes
from tests.agent.stages import ENTRIES, GOLDEN, MemoryTables, StagedAgent, payloads
from tests.topics.events_topic import wait_until

# Ids of a node that started now, so that no segment seems to belong to an earlier start.
_ID = time.time_ns() // 1_000_000 - 10_000


def test_a_mutation_of_an_unknown_table_is_parked_and_its_segment_stays(
    agent: StagedAgent, tables: MemoryTables, caplog: pytest.LogCaptureFixture
) -> None:
    """The schema is read twice.

    Then the bytes and the position are stored, and the rest of the segment is published.
    """
    unknown = UUID(bytes=ENTRIES[0].payload[1:17])
    tables.tables = {table_id: table for table_id, table in GOLDEN.tables().items() if table_id != unknown}
    agent.segment(_ID, segment_bytes(_ID, [[each.payload for each in ENTRIES]]), "9\nCOMPLETED")
    wait_until(lambda: agent.metrics.segments_finished == 1, "the segment is read")
    wait_until(lambda: len(list(read_parked(agent.work))) == 5, "the mutations are stored")
    time.sleep(0.1)
    parked = list(read_parked(agent.work))
    assert len(parked) == agent.metrics.mutations_parked == 5
    assert parked[0].segment == f"CommitLog-7-{_ID}.log"
    assert str(unknown) in parked[0].reason and parked[0].table_id == unknown
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert tables.asked == 2
    assert len(agent.published) > 0 and len(agent.files()) == 2


def test_parked_mutations_are_published_when_the_schema_explains_them_and_their_segment_goes(
    agent: StagedAgent, tables: MemoryTables
) -> None:
    """They are tried again after each change of the schema. Their events have their position in the log."""
    unknown = UUID(bytes=ENTRIES[0].payload[1:17])
    whole = tables.tables
    tables.tables = {table_id: table for table_id, table in whole.items() if table_id != unknown}
    agent.segment(_ID, segment_bytes(_ID, [[each.payload for each in ENTRIES]]), "9\nCOMPLETED")
    wait_until(lambda: agent.metrics.parked == 5, "five are parked")
    before = len(agent.published)
    tables.tables = whole
    agent.segment(_ID + 1, segment_bytes(_ID + 1, [payloads(1)]), "9\nCOMPLETED")
    wait_until(lambda: agent.metrics.mutations_unparked == 5, "all are published")
    wait_until(lambda: agent.files() == [], "both segments go")
    late = [each for each in agent.published[before:] if each.header.segment_id == _ID]
    assert unknown in {each.header.table_id for each in late}
    assert [each.event.position for each in late] == sorted(each.event.position for each in late)
    assert list(read_parked(agent.work)) == []


def test_parked_mutations_need_no_further_change_to_be_published(agent: StagedAgent, tables: MemoryTables) -> None:
    """The node returns the table, as after a restart. No segment is left to read."""
    unknown = UUID(bytes=ENTRIES[0].payload[1:17])
    whole = tables.tables
    tables.tables = {table_id: table for table_id, table in whole.items() if table_id != unknown}
    agent.segment(_ID, segment_bytes(_ID, [[each.payload for each in ENTRIES]]), "9\nCOMPLETED")
    wait_until(lambda: agent.metrics.parked == 5, "five are parked")
    tables.tables = whole
    tables.known = tables.as_of(0, 0)
    wait_until(lambda: agent.metrics.mutations_unparked == 5, "all are published")
    wait_until(lambda: agent.files() == [], "the segment goes")


def test_a_spilled_segment_stays_while_its_mutations_are_parked_also_after_a_restart(
    tables: MemoryTables, tmp_path: Path
) -> None:
    """The next agent reads it once more, because it cannot know that it was read. No mutation is parked twice."""
    unknown = UUID(bytes=ENTRIES[0].payload[1:17])
    known = {table_id: table for table_id, table in GOLDEN.tables().items() if table_id != unknown}
    first = StagedAgent(tmp_path, MemoryTables(known))
    content = segment_bytes(_ID, [[each.payload for each in ENTRIES]])
    (first.spill / f"CommitLog-7-{_ID}.log").write_bytes(content)
    first.start()
    wait_until(lambda: first.metrics.parked == 5 and _ID in first.stored_now().finished, "five are parked")
    first.stop()
    second = StagedAgent(tmp_path, MemoryTables(known))
    second.start()
    wait_until(lambda: -_ID in second.stored_now().finished, "it is read once more")
    time.sleep(0.1)
    assert len(list(second.spill.iterdir())) == 1 and len(list(read_parked(second.work))) == 5
    second._tables.tables = tables.tables
    second._tables.known = tables.as_of(0, 0)
    wait_until(lambda: list(second.spill.iterdir()) == [], "the segment goes")
    second.stop()
    assert second.metrics.mutations_unparked == 5


def test_when_the_list_of_what_is_parked_is_damaged_the_segments_say_it_again(
    tables: MemoryTables, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent reads the existing segments from their beginning. No event is lost, and some are published twice."""
    unknown = UUID(bytes=ENTRIES[0].payload[1:17])
    known = {table_id: table for table_id, table in GOLDEN.tables().items() if table_id != unknown}
    first = StagedAgent(tmp_path, MemoryTables(known))
    first.segment(_ID, segment_bytes(_ID, [[each.payload for each in ENTRIES]]), "9\nCOMPLETED")
    first.start()
    wait_until(lambda: first.metrics.parked == 5 and _ID in first.stored_now().finished, "five are parked")
    first.stop()
    (first.work / "parked.sqlite").write_bytes(b"no database at all" * 100)
    second = StagedAgent(tmp_path, tables)
    second.start()
    wait_until(lambda: second.files() == [], "the segment goes")
    second.stop()
    assert {each.header.table_id for each in second.published} >= {unknown}
    assert len(second.published) > len(first.published)
    assert "set aside as parked.sqlite.damaged" in caplog.text


def test_what_a_killed_agent_had_parked_is_published_by_the_next(tables: MemoryTables, tmp_path: Path) -> None:
    """Parked mutations and the segments that they hold survive, and are not read again.

    They are published before or after later writes, because both are tried independently.
    """
    first = StagedAgent(tmp_path, MemoryTables({}))
    first.start()
    first.segment(_ID, segment_bytes(_ID, [payloads(2)]), "9\nCOMPLETED")
    wait_until(lambda: first.metrics.parked == 2, "both are parked")
    first.stop()
    assert len(first.files()) == 2
    second = StagedAgent(tmp_path, tables)
    second.start()
    second.segment(_ID + 1, segment_bytes(_ID + 1, [payloads(1)]), "9\nCOMPLETED")
    wait_until(lambda: second.files() == [], "all segments go")
    second.stop()
    assert sorted(each.header.segment_id for each in second.published) == [_ID, _ID, _ID + 1]


def test_a_table_that_the_second_look_finds_is_published(agent: StagedAgent, tables: MemoryTables) -> None:
    """A table that was created just before is not parked."""
    tables.at_second_look, tables.tables = tables.tables, {}
    agent.segment(_ID, segment_bytes(_ID, [payloads(1)]), "9\nCOMPLETED")
    wait_until(lambda: agent.files() == [], "the segment is done")
    assert (len(agent.published), agent.metrics.mutations_parked) == (1, 0)


def test_while_the_node_does_not_confirm_the_schema_nothing_is_read(agent: StagedAgent, tables: MemoryTables) -> None:
    """The earlier schema could skip a table that has cdc = true now."""
    tables.answers = False
    agent.segment(_ID, segment_bytes(_ID, [payloads(1)]), "9\nCOMPLETED")
    time.sleep(0.2)
    assert agent.published == []
    tables.answers = True
    wait_until(lambda: agent.files() == [], "the segment is done")


def test_after_a_restart_a_segment_that_was_only_seen_waits_for_the_node_like_a_new_one(
    tables: MemoryTables, tmp_path: Path
) -> None:
    """Its position was stored, but it was not read. Earlier segments may have changed the schema."""
    tables.known = tables.as_of(0, 0)
    tables.answers = False
    for run in range(2):
        agent = StagedAgent(tmp_path, tables)
        if run == 0:
            agent.segment(_ID, segment_bytes(_ID, [payloads(1)]), "9\nCOMPLETED")
        agent.start()
        wait_until(lambda: _ID in agent.positions.progress(), "the segment is seen")  # noqa: B023
        time.sleep(0.2)
        agent.stop()
        assert agent.published == []
    tables.answers = True
    last = StagedAgent(tmp_path, tables)
    assert _ID in last.stored.segments
    last.start()
    wait_until(lambda: last.files() == [], "the segment is done")
    last.stop()
    assert len(last.published) == 1


def test_an_empty_mutation_does_not_end_the_agent(agent: StagedAgent) -> None:
    """Bytes with right checksums that are not a mutation are parked."""
    content = segment_bytes(_ID, [[b"\0" * 10, *payloads(1)]])
    assert entry_bytes(b"\0" * 10) in content
    agent.segment(_ID, content, "9\nCOMPLETED")
    wait_until(lambda: agent.metrics.segments_finished == 1, "the segment is read")
    assert (len(agent.published), agent.metrics.mutations_parked) == (1, 1)
