"""The events topics: one Pulsar client, and a reader for each topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from source_connector.events.pulsar_access import PulsarConnection
from source_connector.events.reader_room import ReaderLimits
from source_connector.events.topic_reader import ReceivedMessage, Subscription, TopicReader

__all__ = ["EventsConsumer"]

_STOP_S: Final = 5.0


class EventsConsumer:
    """Owns the readers, and closes the connection after them. `post` is called in the readers' threads."""

    def __init__(
        self,
        connection: PulsarConnection,
        subscription: Subscription,
        *,
        max_waiting_events: int,
        post: Callable[[ReceivedMessage | Exception], None],
    ) -> None:
        self._connection = connection
        self._subscription = subscription
        self._limits = ReaderLimits(max_waiting_events)
        self._post = post
        self._readers: dict[str, TopicReader] = {}

    def follow(self, topic: str) -> None:
        """Read a topic from now on, as soon as it exists. Does nothing if it is read already."""
        if topic in self._readers:
            return
        self._limits.add_topic()
        self.again(topic)

    def again(self, topic: str) -> None:
        """Start a new reader of a topic, because the last one has ended with an error."""
        reader = self._readers[topic] = TopicReader(
            self._connection, topic, self._subscription, self._limits, self._post
        )
        reader.start()

    @property
    def partitions_gotten(self) -> int:
        """How many topic partitions this instance began to read or took over from another instance."""
        return sum(reader.partitions_gotten for reader in self._readers.values())

    def close(self) -> None:
        """Stop receiving, send the acknowledgements, close the connection."""
        for reader in self._readers.values():
            reader.ask_to_stop()
        for reader in self._readers.values():
            reader.join(_STOP_S)
        self._connection.close()
