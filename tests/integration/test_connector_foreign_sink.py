"""A sink that nobody here wrote reads the data topic: Pulsar's own JDBC sink, into SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cassandra.cluster import Session

from cdc.rest import rest
from cdc.sandbox import artifacts
from schemas.mutation_event import MutationKind
from tests.fixtures.connector import CreateLine, DeployConnector, data_topic_name
from tests.servers.interface import PulsarServer
from tests.topics.connector_line import int32
from tests.topics.events_topic import wait_until

Rows = Callable[[], list[tuple[object, ...]]]

_COLUMNS = "pk, ck, b, d, f, i, n, u, v"
_DEFINITION = (
    "pk int, ck text, b boolean, d double, f float, i inet, n bigint, u uuid, v text, PRIMARY KEY (pk, ck)"
)  # fmt: skip


@pytest.fixture
def sink(pulsar: PulsarServer, keyspace: str, tmp_path: Path) -> Iterator[Rows]:
    """The sink for table `t`; its own table's rows, in order.

    One for each JVM: Java looks for SQLite's driver once, among the classes of whoever asks first.
    """
    file = tmp_path / "sink.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode = WAL")  # who reads does not hold up the sink
        database.execute(
            "CREATE TABLE t (pk INTEGER, ck TEXT, b BOOLEAN, d DOUBLE, f FLOAT, i TEXT, n BIGINT, u TEXT, v TEXT, "
            "PRIMARY KEY (pk, ck))"
        )
    (archive,) = artifacts.ensure("pulsar-io-jdbc-sqlite")
    configs = {
        "jdbcUrl": f"jdbc:sqlite:{file}", "tableName": "t", "key": "pk,ck", "nonKey": "b,d,f,i,n,u,v",
        "insertMode": "UPSERT", "nullValueAction": "DELETE", "batchSize": 1,
    }  # fmt: skip
    config = {
        "tenant": "public", "namespace": "default", "name": f"sqlite-{keyspace}", "configs": configs,
        "inputs": [data_topic_name(keyspace, "t")], "sourceSubscriptionPosition": "Earliest",
        "processingGuarantees": "ATLEAST_ONCE", "retainOrdering": True,
    }  # fmt: skip
    url = f"{pulsar.admin_url}/admin/v3/sinks/public/default/sqlite-{keyspace}"
    with archive.open("rb") as data:
        files = {"sinkConfig": (None, json.dumps(config), "application/json"), "data": data}
        response = rest().post(url, files=files, timeout=120)
    assert response.is_success, response.text

    def rows() -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(file, timeout=30)) as database:
            return database.execute(f"SELECT {_COLUMNS} FROM t ORDER BY pk, ck").fetchall()

    yield rows
    print(rest().get(f"{url}/status").text)  # for a test that failed
    rest().delete(url)


def test_a_table_of_pulsars_jdbc_sink_ends_equal_to_select(
    connector_line: CreateLine, deploy_connector: DeployConnector, sink: Rows, cql: Session, keyspace: str
) -> None:
    """Inserts, updates, a column's delete, rows deleted by null values and one that is written again."""
    line = connector_line(_DEFINITION)
    deploy_connector(keyspace, "t")
    others = ("b", "d", "f", "i", "n", "u", "v")
    insert = (
        "INSERT INTO {t} (pk, ck, b, d, f, i, n, u, v) VALUES (PK, 'CK', true, 0.5, 0.25, '10.0.0.1', 5000000000, "
        "01234567-89ab-4cde-8f01-23456789abcd, 'v') USING {ts}"
    )

    def key(number: int) -> tuple[bytes, bytes]:
        return int32(number % 4), f"c{number}".encode()

    def put(number: int) -> None:
        statement = insert.replace("PK", str(number % 4)).replace("CK", f"c{number}")
        line.writer.send(line.change(statement, *key(number), columns=others))

    def where(number: int) -> str:
        return f"WHERE pk = {number % 4} AND ck = 'c{number}'"

    for number in range(40):
        put(number)
    line.topic.wait_for(40)
    for number in range(0, 40, 5):
        line.writer.send(
            line.change(f"UPDATE {{t}} USING {{ts}} SET v = 'it''s é' {where(number)}", *key(number), columns=("v",))
        )
        line.writer.send(
            line.change(
                f"DELETE n FROM {{t}} USING {{ts}} {where(number)}", *key(number), columns=("n",), is_live=False
            )
        )
    for number in range(1, 40, 5):
        delete = f"DELETE FROM {{t}} USING {{ts}} {where(number)}"
        line.writer.send(line.change(delete, *key(number), kind=MutationKind.ROW_DELETION))
    put(6)

    def selected() -> list[tuple[object, ...]]:
        found = cql.execute(f"SELECT {_COLUMNS} FROM {keyspace}.t")
        return sorted(
            (row.pk, row.ck, row.b, row.d, row.f, row.i, row.n, None if row.u is None else str(row.u), row.v)
            for row in found
        )

    expected = selected()
    assert len(expected) == 33
    wait_until(lambda: sink() == expected, "the sink's table equal to SELECT", 120)
