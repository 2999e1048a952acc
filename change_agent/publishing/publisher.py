"""MutationPublisher: takes events from the reader, sends them to their topics, and reports what the broker has
acknowledged.

One thread owns all topics. All other threads use its inbox: the reader posts batches, the client's threads post
results, and a short-lived thread for each topic that must be opened posts its producers. The module has more than 500
lines because every message of the inbox, and each thread that posts one, is handled here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final
from urllib.parse import quote, unquote

from change_agent.errors import PartitionsChangedError, PublishError, TopicLostError
from change_agent.metrics import AgentMetrics
from change_agent.positions.inflight import InflightPositions
from change_agent.publishing.awaited_clearings import AwaitedClearings
from change_agent.publishing.dropped_tables import DroppedTables
from change_agent.publishing.event_producers import EventProducers
from change_agent.publishing.held_events import HELD_SUFFIX
from change_agent.publishing.hold_limits import HoldLimits
from change_agent.publishing.messages import Packing
from change_agent.publishing.outgoing import Outgoing, runs_by_table
from change_agent.publishing.publisher_inbox import (
    Batch,
    Changed,
    Checked,
    InboxMessage,
    Lost,
    Moment,
    Opened,
    Refused,
    Reopened,
    Result,
    Stop,
    Unwanted,
)
from change_agent.publishing.topic_files import TopicFiles
from change_agent.publishing.topic_lane import TopicLane
from change_agent.publishing.topic_notices import TopicNotices
from change_agent.publishing.topic_queue import TopicQueue, TopicState
from change_agent.publishing.topic_status import TopicStatus
from runtime.backoff import Backoff
from runtime.stage import Stage
from schemas.progress_record import Checkpoint, TopicPosition
from schemas.topics import events_topic

__all__ = ["MutationPublisher"]

_log: Final = logging.getLogger(__name__)
# How many inbox messages are handled before events are packed: enough to fill messages, few enough not to delay
# sending.
_DRAIN: Final = 64
_OPENING: Final = Backoff(0.2, 5)
_SILENT: Final = Backoff(2, 10)
# Limits how often producers that can connect but not send are replaced.
_REOPENING: Final = Backoff(0.1, 10)
# The client's own reconnection backs off to one try a minute. After this time without a connection, a new producer is
# quicker.
_CUT_OFF_S: Final = 3.0
_TURN_S: Final = 1.0
# The pause between two checks of the topics.
_CHECK_S: Final = 60.0
_CHECK_AGAIN_S: Final = 5.0


class MutationPublisher(Stage):
    """`publish` is called by the reader's thread, `start` and `stop` by the owner's.

    The order of events in a lane is always kept.
    """

    def __init__(
        self,
        producers: EventProducers,
        positions: InflightPositions,
        metrics: AgentMetrics,
        *,
        topic_prefix: str,
        packing: Packing,
        held_directory: Path,
        hold_limits: HoldLimits,
        check_s: float = _CHECK_S,
        tables: Callable[[], Collection[tuple[str, str]]] = tuple,
        on_damage: Callable[[str, str], None] = lambda table, reason: None,
        awaited: AwaitedClearings | None = None,
        dropped: DroppedTables | None = None,
    ) -> None:
        """`tables` returns the tables (keyspace, table) that may have events now.

        `on_damage` is called with `keyspace.table` and a reason when held events of the table are lost. The publisher's
        thread calls both.
        """
        super().__init__("publisher")
        self._producers: Final = producers
        self._positions: Final = positions
        self._metrics: Final = metrics
        self._topic_prefix: Final = topic_prefix
        self._packing: Final = packing
        self._held_directory: Final = held_directory
        self._hold_limits: Final = hold_limits
        # Events from the disk have their own room, so that they take none from new events.
        self._held_room: Final = InflightPositions(max_events=hold_limits.events, max_bytes=hold_limits.bytes)
        self._inbox: Final[SimpleQueue[InboxMessage]] = SimpleQueue()
        self._topics: Final[dict[tuple[str, str], TopicQueue]] = {}
        self._notices: Final = TopicNotices()
        # Topics with something to do; a dict keeps their order.
        self._ready: Final[dict[str, TopicQueue]] = {}
        self._next_turn = 0.0
        # How many topics of tables without events were opened since a topic could last be used.
        self._tried_quiet = 0
        self._check_at = time.monotonic() + check_s
        self._check_s: Final = check_s
        self._checking: threading.Thread | None = None
        # By `keyspace.table`. Replaced as a whole, because other threads read it.
        self.statuses: Mapping[str, TopicStatus] = {}
        # Checkpoints of tables that have had no event since the agent's start. Other tables have theirs in their
        # TopicQueue.
        self._quiet: Final[dict[tuple[str, str], Checkpoint]] = {}
        # The tables that the node has as of the newest moment; and the tables whose unopened topics were checked.
        self._present: frozenset[tuple[str, str]] = frozenset()
        self._checked: frozenset[tuple[str, str]] = frozenset()
        # The other tables whose unopened topics were to be checked, and why that failed. Replaced as a whole, because
        # other threads read it.
        self._unanswered: Mapping[tuple[str, str], str] = {}
        self._on_moment: Callable[[], None] = lambda: None
        self._tables: Final = tables
        self._on_damage: Final = on_damage
        self._awaited: Final = awaited
        self._dropped: Final = dropped

    def publish(self, events: Sequence[Outgoing]) -> None:
        """Send these events after all others. Room must be taken for them, and their entries must be tracked."""
        self._inbox.put(Batch(events))

    def note_moment(
        self, time_ms: int, tables: frozenset[tuple[str, str]], present: frozenset[tuple[str, str]] = frozenset()
    ) -> None:
        """Note that `publish` got all events of writes that the node acknowledged before this time: see Moment."""
        self._inbox.put(Moment(time_ms, tables, present))

    def on_moment(self, call: Callable[[], None]) -> None:
        """Call this on the publisher's thread after each moment. To be set before the start."""
        self._on_moment = call

    def checkpoint(self, keyspace: str, table: str) -> Checkpoint | None:
        """The checkpoint up to which the broker has a table's events; None while it is not known. For any thread."""
        topic = self._topics.get((keyspace, table))
        found = None if topic is None else topic.checkpoint
        return found or self._quiet.get((keyspace, table))

    def first_positions(self, keyspace: str, table: str) -> tuple[TopicPosition, ...]:
        """By partition: all events that the broker had while the position was unknown are at or before this one.

        Ask for the checkpoint first: these positions are then also right for it. For any thread.
        """
        topic = self._topics.get((keyspace, table))
        return () if topic is None else topic.first_positions

    def stopped(self, keyspace: str, table: str) -> str | None:
        """Why a table's events do not reach the broker, as text; None when they do. For any thread."""
        topic = self._topics.get((keyspace, table))
        if topic is not None:
            return topic.stopped
        reason = self._unanswered.get((keyspace, table))
        return None if reason is None else f"its topic cannot be checked ({reason})"

    def wake(self) -> None:
        """End the wait for events and answers."""
        self._inbox.put(Stop())

    def run(self) -> None:
        """Send events until the stop. Events that are not acknowledged by then are read again by the next start."""
        for path in sorted(self._held_directory.rglob(f"*{HELD_SUFFIX}")):
            # An earlier process has held these events. The name of a table has no dot.
            keyspace, _, table = unquote(path.name.removesuffix(HELD_SUFFIX)).partition(".")
            self._topic(keyspace, table)
        while self._handle_some():
            disk_has_room = self._hold_limits.disk_has_room(self._topics.values())
            for topic in self._ready.values():
                if disk_has_room:
                    self._store(topic)
                if not self._waits_for_clearing(topic):
                    self._metrics.messages_sent += topic.send_ready()
            self._ready.clear()
            self._serve_topics()

    def _store(self, topic: TopicQueue) -> None:
        if self._awaited is None or self._awaited.may_hold(topic.name):
            topic.store()

    def _waits_for_clearing(self, topic: TopicQueue) -> bool:
        return self._awaited is not None and self._awaited.holds_back(topic.name, is_usable=topic.is_usable())

    def _handle_some(self) -> bool:
        """Handle messages of the inbox. Waits up to `_TURN_S` for the first one. False when the publisher stops."""
        try:
            message = self._inbox.get(timeout=_TURN_S)
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
                case Moment():
                    self._note_moment(message)
                case Refused(topic=topic) | Changed(topic=topic) if topic.is_given_up:
                    pass  # from a thread that had begun before
                case Refused(topic, reason, is_own):
                    topic.note_problem(reason, is_own=is_own)
                case Changed(topic, reason):
                    topic.note_problem(reason, is_own=True)
                    self._close(topic)
                case Lost():
                    self._take_loss(message)
                case Checked(tables, unanswered):
                    self._checked |= tables
                    self._unanswered = {each: why for each, why in unanswered.items() if each not in self._checked}
                    if unanswered:
                        self._check_at = min(self._check_at, time.monotonic() + _CHECK_AGAIN_S)
                case Opened(topic, producers):
                    if not topic.open(producers):
                        self._open(topic, _TURN_S)
                    self._ready[topic.name] = topic
                case Unwanted():
                    self._drop_held(message)
                case Reopened(topic, lane, generation, producer):
                    topic.reopen(lane, generation, producer)
                    self._ready[topic.name] = topic
            try:
                if left:
                    message = self._inbox.get_nowait()
            except Empty:
                break
        return True

    def _note_moment(self, moment: Moment) -> None:
        self._present = moment.present
        # A topic may have been deleted while no agent ran.
        unchecked = moment.present - self._topics.keys() - self._checked
        # A check that was not answered is repeated later, not at each moment.
        if unchecked - self._unanswered.keys() and self._checking is None:
            self._check_at = 0.0
        for name in moment.tables - unchecked:
            topic = self._topics.get(name)
            if topic is None:
                self._quiet[name] = Checkpoint(moment.time_ms)
            else:
                topic.note_moment(moment.time_ms)
        self._on_moment()

    def _take_loss(self, loss: Lost) -> None:
        if (loss.keyspace, loss.table) in self._topics:
            # The topic was opened meanwhile, and opening it has reported the loss.
            return
        topic = self._topic(loss.keyspace, loss.table)
        topic.note_problem(loss.reason, is_own=True)
        self._hold([topic])

    def _topic(self, keyspace: str, table: str) -> TopicQueue:
        topic = self._topics.get((keyspace, table))
        if topic is None:
            # Cassandra allows only letters, digits and _. Quoting makes sure that no name leads out of the folder.
            file_name = quote(f"{keyspace}.{table}{HELD_SUFFIX}", safe="")
            name = events_topic(keyspace, table, self._topic_prefix)
            metrics = self._metrics.table(f"{keyspace}.{table}")
            topic = self._topics[keyspace, table] = TopicQueue(
                name,
                TopicFiles(
                    name, self._held_directory, file_name, metrics, partial(self._on_damage, f"{keyspace}.{table}")
                ),
                self._positions,
                self._held_room,
                self._packing,
                metrics,
                lambda *result: self._inbox.put(Result(*result)),
                self._notices,
                answer_s=self._hold_limits.answer_s,
            )
            self._open(topic)
        return topic

    def _open(self, topic: TopicQueue, delay_s: float = 0.0) -> None:
        self._in_background(topic, topic.name, lambda: self._opened(topic), delay_s)

    def _opened(self, topic: TopicQueue) -> Opened | Unwanted:
        """Open the topic, unless only unwanted events wait for it. Runs on a thread that opens. Raises PublishError."""
        if self._dropped is not None and (size := topic.held_bytes):
            unwanted = self._dropped.unwanted(topic.name, topic.held_path, size)
            if unwanted is not None:
                return Unwanted(topic, unwanted)
        return Opened(topic, self._producers.open(topic.name))

    def _drop_held(self, unwanted: Unwanted) -> None:
        """Drop the held events of dropped tables, and give their topic up. If more are held by now, look again.

        Events that the disk has not taken still wait for the topic, or for the room on the disk that is free now.
        """
        topic, held = unwanted
        if not topic.drop_held(held.size):
            self._open(topic, _TURN_S)
            return
        if topic.events:
            # First, the disk takes them: then they are looked at, too.
            self._ready[topic.name] = topic
            self._open(topic, _TURN_S)
        else:
            topic.is_given_up = True
            for name in [name for name, each in self._topics.items() if each is topic]:
                del self._topics[name]
            self._ready.pop(topic.name, None)
            self._notices.forget(topic.name)
        self._metrics.held_events_dropped += held.events
        _log.warning(
            "%s does not exist any more, and its table was dropped: %d events that were held for it are not published, and the"
            " topic is not made for them",
            topic.name,
            held.events,
        )

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
            topic.note_problem(f"a message was refused ({result.error}); it is sent again")
            self._reopen(topic, lane)

    def _serve_topics(self) -> None:
        """Replace producers without connection; hold topics that cannot be used while others can."""
        now = time.monotonic()
        if now < self._next_turn:
            return
        self._next_turn = now + _TURN_S
        topics = list(self._topics.values())
        for topic in topics:
            topic.note_idle()
        self.statuses = {
            f"{keyspace}.{table}": topic.status(self._producers.hazards(topic.name))
            for (keyspace, table), topic in self._topics.items()
        }
        self._note_room(topics)
        for topic in topics:
            for lane in topic.lanes:
                # A topic that is held sends nothing before all of its producers have a connection.
                if lane.is_cut_off(_CUT_OFF_S, is_needed=topic.is_held):
                    lane.give_up()
                    self._reopen(topic, lane)
            if topic.is_held and topic.is_silent():
                self._hold_again(topic)
            # There may be room again, on disk or in flight.
            self._ready[topic.name] = topic
        reading_waits = self._positions.waits_for_room
        to_hold = self._hold_limits.topics_to_hold(topics, reading_waits=reading_waits)
        for topic in to_hold:
            if topic.is_silent():
                topic.note_silence()
        self._hold(to_hold)
        self._try_quiet(topics, reading_waits=reading_waits)
        self._check_topics(now)

    def _try_quiet(self, topics: Sequence[TopicQueue], *, reading_waits: bool) -> None:
        """Open the topic of a table without events if no topic can be used, to find out if the broker works."""
        if any(topic.is_usable() for topic in topics):
            self._tried_quiet = 0
        elif self._hold_limits.wants_another(topics, reading_waits=reading_waits, tried=self._tried_quiet):
            # The next events in the log may be of this table, but reading waits for room.
            for quiet in sorted(set(self._tables()) - self._topics.keys())[:1]:
                self._tried_quiet += 1
                self._topic(*quiet)

    def _note_room(self, topics: Sequence[TopicQueue]) -> None:
        holding = [topic for topic in topics if topic.held_bytes]
        is_full = bool(holding) and not self._hold_limits.disk_has_room(topics)
        if is_full and not self._metrics.held_full:
            _log.error(
                "held events fill maxHeldBytes (%d): no more events are held, and reading of all tables waits when the"
                " in-flight limits are reached; correct the topics (%s), or raise maxHeldBytes",
                self._hold_limits.max_held_bytes,
                ", ".join(topic.name for topic in holding),
            )
        self._metrics.held_full = int(is_full)

    def _check_topics(self, now: float) -> None:
        """Start a check if topics were changed or deleted, also topics of tables without an event since the start."""
        if self._checking is not None and not self._checking.is_alive():
            self._checking = None
        if now < self._check_at or self._checking is not None:
            return
        self._check_at = now + self._check_s
        place = self._positions.acknowledged_place
        # Topics without a connection are checked, too: a producer that does not reconnect is not replaced while there
        # is nothing to send.
        opened = [
            (topic, None if topic.held_bytes or topic.is_held else place)
            for topic in self._topics.values()
            if topic.lanes
        ]
        unopened = self._present - self._topics.keys()

        def check() -> None:
            for topic, known in opened:
                if self.stopping.is_set():  # the connections are closed soon
                    return
                try:
                    self._producers.check(topic.name, known)
                except (PartitionsChangedError, TopicLostError) as error:
                    self._inbox.put(Changed(topic, error.reason))
                except PublishError as error:
                    _log.debug("a topic cannot be checked: %s", error)
            self._check_unopened(unopened)
            self._producers.end_checks()

        self._checking = threading.Thread(target=check, name="check", daemon=True)
        self._checking.start()

    def _check_unopened(self, tables: frozenset[tuple[str, str]]) -> None:
        """Check topics that are not open. Runs on the thread of a check."""
        unanswered: dict[tuple[str, str], str] = {}
        for keyspace, table in sorted(tables):
            if self.stopping.is_set():
                return
            try:
                self._producers.check_unopened(events_topic(keyspace, table, self._topic_prefix))
            except TopicLostError as error:
                self._inbox.put(Lost(keyspace, table, error.reason))
            except PublishError as error:
                unanswered[keyspace, table] = error.reason
                _log.debug("a topic cannot be checked: %s", error)
        if tables:
            self._inbox.put(Checked(tables - unanswered.keys(), unanswered))

    def _hold_again(self, topic: TopicQueue) -> None:
        """Open a held topic again that does not acknowledge messages. Unacknowledged messages are sent again."""
        topic.note_silence()
        topic.hold()
        self._open(topic, _SILENT.pause_s(topic.silences))

    def _close(self, topic: TopicQueue) -> None:
        """Send nothing more to the topic before it is opened again."""
        if not topic.is_held:
            self._hold([topic])
        elif any(lane.is_open for lane in topic.lanes):
            # The topic's file is being sent. Without an open lane, the topic is already being opened.
            topic.hold()
            self._open(topic)

    def _hold(self, topics: Sequence[TopicQueue]) -> None:
        longest_s = max((topic.unusable_for() for topic in topics), default=0.0)
        self._notices.held([topic.name for topic in topics], longest_s, self._held_directory)
        for topic in topics:
            must_open = topic.state is TopicState.OPEN
            topic.hold()
            self._store(topic)
            self._metrics.topics_held += 1
            if must_open:
                self._open(topic)

    def _reopen(self, topic: TopicQueue, lane: TopicLane) -> None:
        index, generation = topic.lanes.index(lane), lane.generation
        self._in_background(
            topic,
            f"{topic.name} partition {index}",
            lambda: Reopened(topic, lane, generation, self._producers.open_partition(topic.name, index)),
            delay_s=_REOPENING.pause_s(lane.failures),
            is_wanted=lambda: lane.generation == generation,
        )

    def _in_background(
        self,
        topic: TopicQueue,
        what: str,
        task: Callable[[], Opened | Unwanted | Reopened],
        delay_s: float = 0.0,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Run a task that blocks, on its own thread, while it is wanted, until it succeeds or the publisher stops.

        Post its result.
        """

        def run() -> None:
            self.stopping.wait(delay_s)
            try:
                failures = self._try_until_done(topic, task, is_wanted)
            except Exception as error:  # noqa: BLE001  # the top of a thread
                self.fail(error)
                return
            if failures is not None:
                # TopicNotices tells the end of failures, once for all topics.
                _log.log(logging.DEBUG if failures else logging.INFO, "%s is open", what)

        threading.Thread(target=run, name="open", daemon=True).start()

    def _try_until_done(
        self, topic: TopicQueue, task: Callable[[], Opened | Unwanted | Reopened], is_wanted: Callable[[], bool]
    ) -> int | None:
        """Run the task until it succeeds. Return how often it failed; None when the publisher stops first, or if the
        task is not wanted any more or opened nothing.
        """
        failures = 0
        while is_wanted() and not self.stopping.is_set():
            try:
                result = task()
            except PublishError as error:
                failures += 1
                self._inbox.put(Refused(topic, error.reason, isinstance(error, TopicLostError)))
                self.stopping.wait(_OPENING.pause_s(failures))
            else:
                self._inbox.put(result)
                return None if isinstance(result, Unwanted) else failures
        return None
