"""A truncation whose topic was away when the reader came to it: it is on the topic before the events behind it."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Event
from uuid import UUID

import pytest

from change_agent.cdc_raw.segment_key import SegmentKey
from change_agent.errors import PublishError
from change_agent.publishing import awaited_clearings
from change_agent.publishing.awaited_clearings import AwaitedClearings
from change_agent.publishing.event_producers import EventProducer
from change_agent.publishing.held_events import HeldEvents
from change_agent.publishing.hold_limits import HoldLimits
from change_agent.publishing.messages import Packing
from change_agent.publishing.outgoing import Outgoing
from change_agent.publishing.publisher import MutationPublisher
from change_agent.segments import clearings
from schemas.mutation_event import decode_events
from schemas.truncation import Truncation
from tests.agent.segment_writer import segment_bytes
from tests.agent.stages import ENTRIES, GOLDEN, MemoryTables, StagedAgent
from tests.topics.events_topic import wait_until
from tests.unit.change_agent.memory_broker import AcknowledgingProducer, MemoryBroker

_ID = time.time_ns() // 1_000_000 - 10_000
_CLEARING = b"the truncation"
_PREFIX = "persistent://public/default/events-"
# Two mutations of different tables, each of one row.
_MINE, _OTHER = (
    ENTRIES[0].payload,
    next(each.payload for each in ENTRIES if each.payload[1:17] != ENTRIES[0].payload[1:17]),
)
_TABLE_ID = UUID(bytes=_MINE[1:17])
# The truncation is between the second and the third one.
_SECTIONS = [[_OTHER, _MINE], [_MINE], [_OTHER, _MINE, _MINE, _MINE]]


class _Broker(MemoryBroker):
    """A broker that also takes truncations, unless it refuses them."""

    refuses_clearings = False
    keeps_deleted_topics = True
    """A deleted topic counts as one that exists, because another client has created it again."""

    def open_clearings(self, topic: str) -> list[EventProducer]:
        if topic in self.refused_topics or self.refuses_clearings:
            raise PublishError(topic, "is refused")
        stored = self.stored.setdefault(topic, [[]])
        return [AcknowledgingProducer(partial(_store_clearing, each)) for each in stored]

    def has_topic(self, topic: str) -> bool:
        if topic in self.refused_topics or self.refuses_clearings:
            raise PublishError(topic, "is refused")
        return topic in self.stored or self.keeps_deleted_topics

    def order(self, topic: str) -> list[int | str]:
        """The positions of the topic's events, and "T" for the truncation, in the order of the topic."""
        found: list[int | str] = []
        for payload in self.stored.get(topic, [[]])[0]:
            events = () if payload == _CLEARING else decode_events(payload).events
            found += [event.position for event in events] or ["T"]
        return found


def _store_clearing(stored: list[bytes], payload: bytes) -> None:
    stored.append(_CLEARING)


class _PublishingAgent(StagedAgent):
    """A staged agent whose events go through a publisher to the broker."""

    check_s = 60.0

    def __init__(self, folder: Path, tables: MemoryTables, broker: _Broker) -> None:
        super().__init__(folder, tables, clearings=broker)
        limits = HoldLimits(events=0, bytes=0, seconds=0.0, max_held_bytes=1_000_000, settled_s=1_000.0)
        self.held = folder / "held"
        self.held.mkdir(exist_ok=True)
        self.publisher = MutationPublisher(
            broker,
            self.positions,
            self.metrics,
            topic_prefix=_PREFIX,
            packing=Packing(max_events=1, max_bytes=10_000),
            held_directory=self.held,
            hold_limits=limits,
            check_s=self.check_s,
            awaited=self.awaited,
        )

    def publish(self, handed_over: Sequence[Outgoing]) -> None:
        self.publisher.publish(handed_over)

    def start(self) -> None:
        self.awaited.start()
        self.publisher.start()
        super().start()

    def stop(self) -> None:
        super().stop()
        self.publisher.stop()


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> MemoryTables:
    """The golden tables. A truncation waits shortly for the events before it."""
    monkeypatch.setattr(clearings, "_EMPTY_S", 0.3)
    return MemoryTables(GOLDEN.tables())


def _place() -> Truncation:
    return Truncation(_ID, len(segment_bytes(_ID, _SECTIONS[:2])), 1_000)


def _name(tables: MemoryTables) -> str:
    return tables.tables[_TABLE_ID].full_name


def _topic(tables: MemoryTables) -> str:
    return f"{_PREFIX}{_name(tables)}"


def _stored_ids(agent: StagedAgent) -> set[str]:
    """The tables whose truncations are stored as published."""
    path = agent.work / "clearings.json"
    return set(json.loads(path.read_text())["truncations"]) if path.exists() else set()


def _with_topic_away(tmp_path: Path, tables: MemoryTables, broker: _Broker) -> tuple[_PublishingAgent, str]:
    """An agent, not started, with a whole segment and a truncation in the middle of it; and the topic."""
    agent = _PublishingAgent(tmp_path, tables, broker)
    content, topic = segment_bytes(_ID, _SECTIONS), _topic(tables)
    broker.refused_topics.add(topic)
    tables.truncations = {_TABLE_ID: _place()}
    agent.segment(_ID, content, f"{len(content)}\nCOMPLETED")
    return agent, topic


def _with_topic_back(tmp_path: Path, tables: MemoryTables, broker: _Broker) -> _PublishingAgent:
    """The next agent, not started. The topic takes events again, and no truncation."""
    broker.refused_topics.clear()
    broker.refuses_clearings = True
    return _PublishingAgent(tmp_path, tables, broker)


def _end(agent: StagedAgent, content: bytes) -> None:
    agent.index(_ID, f"{len(content)}\nCOMPLETED")
    wait_until(lambda: agent.files() == [], "the segment is deleted")
    agent.stop()
    assert _stored_ids(agent) == {str(_TABLE_ID)}


def _begun(agent: _PublishingAgent, broker: _Broker, tables: MemoryTables) -> bytes:
    """Let the agent publish the first section, and note a truncation. Return the content of the segment."""
    content = segment_bytes(_ID, _SECTIONS)
    agent.segment(_ID, content, str(len(segment_bytes(_ID, _SECTIONS[:1]))))
    agent.start()
    topic = _topic(tables)
    wait_until(lambda: len(broker.order(topic)) == 1 and agent.positions.events == 0, "the first section is published")
    tables.truncations = {_TABLE_ID: _place()}
    return content


def test_events_wait_for_a_truncation_whose_topic_was_unreachable(tmp_path: Path, tables: MemoryTables) -> None:
    """The producers of the events reconnect by themselves, at once. The segment may be deleted after that."""
    broker = _Broker()
    agent = _PublishingAgent(tmp_path, tables, broker)
    content = _begun(agent, broker, tables)
    topic = _topic(tables)
    broker.refuses_clearings = True
    broker.connected = False
    agent.index(_ID, str(len(content)))
    wait_until(lambda: agent.segments.read_position(_ID) == len(content), "all is read")
    time.sleep(0.5)
    assert len(broker.order(topic)) == 2
    broker.connected = True
    time.sleep(1.5)
    assert len(broker.order(topic)) == 2
    broker.refuses_clearings = False
    wait_until(lambda: len(broker.order(topic)) == 6, "the topic has all", 20)
    assert [each == "T" for each in broker.order(topic)] == [False, False, True, False, False, False]
    _end(agent, content)


@pytest.mark.parametrize("is_refused", [False, True])
def test_events_follow_a_truncation_at_the_place_where_the_reader_continues(
    tmp_path: Path, tables: MemoryTables, is_refused: bool
) -> None:
    """The agent was stopped there, or Cassandra has written nothing since. No event has to be published twice."""
    broker = _Broker()
    agent = _PublishingAgent(tmp_path, tables, broker)
    content, topic = segment_bytes(_ID, _SECTIONS), _topic(tables)
    agent.segment(_ID, content, str(_place().position))
    agent.start()
    wait_until(lambda: agent.stored_now().last_place == (_ID, _place().position), "all is published so far")
    agent.stop()
    tables.truncations = {_TABLE_ID: _place()}
    broker.refuses_clearings = is_refused
    agent = _PublishingAgent(tmp_path, tables, broker)
    agent.index(_ID, str(len(content)))
    agent.start()
    wait_until(lambda: agent.segments.read_position(_ID) == len(content), "all is read")
    time.sleep(0.5)
    broker.refuses_clearings = False
    wait_until(lambda: len(broker.order(topic)) == 6, "the topic has all", 20)
    _end(agent, content)
    assert [each == "T" for each in broker.order(topic)] == [False, False, True, False, False, False]


def _refuse(*args: object, **options: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_events_that_the_disk_does_not_hold_wait_for_a_truncation(
    tmp_path: Path, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic was deleted while they waited, and is opened again before the disk has room to hold them."""
    broker = _Broker()
    monkeypatch.setattr(_PublishingAgent, "check_s", 0.1)
    agent = _PublishingAgent(tmp_path, tables, broker)
    content = _begun(agent, broker, tables)
    topic = _topic(tables)
    broker.refuses_clearings = True
    agent.index(_ID, str(len(content)))
    wait_until(lambda: _TABLE_ID in agent.awaited and agent.positions.events == 3, "the events behind it wait")
    monkeypatch.setattr(HeldEvents, "append", _refuse)
    opened = broker.opened
    broker.lost_topics.add(topic)
    wait_until(lambda: agent.publisher.statuses[_name(tables)].problem is not None, "the topic is lost")
    broker.lost_topics.clear()
    wait_until(lambda: broker.opened > opened, "the topic is opened again")
    time.sleep(1.5)
    assert len(broker.order(topic)) == 2
    broker.refuses_clearings = False
    wait_until(lambda: len(broker.order(topic)) == 6, "the topic has all", 20)
    assert [each == "T" for each in broker.order(topic)] == [False, False, True, False, False, False]
    _end(agent, content)


def test_held_events_wait_for_a_truncation(tmp_path: Path, tables: MemoryTables) -> None:
    """They count as acknowledged, so the segment is deleted before the topic can be used."""
    broker = _Broker()
    agent, topic = _with_topic_away(tmp_path, tables, broker)
    agent.start()
    wait_until(lambda: agent.files() == [], "all is held, and the segment is deleted", 30)
    assert broker.order(topic) == [] and list(agent.held.iterdir())
    broker.refused_topics.clear()
    wait_until(lambda: len(broker.order(topic)) == 6, "the topic has all", 30)
    places = broker.order(topic)
    behind = [each for each in places if each != "T"][2:]
    assert places.index("T") < places.index(behind[0])
    wait_until(lambda: _stored_ids(agent) == {str(_TABLE_ID)}, "it is stored")
    agent.stop()


def test_held_events_wait_for_a_truncation_after_a_restart(
    tmp_path: Path, tables: MemoryTables, caplog: pytest.LogCaptureFixture
) -> None:
    """Their segment is deleted already, so they could not be published once more."""
    broker = _Broker()
    agent, topic = _with_topic_away(tmp_path, tables, broker)
    agent.start()
    wait_until(lambda: agent.files() == [], "all is held, and the segment is deleted", 30)
    agent.stop()
    agent = _with_topic_back(tmp_path, tables, broker)
    later = segment_bytes(_ID + 1, [[_OTHER]])
    agent.segment(_ID + 1, later, str(len(later)))
    agent.start()
    time.sleep(1.5)
    assert broker.order(topic) == []
    broker.refuses_clearings = False
    wait_until(lambda: len(broker.order(topic)) == 6, "the topic has all", 30)
    wait_until(lambda: _stored_ids(agent) == {str(_TABLE_ID)}, "it is stored")
    agent.stop()
    assert broker.order(topic)[0] == "T"
    assert json.loads((agent.work / "awaited-clearings.json").read_text()) == {}
    assert "deleted before the truncation" not in caplog.text
    (agent.work / "awaited-clearings.json").write_text("[")
    agent = _PublishingAgent(tmp_path, tables, broker)
    agent.start()
    agent.stop()
    assert len(broker.order(topic)) == 6


def test_events_are_not_held_before_their_truncation_is_stored(
    tmp_path: Path, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the truncation is found, and has room later. After a restart, held events wait for it."""
    broker = _Broker()
    agent, topic = _with_topic_away(tmp_path, tables, broker)
    with monkeypatch.context() as full:
        full.setattr(awaited_clearings, "replace_private", _refuse)
        agent.start()
        wait_until(lambda: _TABLE_ID in agent.awaited and agent.files() != [], "it is found")
        time.sleep(2.5)
        assert agent.files() != []
    wait_until(lambda: agent.files() == [], "all is held, and the segment is deleted", 30)
    agent.stop()
    agent = _with_topic_back(tmp_path, tables, broker)
    agent.start()
    time.sleep(1.5)
    assert broker.order(topic) == []
    agent.stop()


def test_events_are_sent_before_their_truncation_only_when_that_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full. After a restart, the file would promise that no event was sent before it."""

    def open_producers(topic: str) -> list[EventProducer]:
        raise PublishError(topic, "is refused")

    def holds_back(awaited: AwaitedClearings) -> bool:
        awaited.holds_back("events-1", is_usable=True)
        return awaited.holds_back("events-1", is_usable=True)

    stopping = Event()
    awaited = AwaitedClearings(tmp_path, open_producers, stopping, patience_s=0.0)
    awaited.add(UUID(int=1), "events-1", b"x", is_late=False)
    stopping.set()
    with monkeypatch.context() as full:
        full.setattr(awaited_clearings, "replace_private", _refuse)
        assert holds_back(awaited)
    assert json.loads((tmp_path / "awaited-clearings.json").read_text()) != {}
    assert not holds_back(awaited)
    assert json.loads((tmp_path / "awaited-clearings.json").read_text()) == {}


def test_an_unexpected_error_does_not_end_the_attempts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log has it, and the truncation is published all the same."""
    broker = _Broker()
    errors = [RuntimeError("a defect")]

    def open_producers(topic: str) -> list[EventProducer]:
        if errors:
            raise errors.pop()
        return broker.open_clearings(topic)

    awaited = AwaitedClearings(tmp_path, open_producers, Event())
    awaited.add(UUID(int=1), "events-1", b"x", is_late=False)
    wait_until(lambda: broker.stored.get("events-1") == [[_CLEARING]], "the truncation is published")
    assert ["a defect" in str(each.exc_info) for each in caplog.records] == [True]


@pytest.mark.parametrize("is_there", [False, True])
def test_no_topic_is_made_for_the_truncation_of_a_table_that_was_dropped_while_the_agent_was_down(
    tmp_path: Path, tables: MemoryTables, caplog: pytest.LogCaptureFixture, is_there: bool
) -> None:
    """Its topic was deleted with it. If the topic still exists, the truncation is published."""
    broker = _Broker()
    agent, topic = _with_topic_away(tmp_path, tables, broker)
    agent.start()
    wait_until(lambda: _TABLE_ID in agent.awaited, "the truncation waits")
    agent.stop()
    broker.refused_topics.clear()
    broker.keeps_deleted_topics = is_there
    tables.present = None
    agent = _PublishingAgent(tmp_path, tables, broker)
    agent.awaited.start()
    wait_until(lambda: not is_there or topic in broker.stored, "it is published where its topic is")
    time.sleep(1.0)
    assert (topic in broker.stored) is is_there
    tables.present = frozenset(tables.tables) - {_TABLE_ID}
    path = agent.work / "awaited-clearings.json"
    wait_until(lambda: json.loads(path.read_text()) == {}, "nothing waits any more")
    time.sleep(0.5)
    agent.start()
    agent.stop()
    told = [each.getMessage() for each in caplog.records if "was dropped" in each.getMessage()]
    if is_there:
        assert broker.stored[topic][0][0] == _CLEARING and not told
    else:
        assert told == [
            f"{topic} does not exist any more, and its table was dropped: an earlier truncation of the table is not"
            " published, and the topic is not made for it"
        ]


def _published(
    agent: _PublishingAgent, broker: _Broker, tables: MemoryTables, content: bytes
) -> tuple[str, list[int | str]]:
    """Start the agent with a segment, and wait for its events. Return their topic, and what is on it."""
    topic = _topic(tables)
    agent.segment(_ID, content, str(len(content)))
    agent.start()
    wait_until(lambda: len(broker.order(topic)) == 5 and agent.positions.events == 0, "all is published", 20)
    return topic, broker.order(topic)


def _take_away(agent: _PublishingAgent, broker: _Broker, tables: MemoryTables, topic: str) -> None:
    broker.refused_topics.add(topic)
    broker.lost_topics.add(topic)
    wait_until(lambda: not agent.publisher.statuses[_name(tables)].is_usable, "the topic is away", 20)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_events_behind_a_truncation_that_is_found_late_outlast_their_segment(
    tmp_path: Path,
    tables: MemoryTables,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    is_restarted: bool,
) -> None:
    """They were on the topic before it went away. They are held, to come once more, before the segment is deleted."""
    broker = _Broker()
    monkeypatch.setattr(_PublishingAgent, "check_s", 0.1)
    agent, content = _PublishingAgent(tmp_path, tables, broker), segment_bytes(_ID, _SECTIONS)
    topic, places = _published(agent, broker, tables, content)
    _take_away(agent, broker, tables, topic)
    tables.truncations = {_TABLE_ID: _place()}
    agent.index(_ID, f"{len(content)}\nCOMPLETED")
    wait_until(lambda: agent.files() == [], "the segment is deleted", 30)
    assert list(agent.held.iterdir())
    if is_restarted:
        wait_until(
            lambda: '"is_late": false' in (agent.work / "awaited-clearings.json").read_text(), "it is stored", 20
        )
        agent.stop()
        agent = _PublishingAgent(tmp_path, tables, broker)
        later = segment_bytes(_ID + 1, [[_OTHER]])
        agent.segment(_ID + 1, later, str(len(later)))
        agent.start()
    broker.refused_topics.clear()
    broker.lost_topics.clear()
    wait_until(lambda: len(broker.order(topic)) >= 9, "the topic has all", 30)
    wait_until(lambda: _stored_ids(agent) == {str(_TABLE_ID)}, "it is stored", 20)
    agent.stop()
    assert broker.order(topic) == [*places, "T", *places[2:]]
    assert "verify" not in caplog.text


class _SlowBroker(_Broker):
    """A broker that needs some time to refuse a truncation."""

    def open_clearings(self, topic: str) -> list[EventProducer]:
        if topic in self.refused_topics:
            time.sleep(0.7)
        return super().open_clearings(topic)


def test_the_events_behind_the_second_of_two_late_truncations_outlast_their_segment(
    tmp_path: Path, tables: MemoryTables, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both topics are away. The reader does not read on before both truncations wait for their topics."""
    broker = _SlowBroker()
    monkeypatch.setattr(_PublishingAgent, "check_s", 0.1)
    agent = _PublishingAgent(tmp_path, tables, broker)
    content = segment_bytes(_ID, [[_OTHER, _MINE], [_MINE], [_MINE, _MINE, _MINE]])
    other_id = UUID(bytes=_OTHER[1:17])
    topic, other = _topic(tables), f"{_PREFIX}{tables.tables[other_id].full_name}"
    agent.segment(_ID, content, str(len(content)))
    agent.start()
    wait_until(lambda: len(broker.order(topic)) == 5 and agent.positions.events == 0, "all is published", 20)
    places = broker.order(topic)
    broker.refused_topics |= {topic, other}
    broker.lost_topics |= {topic, other}
    wait_until(lambda: not any(each.is_usable for each in agent.publisher.statuses.values()), "both are away", 20)
    place = Truncation(_ID, len(segment_bytes(_ID, [[_OTHER, _MINE], [_MINE]])), 1_000)
    tables.truncations = {other_id: place, _TABLE_ID: place}
    agent.index(_ID, f"{len(content)}\nCOMPLETED")
    wait_until(lambda: agent.files() == [], "the segment is deleted", 30)
    broker.refused_topics.clear()
    broker.lost_topics.clear()
    wait_until(lambda: _stored_ids(agent) == {str(_TABLE_ID), str(other_id)}, "both are stored", 30)
    assert "verify" not in caplog.text
    wait_until(lambda: len(broker.order(topic)) == 9, "the events came once more", 20)
    agent.stop()
    assert broker.order(topic) == [*places, "T", *places[2:]]
    assert broker.order(other)[-1] == "T"


def test_a_segment_stays_until_the_events_behind_a_late_truncation_are_durable(
    tmp_path: Path, tables: MemoryTables, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk does not hold them. After each restart, they are read from the segment once more."""
    broker = _Broker()
    monkeypatch.setattr(_PublishingAgent, "check_s", 0.1)
    agent, content = _PublishingAgent(tmp_path, tables, broker), segment_bytes(_ID, _SECTIONS)
    topic, places = _published(agent, broker, tables, content)
    with monkeypatch.context() as full:
        full.setattr(HeldEvents, "append", _refuse)
        _take_away(agent, broker, tables, topic)
        tables.truncations = {_TABLE_ID: _place()}
        wait_until(lambda: agent.positions.events == 3, "the events wait", 20)
        agent.index(_ID, f"{len(content)}\nCOMPLETED")
        time.sleep(1.0)
        agent.stop()
        assert agent.files() != []
        agent = _PublishingAgent(tmp_path, tables, broker)
        agent.start()
        wait_until(lambda: agent.positions.events == 3, "the events wait again", 20)
        time.sleep(1.0)
        agent.stop()
    assert agent.files() != []
    broker.refused_topics.clear()
    broker.lost_topics.clear()
    agent = _PublishingAgent(tmp_path, tables, broker)
    agent.start()
    wait_until(lambda: agent.files() == [], "the segment is deleted", 30)
    wait_until(lambda: _stored_ids(agent) == {str(_TABLE_ID)}, "it is stored", 20)
    agent.stop()
    assert broker.order(topic) == [*places, "T", *places[2:]]
    assert "verify" not in caplog.text


def test_a_truncation_that_no_file_has_is_published_before_the_reader_continues_behind_it(
    tmp_path: Path, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full, and the events behind it waited in memory. An event of another table was published."""
    broker = _Broker()
    agent = _PublishingAgent(tmp_path, tables, broker)
    sections = [*_SECTIONS[:2], [_OTHER], [_MINE, _MINE, _MINE]]
    content, topic = segment_bytes(_ID, sections), _topic(tables)
    other_end = len(segment_bytes(_ID, sections[:3]))
    agent.segment(_ID, content, str(_place().position))
    agent.start()
    wait_until(lambda: len(broker.order(topic)) == 2 and agent.positions.events == 0, "all is published so far", 20)
    broker.refuses_clearings = True
    with monkeypatch.context() as full:
        full.setattr(awaited_clearings, "replace_private", _refuse)
        tables.truncations = {_TABLE_ID: _place()}
        agent.index(_ID, str(other_end))
        wait_until(lambda: agent.positions.progress()[SegmentKey(_ID)].position == other_end, "it is published", 20)
        agent.index(_ID, str(len(content)))
        wait_until(lambda: agent.positions.events == 3, "the events behind it wait", 20)
        agent.stop()
    broker.refuses_clearings = False
    agent = _PublishingAgent(tmp_path, tables, broker)
    agent.index(_ID, f"{len(content)}\nCOMPLETED")
    agent.start()
    wait_until(lambda: _stored_ids(agent) == {str(_TABLE_ID)}, "it is stored", 20)
    wait_until(lambda: agent.files() == [], "the segment is deleted", 30)
    agent.stop()
    assert [each == "T" for each in broker.order(topic)] == [False, False, True, False, False, False]


def _threads() -> int:
    return sum(each.name.startswith("truncation") for each in threading.enumerate())


def test_many_truncations_share_some_threads(tmp_path: Path) -> None:
    """Pulsar is away while 300 tables are truncated. The threads end when all are published."""
    broker = _Broker()
    broker.refuses_clearings = True
    before = _threads()
    awaited = AwaitedClearings(tmp_path, broker.open_clearings, Event())
    topics = {UUID(int=number): f"events-{number}" for number in range(300)}
    for table_id, topic in topics.items():
        awaited.add(table_id, topic, b"x", is_late=False)
    time.sleep(0.5)
    assert _threads() - before <= 8
    broker.refuses_clearings = False
    wait_until(lambda: broker.stored == {topic: [[_CLEARING]] for topic in topics.values()}, "all are published", 60)
    wait_until(lambda: _threads() == before, "the threads have ended", 10)
    for table_id in topics:
        assert awaited.take_published(table_id) is False


def test_topics_that_are_slow_to_fail_do_not_keep_truncations_of_others_back(tmp_path: Path) -> None:
    """More topics than threads never answer within their time."""
    broker, slow_s = _Broker(), 1.0

    def open_producers(topic: str) -> list[EventProducer]:
        if topic.startswith("slow"):
            time.sleep(slow_s)
            raise PublishError(topic, "does not answer")
        return broker.open_clearings(topic)

    stopping = Event()
    awaited = AwaitedClearings(tmp_path, open_producers, stopping)
    for number in range(20):
        awaited.add(UUID(int=number), f"slow-{number}", b"x", is_late=False)
    time.sleep(0.5)
    for number in range(50, 100):
        awaited.add(UUID(int=number), f"events-{number}", b"x", is_late=False)
    # Those that are slow and were due before take their turns first, once.
    wait_until(lambda: len(broker.stored) == 50, "the others are published", 5 * slow_s)
    stopping.set()


def test_the_newer_truncation_of_a_table_is_the_last_one(tmp_path: Path) -> None:
    """It replaces the first one while that is being published."""
    sent: list[bytes] = []
    is_sending, may_go_on = Event(), Event()

    def take(payload: bytes) -> None:
        is_sending.set()
        may_go_on.wait(10)
        sent.append(payload)

    awaited = AwaitedClearings(tmp_path, lambda _: [AcknowledgingProducer(take)], Event())
    awaited.add(UUID(int=1), "events-1", b"first", is_late=False)
    is_sending.wait(10)
    awaited.add(UUID(int=1), "events-1", b"second", is_late=False)
    time.sleep(0.5)
    may_go_on.set()
    wait_until(lambda: awaited.take_published(UUID(int=1)) is False, "the second one is published", 20)
    assert sent == [b"first", b"second"]


def test_events_do_not_wait_for_ever_for_a_truncation_that_the_broker_refuses(
    tmp_path: Path, tables: MemoryTables, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schema of a truncation may be refused. Later the truncation comes, and the events behind it once more."""
    broker = _Broker()
    agent = _PublishingAgent(tmp_path, tables, broker)
    monkeypatch.setattr(agent.awaited, "_patience_s", 1.0)
    content = _begun(agent, broker, tables)
    topic = _topic(tables)
    broker.refuses_clearings = True
    agent.index(_ID, str(len(content)))
    wait_until(lambda: len(broker.order(topic)) == 5, "the events are published", 20)
    [told] = [each.getMessage() for each in caplog.records if "takes events" in each.getMessage()]
    assert told == (
        f"{topic}: the broker takes events, but no truncation, for 1 s: later events are sent before it, and once more"
        " after it; see that the agent may produce with a further version of the topic's schema"
    )
    broker.refuses_clearings = False
    wait_until(lambda: len(broker.order(topic)) == 9, "the truncation and the events behind it are published", 20)
    places = broker.order(topic)
    assert places[5] == "T" and places[6:] == places[2:5]
    _end(agent, content)
    assert broker.order(topic) == places
