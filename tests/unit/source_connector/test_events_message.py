"""What a message tells the reader that it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from schemas.mutation_event import MutationEvents
from source_connector.events.events_message import EventsMessage, SettledEvents, UnreadableMessage
from tests.unit.source_connector.events import NODE, event


@dataclass
class _Reader:
    calls: list[int] = field(default_factory=list)

    def settled(self, message: EventsMessage | UnreadableMessage, events: int) -> None:
        self.calls.append(events)


def _message(reader: _Reader, settled: SettledEvents, events: int) -> EventsMessage:
    untyped: Any = "(1,2,3,4)"
    content = MutationEvents(
        node_id=NODE,
        segment_id=1,
        keyspace="ks",
        table="t",
        table_id=UUID(int=1),
        key_schema="",
        events=tuple(map(event, range(events))),
    )
    return EventsMessage(identity=b"", message_id=untyped, content=content, origin=reader, settled=settled)


def test_the_reader_learns_of_settled_events_in_groups() -> None:
    """A call for each event would cost as much as other steps of a row. The last events do not wait for a group."""
    reader = _Reader()
    message = _message(reader, SettledEvents(together=3), events=7)
    calls = []
    for _ in range(5):
        message.settle()
        calls.append(list(reader.calls))
    assert calls == [[], [], [3], [3], [3]]
    message.settle(2)
    assert (reader.calls, message.unsettled) == ([3, 4], 0)


def test_messages_that_are_not_done_share_a_group() -> None:
    """Each has an event of a key that cannot be read. The other events of all of them must not keep their room."""
    reader, settled = _Reader(), SettledEvents(together=8)
    messages = [_message(reader, settled, events=5) for _ in range(4)]
    for each in messages:
        each.settle(4)
    assert (reader.calls, [each.unsettled for each in messages]) == ([8, 8], [1] * 4)
    messages[2].settle()
    assert (reader.calls, messages[2].unsettled) == ([8, 8, 1], 0)
