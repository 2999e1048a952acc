"""HoldLimits: which topics that cannot be used are held, so that the other topics can continue."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from change_agent.publishing.topic_queue import TopicQueue

__all__ = ["HoldLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldLimits:
    """Rules for holding topics that cannot be used: only while another topic can be used and the disk has room.

    A topic can be used when the broker acknowledges each message within `answer_s`. Topics that could not be used for
    `seconds` are held if more than `events` or `bytes` wait for all of them, or if reading waits for room; the broker
    must also have acknowledged a message of another topic within `proof_s`. Topics that could not be used for
    `max_seconds` are held even if few events wait, if another topic could be used for `settled_s`: after an outage the
    topics do not come back at the same time. Events that are sent from the disk have room of their own, with the same
    limits.
    """

    events: int
    bytes: int
    seconds: float
    max_held_bytes: int
    max_seconds: float = 90.0
    answer_s: float = 10.0
    proof_s: float = 20.0
    settled_s: float = 30.0

    def disk_has_room(self, topics: Collection[TopicQueue]) -> bool:
        """True while these topics hold less than `max_held_bytes`."""
        return sum(topic.held_bytes for topic in topics) < self.max_held_bytes

    def topics_to_hold(self, topics: Collection[TopicQueue], *, reading_waits: bool) -> list[TopicQueue]:
        """The topics to hold, because they take room from others.

        Empty while no topic can be used: then it is better that events wait in the log.
        """
        waiting = [
            topic
            for topic in topics
            if topic.unusable_for() >= self.seconds and topic.events and not topic.is_held and not topic.is_usable()
        ]
        # Called for each topic in each turn, because `usable_for` notes when the topic is first seen to be usable.
        usable_for = [topic.usable_for() for topic in topics]
        usable = [topic for topic in topics if topic.is_usable()]
        if not waiting or not usable or not self.disk_has_room(topics):
            return []
        events, size = sum(topic.events for topic in waiting), sum(topic.bytes for topic in waiting)
        is_urgent = events > self.events or size > self.bytes or reading_waits
        # A topic that has nothing to send may seem usable for a while although it is not.
        proof_at = time.monotonic() - self.proof_s
        if is_urgent and any(topic.acknowledged_since(proof_at) for topic in usable):
            return waiting
        if max(usable_for) < self.settled_s:
            return []
        return [topic for topic in waiting if topic.unusable_for() >= self.max_seconds]

    def wants_another(self, topics: Collection[TopicQueue], *, reading_waits: bool, tried: int) -> bool:
        """True when reading waits and none of these topics could be used for a long time: another topic may be usable.

        The time doubles with each topic that was `tried`, because the broker itself may be down.
        """
        is_stuck = reading_waits and self.disk_has_room(topics)
        return is_stuck and all(topic.unusable_for() >= self.max_seconds * 2.0**tried for topic in topics)
