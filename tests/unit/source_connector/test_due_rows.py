"""Rows that wait for an expiry: their encoder compared with fastavro, and the keys that are known."""

from __future__ import annotations

import json
import logging
from typing import cast
from uuid import UUID

import fastavro
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.notices import Notices
from schemas.mutation_event import (
    EXPIRY_SEGMENT_ID,
    MUTATION_EVENTS_SCHEMA_TEXT,
    MutationEvent,
    MutationEvents,
    decode_events,
    encode_events,
)
from source_connector.encoding.projection import Projection
from source_connector.events.due_rows import DueRow, DueRows, encode_due_rows
from source_connector.events.events_message import EventsMessage
from source_connector.events.expiry_topics import ExpiryTopics, _Packed, _Place
from source_connector.events.pulsar_access import PulsarConnection, PulsarOptions
from source_connector.metrics import Metrics
from source_connector.rows.expiry_schedule import ExpirySchedule
from source_connector.rows.row_expiry import NextExpiry
from tests.unit.source_connector.events import due_row, event, event_of, int32, table
from tests.unit.source_connector.task_owner import a_task

_ROWS = st.builds(
    DueRow,
    is_static=st.booleans(),
    key=st.binary(max_size=300),
    partition_key=st.binary(max_size=300),
    digest=st.binary(min_size=16, max_size=16),
    clustering=st.lists(st.one_of(st.none(), st.binary(max_size=200)), max_size=3).map(tuple),
    second=st.integers(0, 2**40),
    columns=st.lists(st.text(max_size=70), max_size=3).map(tuple),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=st.lists(_ROWS, min_size=1, max_size=100), name=st.text(max_size=5))
def test_the_bytes_are_those_that_fastavro_writes(rows: list[DueRow], name: str) -> None:
    """More than 63 events or bytes need lengths of two bytes, and each column set has its index in the message."""
    events = tuple(event_of(each) for each in rows)
    assert encode_due_rows(_message((), name), rows) == encode_events(_message(events, name))


def test_stored_bytes_of_expiries_and_dead_letters_have_the_schema_of_today() -> None:
    """Neither names its schema, and both wait for years. So before the schema changes, both must name their schema.

    The connector sends them with its own schema. With a changed schema, none of them could be decoded.
    """
    stored = bytes.fromhex(
        "4830303030303030302d303030302d303030302d303030302d30303030303030303030303105046b730274483030303030303030"
        "2d303030302d303030302d303030302d3030303030303030303030320e2262797465732202020276000004000000026b02700402"
        "02630000000102030405060708090a0b0c0d0e0f0000000280ccfd930e00000201000004026b027000000102030405060708090a"
        "0b0c0d0e0f0000000280ccfd930e0000020100"
    )
    rows = [
        DueRow(
            is_static=not clustering,
            key=b"k",
            partition_key=b"p",
            clustering=clustering,
            second=1_900_000_000,
            columns=("v",),
            digest=bytes(range(16)),
        )
        for clustering in ((b"c", None), ())
    ]
    todays = fastavro.parse_schema(json.loads(MUTATION_EVENTS_SCHEMA_TEXT))
    assert decode_events(stored, cast("dict[str, object]", todays)) == _message(tuple(map(event_of, rows)))
    assert encode_due_rows(_message(()), rows) == stored


def _message(events: tuple[MutationEvent, ...], keyspace: str = "ks") -> MutationEvents:
    return MutationEvents(
        node_id=UUID(int=1),
        segment_id=EXPIRY_SEGMENT_ID,
        keyspace=keyspace,
        table="t",
        table_id=UUID(int=2),
        key_schema='"bytes"',
        events=events,
    )


def test_keys_that_came_while_nothing_was_taken_leave_in_messages_that_a_broker_takes() -> None:
    """Messages keep the order of the keys, and have at most a thousand keys, or 256 KiB of large keys."""
    place = _Place("expiry", "events", 7, "ks", "t", UUID(int=2), '"bytes"')
    for large, most in ((0, 1_000), (20_000, 12)):
        rows = [due_row(second=each, partition_key=bytes(large * (each > 2_000))) for each in range(2_500)]
        packed = _Packed(place=place, node_id=UUID(int=1), due_at=0.0, rows=rows, failures=3)
        packed.then += [list] * len(rows)
        parts = packed.parts()
        assert [each for part in parts for each in part.rows] == rows
        assert all(len(part.then) == len(part.rows) <= 1_000 for part in parts)
        assert len(parts[-1].rows) <= most
        assert max(len(encode_due_rows(_message(()), part.rows)) for part in parts) <= 256 * 1024
        assert {(part.place, part.failures) for part in parts} == {(place, 3)}


def test_a_row_waits_under_the_key_of_todays_definition() -> None:
    """A user type in the key may have got a field since the event: the message of the expiry has one schema for its keys."""
    keeper, projection = _keeper(9), Projection(table(clustering_key=("c",)))
    schedule = ExpirySchedule(
        keeper, "expiry", Metrics(), Notices(logging.getLogger(__name__)), lambda task, proven: None
    )
    (written,) = EventsMessage(identity=b"", message_id=None, content=_message((event(1, 2),))).take_events()
    schedule.store(a_task(), written, written.event.clustering, NextExpiry(7, ("v",), bytes(16)), projection)
    ((_, _, _, row),) = keeper.due_rows.take()
    assert row.key == projection.event_key_of((int32(1), int32(2))) != written.event.key


def test_some_messages_are_asked_for_out_of_order() -> None:
    """Otherwise the broker would take all delays for equal, and would not read on after the first 50,000 messages."""
    keeper = _keeper(1)
    asked = [keeper._producers._out_of_order("t", second, 0) for second in range(1_000, 6_000)]
    early = [at for at in range(1, len(asked)) if asked[at] < max(asked[:at]) - 2]
    assert early == list(range(499, 5_000, 500))
    assert all(asked[at] >= 1_000 + at - 31 for at in early)
    assert [keeper._producers._out_of_order("u", 7, 7) for _ in range(1_000)] == [7] * 1_000


def test_the_last_keys_are_not_stored_again_and_earlier_ones_are_forgotten() -> None:
    """At least two of four are known, and the latest second of a key counts."""
    known = DueRows(4)

    def is_known(key: int, second: int = 1) -> bool:
        return known.is_known(b"table", due_row(key=bytes([key]), second=second))

    assert [is_known(key) for key in (1, 2, 2, 1)] == [False, False, True, True]
    assert [is_known(1, 9), is_known(1, 9), is_known(1, 1)] == [False, True, False]
    assert not any(is_known(key) for key in range(10, 20))
    assert [is_known(key) for key in (19, 18, 1)] == [True, True, False]


def test_the_same_key_of_another_table_is_another_row_and_what_is_forgotten_is_not_known() -> None:
    """A deleted topic had rows of all tables."""
    known, row = DueRows(4), due_row()
    assert [known.is_known(b"1", row), known.is_known(b"2", row), known.is_known(b"1", row)] == [False, False, True]
    known.forget()
    assert [known.is_known(b"1", row), known.is_known(b"2", row)] == [False, False]


def test_a_row_with_another_value_or_other_columns_is_not_the_one_that_is_known() -> None:
    """The stored expiry has the columns, and a hash of their values: with those of before, nothing would be published."""
    known = DueRows(4)
    row = due_row()
    others = [due_row(digest=b"x" * 16), due_row(columns=("v", "w"))]
    for other in others:
        assert [known.is_known(b"1", each) for each in (row, other, other)] == [False, False, True]


def _keeper(max_known: int) -> ExpiryTopics:
    connection = PulsarConnection(PulsarOptions(service_url="pulsar://nowhere"))
    return ExpiryTopics(connection, max_known, lambda: 0.0, lambda _: None)
