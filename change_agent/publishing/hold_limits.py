"""HoldLimits: which topics that cannot be used are held, so that the other topics can continue."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from change_agent.publishing.topic_queue import TopicQueue

__all__ = ["HoldLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldLimits:
    """When topics that cannot be used are held, while another one can be used and the disk has room.

    A topic can be used when the broker acknowledges each message within `answer_s`. Topics that cannot be used for
    `seconds` are held if together that many events or bytes wait for them, or if reading waits for room, and if the
    broker acknowledged something of another topic within `proof_s`. After `max_seconds` they are held, however little
    waits, if another topic can be used for `settled_s`: after an outage the topics do not come back at the same time.
    Events that are sent from the disk have as much room again.
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
        """Those that keep room from others. While no topic can be used there are none: the log is the better place to wait in."""
        waiting = [
            topic
            for topic in topics
            if topic.unusable_for() >= self.seconds and topic.events and not topic.is_held and not topic.is_usable()
        ]
        # Of each, in each turn: a topic notes here since when it can be used.
        usable_for = [topic.usable_for() for topic in topics]
        usable = [topic for topic in topics if topic.is_usable()]
        if not waiting or not usable or not self.disk_has_room(topics):
            return []
        events, size = sum(topic.events for topic in waiting), sum(topic.bytes for topic in waiting)
        is_urgent = events > self.events or size > self.bytes or reading_waits
        # A topic that has nothing to send may seem usable for a while when it is not.
        proof_at = time.monotonic() - self.proof_s
        if is_urgent and any(topic.acknowledged_since(proof_at) for topic in usable):
            return waiting
        if max(usable_for) < self.settled_s:
            return []
        return [topic for topic in waiting if topic.unusable_for() >= self.max_seconds]

    def wants_another(self, topics: Collection[TopicQueue], *, reading_waits: bool, tried: int) -> bool:
        """True when reading waits and none of these topics can be used, for long: one of another table may be usable.

        With each one that was `tried` it takes twice as long: the broker itself may be away.
        """
        is_stuck = reading_waits and self.disk_has_room(topics)
        return is_stuck and all(topic.unusable_for() >= self.max_seconds * 2.0**tried for topic in topics)
