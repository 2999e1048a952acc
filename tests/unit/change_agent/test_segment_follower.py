"""SegmentFollower: golden segments that grow, end, are damaged, or hold what nobody knows. The broker is in memory."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from change_agent.agent import finished_segments_deleter
from change_agent.cdc_raw.archiver import SegmentArchiver
from change_agent.cdc_raw.watcher import CdcRawWatcher
from change_agent.commitlog.section_decoder import SegmentOptions
from change_agent.inflight import InflightPositions, TrackedEntry
from change_agent.metrics import AgentMetrics
from change_agent.mutation_interpreter import MutationInterpreter
from change_agent.offsets import OffsetStore
from change_agent.parked import ParkedMutations
from change_agent.positions_writer import PositionsWriter
from change_agent.segment_follower import SegmentFollower
from change_agent.table_metadata import KnownTables
from change_agent.topic_lane import OutgoingEvent
from schemas.table_metadata import TableMetadata
from tests.events_topic import wait_until
from tests.golden_segments import ENCODED_SEGMENTS, GOLDEN_SEGMENTS, GoldenSegment
from tests.segment_writer import entry_bytes, segment_bytes

_GOLDEN = GOLDEN_SEGMENTS[-1]
_ENTRIES = [entry for entry in _GOLDEN.entries() if UUID(bytes=entry.payload[1:17]) in _GOLDEN.tables()]
_numbers = itertools.count(1)


class _Tables:
    """The node's schema; `asked` counts the full looks at it."""

    def __init__(self, tables: Mapping[UUID, TableMetadata]) -> None:
        self.tables = tables
        self.asked = 0
        self.answers = True
        self.at_second_look: Mapping[UUID, TableMetadata] | None = None

    def as_of(self, time_ms: int, timeout_s: float, *, reread: bool = False) -> KnownTables | None:
        self.asked += reread
        if not self.answers:
            time.sleep(0.01)
            return None
        if self.asked == 2 and self.at_second_look is not None:
            self.tables = self.at_second_look
        return KnownTables(version=next(_numbers), node_id=UUID(int=1), tables=self.tables)


def _entries(events: Sequence[OutgoingEvent]) -> list[TrackedEntry]:
    return [each.entry for each in events if each.entry is not None]


class _Agent:
    """All stages of an agent but the one that speaks to Pulsar: events are acknowledged at once, or when asked to."""

    def __init__(self, folder: Path, tables: _Tables, options: SegmentOptions | None = None) -> None:
        self.cdc_raw, self.work = folder / "cdc_raw", folder / "work"
        self.cdc_raw.mkdir(exist_ok=True)
        self.metrics = AgentMetrics()
        self.published: list[OutgoingEvent] = []
        self.acknowledges = True
        self._tables = tables
        self._store = OffsetStore(self.work)
        self.stored = self._store.load()
        self.positions = InflightPositions(max_events=10_000, max_bytes=10_000_000)
        self._stopping = threading.Event()
        self._watcher = CdcRawWatcher(self.cdc_raw, 0.02)
        interpreter = MutationInterpreter(
            tables, ParkedMutations(self.work), self.metrics, self._stopping, reread_pause_s=0.01
        )
        self.follower = SegmentFollower(
            self._watcher,
            interpreter,
            self.positions,
            self,
            self.metrics,
            self.stored,
            self._stopping,
            options or SegmentOptions(),
        )
        self._writer = PositionsWriter(
            self._store,
            self.stored,
            self.positions,
            finished_segments_deleter(self.follower, SegmentArchiver(self.cdc_raw), self.metrics),
            lambda: None,
            0.01,
        )
        self._reader = threading.Thread(target=self.follower.run)

    def publish(self, events: Sequence[OutgoingEvent]) -> None:
        self.published += events
        if self.acknowledges:
            self.positions.acknowledge(_entries(events), len(events), sum(each.size for each in events))

    def start(self) -> None:
        self._writer.start()
        self._reader.start()

    def stop(self) -> None:
        self._stopping.set()
        self.follower.stop()
        self._reader.join()
        self._watcher.close()
        self._writer.stop()
        self._store.close()
        assert self._writer.failure is None

    def files(self) -> list[str]:
        return sorted(path.name for path in self.cdc_raw.iterdir())

    def places(self) -> list[tuple[int, int]]:
        return [(each.header.segment_id, each.event.position) for each in self.published]


@pytest.fixture
def tables() -> _Tables:
    """The tables of the golden segments."""
    return _Tables(_GOLDEN.tables())


@pytest.fixture
def agent(tmp_path: Path, tables: _Tables) -> Iterator[_Agent]:
    """A running agent with an empty cdc_raw."""
    made = _Agent(tmp_path, tables)
    made.start()
    yield made
    made.stop()


def _segment(agent: _Agent, segment_id: int, content: bytes, index: str, *, linked: bool = True) -> None:
    """Cassandra's way: the file in its own folder, a second name in cdc_raw, then the index."""
    log = agent.cdc_raw.parent / f"CommitLog-7-{segment_id}.log"
    log.write_bytes(content)
    os.link(log, agent.cdc_raw / log.name)
    _index(agent, segment_id, index)


def _index(agent: _Agent, segment_id: int, index: str) -> None:
    (agent.cdc_raw / f"CommitLog-7-{segment_id}_cdc.idx").write_text(index)


def _payloads(count: int) -> list[bytes]:
    return [entry.payload for entry in _ENTRIES[:count]]


# Ids as of a node that started now, so that no segment looks as if it were of an earlier start.
_ID = time.time_ns() // 1_000_000 - 10_000


def test_a_finished_segment_is_published_and_then_deleted(agent: _Agent) -> None:
    """Both files go, after the position was stored as finished."""
    _segment(agent, _ID, segment_bytes(_ID, [_payloads(3), _payloads(2)]), "5\nCOMPLETED")
    wait_until(lambda: agent.files() == [], "the segment is deleted", 5)
    assert len(agent.published) == 5
    assert (agent.metrics.segments_finished, agent.metrics.segments_deleted) == (1, 1)


def test_nothing_is_deleted_before_everything_is_acknowledged(agent: _Agent) -> None:
    """Read to the end is not enough."""
    agent.acknowledges = False
    _segment(agent, _ID, segment_bytes(_ID, [_payloads(3)]), "5\nCOMPLETED")
    wait_until(lambda: len(agent.published) == 3, "all is read", 5)
    time.sleep(0.1)
    assert len(agent.files()) == 2
    agent.positions.acknowledge(_entries(agent.published), 3, 0)
    wait_until(lambda: agent.files() == [], "the segment is deleted", 5)


def test_a_segment_is_followed_as_its_index_moves(agent: _Agent) -> None:
    """Only what the index says is on disk is read; what was read before is not read again."""
    whole = segment_bytes(_ID, [_payloads(2), _payloads(4)])
    first = len(segment_bytes(_ID, [_payloads(2)]))
    _segment(agent, _ID, whole, str(first))
    wait_until(lambda: len(agent.published) == 2, "the first section is read", 5)
    time.sleep(0.1)
    assert len(agent.published) == 2
    _index(agent, _ID, "")
    _index(agent, _ID, str(len(whole)))
    wait_until(lambda: len(agent.published) == 6, "the second section is read", 5)
    assert len(set(agent.places())) == 6
    assert len(agent.files()) == 2


def test_segments_are_read_in_the_order_of_their_ids(tmp_path: Path, tables: _Tables) -> None:
    """A backlog of several segments, found at once."""
    agent = _Agent(tmp_path, tables)
    for segment_id in (_ID + 2, _ID, _ID + 1):
        _segment(agent, segment_id, segment_bytes(segment_id, [_payloads(3)]), "9\nCOMPLETED")
    agent.start()
    wait_until(lambda: agent.files() == [], "all are deleted", 5)
    agent.stop()
    assert agent.places() == sorted(agent.places()) and len(agent.published) == 9


def test_a_restart_goes_on_behind_what_was_acknowledged(tmp_path: Path, tables: _Tables) -> None:
    """Not before it, for nothing may come twice; not behind it, for nothing may be lost."""
    whole = segment_bytes(_ID, [_payloads(2), _payloads(4)])
    first = _Agent(tmp_path, tables)
    _segment(first, _ID, whole, str(len(segment_bytes(_ID, [_payloads(2)]))))
    first.start()
    wait_until(lambda: len(first.published) == 2, "the first section is read", 5)
    first.stop()
    _index(first, _ID, str(len(whole)))
    second = _Agent(tmp_path, tables)
    second.start()
    wait_until(lambda: len(second.published) == 4, "the rest is read", 5)
    second.stop()
    assert not set(first.places()) & set(second.places())


def test_a_deleted_segment_that_comes_back_is_deleted_again_unread(tmp_path: Path, tables: _Tables) -> None:
    """Cassandra links segments again when it replays them; also while the agent runs, and after its restart."""
    content = segment_bytes(_ID, [_payloads(3)])
    for run in range(2):
        agent = _Agent(tmp_path, tables)
        agent.start()
        for _ in range(2):
            (tmp_path / f"CommitLog-7-{_ID}.log").unlink(missing_ok=True)
            _segment(agent, _ID, content, "300\nCOMPLETED")
            wait_until(lambda: agent.files() == [], "the segment is deleted", 5)  # noqa: B023
        agent.stop()
        assert len(agent.published) == (3 if run == 0 else 0)


def test_a_segment_of_an_earlier_start_is_read_to_its_end_whatever_its_index_says(agent: _Agent) -> None:
    """The node was killed: the index is too small, was never completed, and the log goes on behind it."""
    whole = segment_bytes(_ID, [_payloads(2), _payloads(4)])
    _segment(agent, _ID, whole, str(len(segment_bytes(_ID, [_payloads(2)]))))
    wait_until(lambda: len(agent.published) == 2, "the synced part is read", 5)
    later = time.time_ns() // 1_000_000 + 5
    _segment(agent, later, segment_bytes(later, [_payloads(1)]), "10")
    wait_until(lambda: len(agent.published) >= 6, "the rest is read", 5)
    wait_until(lambda: len(agent.files()) == 2, "the earlier segment is deleted", 5)


def test_an_entry_with_a_bad_checksum_is_skipped_and_its_segment_stays(
    agent: _Agent, caplog: pytest.LogCaptureFixture
) -> None:
    """What stands behind it is published; the file is kept, and the log says where the bytes are bad."""
    content = bytearray(segment_bytes(_ID, [_payloads(3)]))
    content[len(segment_bytes(_ID, [_payloads(1)])) + 15] ^= 1
    _segment(agent, _ID, bytes(content), "9\nCOMPLETED")
    wait_until(lambda: agent.metrics.segments_finished == 1, "the segment is read", 5)
    time.sleep(0.1)
    assert len(agent.published) == 2
    assert len(agent.files()) == 2
    assert agent.metrics.corrupt_entries == 1
    [record] = caplog.records
    assert f"CommitLog-7-{_ID}.log, position " in record.getMessage()


def test_a_segment_that_cannot_be_read_stays_and_the_others_go_on(
    agent: _Agent, caplog: pytest.LogCaptureFixture
) -> None:
    """One line, no hot loop, no deletion; the next segment is read as ever."""
    content = bytearray(segment_bytes(_ID, [_payloads(3)]))
    content[len(segment_bytes(_ID, [_payloads(1)])) + 2] ^= 1
    _segment(agent, _ID, bytes(content), "9\nCOMPLETED")
    _segment(agent, _ID + 1, segment_bytes(_ID + 1, [_payloads(2)]), "9\nCOMPLETED")
    wait_until(lambda: len(agent.files()) == 2 and len(agent.published) == 3, "the second segment is done", 5)
    time.sleep(0.2)
    assert agent.files()[0] == f"CommitLog-7-{_ID}.log"
    assert agent.metrics.segments_unreadable == 1
    assert len(caplog.records) == 1
    assert agent.positions.progress()[_ID].position < len(content)


def test_a_live_segment_that_cannot_be_read_is_tried_when_its_index_moves_only(
    agent: _Agent, caplog: pytest.LogCaptureFixture
) -> None:
    """Told once; a segment that is completed later is tried once more."""
    content = bytearray(segment_bytes(_ID, [_payloads(3)]))
    content[len(segment_bytes(_ID, [_payloads(1)])) + 2] ^= 1
    _segment(agent, _ID, bytes(content), str(len(content)))
    wait_until(lambda: agent.metrics.segments_unreadable == 1, "the fault is found", 5)
    time.sleep(0.2)
    assert (len(agent.published), len(caplog.records)) == (1, 1)


def test_a_mutation_of_an_unknown_table_is_parked_and_its_segment_stays(
    agent: _Agent, tables: _Tables, caplog: pytest.LogCaptureFixture
) -> None:
    """Two looks at the schema, then its bytes and place are written down; the rest of the segment is published."""
    unknown = UUID(bytes=_ENTRIES[0].payload[1:17])
    tables.tables = {table_id: table for table_id, table in _GOLDEN.tables().items() if table_id != unknown}
    _segment(agent, _ID, segment_bytes(_ID, [[each.payload for each in _ENTRIES]]), "9\nCOMPLETED")
    wait_until(lambda: agent.metrics.segments_finished == 1, "the segment is read", 5)
    time.sleep(0.1)
    parked = [json.loads(line) for line in (agent.work / "parked-mutations.jsonl").read_text().splitlines()]
    assert len(parked) == agent.metrics.mutations_parked == len(caplog.records) == 5
    assert parked[0]["segment"] == f"CommitLog-7-{_ID}.log"
    assert str(unknown) in parked[0]["reason"]
    assert tables.asked == 2
    assert len(agent.published) > 0 and len(agent.files()) == 2


def test_a_table_that_the_second_look_finds_is_published(agent: _Agent, tables: _Tables) -> None:
    """What was created a moment ago is not parked."""
    tables.at_second_look, tables.tables = tables.tables, {}
    _segment(agent, _ID, segment_bytes(_ID, [_payloads(1)]), "9\nCOMPLETED")
    wait_until(lambda: agent.files() == [], "the segment is done", 5)
    assert (len(agent.published), agent.metrics.mutations_parked) == (1, 0)


def test_while_the_node_does_not_confirm_the_schema_nothing_is_read(agent: _Agent, tables: _Tables) -> None:
    """Yesterday's knowledge could skip a table that has cdc = true today."""
    tables.answers = False
    _segment(agent, _ID, segment_bytes(_ID, [_payloads(1)]), "9\nCOMPLETED")
    time.sleep(0.2)
    assert agent.published == []
    tables.answers = True
    wait_until(lambda: agent.files() == [], "the segment is done", 5)


def test_an_unfinished_segment_whose_file_is_gone_is_told(agent: _Agent, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody removed unread changes: one line, counted."""
    _index(agent, _ID, "100")
    wait_until(lambda: agent.metrics.segments_gone_unread == 1, "the gap is found", 5)
    time.sleep(0.1)
    [record] = caplog.records
    assert "is gone and was not read to its end" in record.getMessage()


def test_a_cut_segment_is_read_as_far_as_it_goes_and_stays(agent: _Agent) -> None:
    """Whole entries are published; the file waits for its operator."""
    content = segment_bytes(_ID, [_payloads(3)])
    _segment(agent, _ID, content[:-5], "9\nCOMPLETED")
    wait_until(lambda: agent.metrics.segments_unreadable == 1, "the fault is found", 5)
    assert len(agent.published) == 2
    assert len(agent.files()) == 2


def test_an_empty_mutation_does_not_end_the_agent(agent: _Agent) -> None:
    """Bytes whose checksums are right and that are no mutation are parked."""
    content = segment_bytes(_ID, [[b"\0" * 10, *_payloads(1)]])
    assert entry_bytes(b"\0" * 10) in content
    _segment(agent, _ID, content, "9\nCOMPLETED")
    wait_until(lambda: agent.metrics.segments_finished == 1, "the segment is read", 5)
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
    first = _Agent(tmp_path, _Tables(golden.tables()), golden.options())
    (first.cdc_raw / golden.path.name).write_bytes(golden.path.read_bytes())
    index.write_text(str(half))
    first.start()
    try:
        wait_until(lambda: any(position == half for _, position in first.places()), "half is read", 5)
    finally:
        first.stop()
    second = _Agent(tmp_path, _Tables(golden.tables()), golden.options())
    index.write_text(f"{ends[-1]}\nCOMPLETED")
    second.start()
    try:
        wait_until(lambda: second.metrics.segments_finished == 1, "the rest is read", 5)
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
    agent = _Agent(tmp_path, _Tables(golden.tables()))
    (agent.cdc_raw / golden.path.name).write_bytes(golden.path.read_bytes())
    (agent.cdc_raw / f"{golden.path.stem}_cdc.idx").write_text("5000\nCOMPLETED")
    agent.start()
    try:
        wait_until(lambda: agent.metrics.segments_unreadable == 1, "the segment was tried", 5)
    finally:
        agent.stop()
    assert len(agent.files()) == 2
    [record] = caplog.records
    assert "is encrypted with the key 'Testing:1'" in record.getMessage()
