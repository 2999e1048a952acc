"""Reads one events topic: waits until it exists, receives, decodes by the writer's schema, and acknowledges messages.

The topic's schema shows the kind of its events: AVRO is ours, KEY_VALUE is that of DataStax's agents. Each topic has
a thread that receives. The thread pauses while too many of the topic's own events wait (`source_connector.events.reader_room`),
so a table whose events cannot be published does not delay other tables.

A message stays unacknowledged until every event in it is settled. A message that the broker delivers again while it
is still held here is recognized.

If several instances share the partitions, the first messages of a new partition wait
(`source_connector.events.takeovers`).
"""

from __future__ import annotations

import base64
import binascii
import heapq
import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import fastavro
import pulsar

from runtime.backoff import Backoff
from runtime.notices import Notices
from runtime.stage import Stage
from schemas.errors import CdcError
from schemas.mutation_event import MUTATION_EVENTS_SCHEMA_TEXT, MalformedEventsError, decode_events
from source_connector.errors import EventsTopicError
from source_connector.events.datastax_events import DataStaxSchema
from source_connector.events.events_message import (
    STALE_AFTER_S,
    DataStaxMessage,
    EventsMessage,
    RawMessage,
    UnreadableMessage,
)
from source_connector.events.events_reader import read_events
from source_connector.events.pulsar_access import PulsarConnection, schema_bytes, schema_info
from source_connector.events.reader_room import ReaderLimits, ReaderRoom
from source_connector.events.takeovers import Arrival, Takeovers

__all__ = ["ReceivedMessage", "Subscription", "TopicReader"]

_log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(0.5, 5)
_RECEIVE_TIMEOUT_MS: Final = 500
# Factor for the receiver queue on topics of DataStax's agents: their messages hold one event each.
_SINGLE_EVENTS: Final = 100
_OURS, _DATASTAX = "AVRO", "KEY_VALUE"

ReceivedMessage = EventsMessage | DataStaxMessage | UnreadableMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Its name, and its type on topics of DataStax's agents. Topics of our agents are read with Failover.

    `is_shared`: several instances of the source share the partitions.
    """

    name: str
    datastax_type: str
    is_shared: bool = False


class TopicReader(Stage):
    """Owns a consumer and the thread that receives from it.

    `post` takes each message, or the error that ended the thread; it is called in that thread.
    """

    def __init__(
        self,
        connection: PulsarConnection,
        topic: str,
        subscription: Subscription,
        limits: ReaderLimits,
        post: Callable[[ReceivedMessage | Exception], None],
    ) -> None:
        super().__init__(f"reader of {topic}", on_failure=post)
        self._connection = connection
        self._client = connection.client()
        self.topic: Final = topic
        self._subscription = subscription
        self._limits = limits
        self._post = post
        self._kind = _OURS
        self._schemas: dict[int, Mapping[str, object]] = {}
        self._of_today: set[int] = set()
        """Versions whose schema is this program's own."""
        self._datastax_schemas: dict[int, DataStaxSchema] = {}
        self._held: dict[bytes, EventsMessage | None] = {}
        """Unsettled messages by identity. The value is None unless it is one of our agents' and may be overtaken."""
        self._takeovers: Takeovers | None = None
        self._kept_back: list[tuple[float, int, ReceivedMessage]] = []
        """Messages of new partitions, with the time when their work may begin. Used in the receiving thread only."""
        self._numbers = itertools.count()
        self._holding = threading.Lock()
        """The lock of `_held`: one thread receives messages, the owner's thread settles them."""
        self._room = ReaderRoom(limits)
        self._notices = Notices(_log)
        self._consumer: pulsar.Consumer | None = None

    def settled(self, message: ReceivedMessage, events: int) -> None:
        """Note that so many events are settled. The message is acknowledged if one of them is its last one."""
        self._room.settle(events, is_last=message.unsettled == 0)
        if message.unsettled == 0:
            self._acknowledge(message)

    @property
    def partitions_gotten(self) -> int:
        """How many partitions this instance began to read or took over from another instance."""
        return 0 if self._takeovers is None else self._takeovers.count

    def wake(self) -> None:
        """End the wait for room."""
        self._room.wake()

    def run(self) -> None:
        """Wait for the topic, and receive."""
        try:
            consumer = self._subscribe()
            while consumer is not None and not self.stopping.is_set():
                self._post_what_is_due()
                if self._wait_for_room():
                    self._receive(consumer)
        except CdcError as error:
            if not self.stopping.is_set():
                self._post(error)

    def fail(self, error: Exception) -> None:
        """Report an error, unless the client is being closed."""
        if not self.stopping.is_set():
            super().fail(error)

    def _wait_for_room(self) -> bool:
        has_room, was_free = self._room.wait(1.0)
        if not was_free and self._takeovers is not None:
            self._takeovers.was_busy(time.monotonic())
        return has_room

    def _receive(self, consumer: pulsar.Consumer) -> None:
        try:
            message = consumer.receive(timeout_millis=self._receive_timeout_ms())
        except pulsar.Timeout:
            if self._takeovers is not None:
                self._takeovers.was_empty(time.monotonic())
            return
        topic, message_id = message.topic_name(), message.message_id()
        identity = topic.encode() + b" " + message_id.serialize()
        begins_at, overtaken_after = self._times(message)
        with self._holding:
            if identity in self._held:
                # Delivered again after a reconnection, and perhaps to another instance in between. The first copy is
                # still in work.
                if begins_at and (held := self._held[identity]) is not None:
                    held.overtaken_after = 0.0
                return
            self._held[identity] = None
        version = message._message.int_schema_version()  # noqa: SLF001  # the wrapper leaves it out
        raw = RawMessage(data=message.data())
        if self._kind == _DATASTAX:
            raw = RawMessage(data=message.data(), key=message.partition_key(), properties=message.properties())
        received: ReceivedMessage
        try:
            received = self._decode(raw, version, identity, message)
        except MalformedEventsError as error:
            received = UnreadableMessage(
                identity=identity,
                message_id=message_id,
                topic=topic,
                raw=raw,
                schema_version=version,
                reason=str(error),
                origin=self,
            )
        if not received.unsettled:
            self._acknowledge(received)
            return
        self._room.add(received.unsettled)
        with self._holding:
            if begins_at and isinstance(received, EventsMessage):
                received.overtaken_after = overtaken_after
                self._held[identity] = received
        self._post_what_is_due()
        if begins_at > time.monotonic():
            heapq.heappush(self._kept_back, (begins_at, next(self._numbers), received))
        else:
            self._post(received)

    def _times(self, message: pulsar.Message) -> tuple[float, float]:
        """When the work on the message may begin, and when another instance may have it. 0 if none can have had it."""
        takeovers = self._takeovers
        if takeovers is None:
            return 0.0, 0.0
        message_id = message.message_id()
        place = message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()
        before, now = takeovers.count, time.monotonic()
        arrival = Arrival(message.topic_name(), place, now - message.publish_timestamp() / 1000, now)
        overtaken_after = takeovers.fetched_after(arrival) + STALE_AFTER_S
        begins_at = takeovers.held_until(arrival)
        if takeovers.count > before:
            _log.info(
                "%s: this instance reads it from here on; its events of the next %.0f s wait as long, for records of the instance "
                "that had it before",
                message.topic_name(),
                STALE_AFTER_S,
            )
        return begins_at, overtaken_after

    def _receive_timeout_ms(self) -> int:
        if not self._kept_back:
            return _RECEIVE_TIMEOUT_MS
        due_ms = int((self._kept_back[0][0] - time.monotonic()) * 1000)
        return min(_RECEIVE_TIMEOUT_MS, max(1, due_ms))

    def _post_what_is_due(self) -> None:
        while self._kept_back and self._kept_back[0][0] <= time.monotonic():
            self._post(heapq.heappop(self._kept_back)[2])

    def _decode(
        self, raw: RawMessage, version: int, identity: bytes, message: pulsar.Message
    ) -> EventsMessage | DataStaxMessage:
        """Decode a message. Raises MalformedEventsError for every error of the decoder."""
        topic, message_id = message.topic_name(), message.message_id()
        try:
            if self._kind == _OURS:
                writer_schema = self._writer_schema(version)
                if version in self._of_today:
                    content, later = read_events(raw.data, self._limits.decoded_events)
                else:
                    content, later = decode_events(raw.data, writer_schema), None
                return EventsMessage(
                    identity=identity,
                    message_id=message_id,
                    content=content,
                    topic=topic,
                    origin=self,
                    settled=self._room.settled,
                    later=later,
                )
            key = base64.b64decode(raw.key, validate=True)
            event = self._datastax_schema(version).decode(key, raw.data, raw.properties)
            return DataStaxMessage(
                identity=identity, message_id=message_id, topic=topic, event=event, raw=raw, origin=self
            )
        except MalformedEventsError:
            raise
        except binascii.Error as error:
            raise MalformedEventsError(f"its key is no base64 ({error})") from error
        except Exception as error:
            raise MalformedEventsError(f"{len(raw.data)} bytes: {type(error).__name__}: {error}") from error

    def _acknowledge(self, message: ReceivedMessage) -> None:
        assert self._consumer is not None
        with self._holding:
            self._held.pop(message.identity, None)
        self._consumer.acknowledge(message.message_id)

    def _subscribe(self) -> pulsar.Consumer | None:
        """Wait for the topic, then subscribe. To subscribe earlier would create a topic of the wrong kind."""
        if not self._patiently(f"events topic {self.topic}", self._check_topic):
            return None
        self._patiently(f"subscription to {self.topic}", self._open)
        return self._consumer

    def _check_topic(self) -> None:
        self._kind = schema_info(self._client, self.topic).schema_type().name
        if self._kind not in (_OURS, _DATASTAX):
            raise EventsTopicError(
                self.topic,
                f"has a schema of type {self._kind}; events of our agents have {_OURS}, those of DataStax's agents "
                f"{_DATASTAX}",
            )

    def _open(self) -> None:
        size = self._limits.receiver_queue * (1 if self._kind == _OURS else _SINGLE_EVENTS)
        subscription_type = "Failover" if self._kind == _OURS else self._subscription.datastax_type
        if subscription_type == "Failover" and self._subscription.is_shared:
            # twice: when a topic moves, the client requests a whole queue again before the old one is taken
            self._takeovers = Takeovers(2 * size, time.monotonic())
        self._consumer = self._client.subscribe(
            self.topic,
            self._subscription.name,
            consumer_type=_CONSUMER_TYPES[subscription_type],
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=size,
            max_total_receiver_queue_size_across_partitions=size * 16,
        )
        _log.info("reading %s with subscription %s (%s)", self.topic, self._subscription.name, subscription_type)

    def _patiently(self, what: str, attempt: Callable[[], None]) -> bool:
        """Try until it works; False when the connector is stopped before."""
        for failures in itertools.count(1):
            # An attempt with an expired token takes half a minute, and the client does not say why.
            if ended := self._connection.ended_token():
                self._notices.say(what, f"waiting for the {what}: {ended}")
            try:
                attempt()
            except pulsar.PulsarException as error:
                self._notices.say(what, f"waiting for the {what}: {error}", self._connection.hint)
            else:
                return True
            if self.stopping.wait(_BACKOFF.pause_s(failures)):
                return False
        return False

    def _writer_schema(self, version: int) -> Mapping[str, object]:
        """The parsed schema that a message was written with, from the registry. Raises MalformedEventsError."""
        known = self._schemas.get(version)
        if known is None:
            text = self._registered(version)
            try:
                parsed = fastavro.parse_schema(json.loads(text))
                if not isinstance(parsed, dict):
                    raise TypeError("it is no record")
            except (*_SCHEMA_ERRORS, fastavro.schema.SchemaParseException) as error:
                reason = f"{self.topic}: schema version {version} is no Avro schema ({error})"
                raise MalformedEventsError(reason) from error
            if text == MUTATION_EVENTS_SCHEMA_TEXT.encode():
                self._of_today.add(version)
            known = self._schemas[version] = parsed
        return known

    def _datastax_schema(self, version: int) -> DataStaxSchema:
        known = self._datastax_schemas.get(version)
        if known is None:
            known = self._datastax_schemas[version] = DataStaxSchema(self._registered(version))
        return known

    def _registered(self, version: int) -> bytes:
        found: list[bytes] = []

        def look_up() -> None:
            found.append(schema_bytes(self._client, self.topic, version))

        self._patiently(f"schema {version} of {self.topic}", look_up)
        return found[0] if found else b"{}"


# The exceptions of JSON and fastavro for a text that is not a schema.
_SCHEMA_ERRORS: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_CONSUMER_TYPES: Final = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Shared": pulsar.ConsumerType.Shared,
    "Failover": pulsar.ConsumerType.Failover,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}
