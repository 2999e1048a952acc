"""The expiry topics: rows wait there, in Pulsar's delayed delivery, for the second in which a part of them expires.

    DueRows -> (0.2 s) packed by second and events partition -> expiry topic ~~ delayed ~~> held until the second has come
                                                                                   '-> the key's own partition of events

A message of an expiry topic holds a message for the events topic as it will be published there, and properties:
`second` (when it is due), `deliver_at` (when the broker is to deliver it), `target` (the topic partition), `keys` (how
many). One thread owns the state. The client's threads and the source's thread only put into its queue and into
`DueRows`. A message is acknowledged when the events topic has its events. So a key may be checked twice, but is never
left out.

A message that is due in more than ten days is delivered and stored again every ten days, because a ledger stays on the
bookies until all of its messages are acknowledged.

Rows that are to be stored do not wake the thread. It takes all of them every 0.2 s, because threads that wake each
other for every key cost more than the key.

Calls that wait for a broker run in threads of their own (`TopicOpenings`). So a topic that no broker serves delays only
its own keys.

The module is somewhat longer than 600 lines, because one thread owns all states of a key: stored, waiting, held.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from runtime.backoff import Backoff
from runtime.notices import Notices
from runtime.stage import Stage
from schemas.mutation_event import EXPIRY_SEGMENT_ID, MUTATION_EVENTS_SCHEMA_TEXT, MutationEvents
from source_connector.errors import DeploymentError
from source_connector.events.due_rows import DueRow, DueRows, divided, encode_due_rows
from source_connector.events.pulsar_access import PulsarConnection, PulsarOptions, new_client, schema_of_bytes
from source_connector.events.stored_ledgers import Ledgers, StoredLedgers
from source_connector.events.topic_openings import TopicOpenings

if TYPE_CHECKING:
    import pulsar

__all__ = ["EXPIRY_SUBSCRIPTION", "ExpiriesStored", "ExpiryTopics", "WaitingExpiries", "waiting_expiries"]

_log = logging.getLogger(__name__)

EXPIRY_SUBSCRIPTION: Final = "expiry"
_PACK_S: Final = 0.2
"""How long keys wait at most to be packed together. That delays the acknowledgement of events, but not records."""
_MOST_KEYS: Final = 1000
_MOST_BYTES: Final = 256 * 1024
# Brokers deliver up to a tick (1 s) early or late. A message that comes early is held here.
_EARLIER_S: Final = 1
_BEHIND_S: Final = 0.05
_LONGEST_DELAY_S: Final = 10 * 86_400
# After 50,000 messages whose times only increase, a broker stops reading ahead, because it assumes that all delays are
# equal (delayedDeliveryFixedDelayDetectionLookahead). A later message that is due sooner would come late. So one
# message of 500 is requested early.
_EARLY_ONE_OF: Final = 500
_OUT_OF_ORDER_S: Final = 30
_TOO_EARLY_S: Final = 60
_PROBE_S: Final = 180
# A message that comes within this time after it was stored came at once. The clocks of broker and Cassandra may differ.
_AT_ONCE_S: Final = 30
# No clock is wrong by so much. If delayed delivery was switched off later, old messages come that early.
_EARLIEST_S: Final = 3600
_SEARCH_S: Final = 10.0
_FIRST_MESSAGE_MS: Final = 10_000
_HINT_S: Final = 30.0
_MOST_HELD: Final = 200
# The client blocks a send while 1000 messages of the producer have no answer.
_MOST_IN_FLIGHT: Final = 900
_BACKOFF: Final = Backoff(0.5, 30.0)
_RECEIVER_QUEUE: Final = 50
_SECOND, _DELIVER_AT, _TARGET, _KEYS, _PROBE = "second", "deliver_at", "target", "keys", "probe"


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


@dataclass(slots=True)
class _Held:
    """A message of an expiry topic that is not acknowledged yet."""

    topic: str
    consumer: pulsar.Consumer
    message: pulsar.Message
    properties: Mapping[str, str]
    failures: int = 0

    @property
    def second(self) -> int:
        return int(self.properties[_SECOND])


class ExpiryTopics(Stage):
    """Owns the thread, the consumers and the producers. `post` takes each `ExpiriesStored`, or the error that ended it.

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
        self._held: list[tuple[float, int, _Held]] = []
        # By expiry topic: the number of held messages. Each topic has its own limit, so no table delays another one.
        self._held_of: Counter[str] = Counter()
        self._paused: dict[str, pulsar.Consumer] = {}
        self._numbers = itertools.count()
        self._topics: set[str] = set()
        self._unprobed: set[str] = set()
        self._consumers = TopicOpenings(self._subscribe, self._steps.put, self._cannot_store)
        # Producers of the expiry topics, and of the partitions of the events topics.
        self._stores = TopicOpenings(self._open_store, self._steps.put, self._cannot_store)
        self._targets = TopicOpenings(self._open_target, self._steps.put, self._cannot_forward)
        self._in_flight: Counter[str] = Counter()
        self._ledgers = StoredLedgers()
        # By expiry topic: how many messages were stored, and the latest time at which one of them is to be delivered.
        self._delayed: dict[str, tuple[int, int]] = {}
        self._next_search = 0.0
        self._is_searching = False
        self._unchecked = Notices(_log, again_after_s=None)
        self._notices = Notices(_log)
        self._next_hint = 0.0
        self._last_hint = ""

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
            self._forward_due()
            self._find_topics()

    def _wait_s(self) -> float:
        wait_s = max(0.0, self._pack_at - time.monotonic())
        if self._held:
            wait_s = min(wait_s, max(0.0, self._held[0][0] - self._time_s()))
        return wait_s

    def _follow(self, topic: str) -> None:
        if topic not in self._topics:
            self._topics.add(topic)
            self._unprobed.add(topic)

    def _open_topics(self) -> None:
        """Subscribe before anything is stored, because messages that no subscription holds are deleted."""
        for topic in self._topics - self._consumers.opened.keys():
            self._consumers.get(topic)
        for topic in self._unprobed & self._consumers.opened.keys():
            producer = self._ready(self._stores, topic)
            if producer is not None:
                self._probe(producer)
                self._unprobed.discard(topic)

    def _subscribe(self, topic: str) -> pulsar.Consumer:
        """Open a consumer. Runs in a thread of its own, like the next two methods."""
        import pulsar

        return self._connection.client().subscribe(
            topic,
            EXPIRY_SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=_RECEIVER_QUEUE,
            message_listener=functools.partial(self._received, topic),
        )

    def _open_store(self, topic: str) -> pulsar.Producer:
        import pulsar

        # Events of one second have most bytes in common.
        return self._connection.client().create_producer(
            topic,
            batching_enabled=False,
            block_if_queue_full=True,
            compression_type=pulsar.CompressionType.LZ4,
        )

    def _open_target(self, topic: str) -> pulsar.Producer:
        schema = schema_of_bytes("AVRO", "MutationEvents", MUTATION_EVENTS_SCHEMA_TEXT)
        return self._connection.client().create_producer(
            topic, schema=schema, batching_enabled=False, block_if_queue_full=True
        )

    def _ready(self, producers: TopicOpenings[pulsar.Producer], topic: str) -> pulsar.Producer | None:
        """The topic's producer; None while a send could block, because it is not open or has too much in flight."""
        return None if self._in_flight[topic] >= _MOST_IN_FLIGHT else producers.get(topic)

    def _cannot_store(self, topic: str, error: Exception) -> None:
        import pulsar

        what = f"{topic}: expiries cannot be stored, so events of rows that expire wait: {error}"
        if isinstance(error, pulsar.ConsumerBusy):
            what += f"; its subscription {EXPIRY_SUBSCRIPTION} has to be of the type Shared, the only one that delays"
        self._cannot_open(topic, what, error)

    def _cannot_forward(self, topic: str, error: Exception) -> None:
        what = f"{topic}: does not take the events of rows that expired, which are tried again: {error}"
        self._cannot_open(topic, what, error)

    def _cannot_open(self, topic: str, what: str, error: Exception) -> None:
        import pulsar

        if not isinstance(error, pulsar.PulsarException):
            raise error
        self._notices.say(topic, what, self._hint)

    def _hint(self) -> str:
        """A hint for all topics. It is kept for a while, because it may take seconds to find."""
        if time.monotonic() >= self._next_hint:
            self._last_hint = self._connection.hint()
            self._next_hint = time.monotonic() + _HINT_S
        return self._last_hint

    def _probe(self, producer: pulsar.Producer) -> None:
        """Send an empty delayed message. If delayed delivery is off, it comes at once, and that is reported early."""
        import pulsar

        deliver_at = int(self._time_s()) + _PROBE_S
        properties = {_PROBE: "true", _SECOND: str(deliver_at), _DELIVER_AT: str(deliver_at), _KEYS: "0"}
        with contextlib.suppress(pulsar.PulsarException):
            producer.send_async(b"", _ignore, properties=properties, deliver_at=deliver_at * 1000)

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
            producer = None if topic in not_ready else self._ready(self._stores, topic)
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
        properties = {_SECOND: str(place.second), _TARGET: place.target, _KEYS: str(len(packed.rows))}
        self._in_flight[place.topic] += 1
        try:
            then = functools.partial(self._sent, packed, producer)
            self._delay(producer, place.topic, encode_due_rows(content, packed.rows), properties, then)
        except pulsar.PulsarException as error:
            self._not_stored(packed, str(error))
            return False
        return True

    def _delay(
        self,
        producer: pulsar.Producer,
        topic: str,
        data: bytes,
        properties: dict[str, str],
        then: Callable[[int, pulsar.Result, pulsar.MessageId], None],
    ) -> None:
        """Send a message that the broker is to deliver later. The first argument of `then` is the delivery time."""
        now_s = int(self._time_s())
        deliver_at = min(max(int(properties[_SECOND]) - _EARLIER_S, now_s), now_s + _LONGEST_DELAY_S)
        deliver_at = self._out_of_order(topic, deliver_at, now_s)
        sent = properties | {_DELIVER_AT: str(deliver_at)}
        answered = functools.partial(then, deliver_at)
        producer.send_async(data, answered, properties=sent, deliver_at=deliver_at * 1000)

    def _out_of_order(self, topic: str, deliver_at: int, now_s: int) -> int:
        """When the broker is to deliver a message. One of many comes early, and is held here until it is due."""
        count, latest = self._delayed.get(topic, (0, 0))
        self._delayed[topic] = count + 1, max(latest, deliver_at)
        if (count + 1) % _EARLY_ONE_OF:
            return deliver_at
        return max(now_s, min(deliver_at, latest - _OUT_OF_ORDER_S))

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
        self._in_flight[packed.place.topic] -= 1
        self._ledgers.stored(packed.place.topic, ledger_id, deliver_at)
        self._post(ExpiriesStored(then=tuple(packed.then)))

    def _not_stored(self, packed: _Packed, reason: str) -> None:
        packed.failures += 1
        topic = packed.place.topic
        self._in_flight[topic] -= 1
        text = f"{topic}: does not take {len(packed.rows)} expiries, which are tried again; their events wait: {reason}"
        self._notices.say(topic, text, self._hint)
        self._stores.drop(topic)
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

    # From the expiry topics to the events topics.

    def _received(self, topic: str, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        """Called in the client's thread."""
        self._steps.put(functools.partial(self._hold, topic, consumer, message))

    def _hold(self, topic: str, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        properties = message.properties()
        now_s = self._time_s()
        numbers = [properties.get(name, "") for name in (_SECOND, _DELIVER_AT)]
        if not all(map(str.isdecimal, numbers)) or not (properties.get(_PROBE) or properties.get(_TARGET)):
            self._notices.say(
                "foreign",
                f"{topic}: message {message.message_id()} is of somebody else, and is left out; find out who writes there",
            )
            _acknowledge(consumer, message)
            return
        deliver_at = int(properties[_DELIVER_AT])
        early_s = deliver_at - now_s
        is_new = time.time() - message.publish_timestamp() / 1000 < _AT_ONCE_S
        if early_s > _EARLIEST_S or (is_new and early_s > _PROBE_S - _AT_ONCE_S):
            self._cannot_wait(topic)
            return
        if properties.get(_PROBE):
            _acknowledge(consumer, message)
            return
        held = _Held(topic=topic, consumer=consumer, message=message, properties=properties)
        if early_s > _TOO_EARLY_S:
            self._notices.say(
                "early",
                f"{topic}: a message came {early_s:.0f} s before its time, and waits here: the broker's clock is ahead of "
                "Cassandra's, or a node's clock is behind; set the clocks",
            )
        # Keys that are due much later were delivered now, so that old ledgers can be deleted.
        from_s = max(now_s, deliver_at)
        at_s = from_s if held.second - from_s > _TOO_EARLY_S else held.second + _BEHIND_S
        self._hold_until(held, at_s)
        self._held_of[topic] += 1
        if self._held_of[topic] > _MOST_HELD and topic not in self._paused:
            self._paused[topic] = consumer
            consumer.pause_message_listener()

    def _cannot_wait(self, topic: str) -> None:
        """End with an error: the broker does not delay. Nothing is acknowledged, so the messages stay until it does."""
        self._post(
            DeploymentError(
                f"expiry.publish: {topic}: the broker delivers delayed messages at once; set delayedDeliveryEnabled=true in "
                "its broker.conf, or allow it by `pulsar-admin namespaces set-delayed-delivery --enable`, or set expiry.publish to "
                "false (a broker whose clock is minutes ahead of Cassandra's does the same: set the clocks)"
            )
        )
        self.stopping.set()

    def _hold_until(self, held: _Held, at_s: float) -> None:
        heapq.heappush(self._held, (at_s, next(self._numbers), held))

    def _forward_due(self) -> None:
        now_s = self._time_s()
        while self._held and self._held[0][0] <= now_s:
            _, _, held = heapq.heappop(self._held)
            self._forward(held, now_s)

    def _forward(self, held: _Held, now_s: float) -> None:
        """Send a held message to the events topic. If it is due much later, send it to the expiry topic again."""
        import pulsar

        is_early = held.second - now_s > _TOO_EARLY_S
        producers, to = (self._stores, held.topic) if is_early else (self._targets, held.properties[_TARGET])
        producer = self._ready(producers, to)
        if producer is None:
            self._hold_until(held, now_s + producers.wait_s(to))
            return
        self._in_flight[to] += 1
        then = functools.partial(self._forwarded, held, producers, producer, to)
        try:
            if is_early:
                own = {name: held.properties[name] for name in (_SECOND, _TARGET, _KEYS)}
                self._delay(producer, to, held.message.data(), own, then)
            else:
                producer.send_async(held.message.data(), functools.partial(then, None))
        except pulsar.PulsarException as error:
            self._not_forwarded(held, producers, to, str(error))

    def _forwarded(
        self,
        held: _Held,
        producers: TopicOpenings[pulsar.Producer],
        producer: pulsar.Producer,
        to: str,
        deliver_at: int | None,
        result: pulsar.Result,
        message_id: pulsar.MessageId,
    ) -> None:
        """Called in the client's thread, like `_sent`. `deliver_at` is None for a message to an events topic."""
        import pulsar

        if result == pulsar.Result.Ok:
            if deliver_at is not None:
                self._steps.put(functools.partial(self._ledgers.stored, to, message_id.ledger_id(), deliver_at))
            self._steps.put(functools.partial(self._taken, held, to))
        else:
            self._steps.put(functools.partial(self._not_forwarded, held, producers, to, str(result)))

    def _taken(self, held: _Held, to: str) -> None:
        self._in_flight[to] -= 1
        _acknowledge(held.consumer, held.message)
        self._held_of[held.topic] -= 1
        if held.topic in self._paused and self._held_of[held.topic] < _MOST_HELD // 2:
            self._paused.pop(held.topic).resume_message_listener()

    def _not_forwarded(self, held: _Held, producers: TopicOpenings[pulsar.Producer], to: str, reason: str) -> None:
        self._in_flight[to] -= 1
        held.failures += 1
        text = f"{to}: does not take the events of {held.properties[_KEYS]} rows that expired, which are tried again: {reason}"
        self._notices.say(to, text, self._hint)
        producers.drop(to)
        self._hold_until(held, self._time_s() + _BACKOFF.pause_s(held.failures))

    def _find_topics(self) -> None:
        """Look for topics that were deleted. Such a topic comes back without the keys that waited there."""
        now = time.monotonic()
        if now < self._next_search or self._is_searching:
            return
        self._next_search, self._is_searching = now + _SEARCH_S, True
        stored = [
            (topic, consumer, ledgers)
            for topic, consumer in self._consumers.opened.items()
            if (ledgers := self._ledgers.waiting(topic, self._time_s())) is not None
        ]
        threading.Thread(target=self._search, args=(stored,), name="seeker of expiry topics", daemon=True).start()

    def _search(self, topics: Sequence[tuple[str, pulsar.Consumer, Ledgers]]) -> None:
        """Runs in a thread of its own, because a topic that no broker serves takes half a minute."""
        import pulsar

        try:
            for topic, consumer, ledgers in topics:
                try:
                    last = consumer.get_last_message_id().ledger_id()
                    first = self._first_ledger(topic, last, ledgers)
                    if first is not None:
                        self._steps.put(functools.partial(self._found, topic, first, last))
                except (pulsar.AuthorizationError, pulsar.NotAllowedError) as error:
                    self._steps.put(functools.partial(self._cannot_check, topic, error))
                except pulsar.PulsarException as error:
                    # The broker may be down, which is reported when something is stored, or the topic has partitions.
                    _log.debug("%s cannot be checked: %s", topic, error)
        finally:
            self._steps.put(self._search_is_over)

    def _first_ledger(self, topic: str, last: int, ledgers: Ledgers) -> int | None:
        """The topic's first ledger. Of an empty topic, it would be behind all that were written. None: nothing is new."""
        import pulsar

        if last < ledgers.oldest:
            return ledgers.newest + 1
        if last in (ledgers.oldest, ledgers.checked):
            return None
        # A reader gets delayed messages at once.
        reader = self._connection.client().create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=1)
        with contextlib.closing(reader):
            if not reader.has_message_available():
                return None
            first: int = reader.read_next(timeout_millis=_FIRST_MESSAGE_MS).message_id().ledger_id()
            return first

    def _search_is_over(self) -> None:
        self._is_searching = False

    def _cannot_check(self, topic: str, error: Exception) -> None:
        self._unchecked.say(
            topic,
            f"{topic}: the connector may subscribe to it, but not look at its messages ({error}): if it is deleted or"
            " emptied, nothing will say that its rows are not published when they expire; allow the connector's role to"
            " consume from it with any subscription (pulsar-admin namespaces grant-permission --actions consume,produce)",
        )

    def _found(self, topic: str, first: int, last: int) -> None:
        """Report a topic that has lost a ledger in which keys wait. The topic may have new keys already."""
        self._unchecked.clear(topic, f"{topic}: the connector may look at its messages now")
        if not self._ledgers.found(topic, first, last, self._time_s()):
            return
        self.due_rows.forget()
        table = topic.rpartition("expiry-")[2]
        _log.error(
            "%s was deleted or emptied: rows whose expiry waited there are not published when they go; "
            "`cdc spark backfill --table %s` lets all of them wait again",
            topic,
            table,
        )


def _acknowledge(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
    """Acknowledge. If that does not reach the broker, the message comes again, and its keys are checked once more."""
    import pulsar

    with contextlib.suppress(pulsar.PulsarException):
        consumer.acknowledge(message)


def _ignore(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
    """Take the answer to a probe. It does not matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingExpiries:
    """How many keys wait, in how many messages and bytes, and until which second since the epoch (0 if none waits)."""

    keys: int
    messages: int
    bytes: int
    until_s: int


def waiting_expiries(options: PulsarOptions, topic: str, now_s: float) -> WaitingExpiries:
    """The keys that wait on an expiry topic; changes nothing. Raises pulsar.PulsarException."""
    import pulsar

    keys = messages = size = until_s = 0
    client = new_client(options, is_quiet=True)
    try:
        if not client.get_topic_partitions(topic):
            return WaitingExpiries(keys=0, messages=0, bytes=0, until_s=0)
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        while reader.has_message_available():
            message = reader.read_next(timeout_millis=10_000)
            properties = message.properties()
            numbers = [properties.get(name, "0") for name in (_DELIVER_AT, _KEYS, _SECOND)]
            if properties.get(_PROBE) or not all(map(str.isdecimal, numbers)):
                continue
            deliver_at_s, in_message, second = map(int, numbers)
            if deliver_at_s < now_s:
                continue  # delivered messages stay as long as their ledger
            keys += in_message
            messages += 1
            size += len(message.data())
            until_s = max(until_s, second)
    finally:
        client.close()
    return WaitingExpiries(keys=keys, messages=messages, bytes=size, until_s=until_s)
