"""Many tables in one source: each has its own topics, tables may be added later, and one table's failure does not
affect others."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing

import pytest
from cassandra.cluster import Session
from pulsar import Client, FileLogger, LoggerLevel

from cdc.rest import rest
from tests.fixtures.connector import (
    Connector,
    DeployConnector,
    OpenDataTopic,
    OpenEventsWriter,
    wait_until_acknowledged,
)
from tests.servers.interface import PulsarServer
from tests.topics.connector_line import int32
from tests.topics.data_topic import DataTopic
from tests.topics.events_topic import wait_until
from tests.topics.events_writer import EventsWriter

# Not the agents' prefix: an agent beside the node must not publish the same changes a second time.
_EVENTS = "persistent://public/default/tables-events-"


class TableLine:
    """A table: `id int PRIMARY KEY, a int`."""

    def __init__(self, cql: Session, keyspace: str, name: str, writer: EventsWriter, topic: DataTopic) -> None:
        self.name = f"{keyspace}.{name}"
        self._cql = cql
        self.writer = writer
        self.topic = topic

    def insert(self, number: int, value: int | None = None) -> None:
        """Insert a row, and send its event to the key's topic partition; a later value has a later write time."""
        value = number if value is None else value
        self._cql.execute(f"INSERT INTO {self.name} (id, a) VALUES ({number}, {value}) USING TIMESTAMP {value + 5}")
        event = self.writer.event(int32(number), writetime_us=value + 5, columns=("a",))
        self.writer.send(event, partition=number % self.writer.partitions)


CreateTable = Callable[..., TableLine]


@pytest.fixture
def create_table(
    cql: Session, keyspace: str, open_events_writer: OpenEventsWriter, open_data_topic: OpenDataTopic
) -> CreateTable:
    """A table of the test's keyspace with CDC, its events topic and its data topic."""

    def create(name: str, partitions: int = 1) -> TableLine:
        cql.execute(f"CREATE TABLE {keyspace}.{name} (id int PRIMARY KEY, a int) WITH cdc = true")
        writer = open_events_writer(keyspace, name, partitions=partitions, prefix=_EVENTS)
        return TableLine(cql, keyspace, name, writer, open_data_topic(f"{keyspace}.{name}"))

    return create


def _serve_keyspace(deploy_connector: DeployConnector, keyspace: str, parallelism: int = 1) -> Connector:
    options = {
        "tables": f"{keyspace}.*",
        "events__topic": f"{_EVENTS}{{keyspace}}.{{table}}",
        "deadLetter__topic": f"dead-{keyspace}",
        "deadLetter__maxAttempts": 2,
    }
    return deploy_connector("", "", settings={"parallelism": parallelism}, **options)


def test_each_table_of_a_pattern_has_its_records_on_its_own_topic_and_one_may_be_added(
    create_table: CreateTable, deploy_connector: DeployConnector, keyspace: str, pulsar: PulsarServer
) -> None:
    """Equal keys of several tables stay separate, and a table that is created later is found."""
    lines = [create_table(f"t{number}") for number in range(3)]
    _serve_keyspace(deploy_connector, keyspace)
    for line in lines:
        line.insert(1)
    for line in lines:
        assert [(record.key, record.value) for record in line.topic.next()] == [({"id": 1}, {"a": 1})]
    later = create_table("t_later")
    later.insert(7)
    assert later.topic.next()[0].value == {"a": 7}
    for line in [*lines, later]:
        wait_until_acknowledged(line.writer.topic, pulsar.admin_url)


def _shares(line: TableLine, pulsar: PulsarServer) -> list[int]:
    """How many partitions of a table's events topic each consumer has, or no number until both instances are there."""
    url = f"{pulsar.admin_url}/admin/v2/{line.writer.topic.replace('://', '/')}/partitioned-stats"
    stats = rest().get(url, params={"perPartition": "true"}, timeout=30).raise_for_status().json()["partitions"]
    subscriptions = [each["subscriptions"]["sub"] for each in stats.values()]
    if any(len(each["consumers"]) < 2 for each in subscriptions):
        return []
    active = [each["activeConsumerName"] for each in subscriptions]
    return sorted(active.count(each) for each in set(active))


def test_two_instances_share_the_partitions_of_all_tables(
    create_table: CreateTable, deploy_connector: DeployConnector, keyspace: str, pulsar: PulsarServer
) -> None:
    """With `--parallelism 2`, each partition has one reader, each event gives one record, and keys never go back."""
    lines = [create_table(f"shared{number}", partitions=4) for number in range(3)]
    _serve_keyspace(deploy_connector, keyspace, parallelism=2)
    # A partition moves to the other instance a second after that has come.
    wait_until(
        lambda: all(_shares(line, pulsar) == [2, 2] for line in lines), "four partitions shared by two instances"
    )
    for number in range(40):
        for line in lines:
            line.insert(number, 0)
    for line in lines:
        assert sorted(record.key["id"] for record in line.topic.wait_for(40)) == list(range(40))
        wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    for value in range(1, 6):
        for line in lines:
            for number in range(8):
                line.insert(number, value)
    for line in lines:
        wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
        _expect_no_step_back(line)


def _expect_no_step_back(line: TableLine) -> None:
    """Check the values 1 to 5 of eight keys. Each value was written at its own time, `value + 5`.

    A record has the row as it was read, which may be the value of a later event. A record that took long is followed by
    another one for the same events if the row has changed since.
    """
    states: dict[int, list[tuple[int, int]]] = {number: [(5, 0)] for number in range(8)}
    while any(each[-1][0] < 10 for each in states.values()):
        (record,) = line.topic.next()
        assert record.value is not None
        states[record.key["id"]].append((int(record.properties["writetime"]), record.value["a"]))
    line.topic.expect_silence(0.3)
    assert all(each == sorted(set(each)) for each in states.values()), states
    values = {number: [value for _, value in each] for number, each in states.items()}
    assert all(each == sorted(each) and each[-1] == 5 for each in values.values()), values


_STRATEGIES = (
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
    "ALWAYS_INCOMPATIBLE",
)


def test_each_compatibility_strategy_ends_with_the_record_or_with_a_parked_table(
    create_table: CreateTable, deploy_connector: DeployConnector, cql: Session, keyspace: str, pulsar: PulsarServer
) -> None:
    """A column is added, then one is dropped: all strategies allow both but ALWAYS_INCOMPATIBLE, where the table waits
    until the strategy is changed."""
    lines = {strategy: create_table(f"t_{strategy.lower()}") for strategy in _STRATEGIES}
    policy = f"{pulsar.admin_url}/admin/v2/persistent/public/default/data-{keyspace}.t_{{}}/schemaCompatibilityStrategy"
    for strategy in _STRATEGIES:
        rest().put(policy.format(strategy.lower()), json=strategy, timeout=30).raise_for_status()
    connector = _serve_keyspace(deploy_connector, keyspace)
    for line in lines.values():
        line.insert(1)
    for line in lines.values():
        assert line.topic.next()[0].value == {"a": 1}
    *taking, refusing = _STRATEGIES

    def change(alter: str, column: str) -> None:
        for line in lines.values():
            cql.execute(f"ALTER TABLE {line.name} {alter}")
        for line in lines.values():
            line.writer.refresh()
            cql.execute(f"UPDATE {line.name} USING TIMESTAMP 50 SET {column} = 7 WHERE id = 1")
            line.writer.send(line.writer.event(int32(1), writetime_us=50, columns=(column,)))

    change("ADD b int", "b")
    for strategy in taking:
        (record,) = lines[strategy].topic.next()
        assert (record.value, record.schema_version) == ({"a": 1, "b": 7}, 1), strategy
    wait_until(lambda: connector.metric("tables_parked") > 0, "the parked table in the metrics")
    lines[refusing].topic.expect_silence(0.2)
    rest().put(policy.format(refusing.lower()), json="FULL", timeout=30).raise_for_status()
    assert lines[refusing].topic.next()[0].value == {"a": 1, "b": 7}
    change("DROP a", "b")
    for strategy, line in lines.items():
        (record,) = line.topic.next()
        while record.value != {"b": 7}:  # A row that was read just before the connector saw the change.
            line.writer.send(line.writer.event(int32(1), writetime_us=50, columns=("b",)))
            (record,) = line.topic.next()
        assert record.schema_version == 2, strategy


def test_one_tables_trouble_parks_its_events_and_no_others(
    create_table: CreateTable,
    deploy_connector: DeployConnector,
    cql: Session,
    open_events_writer: OpenEventsWriter,
    open_data_topic: OpenDataTopic,
    keyspace: str,
    pulsar: PulsarServer,
) -> None:
    """A refused schema, bytes that are no events, or an events topic of another kind stop only their own table.

    Each of these tables continues when its cause is gone.
    """
    troubled, sound = create_table("troubled"), create_table("sound")
    schemas = f"{pulsar.admin_url}/admin/v2/schemas/public/default/{troubled.topic.name}/schema"
    other = {"type": "STRING", "schema": "", "properties": {}}
    rest().post(schemas, json=other).raise_for_status()
    foreign = f"{pulsar.admin_url}/admin/v2/schemas/public/default/tables-events-{keyspace}.foreign/schema"
    rest().post(foreign, json=other).raise_for_status()
    cql.execute(f"CREATE TABLE {keyspace}.foreign (id int PRIMARY KEY, a int) WITH cdc = true")
    connector = _serve_keyspace(deploy_connector, keyspace)
    troubled.writer.send_bytes(b"\xff\xff")
    for number in range(50):
        troubled.insert(number)
    sound.insert(1)
    assert sound.topic.next()[0].value == {"a": 1}
    sound.insert(2)
    assert sound.topic.next()[0].value == {"a": 2}
    wait_until_acknowledged(sound.writer.topic, pulsar.admin_url)
    # The sum of a gauge grows with each time that it is reported.
    wait_until(lambda: connector.metric("events_topics_refused") > 0, "the refused events topic in the metrics")
    wait_until(lambda: connector.metric("tables_parked") > 0, "the parked table in the metrics")
    rest().delete(foreign, params={"force": "true"}).raise_for_status()
    writer = open_events_writer(keyspace, "foreign", partitions=1, prefix=_EVENTS)
    mended = TableLine(cql, keyspace, "foreign", writer, open_data_topic(f"{keyspace}.foreign"))
    mended.insert(3)
    assert mended.topic.next()[0].value == {"a": 3}
    rest().delete(schemas, params={"force": "true"}).raise_for_status()
    assert sorted(record.key["id"] for record in troubled.topic.next(50)) == list(range(50))
    wait_until_acknowledged(troubled.writer.topic, pulsar.admin_url)
    letters = rest().get(f"{pulsar.admin_url}/admin/v2/persistent/public/default/dead-{keyspace}/stats").json()
    assert letters["subscriptions"]["resend"]["msgBacklog"] == 1, json.dumps(letters)


def _hold(topic: str, pulsar: PulsarServer) -> Callable[[], None]:
    """Make a topic whose broker holds each producer; return a function that releases them. Its subscription `test`
    begins empty."""
    path = f"{pulsar.admin_url}/admin/v2/persistent/public/default/{topic}"
    latest = 2**63 - 1
    rest().put(path).raise_for_status()
    rest().put(f"{path}/subscription/hold", json={"ledgerId": -1, "entryId": -1}).raise_for_status()
    log = FileLogger(LoggerLevel.Error, "/dev/null")
    with closing(Client(pulsar.service_url, operation_timeout_seconds=120, logger=log)) as client:
        client.create_producer(topic, send_timeout_millis=120_000).send(b"what the subscription holds")
    rest().put(f"{path}/subscription/test", json={"ledgerId": latest, "entryId": latest}).raise_for_status()
    quota = {"limitSize": 1, "limitTime": -1, "policy": "producer_request_hold"}
    rest().post(f"{path}/backlogQuota?backlogQuotaType=destination_storage", json=quota).raise_for_status()
    wait_until(
        lambda: "producer_request_hold" in rest().get(f"{path}/backlogQuotaMap?applied=true").text, "the topic's quota"
    )

    def let_go() -> None:
        rest().delete(f"{path}/backlogQuota?backlogQuotaType=destination_storage").raise_for_status()
        rest().delete(f"{path}/subscription/hold").raise_for_status()

    return let_go


def test_a_data_topic_that_lets_its_producer_wait_holds_up_no_other_table(
    create_table: CreateTable, deploy_connector: DeployConnector, keyspace: str, pulsar: PulsarServer
) -> None:
    """The client tries for half a minute, again and again; meanwhile the other table's records come, later its own."""
    free = create_table("free")
    _serve_keyspace(deploy_connector, keyspace)
    free.insert(0)
    free.topic.next()

    def longest_s(name: str, numbers: range) -> float:
        """The longest time that one of these records took while the other table's producer waited."""
        let_go = _hold(f"data-{keyspace}.{name}", pulsar)
        held = create_table(name)
        held.insert(1)
        took_s = []
        for number in numbers:
            since = time.monotonic()
            free.insert(number)
            assert free.topic.next()[0].key == {"id": number}
            took_s.append(time.monotonic() - since)
            held.topic.expect_silence()
        let_go()
        assert held.topic.next()[0].key == {"id": 1}
        for line in (free, held):
            wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
        return max(took_s)

    # Less than half a minute. On a busy machine one record may take longer, but not in both trials.
    assert longest_s("held", range(1, 21)) < 25 or longest_s("held_again", range(21, 41)) < 25
