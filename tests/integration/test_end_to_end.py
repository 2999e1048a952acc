"""All parts together: CQL on a real Cassandra, an agent, a real Pulsar with a connector, and the table in Spark."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import cast

import psutil
import pytest
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args
from pyspark.sql import SparkSession

from cdc.agent_process import AgentProcess
from cdc.demo.comparison import differences
from cdc.demo.line import connect
from cdc.rest import rest
from cdc.sandbox import Sandbox, SandboxOptions
from schemas.topics import events_topic
from spark_bridge import current_table
from tests.fixtures.connector import (
    Connector,
    DeployConnector,
    OpenDataTopic,
    connector_options,
    data_topic_name,
    wait_until_acknowledged,
)
from tests.servers.cassandra_session import make_keyspace
from tests.servers.interface import PulsarServer
from tests.topics.data_topic import DataTopic
from tests.topics.events_topic import EventsTopic

_ROWS = 1_000


@pytest.fixture
def spark_rows(spark: SparkSession, pulsar: PulsarServer) -> Callable[[str], list[Mapping[str, object]]]:
    """A function that returns the current table of a data topic, by the name of its Cassandra table."""

    def rows(table: str) -> list[Mapping[str, object]]:
        topic = f"data-{table}"
        options = {"serviceUrl": pulsar.service_url, "adminUrl": pulsar.admin_url, "topic": topic}
        return [row.asDict(recursive=True) for row in current_table(spark, options).collect()]

    return rows


@pytest.fixture
def keep_data_topics(pulsar: PulsarServer) -> None:
    """Set unlimited retention: by default a namespace keeps no messages for later readers."""
    url = f"{pulsar.admin_url}/admin/v2/namespaces/public/default/retention"
    rest().post(url, json={"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}).raise_for_status()


def cassandra_rows(cql: Session, table: str) -> list[Mapping[str, object]]:
    """`SELECT *`, as dictionaries."""
    return [cast("Mapping[str, object]", row._asdict()) for row in cql.execute(f"SELECT * FROM {table}")]


@pytest.mark.usefixtures("agent", "keep_data_topics")
def test_what_cassandra_holds_is_what_spark_shows(
    cql: Session,
    keyspace: str,
    pulsar: PulsarServer,
    deploy_connector: DeployConnector,
    spark_rows: Callable[[str], list[Mapping[str, object]]],
) -> None:
    """Inserts, updates, deletions of each kind, static writes, a batch over two tables, and ALTER ADD within the stream
    lead to equal tables."""
    wide, plain = f"{keyspace}.wide", f"{keyspace}.plain"
    cql.execute(
        f"CREATE TABLE {wide} (pk int, ck int, v text, w decimal, tags set<text>, s text static, PRIMARY KEY (pk, ck))"
        " WITH cdc = true"
    )
    cql.execute(f"CREATE TABLE {plain} (id text PRIMARY KEY, at timestamp, m map<text, int>) WITH cdc = true")
    deploy_connector(keyspace, "wide")
    deploy_connector(keyspace, "plain")
    for pk, ck in itertools.product(range(3), range(8)):
        cql.execute(f"INSERT INTO {wide} (pk, ck, v, w, tags) VALUES ({pk}, {ck}, 'v{ck}', {ck}.50, {{'a', 'b'}})")
    for statement in (
        f"UPDATE {wide} SET v = 'new', tags = tags + {{'c'}} WHERE pk = 0 AND ck = 0",
        f"DELETE w FROM {wide} WHERE pk = 0 AND ck = 1",
        f"DELETE FROM {wide} WHERE pk = 0 AND ck = 2",
        f"DELETE FROM {wide} WHERE pk = 1 AND ck > 2 AND ck <= 5",
        f"DELETE FROM {wide} WHERE pk = 2",
        f"INSERT INTO {wide} (pk, ck, v) VALUES (2, 9, 'after the deletion')",
        f"UPDATE {wide} SET s = 'static' WHERE pk = 0",
        f"UPDATE {wide} SET s = 'alone' WHERE pk = 7",
        f"BEGIN BATCH INSERT INTO {wide} (pk, ck, v) VALUES (4, 1, 'batch');"
        f" INSERT INTO {plain} (id, at, m) VALUES ('batch', 1700000000123, {{'x': 1}}); APPLY BATCH",
        f"INSERT INTO {plain} (id, m) VALUES ('gone', {{'y': 2}})",
        f"DELETE FROM {plain} WHERE id = 'gone'",
        f"ALTER TABLE {plain} ADD added int",
        f"INSERT INTO {plain} (id, added) VALUES ('later', 5)",
        f"UPDATE {plain} SET added = 6 WHERE id = 'batch'",
    ):
        cql.execute(statement)
    for table, events in ((wide, 33), (plain, 5)):
        topic = events_topic(*table.split("."))
        with EventsTopic(pulsar, topic) as published:
            published.wait_for(events)
        wait_until_acknowledged(topic, pulsar.admin_url)
    assert differences(wide, ["pk", "ck"], cassandra_rows(cql, wide), spark_rows(wide)) == []
    assert differences(plain, ["id"], cassandra_rows(cql, plain), spark_rows(plain)) == []
    assert len(cassandra_rows(cql, wide)) == 15


def write_rows(cql: Session, table: str, first: int, count: int) -> None:
    """Insert rows `first` to `first + count - 1`."""
    insert = cql.prepare(f"INSERT INTO {table} (id, v) VALUES (?, ?)")
    execute_concurrent_with_args(cql, insert, [(i, f"value {i}") for i in range(first, first + count)])


def test_an_agent_that_is_restarted_in_mid_segment_loses_nothing_and_repeats_nothing(
    cql: Session,
    keyspace: str,
    agent: AgentProcess,
    deploy_connector: DeployConnector,
    open_data_topic: OpenDataTopic,
) -> None:
    """The agent is stopped and started while rows are written: the data topic has exactly one record for each row."""
    table = f"{keyspace}.t"
    cql.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text) WITH cdc = true")
    topic = open_data_topic(table)
    deploy_connector(keyspace, "t")
    for part in range(4):
        write_rows(cql, table, part * 250, 250)
        if part in (1, 2):
            assert agent.stop() == 0, agent.log_tail()
            write_rows(cql, table, _ROWS + part, 1)
            agent.start()
    records = topic.wait_for(_ROWS + 2)
    topic.expect_silence()
    assert sorted(record.key["id"] for record in records) == [*range(_ROWS), _ROWS + 1, _ROWS + 2]
    assert all(record.value == {"v": f"value {record.key['id']}"} for record in records)


def test_kill_9_of_agent_and_connector_loses_nothing(
    cql: Session,
    keyspace: str,
    agent: AgentProcess,
    sandbox: Sandbox,
    deploy_connector: DeployConnector,
    open_data_topic: OpenDataTopic,
) -> None:
    """Agent and connector are killed while rows are written and published; in the end the data topic has every row."""
    table = f"{keyspace}.t"
    cql.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text) WITH cdc = true")
    topic = open_data_topic(table)
    deploy_connector(keyspace, "t")
    write_rows(cql, table, 0, 100)
    topic.wait_for(100)
    children = [
        each
        for each in psutil.Process(sandbox.pulsar.pid).children()
        if "cassandra-cdc-source" in " ".join(each.cmdline())
    ]
    write_rows(cql, table, 100, 500)
    agent.kill()
    for child in children:
        child.kill()
    write_rows(cql, table, 600, 400)
    agent.start()
    assert children
    while len(_ids(topic)) < _ROWS:  # Some rows come twice.
        topic.next()
    assert _ids(topic) == set(range(_ROWS))


def _ids(topic: DataTopic) -> set[int]:
    return {record.key["id"] for record in topic.records}


@pytest.fixture
def two_nodes() -> Iterator[Sandbox]:
    """Two Cassandra nodes and a Pulsar of their own."""
    with Sandbox(SandboxOptions(nodes=2, functions_runtime="thread", commitlog_sync_ms=100)) as running:
        yield running


@pytest.fixture
def two_agents(two_nodes: Sandbox, tmp_path: Path) -> Iterator[list[AgentProcess]]:
    """An agent beside each node."""
    pulsar = two_nodes.pulsar
    agents = [AgentProcess.for_node(node, pulsar, tmp_path / node.address) for node in two_nodes.nodes]
    for agent in agents:
        agent.start()
    yield agents
    for agent in agents:
        assert agent.stop() == 0, agent.log_tail()


@pytest.mark.extended
@pytest.mark.usefixtures("two_agents")
def test_two_replicas_of_a_change_become_one_record(two_nodes: Sandbox, connector_archive: Path) -> None:
    """With RF 2 and an agent on each node, each change has two events and one record."""
    pulsar = two_nodes.pulsar
    with connect(two_nodes.node.address, two_nodes.node.native_port) as cql:
        make_keyspace(cql, "k", 2)
        cql.execute("CREATE TABLE k.t (id int PRIMARY KEY, v text) WITH cdc = true")
        topic = DataTopic(pulsar, data_topic_name("k", "t"))
        connector = Connector(pulsar.admin_url, "two-nodes")
        connector.create(connector_archive, topic.name, connector_options(two_nodes.node, "k", "t"))
        write_rows(cql, "k.t", 0, 300)
        assert sorted(record.key["id"] for record in topic.wait_for(300)) == list(range(300))
        update = cql.prepare("UPDATE k.t SET v = ? WHERE id = ?")
        execute_concurrent_with_args(cql, update, [("updated", i) for i in range(100)])
        with EventsTopic(pulsar, events_topic("k", "t")) as events:
            found = events.wait_for(800)
        wait_until_acknowledged(events_topic("k", "t"), pulsar.admin_url)
        records = topic.wait_for(400)
        topic.expect_silence()
    assert len({each.message.node_id for each in found}) == 2
    assert len({each.event.digest for each in found}) == 400
    assert sorted(each.key["id"] for each in records[300:]) == list(range(100))
    assert all(each.value == {"v": "updated"} for each in records[300:])
    topic.close()
