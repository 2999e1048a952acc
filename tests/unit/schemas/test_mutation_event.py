"""The message of the events topic: a message survives encoding and decoding, and foreign bytes are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest

from schemas.mutation_event import (
    MUTATION_EVENTS_SCHEMA_TEXT,
    MalformedEventsError,
    MutationEvent,
    MutationEvents,
    MutationKind,
    RangeBounds,
    decode_events,
    encode_events,
)
from schemas.row_record import events_key_schema, schema_text
from schemas.topics import events_topic, full_topic_name, partition_of_token
from tests.cql.tables import table_of

ROW = MutationEvent(
    position=94628,
    ordinal=0,
    kind=MutationKind.ROW,
    key=b"\x02a\x02\x02",
    partition_key=b"a",
    clustering=(b"\0\0\0\1", None, b""),
    digest=bytes(range(16)),
    writetime_us=1_795_219_823_642_645,
    live_cell_writetime_us=1_795_219_823_642_645,
    expiry_time_s=1_795_219_830,
    columns=("c", "e"),
)
RANGE = MutationEvent(
    position=94700,
    ordinal=1,
    kind=MutationKind.RANGE_DELETION,
    key=b"\x02a\x00",
    partition_key=b"a",
    digest=bytes(16),
    writetime_us=5,
    deletion_time_us=5,
    bounds=RangeBounds(start=(b"\0\0\0\1",), start_inclusive=False, end=(), end_inclusive=True),
)
MESSAGE = MutationEvents(
    node_id=UUID("0d85885d-d932-4c22-b25d-41c00bbedfb6"),
    segment_id=1795218821164,
    keyspace="ks2",
    table="sem",
    table_id=UUID("a5559b20-e53e-11f1-a9d7-973e92e688cb"),
    key_schema='{"type":"record"}',
    events=(ROW, RANGE, ROW),
)


@pytest.mark.parametrize(("key_bytes", "full_gb", "single_gb"), [(16, 7, 30), (50, 13, 36)])
def test_a_day_of_events_takes_what_the_sizing_says(key_bytes: int, full_gb: int, single_gb: int) -> None:
    """docs/sizing.md gives these figures for 1,000 changes/s, with messages of 1,000 events and of one."""
    table = table_of({"id": "text"}, name="shop.orders", table_id=MESSAGE.table_id)
    key_schema = schema_text(events_key_schema(table))
    event = ROW._replace(
        key=b"\x20" + b"k" * key_bytes,
        partition_key=b"k" * key_bytes,
        clustering=(),
        expiry_time_s=None,
        marker_expiry_s=0,
        columns=("customer", "status", "total"),
    )
    for count, told_gb in ((1_000, full_gb), (1, single_gb)):
        message = replace(MESSAGE, keyspace="shop", table="orders", key_schema=key_schema, events=(event,) * count)
        assert round(len(encode_events(message)) / count * 86_400_000 / 1e9) == told_gb


def test_a_message_comes_back_as_it_was() -> None:
    """Every field and the order survive, also with the writer's schema from the registry."""
    data = encode_events(MESSAGE)
    assert decode_events(data) == MESSAGE
    assert decode_events(data, json.loads(MUTATION_EVENTS_SCHEMA_TEXT)) == MESSAGE


def test_a_reader_understands_a_writer_that_lacks_a_nullable_field() -> None:
    """Neighbouring versions must work together: a field that an earlier agent does not know is null."""
    older = json.loads(MUTATION_EVENTS_SCHEMA_TEXT)
    event_schema = older["fields"][-1]["type"]["items"]
    event_schema["fields"] = [each for each in event_schema["fields"] if each["name"] != "expiry_time"]
    import io

    import fastavro

    record = fastavro.schemaless_reader(
        io.BytesIO(encode_events(MESSAGE)), fastavro.parse_schema(json.loads(MUTATION_EVENTS_SCHEMA_TEXT)), None
    )
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(older), record)
    decoded = decode_events(out.getvalue(), older)
    assert [each.expiry_time_s for each in decoded.events] == [None, None, None]
    assert decoded.events[1] == RANGE


def test_messages_share_the_columns_that_they_name() -> None:
    """A connector remembers many events, and each may come in its own message."""
    first, second = (decode_events(encode_events(MESSAGE)) for _ in range(2))
    assert all(one.columns is other.columns for one, other in zip(first.events, second.events, strict=True))


@pytest.mark.parametrize("cut", range(0, 200, 7))
def test_a_message_that_is_cut_is_a_typed_error(cut: int) -> None:
    """It never returns a part of the events, and raises no other exception."""
    with pytest.raises(MalformedEventsError):
        decode_events(encode_events(MESSAGE)[:cut])


@pytest.mark.parametrize(
    ("token", "partition"),
    [(-(2**63), 0), (-4369997082720685421, 2), (-1, 3), (0, 0), (2**63 - 1, 3)],
)
def test_a_row_belongs_to_one_partition_by_the_top_16_bits_of_its_token(token: int, partition: int) -> None:
    """The rule of DataStax's agent: ((int16)(token >>> 48) + 32768) mod partitions."""
    assert partition_of_token(token, 4) == partition


def test_topic_names_are_completed_as_pulsar_clients_do() -> None:
    """A prefix may have tenant and namespace. A short name belongs to public/default."""
    assert events_topic("ks", "t") == "persistent://public/default/cdc-events-ks.t"
    assert events_topic("ks", "T x", "t/n/e-") == "persistent://t/n/e-ks.T x"
    assert full_topic_name("data-ks.t") == "persistent://public/default/data-ks.t"
