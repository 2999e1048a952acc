"""Messages to the publisher's thread: from the reader, from the Pulsar client, and from threads that open topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from change_agent.publishing.dropped_tables import UnwantedEvents
from change_agent.publishing.event_producers import EventProducer
from change_agent.publishing.outgoing import Outgoing
from change_agent.publishing.topic_lane import TopicLane
from change_agent.publishing.topic_queue import TopicQueue

__all__ = [
    "Batch",
    "Changed",
    "Checked",
    "InboxMessage",
    "Lost",
    "Moment",
    "Opened",
    "Refused",
    "Reopened",
    "Result",
    "Stop",
    "Unwanted",
]


class Batch(NamedTuple):
    """Events to be sent, in order."""

    events: Sequence[Outgoing]


class Result(NamedTuple):
    """The client's result for the oldest message of a lane; `error` is None when the broker has it."""

    topic: TopicQueue
    lane: TopicLane
    generation: int
    error: str | None


class Opened(NamedTuple):
    """A topic can be used: a producer for each partition."""

    topic: TopicQueue
    producers: Sequence[EventProducer]


class Unwanted(NamedTuple):
    """A topic was not opened, because the events that are held for it are of tables that were dropped."""

    topic: TopicQueue
    held: UnwantedEvents


class Reopened(NamedTuple):
    """A new producer for a lane. It is not used if the lane's generation is another one by now."""

    topic: TopicQueue
    lane: TopicLane
    generation: int
    producer: EventProducer


class Refused(NamedTuple):
    """An attempt to open a topic, or one of its partitions, failed. It is repeated.

    `is_own`: the topic itself is the reason, so it is no outage of all topics.
    """

    topic: TopicQueue
    reason: str
    is_own: bool


class Changed(NamedTuple):
    """An open topic was changed or deleted. Nothing more may be sent to it before it is opened again."""

    topic: TopicQueue
    reason: str


class Lost(NamedTuple):
    """The topic of a table without an event since the start was lost.

    Opening it reports the loss and creates it again.
    """

    keyspace: str
    table: str
    reason: str


class Checked(NamedTuple):
    """The unopened topics of these tables (keyspace, table) were checked.

    `unanswered`: the tables whose topics could not be checked, with the reason.
    """

    tables: frozenset[tuple[str, str]]
    unanswered: Mapping[tuple[str, str], str]


class Moment(NamedTuple):
    """All events of writes that the node acknowledged before this time (ms since the epoch) are earlier in the inbox.

    It applies to these tables (keyspace, table). Changes of the other tables wait somewhere else, for example because
    they cannot be decoded yet. `present` are all tables with CDC that the node has now.
    """

    time_ms: int
    tables: frozenset[tuple[str, str]]
    present: frozenset[tuple[str, str]]


class Stop(NamedTuple):
    """End the publisher's thread."""


InboxMessage: TypeAlias = (
    Batch | Result | Opened | Unwanted | Reopened | Refused | Changed | Checked | Lost | Moment | Stop
)
