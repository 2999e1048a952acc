"""A sink that is not part of this project: Pulsar's own JDBC sink, with SQLite."""

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
    """Run a sink, and yield a function that returns the rows of its table in the order of their key.

    `columns`: column name -> type in SQLite. A JVM can run only one such sink: Java looks up SQLite's driver once, by
    the class loader of the first caller. So in each part of `make test`, which has its own Pulsar, one test has a sink.
    """
    file = folder / "sink.db"
    definition = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode = WAL")  # readers do not block the sink
        database.execute(f"CREATE TABLE t ({definition}, PRIMARY KEY ({', '.join(key)}))")
    (archive,) = artifacts.ensure("pulsar-io-jdbc-sqlite")
    name = f"sqlite-{topic}"
    configs = {
        "jdbcUrl": f"jdbc:sqlite:{file}",
        "tableName": "t",
        "key": ",".join(key),
        "nonKey": ",".join(each for each in columns if each not in key),
        "insertMode": "UPSERT",
        "nullValueAction": "DELETE",
        "batchSize": 1,
    }
    config = {
        "tenant": "public",
        "namespace": "default",
        "name": name,
        "configs": configs,
        "inputs": [topic],
        "sourceSubscriptionPosition": "Earliest",
        "processingGuarantees": "ATLEAST_ONCE",
        "retainOrdering": True,
    }
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
    print(rest().get(f"{url}/status").text)  # shown if the test failed
    rest().delete(url)
