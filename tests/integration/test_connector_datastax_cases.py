"""The integration cases of DataStax's connector, by name: two nodes, an agent on each, and all three formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent

from cdc.sandbox import Sandbox
from tests.fixtures.connector import Connector, connector_options
from tests.servers.cassandra_session import cluster_of, make_keyspace
from tests.servers.interface import PulsarServer
from tests.topics.data_topic import DataTopic

_FORMATS = ("key-value-avro", "key-value-json", "json")
_TABLES = {
    "single_pk": "a text PRIMARY KEY, b int",
    "clustering": "a text, b date, c uuid, d int, PRIMARY KEY (a, b, c)",
    "compound": "a text, b int, c int, PRIMARY KEY ((a, b))",
    "only_pk": "a text, b int, PRIMARY KEY (a, b)",
    "static_column": "a text, b int, c text, d text static, PRIMARY KEY (a, b)",
}
_UUID = "01234567-89ab-4cde-8f01-23456789abcd"
_BATCH_ROWS = 10_000
_TIMEOUT_S = 240

Topics = Callable[..., dict[str, DataTopic]]


@pytest.fixture
def session(two_nodes: Sandbox) -> Iterator[Session]:
    """A session that writes at ALL, so that both replicas' agents publish each change; the cases' tables exist."""
    with cluster_of(two_nodes.node, consistency_level=ConsistencyLevel.ALL) as cluster:
        session = cluster.connect()
        for keyspace in ("cases", "batches"):
            make_keyspace(session, keyspace, 2)
        session.execute("CREATE TABLE batches.t (id int PRIMARY KEY, a int) WITH cdc = true")
        session.execute("CREATE TYPE cases.pair (x int, y text)")
        for table, definition in _TABLES.items():
            session.execute(f"CREATE TABLE cases.{table} ({definition}) WITH cdc = true")
        yield session
        for keyspace in ("cases", "batches"):
            session.execute(f"DROP KEYSPACE {keyspace}")


@pytest.fixture
def sources(
    session: Session, two_nodes: Sandbox, connector_archive: Path, pulsar: PulsarServer
) -> Iterator[dict[str, Connector]]:
    """A source of many tables for each format, with a subscription of its own."""
    deployed = {}
    for output in _FORMATS:
        options = connector_options(
            two_nodes.node,
            "",
            "",
            tables="cases.*,batches.t" if output == "key-value-avro" else "cases.*",
            destination=f"data-{output}-{{keyspace}}.{{table}}",
            outputFormat=output,
            events__subscription__name="sub" if output == "key-value-avro" else output,
            schema__changes__topic="none",
        )
        options = {name: value for name, value in options.items() if value}
        connector = deployed[output] = Connector(pulsar.admin_url, f"cases-{output}")
        connector.create(connector_archive, f"cases-{output}", options)
    yield deployed
    for connector in deployed.values():
        connector.delete()


@pytest.fixture
def topics(pulsar: PulsarServer) -> Iterator[Topics]:
    """A table's data topics by format; open them before the first write."""
    opened: list[DataTopic] = []

    def open_topics(table: str, formats: tuple[str, ...] = _FORMATS) -> dict[str, DataTopic]:
        found = {each: DataTopic(pulsar, f"data-{each}-{table}") for each in formats}
        opened.extend(found.values())
        return found

    yield open_topics
    for topic in opened:
        topic.close()


def _folded(topic: DataTopic) -> dict[tuple[object, ...], Mapping[str, Any]]:
    """The rows that the records describe: a null value, or {} in the format json, deletes its row or partition."""
    rows: dict[tuple[object, ...], Mapping[str, Any]] = {}
    for record in topic.records:
        key = tuple(record.key.values())
        if record.kind == "partition_deletion":
            assert not record.value
            rows = {each: row for each, row in rows.items() if not _is_within(each, key)}
        elif record.value:
            rows[key] = record.value
        else:
            rows.pop(key, None)
    return rows


def _is_within(key: tuple[object, ...], scope: tuple[object, ...]) -> bool:
    return all(bound is None or value == bound for value, bound in zip(key, scope, strict=True))


def _settle(
    table: dict[str, DataTopic], expected: Mapping[tuple[object, ...], Mapping[str, object]], *key: str
) -> None:
    """Wait until each format has these rows; in the format json the value also holds the key's columns."""
    for output, topic in table.items():
        rows = {each: dict(row) for each, row in expected.items()}
        if output == "json":
            rows = {each: dict(zip(key, each, strict=True)) | row for each, row in rows.items()}
        while _folded(topic) != rows:
            topic.next(timeout_s=_TIMEOUT_S)


@pytest.mark.usefixtures("two_agents")
def test_the_cases_of_datastax_in_all_three_formats_beside_two_replicas(
    session: Session, sources: dict[str, Connector], topics: Topics
) -> None:
    """The statements of testSinglePk, testClusteringKey, testCompoundPk, testOnlyPk, testStaticColumn and
    testBatchInsert give the expected rows."""
    table = {name: topics(f"cases.{name}") for name in _TABLES}
    (batch,) = topics("batches.t", ("key-value-avro",)).values()
    for statement in (
        *(f"INSERT INTO cases.single_pk (a, b) VALUES ('{n}', {n})" for n in (1, 2, 3)),
        *(f"INSERT INTO cases.clustering (a, b, c, d) VALUES ('{n}', '2020-01-0{n}', {_UUID}, {n})" for n in (1, 2, 3)),
        *(f"INSERT INTO cases.compound (a, b, c) VALUES ('k', {n}, {n})" for n in (1, 2)),
        *(f"INSERT INTO cases.only_pk (a, b) VALUES ('k', {n})" for n in (1, 2)),
        "INSERT INTO cases.static_column (a, b, c, d) VALUES ('k', 1, 'c', 'd')",
        "INSERT INTO cases.static_column (a, b, c) VALUES ('gone', 1, 'c')",
    ):
        session.execute(statement)
    _settle(table["single_pk"], {(str(n),): {"b": n} for n in (1, 2, 3)}, "a")
    days = {n: 18262 + n - 1 for n in (1, 2, 3)}
    _settle(table["clustering"], {(str(n), days[n], _UUID): {"d": n} for n in (1, 2, 3)}, "a", "b", "c")
    _settle(table["only_pk"], {("k", n): {"a": "k", "b": n} for n in (1, 2)}, "a", "b")
    _settle(table["compound"], {("k", n): {"c": n} for n in (1, 2)}, "a", "b")
    for topic in table["static_column"].values():
        while not {("k", 1), ("gone", 1)} <= _folded(topic).keys():
            topic.next(timeout_s=_TIMEOUT_S)
    for statement in (
        "ALTER TABLE cases.single_pk ADD c int",
        "ALTER TABLE cases.clustering ADD e text",
        "ALTER TABLE cases.compound ADD p frozen<cases.pair>",
        "INSERT INTO cases.single_pk (a, b, c) VALUES ('2', 2, 7)",
        "DELETE FROM cases.single_pk WHERE a = '1'",
        "DELETE FROM cases.single_pk WHERE a = '3'",
        f"INSERT INTO cases.clustering (a, b, c, e) VALUES ('3', '2020-01-03', {_UUID}, 'e')",
        "DELETE FROM cases.clustering WHERE a = '1'",
        f"DELETE FROM cases.clustering WHERE a = '2' AND b = '2020-01-02' AND c = {_UUID}",
        "INSERT INTO cases.compound (a, b, p) VALUES ('k', 1, {x: 5, y: 'p'})",
        "DELETE FROM cases.compound WHERE a = 'k' AND b = 2",
        "DELETE FROM cases.only_pk WHERE a = 'k' AND b = 2",
        "UPDATE cases.static_column SET d = 'alone' WHERE a = 'k'",
        "DELETE FROM cases.static_column WHERE a = 'gone'",
    ):
        session.execute(statement)
    _settle(table["single_pk"], {("2",): {"b": 2, "c": 7}}, "a")
    _settle(table["clustering"], {("3", days[3], _UUID): {"d": 3, "e": "e"}}, "a", "b", "c")
    _settle(table["compound"], {("k", 1): {"c": 1, "p": {"x": 5, "y": "p"}}}, "a", "b")
    _settle(table["only_pk"], {("k", 1): {"a": "k", "b": 1}}, "a", "b")
    for output, topic in table["static_column"].items():
        others = {"c": None} if output == "key-value-avro" else {}
        while _folded(topic).get(("k", None)) != {**others, "d": "alone"}:
            topic.next(timeout_s=_TIMEOUT_S)
        while ("gone", 1) in _folded(topic):
            topic.next(timeout_s=_TIMEOUT_S)
        # The other replica's copy of the event may come late, and then shows the row as it is at that time.
        row = {"a": "k", "b": 1} if output == "json" else {}
        assert _folded(topic)["k", 1] in ({**row, "c": "c", "d": "d"}, {**row, "c": "c", "d": "alone"})
    inserts = [f"INSERT INTO batches.t (id, a) VALUES ({n}, {n});" for n in range(_BATCH_ROWS)]
    batches = [f"BEGIN UNLOGGED BATCH {''.join(inserts[n : n + 100])} APPLY BATCH" for n in range(0, _BATCH_ROWS, 100)]
    execute_concurrent(session, [(each, None) for each in batches], concurrency=4)
    while len(rows := {record.key["id"]: record.value for record in batch.records}) < _BATCH_ROWS:
        batch.wait_for(len(batch.records) + min(500, _BATCH_ROWS - len(rows)), _TIMEOUT_S)
    assert rows == {n: {"a": n} for n in range(_BATCH_ROWS)}
    assert [each.restarts() for each in sources.values()] == [0, 0, 0]
