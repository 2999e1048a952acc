"""What limits the connector's memory: rows of several MiB, and messages with more events than may wait."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Final

from cassandra.concurrent import execute_concurrent_with_args

from cdc.sandbox import Sandbox
from schemas.mutation_event import MutationKind
from tests.fixtures.connector import CreateLine, DeployConnector, wait_until_acknowledged
from tests.servers.interface import PulsarServer
from tests.servers.processes import connectors_below
from tests.topics.connector_line import int32

_ROWS: Final = 40
# A row of 4.1 MB, written a column at a time: each write fits Cassandra's limit, and the record fits the broker's.
_COLUMNS: Final = tuple(f"b{number}" for number in range(9))
_COLUMN_BYTES: Final = 460_000
_MOST_BYTES: Final = 400_000_000
# One message holds them.
_EVENTS: Final = 900


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


def test_a_message_with_many_more_events_than_may_wait_is_published_whole(
    connector_line: CreateLine, deploy_connector: DeployConnector, pulsar: PulsarServer
) -> None:
    """As a backlog of many tables: a table has a small share of what may wait, and its messages have more events. The
    deletion at the end of each message comes after the rows of its partition."""
    line = connector_line("p int, id int, v int, PRIMARY KEY (p, id)")
    insert = line.cql.prepare(f"INSERT INTO {line.keyspace}.t (p, id, v) VALUES (?, ?, ?) USING TIMESTAMP 5")
    keys = [(partition, key) for partition in range(2) for key in range(_EVENTS)]
    execute_concurrent_with_args(line.cql, insert, [(*key, 1) for key in keys], concurrency=64)
    for partition in range(2):
        rows = [
            line.writer.event(int32(partition), int32(key), writetime_us=5, columns=("v",)) for key in range(_EVENTS)
        ]
        deletion = line.writer.event(int32(partition), kind=MutationKind.PARTITION_DELETION, writetime_us=4)
        line.writer.send(*rows, deletion)
    deploy_connector(line.keyspace, "t", events={"maxWaiting": 20})
    wanted = 2 * (2 * _EVENTS + 1)  # each row once for its event, and once after the deletion
    line.topic.next(wanted, timeout_s=120)
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    for partition in range(2):
        published = [record.key["id"] for record in line.topic.records if record.key["p"] == partition]
        marker = published.index(None)
        assert sorted(map(str, published[:marker])) == sorted(map(str, range(_EVENTS)))
        assert sorted(map(str, published[marker + 1 :])) == sorted(map(str, range(_EVENTS)))
