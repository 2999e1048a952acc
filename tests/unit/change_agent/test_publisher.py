"""MutationPublisher: order per topic partition, packing, failures. Its broker here is an in-memory one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from change_agent.errors import PartitionsChangedError, PublishError
from change_agent.publishing.event_producers import EventProducer, OnResult
from change_agent.publishing.held_events import holds_events
from change_agent.publishing.inflight import InflightPositions
from change_agent.publishing.outgoing import MessageHeader, OutgoingEvent, TrackedEntry
from change_agent.publishing.publisher import HoldLimits, MutationPublisher
from change_agent.publishing.topic_lane import Packing
from change_agent.reporting.metrics import AgentMetrics
from change_agent.schema.node_connection import token_of
from schemas.mutation_event import MutationEvent, MutationKind, decode_events
from schemas.topics import partition_of_token
from tests.events_topic import wait_until

_HEADERS = {
    table: MessageHeader(
        node_id=UUID(int=1), segment_id=1, keyspace="ks", table=table, table_id=UUID(int=number), key_schema='"bytes"'
    )
    for number, table in enumerate(("a", "b"))
}


class _Broker:
    """Topics as lists of payloads per partition. It may be away, refuse a topic, or keep its acknowledgements back."""

    def __init__(self, partitions: int = 1) -> None:
        self.partitions = partitions
        self.stored: dict[str, list[list[bytes]]] = {}
        self.keys: list[str | None] = []
        self.refused_topics: set[str] = set()
        self.holds_back = False
        self.fail_next: list[str] = []
        self.held: list[OnResult] = []
        self.connected = True
        self.max_message_bytes = 1_000_000
        self.changed: str | None = None
        self.opened = 0

    def open(self, topic: str) -> list[EventProducer]:
        if topic in self.refused_topics:
            raise PublishError(topic, "is refused")
        stored = self.stored.setdefault(topic, [[] for _ in range(self.partitions)])
        self.opened += 1
        return [_Producer(self, partition) for partition in stored]

    def open_partition(self, topic: str, index: int) -> EventProducer:
        if topic in self.refused_topics:
            raise PublishError(topic, "is refused")
        self.opened += 1
        return _Producer(self, self.stored[topic][index])

    def check(self, topic: str) -> None:
        if self.changed is not None:
            raise PartitionsChangedError(topic, self.changed)

    def positions(self, topic: str, partition: int = 0) -> list[int]:
        return [event.position for payload in self.stored[topic][partition] for event in decode_events(payload).events]


class _Producer:
    def __init__(self, broker: _Broker, stored: list[bytes]) -> None:
        self._broker, self._stored = broker, stored
        self._failed = False

    def send(self, payload: bytes, key: str | None, on_result: OnResult) -> bool:
        if len(payload) > self._broker.max_message_bytes:
            return False
        if self._broker.fail_next or self._failed:
            self._failed = True
            on_result(self._broker.fail_next.pop() if self._broker.fail_next else "AlreadyClosed")
            return True
        if self._broker.holds_back:
            self._broker.held.append(on_result)
        else:
            on_result(None)
        self._stored.append(payload)
        self._broker.keys.append(key)
        return True

    def is_connected(self) -> bool:
        return self._broker.connected

    def close(self) -> None:
        self._failed = True


class _Line:
    """A publisher with a broker, and entries that are numbered as they are published."""

    def __init__(
        self,
        broker: _Broker,
        held: Path,
        *,
        max_events: int = 1000,
        max_bytes: int = 262_144,
        hold_events: int = 100_000,
        max_held_bytes: int = 1_000_000,
        check_s: float = 60.0,
    ) -> None:
        self.broker = broker
        self.positions = InflightPositions(max_events=10_000, max_bytes=10_000_000)
        self.positions.open(1, 0)
        self.metrics = AgentMetrics()
        self.publisher = MutationPublisher(
            broker,
            self.positions,
            self.metrics,
            topic_prefix="events-",
            packing=Packing(max_events=max_events, max_bytes=max_bytes),
            held_directory=held,
            hold_limits=HoldLimits(events=hold_events, bytes=10_000_000, seconds=0, max_held_bytes=max_held_bytes),
            check_s=check_s,
        )
        self._position = 0

    def publish(self, table: str, *keys: int) -> None:
        events = []
        for key in keys:
            self._position += 1
            entry = TrackedEntry(1, self._position, 1)
            data = key.to_bytes(4, "big")
            event = MutationEvent(
                position=self._position,
                ordinal=0,
                kind=MutationKind.ROW,
                key=data,
                partition_key=data,
                digest=b"d" * 16,
            )
            assert self.positions.take_room(1, 100, 1)
            self.positions.track([entry])
            events.append(OutgoingEvent(_HEADERS[table], event, entry, 100))
        self.publisher.publish(events)

    def acknowledged(self) -> int:
        return self.positions.progress()[1].position


@pytest.fixture
def broker() -> _Broker:
    """A broker that is there and takes everything."""
    return _Broker()


@pytest.fixture
def line(broker: _Broker, tmp_path: Path) -> Iterator[_Line]:
    """A running publisher."""
    made = _Line(broker, tmp_path)
    made.publisher.start()
    yield made
    made.publisher.stop()
    assert made.publisher.failure is None


_A = "persistent://public/default/events-ks.a"
_B = "persistent://public/default/events-ks.b"


def test_a_single_event_goes_at_once(line: _Line) -> None:
    """Nothing waits for company when it is quiet."""
    line.publish("a", 1)
    wait_until(lambda: line.acknowledged() == 1, "the event is acknowledged")
    assert line.broker.positions(_A) == [1]
    assert line.positions.events == 0


def test_events_that_wait_together_travel_in_one_message(broker: _Broker, tmp_path: Path) -> None:
    """Up to the limits of events and bytes, in order."""
    line = _Line(broker, tmp_path, max_events=100, max_bytes=5_000)
    line.publish("a", *range(120))
    line.publisher.start()
    wait_until(lambda: line.acknowledged() == 120, "all are acknowledged")
    line.publisher.stop()
    assert [len(decode_events(payload).events) for payload in broker.stored[_A][0]] == [50, 50, 20]
    assert broker.positions(_A) == list(range(1, 121))


def test_one_event_a_message_has_the_rows_key(broker: _Broker, tmp_path: Path) -> None:
    """The key is the Avro key in base64; packed messages have none."""
    line = _Line(broker, tmp_path, max_events=1)
    line.publisher.start()
    line.publish("a", 7, 8)
    wait_until(lambda: line.acknowledged() == 2, "both are acknowledged")
    line.publisher.stop()
    assert broker.keys == ["AAAABw==", "AAAACA=="]


def test_a_row_goes_to_the_partition_of_its_token(tmp_path: Path) -> None:
    """The rule of schemas.topics, for as many partitions as the topic has."""
    broker = _Broker(partitions=3)
    line = _Line(broker, tmp_path)
    line.publisher.start()
    line.publish("a", *range(30))
    wait_until(lambda: line.acknowledged() == 30, "all are acknowledged")
    line.publisher.stop()
    expected: list[list[int]] = [[], [], []]
    for key in range(30):
        expected[partition_of_token(token_of(key.to_bytes(4, "big")), 3)].append(key + 1)
    assert [broker.positions(_A, partition) for partition in range(3)] == expected


def test_a_table_whose_topic_is_refused_waits_and_the_others_go_on(broker: _Broker, tmp_path: Path) -> None:
    """When the topic can be used at last, its events come in order."""
    broker.refused_topics.add(_A)
    line = _Line(broker, tmp_path)
    line.publisher.start()
    line.publish("a", 1)
    line.publish("b", 2)
    line.publish("a", 3)
    wait_until(lambda: broker.stored.get(_B) is not None and broker.positions(_B) == [2], "b goes on")
    assert line.acknowledged() == 0
    broker.refused_topics.clear()
    wait_until(lambda: line.acknowledged() == 3, "a is published")
    line.publisher.stop()
    assert broker.positions(_A) == [1, 3]


def test_after_a_refused_message_everything_behind_it_goes_again_in_order(line: _Line) -> None:
    """The broker may have taken later messages already: repeated, never reordered, never dropped."""
    line.broker.holds_back = True
    line.publish("a", 1)
    wait_until(lambda: len(line.broker.held) == 1, "the first is on its way")
    line.publish("a", 2)
    wait_until(lambda: len(line.broker.held) == 2, "the second is on its way")
    line.publish("a", 3)
    line.broker.holds_back = False
    first, second = line.broker.held
    first("Timeout")
    second(None)
    wait_until(lambda: line.acknowledged() == 3, "all are acknowledged")
    assert line.broker.positions(_A) == [1, 2, 1, 2, 3]
    assert line.metrics.send_errors == 1


def test_a_producer_that_fails_again_and_again_is_replaced_until_one_works(line: _Line) -> None:
    """Each failure makes a new producer; the message stays."""
    line.broker.fail_next = ["Timeout", "ConnectError", "UnknownError"]
    line.publish("a", 1)
    wait_until(lambda: line.acknowledged() == 1, "the event is acknowledged", 20)
    assert line.broker.opened == 4
    assert line.broker.positions(_A) == [1]


def test_a_producer_without_connection_is_replaced(line: _Line) -> None:
    """The client finds its way back by itself, but slowly; a new producer asks at once."""
    line.publish("a", 1)
    wait_until(lambda: line.acknowledged() == 1, "the topic is open")
    line.broker.holds_back, line.broker.connected = True, False
    line.publish("a", 2)
    wait_until(lambda: len(line.broker.held) == 1, "the message is on its way")
    line.broker.holds_back = False
    wait_until(lambda: line.acknowledged() == 2, "the new producer delivers")
    assert line.broker.positions(_A) == [1, 2, 2]


def test_while_messages_are_on_their_way_events_gather(line: _Line) -> None:
    """Under load a message carries what came meanwhile, and no more than two small ones are on their way."""
    line.broker.holds_back = True
    for key in range(50):
        line.publish("a", key)
        time.sleep(0.001)
    wait_until(lambda: len(line.broker.held) == 2, "two messages are on their way")
    line.broker.holds_back = False
    for on_result in list(line.broker.held):
        threading.Thread(target=on_result, args=(None,)).start()
    wait_until(lambda: line.acknowledged() == 50, "all are acknowledged")
    assert line.broker.positions(_A) == list(range(1, 51))
    assert len(line.broker.stored[_A][0]) <= 5


def _held(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _write_failures(line: _Line) -> int:
    counts = line.metrics.tables.get("ks.a")
    return 0 if counts is None else counts.write_failures


def test_a_table_that_cannot_be_published_is_held_on_disk_so_that_others_find_room(
    broker: _Broker, tmp_path: Path
) -> None:
    """What is held is durable, so the log does not wait for it; when the topic opens it comes first, and in order."""
    broker.refused_topics.add(_A)
    line = _Line(broker, tmp_path, hold_events=5, max_events=4)
    line.publisher.start()
    line.publish("b", 1)
    line.publish("a", *range(2, 12))
    wait_until(lambda: line.acknowledged() == 11 and _held(tmp_path) == ["ks.a.events"], "a is held")
    line.publish("a", 12)
    line.publish("b", 13)
    wait_until(lambda: line.acknowledged() == 13, "the log goes on")
    assert (broker.positions(_B), line.positions.events) == ([1, 13], 0)
    broker.refused_topics.clear()
    wait_until(lambda: broker.stored.get(_A) is not None and len(broker.positions(_A)) == 11, "a is published")
    line.publish("a", 14)
    wait_until(lambda: line.acknowledged() == 14 and _held(tmp_path) == [], "nothing is held any more")
    line.publisher.stop()
    assert broker.positions(_A) == [*range(2, 13), 14]


def test_what_the_disk_refuses_to_hold_waits_and_is_held_when_there_is_room(broker: _Broker, tmp_path: Path) -> None:
    """Nothing of it is acknowledged before it is durable, the publisher goes on, and order is kept."""
    held = tmp_path / "held"
    held.touch()
    broker.refused_topics.add(_A)
    line = _Line(broker, held, hold_events=5)
    line.publisher.start()
    line.publish("b", 1)
    line.publish("a", *range(2, 12))
    wait_until(lambda: _write_failures(line) > 1, "it is tried again and again")
    line.publish("b", 12)
    wait_until(lambda: broker.positions(_B) == [1, 12], "the other table goes on")
    assert (line.acknowledged(), line.publisher.failure) == (1, None)
    held.unlink()
    wait_until(lambda: line.acknowledged() == 12, "it is held")
    line.publish("a", 13)
    wait_until(lambda: line.acknowledged() == 13, "more of it is held")
    broker.refused_topics.clear()
    wait_until(lambda: _held(held) == [], "all is published")
    line.publisher.stop()
    assert broker.positions(_A) == [*range(2, 12), 13]


def test_what_the_disk_refused_to_hold_is_sent_in_order_when_its_topic_opens_first(
    broker: _Broker, tmp_path: Path
) -> None:
    """It is in memory still, in front of what came behind it."""
    held = tmp_path / "held"
    held.touch()
    broker.refused_topics.add(_A)
    line = _Line(broker, held, hold_events=5)
    line.publisher.start()
    line.publish("b", 1)
    line.publish("a", *range(2, 12))
    wait_until(lambda: _write_failures(line) > 0, "the disk refuses")
    line.publish("a", 12, 13)
    broker.refused_topics.clear()
    wait_until(lambda: line.acknowledged() == 13, "all is published")
    line.publisher.stop()
    assert (broker.positions(_A), line.positions.events, line.positions.bytes) == ([*range(2, 14)], 0, 0)


def test_an_event_that_is_too_large_waits_for_room_on_the_disk(broker: _Broker, tmp_path: Path) -> None:
    """Its place in the log is not acknowledged before it is kept; the ones behind it arrive."""
    held = tmp_path / "held"
    held.touch()
    line = _Line(broker, held)
    broker.max_message_bytes = 10
    line.publisher.start()
    line.publish("a", 1)
    wait_until(lambda: _write_failures(line) > 0, "the disk refuses")
    broker.max_message_bytes = 1_000
    line.publish("a", 2)
    wait_until(lambda: broker.positions(_A) == [2], "the one behind it arrives")
    assert (line.acknowledged(), line.publisher.failure) == (0, None)
    held.unlink()
    wait_until(lambda: line.acknowledged() == 2, "it is kept")
    line.publisher.stop()
    assert (held / "too-large" / "ks.a.events").stat().st_size > 0


def test_what_an_earlier_process_held_is_published_first(broker: _Broker, tmp_path: Path) -> None:
    """The next start sends the file before what it reads from the log."""
    broker.refused_topics.add(_A)
    first = _Line(broker, tmp_path, hold_events=5)
    first.publisher.start()
    first.publish("b", 1)
    first.publish("a", *range(2, 12))
    wait_until(lambda: first.acknowledged() == 11, "a is held")
    first.publisher.stop()
    broker.refused_topics.clear()
    second = _Line(broker, tmp_path, hold_events=5)
    second.publish("a", 100, 101)
    second.publisher.start()
    wait_until(lambda: second.acknowledged() == 2 and _held(tmp_path) == [], "all is published")
    second.publisher.stop()
    assert broker.positions(_A) == [*range(2, 12), 1, 2]


def test_a_topic_that_fails_in_mid_stream_is_held_with_what_was_on_its_way(broker: _Broker, tmp_path: Path) -> None:
    """Sent and not acknowledged, waiting, and new: all go to disk in order, and come again in order."""
    line = _Line(broker, tmp_path, hold_events=5)
    line.publisher.start()
    line.publish("b", 1)
    line.publish("a", 2)
    wait_until(lambda: line.acknowledged() == 2, "both topics are open")
    broker.refused_topics.add(_A)
    broker.fail_next = ["Timeout"]
    line.publish("a", *range(3, 13))
    wait_until(lambda: line.acknowledged() == 12, "a is held")
    line.publish("a", 13)
    wait_until(lambda: line.acknowledged() == 13, "more of it is held")
    broker.refused_topics.clear()
    wait_until(lambda: _held(tmp_path) == [], "all is published", 20)
    line.publisher.stop()
    assert broker.positions(_A) == [*range(2, 14)]


def test_when_no_topic_can_be_used_nothing_is_held(broker: _Broker, tmp_path: Path) -> None:
    """The broker is away: the log is the better place to wait in."""
    broker.refused_topics |= {_A, _B}
    line = _Line(broker, tmp_path, hold_events=5)
    line.publisher.start()
    line.publish("a", *range(1, 11))
    line.publish("b", *range(11, 21))
    time.sleep(1.5)
    assert (line.acknowledged(), _held(tmp_path)) == (0, [])
    broker.refused_topics.clear()
    wait_until(lambda: line.acknowledged() == 20, "all is published")
    line.publisher.stop()


def test_when_the_disk_has_its_share_nothing_more_is_held(broker: _Broker, tmp_path: Path) -> None:
    """Then the events wait in memory, and in the end the reader does."""
    broker.refused_topics.add(_A)
    line = _Line(broker, tmp_path, hold_events=5, max_held_bytes=100)
    line.publisher.start()
    line.publish("b", 1)
    line.publish("a", *range(2, 12))
    wait_until(lambda: line.acknowledged() == 11, "a is held")
    line.publish("a", 12)
    time.sleep(0.3)
    assert line.acknowledged() == 11
    broker.refused_topics.clear()
    wait_until(lambda: line.acknowledged() == 12, "all is published")
    line.publisher.stop()
    assert broker.positions(_A) == [*range(2, 13)]


def test_a_message_that_is_too_large_is_halved(line: _Line, broker: _Broker) -> None:
    """Every event arrives, in order, in messages that the broker takes; nobody has to set a size."""
    broker.max_message_bytes = 600
    line.publish("a", *range(40))
    wait_until(lambda: len(broker.stored.get(_A, [[]])[0]) >= 3, "the events are sent in parts")
    wait_until(lambda: broker.positions(_A) == list(range(1, 41)), "all of them")


def test_an_event_that_is_too_large_is_set_aside_and_the_others_go_on(
    line: _Line, broker: _Broker, tmp_path: Path
) -> None:
    """It is durable in a file, so that the log does not wait for it; it is counted under its table."""
    line.publish("a", 1)
    wait_until(lambda: line.acknowledged() == 1, "the first arrives")
    broker.max_message_bytes = 10
    line.publish("a", 2)
    wait_until(lambda: line.acknowledged() == 2, "the log does not wait")
    broker.max_message_bytes = 1_000
    line.publish("a", 3)
    wait_until(lambda: line.acknowledged() == 3, "the one behind it arrives")
    assert broker.positions(_A) == [1, 3]
    assert line.metrics.tables["ks.a"].events_too_large == 1
    assert (tmp_path / "too-large" / "ks.a.events").stat().st_size > 0


def test_what_was_too_large_is_tried_again_at_the_next_start(tmp_path: Path, broker: _Broker) -> None:
    """The broker may take more by then; what it takes is not kept any longer."""
    first = _Line(broker, tmp_path)
    broker.max_message_bytes = 10
    first.publisher.start()
    first.publish("a", 1)
    wait_until(lambda: first.acknowledged() == 1, "it is set aside")
    first.publisher.stop()
    broker.max_message_bytes = 1_000
    second = _Line(broker, tmp_path)
    second.publisher.start()
    wait_until(lambda: broker.positions(_A) == [1], "it arrives")
    second.publisher.stop()
    assert not (tmp_path / "too-large" / "ks.a.events").exists()


def test_a_topic_whose_partitions_changed_is_not_used_any_more(tmp_path: Path, broker: _Broker) -> None:
    """Its events are held, others go on, and the status says what to do."""
    line = _Line(broker, tmp_path, check_s=0.1)
    line.publisher.start()
    line.publish("a", 1)
    wait_until(lambda: line.acknowledged() == 1, "it is in use")
    broker.changed = "has 8 partitions and had 4"
    broker.refused_topics.add(_A)
    wait_until(lambda: not line.publisher.statuses["ks.a"].is_usable, "it is seen")
    broker.changed = None
    line.publish("a", 2)
    line.publish("b", 1)
    wait_until(lambda: line.acknowledged() == 3, "the log goes on")
    assert broker.positions(_A) == [1]
    line.publisher.stop()


def test_the_status_says_what_a_topic_was_refused_for(line: _Line, broker: _Broker) -> None:
    """Reason, attempts and what waits, by table; nothing of it when the topic takes events again."""
    broker.refused_topics.add(_A)
    line.publish("a", 1)
    line.publish("b", 1)
    wait_until(lambda: getattr(line.publisher.statuses.get("ks.a"), "attempts", 0) >= 2, "it is tried again and again")
    status = line.publisher.statuses["ks.a"]
    assert (status.topic, status.is_usable, status.waiting_events, status.problem) == (
        _A, False, 1, "is refused",
    )  # fmt: skip
    assert line.publisher.statuses["ks.b"].problem is None
    assert line.metrics.tables["ks.a"].retries >= 2
    broker.refused_topics.clear()
    wait_until(lambda: line.publisher.statuses["ks.a"].problem is None, "it recovers")


def test_held_events_that_were_damaged_on_disk_are_told_and_the_others_are_published(
    broker: _Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Held ones and those too large: neither ends the agent, nor goes without a word; the damaged file is kept."""
    broker.refused_topics.add(_A)
    first = _Line(broker, tmp_path, hold_events=5)
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
    second = _Line(broker, tmp_path, hold_events=5)
    second.publisher.start()
    wait_until(lambda: not holds_events(tmp_path), "all that can be read is published")
    second.publisher.stop()
    assert second.publisher.failure is None
    # of either file the message that is whole; what was too large goes behind what is held already
    assert broker.positions(_A) == [*range(8, 14), *range(2, 8)]
    assert second.metrics.tables["ks.a"].damaged_bytes > 0
    assert (
        sum("are damaged and cannot be published: verify the table" in each.getMessage() for each in caplog.records)
        == 2
    )
    kept = [each.relative_to(tmp_path).as_posix() for each in sorted(tmp_path.rglob("*.damaged"))]
    assert kept == ["ks.a.events.damaged", "too-large/ks.a.events.damaged"]
