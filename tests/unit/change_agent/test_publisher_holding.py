"""MutationPublisher: events of a table that cannot be published are held on disk, and published in order later."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from change_agent.publishing.held_events import holds_events
from tests.topics.events_topic import wait_until
from tests.unit.change_agent.memory_broker import TOPIC_A, TOPIC_B, MemoryBroker, PublisherLine


def _held(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _line_without_a_disk(broker: MemoryBroker, held: Path) -> PublisherLine:
    """A running publisher. One topic is refused, and the folder for its held events is a file, so holding fails."""
    held.touch()
    broker.refused_topics.add(TOPIC_A)
    line = PublisherLine(broker, held, hold_events=5)
    line.publisher.start()
    line.publish("b", 1)
    line.publish("a", *range(2, 12))
    return line


def test_a_check_of_a_held_topic_promises_no_place(broker: MemoryBroker, tmp_path: Path) -> None:
    """Held events are acknowledged, but not on the topic. A loss from the acknowledged place on would miss them."""
    line = PublisherLine(broker, tmp_path, hold_events=1, check_s=0.1)
    line.publisher.start()
    line.publish("b", 1)
    line.publish("a", 2)
    wait_until(lambda: broker.places.get(TOPIC_A) is not None, "both topics are open and checked", 20)
    broker.refused_topics.add(TOPIC_A)
    broker.fail_next = ["Timeout"]
    line.publish("a", *range(3, 13))
    wait_until(lambda: line.acknowledged() == 12, "it is held", 20)
    broker.places.clear()
    wait_until(lambda: broker.places.keys() == {TOPIC_A, TOPIC_B}, "both are checked", 20)
    assert broker.places[TOPIC_A] is None and broker.places[TOPIC_B] is not None
    line.publisher.stop()


def test_a_table_that_cannot_be_published_is_held_on_disk_so_that_others_find_room(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    """Held events are durable, so the log does not wait for them. They are sent first, and in order."""
    line = PublisherLine(broker, tmp_path, hold_events=5, max_events=4)
    line.start_with_a_held()
    assert _held(tmp_path) == ["ks.a.events"]
    line.publish("a", 12)
    line.publish("b", 13)
    wait_until(lambda: line.acknowledged() == 13, "the log goes on")
    assert (broker.positions(TOPIC_B), line.positions.events) == ([1, 13], 0)
    broker.refused_topics.clear()
    wait_until(
        lambda: broker.stored.get(TOPIC_A) is not None and len(broker.positions(TOPIC_A)) == 11, "a is published"
    )
    line.publish("a", 14)
    wait_until(lambda: line.acknowledged() == 14 and _held(tmp_path) == [], "nothing is held any more")
    line.publisher.stop()
    assert broker.positions(TOPIC_A) == [*range(2, 13), 14]


def test_what_the_disk_refuses_to_hold_waits_and_is_held_when_there_is_room(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    """The events are acknowledged only when they are durable. The publisher continues, and the order is kept."""
    held = tmp_path / "held"
    line = _line_without_a_disk(broker, held)
    wait_until(lambda: line.write_failures() > 1, "it is tried again and again")
    line.publish("b", 12)
    wait_until(lambda: broker.positions(TOPIC_B) == [1, 12], "the other table goes on")
    assert (line.acknowledged(), line.publisher.failure) == (1, None)
    held.unlink()
    wait_until(lambda: line.acknowledged() == 12, "it is held")
    line.publish("a", 13)
    wait_until(lambda: line.acknowledged() == 13, "more of it is held")
    broker.refused_topics.clear()
    wait_until(lambda: _held(held) == [], "all is published")
    line.publisher.stop()
    assert broker.positions(TOPIC_A) == [*range(2, 12), 13]


def test_what_the_disk_refused_to_hold_is_sent_in_order_when_its_topic_opens_first(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    """The events are still in memory, before later ones."""
    line = _line_without_a_disk(broker, tmp_path / "held")
    wait_until(lambda: line.write_failures() > 0, "the disk refuses")
    line.publish("a", 12, 13)
    broker.refused_topics.clear()
    wait_until(lambda: line.acknowledged() == 13, "all is published")
    line.publisher.stop()
    assert (broker.positions(TOPIC_A), line.positions.events, line.positions.bytes) == ([*range(2, 14)], 0, 0)


def test_what_an_earlier_process_held_is_published_first(broker: MemoryBroker, tmp_path: Path) -> None:
    """The next start sends the file before new events from the log."""
    first = PublisherLine(broker, tmp_path, hold_events=5)
    first.start_with_a_held()
    first.publisher.stop()
    broker.refused_topics.clear()
    second = PublisherLine(broker, tmp_path, hold_events=5)
    second.publish("a", 100, 101)
    second.publisher.start()
    wait_until(lambda: second.acknowledged() == 2 and _held(tmp_path) == [], "all is published")
    second.publisher.stop()
    assert broker.positions(TOPIC_A) == [*range(2, 12), 1, 2]


def test_a_topic_that_fails_in_mid_stream_is_held_with_what_was_on_its_way(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    """Unacknowledged, waiting and new events are all held in order, and published in order."""
    line = PublisherLine(broker, tmp_path, hold_events=5)
    line.start_with_a_failing("Timeout")
    wait_until(lambda: line.acknowledged() == 12, "a is held")
    line.publish("a", 13)
    wait_until(lambda: line.acknowledged() == 13, "more of it is held")
    broker.refused_topics.clear()
    wait_until(lambda: _held(tmp_path) == [], "all is published", 20)
    line.publisher.stop()
    assert broker.positions(TOPIC_A) == [*range(2, 14)]


def test_when_no_topic_can_be_used_nothing_is_held(broker: MemoryBroker, tmp_path: Path) -> None:
    """The broker is away, so the events are better kept in the log."""
    broker.refused_topics |= {TOPIC_A, TOPIC_B}
    line = PublisherLine(broker, tmp_path, hold_events=5)
    line.publisher.start()
    line.publish("a", *range(1, 11))
    line.publish("b", *range(11, 21))
    time.sleep(1.5)
    assert (line.acknowledged(), _held(tmp_path)) == (0, [])
    broker.refused_topics.clear()
    wait_until(lambda: line.acknowledged() == 20, "all is published")
    line.publisher.stop()


def test_when_the_disk_has_its_share_nothing_more_is_held(
    broker: MemoryBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """More events wait in memory, and finally the reader waits."""
    line = PublisherLine(broker, tmp_path, hold_events=5, max_held_bytes=100)
    line.start_with_a_held()
    line.publish("a", 12)
    time.sleep(0.3)
    assert line.acknowledged() == 11
    wait_until(lambda: line.metrics.held_full == 1, "it is told")
    time.sleep(1.5)
    assert [each.getMessage() for each in caplog.records if "maxHeldBytes" in each.getMessage()] == [
        "held events fill maxHeldBytes (100): no more events are held, and reading of all tables waits when the in-flight"
        f" limits are reached; correct the topics ({TOPIC_A}), or raise maxHeldBytes"
    ]
    broker.refused_topics.clear()
    wait_until(lambda: line.acknowledged() == 12, "all is published")
    wait_until(lambda: line.metrics.held_full == 0, "there is room again")
    line.publisher.stop()
    assert broker.positions(TOPIC_A) == [*range(2, 13)]


def test_held_events_that_were_damaged_on_disk_are_told_and_the_others_are_published(
    broker: MemoryBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both held and too large events are damaged. The agent goes on, reports it, and keeps the damaged files."""
    broker.refused_topics.add(TOPIC_A)
    first = PublisherLine(broker, tmp_path, hold_events=5)
    first.publisher.start()
    first.publish("b", 1)
    for end in (8, 14):
        first.publish("a", *range(end - 6, end))
        wait_until(lambda count=end - 1: first.acknowledged() == count, "a is held")
    first.publisher.stop()
    path = tmp_path / "ks.a.events"
    content = path.read_bytes()
    (tmp_path / "too-large").mkdir(exist_ok=True)
    (tmp_path / "too-large" / "ks.a.events").write_bytes(content[:-1] + b"!")
    broken = bytearray(content)
    broken[broken.index(b"H00000000-") + 2] ^= 1
    path.write_bytes(broken)
    broker.refused_topics.clear()
    second = PublisherLine(broker, tmp_path, hold_events=5)
    second.publisher.start()
    wait_until(lambda: not holds_events(tmp_path), "all that can be read is published")
    second.publisher.stop()
    assert second.publisher.failure is None
    # The intact message of each file. Too large events are appended to the held ones.
    assert broker.positions(TOPIC_A) == [*range(8, 14), *range(2, 8)]
    assert second.metrics.tables["ks.a"].damaged_bytes > 0
    assert [table for table, _ in second.damage] == ["ks.a", "ks.a"]
    assert all("cdc agent resume-progress, and restart the agent" in reason for _, reason in second.damage)
    assert (
        sum("are damaged and cannot be published: verify the table" in each.getMessage() for each in caplog.records)
        == 2
    )
    kept = [each.relative_to(tmp_path).as_posix() for each in sorted(tmp_path.rglob("*.damaged"))]
    assert kept == ["ks.a.events.damaged", "too-large/ks.a.events.damaged"]


def test_held_events_that_go_bad_while_the_agent_runs_cost_no_others(broker: MemoryBroker, tmp_path: Path) -> None:
    """The file was intact when it was written. Later messages are sent, and the file is kept and reported."""
    line = PublisherLine(broker, tmp_path, hold_events=5, max_events=1)
    line.start_with_a_held()
    path = tmp_path / "ks.a.events"
    content = bytearray(path.read_bytes())
    # Damage the message of position 5.
    content[[each.start() for each in re.finditer(rb"H[0-]{35}1", content)][3] + 20] ^= 1
    path.write_bytes(content)
    broker.refused_topics.clear()
    wait_until(lambda: not holds_events(tmp_path), "all that can be read is published")
    line.publisher.stop()
    assert broker.positions(TOPIC_A) == [2, 3, 4, *range(6, 12)]
    assert _held(tmp_path) == ["ks.a.events.damaged"]
    assert [table for table, _ in line.damage] == ["ks.a"]
    assert "were damaged and cannot be published" in (line.publisher.stopped("ks", "a") or "")


def test_a_topic_that_is_gone_is_held_and_opened_again(broker: MemoryBroker, tmp_path: Path) -> None:
    """No event is sent to a deleted topic. Later events are sent when the topic is created again."""
    line = PublisherLine(broker, tmp_path, check_s=0.1)
    line.publisher.start()
    line.publish("a", 1)
    line.publish("b", 2)
    wait_until(lambda: line.acknowledged() == 2, "both are in use")
    broker.refused_topics.add(TOPIC_A)
    broker.lost_topics.add(TOPIC_A)
    wait_until(lambda: line.metrics.topics_held == 1, "it is seen")
    line.publish("a", 3)
    wait_until(lambda: line.acknowledged() == 3, "the log goes on")
    assert broker.positions(TOPIC_A) == [1]
    broker.lost_topics.clear()
    broker.refused_topics.clear()
    wait_until(lambda: broker.positions(TOPIC_A) == [1, 3], "it is made again")
    line.publisher.stop()


def test_a_topic_that_is_gone_is_noticed_without_a_connection_and_without_events(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    """The check must work for a quiet table whose producer does not reconnect."""
    line = PublisherLine(broker, tmp_path, check_s=0.1)
    line.publisher.start()
    line.publish("a", 1)
    wait_until(lambda: line.acknowledged() == 1, "it is in use")
    broker.connected = False
    broker.refused_topics.add(TOPIC_A)
    broker.lost_topics.add(TOPIC_A)
    wait_until(lambda: line.metrics.topics_held == 1, "it is seen")
    broker.connected = True
    broker.lost_topics.clear()
    broker.refused_topics.clear()
    wait_until(lambda: line.publisher.statuses["ks.a"].is_usable, "it is made again")
    line.publisher.stop()


def test_no_held_event_is_sent_to_a_topic_that_is_gone(broker: MemoryBroker, tmp_path: Path) -> None:
    """It is deleted while its file is sent, and clients create it again without a subscription.

    The rest stays in the file.
    """
    line = PublisherLine(broker, tmp_path, hold_events=5, max_events=1, check_s=0.1, answer_s=1_000.0)
    line.start_with_a_held()
    broker.holds_back = True
    broker.refused_topics.clear()
    wait_until(lambda: line.publisher.statuses["ks.a"].is_usable, "the first message of the file is sent")
    assert broker.positions(TOPIC_A) == [2]
    broker.refused_topics.add(TOPIC_A)
    broker.lost_topics.add(TOPIC_A)
    wait_until(lambda: not line.publisher.statuses["ks.a"].is_usable, "nothing more is sent to it")
    broker.holds_back = False
    for acknowledge in broker.held:
        acknowledge(None)
    time.sleep(0.3)
    assert (broker.positions(TOPIC_A), _held(tmp_path)) == ([2], ["ks.a.events"])
    broker.lost_topics.clear()
    broker.refused_topics.clear()
    wait_until(lambda: _held(tmp_path) == [], "it is made again, and all is published", 20)
    line.publisher.stop()
    assert broker.positions(TOPIC_A) == [2, *range(2, 12)]


def test_a_held_topic_gets_new_producers_for_those_that_do_not_connect_again(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    """The topic opens, and loses its connections before the file is sent."""
    line = PublisherLine(broker, tmp_path, hold_events=5)
    line.start_with_a_held()
    broker.connected = False
    broker.refused_topics.clear()
    wait_until(lambda: broker.opened == 2, "it is opened")
    wait_until(lambda: broker.opened > 2, "its producer is replaced", 20)
    assert (broker.positions(TOPIC_A), _held(tmp_path)) == ([], ["ks.a.events"])
    broker.connected = True
    wait_until(lambda: _held(tmp_path) == [], "all is published", 20)
    line.publisher.stop()
    assert broker.positions(TOPIC_A) == [*range(2, 12)]
