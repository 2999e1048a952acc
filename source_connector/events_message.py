"""What the connector holds of a message of an events topic until all of its events are settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, final

from schemas.mutation_event import MutationEvent, MutationEvents

if TYPE_CHECKING:
    import pulsar

__all__ = ["EventsMessage", "Origin", "PendingEvent", "UnreadableMessage"]


class Origin(Protocol):
    """Who received a message, and acknowledges it."""

    def settled(self, message: EventsMessage | UnreadableMessage, events: int) -> None:
        """So many events of the message need nothing more; the last one acknowledges it."""


@final
class EventsMessage:
    """One message; `identity` tells it from all others, `unsettled` counts the events that need something yet."""

    __slots__ = (
        "header", "identity", "message_id", "node_id", "node_text", "origin", "pending", "segment_id", "table_id",
        "table_id_bytes", "table_id_text", "topic", "unsettled",
    )  # fmt: skip

    def __init__(
        self,
        *,
        identity: bytes,
        message_id: pulsar.MessageId,
        content: MutationEvents,
        topic: str = "",
        origin: Origin | None = None,
    ) -> None:
        self.identity = identity
        self.message_id = message_id
        self.topic = topic
        self.origin = origin
        self.header = content.keyspace, content.table, content.key_schema
        self.node_id = content.node_id
        self.node_text = str(content.node_id)
        self.table_id_text = str(content.table_id)
        self.segment_id = content.segment_id
        self.table_id = content.table_id
        self.table_id_bytes = content.table_id.bytes
        self.pending = [PendingEvent(event, self) for event in content.events]
        self.unsettled = len(content.events)

    def take_events(self) -> list[PendingEvent]:
        """The events, once: whoever settles them holds them from here on."""
        events, self.pending = self.pending, []
        return events

    def settle(self, events: int = 1) -> None:
        """So many events of the message need nothing more."""
        if self.origin is not None:
            self.origin.settled(self, events)

    def only(self, event: MutationEvent) -> MutationEvents:
        """A message that holds this event alone."""
        keyspace, table, key_schema = self.header
        return MutationEvents(
            node_id=self.node_id,
            segment_id=self.segment_id,
            keyspace=keyspace,
            table=table,
            table_id=self.table_id,
            key_schema=key_schema,
            events=(event,),
        )


@final
class PendingEvent:
    """An event and the message that it came with."""

    __slots__ = ("event", "message")

    def __init__(self, event: MutationEvent, message: EventsMessage) -> None:
        self.event = event
        self.message = message

    @property
    def cache_key(self) -> bytes:
        """Tells the event's key from those of all tables."""
        return self.message.table_id_bytes + self.event.key


@final
class UnreadableMessage:
    """A message of an events topic that holds no events by its schema."""

    __slots__ = ("data", "identity", "message_id", "origin", "reason", "schema_version", "topic", "unsettled")

    def __init__(
        self,
        *,
        identity: bytes,
        message_id: pulsar.MessageId,
        topic: str,
        data: bytes,
        schema_version: int,
        reason: str,
        origin: Origin,
    ) -> None:
        self.identity: Final = identity
        self.message_id: Final = message_id
        self.topic: Final = topic
        self.data: Final = data
        self.schema_version: Final = schema_version
        self.reason: Final = reason
        self.origin: Final = origin
        self.unsettled = 1
