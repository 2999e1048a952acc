"""EventBatch: events on their way from the reader to the publisher, handed over some at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final, Protocol
from uuid import UUID

from change_agent.events.mutation_events import TableEvent
from change_agent.events.mutation_interpreter import StoppedError
from change_agent.metrics import AgentMetrics
from change_agent.positions.inflight import InflightPositions
from change_agent.publishing.outgoing import CollectedEvents, OutgoingEvent

__all__ = ["EventBatch", "Publisher"]

# Events that are handed over at once: enough to make a hand-over cheap, few enough not to be waited for.
_MAX_EVENTS: Final = 250
_MAX_AGE_S: Final = 0.02


class Publisher(Protocol):
    """Takes events in order."""

    def publish(self, events: Sequence[OutgoingEvent]) -> None:
        """Send these behind all others."""


class EventBatch:
    """Used by the reader's thread. What it hands over is bounded: it waits while too much is not acknowledged."""

    def __init__(
        self, positions: InflightPositions, publisher: Publisher, metrics: AgentMetrics, stopping: threading.Event
    ) -> None:
        self._positions: Final = positions
        self._publisher: Final = publisher
        self._metrics: Final = metrics
        self._stopping: Final = stopping
        self._collected: Final = CollectedEvents()
        self._since = 0.0

    def begin_segment(self) -> None:
        """What is added from now on is of one segment, up to the next call."""
        self._collected.begin_segment()

    def add(self, segment_id: int, position: int, node_id: UUID, events: Sequence[TableEvent]) -> None:
        """The events of the entry that ends at `position`."""
        if not self._collected.events:
            self._since = time.monotonic()
        self._collected.add(segment_id, position, node_id, events)

    def is_due(self) -> bool:
        """True when enough has come together, or waited long enough."""
        count = len(self._collected.events)
        return count >= _MAX_EVENTS or (count > 0 and time.monotonic() - self._since > _MAX_AGE_S)

    def hand_over(self) -> None:
        """Give what was added to the publisher, as soon as there is room. Raises StoppedError."""
        collected = self._collected
        events = collected.events
        if not events:
            return
        while not self._positions.take_room(len(events), collected.size, 1.0):
            if self._stopping.is_set():
                raise StoppedError
        self._positions.track(collected.entries)
        self._publisher.publish(events)
        self._metrics.events_published += len(events)
        self._metrics.last_event_writetime_us = events[-1].event.writetime_us or 0
        collected.clear()
