"""MutationPublisher: takes events from the reader, sends them to their topics, and reports what the broker has.

One thread owns all topics and lanes; everybody else speaks to it through its inbox: the reader hands over batches, the
client's threads hand over results, and a short-lived thread per topic that has to be opened hands over its producers.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import tenacity

from change_agent.errors import PublishError
from change_agent.event_producers import EventProducer
from change_agent.inflight import InflightPositions
from change_agent.metrics import AgentMetrics
from change_agent.node_connection import token_of
from change_agent.topic_lane import OutgoingEvent, Packing, TopicLane
from schemas.topics import events_topic, partition_of_token

__all__ = ["MutationPublisher", "Producers"]

_log: Final = logging.getLogger(__name__)
# Taken from the inbox before messages are packed; enough to fill them, little enough to keep acknowledgements moving.
_DRAIN: Final = 64
_WAIT: Final = tenacity.wait_exponential(multiplier=0.2, max=5) + tenacity.wait_random(0, 0.5)
# The client's own way back to a broker slows down to a try a minute; after so long without one, a new producer is
# quicker.
_CUT_OFF_S: Final = 3.0
_LOOK_S: Final = 1.0
# Between two producers of one lane.
_FIRST_DELAY_S: Final = 0.1
_MAX_DELAY_S: Final = 10.0


class Producers(Protocol):
    """Opens producers; both block until the topic can be used, or raise PublishError."""

    def open(self, topic: str) -> list[EventProducer]:
        """Producers of all partitions, in order."""

    def open_partition(self, topic: str, index: int) -> EventProducer:
        """A new producer of one partition."""


class _Batch(NamedTuple):
    events: Sequence[OutgoingEvent]


class _Result(NamedTuple):
    topic: _Topic
    lane: TopicLane
    generation: int
    error: str | None


class _Opened(NamedTuple):
    topic: _Topic
    producers: Sequence[EventProducer]


class _Reopened(NamedTuple):
    lane: TopicLane
    producer: EventProducer


class _Stop(NamedTuple):
    pass


@dataclass(slots=True)
class _Topic:
    """A topic whose number of partitions is not known yet (no lanes) or that has one lane a partition."""

    name: str
    lanes: list[TopicLane] = field(default_factory=list)
    unrouted: list[OutgoingEvent] = field(default_factory=list)


class MutationPublisher:
    """`publish` is for the reader's thread; `start` and `stop` for the owner's. Order per lane is kept, always."""

    def __init__(
        self,
        producers: Producers,
        positions: InflightPositions,
        metrics: AgentMetrics,
        *,
        topic_prefix: str,
        packing: Packing,
        node_id: Callable[[], UUID],
    ) -> None:
        self._producers: Final = producers
        self._positions: Final = positions
        self._metrics: Final = metrics
        self._topic_prefix: Final = topic_prefix
        self._packing: Final = packing
        self._node_id: Final = node_id
        self._inbox: Final[SimpleQueue[_Batch | _Result | _Opened | _Reopened | _Stop]] = SimpleQueue()
        self._topics: Final[dict[str, _Topic]] = {}
        # Lanes with something to send; a dict keeps their order.
        self._ready: Final[dict[int, TopicLane]] = {}
        self._look_at = 0.0
        self._stopping: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="publisher", daemon=True)
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def publish(self, events: Sequence[OutgoingEvent]) -> None:
        """Send these behind all others. Room was taken for them, and their entries are tracked."""
        self._inbox.put(_Batch(events))

    def stop(self) -> None:
        """End the thread; what is not acknowledged stays so, and is read again by the next start."""
        self._stopping.set()
        self._inbox.put(_Stop())
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._handle_some():
                for lane in self._ready.values():
                    self._metrics.messages_sent += lane.send_ready()
                self._ready.clear()
                self._replace_cut_off()
        except Exception as error:  # noqa: BLE001  # the top of a thread
            _log.exception("the publisher failed")
            self.failure = error

    def _handle_some(self) -> bool:
        """Handle what is in the inbox, waiting a little for the first; False at the end."""
        try:
            message = self._inbox.get(timeout=_LOOK_S)
        except Empty:
            return True
        for left in reversed(range(_DRAIN)):
            match message:
                case _Stop():
                    return False
                case _Batch(events):
                    for event in events:
                        self._route(event)
                case _Result():
                    self._take_result(message)
                case _Opened(topic, producers):
                    self._open_lanes(topic, producers)
                case _Reopened(lane, producer):
                    lane.open(producer)
                    self._ready[id(lane)] = lane
            try:
                if left:
                    message = self._inbox.get_nowait()
            except Empty:
                break
        return True

    def _route(self, event: OutgoingEvent) -> None:
        table = event.keys.table
        topic = self._topics.get(table.full_name)
        if topic is None:
            topic = _Topic(events_topic(table.keyspace, table.name, self._topic_prefix))
            self._topics[table.full_name] = topic
            self._in_background(topic.name, lambda: self._inbox.put(_Opened(topic, self._producers.open(topic.name))))
        if topic.lanes:
            self._add(topic, event)
        else:
            topic.unrouted.append(event)

    def _add(self, topic: _Topic, event: OutgoingEvent) -> None:
        lane = topic.lanes[partition_of_token(token_of(event.event.partition_key), len(topic.lanes))]
        lane.add(event)
        self._ready[id(lane)] = lane

    def _open_lanes(self, topic: _Topic, producers: Sequence[EventProducer]) -> None:
        def on_result(lane: TopicLane, generation: int, error: str | None) -> None:
            self._inbox.put(_Result(topic, lane, generation, error))

        for producer in producers:
            lane = TopicLane(self._node_id, self._packing, on_result)
            lane.open(producer)
            topic.lanes.append(lane)
        for event in topic.unrouted:
            self._add(topic, event)
        topic.unrouted.clear()

    def _take_result(self, result: _Result) -> None:
        lane = result.lane
        was_open = lane.is_open
        message = lane.take_result(result.generation, result.error)
        if message is not None:
            self._positions.acknowledge(message.entries, len(message.entries), message.size)
            self._metrics.events_acknowledged += len(message.entries)
            self._metrics.bytes_sent += len(message.payload)
            self._ready[id(lane)] = lane
        elif was_open and not lane.is_open:
            self._metrics.send_errors += 1
            _log.warning("%s: a message was refused (%s); sending it again", result.topic.name, result.error)
            self._reopen(result.topic, lane)

    def _replace_cut_off(self) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        for topic in self._topics.values():
            for lane in topic.lanes:
                if lane.is_cut_off(_CUT_OFF_S):
                    lane.give_up()
                    self._reopen(topic, lane)

    def _reopen(self, topic: _Topic, lane: TopicLane) -> None:
        index = topic.lanes.index(lane)
        self._in_background(
            f"{topic.name} partition {index}",
            lambda: self._inbox.put(_Reopened(lane, self._producers.open_partition(topic.name, index))),
            # A producer that can be made and cannot send must not be made in a hot loop.
            delay_s=random.uniform(0.5, 1) * min(_MAX_DELAY_S, _FIRST_DELAY_S * 2 ** (lane.failures - 1)),
        )

    def _in_background(self, what: str, task: Callable[[], None], delay_s: float = 0.0) -> None:
        """Do what blocks on a thread of its own, until it succeeds or the publisher stops."""

        def tell(state: tenacity.RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome is not None else None
            level = (
                logging.WARNING if state.attempt_number in (1, 10) or state.attempt_number % 100 == 0 else logging.DEBUG
            )
            _log.log(level, "waiting for %s", error)

        def run() -> None:
            retrying = tenacity.Retrying(
                retry=tenacity.retry_if_exception_type(PublishError),
                stop=tenacity.stop_when_event_set(self._stopping),
                wait=_WAIT,
                sleep=tenacity.sleep_using_event(self._stopping),
                before_sleep=tell,
            )
            self._stopping.wait(delay_s)
            try:
                retrying(task)
            except tenacity.RetryError:
                # The publisher stops.
                return
            except Exception as error:  # noqa: BLE001  # the top of a thread
                _log.exception("opening %s failed", what)
                self.failure = error
            else:
                attempts = retrying.statistics.get("attempt_number", 1)
                _log.info("%s is open%s", what, f" after {attempts} attempts" if attempts > 1 else "")

        threading.Thread(target=run, name="open", daemon=True).start()
