"""TopicQueue: all that is on its way to one events topic: in its lanes, waiting for it to open, or held on disk."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from change_agent.metrics import TableMetrics
from change_agent.positions.inflight import InflightPositions
from change_agent.publishing.event_producers import EventProducer
from change_agent.publishing.held_events import HeldEvents
from change_agent.publishing.outgoing import MessageHeader, OutgoingEvent, route, size_of
from change_agent.publishing.topic_lane import Packing, SentMessage, TopicLane
from change_agent.publishing.topic_status import TopicStatus
from change_agent.schema.node_connection import token_of
from schemas.mutation_event import MutationEvents, decode_events, encode_events

__all__ = ["TopicQueue"]

_log: Final = logging.getLogger(__name__)


class TopicQueue:
    """Owned by the publisher's thread. Order per topic partition is kept, whatever way the events take.

    A topic that cannot be used while others can is *held*: what waits for it goes to a file, and is acknowledged, for it
    is durable there. When the topic opens, the file is sent first, by rounds: a single message until the broker has
    acknowledged one, then as much as `held_room` gives. After a crash in the middle it is sent again.
    """

    def __init__(
        self,
        name: str,
        held: HeldEvents,
        too_large: HeldEvents,
        positions: InflightPositions,
        held_room: InflightPositions,
        packing: Packing,
        metrics: TableMetrics,
        on_result: Callable[[TopicQueue, TopicLane, int, str | None], None],
        *,
        answer_s: float,
    ) -> None:
        self.name: Final = name
        self.metrics: Final = metrics
        self._held: Final = held
        self._too_large: Final = too_large
        self._positions: Final = positions
        self._held_room: Final = held_room
        self._answer_s: Final = answer_s
        self._packing: Final = packing
        self._on_result: Final = on_result
        self._lanes: list[TopicLane] = []
        # Events before the number of partitions is known, or behind those that are held: a lane that never opens.
        self._line: TopicLane = self._new_lane()
        self._ready: Final[dict[int, TopicLane]] = {}
        self._unusable_since: float | None = time.monotonic()
        self._problem: str | None = None
        self._problem_since_s: float | None = None
        self._attempts = 0
        self._held_on_their_way = 0
        # Since it was opened; None before the broker acknowledged something.
        self._acknowledged_at: float | None = None
        # Times in a row that it was held again, for it did not acknowledge.
        self._silences = 0
        # For the disk, which refused them.
        self._unstored: list[SentMessage] = []
        self._not_set_aside: Final[deque[SentMessage]] = deque()
        self._is_unwritable = False
        self.events = 0
        self.bytes = 0
        self._retry_too_large()
        self._tell_damage(held)
        self.is_held = not held.is_read

    @property
    def lanes(self) -> Sequence[TopicLane]:
        """One a partition; none before the topic is open."""
        return self._lanes

    @property
    def held_bytes(self) -> int:
        """Bytes on disk."""
        return self._held.size

    @property
    def waits_for_disk(self) -> bool:
        """True when something of it could not be written, and is kept in memory."""
        return bool(self._unstored or self._not_set_aside)

    @property
    def attempts(self) -> int:
        """How often it was refused since it last took something."""
        return self._attempts

    def status(self, hazards: tuple[str, ...] = ()) -> TopicStatus:
        """How it stands now."""
        return TopicStatus(
            topic=self.name,
            partitions=len(self._lanes),
            is_usable=self.is_usable(),
            waiting_events=self.events,
            held_bytes=self._held.size,
            too_large_bytes=self._too_large.size,
            problem=self._problem,
            problem_since_s=self._problem_since_s,
            attempts=self._attempts,
            hazards=hazards,
        )

    def note_problem(self, reason: str) -> bool:
        """It was refused (again); True when that is worth a line of the log: ever more seldom, unless it is new."""
        is_new = self._problem != reason
        self._attempts += 1
        self.metrics.retries += 1
        if self._problem is None:
            self._problem_since_s = time.time()
        self._problem = reason
        return is_new or self._attempts & (self._attempts - 1) == 0

    @property
    def silences(self) -> int:
        """How often in a row it was held again, for it was open and did not acknowledge."""
        return self._silences

    def is_usable(self) -> bool:
        """True when every partition has a connection and acknowledges in time what is sent to it."""
        return self._is_connected() and not self.is_silent()

    def _is_connected(self) -> bool:
        return bool(self._lanes) and all(lane.is_usable for lane in self._lanes)

    def is_silent(self) -> bool:
        """True when a message was sent and the broker has not acknowledged it for too long."""
        return self._unanswered_for() > self._answer_s

    def _unanswered_for(self) -> float:
        return max((lane.unanswered_for() for lane in self._lanes), default=0.0)

    def unusable_for(self) -> float:
        """Seconds since it was first seen that the topic cannot be used; 0 when it can."""
        if self._is_connected():
            self._unusable_since = None
            return self._unanswered_for() if self.is_silent() else 0.0
        if self._unusable_since is None:
            self._unusable_since = time.monotonic()
        return max(time.monotonic() - self._unusable_since, self._unanswered_for())

    def acknowledged_since(self, time_s: float) -> bool:
        """Whether the broker acknowledged something of it since then (monotonic seconds)."""
        return self._acknowledged_at is not None and self._acknowledged_at >= time_s

    def add(self, events: Sequence[OutgoingEvent]) -> None:
        """Events behind all others of their partitions."""
        self.events += len(events)
        self.bytes += size_of(events)
        if self._lanes and not self.is_held:
            self._route(events)
        else:
            for event in events:
                self._line.waiting.add(event)

    def _route(self, events: Sequence[OutgoingEvent]) -> None:
        for index in route(events, [lane.waiting for lane in self._lanes], token_of):
            lane = self._lanes[index]
            self._ready[id(lane)] = lane

    def open(self, producers: Sequence[EventProducer]) -> None:
        """The topic can be used; so many partitions it has."""
        for producer in producers:
            lane = self._new_lane()
            lane.open(producer)
            self._lanes.append(lane)
        if not self.is_held:
            self._route(self._line.waiting.take_all())

    def reopen(self, lane: TopicLane, producer: EventProducer) -> None:
        """A new producer for a lane whose old one failed; it is closed when the lane was given up meanwhile."""
        if lane not in self._lanes:
            producer.close()
            return
        lane.open(producer)
        self._ready[id(lane)] = lane

    def take_result(self, lane: TopicLane, generation: int, error: str | None) -> SentMessage | None:
        """What the client said about the lane's oldest message: the message when it was acknowledged."""
        message = lane.take_result(generation, error)
        if message is None:
            return None
        self._ready[id(lane)] = lane
        self._acknowledged_at = time.monotonic()
        self._silences = 0
        if self._problem is not None:
            _log.info("%s takes events again, after %d attempts", self.name, self._attempts)
            self._problem, self._problem_since_s, self._attempts = None, None, 0
        self._count(message)
        self._settle(message)
        return message

    def _count(self, message: SentMessage) -> None:
        metrics = self.metrics
        metrics.events_acknowledged += message.events
        metrics.messages_sent += 1
        metrics.bytes_sent += len(message.payload)
        if message.writetime_us is not None:
            metrics.observe_delay(time.time() - message.writetime_us / 1e6, message.events)

    def _settle(self, message: SentMessage) -> None:
        """Nothing is left to do for this message."""
        self._forget(message)
        if message.entries:
            self._positions.acknowledge(message.entries, message.events, message.size)
        else:
            self._held_room.give_room_back(message.events, message.size)
            self._held_on_their_way -= message.events
            if self._held_on_their_way == 0:
                self._held.note_done()
        self._remove_when_published()

    def _remove_when_published(self) -> None:
        if self._held.is_read and self._held_on_their_way == 0 and self._held.size:
            self._held.remove()
            _log.info("%s: everything that was held is published", self.name)

    def _set_aside(self, message: SentMessage) -> None:
        """Keep an event that the broker will not take for its size; the ones behind it go on."""
        self._not_set_aside.append(message)
        self._set_aside_again()

    def _set_aside_again(self) -> None:
        """Keep those that are too large and not kept yet; until then their places in the log are not acknowledged."""
        waiting = self._not_set_aside
        while waiting and self._append(self._too_large, [waiting[0].payload]):
            self._note_too_large(waiting.popleft())

    def _note_too_large(self, message: SentMessage) -> None:
        self.metrics.events_too_large += 1
        event = decode_events(message.payload).events[0]
        _log.error(
            "%s: an event of %d bytes is larger than the broker's maxMessageSize; it is kept in %s and tried again at the"
            " next start (position %d)",
            self.name, len(message.payload), self._too_large.path, event.position,
        )  # fmt: skip
        self._settle(message)

    def _retry_too_large(self) -> None:
        """What an earlier process set aside goes again, in front: the broker may take more by now."""
        if self._too_large.size == 0:
            return
        payloads = []
        while (message := self._too_large.read_next()) is not None:
            payloads.append(encode_events(message))
        self._tell_damage(self._too_large)
        if not payloads or self._append(self._held, payloads):
            self._too_large.remove()
        else:
            self._too_large.rewind()

    def _tell_damage(self, held: HeldEvents) -> None:
        if damaged := held.take_damage():
            self.metrics.damaged_bytes += damaged
            _log.error(
                "%s: %d bytes of events in %s are damaged and cannot be published: verify the table; the others are sent, then"
                " the file is kept as %s.damaged",
                self.name, damaged, held.path, held.path.name,
            )  # fmt: skip

    def send_ready(self) -> int:
        """Send what can be sent; the number of messages that were sent."""
        if self.is_held and self.is_usable():
            self._load()
        count = sum(lane.send_ready() for lane in self._ready.values())
        self._ready.clear()
        return count

    def hold(self) -> None:
        """Move what is on its way to disk, and everything that comes until the topic can be used again."""
        messages = [message for lane in self._lanes for message in lane.take_all()]
        self._lanes, self._held_on_their_way = [], 0
        self._silences += self.is_held and self._acknowledged_at is None
        self._acknowledged_at = None
        self._ready.clear()
        self._held.rewind()
        self.is_held = True
        for message in messages:
            if not message.entries:
                # It is in the file already.
                self._forget(message)
                self._held_room.give_room_back(message.events, message.size)
        self._store([message for message in messages if message.entries])

    def store_held(self) -> None:
        """Make durable, and acknowledge, what came since the topic is held, and what the disk did not take before."""
        messages: list[SentMessage] = []
        if self.is_held and self._line.waiting and not self._unstored:
            line, self._line = self._line, self._new_lane()
            messages = line.take_all()
        self._store(messages)
        self._set_aside_again()

    def _store(self, messages: Sequence[SentMessage]) -> None:
        """Hold these; where the disk refuses they stay in memory, not acknowledged, until it takes them."""
        self._unstored += messages
        if not self._unstored or not self._append(self._held, [message.payload for message in self._unstored]):
            return
        for message in self._unstored:
            self._forget(message)
            self._positions.acknowledge(message.entries, message.events, message.size)
        self._unstored = []

    def _append(self, held: HeldEvents, payloads: Sequence[bytes]) -> bool:
        try:
            held.append(payloads)
        except OSError as error:
            self.metrics.write_failures += 1
            if not self._is_unwritable:
                _log.error("%s cannot be written (%s); its events wait, trying again", held.path, error.strerror)
            self._is_unwritable = True
            return False
        self._is_unwritable = False
        return True

    def _load(self) -> None:
        """A round from disk into the lanes, when the one before is acknowledged; in front of what waits behind it."""
        if self._held_on_their_way:
            return
        while True:
            message = self._held.read_next()
            self._tell_damage(self._held)
            if message is None:
                self.is_held = False
                self._remove_when_published()
                self._route_unstored()
                self._route(self._line.waiting.take_all())
                return
            if not self._send_held(message):
                self._held.unread()
                return
            if self._acknowledged_at is None:
                # Until the broker has acknowledged something, one message is enough to find out.
                return

    def _send_held(self, message: MutationEvents) -> bool:
        """Route the events of a held message; False when there is no room for them."""
        sizes = [len(event.key) + len(event.partition_key) for event in message.events]
        if not self._held_room.take_room(len(sizes), sum(sizes), 0):
            return False
        header = MessageHeader(
            message.node_id, message.segment_id, message.keyspace, message.table, message.table_id, message.key_schema
        )
        self._held_on_their_way += len(sizes)
        self.events += len(sizes)
        self.bytes += sum(sizes)
        pairs = zip(message.events, sizes, strict=True)
        self._route([OutgoingEvent(header, event, None, size) for event, size in pairs])
        return True

    def _route_unstored(self) -> None:
        """What should have been held, and the disk did not take, is in memory still: in front of what waits."""
        messages, self._unstored = self._unstored, []
        for message in messages:
            packed = decode_events(message.payload)
            header = MessageHeader(
                packed.node_id, packed.segment_id, packed.keyspace, packed.table, packed.table_id, packed.key_schema
            )
            # Room was taken for the message as a whole: its last event gives back what the division leaves.
            share, rest = divmod(message.size, message.events)
            sizes = [share] * (message.events - 1) + [share + rest]
            each = zip(packed.events, message.entries, sizes, strict=True)
            self._route([OutgoingEvent(header, event, entry, size) for event, entry, size in each])

    def _forget(self, message: SentMessage) -> None:
        self.events -= message.events
        self.bytes -= message.size

    def _new_lane(self) -> TopicLane:
        return TopicLane(
            self._packing,
            lambda lane, generation, error: self._on_result(self, lane, generation, error),
            self._set_aside,
        )
