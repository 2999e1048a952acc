"""Rows and columns that expire by a TTL are published when they expire: CQL in, a real agent, and records out."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest
from cassandra.cluster import Session
from pulsar import MessageId

from cdc.agent_process import AgentProcess
from cdc.health.findings import Finding, Level
from cdc.health.line_config import LineConfig
from cdc.health.line_status import line_status
from cdc.rest import rest
from schemas.mutation_event import MutationEvents
from source_connector.events.due_rows import DueRow
from source_connector.events.events_message import EventsMessage
from source_connector.events.expiry_messages import WaitingExpiries, waiting_expiries
from source_connector.events.expiry_topics import ExpiriesStored, ExpiryTopics
from source_connector.events.pulsar_access import PulsarConnection, PulsarOptions, new_client
from tests.fixtures.connector import DeployConnector, OpenDataTopic, OpenEventsWriter, wait_until_acknowledged
from tests.servers.interface import PulsarServer
from tests.topics.data_topic import DataRecord, DataTopic
from tests.topics.events_topic import wait_until

_TEN_YEARS_S: Final = 315_360_000


def last_of(topic: DataTopic) -> dict[tuple[int, int | None], DataRecord]:
    return {(record.key["pk"], record.key["ck"]): record for record in topic.records}


def of_expiry(topic: DataTopic) -> list[DataRecord]:
    return [record for record in topic.records if record.properties.get("expiry") == "true"]


def ttls_s(started_s: float) -> tuple[int, int]:
    """TTL of the test's rows, and how much later a few of them expire, for a source that starts in `started_s` seconds.

    All rows are read, and a restart begins, before the first row expires. The restart is over before the later ones
    expire. Each process may pause for 20 s meanwhile.
    """
    return max(25, round(20 + started_s)), max(20, round(2 * started_s))


def waiting(pulsar: PulsarServer, topic: str) -> WaitingExpiries:
    return waiting_expiries(PulsarOptions(service_url=pulsar.service_url), topic, time.time())


@pytest.mark.timeout(900)
def test_whatever_goes_is_published_when_it_goes_and_what_was_written_anew_is_not(
    agent: AgentProcess,
    cql: Session,
    keyspace: str,
    deploy_connector: DeployConnector,
    open_data_topic: OpenDataTopic,
    pulsar: PulsarServer,
    line_yaml: Path,
) -> None:
    """Rows, columns, static columns, set elements and rows of keys only are published when they expire.

    Three rows lose their values, and their row markers decide whether they remain. A row that was written again does
    not expire.
    """
    table = f"{keyspace}.t"
    topic = open_data_topic(table)
    connector = deploy_connector(keyspace, "t", expiry__publish="true")
    deployed_at = time.monotonic()
    cql.execute(
        f"CREATE TABLE {table} (pk int, ck int, v text, w text, tags set<text>, st text static, PRIMARY KEY (pk, ck))"
        " WITH cdc = true"
    )
    cql.execute(f"INSERT INTO {table} (pk, ck, v) VALUES (0, 0, 'the connector runs')")
    topic.next()
    ttl_s, later_s = ttls_s(time.monotonic() - deployed_at)
    written_at = time.time()
    cql.execute(f"UPDATE {table} USING TTL {ttl_s} SET st = 'goes' WHERE pk = 7")
    cql.execute(f"INSERT INTO {table} (pk, ck, v, w) VALUES (6, 0, 'extended', 'w') USING TTL {ttl_s}")
    cql.execute(f"INSERT INTO {table} (pk, ck, v, w) VALUES (6, 0, 'extended', 'w') USING TTL {_TEN_YEARS_S}")
    cql.execute(f"INSERT INTO {table} (pk, ck, v, w, tags) VALUES (1, 0, 'v', 'w', {{'a'}}) USING TTL {ttl_s}")
    cql.execute(f"INSERT INTO {table} (pk, ck, v, w) VALUES (2, 0, 'v', 'w')")
    cql.execute(f"UPDATE {table} USING TTL {ttl_s} SET v = 'goes' WHERE pk = 2 AND ck = 0")
    cql.execute(f"INSERT INTO {table} (pk, ck, tags) VALUES (3, 0, {{'a', 'b'}}) USING TTL {ttl_s}")
    cql.execute(f"UPDATE {table} SET tags = tags + {{'c'}}, w = 'stays' WHERE pk = 3 AND ck = 0")
    cql.execute(f"INSERT INTO {table} (pk, ck) VALUES (4, 0) USING TTL {ttl_s}")
    cql.execute(f"INSERT INTO {table} (pk, ck, v) VALUES (5, 0, 'v') USING TTL {ttl_s}")
    cql.execute(f"UPDATE {table} USING TTL {ttl_s + later_s} SET w = 'goes later' WHERE pk = 5 AND ck = 0")
    cql.execute(f"INSERT INTO {table} (pk, ck, v) VALUES (7, 0, 'v')")
    cql.execute(f"INSERT INTO {table} (pk, ck, tags) VALUES (8, 0, {{'a'}})")
    cql.execute(f"UPDATE {table} USING TTL {ttl_s} SET tags = tags + {{'goes'}} WHERE pk = 8 AND ck = 0")
    for pk, ttl in ((9, ""), (10, f"USING TTL {ttl_s + later_s}")):
        cql.execute(f"INSERT INTO {table} (pk, ck, v) VALUES ({pk}, 0, 'goes') USING TTL {ttl_s}")
        cql.execute(f"INSERT INTO {table} (pk, ck) VALUES ({pk}, 0) {ttl}")
    cql.execute(f"INSERT INTO {table} (pk, ck, v) VALUES (11, 0, 'goes') USING TTL {ttl_s}")
    cql.execute(f"UPDATE {table} SET v = 'is deleted' WHERE pk = 11 AND ck = 0")
    cql.execute(f"DELETE v FROM {table} WHERE pk = 11 AND ck = 0")
    expiries = f"persistent://public/default/cdc-events-expiry-{table}"
    events = f"persistent://public/default/cdc-events-{table}"
    cql.execute(f"INSERT INTO {table} (pk, ck, v) VALUES (8, 1, 'the last event of its partition')")

    def is_read() -> bool:
        topic.poll(0.5)
        return {*((pk, 0) for pk in range(1, 12)), (8, 1)} <= last_of(topic).keys()

    wait_until(is_read, "a record of each row")
    # An event is acknowledged once its expiry is stored. An event that is read after the restart may find its row
    # expired.
    wait_until_acknowledged(events, pulsar.admin_url)
    connector.restart()

    def is_over() -> bool:
        topic.poll(0.5)
        last = last_of(topic)
        found = [last[pk, 0].value if (pk, 0) in last else {} for pk in (1, 4, 5, 10, 11)]
        smaller = (last.get((2, 0)), "v"), (last.get((7, None)), "st")
        return (
            found == [None] * 5
            and (last[9, 0].value or {}).get("v", "") is None
            and (last[3, 0].value or {}).get("tags") == ["c"]
            and all(
                record is not None and (record.value is None or record.value[name] is None) for record, name in smaller
            )
            and (8, 0) in {(record.key["pk"], record.key["ck"]) for record in of_expiry(topic)}
        )

    wait_until(is_over, "the rows that expire", ttl_s + later_s + 180)
    wait_until_acknowledged(events, pulsar.admin_url)
    topic.take_all()
    rows = {(row.pk, row.ck): row for row in cql.execute(f"SELECT * FROM {table}")}
    last = last_of(topic)
    assert {place for place, record in last.items() if record.value is not None and place[1] is not None} == set(rows)
    for place, row in rows.items():
        value = last[place].value or {}
        assert (value["v"], value["w"], set(value["tags"] or ())) == (row.v, row.w, set(row.tags or ())), place
    assert "expires_at" not in last[9, 0].properties
    by_expiry = of_expiry(topic)
    assert {record.kind for record in by_expiry} == {"row", "static_row"}
    assert not [record for record in by_expiry if record.key["pk"] == 6]
    steps = [record.value for record in by_expiry if record.key["pk"] == 5]
    assert steps[0] == {"v": None, "w": "goes later", "tags": None, "st": None} and steps[-1] is None
    left = waiting(pulsar, expiries)
    # The expiry of an event that was not acknowledged before the restart is stored twice.
    assert 1 <= left.keys <= 2 and left.until_s > written_at + _TEN_YEARS_S - 60
    expect_in_status(line_yaml, table, Level.OK, "until their rows expire (`cdc connector expiries")
    connector.delete()
    expect_in_status(line_yaml, table, Level.FAILURE, "no source delivers expiries: ")


def expect_in_status(line_yaml: Path, table: str, level: Level, text: str) -> None:
    """Check the status screen: it shows the expiries that wait, and does not list the expiry topic as a table."""
    sections: dict[str, list[Finding]] = {}

    def is_shown() -> bool:
        sections.update({each.title: list(each.findings) for each in line_status(LineConfig.load(line_yaml))})
        found = [each for each in sections.get("expiries", []) if each.subject == table]
        return any(each.level is level and text in each.text for each in found)

    wait_until(is_shown, text)
    assert not [each.subject for each in sections["tables"] if each.subject.startswith("expiry-")]


def test_a_broker_that_does_not_delay_is_told_at_the_start(
    cql: Session,
    keyspace: str,
    deploy_connector: DeployConnector,
    open_events_writer: OpenEventsWriter,
    pulsar: PulsarServer,
) -> None:
    """The namespace's policy turns off delayed delivery: one line says so, and what to do."""
    namespaces = f"{pulsar.admin_url}/admin/v2/namespaces/public"
    rest().put(f"{namespaces}/undelayed", json={})
    policy = {"active": False, "tickTime": 1000, "maxDeliveryDelayInMillis": 0}
    rest().post(f"{namespaces}/undelayed/delayedDelivery", json=policy).raise_for_status()
    cql.execute(f"CREATE TABLE {keyspace}.t (pk int PRIMARY KEY, v text)")
    writer = open_events_writer(keyspace, "t", prefix="persistent://public/undelayed/ev-")
    connector = deploy_connector(keyspace, "t", expiry__publish="true", events__topic=writer.topic)
    told = connector.wait_for_error()
    expected = f"expiry.publish: persistent://public/undelayed/ev-expiry-{keyspace}.t: the broker delivers delayed messages at once"
    assert expected in told and "set-delayed-delivery --enable" in told


_TABLE_ID: Final = UUID(int=1).bytes


class Keeper:
    """The expiry topic of a table `ks.t`, without a connector."""

    def __init__(self, pulsar: PulsarServer, name: str) -> None:
        self._connection = PulsarConnection(PulsarOptions(service_url=pulsar.service_url))
        self._posted: queue.SimpleQueue[ExpiriesStored | Exception] = queue.SimpleQueue()
        self.expiries = ExpiryTopics(self._connection, 100, time.time, self._posted.put)
        self.topic, self.target = (f"persistent://public/default/{name}-{each}" for each in ("expiry-ks.t", "events"))
        self.expiries.follow(self.topic)

    def store(self, due: DueRow) -> None:
        """Store a row's expiry; return when the broker has it."""
        assert not self.expiries.due_rows.is_known(_TABLE_ID, due)
        content = MutationEvents(
            node_id=UUID(int=2),
            segment_id=1,
            keyspace="ks",
            table="t",
            table_id=UUID(int=1),
            key_schema='"bytes"',
            events=(),
        )
        message = EventsMessage(identity=b"", message_id=MessageId.earliest, content=content, topic=self.target)
        self.expiries.due_rows.add(lambda: None, self.topic, message, due)
        assert isinstance(self._posted.get(timeout=180), ExpiriesStored)

    def search_from(self, moment: float) -> None:
        """Look for deleted topics from this time on, and not before."""

        def set_moment() -> None:
            self.expiries._lost.next_search = moment

        self.expiries._steps.put(set_moment)

    def close(self) -> None:
        self.expiries.stop()
        self._connection.close()


def due_in(years: float) -> DueRow:
    return DueRow(
        is_static=False,
        key=b"k",
        partition_key=b"k",
        clustering=(),
        digest=bytes(16),
        second=int(time.time() + years * _TEN_YEARS_S / 10),
        columns=("v",),
    )


@pytest.fixture
def keeper(pulsar: PulsarServer, request: pytest.FixtureRequest) -> Iterator[Keeper]:
    running = Keeper(pulsar, request.node.name[:20])
    yield running
    running.close()


@pytest.mark.parametrize("is_used", [False, True], ids=["empty", "another row waits there since"])
def test_rows_wait_again_behind_an_expiry_topic_that_was_deleted(
    keeper: Keeper,
    pulsar: PulsarServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    is_used: bool,
) -> None:
    """A backfill stores the expiry again, and does not take it for one that waits already."""
    monkeypatch.setattr("source_connector.events.lost_expiries._SEARCH_S", 0.2)
    due = due_in(1)
    keeper.store(due)
    assert keeper.expiries.due_rows.is_known(_TABLE_ID, due)
    if is_used:
        keeper.search_from(float("inf"))
    path = keeper.topic.replace("://", "/")
    rest().delete(f"{pulsar.admin_url}/admin/v2/{path}", params={"force": "true"}).raise_for_status()
    if is_used:
        keeper.store(due_in(2))
        keeper.search_from(0.0)
    wait_until(lambda: f"{keeper.topic} was deleted or emptied" in caplog.text, "the deleted topic is reported")
    assert "cdc spark backfill --table ks.t" in caplog.text
    keeper.store(due)
    assert waiting(pulsar, keeper.topic).keys == 1 + is_used


def test_a_key_that_is_due_in_twenty_years_is_stored_anew_until_then(
    keeper: Keeper, pulsar: PulsarServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is stored again and again, so that old ledgers can be deleted: here every other second. The events topic
    gets nothing."""
    monkeypatch.setattr("source_connector.events.expiry_producers._LONGEST_DELAY_S", 2)
    due = due_in(20)
    keeper.store(due)
    found: list[dict[str, str]] = []
    with closing(new_client(PulsarOptions(service_url=pulsar.service_url), is_quiet=True)) as client:
        reader = client.create_reader(keeper.topic, MessageId.earliest)

        def is_stored_again() -> bool:
            while reader.has_message_available():
                found.append(reader.read_next(timeout_millis=10_000).properties())
            return sum(each["keys"] == "1" for each in found) >= 3

        wait_until(is_stored_again, "the key stored three times")
    kept = [each for each in found if each["keys"] == "1"]
    assert {(each["second"], each["target"]) for each in kept} == {(str(due.second), keeper.target)}
    times = [int(each["deliver_at"]) for each in kept]
    assert times == sorted(set(times)) and times[-1] < time.time() + 10
    topics = rest().get(f"{pulsar.admin_url}/admin/v2/persistent/public/default").json()
    assert keeper.topic in topics and keeper.target not in topics
