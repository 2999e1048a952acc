"""LateEvents: publishes events of entries that the reader has already passed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from change_agent.cdc_raw.segment_key import SegmentKey
from change_agent.events.mutation_events import TableEvent
from change_agent.events.mutation_interpreter import MutationInterpreter, StoppedError
from change_agent.metrics import AgentMetrics
from change_agent.positions.accounts import TrackedEntry
from change_agent.positions.inflight import InflightPositions
from change_agent.publishing.event_batch import Publisher
from change_agent.publishing.outgoing import OutgoingEvent, event_size, header_of

__all__ = ["LateEvents"]


class LateEvents:
    """Used by the reader's thread. It waits here while too many events are not acknowledged."""

    def __init__(
        self,
        interpreter: MutationInterpreter,
        positions: InflightPositions,
        publisher: Publisher,
        metrics: AgentMetrics,
        stopping: threading.Event,
    ) -> None:
        self._interpreter: Final = interpreter
        self._positions: Final = positions
        self._publisher: Final = publisher
        self._metrics: Final = metrics
        self._stopping: Final = stopping

    def publish(
        self, events: Sequence[TableEvent], segment_id: int, position: int, *, keeps: SegmentKey | None = None
    ) -> TrackedEntry:
        """Send an entry's events after all events that were handed over. Raises StoppedError.

        Return the entry, which counts its unacknowledged events: 0 for an entry without events. The segment `keeps` is
        not done before they are acknowledged.
        """
        if keeps is None or not events:
            tracked = TrackedEntry(None, position, len(events))
        else:
            tracked = self._positions.track_again(keeps, len(events))
        node_id = self._interpreter.node_id
        outgoing = [
            OutgoingEvent(header_of(each.keys, node_id, segment_id), each.event, tracked, event_size(each.event))
            for each in events
        ]
        if not outgoing:
            return tracked
        while not self._positions.take_room(len(outgoing), sum(each.size for each in outgoing), 1.0):
            if self._stopping.is_set():
                raise StoppedError
        self._publisher.publish(outgoing)
        self._metrics.events_published += len(outgoing)
        return tracked
