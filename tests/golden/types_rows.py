"""Writes tests/golden/datastax/types-rows.json: the rows that Cassandra stores for `types.cql`, for a fast test.

`python -m tests.golden.types_rows` starts a Cassandra of the sandbox and runs the statements. It keeps the rows of
`system_schema`, and the CQL bytes of every row as the connector's own selection gives them.
"""

from __future__ import annotations

import json
import queue
import tempfile
from pathlib import Path
from typing import Any

from cassandra.cluster import Cluster

from cdc.sandbox import CassandraNode, Sandbox, SandboxOptions
from schemas.system_schema import SELECTS, tables_of
from source_connector.encoding.projection import Projection, quoted
from source_connector.rows.cassandra_client import CassandraClient, CassandraOptions, RowRead
from source_connector.rows.raw_page import RawPage

GOLDEN = Path(__file__).parent / "datastax"
_LISTS = ("tables", "columns", "types", "dropped_columns")


def main() -> None:
    """Run the statements of types.cql and write the file."""
    options = SandboxOptions(cassandra="5.0", pulsar=False)
    with tempfile.TemporaryDirectory() as folder, Sandbox(options, base_dir=Path(folder)) as sandbox:
        schema = _create(sandbox.node)
        rows = _rows(sandbox.node, schema)
    text = json.dumps({"schema": schema, "rows": rows}, indent=None, separators=(",", ":"), sort_keys=True)
    (GOLDEN / "types-rows.json").write_text(text.replace('],"', '],\n"').replace("},{", "},\n{") + "\n")


def _create(node: CassandraNode) -> dict[str, list[dict[str, Any]]]:
    with Cluster([node.address], port=node.native_port) as cluster:
        session = cluster.connect()
        for statement in (GOLDEN / "types.cql").read_text().splitlines():
            session.execute(statement)
        return {
            name: [
                {column: _plain(value) for column, value in row._asdict().items()}
                for row in session.execute(SELECTS[name] + " WHERE keyspace_name = 'tt'")
            ]
            for name in _LISTS
        }


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int) or value is None:
        return value
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if not hasattr(value, "__iter__") or isinstance(value, str) else [str(each) for each in value]


def _rows(node: CassandraNode, schema: dict[str, list[dict[str, Any]]]) -> dict[str, list[list[str | None]]]:
    client = CassandraClient(
        CassandraOptions(
            contact_points=[node.address], port=node.native_port, local_dc="datacenter1", read_timeout_s=20
        )
    )
    client.connect()
    found = {}
    for table in tables_of(schema).values():
        selection = Projection(table).group_selection
        statement = client.prepare(f"{selection.text} FROM {quoted(table.keyspace)}.{quoted(table.name)}")
        answers: queue.SimpleQueue[RawPage | Exception] = queue.SimpleQueue()
        client.read(
            RowRead(statement=statement, values=(), consistency="ONE", event_node=None), answers.put, answers.put
        )
        page = answers.get(timeout=20)
        assert isinstance(page, RawPage), page
        width = selection.ttls_at + len(selection.timed_columns)
        found[table.name] = [[None if each is None else each.hex() for each in row[:width]] for row in page]
    client.close()
    return found


if __name__ == "__main__":
    main()
