"""Messages of an events topic."""

from __future__ import annotations

from uuid import UUID

from schemas.mutation_event import MutationEvents, encode_events

__all__ = ["message_without_events"]


def message_without_events(segment_id: int) -> bytes:
    """The bytes of a message of the table `ks.t`, which is told from others by the segment in its head."""
    return encode_events(
        MutationEvents(
            node_id=UUID(int=1),
            segment_id=segment_id,
            keyspace="ks",
            table="t",
            table_id=UUID(int=2),
            key_schema="",
            events=(),
        )
    )
