"""EventBatch: collects events of the reader, and hands them over to the publisher some at a time.

Every event passes through here, so it is compiled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final, Protocol, final
from uuid import UUID

from change_agent.cdc_raw.segment_key import SegmentKey, segment_id_of
from change_agent.events.mutation_events import EventKeys, TableEvent
from change_agent.events.mutation_interpreter import StoppedError
from change_agent.metrics import AgentMetrics
from change_agent.native_core import EncodedRun
from change_agent.positions.accounts import TrackedEntry
from change_agent.positions.inflight import InflightPositions
from change_agent.publishing.outgoing import (
    MessageHeader,
    Outgoing,
    OutgoingEvent,
    OutgoingRun,
    event_size,
    header_of,
)

__all__ = ["EventBatch", "Publisher"]

# How many events are handed over at once: enough to make this cheap, and few enough to be collected soon.
_MAX_EVENTS: Final = 250
_MAX_AGE_S: Final = 0.02


class Publisher(Protocol):
    """Takes events in order."""

    def publish(self, events: Sequence[Outgoing]) -> None:
        """Send these events after all others."""


@final
class EventBatch:
    """Used by the reader's thread. It waits here while too many events are not acknowledged."""

    def __init__(
        self, positions: InflightPositions, publisher: Publisher, metrics: AgentMetrics, stopping: threading.Event
    ) -> None:
        self._positions = positions
        self._publisher = publisher
        self._metrics = metrics
        self._stopping = stopping
        # Message headers of the current segment.
        self._headers: dict[EventKeys, MessageHeader] = {}
        self._events: list[Outgoing] = []
        # The log entries of these events.
        self._entries: list[TrackedEntry] = []
        self._count = 0
        self._size = 0
        self._last_writetime_us = 0
        # When the first event was added.
        self._since = 0.0

    def begin_segment(self) -> None:
        """Begin with events of a segment. All events that are added until the next call are of this segment."""
        self._headers.clear()

    def add(self, segment: SegmentKey, position: int, node_id: UUID, events: Sequence[TableEvent]) -> None:
        """Add the events of the entry that ends at `position`."""
        entry = self._track(segment, position, len(events))
        for each in events:
            event = each.event
            size = event_size(event)
            self._events.append(OutgoingEvent(self._header(each.keys, node_id, segment), event, entry, size))
            self._size += size
            self._last_writetime_us = event.writetime_us or 0

    def add_runs(
        self,
        segment: SegmentKey,
        position: int,
        node_id: UUID,
        runs: Sequence[tuple[EventKeys, EncodedRun]],
        last_writetime_us: int,
    ) -> None:
        """Add encoded events of several entries. The last entry with events ends at `position`.

        Only this entry is tracked. It is done when all events are acknowledged.
        """
        count = 0
        for _, run in runs:
            count += len(run)
        entry = self._track(segment, position, count)
        for keys, run in runs:
            outgoing = OutgoingRun(self._header(keys, node_id, segment), run, entry)
            self._events.append(outgoing)
            self._size += outgoing.size
        self._last_writetime_us = last_writetime_us

    def _track(self, segment: SegmentKey, position: int, count: int) -> TrackedEntry:
        if not self._events:
            self._since = time.monotonic()
        entry = TrackedEntry(segment, position, count)
        self._entries.append(entry)
        self._count += count
        return entry

    def _header(self, keys: EventKeys, node_id: UUID, segment: SegmentKey) -> MessageHeader:
        header = self._headers.get(keys)
        if header is None:
            header = self._headers[keys] = header_of(keys, node_id, segment_id_of(segment))
        return header

    def has_room(self, count: int) -> bool:
        """False when `count` more events would make the batch larger than `_MAX_EVENTS`."""
        return self._count == 0 or self._count + count <= _MAX_EVENTS

    def is_due(self) -> bool:
        """True when there are enough events, or the first one has waited long enough."""
        return self._count >= _MAX_EVENTS or (self._count > 0 and time.monotonic() - self._since > _MAX_AGE_S)

    def hand_over(self) -> None:
        """Give the events to the publisher as soon as there is room for them. Raises StoppedError."""
        if not self._events:
            return
        while not self._positions.take_room(self._count, self._size, 1.0):
            if self._stopping.is_set():
                raise StoppedError
        self._positions.track(self._entries)
        self._publisher.publish(self._events)
        self._metrics.events_published += self._count
        self._metrics.last_event_writetime_us = self._last_writetime_us
        self._events, self._entries = [], []
        self._count = self._size = 0
