"""TopicQueue: all events of one events topic that are not acknowledged, and the states of its life.

                  the topic has producers
     OPENING ──────────────────────────────> OPEN <──────────────────────┐
        │                                   │    ^                       │
        │ it keeps room from other topics   │    │ producers             │ the file is sent and acknowledged
        └───────────────┬───────────────────┘    │                       │
                        v                        │                       │
                     BLOCKED ────────────────────┴────────────────────> HELD
                                                   the disk took its events

`TopicQueue.become` is the only place where the state changes.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from change_agent.metrics import TableMetrics
from change_agent.positions.inflight import InflightPositions
from change_agent.publishing.event_producers import EventProducer
from change_agent.publishing.messages import Message, Packing
from change_agent.publishing.outgoing import MessageHeader, Outgoing, OutgoingEvent, WaitingEvents, route
from change_agent.publishing.topic_files import TopicFiles
from change_agent.publishing.topic_lane import TopicLane
from change_agent.publishing.topic_notices import TopicNotices
from change_agent.publishing.topic_status import TopicProblem, TopicStatus
from change_agent.schema.node_connection import token_of
from schemas.mutation_event import MutationEvents, decode_events
from schemas.progress_record import Checkpoint, TopicPosition

__all__ = ["TopicQueue", "TopicState"]

_log: Final = logging.getLogger(__name__)
# The largest number of moments that wait for acknowledgements. When there are more, the last but one is dropped.
_MOST_MOMENTS: Final = 64
# How many messages are written to disk at once.
_STORED_TOGETHER: Final = 64


class TopicState(Enum):
    """Where the events of a topic are. In each state new events go after the others of their partition."""

    OPENING = "opening"
    """In the backlog: the number of partitions is not known yet."""
    OPEN = "open"
    """In the lanes."""
    HELD = "held"
    """In the file; new events go to the backlog, and from there to the file. The lanes have events from the file."""
    BLOCKED = "blocked"
    """In the lanes, which have no producers, or in the backlog. The disk has not taken them yet."""


_NEXT: Final = {
    TopicState.OPENING: (TopicState.OPEN, TopicState.BLOCKED),
    TopicState.OPEN: (TopicState.BLOCKED,),
    TopicState.BLOCKED: (TopicState.HELD, TopicState.OPEN),
    TopicState.HELD: (TopicState.OPEN,),
}


class TopicQueue:
    """Owned by the publisher's thread. The order of events in a topic partition is kept in all states.

    A topic that cannot be used while others can is held: its events go to a file, and are acknowledged, because they
    are durable there. When the topic can be used again, the file is sent first, in rounds: one message until the broker
    has acknowledged something, then as many as `held_room` has room for. After a crash in between, it is sent again.

    When the disk is full, events stay where they are, not acknowledged. Reading stops when they take all room.
    """

    def __init__(
        self,
        name: str,
        files: TopicFiles,
        positions: InflightPositions,
        held_room: InflightPositions,
        packing: Packing,
        metrics: TableMetrics,
        on_result: Callable[[TopicQueue, TopicLane, int, str | None], None],
        notices: TopicNotices,
        *,
        answer_s: float,
    ) -> None:
        self.name: Final = name
        self.metrics: Final = metrics
        self.state = TopicState.OPENING if files.held.is_read else TopicState.HELD
        self.lanes: Sequence[TopicLane] = ()
        """One for each partition; none before the topic was opened for the first time. Replaced as a whole."""
        self.checkpoint: Checkpoint | None = None
        """The time up to which the broker has all events. Replaced as a whole, because other threads read it."""
        self.first_positions: tuple[TopicPosition, ...] = ()
        """For each partition, what earlier checkpoints with an unknown position have in its place. Replaced as a whole."""
        self.silences = 0
        """How often in a row the held topic was opened and did not acknowledge a message."""
        self.is_given_up = False
        """True when the publisher does not use it any more, because its table was dropped."""
        self._files: Final = files
        self._backlog: Final = WaitingEvents()
        self._positions: Final = positions
        self._held_room: Final = held_room
        self._packing: Final = packing
        self._on_result: Final = on_result
        self._notices: Final = notices
        self._answer_s: Final = answer_s
        self._unusable_since: float | None = time.monotonic()
        self._usable_since: float | None = None
        self._problem: TopicProblem | None = None
        # When the broker last acknowledged a message; None if it has not since the topic was opened.
        self._acknowledged_at: float | None = None
        # Moments that wait for acknowledgements: the time, and the number of events of each lane.
        self._moments: Final[deque[tuple[int, list[tuple[TopicLane, int]]]]] = deque()

    def become(self, state: TopicState) -> None:
        """Change the state."""
        assert state in _NEXT[self.state], f"{self.name}: {self.state} -> {state}"
        self.state = state

    @property
    def is_held(self) -> bool:
        """True while its events are in the file, or must go there."""
        return self.state in (TopicState.HELD, TopicState.BLOCKED)

    @property
    def held_bytes(self) -> int:
        """Bytes of the file of held events."""
        return self._files.held.size

    @property
    def held_path(self) -> Path:
        """The file of held events."""
        return self._files.held.path

    @property
    def events(self) -> int:
        """How many events are in memory."""
        return len(self._backlog) + self._events_in_lanes

    @property
    def bytes(self) -> int:
        """The room that the events in memory take."""
        return self._backlog.size + sum(lane.bytes for lane in self.lanes)

    @property
    def _events_in_lanes(self) -> int:
        return sum(lane.events for lane in self.lanes)

    def status(self, hazards: tuple[str, ...] = ()) -> TopicStatus:
        """The topic's present status."""
        problem = self._problem
        return TopicStatus(
            topic=self.name,
            partitions=sum(lane.is_open for lane in self.lanes) and len(self.lanes),
            is_usable=self.is_usable(),
            waiting_events=self.events,
            held_bytes=self.held_bytes,
            too_large_bytes=self._files.too_large.size,
            problem=None if problem is None else problem.reason,
            problem_since_s=None if problem is None else problem.since_s,
            attempts=0 if problem is None else problem.attempts,
            hazards=hazards,
        )

    @property
    def stopped(self) -> str | None:
        """Why no moment can be passed, as text; None when only acknowledgements are missing. For any thread."""
        problem = "" if self._problem is None else f" ({self._problem.reason})"
        if self.metrics.damaged_bytes:
            return f"events in {self._files.held.path} were damaged and cannot be published: verify the table"
        if self._has_too_large:
            return f"an event is larger than the broker takes, and is kept in {self._files.too_large.path}"
        if self.is_held:
            return f"its events are held on disk{problem}"
        if self.events and self.state is TopicState.OPENING:
            return f"its topic is not open{problem}"
        return f"its topic cannot be used{problem}" if self.events and self._problem is not None else None

    @property
    def _has_too_large(self) -> bool:
        return self._files.too_large.size > 0 or any(lane.too_large for lane in self.lanes)

    def note_moment(self, time_ms: int) -> None:
        """Note that all events of writes that the node acknowledged before `time_ms` (since the epoch) were added."""
        if self.metrics.damaged_bytes or self._has_too_large or self.is_held:
            self._moments.clear()
        elif self.events == 0 or self.lanes:
            # Without lanes, the events in the backlog cannot be counted by lane: a later moment counts them.
            self._moments.append((time_ms, [(lane, lane.handed_over) for lane in self.lanes]))
            if len(self._moments) > _MOST_MOMENTS:
                del self._moments[-2]
            self._pass_moments()

    def _pass_moments(self) -> None:
        if self._moments and self._has_too_large:
            # The counts of the moments include the too large event: a later acknowledged event would be counted for it.
            self._moments.clear()
        passed = None
        while self._moments and all(lane.acknowledged >= count for lane, count in self._moments[0][1]):
            passed = self._moments.popleft()[0]
        if passed is not None:
            # In this order: a reader takes the checkpoint first, so its unknown positions are not after these.
            self.first_positions = tuple(lane.first_position for lane in self.lanes)
            self.checkpoint = Checkpoint(passed, tuple(lane.last_position for lane in self.lanes))

    def note_problem(self, reason: str, *, is_own: bool = False) -> None:
        """Note that the topic was refused. `is_own`: the topic itself is the reason, so that the log names it."""
        before = self._problem
        self.metrics.retries += 1
        attempts = 1 if before is None else before.attempts + 1
        self._problem = TopicProblem(reason, time.time() if before is None else before.since_s, attempts)
        self._notices.refused(self.name, reason, attempts, is_own=is_own)

    def note_recovery(self) -> None:
        """Note that the topic takes events again, if it was refused."""
        if self._problem is not None:
            self._notices.recovered(self.name, self._problem.attempts)
            self._problem = None

    def note_idle(self) -> None:
        """Note that the topic takes events again, if nothing waits for it and it can be used.

        Otherwise an acknowledgement shows that it does.
        """
        if self.state is TopicState.OPEN and not self.events and self.is_usable():
            self.note_recovery()

    def note_silence(self) -> None:
        """Note that the broker does not acknowledge a message of the topic."""
        self.note_problem(f"the broker took a message and did not acknowledge it within {self._answer_s:g} s")

    def is_usable(self) -> bool:
        """True when every partition has a connection, and its messages are acknowledged in time."""
        return self._is_connected() and not self.is_silent()

    def _is_connected(self) -> bool:
        return bool(self.lanes) and all(lane.is_usable for lane in self.lanes)

    def is_silent(self) -> bool:
        """True when the broker has not acknowledged a message for too long."""
        return self._unanswered_for() > self._answer_s

    def _unanswered_for(self) -> float:
        return max((lane.unanswered_for() for lane in self.lanes), default=0.0)

    def unusable_for(self) -> float:
        """Seconds since it was first seen that the topic cannot be used; 0 when it can."""
        if self._is_connected():
            self._unusable_since = None
            return self._unanswered_for() if self.is_silent() else 0.0
        if self._unusable_since is None:
            self._unusable_since = time.monotonic()
        return max(time.monotonic() - self._unusable_since, self._unanswered_for())

    def usable_for(self) -> float:
        """Seconds since it was first seen that the topic can be used; 0 when it cannot."""
        if not self.is_usable():
            self._usable_since = None
            return 0.0
        if self._usable_since is None:
            self._usable_since = time.monotonic()
        return time.monotonic() - self._usable_since

    def acknowledged_since(self, time_s: float) -> bool:
        """True if the broker acknowledged a message of the topic since then (monotonic seconds)."""
        return self._acknowledged_at is not None and self._acknowledged_at >= time_s

    def add(self, events: Sequence[Outgoing]) -> None:
        """Add events after all others of their partitions."""
        if self.lanes and self.state is not TopicState.HELD:
            self._route(events)
        else:
            for event in events:
                self._backlog.add(event)

    def _route(self, events: Iterable[Outgoing]) -> None:
        route(events, [lane.waiting for lane in self.lanes], token_of)

    def open(self, producers: Sequence[EventProducer]) -> bool:
        """Send with these producers, one for each partition.

        False when there are messages for another number of partitions. They must go to the file first; the producers
        are closed.
        """
        if len(producers) != len(self.lanes):
            if self._events_in_lanes:
                for producer in producers:
                    producer.close()
                return False
            self.lanes = [self._new_lane() for _ in producers]
        for lane, producer in zip(self.lanes, producers, strict=True):
            lane.open(producer)
        if self.state is not TopicState.HELD:
            self._become_open()
        return True

    def reopen(self, lane: TopicLane, generation: int, producer: EventProducer) -> None:
        """Use a new producer for a lane. It is closed if the lane was stopped meanwhile."""
        if lane.generation == generation:
            lane.open(producer)
        else:
            producer.close()

    def _become_open(self) -> None:
        self.become(TopicState.OPEN)
        self._route(self._backlog.take_all())

    def _new_lane(self) -> TopicLane:
        return TopicLane(self._packing, lambda lane, generation, error: self._on_result(self, lane, generation, error))

    def send_ready(self) -> int:
        """Send the events that can be sent. Return the number of messages that were sent."""
        if self.state is TopicState.HELD and self.is_usable():
            self._load()
        count = sum(lane.send_ready() for lane in self.lanes)
        self._set_aside()
        return count

    def take_result(self, lane: TopicLane, generation: int, error: str | None) -> Message | None:
        """Take the client's result for the lane's oldest message. Return the message if it was acknowledged."""
        message = lane.take_result(generation, error)
        if message is None:
            return None
        self._acknowledged_at = time.monotonic()
        self.silences = 0
        self.note_recovery()
        self._count(message)
        self._settle(message)
        self._pass_moments()
        return message

    def _count(self, message: Message) -> None:
        metrics = self.metrics
        metrics.events_acknowledged += message.events
        metrics.messages_sent += 1
        metrics.bytes_sent += len(message.payload)
        if message.writetime_us is not None:
            metrics.observe_delay(time.time() - message.writetime_us / 1e6, message.events)

    def _settle(self, message: Message) -> None:
        """Finish a message that has left its lane: acknowledge its entries, or give its room for held events back."""
        if message.entries:
            self._positions.acknowledge(message.entries, message.events, message.size)
            return
        self._held_room.give_room_back(message.events, message.size)
        if self._events_in_lanes == 0:
            self._files.held.note_done()

    def _set_aside(self) -> None:
        """Store events that are larger than the broker accepts on disk. Later events are sent."""
        files = self._files
        for lane in self.lanes:
            while lane.too_large and files.may_write and files.keep_too_large(lane.too_large[0].payload):
                self._note_too_large(lane.take_too_large())

    def _note_too_large(self, message: Message) -> None:
        self.metrics.events_too_large += 1
        event = decode_events(message.payload).events[0]
        _log.error(
            "%s: an event of %d bytes is larger than the broker's maxMessageSize; it is kept in %s and tried again at the"
            " next start (position %d)",
            self.name,
            len(message.payload),
            self._files.too_large.path,
            event.position,
        )
        self._settle(message)

    def hold(self) -> None:
        """Let events be stored on disk from now on, until the topic can be used again."""
        self._moments.clear()
        self.silences += self.is_held and self._acknowledged_at is None
        self._acknowledged_at = None
        for lane in self.lanes:
            lane.stop()
        if self.state is not TopicState.HELD:
            self.become(TopicState.BLOCKED)
            return
        # The events in the lanes are also in the file.
        for lane in self.lanes:
            self._held_room.give_room_back(lane.events, lane.bytes)
            lane.clear()
        self._files.held.rewind()

    def drop_held(self, size: int) -> bool:
        """Remove the held events. False if the file has other events than these `size` bytes."""
        if self.held_bytes != size:
            return False
        self._files.held.remove()
        return True

    def store(self) -> None:
        """Write the events that must go to the file, and acknowledge them."""
        if self._files.may_write:
            if self.state is TopicState.BLOCKED and self._store_lanes():
                self.become(TopicState.HELD)
            if self.state is TopicState.HELD:
                self._store_backlog()

    def _store_lanes(self) -> bool:
        messages = [message for lane in self.lanes for message in lane.pack_all()]
        if messages and not self._store(messages):
            return False
        for lane in self.lanes:
            lane.clear()
        return True

    def _store_backlog(self) -> None:
        # If the whole file is read and the topic can be used, the backlog stays in memory: it goes to the lanes as soon
        # as the last round is acknowledged.
        while self._backlog and not (self._files.held.is_read and self.is_usable()):
            packed: list[tuple[Message, Sequence[Outgoing]]] = []
            while self._backlog and len(packed) < _STORED_TOGETHER:
                packed.append(self._packing.pack(self._backlog))
            if not self._store([message for message, _ in packed]):
                self._backlog.put_back([event for _, taken in packed for event in taken])
                return

    def _store(self, messages: Sequence[Message]) -> bool:
        is_stored = self._files.hold([message.payload for message in messages])
        if is_stored:
            for message in messages:
                self._positions.acknowledge(message.entries, message.events, message.size)
        return is_stored

    def _load(self) -> None:
        """Read a round from the file into the lanes, when the previous round is acknowledged."""
        if self._events_in_lanes:
            return
        while (message := self._files.read_next()) is not None:
            if not self._send_held(message):
                self._files.held.unread()
                return
            if self._acknowledged_at is None:
                # One message is enough to see whether the broker acknowledges.
                return
        if self._events_in_lanes == 0 and self._files.held.is_read:
            if self.held_bytes:
                self._files.held.remove()
                _log.info("%s: everything that was held is published", self.name)
            self._become_open()

    def _send_held(self, message: MutationEvents) -> bool:
        """Route the events of a held message; False when there is no room for them.

        They are decoded, because a file may be older than the schema, or than the topic's number of partitions.
        """
        sizes = [len(event.key) + len(event.partition_key) for event in message.events]
        if not self._held_room.take_room(len(sizes), sum(sizes), 0):
            return False
        header = MessageHeader(
            message.node_id, message.segment_id, message.keyspace, message.table, message.table_id, message.key_schema
        )
        pairs = zip(message.events, sizes, strict=True)
        self._route([OutgoingEvent(header, event, None, size) for event, size in pairs])
        return True
