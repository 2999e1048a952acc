"""ExpiryProducers: the producers of expiry topics, and of the events topics to which expiries go when they are due."""

from __future__ import annotations

import functools
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from runtime.notices import Notices
from schemas.mutation_event import MUTATION_EVENTS_SCHEMA_TEXT
from source_connector.events.expiry_messages import DELIVER_AT, EXPIRY_SUBSCRIPTION, SECOND
from source_connector.events.pulsar_access import PulsarConnection, schema_of_bytes
from source_connector.events.topic_openings import TopicOpenings

if TYPE_CHECKING:
    import pulsar

__all__ = ["ExpiryProducers"]

_log = logging.getLogger(__name__)

# Brokers deliver up to a tick (1 s) early or late. A message that comes early is held by DueExpiries.
_EARLIER_S: Final = 1
_LONGEST_DELAY_S: Final = 10 * 86_400
# After 50,000 messages whose times only increase, a broker stops reading ahead, because it assumes that all delays are
# equal (delayedDeliveryFixedDelayDetectionLookahead). A later message that is due sooner would come late. So one
# message of 500 is requested early.
_EARLY_ONE_OF: Final = 500
_OUT_OF_ORDER_S: Final = 30
_HINT_S: Final = 30.0
# The client blocks a send while 1000 messages of the producer have no answer.
_MOST_IN_FLIGHT: Final = 900


class ExpiryProducers:
    """Used by the thread of `ExpiryTopics`. `post` hands a step over to this thread."""

    def __init__(
        self,
        connection: PulsarConnection,
        time_s: Callable[[], float],
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._connection = connection
        self._time_s = time_s
        self.stores: Final = TopicOpenings(self._open_store, post, self.cannot_store)
        """By expiry topic."""
        self.targets: Final = TopicOpenings(self._open_target, post, self._cannot_forward)
        """By partition of an events topic."""
        self._in_flight: Counter[str] = Counter()
        # By expiry topic: how many messages were stored, and the latest time at which one of them is to be delivered.
        self._delayed: dict[str, tuple[int, int]] = {}
        self._notices = Notices(_log)
        self._next_hint = 0.0
        self._last_hint = ""

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

    def ready(self, producers: TopicOpenings[pulsar.Producer], topic: str) -> pulsar.Producer | None:
        """The topic's producer; None while a send could block, because it is not open or has too much in flight."""
        return None if self._in_flight[topic] >= _MOST_IN_FLIGHT else producers.get(topic)

    def cannot_store(self, topic: str, error: Exception) -> None:
        """Report that an expiry topic cannot be used. Raises the error if it is not one of Pulsar's."""
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
        self.say(topic, what)

    def say(self, topic: str, text: str) -> None:
        """Report a problem with a topic."""
        self._notices.say(topic, text, self._hint)

    def sending(self, topic: str) -> None:
        """Note that a message is sent to the topic."""
        self._in_flight[topic] += 1

    def answered(self, topic: str) -> None:
        """Note that a message to the topic is over: the broker has answered, or the client has not taken it."""
        self._in_flight[topic] -= 1

    def _hint(self) -> str:
        """A hint for all topics. It is kept for a while, because it may take seconds to find."""
        if time.monotonic() >= self._next_hint:
            self._last_hint = self._connection.hint()
            self._next_hint = time.monotonic() + _HINT_S
        return self._last_hint

    def delay(
        self,
        producer: pulsar.Producer,
        topic: str,
        data: bytes,
        properties: dict[str, str],
        then: Callable[[int, pulsar.Result, pulsar.MessageId], None],
    ) -> None:
        """Send a message that the broker is to deliver later. The first argument of `then` is the delivery time."""
        now_s = int(self._time_s())
        deliver_at = min(max(int(properties[SECOND]) - _EARLIER_S, now_s), now_s + _LONGEST_DELAY_S)
        deliver_at = self._out_of_order(topic, deliver_at, now_s)
        sent = properties | {DELIVER_AT: str(deliver_at)}
        answered = functools.partial(then, deliver_at)
        producer.send_async(data, answered, properties=sent, deliver_at=deliver_at * 1000)

    def _out_of_order(self, topic: str, deliver_at: int, now_s: int) -> int:
        """When the broker is to deliver a message. One of many comes early, and is held here until it is due."""
        count, latest = self._delayed.get(topic, (0, 0))
        self._delayed[topic] = count + 1, max(latest, deliver_at)
        if (count + 1) % _EARLY_ONE_OF:
            return deliver_at
        return max(now_s, min(deliver_at, latest - _OUT_OF_ORDER_S))
