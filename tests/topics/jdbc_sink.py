"""A sink that nobody here wrote: Pulsar's own JDBC sink, into SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from cdc.rest import rest
from cdc.sandbox import artifacts
from tests.servers.interface import PulsarServer

__all__ = ["Rows", "jdbc_sink"]

Rows = Callable[[], list[tuple[object, ...]]]


@contextmanager
def jdbc_sink(
    pulsar: PulsarServer, topic: str, columns: Mapping[str, str], key: Sequence[str], folder: Path
) -> Iterator[Rows]:
    """The rows of the sink's table in the order of their key; it has these columns, by their types in SQLite.

    One for each JVM: Java looks for SQLite's driver once, among the classes of whoever asks first. So in each part of
    `make test`, which has a Pulsar of its own, one test has a sink.
    """
    file = folder / "sink.db"
    definition = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode = WAL")  # who reads does not hold up the sink
        database.execute(f"CREATE TABLE t ({definition}, PRIMARY KEY ({', '.join(key)}))")
    (archive,) = artifacts.ensure("pulsar-io-jdbc-sqlite")
    name = f"sqlite-{topic}"
    configs = {
        "jdbcUrl": f"jdbc:sqlite:{file}", "tableName": "t", "key": ",".join(key),
        "nonKey": ",".join(each for each in columns if each not in key),
        "insertMode": "UPSERT", "nullValueAction": "DELETE", "batchSize": 1,
    }  # fmt: skip
    config = {
        "tenant": "public", "namespace": "default", "name": name, "configs": configs, "inputs": [topic],
        "sourceSubscriptionPosition": "Earliest", "processingGuarantees": "ATLEAST_ONCE", "retainOrdering": True,
    }  # fmt: skip
    url = f"{pulsar.admin_url}/admin/v3/sinks/public/default/{name}"
    with archive.open("rb") as data:
        response = rest().post(
            url, files={"sinkConfig": (None, json.dumps(config), "application/json"), "data": data}, timeout=120
        )
    assert response.is_success, response.text

    def rows() -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(file, timeout=30)) as database:
            return database.execute(f"SELECT {', '.join(columns)} FROM t ORDER BY {', '.join(key)}").fetchall()

    yield rows
    print(rest().get(f"{url}/status").text)  # for a test that failed
    rest().delete(url)
