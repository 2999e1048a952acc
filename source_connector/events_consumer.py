"""The events topics: waits until they exist, receives messages, decodes them by their writer's schema, acknowledges.

One thread of its own receives; it pauses while too many events wait. A message stays unacknowledged until every event
in it is settled, and a message that the broker delivers again while it is still held here is recognised.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, cast

import _pulsar
import fastavro
import pulsar

from schemas.mutation_event import MalformedEventsError, decode_events
from source_connector.errors import DeploymentError
from source_connector.events_message import EventsMessage
from source_connector.pulsar_access import PulsarOptions, new_client

__all__ = ["EventsConsumer"]

_log = logging.getLogger(__name__)

_LATEST: Final = -1
_WAIT_S: Final = (0.5, 1, 2, 5)
_SAY_AGAIN_AFTER_S: Final = 30.0
_RECEIVE_TIMEOUT_MS: Final = 500
# A message holds up to 256 KiB of events; what waits in the client is memory too.
_RECEIVER_QUEUE: Final = 8


class EventsConsumer:
    """Owns the Pulsar client, the consumer and the receiving thread.

    `post` takes each message, or the error that ended the thread; it is called in that thread.
    """

    def __init__(
        self,
        options: PulsarOptions,
        topics: Sequence[str],
        subscription: str,
        *,
        max_waiting_events: int,
        post: Callable[[EventsMessage | Exception], None],
    ) -> None:
        self._options = options
        self._topics = tuple(topics)
        self._subscription = subscription
        self._max_waiting = max_waiting_events
        self._post = post
        self._schemas: dict[tuple[str, int], Mapping[str, object]] = {}
        self._held: set[bytes] = set()
        self._waiting = 0
        self._room = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events-consumer", daemon=True)
        self._client: pulsar.Client | None = None
        self._consumer: pulsar.Consumer | None = None

    def start(self) -> None:
        """Begin to wait for the topics and to receive."""
        self._thread.start()

    def settled(self, message: EventsMessage, events: int = 1) -> None:
        """So many events of the message need nothing more; the last one acknowledges it."""
        message.unsettled -= events
        with self._room:
            self._waiting -= events
            self._room.notify()
        if message.unsettled == 0:
            self._acknowledge(message)

    def close(self) -> None:
        """Stop receiving, send what is acknowledged, close the connection."""
        self._stopping.set()
        with self._room:
            self._room.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        if self._client is not None:
            self._client.close()

    def _run(self) -> None:
        try:
            self._client = new_client(self._options)
            consumer = self._subscribe(self._client)
            while consumer is not None and not self._stopping.is_set():
                if self._wait_for_room():
                    self._receive(consumer)
        except Exception as error:  # noqa: BLE001  # the top of a thread: whoever owns it decides
            self._post(error)

    def _wait_for_room(self) -> bool:
        with self._room:
            return self._room.wait_for(lambda: self._waiting < self._max_waiting, timeout=1.0)

    def _receive(self, consumer: pulsar.Consumer) -> None:
        try:
            message = consumer.receive(timeout_millis=_RECEIVE_TIMEOUT_MS)
        except pulsar.Timeout:
            return
        topic, message_id = message.topic_name(), message.message_id()
        identity = topic.encode() + b" " + message_id.serialize()
        with self._room:
            if identity in self._held:
                return  # delivered again after a reconnection; the first copy is still being worked on
            self._held.add(identity)
        try:
            version = message._message.int_schema_version()  # noqa: SLF001  # the wrapper leaves it out
            events = decode_events(message.data(), self._writer_schema(topic, version))
        except MalformedEventsError as error:
            _log.error("%s message %s stays unacknowledged, everything else goes on: %s", topic, message_id, error)
            return
        received = EventsMessage(identity=identity, message_id=message_id, content=events)
        if not events.events:
            self._acknowledge(received)
            return
        with self._room:
            self._waiting += len(events.events)
        self._post(received)

    def _acknowledge(self, message: EventsMessage) -> None:
        assert self._consumer is not None
        with self._room:
            self._held.discard(message.identity)
        self._consumer.acknowledge(message.message_id)

    def _subscribe(self, client: pulsar.Client) -> pulsar.Consumer | None:
        """Wait for every topic, then subscribe. To subscribe first would create a topic of the wrong kind."""
        for topic in self._topics:
            if not self._patiently(f"events topic {topic}", partial(self._check_topic, client, topic)):
                return None
        self._patiently("subscription", lambda: self._open(client))
        return self._consumer

    def _check_topic(self, client: pulsar.Client, topic: str) -> None:
        schema = _schema_info(client, topic, _LATEST)
        if schema.schema_type().name != "AVRO":
            raise DeploymentError(
                f"events.topic: {topic} has a schema of type {schema.schema_type().name}, not AVRO: it does not hold "
                "events of our agents"
            )

    def _open(self, client: pulsar.Client) -> None:
        self._consumer = client.subscribe(
            list(self._topics),
            self._subscription,
            consumer_type=pulsar.ConsumerType.Failover,
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=_RECEIVER_QUEUE,
            max_total_receiver_queue_size_across_partitions=_RECEIVER_QUEUE * 16,
        )
        _log.info("reading %s with subscription %s", ", ".join(self._topics), self._subscription)

    def _patiently(self, what: str, attempt: Callable[[], None]) -> bool:
        """Try until it works; False when the connector is stopped before."""
        said_at = -_SAY_AGAIN_AFTER_S
        for number in range(1_000_000_000):
            try:
                attempt()
            except pulsar.PulsarException as error:
                if time.monotonic() - said_at >= _SAY_AGAIN_AFTER_S:
                    said_at = time.monotonic()
                    _log.warning("waiting for the %s at %s: %s", what, self._options.service_url, error)
            else:
                return True
            if self._stopping.wait(_WAIT_S[min(number, len(_WAIT_S) - 1)]):
                return False
        return False

    def _writer_schema(self, topic: str, version: int) -> Mapping[str, object]:
        """The parsed schema that a message was written with, from the registry."""
        base = topic.rpartition("-partition-")[0] or topic
        known = self._schemas.get((base, version))
        if known is None:
            assert self._client is not None
            client = self._client
            found: list[str] = []
            self._patiently(
                f"schema {version} of {base}", lambda: found.append(_schema_info(client, base, version).schema())
            )
            text = found[0] if found else "{}"
            try:
                known = cast("Mapping[str, object]", fastavro.parse_schema(json.loads(text)))
            except (ValueError, fastavro.schema.SchemaParseException) as error:
                raise MalformedEventsError(f"{base}: schema version {version} is no Avro schema ({error})") from error
            self._schemas[base, version] = known
        return known


def _schema_info(client: pulsar.Client, topic: str, version: int) -> _pulsar.SchemaInfo:
    """From the registry; creates nothing. Raises pulsar.TopicNotFound where there is none."""
    return client._client.get_schema_info(topic, version)  # noqa: SLF001  # the wrapper leaves it out
