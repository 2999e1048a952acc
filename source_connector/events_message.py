"""What the connector holds of a message of an events topic until all of its events are settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from schemas.mutation_event import MutationEvent, MutationEvents

if TYPE_CHECKING:
    import pulsar

__all__ = ["EventsMessage", "PendingEvent"]


@final
class EventsMessage:
    """One message; `identity` tells it from all others, `unsettled` counts the events that need something yet."""

    __slots__ = (
        "identity", "message_id", "node_id", "node_text", "pending", "segment_id", "table_id", "table_id_text",
        "unsettled",
    )  # fmt: skip

    def __init__(self, *, identity: bytes, message_id: pulsar.MessageId, content: MutationEvents) -> None:
        self.identity = identity
        self.message_id = message_id
        self.node_id = content.node_id
        self.node_text = str(content.node_id)
        self.table_id_text = str(content.table_id)
        self.segment_id = content.segment_id
        self.table_id = content.table_id
        self.pending = [PendingEvent(event, self) for event in content.events]
        self.unsettled = len(content.events)

    def take_events(self) -> list[PendingEvent]:
        """The events, once: whoever settles them holds them from here on."""
        events, self.pending = self.pending, []
        return events


@final
class PendingEvent:
    """An event and the message that it came with."""

    __slots__ = ("event", "message")

    def __init__(self, event: MutationEvent, message: EventsMessage) -> None:
        self.event = event
        self.message = message
