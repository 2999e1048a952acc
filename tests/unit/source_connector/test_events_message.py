"""What a message tells the reader that it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from schemas.mutation_event import MutationEvents
from source_connector.events.events_message import EventsMessage, UnreadableMessage
from tests.unit.source_connector.events import NODE, event


@dataclass
class _Reader:
    calls: list[int] = field(default_factory=list)

    def settled(self, message: EventsMessage | UnreadableMessage, events: int) -> None:
        message.unsettled -= events
        self.calls.append(events)


def test_the_reader_learns_of_settled_events_in_groups() -> None:
    """A call for each event would cost as much as other steps of a row. The last events do not wait for a group."""
    reader, message_id = _Reader(), "(1,2,3,4)"
    content = MutationEvents(
        node_id=NODE,
        segment_id=1,
        keyspace="ks",
        table="t",
        table_id=UUID(int=1),
        key_schema="",
        events=tuple(event(number) for number in range(7)),
    )
    untyped: Any = message_id
    message = EventsMessage(identity=b"", message_id=untyped, content=content, origin=reader, settled_together=3)
    calls = []
    for _ in range(5):
        message.settle()
        calls.append(list(reader.calls))
    assert calls == [[], [], [3], [3], [3]]
    message.settle(2)
    assert (reader.calls, message.unsettled) == ([3, 4], 0)
