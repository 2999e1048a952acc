"""Truncations and drops of golden tables: published at their position in the log, or late with repeated events."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from change_agent.configuration.table_filter import TableFilter
from change_agent.errors import PublishError
from change_agent.positions.copied_state import maker_of
from change_agent.positions.offsets import StoredPositions, StoredSegment
from change_agent.positions.positions_copy import PositionsCopy
from change_agent.positions.published_clearings import PublishedClearings
from change_agent.positions.segment_ids import SegmentIds
from change_agent.publishing.event_producers import EventProducer
from change_agent.schema.table_metadata import KnownTables
from schemas.mutation_event import CLEARING_SCHEMA_TEXT, Clearing, ClearingKind, MutationEvents, decode_events
from schemas.truncation import Truncation
from tests.agent.power_loss import PowerLoss
from tests.agent.segment_writer import segment_bytes
from tests.agent.stages import ENTRIES, MemoryTables, StagedAgent, payloads, tracked_entries
from tests.topics.events_topic import wait_until
from tests.unit.change_agent.memory_broker import AcknowledgingProducer

_ID = time.time_ns() // 1_000_000 - 10_000
_PARTITIONS = 2
_SCHEMA: dict[str, object] = json.loads(CLEARING_SCHEMA_TEXT)


class _ClearingTopics:
    """Record what was sent to each partition, and how many events the agent had published before."""

    def __init__(self) -> None:
        self.agent: StagedAgent | None = None
        self.sent: list[tuple[int, MutationEvents, int]] = []
        self.refused: set[str] = set()
        self.opened: list[str] = []
        self.missing: set[str] = set()

    def open_clearings(self, topic: str) -> list[EventProducer]:
        self.opened.append(topic)
        if topic in self.refused:
            raise PublishError(topic, "is refused")
        return [AcknowledgingProducer(partial(self._take, number)) for number in range(_PARTITIONS)]

    def has_topic(self, topic: str) -> bool:
        return topic not in self.missing

    def _take(self, partition: int, payload: bytes) -> None:
        assert self.agent is not None
        self.sent.append((partition, decode_events(payload, _SCHEMA), len(self.agent.published)))


def _start(folder: Path, tables: MemoryTables, topics: _ClearingTopics, *, acknowledges: bool = True) -> StagedAgent:
    agent = topics.agent = StagedAgent(folder, tables, clearings=topics)
    agent.acknowledges = acknowledges
    agent.start()
    return agent


def _table_of(count: int) -> UUID:
    """The table of the entry with this number."""
    return UUID(bytes=ENTRIES[count - 1].payload[1:17])


def _sections() -> tuple[bytes, int]:
    """A segment with sections of two and four entries, and the end of its first section."""
    return segment_bytes(_ID, [payloads(2), payloads(4)]), len(segment_bytes(_ID, [payloads(2)]))


def _expect_sent(topics: _ClearingTopics, place: Truncation, events_before: Sequence[int]) -> None:
    """Check that the truncation was sent once to each partition after each of these numbers of events."""
    clearing = Clearing(ClearingKind.TRUNCATION, place.position, place.time_ms)
    assert {(each.clearing, each.segment_id) for _, each, _ in topics.sent} == {(clearing, place.segment_id)}
    sent = [(partition, before) for partition, _, before in topics.sent]
    assert sent == [(partition, before) for before in events_before for partition in range(_PARTITIONS)]


def _end_segment(agent: StagedAgent, whole: bytes) -> None:
    """Complete the segment, wait until the agent has deleted it, and stop the agent."""
    agent.index(_ID, f"{len(whole)}\nCOMPLETED")
    wait_until(lambda: agent.files() == [], "the segment is deleted")
    agent.stop()


def test_a_truncation_that_is_ahead_is_published_in_its_place(tmp_path: Path, tables: MemoryTables) -> None:
    """It comes after the events before its position, and before the events after it.

    The next start does not repeat it.
    """
    topics = _ClearingTopics()
    whole, first = _sections()
    tables.truncations = {_table_of(4): (place := Truncation(_ID, first, 1_000))}
    agent = topics.agent = StagedAgent(tmp_path, tables, clearings=topics)
    agent.segment(_ID, whole, str(len(whole)))
    agent.start()
    wait_until(lambda: len(agent.published) == 6, "all is read")
    agent.stop()
    _expect_sent(topics, place, [2])
    agent = _start(tmp_path, tables, topics)
    _end_segment(agent, whole)
    _expect_sent(topics, place, [2])


def test_a_truncation_waits_until_the_broker_has_the_events_before_it(tmp_path: Path, tables: MemoryTables) -> None:
    """A separate producer sends the truncation, so it could overtake them."""
    topics = _ClearingTopics()
    whole, first = _sections()
    tables.truncations = {_table_of(4): (place := Truncation(_ID, first, 1_000))}
    agent = topics.agent = StagedAgent(tmp_path, tables, clearings=topics)
    agent.acknowledges = False
    agent.segment(_ID, whole, str(len(whole)))
    agent.start()
    wait_until(lambda: len(agent.published) == 2, "the first part is read")
    time.sleep(0.2)
    assert topics.sent == [] and len(agent.published) == 2
    before = list(agent.published)
    agent.positions.acknowledge(tracked_entries(before), 2, sum(each.size for each in before))
    wait_until(lambda: len(agent.published) == 6, "the rest is read")
    agent.stop()
    _expect_sent(topics, place, [2])


def test_a_late_truncation_and_the_events_behind_it_survive_a_crash(tmp_path: Path, tables: MemoryTables) -> None:
    """The agent ends when the broker has the truncation but not the repeated events.

    The next start repeats both, once.
    """
    topics = _ClearingTopics()
    whole, first = _sections()
    agent = _start(tmp_path, tables, topics)
    agent.segment(_ID, whole, str(len(whole)))
    wait_until(lambda: len(agent.published) == 6, "all is read")
    wait_until(lambda: any(each.position > first for each in agent.stored_now().segments.values()), "it is stored")
    agent.acknowledges = False
    behind = [each.event for each in agent.published[2:] if each.header.table_id == _table_of(4)]
    assert behind
    tables.truncations = {_table_of(4): (place := Truncation(_ID, first, 1_000))}
    wait_until(lambda: len(agent.published) == 6 + len(behind), "the events behind it are published again")
    assert [each.event for each in agent.published[6:]] == behind
    agent.stop()
    _expect_sent(topics, place, [6])

    agent = _start(tmp_path, tables, topics)
    wait_until(lambda: len(agent.published) == len(behind), "and once more")
    wait_until(lambda: f'"{_table_of(4)}": [' in (agent.work / "clearings.json").read_text(), "it is stored")
    agent.stop()
    _expect_sent(topics, place, [6, 0])

    agent = _start(tmp_path, tables, topics)
    _end_segment(agent, whole)
    assert agent.published == []
    _expect_sent(topics, place, [6, 0])


@pytest.mark.parametrize("later_ms", [-3_600_000, 3_600_000])
def test_a_second_truncation_is_published_whatever_the_nodes_clock_says(
    tmp_path: Path, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch, later_ms: int
) -> None:
    """The clock was set back or forward between the two.

    The agent ends before the broker has the events after the second truncation.
    """
    monkeypatch.setattr("change_agent.segments.clearings._EMPTY_S", 0.5)
    topics = _ClearingTopics()
    first, second = (len(segment_bytes(_ID, sections)) for sections in ([payloads(2)], [payloads(2), payloads(4)]))
    whole = segment_bytes(_ID, [payloads(2), payloads(4), payloads(4)])
    tables.truncations = {_table_of(4): (place := Truncation(_ID, first, 10_000_000))}
    agent = topics.agent = StagedAgent(tmp_path, tables, clearings=topics)
    agent.segment(_ID, whole, str(len(whole)))
    agent.start()
    wait_until(lambda: len(agent.published) == 10, "all is read")
    wait_until(lambda: any(each.position > second for each in agent.stored_now().segments.values()), "it is stored")
    _expect_sent(topics, place, [2])
    topics.sent.clear()
    agent.acknowledges = False
    behind = [each.event for each in agent.published[6:] if each.header.table_id == _table_of(4)]
    tables.truncations = {_table_of(4): (later := Truncation(_ID, second, 10_000_000 + later_ms))}
    wait_until(lambda: len(agent.published) == 10 + len(behind), "the events behind the second one are published again")
    assert [each.event for each in agent.published[10:]] == behind != []
    agent.stop()
    _expect_sent(topics, later, [10])

    agent = _start(tmp_path, tables, topics)
    wait_until(lambda: len(agent.published) == len(behind), "and once more")
    wait_until(lambda: f" {second},\n" in (agent.work / "clearings.json").read_text(), "it is stored")
    agent.stop()
    _expect_sent(topics, later, [10, 0])

    # A truncation record that is older than both, as on a node that was restored, is ignored.
    tables.truncations = {_table_of(4): Truncation(_ID, first - 1, 1_000)}
    agent = _start(tmp_path, tables, topics)
    _end_segment(agent, whole)
    assert agent.published == []
    _expect_sent(topics, later, [10, 0])


def test_a_truncation_in_a_segment_that_is_deleted_is_published_and_reported(
    tmp_path: Path, tables: MemoryTables, caplog: pytest.LogCaptureFixture
) -> None:
    """The node was away while the segment was read. The events after the truncation cannot be published again."""
    topics = _ClearingTopics()
    whole, first = _sections()
    agent = topics.agent = StagedAgent(tmp_path, tables, clearings=topics)
    agent.segment(_ID, whole, f"{len(whole)}\nCOMPLETED")
    agent.start()
    wait_until(lambda: agent.files() == [] and _ID not in agent.segments.listed, "the segment is deleted")
    tables.truncations = {_table_of(4): (place := Truncation(_ID, first, 1_000))}
    wait_until(lambda: len(topics.sent) == _PARTITIONS, "the truncation is published")
    wait_until(lambda: "verify the table" in caplog.text, "the missing events are reported")
    agent.stop()
    _expect_sent(topics, place, [6])
    assert f"segment {_ID} was published and deleted before the truncation of table {_table_of(4)}" in caplog.text


def test_the_drop_of_a_table_that_the_filter_has_admitted_since_is_found(
    tmp_path: Path, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGHUP changes the filter. The schema does not change until the table is dropped."""
    table = next(each for each in tables.tables.values() if each.cdc)
    known = KnownTables(version=1, node_id=UUID(int=1), tables=tables.tables)
    monkeypatch.setattr(tables, "as_of", lambda *args, **more: known)
    agent = StagedAgent(tmp_path, tables, clearings=_ClearingTopics())
    for each in (agent._watcher, agent._parked, agent._store):
        each.close()
    clearings, interpreter = agent.follower._clearings, agent.follower._interpreter
    assert clearings is not None
    for wanted in (TableFilter(exclude=[table.full_name]), TableFilter()):
        interpreter.use_filter(wanted)
        interpreter.use_schema_of(0)
        clearings.find(None, (0, 0))
    tables.present = frozenset(tables.tables) - {table.table_id}
    clearings.find(None, (0, 0))
    assert {(table_id, each.kind) for table_id, each in clearings._pending.items()} == {
        (table.table_id, ClearingKind.DROP)
    }


def test_no_topic_is_made_for_a_drop(tmp_path: Path, tables: MemoryTables, caplog: pytest.LogCaptureFixture) -> None:
    """Who has dropped the table has deleted its topic, too. The other tables' drops are published."""
    caplog.set_level("INFO")
    topics = _ClearingTopics()
    first, second = [each for each in tables.tables.values() if each.cdc][:2]
    agent = _start(tmp_path, tables, topics)
    whole, _ = _sections()
    agent.segment(_ID, whole, str(len(whole)))
    path = agent.work / "clearings.json"
    wait_until(lambda: path.exists() and str(first.table_id) in path.read_text(), "the tables are known", 20)
    topics.missing = {missing := f"persistent://public/default/events-{first.full_name}"}
    tables.present = frozenset(tables.tables) - {first.table_id, second.table_id}
    wait_until(lambda: str(first.table_id) not in path.read_text(), "the first drop is settled", 20)
    wait_until(lambda: str(second.table_id) not in path.read_text(), "the second drop is settled", 20)
    agent.stop()
    assert topics.opened == [f"persistent://public/default/events-{second.full_name}"]
    assert [each.getMessage() for each in caplog.records if "does not exist" in each.getMessage()] == [
        f"{missing} does not exist: the drop of {first.full_name} is not published, and the topic is not made for it"
    ]


def test_a_drop_of_many_tables_waits_for_the_broker_once(
    tmp_path: Path, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round ends at the first refused topic. The other topics follow in the next round.

    The refused topic follows when the broker accepts it.
    """
    topics = _ClearingTopics()
    agent = _start(tmp_path, tables, topics, acknowledges=False)
    whole, _ = _sections()
    agent.segment(_ID, whole, str(len(whole)))
    wait_until(lambda: len(agent.published) == 6, "all is read")
    waits: list[float] = []

    def wait_until_empty(timeout_s: float) -> bool:
        waits.append(timeout_s)
        return False

    monkeypatch.setattr(agent.positions, "wait_until_empty", wait_until_empty)
    names = sorted(f"{each.keyspace}.{each.name}" for each in tables.tables.values() if each.cdc)
    topics.refused = {f"persistent://public/default/events-{names[0]}"}
    assert len(names) > 3
    tables.present = frozenset()
    wait_until(lambda: len(topics.sent) >= _PARTITIONS * (len(names) - 1), "all others are published")
    assert {each.clearing.kind for _, each, _ in topics.sent if each.clearing} == {ClearingKind.DROP}
    # One wait for each round, so one for each refusal, and one more before and after all rounds.
    assert len(waits) <= len(topics.opened) - (len(names) - 1) + 2
    topics.refused = set()
    wait_until(lambda: len(topics.sent) == _PARTITIONS * len(names), "the refused one, too")
    agent.positions.acknowledge(tracked_entries(agent.published), 6, sum(each.size for each in agent.published))
    agent.stop()


def test_events_behind_a_late_truncation_that_wait_for_a_topic_hold_the_reader_up_ever_more_rarely(
    tmp_path: Path, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic of another table cannot be used. The truncation is stored in the end."""
    topics = _ClearingTopics()
    agent = _start(tmp_path, tables, topics)
    whole, first = _sections()
    agent.segment(_ID, whole, str(len(whole)))
    wait_until(lambda: len(agent.published) == 6, "all is read")
    waits: list[float] = []
    is_empty = False

    def wait_until_empty(timeout_s: float) -> bool:
        waits.append(timeout_s)
        return is_empty

    monkeypatch.setattr(agent.positions, "wait_until_empty", wait_until_empty)
    tables.truncations = {_table_of(4): Truncation(_ID, first, 1_000)}
    wait_until(lambda: bool(topics.sent), "it is published", 20)
    time.sleep(1.0)
    # Before and after the truncation, then after one second, and after two.
    assert len(waits) <= 4
    is_empty = True
    wait_until(lambda: f'"{_table_of(4)}": [' in (agent.work / "clearings.json").read_text(), "it is stored", 10)
    _end_segment(agent, whole)


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_truncation_between_two_machines_is_published_by_the_second_one(
    tmp_path: Path, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch, is_listed: bool
) -> None:
    """Its segment has no change of a table with CDC, so it never came to cdc_raw. There is no clearings.json."""
    monkeypatch.setattr("change_agent.segments.clearings._PATIENCE_S", 0.3)
    topics = _ClearingTopics()
    earlier = Truncation(_ID - 2, 100, 500)
    place = Truncation(_ID, 100, 1_000)
    tables.truncations = {_table_of(4): place, _table_of(5): earlier}
    agent = topics.agent = StagedAgent(tmp_path, tables, clearings=topics)
    agent.adopt(StoredPositions(finished=SegmentIds.of([_ID - 1])))
    if is_listed:
        whole = segment_bytes(_ID + 1, [payloads(4)])
        agent.segment(_ID + 1, whole, str(len(whole)))
    agent.start()
    wait_until(lambda: len(topics.sent) == _PARTITIONS, "it is published", 10)
    agent.stop()
    _expect_sent(topics, place, [4 if is_listed else 0])


def test_a_truncation_is_published_before_segments_that_the_copy_has_as_not_read(
    tmp_path: Path, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic was away, so the lost machine held the events behind it, and could not publish the truncation."""
    monkeypatch.setattr("change_agent.segments.clearings._PATIENCE_S", 0.3)
    topics = _ClearingTopics()
    place = Truncation(_ID, 100, 1_000)
    tables.truncations = {_table_of(4): place}
    agent = topics.agent = StagedAgent(tmp_path, tables, clearings=topics)
    agent.adopt(StoredPositions(segments={_ID + 1: StoredSegment(position=0)}, finished=SegmentIds.of([_ID - 1])))
    whole = segment_bytes(_ID + 1, [payloads(4)])
    agent.segment(_ID + 1, whole, str(len(whole)))
    agent.start()
    wait_until(lambda: len(topics.sent) == _PARTITIONS, "it is published", 10)
    agent.stop()


class _CopyTopic:
    """The topic of the copies of positions."""

    payload: bytes | None = None

    def read(self) -> bytes | None:
        return self.payload

    def store(self, payload: bytes) -> None:
        self.payload = payload


def _copy_of(agent: StagedAgent, topic: _CopyTopic) -> PositionsCopy:
    return PositionsCopy(
        lambda _: topic,
        lambda: "node-1",
        agent.stored_now,
        lambda: True,
        agent.adopt,
        agent.stored,
        agent.stops,
        PublishedClearings(agent.work),
        maker_of(agent.work),
    )


def _stop_with_copy(agent: StagedAgent, copy: PositionsCopy) -> None:
    agent.stop()
    copy.stop()
    assert copy.failure is None


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_truncation_that_a_lost_machine_could_not_publish_is_published_by_the_new_one_and_others_are_not(
    tmp_path: Path, tables: MemoryTables, is_refused: bool
) -> None:
    """The topic was away, and nothing of the table was held: the copied positions are behind the truncation.

    Then the lost machine comes back. It has positions and published truncations of an earlier time.
    """
    topics, copies = _ClearingTopics(), _CopyTopic()
    whole, first = _sections()
    table = next(each for each in tables.tables.values() if each.table_id == _table_of(5))
    place = Truncation(_ID, first, 1_000)
    for turn, name in enumerate(["first", "second", "first"]):
        (tmp_path / name).mkdir(exist_ok=True)
        agent = topics.agent = StagedAgent(tmp_path / name, tables, clearings=topics)
        topics.refused = {f"persistent://public/default/events-{table.full_name}"} if is_refused and not turn else set()
        copy = _copy_of(agent, copies)
        copy.start()
        assert copy.is_ready.wait(20)
        tables.truncations = {table.table_id: place}
        content = segment_bytes(_ID + turn, [payloads(4)]) if turn else whole
        agent.segment(_ID + turn, content, str(len(content)))
        agent.start()
        wait_until(lambda agent=agent: len(agent.published) >= 4 and agent.positions.events == 0, "it is read")
        agent.index(_ID + turn, f"{len(content)}\nCOMPLETED")
        wait_until(lambda agent=agent: agent.files() == [], "it is deleted")
        count = 0 if is_refused and not turn else _PARTITIONS
        wait_until(lambda count=count: len(topics.sent) == count, "the truncation is sent")
        time.sleep(0.3)
        _stop_with_copy(agent, copy)
        assert len(topics.sent) == count


def test_published_truncations_survive_a_loss_of_power(
    tmp_path: Path, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions that are stored after them make the name of the file durable. An empty file hides unpublished ones."""
    disk, topics = tmp_path / "disk", _ClearingTopics()
    disk.mkdir()
    whole, first = _sections()
    tables.truncations = {_table_of(4): (place := Truncation(_ID, first, 1_000))}
    agent = topics.agent = StagedAgent(disk, tables, clearings=topics)
    power = PowerLoss(disk, monkeypatch)
    agent.segment(_ID, whole, str(len(whole)))
    agent.start()
    _end_segment(agent, whole)
    stored = json.loads((power.left_in(tmp_path / "left") / "work" / "clearings.json").read_text())
    assert stored["truncations"] == {str(_table_of(4)): list(place)}


def test_a_truncation_before_the_very_first_start_is_not_published(tmp_path: Path, tables: MemoryTables) -> None:
    """No agent has read before, so nobody has rows of before it."""
    topics = _ClearingTopics()
    tables.truncations = {_table_of(4): Truncation(_ID, 100, 1_000)}
    agent = _start(tmp_path, tables, topics)
    whole = segment_bytes(_ID + 1, [payloads(4)])
    agent.segment(_ID + 1, whole, str(len(whole)))
    wait_until(lambda: len(agent.published) == 4, "it is read")
    wait_until(lambda: f'"{_table_of(4)}": [' in (agent.work / "clearings.json").read_text(), "it is stored")
    agent.stop()
    assert topics.sent == []
