"""Checkpoints: the time until which the broker has all events of a table, and the ends of its partitions then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from change_agent.positions.accounts import TrackedEntry
from change_agent.publishing.messages import Packing
from change_agent.publishing.outgoing import OutgoingEvent
from change_agent.publishing.topic_lane import TopicLane
from schemas.mutation_event import MutationEvent, MutationKind
from schemas.progress_record import UNKNOWN_POSITION, Checkpoint, TopicPosition
from tests.topics.events_topic import wait_until
from tests.unit.change_agent.memory_broker import HEADERS, TOPIC_A, MemoryBroker, PublisherLine

_TABLES = frozenset({("ks", "a"), ("ks", "b")})

Start = Callable[..., PublisherLine]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that starts a publisher.

    Several publishers use the same folder of held events, one after the other.
    """
    lines: list[PublisherLine] = []

    def make(broker: MemoryBroker, **options: float) -> PublisherLine:
        line = PublisherLine(broker, tmp_path / "held", **options)  # type: ignore[arg-type]
        lines.append(line)
        line.publisher.start()
        return line

    yield make
    for line in lines:
        line.publisher.stop()


def _wait_for(line: PublisherLine, table: str, time_ms: int) -> Checkpoint:
    def is_passed() -> bool:
        found = line.publisher.checkpoint("ks", table)
        return found is not None and found.resolved_ms == time_ms

    wait_until(is_passed, f"moment {time_ms} of {table} is passed", 20)
    found = line.publisher.checkpoint("ks", table)
    assert found is not None
    return found


def test_a_moment_waits_for_the_acknowledgements_before_it(start: Start) -> None:
    """It does not wait for later acknowledgements, or for those of other tables."""
    broker = MemoryBroker(partitions=2)
    broker.holds_back = True
    line = start(broker)
    line.publish("a", 1, 2, 3)
    wait_until(lambda: len(broker.held) == 2, "both partitions are sent to")
    line.publisher.note_moment(1000, _TABLES)
    assert _wait_for(line, "b", 1000) == Checkpoint(1000)
    assert line.publisher.checkpoint("ks", "a") is None
    broker.held.pop(0)(None)
    line.publisher.note_moment(2000, frozenset({("ks", "b")}))
    _wait_for(line, "b", 2000)
    assert line.publisher.checkpoint("ks", "a") is None
    broker.held.pop(0)(None)
    found = _wait_for(line, "a", 1000)
    assert found.positions == (TopicPosition(1, 0), TopicPosition(1, 0))


def test_a_moment_waits_for_a_topic_that_is_not_open_yet(start: Start) -> None:
    """The number of partitions is not known, so the events cannot be counted. Only a later moment is passed."""
    broker = MemoryBroker()
    broker.refused_topics = {TOPIC_A}
    line = start(broker)
    line.publish("a", 1)
    line.publisher.note_moment(1000, _TABLES)
    _wait_for(line, "b", 1000)
    assert line.publisher.checkpoint("ks", "a") is None
    broker.refused_topics.clear()
    wait_until(lambda: line.acknowledged() == 1, "the topic is open", 20)
    assert line.publisher.checkpoint("ks", "a") is None
    line.publisher.note_moment(2000, _TABLES)
    _wait_for(line, "a", 2000)


def test_a_lane_without_a_producer_knows_no_position() -> None:
    """A new Pulsar may create the topic again with ledgers from 0. No subscription would pass the old position."""
    results: list[tuple[int, str | None]] = []
    lane = TopicLane(
        Packing(max_events=9, max_bytes=999), lambda _, generation, error: results.append((generation, error))
    )
    (producer,) = MemoryBroker().open(TOPIC_A)
    lane.open(producer)
    event = MutationEvent(position=1, ordinal=0, kind=MutationKind.ROW, key=b"k", partition_key=b"k", digest=bytes(16))
    lane.waiting.add(OutgoingEvent(HEADERS["a"], event, TrackedEntry(None, 1, 1), 9))
    assert lane.send_ready() == 1
    assert lane.take_result(*results[0]) is not None
    assert lane.last_position == TopicPosition(1, 0)
    lane.stop()
    assert lane.last_position == UNKNOWN_POSITION


def test_a_moment_of_a_table_that_is_stopped_is_not_told(start: Start) -> None:
    """Some of its events are kept elsewhere."""
    line = start(MemoryBroker())
    line.publish("a", 1)
    wait_until(lambda: line.acknowledged() == 1, "the topic is open")
    line.publisher.note_moment(1000, _TABLES)
    _wait_for(line, "a", 1000)
    line.publisher.note_moment(2000, _TABLES - {("ks", "a")})
    _wait_for(line, "b", 2000)
    found = line.publisher.checkpoint("ks", "a")
    assert found is not None
    assert found.resolved_ms == 1000


def test_a_moment_is_not_passed_by_a_message_that_is_refused(start: Start) -> None:
    """The message is sent again, and then the moment is passed."""
    broker = MemoryBroker()
    line = start(broker)
    line.publish("a", 1)
    wait_until(lambda: line.acknowledged() == 1, "the topic is open")
    line.publisher.note_moment(1000, _TABLES)
    _wait_for(line, "a", 1000)
    broker.fail_next = ["Timeout", "Timeout"]
    line.publish("a", 2)
    line.publisher.note_moment(2000, _TABLES)
    assert _wait_for(line, "a", 2000).positions == (TopicPosition(1, 1),)
    assert broker.positions(TOPIC_A) == [1, 2]


def test_a_message_that_the_broker_had_already_leaves_the_position_unknown(start: Start) -> None:
    """It was sent again after a restart of the broker, and its position may be before that of an earlier message."""
    broker = MemoryBroker()
    line = start(broker)
    line.publish("a", 1)
    wait_until(lambda: line.acknowledged() == 1, "the topic is open")
    line.publisher.note_moment(1000, _TABLES)
    assert _wait_for(line, "a", 1000).positions == (TopicPosition(1, 0),)
    broker.deduplicates = True
    line.publish("a", 2)
    line.publisher.note_moment(2000, _TABLES)
    assert _wait_for(line, "a", 2000).positions in ((), (UNKNOWN_POSITION,))
    broker.deduplicates = False
    line.publish("a", 3)
    line.publisher.note_moment(3000, _TABLES)
    assert _wait_for(line, "a", 3000).positions == (TopicPosition(1, 2),)


def test_the_first_known_position_tells_where_the_unknown_ones_end(start: Start) -> None:
    """All that the broker had before is before the first message of an agent that was started again, and before the
    first one behind a message that the broker had already."""
    broker = MemoryBroker()
    before = start(broker)
    before.publish("a", 1, 2)
    wait_until(lambda: before.acknowledged() == 2, "the first agent has sent", 20)
    line = start(broker)
    line.publisher.note_moment(1000, _TABLES)
    assert _wait_for(line, "a", 1000) == Checkpoint(1000)
    assert line.publisher.first_positions("ks", "a") == ()
    stored = len(broker.stored[TOPIC_A][0])
    line.publish("a", 3)
    wait_until(lambda: line.acknowledged() == 1, "the topic is open", 20)
    line.publisher.note_moment(2000, _TABLES)
    assert _wait_for(line, "a", 2000).positions == (TopicPosition(1, stored),)
    assert line.publisher.first_positions("ks", "a") == (TopicPosition(1, stored - 1),)
    line.publish("a", 4)
    line.publisher.note_moment(3000, _TABLES)
    assert _wait_for(line, "a", 3000).positions == (TopicPosition(1, stored + 1),)
    assert line.publisher.first_positions("ks", "a") == (TopicPosition(1, stored - 1),)
    broker.deduplicates = True
    line.publish("a", 5)
    line.publisher.note_moment(4000, _TABLES)
    _wait_for(line, "a", 4000)
    assert line.publisher.first_positions("ks", "a") == (UNKNOWN_POSITION,)
    broker.deduplicates = False
    line.publish("a", 6)
    line.publisher.note_moment(5000, _TABLES)
    last = _wait_for(line, "a", 5000).positions[0]
    assert line.publisher.first_positions("ks", "a") == (TopicPosition(last.ledger, last.entry - 1),)


class _SlowBroker(MemoryBroker):
    """Answers a check of a topic when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.may_answer = threading.Event(), threading.Event()
        self.asking = threading.current_thread()

    def check_unopened(self, topic: str) -> None:
        self.asking = threading.current_thread()
        self.is_asked.set()
        assert self.may_answer.wait(20)
        super().check_unopened(topic)


def test_a_check_that_a_stop_interrupts_asks_for_no_other_topic(start: Start) -> None:
    """The connections are closed by then, so the log ended with a traceback."""
    broker = _SlowBroker()
    line = start(broker)
    line.publisher.note_moment(1000, _TABLES, _TABLES)
    assert broker.is_asked.wait(20)
    line.publisher.stop()
    broker.may_answer.set()
    broker.asking.join(20)
    assert (broker.asking.is_alive(), broker.checks) == (False, 1)


def test_a_held_table_stands_still_until_everything_is_sent(start: Start) -> None:
    """The broker does not have held events, also after a restart of the agent."""
    broker = MemoryBroker()
    line = start(broker, hold_events=1)
    line.publish("b", 1)
    line.publisher.note_moment(1000, _TABLES)
    _wait_for(line, "a", 1000)
    broker.refused_topics = {TOPIC_A}
    for key in range(3):
        line.publish("a", key)
    wait_until(lambda: "held on disk" in (line.publisher.stopped("ks", "a") or ""), "it is held", 20)
    line.publisher.note_moment(2000, _TABLES)
    _wait_for(line, "b", 2000)
    assert _wait_for(line, "a", 1000).positions == ()
    line.publisher.stop()
    again = start(broker)
    again.publisher.note_moment(3000, _TABLES)
    _wait_for(again, "b", 3000)
    assert again.publisher.checkpoint("ks", "a") is None
    broker.refused_topics = set()
    wait_until(lambda: again.publisher.stopped("ks", "a") is None, "everything is sent", 20)
    again.publisher.note_moment(4000, _TABLES)
    _wait_for(again, "a", 4000)
    assert len(broker.stored[TOPIC_A][0]) > 0


def test_an_event_that_is_too_large_stops_its_table(start: Start) -> None:
    """The event is kept on disk, and later events are published."""
    broker = MemoryBroker()
    line = start(broker)
    line.publish("a", 1)
    wait_until(lambda: line.acknowledged() == 1, "the topic is open")
    line.publisher.note_moment(1000, _TABLES)
    _wait_for(line, "a", 1000)
    broker.max_message_bytes = 10
    line.publish("a", 2)
    line.publisher.note_moment(2000, _TABLES)
    _wait_for(line, "b", 2000)
    wait_until(lambda: "larger than" in (line.publisher.stopped("ks", "a") or ""), "it is told", 20)
    broker.max_message_bytes = 1_000_000
    line.publish("a", 3)
    wait_until(lambda: line.acknowledged() == 3, "the later event is acknowledged, before another moment comes")
    assert _wait_for(line, "a", 1000).resolved_ms == 1000
    line.publisher.note_moment(3000, _TABLES)
    _wait_for(line, "b", 3000)
    assert _wait_for(line, "a", 1000).resolved_ms == 1000


def test_the_lost_topic_of_a_table_without_events_stops_it_and_is_opened(start: Start) -> None:
    """The first moment finds the loss, not a check a minute later. No moment is passed until opening has reported it.

    A topic of a table that is not on the node is ignored.
    """
    broker = MemoryBroker()
    broker.lost_topics.add(TOPIC_A)
    broker.refused_topics.add(TOPIC_A)
    line = start(broker)
    line.publisher.note_moment(1, _TABLES, frozenset({("ks", "a")}))
    wait_until(
        lambda: (line.publisher.stopped("ks", "a") or "").startswith("its events are held on disk"), "a is stopped", 20
    )
    line.publisher.note_moment(2, _TABLES, frozenset({("ks", "a")}))
    _wait_for(line, "b", 2)
    assert line.publisher.checkpoint("ks", "a") is None
    broker.refused_topics.clear()
    wait_until(lambda: line.publisher.stopped("ks", "a") is None, "the topic is made again", 20)
    line.publisher.note_moment(3, _TABLES, frozenset({("ks", "a")}))
    _wait_for(line, "a", 3)
    wait_until(lambda: [*line.publisher.statuses] == ["ks.a"], "no other one is opened")


def test_a_table_without_events_stands_still_until_its_topic_can_be_checked(start: Start) -> None:
    """The topic may have been deleted while no agent ran. The reason is shown, and the check is repeated."""
    broker = MemoryBroker()
    broker.unchecked_topics.add(TOPIC_A)
    line = start(broker)
    present = frozenset({("ks", "a"), ("ks", "b")})
    line.publisher.note_moment(1, _TABLES, present)
    reason = "its topic cannot be checked (the admin service does not answer)"
    wait_until(lambda: line.publisher.stopped("ks", "a") == reason, "a is stopped")
    checks = broker.checks
    for time_ms in range(2, 6):
        line.publisher.note_moment(time_ms, _TABLES, present)
        _wait_for(line, "b", time_ms)
        time.sleep(0.3)
    assert line.publisher.checkpoint("ks", "a") is None
    assert broker.checks <= checks + 2, "it is not checked at each moment"
    broker.lost_topics.add(TOPIC_A)
    broker.unchecked_topics.clear()
    wait_until(lambda: [*line.publisher.statuses] == ["ks.a"], "the next check finds the loss", 20)


def test_a_topic_that_was_deleted_with_its_table_is_not_made_again(start: Start) -> None:
    """The agent still knows dropped tables, because the log may have changes of them."""
    broker = MemoryBroker()
    broker.lost_topics.add(TOPIC_A)
    line = start(broker, check_s=0.1)
    line.publisher.note_moment(1, _TABLES, frozenset({("ks", "b")}))
    wait_until(lambda: line.publisher.checkpoint("ks", "a") is not None, "a is passed")
    wait_until(lambda: broker.checks > 3, "the topics were checked some times")
    assert not line.publisher.statuses
