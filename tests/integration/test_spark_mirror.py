"""The folding rules against Cassandra itself: after any statements, Spark's table equals `SELECT *`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import pytest
from cassandra.cluster import Session
from cassandra.util import uuid_from_time
from pyspark.sql import SparkSession

from cdc.demo.comparison import differences
from cdc.rest import rest
from spark_bridge import current_table, wait_until_complete
from spark_bridge.errors import TopicError
from tests.fixtures.connector import DeployConnector
from tests.servers.interface import PulsarServer
from tests.topics.events_topic import wait_until

# Spark plans dozens of small jobs for a micro-batch, which take minutes on a busy machine and seconds on an idle one.
pytestmark = pytest.mark.timeout(1_500)

Rows = list[Mapping[str, object]]
_STATEMENTS = 300
_CAUGHT_UP_WITHIN_S = 300


@pytest.fixture
def unequal_rows(spark: SparkSession, cql: Session, pulsar: PulsarServer) -> Callable[[str, list[str]], list[str]]:
    """A function that returns the differences between a table and its data topic once all changes have arrived, or
    after a time limit."""
    url = f"{pulsar.admin_url}/admin/v2/namespaces/public/default/retention"
    rest().post(url, json={"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}).raise_for_status()

    def unequal(table: str, key: list[str]) -> list[str]:
        options = {"serviceUrl": pulsar.service_url, "adminUrl": pulsar.admin_url, "topic": f"data-{table}"}
        wanted = [cast("Mapping[str, object]", row._asdict()) for row in cql.execute(f"SELECT * FROM {table}")]
        deadline = time.monotonic() + _CAUGHT_UP_WITHIN_S
        wait_until_complete(spark, options, timeout_s=_CAUGHT_UP_WITHIN_S)
        while True:
            try:
                found = [row.asDict(recursive=True) for row in current_table(spark, options).collect()]
            except TopicError:  # Nothing has been published yet.
                found = []
            lines = differences(table, key, wanted, found)
            if not lines or time.monotonic() > deadline:
                return lines
            time.sleep(1)

    return unequal


def random_statements(table: str, seed: int) -> Iterator[str]:
    """Statements of every kind on rows, parts of rows and many rows, with few keys, so that they overlap."""
    chance = random.Random(seed)
    for number in range(_STATEMENTS):
        pk, a, b = chance.randrange(3), chance.randrange(4), chance.choice("xyz")
        where = f"WHERE pk = {pk} AND a = {a} AND b = '{b}'"
        other = chance.randrange(4)
        statements = [
            f"INSERT INTO {table} (pk, a, b, v, w) VALUES ({pk}, {a}, '{b}', {number}, 'row {number}')",
            f"INSERT INTO {table} (pk, a, b) VALUES ({pk}, {a}, '{b}')",
            f"INSERT INTO {table} (pk, a, b, v, s) VALUES ({pk}, {a}, '{b}', {number}, {number})",
            f"UPDATE {table} SET w = '{number}', l = l + [{number}] {where}",
            f"UPDATE {table} SET v = null {where}",
            f"DELETE w, l FROM {table} {where}",
            f"DELETE FROM {table} {where}",
            f"UPDATE {table} SET s = {number}, t = 'static {number}' WHERE pk = {pk}",
            f"DELETE s FROM {table} WHERE pk = {pk}",
            f"DELETE FROM {table} WHERE pk = {pk} AND a = {a}",
            f"DELETE FROM {table} WHERE pk = {pk} AND a > {max(a, 2)}",
            f"DELETE FROM {table} WHERE pk = {pk} AND a >= {min(a, other)} AND a < {max(a, other)}",
            f"DELETE FROM {table} WHERE pk = {pk} AND a = {a} AND b > '{b}'",
            f"DELETE FROM {table} WHERE pk = {pk} AND a = {a} AND b >= 'x' AND b <= '{b}'",
            f"BEGIN BATCH DELETE FROM {table} WHERE pk = {pk} AND a = {a}; INSERT INTO {table} (pk, a, b, v)"
            f" VALUES ({pk}, {other}, '{b}', {number}); APPLY BATCH",
            *([f"DELETE FROM {table} WHERE pk = {pk}"] if number % 8 == 0 else []),
        ]
        yield chance.choice(statements)


@pytest.mark.usefixtures("agent")
def test_any_statements_leave_the_same_rows_in_spark(
    cql: Session,
    keyspace: str,
    deploy_connector: DeployConnector,
    unequal_rows: Callable[[str, list[str]], list[str]],
) -> None:
    """The statements change rows, columns, static columns, ranges and partitions; one clustering column is in
    descending order."""
    table = f"{keyspace}.mirrored"
    cql.execute(
        f"CREATE TABLE {table} (pk int, a int, b text, v int, w text, l list<int>, s int static, t text static,"
        " PRIMARY KEY (pk, a, b)) WITH CLUSTERING ORDER BY (a DESC, b ASC) AND cdc = true"
    )
    deploy_connector(keyspace, "mirrored")
    for number, statement in enumerate(random_statements(table, seed=20261121), start=1):
        cql.execute(statement)
        if number % (_STATEMENTS // 3) == 0:
            # The rows must be on the topic before the next deletions, otherwise the connector would only read the last
            # state.
            assert unequal_rows(table, ["pk", "a", "b"]) == []
    cql.execute(f"INSERT INTO {table} (pk, a, b, v, s) VALUES (1, 1, 'x', 1, 1)")
    assert unequal_rows(table, ["pk", "a", "b"]) == []
    cql.execute(f"DELETE FROM {table} WHERE pk = 1")
    assert unequal_rows(table, ["pk", "a", "b"]) == []


@pytest.mark.usefixtures("agent")
def test_times_as_clustering_columns_and_rows_that_expire(
    cql: Session,
    keyspace: str,
    deploy_connector: DeployConnector,
    unequal_rows: Callable[[str, list[str]], list[str]],
) -> None:
    """Ranges of timeuuids compare times, not texts, and rows with a TTL disappear when it is over."""
    table = f"{keyspace}.visits"
    cql.execute(
        f"CREATE TABLE {table} (pk int, at timeuuid, v decimal, PRIMARY KEY (pk, at))"
        " WITH CLUSTERING ORDER BY (at DESC) AND cdc = true"
    )
    deploy_connector(keyspace, "visits")
    insert = cql.prepare(f"INSERT INTO {table} (pk, at, v) VALUES (?, ?, ?)")
    # Half an hour apart: the text begins with the low bits of the time, which wrap around every seven minutes.
    times = [uuid_from_time(1_700_000_000 + 1_800 * number) for number in range(24)]
    for pk in range(6):
        for number, at in enumerate(times):
            cql.execute(insert, (pk, at, number))
    assert unequal_rows(table, ["pk", "at"]) == []
    for pk, (relation, at) in enumerate([(">", 7), (">=", 11), ("<", 16), ("<=", 20)]):
        cql.execute(f"DELETE FROM {table} WHERE pk = {pk} AND at {relation} {times[at]}")
    cql.execute(f"DELETE FROM {table} WHERE pk = 4 AND at > {times[3]} AND at <= {times[17]}")
    for number, at in enumerate(times[:6]):
        cql.execute(
            f"INSERT INTO {table} (pk, at, v) VALUES (9, {at}, {number}.5) USING TTL {1 if number % 2 else 600}"
        )
    wait_until(lambda: len(cql.execute(f"SELECT v FROM {table} WHERE pk = 9").all()) == 3, "the end of the short TTLs")
    assert unequal_rows(table, ["pk", "at"]) == []
