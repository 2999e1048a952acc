"""MutationPublisher: a topic that cannot be held because the disk is full. Its events stay in memory."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from change_agent.metrics import AgentMetrics
from change_agent.positions.inflight import InflightPositions
from change_agent.publishing.messages import Packing
from change_agent.publishing.topic_files import TopicFiles
from change_agent.publishing.topic_notices import TopicNotices
from change_agent.publishing.topic_queue import TopicQueue, TopicState
from schemas.mutation_event import decode_events
from tests.topics.events_topic import wait_until
from tests.unit.change_agent.memory_broker import TOPIC_A, MemoryBroker, PublisherLine


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """The path of the folder of held events. It is a file, so holding fails."""
    path = tmp_path / "held"
    path.touch()
    return path


def _blocked_line(broker: MemoryBroker, held: Path) -> PublisherLine:
    """Return a publisher with one acknowledged event of table a. A message of a has failed, and later events wait."""
    line = PublisherLine(broker, held, hold_events=5, max_events=4)
    line.start_with_a_failing("Timeout")
    wait_until(lambda: line.write_failures() > 0, "the disk refuses")
    line.publish("a", 13, 14)
    return line


def test_a_blocked_topic_sends_what_it_has_when_it_can_be_used_again(broker: MemoryBroker, held: Path) -> None:
    """None of its events was acknowledged. None is lost or sent twice, and all room is released."""
    line = _blocked_line(broker, held)
    assert line.acknowledged() == 2
    broker.refused_topics.clear()
    wait_until(lambda: line.acknowledged() == 14, "all is published", 20)
    line.publisher.stop()
    assert (broker.positions(TOPIC_A), line.positions.events, line.positions.bytes) == ([*range(2, 15)], 0, 0)
    assert held.is_file()


def test_a_blocked_topic_is_held_when_the_disk_has_room(broker: MemoryBroker, held: Path) -> None:
    """Sent, waiting and later events are held in order."""
    line = _blocked_line(broker, held)
    held.unlink()
    wait_until(lambda: line.acknowledged() == 14, "it is held")
    assert (broker.positions(TOPIC_A), line.positions.events) == ([2], 0)
    broker.refused_topics.clear()
    wait_until(lambda: not list(held.rglob("*.events")), "all is published", 20)
    line.publisher.stop()
    assert broker.positions(TOPIC_A) == [*range(2, 15)]


def test_a_blocked_topic_with_another_number_of_partitions_is_held_first(broker: MemoryBroker, held: Path) -> None:
    """Its messages belong to the old partitions. From the file, each row goes to its new partition, in order."""
    line = _blocked_line(broker, held)
    del broker.stored[TOPIC_A]
    broker.partitions = 4
    opened = broker.opened
    broker.refused_topics.clear()
    wait_until(lambda: broker.opened > opened, "it is opened")
    assert line.acknowledged() == 2
    held.unlink()
    wait_until(lambda: line.acknowledged() == 14 and not list(held.rglob("*.events")), "all is published", 20)
    line.publisher.stop()
    found = [broker.positions(TOPIC_A, partition) for partition in range(4)]
    assert sorted(position for each in found for position in each) == [*range(3, 15)]
    assert all(each == sorted(each) for each in found)


def test_new_events_do_not_go_to_a_file_that_is_on_its_way(broker: MemoryBroker, tmp_path: Path) -> None:
    """Otherwise a table with steady traffic would never be open again.

    New events follow when the file is acknowledged.
    """
    line = PublisherLine(broker, tmp_path, hold_events=5)
    line.start_with_a_held()
    broker.holds_back = True
    broker.refused_topics.clear()
    wait_until(lambda: len(broker.held) == 1, "the file is sent")
    line.publish("a", 12)
    time.sleep(0.3)
    assert line.acknowledged() == 11
    broker.holds_back = False
    broker.held.pop()(None)
    wait_until(lambda: line.acknowledged() == 12 and not list(tmp_path.rglob("*.events")), "all is published")
    line.publisher.stop()
    assert broker.positions(TOPIC_A) == [*range(2, 13)]


def _topic(folder: Path) -> TopicQueue:
    metrics = AgentMetrics().table("ks.a")
    room = InflightPositions(max_events=1, max_bytes=1)
    files = TopicFiles(TOPIC_A, folder, "ks.a.events", metrics, lambda reason: None)
    packing = Packing(max_events=1, max_bytes=1)
    return TopicQueue(TOPIC_A, files, room, room, packing, metrics, lambda *result: None, TopicNotices(), answer_s=1)


def test_only_the_drawn_transitions_are_allowed(tmp_path: Path) -> None:
    """An open topic has no file. It must be blocked before it can be held."""
    topic = _topic(tmp_path)
    assert topic.state is TopicState.OPENING
    topic.become(TopicState.OPEN)
    for refused in (TopicState.OPENING, TopicState.HELD):
        with pytest.raises(AssertionError):
            topic.become(refused)
    for state in (TopicState.BLOCKED, TopicState.HELD, TopicState.OPEN):
        topic.become(state)


def test_a_producer_that_comes_too_late_is_closed(broker: MemoryBroker, tmp_path: Path) -> None:
    """Its lane was stopped meanwhile.

    The lane's events go to the disk, or to the producer that opens the whole topic.
    """
    topic = _topic(tmp_path)
    assert topic.open(broker.open(TOPIC_A))
    (lane,) = topic.lanes
    lane.give_up()
    generation = lane.generation
    topic.hold()
    topic.reopen(lane, generation, broker.open_partition(TOPIC_A, 0))
    assert (lane.is_open, topic.is_usable()) == (False, False)
    topic.reopen(lane, lane.generation, broker.open_partition(TOPIC_A, 0))
    assert topic.is_usable()


def test_halves_of_a_message_say_the_same(line: PublisherLine, broker: MemoryBroker) -> None:
    """A new producer with a lower limit sends the events of a message again, in parts."""
    broker.holds_back = True
    line.publish("a", *range(40))
    wait_until(lambda: len(broker.held) > 0, "it is sent")
    broker.max_message_bytes = 600
    broker.held.pop(0)("Timeout")
    broker.holds_back = False
    wait_until(lambda: line.acknowledged() == 40, "all is acknowledged", 20)
    sent_again = [event.position for each in broker.stored[TOPIC_A][0][1:] for event in decode_events(each).events]
    assert sent_again[-40:] == [*range(1, 41)]
