"""The hand-written bytes of a message with expiries, beside those that fastavro writes by the schema."""

from __future__ import annotations

from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.mutation_event import EXPIRY_SEGMENT_ID, MutationEvent, MutationEvents, MutationKind, encode_events
from source_connector.events.expiry_message import encode_expiries
from source_connector.events.expiry_topics import ExpiryTopics, _Packed, _Place
from source_connector.events.pulsar_access import PulsarConnection, PulsarOptions

_SECONDS = st.one_of(st.none(), st.integers(-1, 2**40))
_EVENTS = st.builds(
    MutationEvent,
    position=st.just(0),
    ordinal=st.just(0),
    kind=st.sampled_from([MutationKind.ROW, MutationKind.STATIC_ROW]),
    key=st.binary(max_size=300),
    partition_key=st.binary(max_size=300),
    digest=st.binary(min_size=16, max_size=16),
    clustering=st.lists(st.one_of(st.none(), st.binary(max_size=200)), max_size=3).map(tuple),
    expiry_time_s=_SECONDS,
    columns=st.lists(st.text(max_size=70), max_size=3).map(tuple),
    marker_expiry_s=_SECONDS,
    **dict.fromkeys(("writetime_us", "live_cell_writetime_us", "deletion_time_us", "bounds"), st.none()),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(events=st.lists(_EVENTS, min_size=1, max_size=100).map(tuple), name=st.text(max_size=5))
def test_the_bytes_are_those_that_fastavro_writes(events: tuple[MutationEvent, ...], name: str) -> None:
    """More than 63 events or bytes have lengths of two bytes, and large sets of columns their own places."""
    message = _message(events, name)
    assert encode_expiries(message) == encode_events(message)


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
    """All of them in their order, at most a thousand in one, or 256 KiB of large keys."""
    place = _Place("expiry", "events", 7, "ks", "t", UUID(int=2), '"bytes"')
    event = MutationEvent(position=0, ordinal=0, kind=MutationKind.ROW, key=b"k", partition_key=b"k", digest=bytes(16))
    for large, most in ((0, 1_000), (20_000, 12)):
        events = [
            event._replace(expiry_time_s=each, partition_key=bytes(large * (each > 2_000))) for each in range(2_500)
        ]
        packed = _Packed(place=place, node_id=UUID(int=1), due_at=0.0, events=events, failures=3)
        packed.then += [list] * len(events)
        parts = packed.parts()
        assert [each for part in parts for each in part.events] == events
        assert all(len(part.then) == len(part.events) <= 1_000 for part in parts)
        assert len(parts[-1].events) <= most
        assert max(len(encode_events(_message(tuple(part.events)))) for part in parts) <= 256 * 1024
        assert {(part.place, part.failures) for part in parts} == {(place, 3)}


def test_some_messages_are_asked_for_out_of_order() -> None:
    """Else the broker would take all delays for equal, and read nothing behind the first 50,000 messages."""
    keeper = _keeper(1)
    asked = [keeper._out_of_order("t", second, 0) for second in range(1_000, 6_000)]
    early = [at for at in range(1, len(asked)) if asked[at] < max(asked[:at]) - 2]
    assert early == list(range(499, 5_000, 500))
    assert all(asked[at] >= 1_000 + at - 31 for at in early)
    assert [keeper._out_of_order("u", 7, 7) for _ in range(1_000)] == [7] * 1_000


def test_the_last_keys_are_not_stored_again_and_earlier_ones_are_forgotten() -> None:
    """Of four at least two are known, and the newest second of a key counts."""
    keeper = _keeper(4)
    event = MutationEvent(position=0, ordinal=0, kind=MutationKind.ROW, key=b"", partition_key=b"", digest=bytes(16))

    def is_stored(key: int, second: int = 1) -> bool:
        return keeper.is_stored(UUID(int=2), event._replace(key=bytes([key]), expiry_time_s=second))

    assert [is_stored(key) for key in (1, 2, 2, 1)] == [False, False, True, True]
    assert [is_stored(1, 9), is_stored(1, 9), is_stored(1, 1)] == [False, True, False]
    assert not any(is_stored(key) for key in range(10, 20))
    assert [is_stored(key) for key in (19, 18, 1)] == [True, True, False]


def _keeper(max_known: int) -> ExpiryTopics:
    connection = PulsarConnection(PulsarOptions(service_url="pulsar://nowhere"))
    return ExpiryTopics(connection, max_known, lambda: 0.0, lambda _: None)
