"""Pulsar's own JDBC sink, with SQLite, reads the topic of rows that Spark publishes.

From the data topic, the sink's table does not become equal to Cassandra's: see test_connector_foreign_sink.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cassandra.cluster import Session
from pyspark.sql import SparkSession

from schemas.topics import events_topic
from spark_bridge.jobs.mirror import changelog
from spark_bridge.jobs.mirror_state import MirrorTables
from spark_bridge.jobs.publish import publish
from tests.fixtures.connector import DeployConnector, OpenDataTopic, data_topic_name, wait_until_acknowledged
from tests.servers.interface import PulsarServer
from tests.topics.data_topic import DataTopic
from tests.topics.events_topic import wait_until
from tests.topics.jdbc_sink import jdbc_sink

pytestmark = pytest.mark.timeout(1_500)

_SINK = {"pk": "INTEGER", "ck": "TEXT", "n": "BIGINT", "v": "TEXT"}
_TTL_S = 15
_LAST = 99
"""Partition key of marker rows: once such a row is on the data topic, all earlier changes are published."""


def random_statements(chance: random.Random, count: int) -> Iterator[str]:
    """Statements of every kind except TTLs, with few keys, so that they overlap."""
    for number in range(count):
        pk, ck, other = chance.randrange(4), f"c{chance.randrange(10)}", f"c{chance.randrange(10)}"
        where = f"WHERE pk = {pk} AND ck = '{ck}'"
        statements = [
            *[f"INSERT INTO {{t}} (pk, ck, n, v) VALUES ({pk}, '{ck}', {number}, 'row {number}')"] * 8,
            f"INSERT INTO {{t}} (pk, ck) VALUES ({pk}, '{ck}')",
            f"UPDATE {{t}} SET v = 'it''s {number}' {where}",
            f"DELETE n FROM {{t}} {where}",
            f"DELETE FROM {{t}} {where}",
            f"DELETE FROM {{t}} WHERE pk = {pk} AND ck >= '{min(ck, other)}' AND ck < '{max(ck, other)}'",
            f"DELETE FROM {{t}} WHERE pk = {pk} AND ck > '{max(ck, 'c7')}'",
            *([f"DELETE FROM {{t}} WHERE pk = {pk}"] if number % 8 == 0 else []),
        ]
        yield chance.choice(statements)


class Line:
    """A table and its topics, with a way to wait until all its changes are published."""

    def __init__(self, cql: Session, table: str, topic: DataTopic, admin_url: str) -> None:
        self._cql = cql
        self._table = table
        self._topic = topic
        self._admin_url = admin_url
        self._settled = 0

    def run(self, *statements: str) -> None:
        for each in statements:
            self._cql.execute(each.replace("{t}", self._table), timeout=60)

    def rows(self) -> list[tuple[object, ...]]:
        found = self._cql.execute(f"SELECT {', '.join(_SINK)} FROM {self._table}")
        return sorted(tuple(each) for each in found)

    def settle(self) -> None:
        """Return when all writes are on the data topic, and all truncations on the topic of schema changes."""
        self._settled += 1
        self.run(f"INSERT INTO {{t}} (pk, ck, n) VALUES ({_LAST}, 'c{self._settled}', 0)")
        last = {"pk": _LAST, "ck": f"c{self._settled}"}

        def is_there() -> bool:
            self._topic.poll(0.2)
            return any(each.key == last for each in self._topic.records)

        # The agent publishes in the order of the log, and the connector by keys.
        wait_until(is_there, f"the row {last} on the data topic", 300)
        wait_until_acknowledged(events_topic(*self._table.split(".")), self._admin_url)


@pytest.mark.extended
@pytest.mark.usefixtures("agent", "keep_data_topics")
def test_a_jdbc_sink_of_published_rows_ends_equal_to_select(
    cql: Session,
    keyspace: str,
    pulsar: PulsarServer,
    deploy_connector: DeployConnector,
    open_data_topic: OpenDataTopic,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """The sink ends equal to SELECT after deletions of each kind, TTLs, a truncation, and seeded random statements.

    The compared rows cannot change any more: the last TTL is over before SELECT, and no row of the mirror waits to
    expire.
    """
    table, chance, target = f"{keyspace}.t", random.Random(20261125), str(tmp_path / "mirror")
    cql.execute(f"CREATE TABLE {table} (pk int, ck text, n bigint, v text, PRIMARY KEY (pk, ck)) WITH cdc = true")
    line = Line(cql, table, open_data_topic(table), pulsar.admin_url)
    deploy_connector(keyspace, "t")
    topic = data_topic_name(keyspace, "t")
    options = {"serviceUrl": pulsar.service_url, "adminUrl": pulsar.admin_url, "topic": topic}

    def publish_rows() -> None:
        changelog(spark, options, target)
        publish(spark, options, target, {"rows": None})

    kept = [
        f"INSERT INTO {{t}} (pk, ck, n, v) VALUES ({pk}, 'k{n}', {n}, 'k')" for pk in (10, 11, 12) for n in range(5)
    ]
    line.run(*kept, *random_statements(chance, 60))
    line.settle()
    publish_rows()
    with jdbc_sink(pulsar, topic.replace("data-", "rows-"), _SINK, ("pk", "ck"), tmp_path) as sink:
        first = line.rows()
        wait_until(lambda: sink() == first, "the sink's table equal to SELECT", 300)
        line.run(
            "DELETE FROM {t} WHERE pk = 10 AND ck = 'k0'",
            "DELETE FROM {t} WHERE pk = 10 AND ck > 'k1' AND ck <= 'k3'",
            "DELETE FROM {t} WHERE pk = 11",
            *random_statements(chance, 30),
            "TRUNCATE {t}",
            *[f"INSERT INTO {{t}} (pk, ck, n, v) VALUES (20, 'e{n}', {n}, 'e') USING TTL {_TTL_S}" for n in range(4)],
            "INSERT INTO {t} (pk, ck, n, v) VALUES (20, 'stays', 1, 'of a row')",
            f"UPDATE {{t}} USING TTL {_TTL_S} SET v = 'goes' WHERE pk = 20 AND ck = 'stays'",
            *random_statements(chance, 60),
        )
        ends_at = time.time() + _TTL_S + 1
        line.settle()
        publish_rows()
        wait_until(lambda: time.time() > ends_at, "the end of the TTLs")
        expected = line.rows()

        def is_over() -> bool:
            publish_rows()
            return MirrorTables(spark, target).applied().next_expiry_s is None

        wait_until(is_over, "a mirror of which nothing expires any more", 600)
        wait_until(lambda: sink() == expected, "the sink's table equal to SELECT", 300)
    gone = {each[:2] for each in first} - {each[:2] for each in expected}
    assert gone >= {(pk, f"k{n}") for pk in (10, 11, 12) for n in range(5)}
    assert (20, "stays", 1, None) in expected
    assert len(expected) > 10
