"""What the publisher's thread is told by others: by the reader, by the Pulsar client, by threads that open topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from change_agent.publishing.event_producers import EventProducer
from change_agent.publishing.outgoing import OutgoingEvent
from change_agent.publishing.topic_lane import TopicLane
from change_agent.publishing.topic_queue import TopicQueue

__all__ = ["Batch", "Changed", "InboxMessage", "Opened", "Refused", "Reopened", "Result", "Stop"]


class Batch(NamedTuple):
    """Events to be sent, in order."""

    events: Sequence[OutgoingEvent]


class Result(NamedTuple):
    """What the client said about the oldest message of a lane; `error` is None when the broker has it."""

    topic: TopicQueue
    lane: TopicLane
    generation: int
    error: str | None


class Opened(NamedTuple):
    """A topic can be used: a producer for each partition."""

    topic: TopicQueue
    producers: Sequence[EventProducer]


class Reopened(NamedTuple):
    """A new producer for a lane whose old one failed."""

    topic: TopicQueue
    lane: TopicLane
    producer: EventProducer


class Refused(NamedTuple):
    """An attempt to open a topic, or a lane of it, failed; it is repeated."""

    topic: TopicQueue
    reason: str


class Changed(NamedTuple):
    """An open topic is not what it was: it must not be used any more."""

    topic: TopicQueue
    reason: str


class Stop(NamedTuple):
    """The end."""


InboxMessage: TypeAlias = Batch | Result | Opened | Reopened | Refused | Changed | Stop
