"""MutationPublisher: takes events from the reader, sends them to their topics, and reports what the broker has
acknowledged.

One thread owns all topics. All other threads use its inbox: the reader posts batches, the client's threads post
results, and a short-lived thread for each topic that must be opened posts its producers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, Protocol
from urllib.parse import quote, unquote

from change_agent.errors import PartitionsChangedError, PublishError, TopicLostError
from change_agent.metrics import AgentMetrics
from change_agent.positions.inflight import InflightPositions, Place
from change_agent.publishing.event_producers import EventProducer
from change_agent.publishing.held_events import HELD_SUFFIX, TOO_LARGE, HeldEvents
from change_agent.publishing.outgoing import OutgoingEvent, runs_by_table
from change_agent.publishing.publisher_inbox import (
    Batch,
    Changed,
    InboxMessage,
    Opened,
    Refused,
    Reopened,
    Result,
    Stop,
)
from change_agent.publishing.topic_lane import Packing, TopicLane
from change_agent.publishing.topic_queue import TopicQueue
from change_agent.publishing.topic_status import TopicStatus
from runtime.backoff import Backoff
from runtime.stage import Stage
from schemas.topics import events_topic

__all__ = ["HoldLimits", "MutationPublisher", "Producers"]

_log: Final = logging.getLogger(__name__)
# Taken from the inbox before messages are packed; enough to fill them, little enough to keep acknowledgements moving.
_DRAIN: Final = 64
_OPENING: Final = Backoff(0.2, 5)
_SILENT: Final = Backoff(2, 10)
# A producer that can be made and cannot send must not be made in a hot loop.
_REOPENING: Final = Backoff(0.1, 10)
# The client's own way back to a broker slows down to a try a minute; after so long without one, a new producer is
# quicker.
_CUT_OFF_S: Final = 3.0
_LOOK_S: Final = 1.0
# Between two producers of one lane.
# Between two looks at the topics that are in use.
_CHECK_S: Final = 60.0


class Producers(Protocol):
    """Opens producers; both block until the topic can be used, or raise PublishError."""

    def open(self, topic: str) -> list[EventProducer]:
        """Producers of all partitions, in order."""

    def open_partition(self, topic: str, index: int) -> EventProducer:
        """A new producer of one partition."""

    def check(self, topic: str, place: Place | None) -> None:
        """Raise PublishError when the open topic is not what it was. `place`: EventProducers.check."""

    def end_checks(self) -> None:
        """All open topics were looked at."""

    def hazards(self, topic: str) -> tuple[str, ...]:
        """Policies of Pulsar that would drop unread events of the topic; never waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldLimits:
    """When topics that cannot be used are held, while another one can be used and the disk has room.

    A topic can be used when the broker acknowledges each message within `answer_s`. Topics that cannot be used for
    `seconds` are held if together that many events or bytes wait for them, or if reading waits for room, and if the
    broker acknowledged something of another topic within `proof_s`. After `max_seconds` they are held, however little
    waits. Events that are sent from the disk have as much room again.
    """

    events: int
    bytes: int
    seconds: float
    max_held_bytes: int
    max_seconds: float = 90.0
    answer_s: float = 10.0
    proof_s: float = 20.0


class MutationPublisher(Stage):
    """`publish` is for the reader's thread; `start` and `stop` for the owner's. Order per lane is kept, always."""

    def __init__(
        self,
        producers: Producers,
        positions: InflightPositions,
        metrics: AgentMetrics,
        *,
        topic_prefix: str,
        packing: Packing,
        held_directory: Path,
        hold_limits: HoldLimits,
        check_s: float = _CHECK_S,
    ) -> None:
        super().__init__("publisher")
        self._producers: Final = producers
        self._positions: Final = positions
        self._metrics: Final = metrics
        self._topic_prefix: Final = topic_prefix
        self._packing: Final = packing
        self._held_directory: Final = held_directory
        self._hold_limits: Final = hold_limits
        # Of its own, so that what comes from the disk takes no room from what is read.
        self._held_room: Final = InflightPositions(max_events=hold_limits.events, max_bytes=hold_limits.bytes)
        self._inbox: Final[SimpleQueue[InboxMessage]] = SimpleQueue()
        self._topics: Final[dict[tuple[str, str], TopicQueue]] = {}
        # Topics with something to do; a dict keeps their order.
        self._ready: Final[dict[str, TopicQueue]] = {}
        self._look_at = 0.0
        self._check_at = time.monotonic() + check_s
        self._check_s: Final = check_s
        self._checking: threading.Thread | None = None
        # Replaced as a whole, for other threads: by `keyspace.table`.
        self.statuses: Mapping[str, TopicStatus] = {}

    def publish(self, events: Sequence[OutgoingEvent]) -> None:
        """Send these behind all others. Room was taken for them, and their entries are tracked."""
        self._inbox.put(Batch(events))

    def wake(self) -> None:
        """End the wait for events and answers."""
        self._inbox.put(Stop())

    def run(self) -> None:
        """Send, until the stop. What is not acknowledged by then is read again by the next start."""
        for path in sorted(self._held_directory.rglob(f"*{HELD_SUFFIX}")):
            # Held by an earlier process; the name of a table has no dot.
            keyspace, _, table = unquote(path.name.removesuffix(HELD_SUFFIX)).partition(".")
            self._topic(keyspace, table)
        while self._handle_some():
            disk_has_room = self._held_bytes() < self._hold_limits.max_held_bytes
            for topic in self._ready.values():
                if disk_has_room:
                    topic.store_held()
                self._metrics.messages_sent += topic.send_ready()
            self._ready.clear()
            self._look_after_topics()

    def _handle_some(self) -> bool:
        """Handle what is in the inbox, waiting a little for the first; False at the end."""
        try:
            message = self._inbox.get(timeout=_LOOK_S)
        except Empty:
            return True
        for left in reversed(range(_DRAIN)):
            match message:
                case Stop():
                    return False
                case Batch(events):
                    for run in runs_by_table(events):
                        header = run[0].header
                        topic = self._topic(header.keyspace, header.table)
                        self._ready[topic.name] = topic
                        topic.add(run)
                case Result():
                    self._take_result(message)
                case Refused(topic, reason):
                    self._note_problem(topic, reason)
                case Changed(topic, reason):
                    self._note_problem(topic, reason)
                    if not topic.is_held:
                        self._hold(topic)
                case Opened(topic, producers):
                    topic.open(producers)
                    self._ready[topic.name] = topic
                case Reopened(topic, lane, producer):
                    topic.reopen(lane, producer)
                    self._ready[topic.name] = topic
            try:
                if left:
                    message = self._inbox.get_nowait()
            except Empty:
                break
        return True

    def _topic(self, keyspace: str, table: str) -> TopicQueue:
        topic = self._topics.get((keyspace, table))
        if topic is None:
            # Cassandra allows letters, digits and _; whatever the log says, the file stays in its folder.
            held = quote(f"{keyspace}.{table}{HELD_SUFFIX}", safe="")
            topic = self._topics[keyspace, table] = TopicQueue(
                events_topic(keyspace, table, self._topic_prefix),
                HeldEvents(self._held_directory / held),
                HeldEvents(self._held_directory / TOO_LARGE / held),
                self._positions,
                self._held_room,
                self._packing,
                self._metrics.table(f"{keyspace}.{table}"),
                lambda *result: self._inbox.put(Result(*result)),
                answer_s=self._hold_limits.answer_s,
            )
            self._open(topic)
        return topic

    def _open(self, topic: TopicQueue, delay_s: float = 0.0) -> None:
        self._in_background(
            topic, topic.name, lambda: self._inbox.put(Opened(topic, self._producers.open(topic.name))), delay_s
        )

    @staticmethod
    def _note_problem(topic: TopicQueue, reason: str) -> None:
        if topic.note_problem(reason):
            _log.warning("waiting for %s: %s (attempt %d)", topic.name, reason, topic.attempts)

    def _take_result(self, result: Result) -> None:
        topic, lane = result.topic, result.lane
        was_open = lane.is_open
        message = topic.take_result(lane, result.generation, result.error)
        if message is not None:
            self._metrics.events_acknowledged += message.events
            self._metrics.bytes_sent += len(message.payload)
            self._metrics.acknowledged_writetime_us = message.writetime_us or 0
            self._ready[topic.name] = topic
        elif was_open and not lane.is_open:
            self._metrics.send_errors += 1
            self._note_problem(topic, f"a message was refused ({result.error}); it is sent again")
            self._reopen(topic, lane)

    def _look_after_topics(self) -> None:
        """Replace producers without connection; hold topics that cannot be used while others can."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        topics = list(self._topics.values())
        self.statuses = {
            f"{keyspace}.{table}": topic.status(self._producers.hazards(topic.name))
            for (keyspace, table), topic in self._topics.items()
        }
        for topic in topics:
            for lane in topic.lanes:
                if lane.is_cut_off(_CUT_OFF_S):
                    lane.give_up()
                    self._reopen(topic, lane)
            if topic.is_held and topic.is_silent():
                self._hold_again(topic)
            if topic.is_held or topic.waits_for_disk:
                # Room on disk or in flight may have come back.
                self._ready[topic.name] = topic
        for topic in self._topics_to_hold(topics, now):
            if topic.is_silent():
                self._note_silence(topic)
            self._hold(topic)
        self._check_topics(now)

    def _check_topics(self, now: float) -> None:
        """Somebody else may change or delete a topic while it is in use."""
        if now < self._check_at or (self._checking is not None and self._checking.is_alive()):
            return
        self._check_at = now + self._check_s
        place = self._positions.acknowledged_place
        usable = [
            (topic, None if topic.held_bytes or topic.is_held else place)
            for topic in self._topics.values()
            if topic.is_usable()
        ]

        def check() -> None:
            for topic, known in usable:
                try:
                    self._producers.check(topic.name, known)
                except (PartitionsChangedError, TopicLostError) as error:
                    self._inbox.put(Changed(topic, error.reason))
                except PublishError as error:
                    _log.debug("looking at it: %s", error)
            self._producers.end_checks()

        self._checking = threading.Thread(target=check, name="check", daemon=True)
        self._checking.start()

    def _topics_to_hold(self, topics: Sequence[TopicQueue], now: float) -> list[TopicQueue]:
        """Those that stand in the way of others. While none can be used the log is the better place to wait in."""
        limits = self._hold_limits
        waiting = [
            topic
            for topic in topics
            if topic.unusable_for() >= limits.seconds and topic.events and not topic.is_held and not topic.is_usable()
        ]
        usable = [topic for topic in topics if topic.is_usable()]
        if not waiting or not usable or self._held_bytes() >= limits.max_held_bytes:
            return []
        events, size = sum(topic.events for topic in waiting), sum(topic.bytes for topic in waiting)
        is_urgent = events > limits.events or size > limits.bytes or self._positions.waits_for_room
        # One that has nothing to send may seem usable for a while when it is not.
        if is_urgent and any(topic.acknowledged_since(now - limits.proof_s) for topic in usable):
            return waiting
        return [topic for topic in waiting if topic.unusable_for() >= limits.max_seconds]

    def _hold_again(self, topic: TopicQueue) -> None:
        """It opened and does not acknowledge: what is on its way goes again, by new producers."""
        self._note_silence(topic)
        topic.hold()
        self._open(topic, _SILENT.pause_s(topic.silences))

    def _note_silence(self, topic: TopicQueue) -> None:
        seconds = self._hold_limits.answer_s
        self._note_problem(topic, f"the broker took a message and did not acknowledge it within {seconds:g} s")

    def _hold(self, topic: TopicQueue) -> None:
        _log.warning(
            "%s cannot be used for %.0f s: its events are held in %s, so that other tables can continue",
            topic.name, topic.unusable_for(), self._held_directory,
        )  # fmt: skip
        must_open = bool(topic.lanes)
        topic.hold()
        topic.store_held()
        self._metrics.topics_held += 1
        if must_open:
            self._open(topic)

    def _held_bytes(self) -> int:
        return sum(topic.held_bytes for topic in self._topics.values())

    def _reopen(self, topic: TopicQueue, lane: TopicLane) -> None:
        index = topic.lanes.index(lane)
        self._in_background(
            topic,
            f"{topic.name} partition {index}",
            lambda: self._inbox.put(Reopened(topic, lane, self._producers.open_partition(topic.name, index))),
            delay_s=_REOPENING.pause_s(lane.failures),
        )

    def _in_background(self, topic: TopicQueue, what: str, task: Callable[[], None], delay_s: float = 0.0) -> None:
        """Do what blocks on a thread of its own, until it succeeds or the publisher stops."""

        def run() -> None:
            self.stopping.wait(delay_s)
            try:
                failures = self._try_until_done(topic, task)
            except Exception as error:  # noqa: BLE001  # the top of a thread
                self.fail(error)
                return
            if failures is not None:
                _log.info("%s is open%s", what, f" after {failures + 1} attempts" if failures else "")

        threading.Thread(target=run, name="open", daemon=True).start()

    def _try_until_done(self, topic: TopicQueue, task: Callable[[], None]) -> int | None:
        """How often the task failed before; None when the publisher stops first."""
        failures = 0
        while not self.stopping.is_set():
            try:
                task()
            except PublishError as error:
                failures += 1
                self._inbox.put(Refused(topic, error.reason))
                self.stopping.wait(_OPENING.pause_s(failures))
            else:
                return failures
        return None
