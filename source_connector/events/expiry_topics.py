"""The expiry topics: rows wait there, in Pulsar's delayed delivery, for the second in which a part of them expires.

    DueRows -> (0.2 s) packed by second and events partition -> expiry topic ~~ delayed ~~> DueExpiries, until the second
                                                                                   '-> the key's own partition of events

One thread owns the state. The client's threads and the source's thread only put into its queue and into `DueRows`. A
message is acknowledged when the events topic has its events. So a key may be checked twice, but is never left out.

Rows that are to be stored do not wake the thread. It takes all of them every 0.2 s, because threads that wake each
other for every key cost more than the key.

Calls that wait for a broker run in threads of their own (`TopicOpenings`). So a topic that no broker serves delays only
its own keys.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from runtime.backoff import Backoff
from runtime.stage import Stage
from schemas.mutation_event import EXPIRY_SEGMENT_ID, MutationEvents
from source_connector.errors import DeploymentError
from source_connector.events.due_expiries import PROBE_S, DueExpiries
from source_connector.events.due_rows import DueRow, DueRows, divided, encode_due_rows
from source_connector.events.expiry_messages import DELIVER_AT, EXPIRY_SUBSCRIPTION, KEYS, PROBE, SECOND, TARGET
from source_connector.events.expiry_producers import ExpiryProducers
from source_connector.events.lost_expiries import LostExpiries
from source_connector.events.pulsar_access import PulsarConnection
from source_connector.events.stored_ledgers import StoredLedgers
from source_connector.events.topic_openings import TopicOpenings

if TYPE_CHECKING:
    import pulsar

__all__ = ["ExpiriesStored", "ExpiryTopics"]

_PACK_S: Final = 0.2
"""How long keys wait at most to be packed together. That delays the acknowledgement of events, but not records."""
_MOST_KEYS: Final = 1000
_MOST_BYTES: Final = 256 * 1024
_BACKOFF: Final = Backoff(0.5, 30.0)
_RECEIVER_QUEUE: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiriesStored:
    """The broker has some expiries. The functions in `then` are to be called in the source's thread."""

    then: tuple[Callable[[], None], ...]


class _Place(NamedTuple):
    """The values that all rows of one message share, such as the second in which they are due."""

    topic: str
    target: str
    second: int
    keyspace: str
    table: str
    table_id: UUID
    key_schema: str

    @property
    def key(self) -> tuple[str, int, bytes]:
        """The key in `_waiting`. It has the UUID's bytes, because they are faster to compare."""
        return self.target, self.second, self.table_id.bytes


@dataclass(slots=True)
class _Packed:
    """Keys of one message, which is sent when `due_at` has come."""

    place: _Place
    node_id: UUID
    due_at: float
    rows: list[DueRow] = field(default_factory=list)
    then: list[Callable[[], None]] = field(default_factory=list)
    failures: int = 0

    def parts(self) -> list[_Packed]:
        """Split into messages that a broker accepts. Many keys may have come while the topic could not be used."""
        return [self._part(first, end) for first, end in divided(self.rows, _MOST_KEYS, _MOST_BYTES)]

    def _part(self, first: int, end: int) -> _Packed:
        return _Packed(self.place, self.node_id, self.due_at, self.rows[first:end], self.then[first:end], self.failures)


class ExpiryTopics(Stage):
    """Owns the thread, and the consumers. `post` takes each `ExpiriesStored`, or the error that ended it.

    `time_s` is the cluster's time. The error is a DeploymentError if the broker delivers delayed messages at once.
    """

    def __init__(
        self,
        connection: PulsarConnection,
        max_known: int,
        time_s: Callable[[], float],
        post: Callable[[ExpiriesStored | Exception], None],
    ) -> None:
        super().__init__("keeper of expiries", on_failure=post)
        self._connection = connection
        self._post = post
        self._time_s = time_s
        self._steps: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.due_rows: Final = DueRows(max_known)
        """The rows that are to be stored. The source's thread adds to them."""
        self._pack_at = 0.0
        # By target, second and table.
        self._waiting: dict[tuple[str, int, bytes], _Packed] = {}
        self._topics: set[str] = set()
        self._unprobed: set[str] = set()
        self._producers: Final = ExpiryProducers(connection, time_s, self._steps.put)
        self._consumers = TopicOpenings(self._subscribe, self._steps.put, self._producers.cannot_store)
        self._ledgers: Final = StoredLedgers()
        self._due: Final = DueExpiries(self._producers, self._ledgers, time_s, self._steps.put, self._cannot_wait)
        self._lost: Final = LostExpiries(connection, self._ledgers, time_s, self._steps.put, self.due_rows.forget)

    # Called by the source's thread.

    def follow(self, topic: str) -> None:
        """Read an expiry topic from now on."""
        if not self.is_started:
            self.start()
        self._steps.put(functools.partial(self._follow, topic))

    def wake(self) -> None:
        """End the wait for a step."""
        self._steps.put(lambda: None)

    # The stage's thread.

    def run(self) -> None:
        """Run until the stop. Events whose rows are not stored by then, and held messages, are delivered again."""
        while not self.stopping.is_set():
            try:
                self._steps.get(timeout=self._wait_s())()
                for _ in range(_MOST_KEYS):
                    self._steps.get_nowait()()
            except queue.Empty:
                pass
            self._open_topics()
            self._pack()
            self._send_packed()
            self._due.forward()
            self._lost.search_if_due(self._consumers.opened)

    def _wait_s(self) -> float:
        pack_s, due_s = max(0.0, self._pack_at - time.monotonic()), self._due.wait_s()
        return pack_s if due_s is None else min(pack_s, due_s)

    def _cannot_wait(self, error: DeploymentError) -> None:
        """End with an error: the broker does not delay."""
        self._post(error)
        self.stopping.set()

    def _follow(self, topic: str) -> None:
        if topic not in self._topics:
            self._topics.add(topic)
            self._unprobed.add(topic)

    def _open_topics(self) -> None:
        """Subscribe before anything is stored, because messages that no subscription holds are deleted."""
        for topic in self._topics - self._consumers.opened.keys():
            self._consumers.get(topic)
        for topic in self._unprobed & self._consumers.opened.keys():
            producer = self._producers.ready(self._producers.stores, topic)
            if producer is not None:
                self._probe(producer)
                self._unprobed.discard(topic)

    def _subscribe(self, topic: str) -> pulsar.Consumer:
        """Open a consumer. Runs in a thread of its own."""
        import pulsar

        return self._connection.client().subscribe(
            topic,
            EXPIRY_SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=_RECEIVER_QUEUE,
            message_listener=functools.partial(self._received, topic),
        )

    def _probe(self, producer: pulsar.Producer) -> None:
        """Send an empty delayed message. If delayed delivery is off, it comes at once, and that is reported early."""
        import pulsar

        deliver_at = int(self._time_s()) + PROBE_S
        properties = {PROBE: "true", SECOND: str(deliver_at), DELIVER_AT: str(deliver_at), KEYS: "0"}
        with contextlib.suppress(pulsar.PulsarException):
            producer.send_async(b"", _ignore, properties=properties, deliver_at=deliver_at * 1000)

    def _received(self, topic: str, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        """Called in the client's thread."""
        self._steps.put(functools.partial(self._due.hold, topic, consumer, message))

    # From the source's rows to the expiry topics.

    def _pack(self) -> None:
        """Take all rows that have arrived."""
        now = time.monotonic()
        if now < self._pack_at:
            return
        self._pack_at = now + _PACK_S
        for then, topic, message, row in self.due_rows.take():
            key = message.topic, row.second, message.table_id_bytes
            packed = self._waiting.get(key)
            if packed is None:
                keyspace, table, key_schema = message.header
                place = _Place(topic, message.topic, row.second, keyspace, table, message.table_id, key_schema)
                packed = self._waiting[key] = _Packed(place=place, node_id=message.node_id, due_at=now)
            packed.rows.append(row)
            packed.then.append(then)

    def _send_packed(self) -> None:
        now = time.monotonic()
        subscribed = self._consumers.opened
        due = [each for each in self._waiting.values() if each.due_at <= now and each.place.topic in subscribed]
        not_ready: set[str] = set()
        for packed in due:
            topic = packed.place.topic
            producer = None if topic in not_ready else self._producers.ready(self._producers.stores, topic)
            if producer is None:
                not_ready.add(topic)
                continue
            del self._waiting[packed.place.key]
            parts = packed.parts()
            # If the client refuses one part, it refuses all others.
            sent = next((number for number, part in enumerate(parts) if not self._send(producer, part)), len(parts))
            for part in parts[sent + 1 :]:
                self._wait_again(part)

    def _send(self, producer: pulsar.Producer, packed: _Packed) -> bool:
        """Send the message. False if the client did not take it: then its rows wait again."""
        import pulsar

        place = packed.place
        content = MutationEvents(
            node_id=packed.node_id,
            segment_id=EXPIRY_SEGMENT_ID,
            keyspace=place.keyspace,
            table=place.table,
            table_id=place.table_id,
            key_schema=place.key_schema,
            events=(),
        )
        properties = {SECOND: str(place.second), TARGET: place.target, KEYS: str(len(packed.rows))}
        self._producers.sending(place.topic)
        try:
            then = functools.partial(self._sent, packed, producer)
            self._producers.delay(producer, place.topic, encode_due_rows(content, packed.rows), properties, then)
        except pulsar.PulsarException as error:
            self._not_stored(packed, str(error))
            return False
        return True

    def _sent(
        self,
        packed: _Packed,
        producer: pulsar.Producer,
        deliver_at: int,
        result: pulsar.Result,
        message_id: pulsar.MessageId,
    ) -> None:
        """Called in the client's thread. `producer` is kept alive by this: a freed producer gets no more answers."""
        import pulsar

        if result == pulsar.Result.Ok:
            self._steps.put(functools.partial(self._stored, packed, message_id.ledger_id(), deliver_at))
        else:
            self._steps.put(functools.partial(self._not_stored, packed, str(result)))

    def _stored(self, packed: _Packed, ledger_id: int, deliver_at: int) -> None:
        self._producers.answered(packed.place.topic)
        self._ledgers.stored(packed.place.topic, ledger_id, deliver_at)
        self._post(ExpiriesStored(then=tuple(packed.then)))

    def _not_stored(self, packed: _Packed, reason: str) -> None:
        packed.failures += 1
        topic = packed.place.topic
        self._producers.answered(topic)
        text = f"{topic}: does not take {len(packed.rows)} expiries, which are tried again; their events wait: {reason}"
        self._producers.say(topic, text)
        self._producers.stores.drop(topic)
        packed.due_at = time.monotonic() + _BACKOFF.pause_s(packed.failures)
        self._wait_again(packed)

    def _wait_again(self, packed: _Packed) -> None:
        waiting = self._waiting.get(packed.place.key)
        if waiting is not None:
            packed.rows += waiting.rows
            packed.then += waiting.then
            packed.failures = max(packed.failures, waiting.failures)
            packed.due_at = max(packed.due_at, waiting.due_at)
        self._waiting[packed.place.key] = packed


def _ignore(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
    """Take the answer to a probe. It does not matter."""
