"""MutationPublisher: topics that cannot be used do not slow down other topics, for any number and kind of failures."""

from __future__ import annotations

import time
from pathlib import Path

from schemas.mutation_event import decode_events
from tests.topics.events_topic import wait_until
from tests.unit.change_agent.memory_broker import TOPIC_A, TOPIC_B, MemoryBroker, PublisherLine

_TEN = "cdefghijkl"
_A_MOMENT_S = 40.0
"""Enough for a busy machine. It is less than half of the time after which waiting events are held."""


def _topic(table: str) -> str:
    return f"persistent://public/default/events-ks.{table}"


def _line(broker: MemoryBroker, folder: Path, *, hold_max_s: float = 90.0, answer_s: float = 0.3) -> PublisherLine:
    """A running publisher with room for 10,000 events. A quarter may wait for topics that cannot be used."""
    line = PublisherLine(
        broker, folder, hold_events=2_500, max_held_bytes=10_000_000, answer_s=answer_s, hold_max_s=hold_max_s
    )
    line.publisher.start()
    line.publish("b", 1)
    wait_until(lambda: line.acknowledged() == 1, "table b is published")
    return line


def test_ten_refused_topics_are_held_by_what_waits_for_all_of_them(broker: MemoryBroker, tmp_path: Path) -> None:
    """No topic reaches a quarter alone. Together they would leave no room for the table that can be published."""
    broker.refused_topics |= {_topic(table) for table in _TEN}
    line = _line(
        broker, tmp_path, answer_s=10
    )  # none is silent: a process that was paused must not be taken for a silent broker
    for table in _TEN:
        line.publish(table, *range(950))
    wait_until(lambda: line.positions.events <= 2_500, "no more than a quarter of the room waits for them", _A_MOMENT_S)
    line.publish("b", *range(5_000))
    wait_until(lambda: len(broker.positions(TOPIC_B)) == 5_001, "the other table goes on", _A_MOMENT_S)
    broker.refused_topics.clear()
    wait_until(lambda: not list(tmp_path.rglob("*.events")), "they are published", 60)
    line.publisher.stop()
    for number, table in enumerate(_TEN):
        assert broker.positions(_topic(table)) == list(range(number * 950 + 2, number * 950 + 952))


def test_a_topic_that_never_acknowledges_is_held(broker: MemoryBroker, tmp_path: Path) -> None:
    """Its producers are connected, but acknowledge nothing. It is tried again, and its events follow in order."""
    broker.silent_topics.add(TOPIC_A)
    line = _line(broker, tmp_path)
    line.publish("a", *range(5_000))
    wait_until(lambda: line.acknowledged() == 5_001, "it is held", _A_MOMENT_S)
    wait_until(lambda: broker.opened >= 4, "it is tried again", _A_MOMENT_S)
    status = line.publisher.statuses["ks.a"]
    assert status.problem == "the broker took a message and did not acknowledge it within 0.3 s"
    line.publish("a", 1)
    line.publish("b", *range(100))
    wait_until(lambda: line.positions.events == 0, "the log goes on", _A_MOMENT_S)
    broker.silent_topics.clear()
    wait_until(lambda: not list(tmp_path.rglob("*.events")), "it is published", 60)
    line.publisher.stop()
    assert broker.positions(TOPIC_A) == list(range(2, 5_003))


def test_what_comes_from_the_disk_takes_no_room_from_what_is_read(broker: MemoryBroker, tmp_path: Path) -> None:
    """A topic that opens and stays silent gets one message from the disk until the broker acknowledges it."""
    broker.refused_topics.add(TOPIC_A)
    line = _line(broker, tmp_path)
    line.publish("a", *range(9_000))
    wait_until(lambda: line.acknowledged() == 9_001, "it is held", _A_MOMENT_S)
    broker.silent_topics.add(TOPIC_A)
    broker.refused_topics.clear()
    wait_until(lambda: 0 < line.publisher.statuses["ks.a"].waiting_events <= 1_000, "its file is read", _A_MOMENT_S)
    assert line.positions.take_room(10_001, 1, _A_MOMENT_S), "a batch larger than all room waits for nobody"
    line.publisher.stop()


def test_a_batch_that_needs_all_room_does_not_wait_for_a_refused_topic(broker: MemoryBroker, tmp_path: Path) -> None:
    """One event of a refused topic waits. A mutation with more rows than there is room for is sent alone."""
    broker.refused_topics.add(TOPIC_A)
    line = _line(broker, tmp_path)
    line.publish("a", 1)
    assert line.positions.take_room(10_001, 1, _A_MOMENT_S)
    line.publisher.stop()


def test_what_waits_for_long_is_held_however_little_it_is(broker: MemoryBroker, tmp_path: Path) -> None:
    """Otherwise the position would stand still, and no segment could be deleted."""
    broker.refused_topics.add(TOPIC_A)
    line = _line(broker, tmp_path, hold_max_s=0.5)
    line.publish("a", 1)
    wait_until(lambda: line.acknowledged() == 2, "it is held", _A_MOMENT_S)
    line.publisher.stop()


def test_when_no_topic_acknowledges_nothing_is_held(broker: MemoryBroker, tmp_path: Path) -> None:
    """The broker is the problem, so the events are better kept in the log."""
    line = _line(broker, tmp_path, hold_max_s=0.5)
    broker.silent_topics |= {TOPIC_A, TOPIC_B}
    line.publish("b", 2)
    line.publish("a", *range(5_000))
    wait_until(lambda: not getattr(line.publisher.statuses.get("ks.a"), "is_usable", True), "it is seen", _A_MOMENT_S)
    assert (line.acknowledged(), list(tmp_path.rglob("*.events"))) == (1, [])
    line.publisher.stop()


def test_a_topic_that_falls_silent_again_goes_on_where_it_was(broker: MemoryBroker, tmp_path: Path) -> None:
    """Acknowledged rounds are not sent again."""
    broker.refused_topics.add(TOPIC_A)
    line = _line(broker, tmp_path)
    line.publish("a", *range(9_000))
    wait_until(lambda: line.acknowledged() == 9_001, "it is held", _A_MOMENT_S)
    sent = 0

    class _FallsSilent(set[str]):
        def __contains__(self, topic: object) -> bool:
            nonlocal sent
            sent += topic == TOPIC_A
            return topic == TOPIC_A and sent == 4

    broker.silent_topics = _FallsSilent()
    broker.refused_topics.clear()
    wait_until(lambda: not list(tmp_path.rglob("*.events")), "it is published", 60)
    line.publisher.stop()
    positions = [event.position for payload in broker.stored[TOPIC_A][0] for event in decode_events(payload).events]
    assert sorted(set(positions)) == list(range(2, 9_002))
    assert len(positions) <= 9_000 + 2_500
    assert list(dict.fromkeys(positions)) == list(range(2, 9_002))


def test_a_topic_that_reading_waits_for_is_held_when_that_of_a_quiet_table_can_be_used(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    """The events of the other table come later in the log, so its topic was not opened yet."""
    broker.refused_topics.add(TOPIC_A)
    line = PublisherLine(broker, tmp_path, hold_max_s=1.0, room=10)
    line.tables |= {("ks", "a"), ("ks", "b"), ("ks", "c")}
    line.publisher.start()
    line.publish("a", *range(10))
    assert line.positions.take_room(1, 100, _A_MOMENT_S), "reading goes on"
    assert (sorted(broker.stored), line.metrics.topics_held) == ([TOPIC_B], 1)
    line.publisher.stop()


def test_when_the_broker_is_away_the_topics_of_quiet_tables_are_tried_one_by_one(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    """None of them can be used, so nothing is held. The events are better kept in the log."""
    broker.refused_topics |= {_topic(table) for table in "ab" + _TEN}
    line = PublisherLine(broker, tmp_path, hold_max_s=2.0, room=10)
    line.tables |= {("ks", table) for table in "ab" + _TEN}
    line.publisher.start()
    line.publish("a", *range(10))
    while "ks.b" not in line.publisher.statuses:
        assert not line.positions.take_room(1, 100, 0.2)
    assert (line.acknowledged(), list(tmp_path.rglob("*.events"))) == (0, [])
    assert len(line.publisher.statuses) <= 3
    line.publisher.stop()


def test_after_an_outage_the_first_topic_that_is_back_holds_no_other(broker: MemoryBroker, tmp_path: Path) -> None:
    """The topic of a quiet table was tried during the outage. The busy topic follows with its next attempt."""
    broker.refused_topics |= {TOPIC_A, TOPIC_B}
    line = PublisherLine(broker, tmp_path, hold_max_s=1.0, settled_s=600.0, room=10)
    line.tables |= {("ks", "a"), ("ks", "b")}
    line.publisher.start()
    line.publish("a", *range(10))
    while "ks.b" not in line.publisher.statuses:
        assert not line.positions.take_room(1, 100, 0.2)
    broker.refused_topics.remove(TOPIC_B)
    while not line.publisher.statuses["ks.b"].is_usable:
        assert not line.positions.take_room(1, 100, 0.2)
    seen = line.publisher.statuses
    wait_until(lambda: line.publisher.statuses is not seen, "another turn", _A_MOMENT_S)
    broker.refused_topics.clear()
    assert line.positions.take_room(1, 100, _A_MOMENT_S), "reading goes on"
    line.publisher.stop()
    assert (line.metrics.topics_held, broker.positions(TOPIC_A)) == (0, list(range(1, 11)))


def test_the_longer_the_broker_is_away_the_fewer_topics_of_quiet_tables_are_opened(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    """Each of them is a topic that is not needed yet, and costs a thread that tries to open it."""
    broker.refused_topics |= {_topic(table) for table in "ab" + _TEN}
    line = PublisherLine(broker, tmp_path, hold_max_s=0.5, room=10)
    line.tables |= {("ks", table) for table in "ab" + _TEN}
    began = time.monotonic()
    line.publisher.start()
    line.publish("a", *range(10))
    tried = 0
    while tried < 4:
        assert not line.positions.take_room(1, 100, 0.2)
        tried = len(line.publisher.statuses) - 1
    passed = time.monotonic() - began
    line.publisher.stop()
    assert passed >= 0.5 * (1 + 2 + 4 + 8)
