"""The events topics: one Pulsar client, and a reader for each topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pulsar

from source_connector.events_message import EventsMessage, UnreadableMessage
from source_connector.pulsar_access import PulsarOptions, new_client
from source_connector.topic_reader import ReaderLimits, TopicReader

__all__ = ["EventsConsumer"]

_STOP_S: Final = 5.0


class EventsConsumer:
    """Owns the Pulsar client and the readers. `post` is called in the readers' threads."""

    def __init__(
        self,
        options: PulsarOptions,
        subscription: str,
        *,
        max_waiting_events: int,
        post: Callable[[EventsMessage | UnreadableMessage | Exception], None],
    ) -> None:
        self._options = options
        self._subscription = subscription
        self._limits = ReaderLimits(max_waiting_events)
        self._post = post
        self._readers: dict[str, TopicReader] = {}
        self._client: pulsar.Client | None = None

    def follow(self, topic: str) -> None:
        """Read a topic from now on, as soon as it exists; one that is read already is left as it is."""
        if topic in self._readers:
            return
        if self._client is None:
            self._client = new_client(self._options)
        self._limits.topics += 1
        reader = self._readers[topic] = TopicReader(self._client, topic, self._subscription, self._limits, self._post)
        reader.start()

    def close(self) -> None:
        """Stop receiving, send what is acknowledged, close the connection."""
        for reader in self._readers.values():
            reader.stop()
        for reader in self._readers.values():
            reader.join(_STOP_S)
        if self._client is not None:
            self._client.close()
