"""A message of an events topic, which the connector keeps until all of its events are settled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, final

from schemas.mutation_event import MutationEvent, MutationEvents
from source_connector.events.datastax_events import DataStaxEvent
from source_connector.events.events_reader import LaterEvents

if TYPE_CHECKING:
    import pulsar

__all__ = [
    "STALE_AFTER_S",
    "DataStaxMessage",
    "EventsMessage",
    "Origin",
    "PendingEvent",
    "RawMessage",
    "SettledEvents",
    "UnreadableMessage",
]

STALE_AFTER_S: Final = 5.0
"""Longest time from a read to the broker's answer. Pulsar does not fence a source: a later record may follow a newer
one of another instance, so it is checked."""


class Origin(Protocol):
    """The receiver of a message, which also acknowledges it."""

    def settled(self, message: EventsMessage | UnreadableMessage, events: int) -> None:
        """Note that so many events are settled: of the message, and of others that came with the same `SettledEvents`.

        With the last one of its events, the message is acknowledged.
        """


@final
class SettledEvents:
    """Counts the settled events that the origin of their messages does not know of yet.

    The origin learns of `together` events in one call, because it is not compiled. All messages of an origin share the
    count: otherwise each message with an event that stays in work would keep the room of its settled ones.
    """

    __slots__ = ("count", "together")

    def __init__(self, together: int = 1) -> None:
        self.together = together
        self.count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RawMessage:
    """A message as the broker gave it. `key` and `properties` are used only for messages of DataStax's agents."""

    data: bytes
    key: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


@final
class EventsMessage:
    """One message. `identity` distinguishes it from all others, `unsettled` counts the events that are not settled.

    After `overtaken_after`, a time of `time.monotonic`, another instance may have processed its events. So a record
    that the broker has only later is checked. `raw` is set for a message of a DataStax agent: the kind of its event is
    a guess (`source_connector.events.datastax_events`). `later` are events that follow those of the content.
    """

    __slots__ = (
        "_later",
        "_settled",
        "ahead",
        "clearing",
        "header",
        "identity",
        "message_id",
        "node_id",
        "node_text",
        "origin",
        "overtaken_after",
        "pending",
        "raw",
        "segment_id",
        "table_id",
        "table_id_bytes",
        "table_id_text",
        "topic",
        "unsettled",
    )

    def __init__(
        self,
        *,
        identity: bytes,
        message_id: pulsar.MessageId,
        content: MutationEvents,
        topic: str = "",
        origin: Origin | None = None,
        raw: RawMessage | None = None,
        settled: SettledEvents | None = None,
        later: LaterEvents | None = None,
    ) -> None:
        self.identity = identity
        self.message_id = message_id
        self.topic = topic
        self.origin = origin
        self._settled: Final = SettledEvents() if settled is None else settled
        self.overtaken_after = math.inf
        self.raw = raw
        self.clearing = content.clearing
        self.header = content.keyspace, content.table, content.key_schema
        self.node_id = content.node_id
        self.node_text = str(content.node_id)
        self.table_id_text = str(content.table_id)
        self.segment_id = content.segment_id
        self.table_id = content.table_id
        self.table_id_bytes = content.table_id.bytes
        self.pending = [PendingEvent(event, self) for event in content.events]
        """The events that are decoded and not taken yet."""
        self._later = later
        self.ahead: Final = len(content.events)
        """The number of events that were decoded when the message came. If it has later ones, its table may hold so many."""
        # A clearing is settled like an event. A message without either is acknowledged at once.
        self.unsettled = len(content.events) + (content.clearing is not None) + (0 if later is None else later.left)

    def column_names(self) -> frozenset[str]:
        """All columns that the events name, before they are taken."""
        # By id: events share a few tuples, and the hash of a tuple costs as much as it has columns.
        sets = {id(pending.event.columns): pending.event.columns for pending in self.pending}
        later = frozenset[str]() if self._later is None else self._later.columns
        return later.union(*sets.values())

    @property
    def key_schema(self) -> str:
        """The schema with which the keys of the events were written."""
        return self.header[2]

    def take_events(self) -> list[PendingEvent]:
        """Take the events. They can be taken only once, and the message no longer holds them."""
        events, self.pending = self.pending, []
        if self._later is not None:
            events += self._take_later(self._later.left)
        return events

    def take_some(self, most: int) -> list[PendingEvent]:
        """Take the next events: those that are decoded, or else up to `most`, which are decoded now."""
        events, self.pending = self.pending, []
        return events or self._take_later(most)

    @property
    def is_taken(self) -> bool:
        """True when all events were taken."""
        return not self.pending and self._later is None

    def _take_later(self, most: int) -> list[PendingEvent]:
        later = self._later
        if later is None:
            return []
        events = [PendingEvent(event, self) for event in later.take(most)]
        if not later.left:
            self._later = None
        return events

    def settle(self, events: int = 1) -> None:
        """Note that so many events of the message are settled."""
        self.unsettled -= events
        settled = self._settled
        settled.count += events
        if self.origin is not None and (self.unsettled == 0 or settled.count >= settled.together):
            count, settled.count = settled.count, 0
            self.origin.settled(self, count)

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
    """An event and the message that it came with.

    `unsure_since` is when a read first could not tell if the event's write was visible, by `time.monotonic`; 0 before.

    What every row needs several times is an attribute here, too: an attribute of a named tuple takes ten times as long.
    """

    __slots__ = (
        "cache_key",
        "clustering",
        "digest",
        "event",
        "key",
        "kind",
        "message",
        "partition_key",
        "unsure_since",
    )

    def __init__(self, event: MutationEvent, message: EventsMessage) -> None:
        self.event: Final = event
        self.message: Final = message
        self.kind: Final = event.kind
        self.key: Final = event.key
        self.partition_key: Final = event.partition_key
        self.clustering: Final = event.clustering
        self.digest: Final = event.digest
        self.unsure_since = 0.0
        self.cache_key: Final[bytes] = message.table_id_bytes + self.key
        """The event's key with the table id, so that it differs from keys of other tables."""


@final
class UnreadableMessage:
    """A message of an events topic that could not be decoded by its schema."""

    __slots__ = ("identity", "message_id", "origin", "raw", "reason", "schema_version", "topic", "unsettled")

    def __init__(
        self,
        *,
        identity: bytes,
        message_id: pulsar.MessageId,
        topic: str,
        raw: RawMessage,
        schema_version: int,
        reason: str,
        origin: Origin,
    ) -> None:
        self.identity: Final = identity
        self.message_id: Final = message_id
        self.topic: Final = topic
        self.raw: Final = raw
        self.schema_version: Final = schema_version
        self.reason: Final = reason
        self.origin: Final = origin
        self.unsettled = 1

    def settle(self) -> None:
        """Note that the message is settled."""
        self.unsettled = 0
        self.origin.settled(self, 1)


@final
class DataStaxMessage:
    """One message of a DataStax agent. It takes the table's metadata to understand what has changed."""

    __slots__ = ("event", "identity", "message_id", "origin", "raw", "topic", "unsettled")

    def __init__(
        self,
        *,
        identity: bytes,
        message_id: pulsar.MessageId,
        topic: str,
        event: DataStaxEvent,
        raw: RawMessage,
        origin: Origin,
    ) -> None:
        self.identity: Final = identity
        self.message_id: Final = message_id
        self.topic: Final = topic
        self.event: Final = event
        self.raw: Final = raw
        self.origin: Final = origin
        self.unsettled = 1

    def understood(self, content: MutationEvents) -> EventsMessage:
        """The same message, understood as an event of a table."""
        return EventsMessage(
            identity=self.identity,
            message_id=self.message_id,
            content=content,
            topic=self.topic,
            origin=self.origin,
            raw=self.raw,
        )

    def unreadable(self, reason: str) -> UnreadableMessage:
        """The same message, as one that is no event of the table."""
        return UnreadableMessage(
            identity=self.identity,
            message_id=self.message_id,
            topic=self.topic,
            raw=self.raw,
            schema_version=-1,
            reason=reason,
            origin=self.origin,
        )
