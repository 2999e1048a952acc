"""Commit log segments of a typical load, written by a real Cassandra, on which decoders are timed.

There is one table of customers' orders with a text and a bigint key and six values. Of 20 writes, 15 are whole rows,
two change two columns, one writes with a TTL, one adds to a map, and one deletes a row. Then the node is stopped. Its
folder stays, because Cassandra's own reader takes the schema from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cassandra.cluster import Cluster, Session
from cassandra.concurrent import execute_concurrent

from cdc.sandbox import Sandbox, SandboxOptions
from cdc.schema_source import fetch_schema, save_schema

__all__ = ["Load", "write_load"]

_SEGMENT_MB: Final = 32
_CONCURRENCY: Final = 100
_CREATE: Final = (
    "CREATE TABLE shop.orders (customer text, id bigint, name text, city text, amount double, items int, paid boolean,"
    " placed timestamp, labels map<text, text>, PRIMARY KEY (customer, id)) WITH cdc = true"
)
_INSERT: Final = (
    "INSERT INTO shop.orders (customer, id, name, city, amount, items, paid, placed) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE: Final = "UPDATE shop.orders SET amount = ?, paid = ? WHERE customer = ? AND id = ?"
_ADD: Final = "UPDATE shop.orders SET labels = labels + ? WHERE customer = ? AND id = ?"
_DELETE: Final = "DELETE FROM shop.orders WHERE customer = ? AND id = ?"
_START: Final = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The segments in `node_folder`, the folder of a stopped node, and the file with their schema."""

    node_folder: Path
    schema_file: Path

    @property
    def segments(self) -> list[Path]:
        """The segments in the order of the commit log."""
        return sorted((self.node_folder / "cdc_raw").glob("*.log"))


def write_load(folder: Path, mutations: int) -> Load:
    """Write this number of mutations to a new node below `folder`, or return the load that an earlier call left
    there."""
    load = Load(node_folder=folder / "cassandra-1", schema_file=folder / "schema.json")
    if load.schema_file.exists():
        return load
    options = SandboxOptions(
        pulsar=False, commitlog_segment_mb=_SEGMENT_MB, cassandra_settings={"cdc_total_space_in_mb": 8192}
    )
    with Sandbox(options, base_dir=folder) as sandbox:
        node = sandbox.node
        with Cluster([node.address], port=node.native_port) as cluster, cluster.connect() as session:
            session.execute(
                "CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
            )
            session.execute(_CREATE)
            execute_concurrent(session, _statements(session, mutations), concurrency=_CONCURRENCY)
        schema = fetch_schema((node.address, node.native_port))
        node.drain()
    save_schema(schema, load.schema_file)
    return load


def _statements(session: Session, mutations: int) -> Iterator[tuple[object, tuple[object, ...]]]:
    insert, with_ttl = session.prepare(_INSERT), session.prepare(f"{_INSERT} USING TTL 864000")
    update, add, delete = (session.prepare(text) for text in (_UPDATE, _ADD, _DELETE))
    for number in range(mutations):
        customer, which = f"customer-{number % 10_007:08d}", number % 20
        if which in (6, 13):
            yield update, (number * 1.25, True, customer, number - 1)
        elif which == 17:
            yield add, ({"channel": "web", "campaign": f"spring-{number % 9}"}, customer, number - 1)
        elif which == 19:
            yield delete, (customer, number - 1)
        else:
            placed = _START + timedelta(seconds=number)
            row = (
                customer,
                number,
                f"name of customer {number}",
                "a city's name",
                number * 1.5,
                number % 50,
                False,
                placed,
            )
            yield (with_ttl if which == 3 else insert), row
