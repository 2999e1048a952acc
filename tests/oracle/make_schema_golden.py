"""Makes two folders of tests/golden: the log of real nodes with schema changes, and rows between them.

    python -m tests.oracle.make_schema_golden schema_mutations 3.11 4.0 4.1 5.0 5.0-none
    python -m tests.oracle.make_schema_golden schema_key_mutations 3.11 4.0 4.1 5.0

The second folder has changes of key columns. There is one file for each Cassandra. `schema` has the rows of
system_schema for the tables of `system_schema` and for `system.local`, which are needed to read the rest. `entries` has
the mutations of the keyspace `k`, those of system_schema about it, and those of system.local about the schema's
version, in the order of the log. `statements` has the executed statements.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from cassandra.cluster import Cluster

from cdc.sandbox import Sandbox, SandboxOptions
from cdc.schema_source import fetch_schema
from change_agent.commitlog.reader import SegmentReader
from tests.oracle.variants import PLAIN_VARIANTS

FOLDER = Path(__file__).parents[1] / "golden"
_STATEMENTS = (
    "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    "CREATE TYPE k.point (x int, y text)",
    "CREATE TABLE k.t (pk int, ck int, v int, p frozen<point>, PRIMARY KEY (pk, ck)) WITH cdc = true",
    "INSERT INTO k.t (pk, ck, v, p) VALUES (1, 1, 1, {x: 1, y: 'one'})",
    "ALTER TABLE k.t WITH cdc = false",
    "INSERT INTO k.t (pk, ck, v) VALUES (1, 2, 2)",
    "ALTER TABLE k.t WITH cdc = true",
    "INSERT INTO k.t (pk, ck, v) VALUES (1, 3, 3)",
    "ALTER TABLE k.t ADD w text",
    "INSERT INTO k.t (pk, ck, w) VALUES (1, 4, 'four')",
    "ALTER TABLE k.t DROP v",
    "INSERT INTO k.t (pk, ck, w) VALUES (1, 5, 'five')",
    "CREATE TABLE k.plain (pk int PRIMARY KEY, v int)",
    "INSERT INTO k.plain (pk, v) VALUES (1, 1)",
    "BEGIN UNLOGGED BATCH INSERT INTO k.t (pk, ck, w) VALUES (1, 6, 'six');"
    " INSERT INTO k.plain (pk, v) VALUES (1, 2); APPLY BATCH",
    "DROP TABLE k.t",
    "CREATE TABLE k.t (pk int, ck int, v list<text>, PRIMARY KEY (pk, ck)) WITH cdc = true",
    "INSERT INTO k.t (pk, ck, v) VALUES (1, 7, ['a', 'b'])",
)
_INSERT = "INSERT INTO k.t ({}, {}, {}, v) VALUES ('a', {{{}: 1}}, {}, 1)"
_KEY_STATEMENTS = (
    _STATEMENTS[0],
    "CREATE TYPE k.point (x int)",
    "CREATE TABLE k.t (a text, p frozen<point>, c int, v int, PRIMARY KEY ((a, p), c)) WITH cdc = true",
    _INSERT.format("a", "p", "c", "x", 1),
    "ALTER TABLE k.t RENAME a TO a2",
    _INSERT.format("a2", "p", "c", "x", 2),
    "ALTER TYPE k.point RENAME x TO z",
    _INSERT.format("a2", "p", "c", "z", 3),
    "ALTER TABLE k.t RENAME c TO c2",
    _INSERT.format("a2", "p", "c2", "z", 4),
    "ALTER TABLE k.t ALTER a2 MASKED WITH DEFAULT",
    _INSERT.format("a2", "p", "c2", "z", 5),
    "ALTER TABLE k.t RENAME a2 TO a3 AND p TO p3",
    _INSERT.format("a3", "p3", "c2", "z", 6),
)
_SYNC_S = 1.0


def make_schema_golden(folder: str, name: str) -> None:
    """Write the file of one of PLAIN_VARIANTS again."""
    variant = PLAIN_VARIANTS[name]
    statements: Sequence[str] = _STATEMENTS if folder == "schema_mutations" else _KEY_STATEMENTS
    if variant.line == "5.0":
        variant = variant.with_settings({"dynamic_data_masking_enabled": True})
    else:
        statements = [each for each in statements if "MASKED" not in each]
    options = SandboxOptions(cassandra=variant.line, pulsar=False, cassandra_settings=variant.settings)
    with Sandbox(options) as sandbox:
        node = sandbox.node
        with Cluster([node.address], port=node.native_port) as cluster, cluster.connect() as session:
            for statement in statements:
                session.execute(statement)
            time.sleep(_SYNC_S)
        schema = {
            name: [row for row in rows if _explains_the_log(row)]
            for name, rows in fetch_schema((node.address, node.native_port)).items()
        }
        ids = {bytes.fromhex(str(row["id"]).replace("-", "")) for row in schema["tables"]}
        # On 3.11 a segment reaches cdc_raw when Cassandra discards it.
        paths = {path.name: path for folder in (node.cdc_raw, node.commitlog_dir) for path in folder.glob("*.log")}
        entries = [entry for name in sorted(paths) for entry in _entries(paths[name], ids)]
    content = {"statements": statements, "schema": schema, "entries": entries}
    (FOLDER / folder).mkdir(exist_ok=True)
    (FOLDER / folder / f"{name}.json").write_text(json.dumps(content, indent=0) + "\n")


def _explains_the_log(row: dict[str, object]) -> bool:
    if row["keyspace_name"] == "system_schema":
        return True
    return row["keyspace_name"] == "system" and row.get("table_name", "local") == "local"


def _entries(path: Path, ids: set[bytes]) -> Iterator[dict[str, object]]:
    with SegmentReader(path) as reader:
        for entry in reader.read():
            table_id, key = entry.payload[1:17], entry.payload[17:19]
            is_about_k = table_id in ids and (key == b"\x01k" or b"schema_version" in entry.payload)
            # Ids of user tables are time UUIDs of our time; those of system tables are derived from their names.
            is_of_k = table_id not in ids and table_id[6] >> 4 == 1
            if is_about_k or is_of_k:
                yield {
                    "segment_id": reader.descriptor.segment_id,
                    "version": reader.descriptor.version,
                    "position": entry.position,
                    "payload": entry.payload.hex(),
                }


if __name__ == "__main__":
    for each in sys.argv[2:]:
        make_schema_golden(sys.argv[1], each)
