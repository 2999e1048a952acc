"""EventBatch: how many events are handed over at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from uuid import UUID

import pytest

from change_agent.events.avro_key import EventKeys
from change_agent.events.mutation_events import TableEvent
from change_agent.metrics import AgentMetrics
from change_agent.positions.inflight import InflightPositions
from change_agent.publishing.event_batch import EventBatch
from change_agent.publishing.outgoing import Outgoing
from schemas.mutation_event import MutationEvent, MutationKind
from tests.cql.tables import table_of

NODE = UUID(int=1)
TABLE = table_of({"pk": "int"}, table_id=UUID(int=2))
EVENT = MutationEvent(
    position=100, ordinal=0, kind=MutationKind.ROW, key=b"k", partition_key=b"k", digest=bytes(16), writetime_us=10
)


class Publisher:
    """Takes the events, and notes how many were handed over together."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def publish(self, events: Sequence[Outgoing]) -> None:
        self.counts.append(len(events))


@pytest.mark.parametrize(
    ("waiting", "more", "has_room"), [(0, 1_000, True), (1, 249, True), (1, 250, False), (250, 1, False)]
)
def test_events_of_several_entries_are_handed_over_before_they_are_too_many(
    waiting: int, more: int, *, has_room: bool
) -> None:
    """Events that came together are never divided, so an empty batch takes any number."""
    publisher, positions = Publisher(), InflightPositions(max_events=10_000, max_bytes=10_000_000)
    positions.open(1, 0)
    batch, keys = EventBatch(positions, publisher, AgentMetrics(), threading.Event()), EventKeys(TABLE)
    if waiting:
        batch.add(1, 100, NODE, [TableEvent(keys, EVENT)] * waiting)
    assert batch.has_room(more) is has_room
    batch.hand_over()
    assert publisher.counts == [waiting] * (waiting > 0)
    assert batch.has_room(more)
