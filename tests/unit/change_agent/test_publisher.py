"""MutationPublisher: order per topic partition, packing, failures. Its broker here is an in-memory one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from uuid import UUID

import pytest

from change_agent.errors import PublishError
from change_agent.event_producers import EventProducer, OnResult
from change_agent.inflight import InflightPositions, TrackedEntry
from change_agent.metrics import AgentMetrics
from change_agent.mutation_events import EventKeys
from change_agent.node_connection import token_of
from change_agent.publisher import MutationPublisher
from change_agent.topic_lane import OutgoingEvent, Packing
from schemas.cql_type import NativeType
from schemas.mutation_event import MutationEvent, MutationKind, decode_events
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata
from schemas.topics import partition_of_token
from tests.events_topic import wait_until

_NODE = UUID(int=1)


def _keys(table: str) -> EventKeys:
    column = ColumnMetadata(name="k", kind=ColumnKind.PARTITION_KEY, type=NativeType("int"), position=0)
    return EventKeys(
        TableMetadata(
            keyspace="ks",
            name=table,
            table_id=UUID(int=hash(table) & 0xFFFF),
            partition_key=(column,),
            clustering_key=(),
            static_columns=(),
            regular_columns=(),
            cdc=True,
        )
    )


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

    def positions(self, topic: str, partition: int = 0) -> list[int]:
        return [event.position for payload in self.stored[topic][partition] for event in decode_events(payload).events]


class _Producer:
    def __init__(self, broker: _Broker, stored: list[bytes]) -> None:
        self._broker, self._stored = broker, stored
        self._failed = False

    def send(self, payload: bytes, key: str | None, on_result: OnResult) -> None:
        if self._broker.fail_next or self._failed:
            self._failed = True
            on_result(self._broker.fail_next.pop() if self._broker.fail_next else "AlreadyClosed")
            return
        if self._broker.holds_back:
            self._broker.held.append(on_result)
        else:
            on_result(None)
        self._stored.append(payload)
        self._broker.keys.append(key)

    def is_connected(self) -> bool:
        return self._broker.connected

    def close(self) -> None:
        self._failed = True


class _Line:
    """A publisher with a broker, and entries that are numbered as they are published."""

    def __init__(self, broker: _Broker, *, max_events: int = 1000, max_bytes: int = 262_144) -> None:
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
            node_id=lambda: _NODE,
        )
        self._tables = {name: _keys(name) for name in ("a", "b")}
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
            events.append(OutgoingEvent(self._tables[table], event, entry, 100))
        self.publisher.publish(events)

    def acknowledged(self) -> int:
        return self.positions.progress()[1].position


@pytest.fixture
def broker() -> _Broker:
    """A broker that is there and takes everything."""
    return _Broker()


@pytest.fixture
def line(broker: _Broker) -> Iterator[_Line]:
    """A running publisher."""
    made = _Line(broker)
    made.publisher.start()
    yield made
    made.publisher.stop()
    assert made.publisher.failure is None


_A = "persistent://public/default/events-ks.a"
_B = "persistent://public/default/events-ks.b"


def test_a_single_event_goes_at_once(line: _Line) -> None:
    """Nothing waits for company when it is quiet."""
    line.publish("a", 1)
    wait_until(lambda: line.acknowledged() == 1, "the event is acknowledged", 5)
    assert line.broker.positions(_A) == [1]
    assert line.positions.events == 0


def test_events_that_wait_together_travel_in_one_message(broker: _Broker) -> None:
    """Up to the limits of events and bytes, in order."""
    line = _Line(broker, max_events=100, max_bytes=5_000)
    line.publish("a", *range(120))
    line.publisher.start()
    wait_until(lambda: line.acknowledged() == 120, "all are acknowledged", 5)
    line.publisher.stop()
    assert [len(decode_events(payload).events) for payload in broker.stored[_A][0]] == [50, 50, 20]
    assert broker.positions(_A) == list(range(1, 121))


def test_one_event_a_message_has_the_rows_key(broker: _Broker) -> None:
    """The key is the Avro key in base64; packed messages have none."""
    line = _Line(broker, max_events=1)
    line.publisher.start()
    line.publish("a", 7, 8)
    wait_until(lambda: line.acknowledged() == 2, "both are acknowledged", 5)
    line.publisher.stop()
    assert broker.keys == ["AAAABw==", "AAAACA=="]


def test_a_row_goes_to_the_partition_of_its_token() -> None:
    """The rule of schemas.topics, for as many partitions as the topic has."""
    broker = _Broker(partitions=3)
    line = _Line(broker)
    line.publisher.start()
    line.publish("a", *range(30))
    wait_until(lambda: line.acknowledged() == 30, "all are acknowledged", 5)
    line.publisher.stop()
    expected: list[list[int]] = [[], [], []]
    for key in range(30):
        expected[partition_of_token(token_of(key.to_bytes(4, "big")), 3)].append(key + 1)
    assert [broker.positions(_A, partition) for partition in range(3)] == expected


def test_a_table_whose_topic_is_refused_waits_and_the_others_go_on(broker: _Broker) -> None:
    """When the topic can be used at last, its events come in order."""
    broker.refused_topics.add(_A)
    line = _Line(broker)
    line.publisher.start()
    line.publish("a", 1)
    line.publish("b", 2)
    line.publish("a", 3)
    wait_until(lambda: broker.stored.get(_B) is not None and broker.positions(_B) == [2], "b goes on", 5)
    assert line.acknowledged() == 0
    broker.refused_topics.clear()
    wait_until(lambda: line.acknowledged() == 3, "a is published", 5)
    line.publisher.stop()
    assert broker.positions(_A) == [1, 3]


def test_after_a_refused_message_everything_behind_it_goes_again_in_order(line: _Line) -> None:
    """The broker may have taken later messages already: repeated, never reordered, never dropped."""
    line.broker.holds_back = True
    line.publish("a", 1)
    wait_until(lambda: len(line.broker.held) == 1, "the first is on its way", 5)
    line.publish("a", 2)
    wait_until(lambda: len(line.broker.held) == 2, "the second is on its way", 5)
    line.publish("a", 3)
    line.broker.holds_back = False
    first, second = line.broker.held
    first("Timeout")
    second(None)
    wait_until(lambda: line.acknowledged() == 3, "all are acknowledged", 10)
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
    wait_until(lambda: line.acknowledged() == 1, "the topic is open", 5)
    line.broker.holds_back, line.broker.connected = True, False
    line.publish("a", 2)
    wait_until(lambda: len(line.broker.held) == 1, "the message is on its way", 5)
    line.broker.holds_back = False
    wait_until(lambda: line.acknowledged() == 2, "the new producer delivers", 10)
    assert line.broker.positions(_A) == [1, 2, 2]


def test_while_messages_are_on_their_way_events_gather(line: _Line) -> None:
    """Under load a message carries what came meanwhile, and no more than two small ones are on their way."""
    line.broker.holds_back = True
    for key in range(50):
        line.publish("a", key)
        time.sleep(0.001)
    wait_until(lambda: len(line.broker.held) == 2, "two messages are on their way", 5)
    line.broker.holds_back = False
    for on_result in list(line.broker.held):
        threading.Thread(target=on_result, args=(None,)).start()
    wait_until(lambda: line.acknowledged() == 50, "all are acknowledged", 5)
    assert line.broker.positions(_A) == list(range(1, 51))
    assert len(line.broker.stored[_A][0]) <= 5
