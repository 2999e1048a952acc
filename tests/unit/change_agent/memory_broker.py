"""A broker in memory, and a publisher that sends entries to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from change_agent.errors import PartitionsChangedError, PublishError, TopicLostError
from change_agent.metrics import AgentMetrics
from change_agent.positions.accounts import TrackedEntry
from change_agent.positions.inflight import InflightPositions, Place
from change_agent.publishing.dropped_tables import DroppedTables
from change_agent.publishing.event_producers import EventProducer, OnResult
from change_agent.publishing.hold_limits import HoldLimits
from change_agent.publishing.messages import Packing
from change_agent.publishing.outgoing import MessageHeader, OutgoingEvent
from change_agent.publishing.publisher import MutationPublisher
from schemas.mutation_event import MutationEvent, MutationKind, decode_events
from schemas.progress_record import UNKNOWN_POSITION, TopicPosition
from tests.topics.events_topic import wait_until

__all__ = ["HEADERS", "TOPIC_A", "TOPIC_B", "AcknowledgingProducer", "MemoryBroker", "PublisherLine"]

HEADERS = {
    table: MessageHeader(
        node_id=UUID(int=1), segment_id=1, keyspace="ks", table=table, table_id=UUID(int=number), key_schema='"bytes"'
    )
    for number, table in enumerate("abcdefghijklmnop")
}
TOPIC_A = "persistent://public/default/events-ks.a"
TOPIC_B = "persistent://public/default/events-ks.b"


class MemoryBroker:
    """Topics as lists of payloads by partition. The broker may be away, refuse a topic, or keep back acknowledgements.

    It accepts the messages of `silent_topics`, but neither stores nor acknowledges them.
    """

    def __init__(self, partitions: int = 1) -> None:
        self.partitions = partitions
        self.stored: dict[str, list[list[bytes]]] = {}
        self.keys: list[str | None] = []
        self.refused_topics: set[str] = set()
        self.silent_topics: set[str] = set()
        self.holds_back = False
        self.deduplicates = False
        self.fail_next: list[str] = []
        self.held: list[OnResult] = []
        self.connected = True
        self.max_message_bytes = 1_000_000
        self.changed: str | None = None
        self.lost_topics: set[str] = set()
        self.unchecked_topics: set[str] = set()
        """Topics of which no check is answered."""
        self.checks = 0
        self.places: dict[str, Place | None] = {}
        """The place that was passed to the last check of each topic."""
        self.unsafe: dict[str, tuple[str, ...]] = {}
        self.opened = 0

    def open(self, topic: str) -> list[EventProducer]:
        if topic in self.refused_topics:
            raise PublishError(topic, "is refused")
        stored = self.stored.setdefault(topic, [[] for _ in range(self.partitions)])
        self.opened += 1
        return [_Producer(self, topic, partition) for partition in stored]

    def has_topic(self, topic: str) -> bool:
        return topic in self.stored

    def open_partition(self, topic: str, index: int) -> EventProducer:
        if topic in self.refused_topics:
            raise PublishError(topic, "is refused")
        self.opened += 1
        return _Producer(self, topic, self.stored[topic][index])

    def check(self, topic: str, place: Place | None) -> None:
        self.places[topic] = place
        if topic in self.unchecked_topics:
            raise PublishError(topic, "the admin service does not answer")
        if topic in self.lost_topics:
            raise TopicLostError(topic, "does not exist")
        if self.changed is not None:
            raise PartitionsChangedError(topic, self.changed)

    def check_unopened(self, topic: str) -> None:
        self.checks += 1
        self.check(topic, None)

    def end_checks(self) -> None:
        return

    def hazards(self, topic: str) -> tuple[str, ...]:
        return self.unsafe.get(topic, ())

    def positions(self, topic: str, partition: int = 0) -> list[int]:
        return [event.position for payload in self.stored[topic][partition] for event in decode_events(payload).events]


class _Producer:
    def __init__(self, broker: MemoryBroker, topic: str, stored: list[bytes]) -> None:
        self._broker, self._topic, self._stored = broker, topic, stored
        self._failed = self._is_silent = False
        self.last_position = UNKNOWN_POSITION

    def send(self, payload: bytes, key: str | None, on_result: OnResult) -> bool:
        if len(payload) > self._broker.max_message_bytes:
            return False
        if self._broker.fail_next or self._failed:
            self._failed = True
            on_result(self._broker.fail_next.pop() if self._broker.fail_next else "AlreadyClosed")
            return True
        # No message is acknowledged before an earlier message of its producer.
        self._is_silent = self._is_silent or self._topic in self._broker.silent_topics
        if self._is_silent:
            return True
        # A broker with deduplication returns no position for a message that it has already stored.
        position = UNKNOWN_POSITION if self._broker.deduplicates else TopicPosition(1, len(self._stored))

        def acknowledge(error: str | None) -> None:
            if error is None:
                self.last_position = position
            on_result(error)

        if self._broker.holds_back:
            self._broker.held.append(acknowledge)
        else:
            acknowledge(None)
        self._stored.append(payload)
        self._broker.keys.append(key)
        return True

    def is_connected(self) -> bool:
        return self._broker.connected

    def close(self) -> None:
        self._failed = True


class AcknowledgingProducer:
    """A producer that passes each payload to `take`, and acknowledges it at once."""

    last_position = UNKNOWN_POSITION

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take

    def send(self, payload: bytes, key: str | None, on_result: OnResult) -> bool:
        self._take(payload)
        on_result(None)
        return True

    def is_connected(self) -> bool:
        return True

    def close(self) -> None:
        """There is nothing to close."""


class PublisherLine:
    """A publisher with a broker. Each published entry gets the next number as its position."""

    def __init__(
        self,
        broker: MemoryBroker,
        held: Path,
        *,
        max_events: int = 1000,
        max_bytes: int = 262_144,
        hold_events: int = 100_000,
        max_held_bytes: int = 1_000_000,
        check_s: float = 60.0,
        answer_s: float = 10.0,
        hold_s: float = 0.0,
        hold_max_s: float = 90.0,
        settled_s: float = 0.0,
        room: int = 10_000,
        dropped: DroppedTables | None = None,
    ) -> None:
        self.broker = broker
        self.positions = InflightPositions(max_events=room, max_bytes=10_000_000)
        self.positions.open(1, 0)
        self.metrics = AgentMetrics()
        self.tables: set[tuple[str, str]] = set()
        """The tables that exist on the node."""
        self.damage: list[tuple[str, str]] = []
        """Tables whose held events were lost, with the reasons."""
        self.publisher = MutationPublisher(
            broker,
            self.positions,
            self.metrics,
            topic_prefix="events-",
            packing=Packing(max_events=max_events, max_bytes=max_bytes),
            held_directory=held,
            hold_limits=HoldLimits(
                events=hold_events,
                bytes=10_000_000,
                seconds=hold_s,
                max_held_bytes=max_held_bytes,
                max_seconds=hold_max_s,
                answer_s=answer_s,
                settled_s=settled_s,
            ),
            check_s=check_s,
            tables=lambda: self.tables,
            on_damage=lambda table, reason: self.damage.append((table, reason)),
            dropped=dropped,
        )
        self.position = 0

    def publish(self, table: str, *keys: int) -> None:
        events = []
        for key in keys:
            self.position += 1
            entry = TrackedEntry(1, self.position, 1)
            data = key.to_bytes(4, "big")
            event = MutationEvent(
                position=self.position,
                ordinal=0,
                kind=MutationKind.ROW,
                key=data,
                partition_key=data,
                digest=b"d" * 16,
            )
            assert self.positions.take_room(1, 100, 1)
            self.positions.track([entry])
            events.append(OutgoingEvent(HEADERS[table], event, entry, 100))
        self.publisher.publish(events)

    def start_with_a_held(self) -> None:
        """Refuse the topic of table a, and start: its ten events are held, and one of table b is published."""
        self.broker.refused_topics.add(TOPIC_A)
        self.publisher.start()
        self.publish("b", 1)
        self.publish("a", *range(2, 12))
        wait_until(lambda: self.acknowledged() == 11, "a is held")

    def start_with_a_failing(self, error: str) -> None:
        """Start and publish an event of each of the tables a and b. Then a's topic fails, and gets ten more events."""
        self.publisher.start()
        self.publish("b", 1)
        self.publish("a", 2)
        wait_until(lambda: self.acknowledged() == 2, "both topics are open")
        self.broker.refused_topics.add(TOPIC_A)
        self.broker.fail_next = [error]
        self.publish("a", *range(3, 13))

    def acknowledged(self) -> int:
        return self.positions.progress()[1].position

    def write_failures(self) -> int:
        """How often the disk refused to hold events of table a."""
        counts = self.metrics.tables.get("ks.a")
        return 0 if counts is None else counts.write_failures
