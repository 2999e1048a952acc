"""The writer of event messages, compared with fastavro: for any events both return the same bytes."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from change_agent.events.events_writer import write_events
from schemas.mutation_event import (
    MutationEvent,
    MutationEvents,
    MutationKind,
    RangeBounds,
    decode_events,
    encode_events,
)

_LONG = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(-200, 20_000))
_BYTES = st.binary(max_size=200)
_PREFIX = st.lists(_BYTES, max_size=3).map(tuple)
_EVENTS = st.builds(
    MutationEvent,
    position=st.integers(0, 2**31 - 1),
    ordinal=st.integers(0, 100_000),
    kind=st.sampled_from(MutationKind),
    key=_BYTES,
    partition_key=_BYTES,
    clustering=st.lists(st.one_of(st.none(), _BYTES), max_size=3).map(tuple),
    digest=st.binary(min_size=16, max_size=16),
    writetime_us=_LONG,
    live_cell_writetime_us=_LONG,
    deletion_time_us=_LONG,
    expiry_time_s=_LONG,
    bounds=st.one_of(
        st.none(),
        st.builds(RangeBounds, start=_PREFIX, start_inclusive=st.booleans(), end=_PREFIX, end_inclusive=st.booleans()),
    ),
    columns=st.lists(st.sampled_from(["a", "b", "größe", ""]), max_size=4).map(tuple),
    marker_expiry_s=_LONG,
)
_MESSAGES = st.builds(
    MutationEvents,
    node_id=st.uuids(),
    segment_id=st.integers(0, 2**62),
    keyspace=st.text(max_size=8),
    table=st.text(max_size=8),
    table_id=st.uuids(),
    key_schema=st.text(max_size=200),
    events=st.lists(_EVENTS, max_size=5).map(tuple),
)


def _written(message: MutationEvents) -> bytes:
    return write_events(
        node_id=message.node_id,
        segment_id=message.segment_id,
        keyspace=message.keyspace,
        table=message.table,
        table_id=message.table_id,
        key_schema=message.key_schema,
        events=message.events,
    )


@settings(deadline=None, max_examples=200)
@given(_MESSAGES)
def test_it_writes_what_fastavro_writes(message: MutationEvents) -> None:
    """The bytes are equal."""
    assert _written(message) == encode_events(message)


@pytest.mark.parametrize(
    "number", [0, -1, 63, 64, -64, -65, 8191, 8192, 2**20, 2**21 - 1, 2**34, 2**48, 2**63 - 1, -(2**63)]
)
def test_every_length_of_a_number_is_read_back(number: int) -> None:
    """Numbers at the limits of the encoded lengths."""
    event = MutationEvent(
        position=1, ordinal=0, kind=MutationKind.ROW, key=b"", partition_key=b"", digest=bytes(16), writetime_us=number
    )
    message = MutationEvents(
        node_id=UUID(int=1),
        segment_id=1,
        keyspace="k",
        table="t",
        table_id=UUID(int=2),
        key_schema="s",
        events=(event,),
    )
    assert decode_events(_written(message)) == message
