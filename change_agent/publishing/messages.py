"""Packs the events that wait for a topic partition into messages."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

from change_agent.events.events_writer import write_events, write_head
from change_agent.native_core import native_core
from change_agent.positions.accounts import TrackedEntry
from change_agent.publishing.outgoing import MessageHeader, Outgoing, OutgoingRun, WaitingEvents, size_of
from schemas.mutation_event import MutationEvents, decode_events, encode_events

__all__ = ["Message", "Packing"]

_CORE: Final = native_core()


class Message(NamedTuple):
    """A message that the broker has not acknowledged.

    `entries` has the log entry of each event; it is empty when the events come from the file of held events. `size` is
    the room that the events take, in bytes. `writetime_us` is that of the first event.
    """

    payload: bytes
    key: str | None
    entries: list[TrackedEntry]
    events: int
    size: int
    writetime_us: int | None

    def halves(self) -> tuple[Message, Message]:
        """Two messages with the same events, for a message of more than one event.

        The payload is decoded, because the events themselves are not kept: in memory they are larger than the payload,
        and a message that must be halved is rare.
        """
        whole = decode_events(self.payload)
        middle = len(whole.events) // 2
        return (
            self._part(replace(whole, events=whole.events[:middle]), self.entries[:middle], self.size // 2),
            self._part(replace(whole, events=whole.events[middle:]), self.entries[middle:], self.size - self.size // 2),
        )

    def _part(self, events: MutationEvents, entries: list[TrackedEntry], size: int) -> Message:
        writetime_us = events.events[0].writetime_us
        return Message(encode_events(events), self.key, entries, len(events.events), size, writetime_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How much one message may carry. `pack` makes messages of that size."""

    max_events: int
    max_bytes: int

    def pack(self, waiting: WaitingEvents) -> tuple[Message, Sequence[Outgoing]]:
        """Take the first events that share a segment and a table. Return their message, and these events."""
        if waiting.is_encoded():
            runs = waiting.take_encoded(self.max_events, self.max_bytes)
            return self._pack_encoded(runs), runs
        taken = waiting.take(self.max_events, self.max_bytes)
        node_id, segment_id, keyspace, table, table_id, key_schema = taken[0].header
        events = [each.event for each in taken]
        payload = write_events(
            node_id=node_id,
            segment_id=segment_id,
            keyspace=keyspace,
            table=table,
            table_id=table_id,
            key_schema=key_schema,
            events=events,
        )
        entries = [each.entry for each in taken if each.entry is not None]
        first = events[0]
        return Message(payload, self._key(first.key), entries, len(events), size_of(taken), first.writetime_us), taken

    def _pack_encoded(self, runs: Sequence[OutgoingRun]) -> Message:
        assert _CORE is not None
        payload = _CORE.pack(_head(runs[0].header), [each.run for each in runs])
        entries: list[TrackedEntry] = []
        for each in runs:
            assert each.entry is not None
            entries += [each.entry] * each.count
        first = runs[0].run
        return Message(
            payload, self._key(first.first_key), entries, len(entries), size_of(runs), first.first_writetime_us
        )

    def _key(self, row_key: bytes | None) -> str | None:
        """The row's key as key of the message, if each message has one event.

        Only consumers other than the connector use it.
        """
        return base64.b64encode(row_key).decode() if row_key is not None and self.max_events == 1 else None


@lru_cache(maxsize=64)
def _head(header: MessageHeader) -> bytes:
    return write_head(*header)
