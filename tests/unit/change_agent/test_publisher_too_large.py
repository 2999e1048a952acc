"""MutationPublisher: messages and events that are larger than the broker accepts."""

from __future__ import annotations

from pathlib import Path

from tests.topics.events_topic import wait_until
from tests.unit.change_agent.memory_broker import TOPIC_A, MemoryBroker, PublisherLine


def test_a_message_that_is_too_large_is_halved(line: PublisherLine, broker: MemoryBroker) -> None:
    """All events are sent in order, in messages that the broker accepts. No size has to be configured."""
    broker.max_message_bytes = 600
    line.publish("a", *range(40))
    wait_until(lambda: len(broker.stored.get(TOPIC_A, [[]])[0]) >= 3, "the events are sent in parts")
    wait_until(lambda: broker.positions(TOPIC_A) == list(range(1, 41)), "all of them")


def test_an_event_that_is_too_large_is_set_aside_and_the_others_go_on(
    line: PublisherLine, broker: MemoryBroker, tmp_path: Path
) -> None:
    """It is durable in a file, so the log does not wait for it. It is counted for its table."""
    line.publish("a", 1)
    wait_until(lambda: line.acknowledged() == 1, "the first arrives")
    broker.max_message_bytes = 10
    line.publish("a", 2)
    wait_until(lambda: line.acknowledged() == 2, "the log does not wait")
    broker.max_message_bytes = 1_000
    line.publish("a", 3)
    wait_until(lambda: line.acknowledged() == 3, "the one behind it arrives")
    assert broker.positions(TOPIC_A) == [1, 3]
    assert line.metrics.tables["ks.a"].events_too_large == 1
    assert (tmp_path / "too-large" / "ks.a.events").stat().st_size > 0


def test_an_event_that_is_too_large_waits_for_room_on_the_disk(broker: MemoryBroker, tmp_path: Path) -> None:
    """Its position is not acknowledged before it is stored. Later events are published."""
    held = tmp_path / "held"
    held.touch()
    line = PublisherLine(broker, held)
    broker.max_message_bytes = 10
    line.publisher.start()
    line.publish("a", 1)
    wait_until(lambda: line.write_failures() > 0, "the disk refuses")
    broker.max_message_bytes = 1_000
    line.publish("a", 2)
    wait_until(lambda: broker.positions(TOPIC_A) == [2], "the one behind it arrives")
    assert (line.acknowledged(), line.publisher.failure) == (0, None)
    held.unlink()
    wait_until(lambda: line.acknowledged() == 2, "it is kept")
    line.publisher.stop()
    assert (held / "too-large" / "ks.a.events").stat().st_size > 0


def test_what_was_too_large_is_tried_again_at_the_next_start(tmp_path: Path, broker: MemoryBroker) -> None:
    """The broker may accept it then. A published event is deleted from the file."""
    first = PublisherLine(broker, tmp_path)
    broker.max_message_bytes = 10
    first.publisher.start()
    first.publish("a", 1)
    wait_until(lambda: first.acknowledged() == 1, "it is set aside")
    first.publisher.stop()
    broker.max_message_bytes = 1_000
    second = PublisherLine(broker, tmp_path)
    second.publisher.start()
    wait_until(lambda: broker.positions(TOPIC_A) == [1], "it arrives")
    second.publisher.stop()
    assert not (tmp_path / "too-large" / "ks.a.events").exists()
