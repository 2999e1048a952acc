"""DueExpiries: messages of expiry topics that the broker has delivered. They are held until they are due, then forwarded.

A message that is due in more than ten days is delivered and stored again every ten days, because a ledger stays on the
bookies until all of its messages are acknowledged. A message is acknowledged when the events topic has its events.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from runtime.backoff import Backoff
from runtime.notices import Notices
from source_connector.errors import DeploymentError
from source_connector.events.expiry_messages import DELIVER_AT, KEYS, PROBE, SECOND, TARGET
from source_connector.events.expiry_producers import ExpiryProducers
from source_connector.events.stored_ledgers import StoredLedgers
from source_connector.events.topic_openings import TopicOpenings

if TYPE_CHECKING:
    import pulsar

__all__ = ["PROBE_S", "DueExpiries"]

_log = logging.getLogger(__name__)

PROBE_S: Final = 180
"""In how many seconds a probe is to be delivered."""
_BEHIND_S: Final = 0.05
_TOO_EARLY_S: Final = 60
# A message that comes within this time after it was stored came at once. The clocks of broker and Cassandra may differ.
_AT_ONCE_S: Final = 30
# No clock is wrong by so much. If delayed delivery was switched off later, old messages come that early.
_EARLIEST_S: Final = 3600
_MOST_HELD: Final = 200
_BACKOFF: Final = Backoff(0.5, 30.0)


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
        return int(self.properties[SECOND])


class DueExpiries:
    """Used by the thread of `ExpiryTopics`. `post` hands a step over to this thread.

    `on_refusal` is called with the error if the broker delivers delayed messages at once.
    """

    def __init__(
        self,
        producers: ExpiryProducers,
        ledgers: StoredLedgers,
        time_s: Callable[[], float],
        post: Callable[[Callable[[], None]], None],
        on_refusal: Callable[[DeploymentError], None],
    ) -> None:
        self._producers: Final = producers
        self._ledgers: Final = ledgers
        self._time_s = time_s
        self._post = post
        self._on_refusal = on_refusal
        self._held: list[tuple[float, int, _Held]] = []
        # By expiry topic: the number of held messages. Each topic has its own limit, so no table delays another one.
        self._held_of: Counter[str] = Counter()
        self._paused: dict[str, pulsar.Consumer] = {}
        self._numbers = itertools.count()
        self._notices = Notices(_log)

    def wait_s(self) -> float | None:
        """Seconds until a held message is due; None if no message is held."""
        return max(0.0, self._held[0][0] - self._time_s()) if self._held else None

    def hold(self, topic: str, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        """Hold a message that the broker has delivered, until it is due. A foreign message is acknowledged and left out."""
        properties = message.properties()
        now_s = self._time_s()
        numbers = [properties.get(name, "") for name in (SECOND, DELIVER_AT)]
        if not all(map(str.isdecimal, numbers)) or not (properties.get(PROBE) or properties.get(TARGET)):
            self._notices.say(
                "foreign",
                f"{topic}: message {message.message_id()} is of somebody else, and is left out; find out who writes there",
            )
            _acknowledge(consumer, message)
            return
        deliver_at = int(properties[DELIVER_AT])
        early_s = deliver_at - now_s
        is_new = time.time() - message.publish_timestamp() / 1000 < _AT_ONCE_S
        if early_s > _EARLIEST_S or (is_new and early_s > PROBE_S - _AT_ONCE_S):
            self._cannot_wait(topic)
            return
        if properties.get(PROBE):
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
        """The broker does not delay. Nothing is acknowledged, so the messages stay until it does."""
        self._on_refusal(
            DeploymentError(
                f"expiry.publish: {topic}: the broker delivers delayed messages at once; set delayedDeliveryEnabled=true in "
                "its broker.conf, or allow it by `pulsar-admin namespaces set-delayed-delivery --enable`, or set expiry.publish to "
                "false (a broker whose clock is minutes ahead of Cassandra's does the same: set the clocks)"
            )
        )

    def _hold_until(self, held: _Held, at_s: float) -> None:
        heapq.heappush(self._held, (at_s, next(self._numbers), held))

    def forward(self) -> None:
        """Send the held messages that are due."""
        now_s = self._time_s()
        while self._held and self._held[0][0] <= now_s:
            _, _, held = heapq.heappop(self._held)
            self._forward(held, now_s)

    def _forward(self, held: _Held, now_s: float) -> None:
        """Send a held message to the events topic. If it is due much later, send it to the expiry topic again."""
        import pulsar

        is_early = held.second - now_s > _TOO_EARLY_S
        producers, to = (
            (self._producers.stores, held.topic) if is_early else (self._producers.targets, held.properties[TARGET])
        )
        producer = self._producers.ready(producers, to)
        if producer is None:
            self._hold_until(held, now_s + producers.wait_s(to))
            return
        self._producers.sending(to)
        then = functools.partial(self._forwarded, held, producers, producer, to)
        try:
            if is_early:
                own = {name: held.properties[name] for name in (SECOND, TARGET, KEYS)}
                self._producers.delay(producer, to, held.message.data(), own, then)
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
        """Called in the client's thread. `producer` is kept alive by this: a freed producer gets no more answers.

        `deliver_at` is None for a message to an events topic.
        """
        import pulsar

        if result == pulsar.Result.Ok:
            if deliver_at is not None:
                self._post(functools.partial(self._ledgers.stored, to, message_id.ledger_id(), deliver_at))
            self._post(functools.partial(self._taken, held, to))
        else:
            self._post(functools.partial(self._not_forwarded, held, producers, to, str(result)))

    def _taken(self, held: _Held, to: str) -> None:
        self._producers.answered(to)
        _acknowledge(held.consumer, held.message)
        self._held_of[held.topic] -= 1
        if held.topic in self._paused and self._held_of[held.topic] < _MOST_HELD // 2:
            self._paused.pop(held.topic).resume_message_listener()

    def _not_forwarded(self, held: _Held, producers: TopicOpenings[pulsar.Producer], to: str, reason: str) -> None:
        self._producers.answered(to)
        held.failures += 1
        text = f"{to}: does not take the events of {held.properties[KEYS]} rows that expired, which are tried again: {reason}"
        self._producers.say(to, text)
        producers.drop(to)
        self._hold_until(held, self._time_s() + _BACKOFF.pause_s(held.failures))


def _acknowledge(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
    """Acknowledge. If that does not reach the broker, the message comes again, and its keys are checked once more."""
    import pulsar

    with contextlib.suppress(pulsar.PulsarException):
        consumer.acknowledge(message)
