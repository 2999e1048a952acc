"""Records that the connector publishes for each kind of event: real servers, and the archive as a source."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from uuid import UUID, uuid4

from schemas.mutation_event import NO_MARKER, SNAPSHOT_SEGMENT_ID, MutationKind, RangeBounds
from tests.fixtures.connector import CreateLine, DeployConnector, wait_until_acknowledged
from tests.servers.interface import PulsarServer
from tests.topics.connector_line import int32
from tests.topics.events_topic import wait_until


def test_a_row_is_published_as_it_is_now_and_a_missing_row_as_null(
    connector_line: CreateLine, deploy_connector: DeployConnector, pulsar: PulsarServer
) -> None:
    """Key and value are Avro by the registered schemas, the properties describe the change, and the event is
    acknowledged."""
    line = connector_line("id int PRIMARY KEY, name text, tags set<text>")
    deploy_connector(line.keyspace, "t")
    insert = "INSERT INTO {t} (id, name, tags) VALUES (1, 'one', {'x'}) USING {ts}"
    inserted = line.change(insert, int32(1), columns=("name", "tags"))
    deleted = line.change("DELETE FROM {t} USING {ts} WHERE id = 2", int32(2), kind=MutationKind.ROW_DELETION)
    line.writer.send(inserted, deleted)
    one, two = sorted(line.topic.next(2), key=lambda record: record.key["id"])
    assert (one.key_bytes, one.value_bytes) == (b"\x02", b"\x02\x06one\x02\x02\x02x\x00")
    assert one.value == {"name": "one", "tags": ["x"]}
    assert one.properties["writetime"] == str(inserted.writetime_us)
    assert one.event_time_ms == (inserted.writetime_us or 0) // 1000
    assert (one.kind, one.properties["segpos"]) == ("row", f"7:{inserted.position}")
    assert UUID(one.properties["table_id"]) == line.writer.table.table_id
    assert (two.key, two.value, two.kind) == ({"id": 2}, None, "row_deletion")
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)


def test_deletions_of_many_rows_are_a_marker_followed_by_the_rows_that_are_left(
    connector_line: CreateLine, deploy_connector: DeployConnector, pulsar: PulsarServer
) -> None:
    """For a partition deletion and a range deletion, the marker comes first, then the remaining rows, each with its
    static columns."""
    line = connector_line("pk int, ck int, v text, st text static, PRIMARY KEY (pk, ck)")
    deploy_connector(line.keyspace, "t")
    for clustering in range(6):
        line.run(f"INSERT INTO {{t}} (pk, ck, v) VALUES (1, {clustering}, 'v{clustering}') USING {{ts}}")
    static = line.change(
        "UPDATE {t} USING {ts} SET st = 's' WHERE pk = 1", int32(1), kind=MutationKind.STATIC_ROW, columns=("st",)
    )
    line.writer.send(static)
    (record,) = line.topic.next()
    assert (record.key, record.value) == ({"pk": 1, "ck": None}, {"v": None, "st": "s"})
    assert (record.kind, record.properties["static_columns"]) == ("static_row", '["st"]')

    line.run("DELETE FROM {t} USING {ts} WHERE pk = 1 AND ck > 0 AND ck < 3")
    line.run("INSERT INTO {t} (pk, ck, v) VALUES (1, 2, 'again') USING {ts}")
    bounds = RangeBounds(start=(int32(0),), start_inclusive=False, end=(int32(3),), end_inclusive=False)
    deleted = line.writer.event(int32(1), kind=MutationKind.RANGE_DELETION, writetime_us=77, bounds=bounds)
    line.writer.send(deleted)
    marker, survivor = line.topic.next(2)
    assert (marker.key, marker.value, marker.kind) == ({"pk": 1, "ck": None}, None, "range_deletion")
    assert marker.properties["deletion_time"] == "77"
    assert base64.b64decode(marker.properties["range_start"]) == b"\x02\x02\x00"  # pk 1, ck 0
    assert base64.b64decode(marker.properties["range_end"]) == b"\x02\x02\x06"  # pk 1, ck 3
    assert marker.properties["range_start_inclusive"] == marker.properties["range_end_inclusive"] == "false"
    assert "range_reversed" not in marker.properties
    assert (survivor.key, survivor.value, survivor.kind) == ({"pk": 1, "ck": 2}, {"v": "again", "st": "s"}, "row")
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)

    line.run("DELETE FROM {t} USING {ts} WHERE pk = 1")
    line.run("INSERT INTO {t} (pk, ck, v) VALUES (1, 9, 'late') USING {ts}")
    line.writer.send(line.writer.event(int32(1), kind=MutationKind.PARTITION_DELETION, writetime_us=78))
    marker, survivor = line.topic.next(2)
    assert (marker.key, marker.value, marker.kind) == ({"pk": 1, "ck": None}, None, "partition_deletion")
    assert (survivor.key, survivor.value) == ({"pk": 1, "ck": 9}, {"v": "late", "st": None})


def test_an_event_that_is_here_before_its_write_is_to_be_read_waits_for_it(
    connector_line: CreateLine, deploy_connector: DeployConnector, pulsar: PulsarServer
) -> None:
    """Cassandra writes a change to its commit log before reads show it: the connector waits and does not publish the
    row from before the change."""
    line = connector_line("id int PRIMARY KEY, a int")
    deploy_connector(line.keyspace, "t")

    def published() -> list[tuple[int, object]]:
        wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
        return [(record.key["id"], record.value) for record in line.topic.take_all()]

    # The connector waits only until two seconds after a change: if the write was too late, the test tries other keys.
    for new, old in ((number, number + 1) for number in range(1, 21, 2)):
        insert = f"INSERT INTO {{t}} (id, a) VALUES ({old}, 2) USING {{ts}}"
        line.writer.send(line.change(insert, int32(old), columns=("a",)))
        assert published() == [(old, {"a": 2})]
        now_us = time.time_ns() // 1000
        line.writer.send(
            line.writer.event(int32(new), writetime_us=now_us, columns=("a",)),
            line.writer.event(int32(old), writetime_us=now_us, kind=MutationKind.ROW_DELETION, is_live=False),
        )
        line.run(f"INSERT INTO {{t}} (id, a) VALUES ({new}, 1) USING TIMESTAMP {now_us}")
        line.run(f"DELETE FROM {{t}} USING TIMESTAMP {now_us} WHERE id = {old}")
        took_s = time.time() - now_us / 1e6
        records = published()
        if took_s < 1.5:
            break
    assert sorted(records, key=lambda record: record[0]) == [(new, {"a": 1}), (old, None)]


def test_a_row_tells_by_cassandras_own_ttls_when_it_goes(
    connector_line: CreateLine, deploy_connector: DeployConnector
) -> None:
    """The properties follow Cassandra's TTLs, not the events: a row from before CDC remains when one column expires,
    and a backfilled row with a TTL expires."""
    line = connector_line("id int PRIMARY KEY, a int, b int, m map<int, int>")
    deploy_connector(line.keyspace, "t")
    line.run("INSERT INTO {t} (id, a, b) VALUES (1, 1, 1) USING {ts}")
    end_s = int(time.time()) + 600
    update = "UPDATE {t} USING {ts} AND TTL 600 SET a = 2 WHERE id = "
    one, two = (line.change(f"{update}{id}", int32(id), columns=("a",)) for id in (1, 2))  # noqa: A001
    line.writer.send(one._replace(expiry_time_s=end_s, marker_expiry_s=NO_MARKER))
    line.run("INSERT INTO {t} (id, a, b) VALUES (3, 3, 3) USING {ts} AND TTL 600")
    line.run("ALTER TABLE {t} WITH default_time_to_live = 600")
    line.run("INSERT INTO {t} (id, a) VALUES (4, 4) USING {ts}")
    line.run("INSERT INTO {t} (id, a, m) VALUES (5, 5, {1: 1}) USING {ts}")
    asked = [line.writer.event(int32(id), writetime_us=1) for id in (3, 4, 5)]  # noqa: A001
    line.writer.send(two._replace(expiry_time_s=end_s, marker_expiry_s=NO_MARKER))
    line.writer.send(*asked, segment_id=SNAPSHOT_SEGMENT_ID)
    told: dict[int, Mapping[str, str]] = {}
    while len(told) < 5:  # A record that took long may be followed by another one, whose TTLs end a second later.
        (record,) = line.topic.next()
        told[record.key["id"]] = record.properties
    assert {id: set(json.loads(each["columns_expire_at"])) for id, each in told.items()} == {  # noqa: A001
        1: {"a"},
        2: {"a"},
        3: {"a", "b"},
        4: {"a"},
        5: {"a"},
    }
    assert [id for id, each in sorted(told.items()) if "expires_at" in each] == [3, 4]  # noqa: A001
    assert [id for id, each in sorted(told.items()) if "cells_expire_at" in each] == [2, 3, 4]  # noqa: A001
    seconds = [second for each in told.values() for second in json.loads(each["columns_expire_at"]).values()]
    assert all(abs(second - end_s) < 120 for second in seconds)


def test_a_partition_of_several_pages_is_published_again_completely(
    connector_line: CreateLine, deploy_connector: DeployConnector
) -> None:
    """The remaining rows come page by page: 1,200 rows after the marker, each once."""
    line = connector_line("pk int, ck int, v int, PRIMARY KEY (pk, ck)")
    deploy_connector(line.keyspace, "t")
    for first in range(0, 1200, 200):
        rows = "".join(f"INSERT INTO {{t}} (pk, ck, v) VALUES (1, {ck}, {ck});" for ck in range(first, first + 200))
        line.run(f"BEGIN UNLOGGED BATCH {rows} APPLY BATCH")
    line.writer.send(line.writer.event(int32(1), kind=MutationKind.PARTITION_DELETION, writetime_us=1))
    records = line.topic.next(1201)
    assert records[0].kind == "partition_deletion"
    assert [record.key["ck"] for record in records[1:]] == list(range(1200))
    line.topic.expect_silence(0.5)


def test_a_column_that_is_added_is_a_new_version_of_the_schema_in_mid_stream(
    connector_line: CreateLine, deploy_connector: DeployConnector, pulsar: PulsarServer
) -> None:
    """The first event with the column brings the new version; earlier records stay readable by their own version."""
    line = connector_line("id int PRIMARY KEY, a int")
    deploy_connector(line.keyspace, "t")
    line.writer.send(line.change("INSERT INTO {t} (id, a) VALUES (1, 1) USING {ts}", int32(1), columns=("a",)))
    (before,) = line.topic.next()
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    line.run("ALTER TABLE {t} ADD b text")
    line.writer.send(line.change("UPDATE {t} USING {ts} SET b = 'new' WHERE id = 1", int32(1), columns=("b",)))
    (after,) = line.topic.next()
    assert (before.schema_version, before.value) == (0, {"a": 1})
    assert (after.schema_version, after.value) == (1, {"a": 1, "b": "new"})
    assert line.topic.schema(1)["properties"] == {
        "kv.encoding.type": "SEPARATED",
        "key.schema.name": "t",
        "key.schema.type": "AVRO",
        "key.schema.properties": "{}",
        "value.schema.name": "t",
        "value.schema.type": "AVRO",
        "value.schema.properties": "{}",
    }

    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    line.run("ALTER TABLE {t} DROP a")
    line.writer.send(line.change("UPDATE {t} USING {ts} SET b = 'newer' WHERE id = 1", int32(1), columns=("b",)))
    assert line.topic.next()[0].value in ({"b": "newer"}, {"a": None, "b": "newer"})


def test_a_user_type_that_grows_is_followed(
    connector_line: CreateLine, deploy_connector: DeployConnector, pulsar: PulsarServer
) -> None:
    """A new field appears in the value, although events cannot name fields."""
    line = connector_line("id int PRIMARY KEY, n int")
    line.run(f"CREATE TYPE {line.keyspace}.pair (a int)")
    line.run("ALTER TABLE {t} ADD p frozen<pair>")
    line.writer.refresh()
    deploy_connector(line.keyspace, "t")
    line.writer.send(line.change("UPDATE {t} USING {ts} SET p = {a: 1} WHERE id = 1", int32(1), columns=("p",)))
    assert line.topic.next()[0].value == {"n": None, "p": {"a": 1}}
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    line.run(f"ALTER TYPE {line.keyspace}.pair ADD b int")
    line.writer.send(line.change("UPDATE {t} USING {ts} SET p = {a: 1, b: 2} WHERE id = 1", int32(1), columns=("p",)))
    assert line.topic.next()[0].value == {"n": None, "p": {"a": 1, "b": 2}}


def test_another_replicas_copy_of_a_proven_change_is_dropped(
    connector_line: CreateLine, deploy_connector: DeployConnector, pulsar: PulsarServer
) -> None:
    """The copy is dropped when it comes later and when the first copy is still in progress; all events are
    acknowledged."""
    line = connector_line("id int PRIMARY KEY, a int")
    deploy_connector(line.keyspace, "t")
    events = [
        line.change(f"INSERT INTO {{t}} (id, a) VALUES ({i}, 1) USING {{ts}}", int32(i), columns=("a",))
        for i in range(20)
    ]
    other_node = uuid4()
    line.writer.send(*events)
    line.writer.send(*events, node=other_node)
    line.topic.next(20)
    line.writer.send(*events, node=other_node)
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    line.topic.expect_silence()


def test_a_copy_is_published_when_the_first_one_could_not_be_proven(
    connector_line: CreateLine, deploy_connector: DeployConnector, pulsar: PulsarServer
) -> None:
    """The read of the first copy did not show the change, so its digest must not suppress the second copy."""
    line = connector_line("id int PRIMARY KEY, a int")
    deploy_connector(line.keyspace, "t")
    event = line.writer.event(int32(1), writetime_us=5, columns=("a",))
    unknown_node = uuid4()
    line.writer.send(event, node=unknown_node)
    assert line.topic.next()[0].value is None
    line.run("INSERT INTO {t} (id, a) VALUES (1, 8) USING TIMESTAMP 5")
    line.writer.send(event, node=unknown_node)
    assert line.topic.next()[0].value == {"a": 8}
    line.writer.send(event, node=unknown_node)  # The read of the second copy proved the change.
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    line.topic.expect_silence()


def test_events_of_a_dropped_table_are_acknowledged_and_those_of_its_successor_published(
    connector_line: CreateLine, deploy_connector: DeployConnector, pulsar: PulsarServer
) -> None:
    """The new table's key is never used for old events; new events wait until the connector sees the new table.

    A table that is created again `WITH ID` of an earlier one is a new table, too: its generation is later.
    """
    line = connector_line("id int PRIMARY KEY, a int")
    deploy_connector(line.keyspace, "t")
    old = line.change("INSERT INTO {t} (id, a) VALUES (1, 1) USING {ts}", int32(1), columns=("a",))
    line.writer.send(old)
    (first,) = line.topic.next()
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    old_id = line.writer.table.table_id
    line.run("DROP TABLE {t}")
    line.run("CREATE TABLE {t} (id int PRIMARY KEY, a int, b text)")
    line.writer.refresh()
    new = line.change("INSERT INTO {t} (id, b) VALUES (1, 'b') USING {ts}", int32(1), columns=("b",))
    line.writer.send(new)
    line.writer.send(line.writer.event(int32(2), writetime_us=3, columns=("a",)), table_id=old_id)
    (second,) = line.topic.next()
    # Otherwise the connector may read the dropped table's event when that id is the latest table's again, and then
    # publishes a record.
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    assert first.properties["table_id"] == str(old_id)
    assert (second.properties["table_id"], second.value) == (str(line.writer.table.table_id), {"a": None, "b": "b"})
    line.run("DROP TABLE {t}")
    line.run(f"CREATE TABLE {{t}} (id int PRIMARY KEY, a int, b text) WITH ID = {old_id}")
    line.writer.refresh()
    line.writer.send(line.change("INSERT INTO {t} (id, a) VALUES (1, 3) USING {ts}", int32(1), columns=("a",)))
    (third,) = line.topic.next()
    assert (third.properties["table_id"], third.value) == (str(old_id), {"a": 3, "b": None})
    lives = [int(each.properties["table_generation"]) for each in (first, second, third)]
    assert lives == sorted(set(lives))
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    line.topic.expect_silence(0.5)


def test_rows_whose_partition_keys_share_a_column_are_each_published_as_they_are(
    connector_line: CreateLine, deploy_connector: DeployConnector
) -> None:
    """Also rows of values that Cassandra writes anew in the list of an `IN`, and so does not find there."""
    line = connector_line("a varint, b int, c inet, v int, PRIMARY KEY ((a, b), c)")
    usual = [bytes([number]) for number in range(30)]
    unusual = [b"\0" + each for each in usual]  # 0x0001 is 1, like 0x01, but another partition
    addresses = [bytes([10, 0, 0, number]) for number in range(10)]
    mapped = [b"\0" * 10 + b"\xff\xff" + each for each in addresses]  # ::ffff:10.0.0.1, but another row than 10.0.0.1
    keys = [(each, addresses[0]) for each in usual + unusual]
    keys += [(b"\x63", each) for each in addresses + mapped]
    events = []
    for number, (a, c) in enumerate(keys):
        values = f"blobAsVarint(0x{a.hex()}), 7, blobAsInet(0x{c.hex()}), {number}"
        insert = f"INSERT INTO {{t}} (a, b, c, v) VALUES ({values}) USING {{ts}}"
        events.append(line.change(insert, a, int32(7), c, columns=("v",)))
    connector = deploy_connector(line.keyspace, "t")
    line.writer.send(*events)
    records = line.topic.next(len(events))
    assert sorted(record.value["v"] for record in records if record.value is not None) == list(range(80))
    line.topic.expect_silence(0.5)
    wait_until(lambda: connector.metric("records_published") == len(events), "the records in the metrics")
    assert connector.metric("rows_not_converted") == 0


def test_changes_of_one_key_keep_their_order(connector_line: CreateLine, deploy_connector: DeployConnector) -> None:
    """The last record of each key is its latest state, and write times and values of a key never go back.

    A record that took long is followed by another one for the same events if the row has changed since.
    """
    line = connector_line("pk int, ck int, v int, PRIMARY KEY (pk, ck)")
    deploy_connector(line.keyspace, "t")
    for round_number in range(20):
        events = []
        for pk in range(5):
            for ck in range(5):
                insert = f"INSERT INTO {{t}} (pk, ck, v) VALUES ({pk}, {ck}, {round_number}) USING {{ts}}"
                events.append(line.change(insert, int32(pk), int32(ck), columns=("v",)))
        line.writer.send(*events)
    newest = {event.key: event.writetime_us for event in events}
    last: dict[bytes, tuple[int, int]] = {}
    while {key: writetime_us for key, (writetime_us, _) in last.items()} != newest:
        (record,) = line.topic.next()
        assert record.value is not None
        before, now = last.get(record.key_bytes, (0, -1)), (int(record.properties["writetime"]), record.value["v"])
        assert before < now
        assert before[1] <= now[1]
        last[record.key_bytes] = now
    assert {record.key_bytes: record.value for record in line.topic.records} == {key: {"v": 19} for key in newest}
    line.topic.expect_silence(0.5)


def test_a_row_that_did_not_change_is_published_once_where_that_is_asked_for(
    connector_line: CreateLine, deploy_connector: DeployConnector, pulsar: PulsarServer
) -> None:
    """With `suppress.unchanged`, an event of an unchanged row is acknowledged without a record, and counted."""
    line = connector_line("id int PRIMARY KEY, a int")
    connector = deploy_connector(line.keyspace, "t", suppress__unchanged=True)
    sent_at: list[float] = []

    def values_of(statement: str, *columns: str, is_live: bool = True) -> list[object]:
        sent_at.append(time.monotonic())
        line.writer.send(line.change(statement, int32(1), columns=columns, is_live=is_live))
        wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
        return [record.value for record in line.topic.take_all()]

    def is_left_out() -> bool:
        found = values_of("INSERT INTO {t} (id, a) VALUES (1, 5) USING {ts}", "a")
        # The connector forgets a row whose record took 5 s, and all rows when it paused for as long.
        assert not found or (found == [{"a": 5}] and time.monotonic() - sent_at[-2] > 5.0)
        return not found

    assert values_of("INSERT INTO {t} (id, a) VALUES (1, 5) USING {ts}", "a") == [{"a": 5}]
    wait_until(is_left_out, "the same value without a record")
    assert values_of("INSERT INTO {t} (id, a) VALUES (1, 6) USING {ts}", "a") == [{"a": 6}]
    assert values_of("DELETE FROM {t} USING {ts} WHERE id = 1", is_live=False) == [None]
    published = len(line.topic.records)
    wait_until(lambda: connector.metric("records_published") == published, "the last record in the metrics")
    told = {name: connector.metric(name) for name in ("cache_hits", "cache_misses", "cache_evictions", "cache_size")}
    assert (told["cache_hits"], told["cache_misses"], told["cache_evictions"]) == (0, len(sent_at), 0)
    assert connector.metric("query_latency") > 0
    assert connector.metric("query_executors") >= 8
    assert connector.metric("replication_latency") > 0


def test_a_row_whose_decimal_is_written_in_several_forms_has_one_key(
    connector_line: CreateLine, deploy_connector: DeployConnector
) -> None:
    """1.0, 1.00 and 1 are one row for Cassandra, which the last of these statements deletes."""
    line = connector_line("pk int, price decimal, v text, PRIMARY KEY (pk, price)")
    deploy_connector(line.keyspace, "t")
    forms = [b"\0\0\0\1\x0a", b"\0\0\0\2\x64", b"\0\0\0\0\1"]
    found = []
    for form, statement, kind in (
        (forms[0], "INSERT INTO {t} (pk, price, v) VALUES (1, 1.0, 'a') USING {ts}", MutationKind.ROW),
        (forms[1], "UPDATE {t} USING {ts} SET v = 'b' WHERE pk = 1 AND price = 1.00", MutationKind.ROW),
        (forms[2], "DELETE FROM {t} USING {ts} WHERE pk = 1 AND price = 1", MutationKind.ROW_DELETION),
    ):
        columns = ("v",) if kind is MutationKind.ROW else ()
        line.writer.send(line.change(statement, int32(1), form, kind=kind, columns=columns))
        found += line.topic.next()
    assert [each.value for each in found] == [{"v": "a"}, {"v": "b"}, None]
    assert {each.key_bytes for each in found} == {b"\x02\x02\x02\x01\x00"}


def test_a_row_whose_nan_is_written_in_several_forms_has_one_key(
    connector_line: CreateLine, deploy_connector: DeployConnector
) -> None:
    """All NaN are one row for Cassandra, which the last of these statements deletes."""
    line = connector_line("pk int, at double, v text, PRIMARY KEY (pk, at)")
    deploy_connector(line.keyspace, "t")
    forms = ["7ff8000000000000", "fff8000000000001", "7ff0000000000001"]
    found = []
    for form, statement, kind in (
        (forms[0], "INSERT INTO {t} (pk, at, v) VALUES (1, blobAsDouble(0x%s), 'a') USING {ts}", MutationKind.ROW),
        (forms[1], "UPDATE {t} USING {ts} SET v = 'b' WHERE pk = 1 AND at = blobAsDouble(0x%s)", MutationKind.ROW),
        (forms[2], "DELETE FROM {t} USING {ts} WHERE pk = 1 AND at = blobAsDouble(0x%s)", MutationKind.ROW_DELETION),
    ):
        columns = ("v",) if kind is MutationKind.ROW else ()
        line.writer.send(line.change(statement % form, int32(1), bytes.fromhex(form), kind=kind, columns=columns))
        found += line.topic.next()
    assert [each.value for each in found] == [{"v": "a"}, {"v": "b"}, None]
    assert {each.key_bytes for each in found} == {b"\x02\x02" + bytes.fromhex(forms[0])[::-1]}
