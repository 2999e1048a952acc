"""CopyTopic: a Pulsar topic with the newest copy of one node's positions.

A durable subscription keeps the newest message, with any retention of the namespace. The previous message is
acknowledged when the new one is stored. The subscription is exclusive, so a second agent for the same node is refused,
on any machine.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Final

import _pulsar
import pulsar

from change_agent.errors import PublishError

__all__ = ["CopyTopic"]

_SUBSCRIPTION: Final = "positions"
_TIMEOUT_MS: Final = 10_000


class CopyTopic:
    """Used by one thread at a time. The constructor connects. It raises PublishError if it cannot."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self._client: Final = client
        self._topic: Final = topic
        self._newest: _pulsar.MessageId | None = None
        try:
            self._consumer: Final = client.subscribe(
                topic,
                _SUBSCRIPTION,
                consumer_type=pulsar.ConsumerType.Exclusive,
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=10,
            )
        except pulsar.ConsumerBusy as error:
            reason = (
                "another agent, perhaps on another machine, has this node's positions: this one waits until it ends"
            )
            raise PublishError(topic, reason) from error
        except pulsar.PulsarException as error:
            raise PublishError(topic, f"the copy of positions: {error}") from error
        try:
            self._producer: Final = client.create_producer(
                topic, send_timeout_millis=_TIMEOUT_MS, batching_enabled=False
            )
        except pulsar.PulsarException as error:
            # The client keeps an open consumer, and the next try would be refused because of it.
            with suppress(pulsar.PulsarException):
                self._consumer.close()
            raise PublishError(topic, f"the copy of positions: {error}") from error

    def read(self) -> bytes | None:
        """Return the newest copy; None when there is none. Call it before the first `store`. Raises PublishError."""
        try:
            message = self._last_message()
        except pulsar.PulsarException as error:
            raise PublishError(self._topic, f"the copy of positions cannot be read: {error}") from error
        if message is None:
            return None
        self._newest = message.message_id()
        return bytes(message.data())

    def _last_message(self) -> pulsar.Message | None:
        """Return the last message of the topic; None when there is none.

        A reader is used, because a message TTL or a cleared backlog may have removed the message from the subscription.
        """
        with closing(
            self._client.create_reader(self._topic, pulsar.MessageId.latest, start_message_id_inclusive=True)
        ) as reader:
            return reader.read_next(timeout_millis=_TIMEOUT_MS) if reader.has_message_available() else None

    def store(self, payload: bytes) -> None:
        """Store a copy. When this returns, the broker has it. Raises PublishError."""
        try:
            stored = self._producer.send(payload)
            if self._newest is not None:
                self._consumer.acknowledge_cumulative(self._newest)
        except pulsar.PulsarException as error:
            raise PublishError(self._topic, f"the copy of positions cannot be stored: {error}") from error
        self._newest = stored
