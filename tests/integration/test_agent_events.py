"""What each kind of CQL statement becomes on the events topic: real Cassandra, real agent, real Pulsar."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from cassandra.cluster import Session

from cdc.agent_process import AgentProcess
from cdc.rest import rest
from schemas.mutation_event import MUTATION_EVENTS_SCHEMA_TEXT, MutationKind, RangeBounds
from schemas.topics import events_topic
from tests.fixtures.agent import EventsFor
from tests.servers.interface import PulsarServer
from tests.topics.events_topic import EventsTopic, TopicEvent, avro_record, partitions_of

_KEYED = "pk int, ck int, v text, w int, st text static, PRIMARY KEY (pk, ck)"


def _kinds(events: list[TopicEvent]) -> list[str]:
    return [each.event.kind.value for each in events]


def _key(event: TopicEvent) -> dict[str, object]:
    return avro_record(event.message.key_schema, event.event.key)


def test_an_insert_tells_the_key_the_columns_and_the_write_time(events_for: EventsFor) -> None:
    """An insert becomes one ROW event with the full primary key."""
    [event] = events_for(_KEYED, "INSERT INTO {t} (pk, ck, v) VALUES (1, 2, 'a') USING TIMESTAMP 1000000", count=1)
    assert event.event.kind is MutationKind.ROW
    assert _key(event) == {"pk": 1, "ck": 2}
    assert event.event.partition_key == b"\0\0\0\1"
    assert event.event.clustering == (b"\0\0\0\2",)
    assert event.event.columns == ("v",)
    assert (event.event.writetime_us, event.event.live_cell_writetime_us) == (1_000_000, 1_000_000)
    assert event.event.deletion_time_us is None and event.event.expiry_time_s is None and event.event.bounds is None
    assert event.message.table == "t"


def test_an_update_with_a_ttl_tells_when_its_last_cell_expires(events_for: EventsFor) -> None:
    """The expiry is the write's time plus its TTL, in seconds since the epoch."""
    [event] = events_for(
        _KEYED, "UPDATE {t} USING TTL 1000 AND TIMESTAMP 1700000000000000 SET v = 'a' WHERE pk = 1 AND ck = 2", count=1
    )
    assert event.event.kind is MutationKind.ROW
    expires_in_s = (event.event.expiry_time_s or 0) - event.received_at
    # Minutes may lie between the statement and the moment when its event is read.
    assert 400 < expires_in_s <= 1001


def test_a_column_delete_is_a_row_event_without_a_live_cell(events_for: EventsFor) -> None:
    """Deleting a column writes a tombstone: the column is named, and nothing proves that the row lives."""
    [event] = events_for(_KEYED, "DELETE v FROM {t} USING TIMESTAMP 7 WHERE pk = 1 AND ck = 2", count=1)
    assert event.event.kind is MutationKind.ROW
    assert event.event.columns == ("v",)
    assert (event.event.writetime_us, event.event.live_cell_writetime_us) == (7, None)


def test_a_row_delete_tells_the_full_primary_key_and_its_time(events_for: EventsFor) -> None:
    """A row delete becomes one ROW_DELETION event."""
    [event] = events_for(_KEYED, "DELETE FROM {t} USING TIMESTAMP 9 WHERE pk = 1 AND ck = 2", count=1)
    assert event.event.kind is MutationKind.ROW_DELETION
    assert _key(event) == {"pk": 1, "ck": 2}
    assert (event.event.writetime_us, event.event.deletion_time_us, event.event.columns) == (9, 9, ())


def test_a_row_that_is_deleted_and_written_in_one_batch_is_one_event_with_both(events_for: EventsFor) -> None:
    """The event has the deletion's time beside the time of the new cells."""
    [event] = events_for(
        _KEYED,
        "BEGIN BATCH DELETE FROM {t} USING TIMESTAMP 10 WHERE pk = 1 AND ck = 2;"
        " INSERT INTO {t} (pk, ck, v) VALUES (1, 2, 'b') USING TIMESTAMP 20; APPLY BATCH",
        count=1,
    )
    assert event.event.kind is MutationKind.ROW
    assert (event.event.deletion_time_us, event.event.writetime_us, event.event.columns) == (10, 20, ("v",))


def test_a_static_write_has_no_clustering(events_for: EventsFor) -> None:
    """A write of a static column has its own kind of event, and the clustering columns of its key are null."""
    [event] = events_for(_KEYED, "UPDATE {t} SET st = 's' WHERE pk = 1", count=1)
    assert event.event.kind is MutationKind.STATIC_ROW
    assert _key(event) == {"pk": 1, "ck": None}
    assert (event.event.clustering, event.event.columns) == ((), ("st",))


def test_a_statement_that_writes_static_and_regular_columns_is_two_events(events_for: EventsFor) -> None:
    """The static row comes first; both events belong to the same entry of the log."""
    static, row = events_for(_KEYED, "INSERT INTO {t} (pk, ck, v, st) VALUES (1, 2, 'a', 's')", count=2)
    assert _kinds([static, row]) == ["STATIC_ROW", "ROW"]
    assert static.event.position == row.event.position
    assert (static.event.ordinal, row.event.ordinal) == (0, 1)


def test_a_partition_delete_and_a_range_delete_tell_their_scope(events_for: EventsFor) -> None:
    """A partition deletion has no clustering values; a range deletion's bounds are CQL bytes, empty if open."""
    partition, above, between = events_for(
        _KEYED,
        "DELETE FROM {t} USING TIMESTAMP 5 WHERE pk = 1",
        "DELETE FROM {t} USING TIMESTAMP 6 WHERE pk = 1 AND ck > 2",
        "DELETE FROM {t} USING TIMESTAMP 7 WHERE pk = 1 AND ck >= 3 AND ck < 9",
        count=3,
    )
    assert _kinds([partition, above, between]) == ["PARTITION_DELETION", "RANGE_DELETION", "RANGE_DELETION"]
    assert _key(partition) == _key(above) == {"pk": 1, "ck": None}
    assert (partition.event.deletion_time_us, above.event.deletion_time_us) == (5, 6)
    assert above.event.bounds == RangeBounds(start=(b"\0\0\0\2",), start_inclusive=False, end=(), end_inclusive=True)
    assert between.event.bounds == RangeBounds(
        start=(b"\0\0\0\3",), start_inclusive=True, end=(b"\0\0\0\x09",), end_inclusive=False
    )


def test_a_batch_over_two_tables_numbers_its_events_over_both(
    agent: AgentProcess, cql: Session, keyspace: str, open_topic: Callable[[str, str], EventsTopic]
) -> None:
    """Two tables in one mutation: each event goes to its own topic, and the ordinals tell them apart."""
    for table in ("a", "b"):
        cql.execute(f"CREATE TABLE {keyspace}.{table} (pk int PRIMARY KEY, v text) WITH cdc = true")
    cql.execute(
        f"BEGIN BATCH INSERT INTO {keyspace}.a (pk, v) VALUES (1, 'a'); INSERT INTO {keyspace}.b (pk, v) VALUES (1, 'b');"
        " APPLY BATCH"
    )
    [in_a] = open_topic(keyspace, "a").wait_for(1)
    [in_b] = open_topic(keyspace, "b").wait_for(1)
    assert in_a.event.position == in_b.event.position
    assert {in_a.event.ordinal, in_b.event.ordinal} == {0, 1}


def test_a_table_without_cdc_in_the_same_batch_has_no_events(
    agent: AgentProcess,
    cql: Session,
    keyspace: str,
    pulsar: PulsarServer,
    open_topic: Callable[[str, str], EventsTopic],
) -> None:
    """Only tables with cdc = true are published, and another table of the batch does not hide later changes."""
    cql.execute(f"CREATE TABLE {keyspace}.a (pk int PRIMARY KEY, v text)")
    cql.execute(f"CREATE TABLE {keyspace}.b (pk int PRIMARY KEY, v text) WITH cdc = true")
    cql.execute(
        f"BEGIN BATCH INSERT INTO {keyspace}.a (pk, v) VALUES (1, 'a'); INSERT INTO {keyspace}.b (pk, v) VALUES (1, 'b');"
        " APPLY BATCH"
    )
    [event] = open_topic(keyspace, "b").wait_for(1)
    assert event.event.ordinal == 0
    assert partitions_of(pulsar.admin_url, events_topic(keyspace, "a")) == []


def test_every_event_has_the_digest_of_its_own_content(events_for: EventsFor) -> None:
    """It has 16 bytes, and differs if replicas store anything different: here the value, then the write time."""
    events = events_for(
        _KEYED,
        "INSERT INTO {t} (pk, ck, v) VALUES (1, 2, 'a') USING TIMESTAMP 1",
        "INSERT INTO {t} (pk, ck, v) VALUES (1, 2, 'b') USING TIMESTAMP 1",
        "INSERT INTO {t} (pk, ck, v) VALUES (1, 2, 'b') USING TIMESTAMP 2",
        "INSERT INTO {t} (pk, ck, v) VALUES (1, 2, 'b') USING TIMESTAMP 2",
        count=4,
    )
    digests = [each.event.digest for each in events]
    assert [len(each) for each in digests] == [16, 16, 16, 16]
    assert len(set(digests)) == 3 and digests[2] == digests[3]


def test_changes_of_counter_tables_are_published(events_for: EventsFor) -> None:
    """A counter update is a ROW event."""
    [event] = events_for("pk int PRIMARY KEY, c counter", "UPDATE {t} SET c = c + 5 WHERE pk = 3", count=1)
    assert event.event.kind is MutationKind.ROW
    assert (_key(event), event.event.columns) == ({"pk": 3}, ("c",))


def test_the_writes_of_a_row_stay_in_order_in_one_partition_of_the_topic(events_for: EventsFor) -> None:
    """All events of a partition key go to one topic partition, in the order of the log."""
    statements = [f"INSERT INTO {{t}} (pk, ck, v) VALUES ({n % 7}, {n}, 'x')" for n in range(70)]
    events = events_for(_KEYED, *statements, count=70)
    partitions: dict[bytes, set[int]] = {}
    for each in events:
        partitions.setdefault(each.event.partition_key, set()).add(each.partition)
    assert [len(each) for each in partitions.values()] == [1] * 7
    assert len({each.partition for each in events}) > 1
    for partition in range(4):
        places = [(each.message.segment_id, each.event.position) for each in events if each.partition == partition]
        assert places == sorted(places)


def test_the_topic_has_the_schema_and_the_subscription_of_the_contract(
    events_for: EventsFor, keyspace: str, pulsar: PulsarServer
) -> None:
    """The topic has four partitions, the Avro schema of MutationEvents, and a subscription `sub` with all events."""
    events_for(_KEYED, "INSERT INTO {t} (pk, ck, v) VALUES (1, 2, 'a')", count=1)
    admin, path = pulsar.admin_url, events_topic(keyspace, "t").removeprefix("persistent://")
    schema = rest().get(f"{admin}/admin/v2/schemas/{path}/schema").raise_for_status().json()
    assert schema["type"] == "AVRO"
    assert json.loads(schema["data"]) == json.loads(MUTATION_EVENTS_SCHEMA_TEXT)
    stats = rest().get(f"{admin}/admin/v2/persistent/{path}/partitioned-stats").raise_for_status().json()
    assert stats["metadata"]["partitions"] == 4
    assert stats["subscriptions"]["sub"]["msgBacklog"] == 1


@pytest.mark.parametrize(
    ("column_type", "literal", "expected"),
    [
        ("text", "'ä'", "ä"),
        ("tinyint", "-5", -5),
        ("smallint", "-300", -300),
        ("timestamp", "'2021-01-01T00:00:00.123Z'", 1_609_459_200_123),
        ("inet", "'2001:db8::1'", "2001:db8:0:0:0:0:0:1"),
        ("frozen<list<int>>", "[1, 2]", [1, 2]),
    ],
)
def test_keys_are_avro_of_their_type(events_for: EventsFor, column_type: str, literal: str, expected: object) -> None:
    """The key is what DataStax's connector would write, or the correct value where it writes a wrong one."""
    [event] = events_for(
        f"pk {column_type} PRIMARY KEY, v int", f"INSERT INTO {{t}} (pk, v) VALUES ({literal}, 1)", count=1
    )
    record = avro_record(event.message.key_schema, event.event.key)
    value = record["pk"]
    assert (round(value.timestamp() * 1000) if hasattr(value, "timestamp") else value) == expected
