"""Backlogs of any size, in segments of any size, made of mutations that a real Cassandra wrote.

A node writes some thousand rows once. A backlog repeats their bytes in its own segments, framed and checksummed as
Cassandra does, each with the index of a completed segment. So a backlog of a million mutations takes seconds, not the
hour that a million writes by a driver may take, and the size of segments can vary. The agent sees no difference: it
gets one event for each mutation, of as many different rows as were written.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cassandra.cluster import Cluster
from cassandra.concurrent import execute_concurrent_with_args

from cdc.sandbox import CassandraNode
from change_agent.commitlog.reader import SegmentReader
from tests.agent.segment_writer import entry_bytes, header_bytes, sync_marker_bytes

__all__ = ["Backlog", "entries_of_a_node"]

_FIRST_ID: Final = 1_700_000_000_000
_SECTION_BYTES: Final = 512 * 1024
_KEYSPACE: Final = "bench"


def entries_of_a_node(node: CassandraNode, rows: int) -> list[bytes]:
    """Write rows as in the published figures of other systems (text and int key, five columns). Return their framed
    mutations."""
    with Cluster([node.address], port=node.native_port) as cluster, cluster.connect() as session:
        # The machine may be busy with other work.
        session.default_timeout = 120
        session.execute(
            f"CREATE KEYSPACE {_KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
        session.execute(
            f"CREATE TABLE {_KEYSPACE}.rows (pk text, ck int, a text, b text, c int, d bigint, e double,"
            " PRIMARY KEY (pk, ck)) WITH cdc = true"
        )
        [table] = session.execute(
            f"SELECT id FROM system_schema.tables WHERE keyspace_name = '{_KEYSPACE}' AND table_name = 'rows'"
        )
        insert = session.prepare(f"INSERT INTO {_KEYSPACE}.rows (pk, ck, a, b, c, d, e) VALUES (?, ?, ?, ?, ?, ?, ?)")
        values = ((f"key-{i:08}", i % 7, "a" * 40, f"value {i}", i, i * i, i / 3) for i in range(rows))
        execute_concurrent_with_args(session, insert, values, concurrency=64)
    # Longer than one sync period: then all rows can be read.
    time.sleep(1)
    found = []
    for path in sorted(node.commitlog_dir.glob("CommitLog-*.log")):
        with SegmentReader(path) as reader:
            found += [entry_bytes(each.payload) for each in reader.read() if each.payload[1:17] == table.id.bytes]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """`events` mutations in segments of about `segment_bytes`; the last segment is smaller."""

    events: int
    segment_bytes: int

    def write(self, entries: Sequence[bytes], cdc_raw: Path) -> None:
        """Write the backlog to the new folder `cdc_raw`, as Cassandra leaves it when all segments are complete."""
        cdc_raw.mkdir(parents=True)
        left, number = self.events, 0
        while left:
            segment_id = _FIRST_ID + number
            written, count = self._segment(segment_id, entries, left)
            name = f"CommitLog-7-{segment_id}"
            (cdc_raw / f"{name}.log").write_bytes(written)
            (cdc_raw / f"{name}_cdc.idx").write_text(f"{len(written)}\nCOMPLETED")
            left, number = left - count, number + 1

    def _segment(self, segment_id: int, entries: Sequence[bytes], most: int) -> tuple[bytes, int]:
        parts, count = [header_bytes(segment_id)], 0
        size = len(parts[0])
        for body, mutations in self._sections(entries, most):
            end = size + 8 + len(body)
            parts += [sync_marker_bytes(segment_id, size, end), body]
            size, count = end, count + mutations
        return b"".join(parts), count

    def _sections(self, entries: Sequence[bytes], most: int) -> Iterator[tuple[bytes, int]]:
        total = count = 0
        while count < most and total < self.segment_bytes:
            body: list[bytes] = []
            size = 0
            while count < most and size < min(_SECTION_BYTES, self.segment_bytes - total):
                entry = entries[count % len(entries)]
                body.append(entry)
                size += len(entry)
                count += 1
            total += size
            yield b"".join(body), len(body)
