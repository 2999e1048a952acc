"""ReaderParts: what all parts of the reader of the log work with."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from change_agent.events.mutation_interpreter import MutationInterpreter
from change_agent.metrics import AgentMetrics
from change_agent.positions.inflight import InflightPositions
from change_agent.positions.stops import Stops
from change_agent.publishing.event_batch import Publisher
from change_agent.segments.known_segments import KnownSegments

__all__ = ["ReaderParts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderParts:
    """`publisher` gets the events, `stops` the reasons for which tables' progress stands still."""

    segments: KnownSegments
    interpreter: MutationInterpreter
    positions: InflightPositions
    publisher: Publisher
    metrics: AgentMetrics
    stops: Stops
    stopping: threading.Event
