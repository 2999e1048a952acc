"""SegmentFollower: golden segments that grow, end, are damaged, or hold what nobody knows. The broker is in memory."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from change_agent.cdc_raw.listing import ReadableSegment
from change_agent.db.mutation import MutationDecoder
from change_agent.errors import Damage
from change_agent.parking.parked import read_parked
from tests.events_topic import wait_until
from tests.golden_segments import ENCODED_SEGMENTS, GoldenSegment
from tests.segment_writer import entry_bytes, segment_bytes
from tests.stages import ENTRIES, GOLDEN, MemoryTables, StagedAgent, payloads, tracked_entries


@pytest.fixture
def tables() -> MemoryTables:
    """The tables of the golden segments."""
    return MemoryTables(GOLDEN.tables())


@pytest.fixture
def agent(tmp_path: Path, tables: MemoryTables) -> Iterator[StagedAgent]:
    """A running agent with an empty cdc_raw."""
    made = StagedAgent(tmp_path, tables)
    made.start()
    yield made
    made.stop()


# Ids as of a node that started now, so that no segment looks as if it were of an earlier start.
_ID = time.time_ns() // 1_000_000 - 10_000


def test_a_finished_segment_is_published_and_then_deleted(agent: StagedAgent) -> None:
    """Both files go, after the position was stored as finished."""
    agent.segment(_ID, segment_bytes(_ID, [payloads(3), payloads(2)]), "5\nCOMPLETED")
    wait_until(lambda: agent.files() == [], "the segment is deleted")
    assert len(agent.published) == 5
    assert (agent.metrics.segments_finished, agent.metrics.segments_deleted) == (1, 1)


def test_nothing_is_deleted_before_everything_is_acknowledged(agent: StagedAgent) -> None:
    """Read to the end is not enough."""
    agent.acknowledges = False
    agent.segment(_ID, segment_bytes(_ID, [payloads(3)]), "5\nCOMPLETED")
    wait_until(lambda: len(agent.published) == 3, "all is read")
    time.sleep(0.1)
    assert len(agent.files()) == 2
    agent.positions.acknowledge(tracked_entries(agent.published), 3, 0)
    wait_until(lambda: agent.files() == [], "the segment is deleted")


def test_a_segment_is_followed_as_its_index_moves(agent: StagedAgent) -> None:
    """Only what the index says is on disk is read; what was read before is not read again."""
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
    """Not before it, for nothing may come twice; not behind it, for nothing may be lost."""
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
    """Cassandra links segments again when it replays them; also while the agent runs, and after its restart."""
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
    """The node was killed: the index is too small, was never completed, and the log goes on behind it."""
    whole = segment_bytes(_ID, [payloads(2), payloads(4)])
    agent.segment(_ID, whole, str(len(segment_bytes(_ID, [payloads(2)]))))
    wait_until(lambda: len(agent.published) == 2, "the synced part is read")
    later = time.time_ns() // 1_000_000 + 5
    agent.segment(later, segment_bytes(later, [payloads(1)]), "10")
    wait_until(lambda: len(agent.published) >= 6, "the rest is read")
    wait_until(lambda: len(agent.files()) == 2, "the earlier segment is deleted")


def test_an_entry_with_a_bad_checksum_is_skipped_and_its_segment_set_aside(
    agent: StagedAgent, caplog: pytest.LogCaptureFixture
) -> None:
    """What stands behind it is published; the file is kept with a reason, and the log says where the bytes are bad."""
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


def test_a_segment_that_cannot_be_read_is_set_aside_and_the_others_go_on(
    agent: StagedAgent, caplog: pytest.LogCaptureFixture
) -> None:
    """What stands before the fault is published, the bytes are kept; the next segment is read as ever."""
    content = bytearray(segment_bytes(_ID, [payloads(3)]))
    content[len(segment_bytes(_ID, [payloads(1)])) + 2] ^= 1
    agent.segment(_ID, bytes(content), "9\nCOMPLETED")
    agent.segment(_ID + 1, segment_bytes(_ID + 1, [payloads(2)]), "9\nCOMPLETED")
    wait_until(lambda: agent.files() == [] and len(agent.published) == 3, "both segments are done")
    assert (agent.work / "error" / f"CommitLog-7-{_ID}.log").read_bytes() == bytes(content)
    assert (agent.metrics.segments_unreadable, agent.metrics.segments_set_aside) == (1, 1)
    assert {kind: count for kind, count in agent.metrics.damage.items() if count} == {Damage.ENTRY_SIZE: 1}
    assert len(caplog.records) == 2


def test_a_live_segment_that_cannot_be_read_is_tried_when_its_index_moves_only(
    agent: StagedAgent, caplog: pytest.LogCaptureFixture
) -> None:
    """Told once; a segment that is completed later is tried once more."""
    content = bytearray(segment_bytes(_ID, [payloads(3)]))
    content[len(segment_bytes(_ID, [payloads(1)])) + 2] ^= 1
    agent.segment(_ID, bytes(content), str(len(content)))
    wait_until(lambda: agent.metrics.segments_unreadable == 1, "the fault is found")
    time.sleep(0.2)
    assert (len(agent.published), len(caplog.records)) == (1, 1)


def test_a_mutation_of_an_unknown_table_is_parked_and_its_segment_stays(
    agent: StagedAgent, tables: MemoryTables, caplog: pytest.LogCaptureFixture
) -> None:
    """Two looks at the schema, then its bytes and place are written down; the rest of the segment is published."""
    unknown = UUID(bytes=ENTRIES[0].payload[1:17])
    tables.tables = {table_id: table for table_id, table in GOLDEN.tables().items() if table_id != unknown}
    agent.segment(_ID, segment_bytes(_ID, [[each.payload for each in ENTRIES]]), "9\nCOMPLETED")
    wait_until(lambda: agent.metrics.segments_finished == 1, "the segment is read")
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
    """Retried after each look at the schema; their events tell the place where they stand in the log."""
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


def test_when_the_list_of_what_is_parked_is_damaged_the_segments_say_it_again(
    tables: MemoryTables, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent starts, reads what is still there from its beginning, and loses nothing; some events come twice."""
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
    """Parked mutations and the segments they hold survive; nothing has to be read again."""
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
    assert [each.header.segment_id for each in second.published] == [_ID + 1, _ID, _ID]


def test_no_value_of_a_row_reaches_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Published, parked, skipped for its checksum, set aside: the log names places, at INFO and above."""
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


def test_a_table_that_the_second_look_finds_is_published(agent: StagedAgent, tables: MemoryTables) -> None:
    """What was created a moment ago is not parked."""
    tables.at_second_look, tables.tables = tables.tables, {}
    agent.segment(_ID, segment_bytes(_ID, [payloads(1)]), "9\nCOMPLETED")
    wait_until(lambda: agent.files() == [], "the segment is done")
    assert (len(agent.published), agent.metrics.mutations_parked) == (1, 0)


def test_while_the_node_does_not_confirm_the_schema_nothing_is_read(agent: StagedAgent, tables: MemoryTables) -> None:
    """Yesterday's knowledge could skip a table that has cdc = true today."""
    tables.answers = False
    agent.segment(_ID, segment_bytes(_ID, [payloads(1)]), "9\nCOMPLETED")
    time.sleep(0.2)
    assert agent.published == []
    tables.answers = True
    wait_until(lambda: agent.files() == [], "the segment is done")


def test_after_a_restart_a_segment_that_was_only_seen_waits_for_the_node_like_a_new_one(
    tables: MemoryTables, tmp_path: Path
) -> None:
    """Its place was stored, but nothing of it was read, and what stood before it may have changed the schema."""
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


def test_a_cut_segment_is_read_as_far_as_it_goes_and_set_aside(agent: StagedAgent) -> None:
    """Whole entries are published; the file waits for its operator."""
    content = segment_bytes(_ID, [payloads(3)])
    agent.segment(_ID, content[:-5], "9\nCOMPLETED")
    wait_until(lambda: agent.metrics.segments_set_aside == 1, "the fault is found")
    assert len(agent.published) == 2
    assert len(list((agent.work / "error").iterdir())) == 2


def test_an_empty_mutation_does_not_end_the_agent(agent: StagedAgent) -> None:
    """Bytes whose checksums are right and that are no mutation are parked."""
    content = segment_bytes(_ID, [[b"\0" * 10, *payloads(1)]])
    assert entry_bytes(b"\0" * 10) in content
    agent.segment(_ID, content, "9\nCOMPLETED")
    wait_until(lambda: agent.metrics.segments_finished == 1, "the segment is read")
    assert (len(agent.published), agent.metrics.mutations_parked) == (1, 1)


@pytest.mark.parametrize(
    "golden", [each for each in ENCODED_SEGMENTS if each.line.startswith("5.0-")], ids=lambda golden: golden.line
)
def test_an_encoded_segment_is_followed_by_decoded_positions(golden: GoldenSegment, tmp_path: Path) -> None:
    """Its index counts decoded bytes, beyond the end of the file; an agent that restarts goes on in mid-segment."""
    ends = [entry.position for entry in golden.entries()]
    index = tmp_path / "cdc_raw" / f"{golden.path.stem}_cdc.idx"
    # A table without cdc, and what was written only to a column that is dropped since, make no event.
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


def test_an_encrypted_segment_without_its_key_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line that names the key; the other segments go on."""
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


def test_a_segment_that_is_moved_between_a_look_and_its_opening_is_read_before_newer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard off-loads it just then: the order of keys holds."""
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
