"""Rows of several MiB: the rows that the connector reads at the same time fit into its memory."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Final

from cassandra.concurrent import execute_concurrent_with_args

from cdc.sandbox import Sandbox
from schemas.mutation_event import MutationKind
from tests.fixtures.connector import CreateLine, DeployConnector, wait_until_acknowledged
from tests.servers.processes import connectors_below
from tests.topics.connector_line import int32

_ROWS: Final = 40
# A row of 4.1 MB, written a column at a time: each write fits Cassandra's limit, and the record fits the broker's.
_COLUMNS: Final = tuple(f"b{number}" for number in range(9))
_COLUMN_BYTES: Final = 460_000
_MOST_BYTES: Final = 400_000_000


def test_rows_of_four_mib_are_read_within_400_mb(
    connector_line: CreateLine, deploy_connector: DeployConnector, sandbox: Sandbox
) -> None:
    """All events wait when the connector starts, before it knows the size of the rows; then a deletion makes it read
    the rows again."""
    line = connector_line(f"p int, id int, {', '.join(f'{each} blob' for each in _COLUMNS)}, PRIMARY KEY (p, id)")
    noise = random.Random(5).randbytes(_COLUMN_BYTES)  # Random bytes, because Pulsar compresses.
    for name in _COLUMNS:
        update = line.cql.prepare(f"UPDATE {line.keyspace}.t USING TIMESTAMP 5 SET {name} = ? WHERE p = 1 AND id = ?")
        execute_concurrent_with_args(line.cql, update, [(noise, key) for key in range(_ROWS)], concurrency=8)
    written = [line.writer.event(int32(1), int32(key), writetime_us=5, columns=_COLUMNS) for key in range(_ROWS)]
    line.writer.send(*written)
    line.writer.send(line.writer.event(int32(1), kind=MutationKind.PARTITION_DELETION, writetime_us=4))
    others = set(connectors_below(sandbox.dir))
    deploy_connector(line.keyspace, "t")
    keys: list[object] = []
    while len(keys) < 2 * _ROWS + 1:
        keys += [record.key["id"] for record in line.topic.next(timeout_s=120)]
        line.topic.records.clear()
    assert sorted(map(str, keys)) == sorted(map(str, [*range(_ROWS), *range(_ROWS), None]))
    wait_until_acknowledged(line.writer.topic, sandbox.pulsar.admin_url)
    (child,) = set(connectors_below(sandbox.dir)) - others
    assert _most_memory(child) < _MOST_BYTES


def _most_memory(pid: int) -> int:
    """The peak memory of the process, in bytes."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
