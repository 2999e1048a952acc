"""The seeded load of a run with sinks: statements that remove rows in every way that Cassandra has."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Self

from cassandra import ConsistencyLevel
from cassandra.cluster import ExecutionProfile
from cassandra.policies import FallthroughRetryPolicy

from tests.fault_kit.contact import Contact
from tests.fault_kit.line import wait_for
from tests.fault_kit.sessions import open_session
from tests.fault_kit.workload import Failures

__all__ = ["FLAT_TABLE", "KEYSPACE", "LONGEST_TTL_S", "RECREATED_TABLE", "TABLES", "SinkWorkload", "table_statements"]

KEYSPACE: Final = "faults"
FLAT_TABLE: Final = "flat"
"""The table with only types that Pulsar's JDBC sink accepts."""
RECREATED_TABLE: Final = "again"
_CELLS: Final = "cells"
TABLES: Final = (FLAT_TABLE, _CELLS, RECREATED_TABLE)
LONGEST_TTL_S: Final = 30

_DEFAULT_TTL_S: Final = 20
_LAST: Final = 99
"""The partition of the rows that no statement removes."""
_TIMEOUT_S: Final = 10.0
_SCHEMA_TIMEOUT_S: Final = 60.0
_DONE_S: Final = 600.0
_PAUSE_S: Final = 0.3
_FLAT: Final = "(pk int, ck text, n bigint, v text, PRIMARY KEY (pk, ck)) WITH cdc = true"
_DEFINITIONS: Final = {
    FLAT_TABLE: _FLAT,
    RECREATED_TABLE: _FLAT,
    _CELLS: (
        "(pk int, ck int, s text static, n bigint static, v text, tags set<text>, m map<text, int>, PRIMARY KEY (pk, ck))"
        f" WITH cdc = true AND default_time_to_live = {_DEFAULT_TTL_S}"
    ),
}


def table_statements(nodes: int) -> list[str]:
    """CQL that makes the tables, with a replica on every node."""
    replication = f"{{'class': 'NetworkTopologyStrategy', 'datacenter1': {nodes}}}"
    return [
        f"CREATE KEYSPACE {KEYSPACE} WITH replication = {replication}",
        *(f"CREATE TABLE {KEYSPACE}.{name} {columns}" for name, columns in _DEFINITIONS.items()),
    ]


class SinkWorkload:
    """Writes `rate` statements a second, in a thread. A failed statement is not repeated: SELECT shows if it was
    applied.

    `truncate` and `recreate` are for the thread that strikes faults. They repeat their statement until it succeeds.
    """

    def __init__(self, contact: Contact, seed: int, *, rate: float) -> None:
        self._contact: Final = contact
        self._random: Final = random.Random(f"sinks {seed}")
        self._rate_pause_s: Final = 1 / rate
        self._stop: Final = threading.Event()
        self._pool: Final = ThreadPoolExecutor(1, thread_name_prefix="sink workload")
        self._running: Future[None] | None = None
        self.sent = self.failed = 0

    def __enter__(self) -> Self:
        self._running = self._pool.submit(self._run)
        return self

    def __exit__(self, *raised: object) -> None:
        """Stop the load. Raises the error that ended the thread early."""
        self._stop.set()
        self._pool.shutdown()
        if self._running is not None:
            self._running.result()

    def truncate(self, table: str) -> None:
        """Truncate a table while it is written to."""
        self._until_done(f"TRUNCATE {KEYSPACE}.{table}")

    def recreate(self) -> None:
        """Drop RECREATED_TABLE and create it again, while it is written to."""
        self._until_done(f"DROP TABLE IF EXISTS {KEYSPACE}.{RECREATED_TABLE}")
        self._until_done(f"CREATE TABLE IF NOT EXISTS {KEYSPACE}.{RECREATED_TABLE} {_FLAT}")

    def write_last_rows(self) -> None:
        """Write a row that stays to each table, because all other rows may have expired or been deleted in the end."""
        for table in (FLAT_TABLE, RECREATED_TABLE):
            self._until_done(f"INSERT INTO {KEYSPACE}.{table} (pk, ck, n, v) VALUES ({_LAST}, 'last', 1, 'stays')")
        self._until_done(
            f"INSERT INTO {KEYSPACE}.{_CELLS} (pk, ck, v, tags, m) VALUES ({_LAST}, 0, 'stays', {{'a'}}, {{'k': 1}}) USING TTL 0"
        )

    def _until_done(self, statement: str) -> None:
        """Execute a statement until it succeeds. Raises FaultRunError after too long."""

        def is_done() -> bool:
            try:
                with open_session(self._contact, _profile(_SCHEMA_TIMEOUT_S)) as session:
                    session.execute(statement)
            except Failures:
                return False
            return True

        wait_for(is_done, statement, _DONE_S)

    def _run(self) -> None:
        with open_session(self._contact, _profile(_TIMEOUT_S)) as session:
            next_at = time.monotonic()
            while not self._stop.is_set():
                statement = self._random.choice(_WRITERS)(self._random)
                try:
                    session.execute(statement)
                    self.sent += 1
                except Failures:
                    self.failed += 1
                    time.sleep(_PAUSE_S)
                next_at = max(next_at + self._rate_pause_s, time.monotonic() - 1)
                time.sleep(max(0.0, next_at - time.monotonic()))


def _profile(timeout_s: float) -> ExecutionProfile:
    return ExecutionProfile(
        request_timeout=timeout_s, retry_policy=FallthroughRetryPolicy(), consistency_level=ConsistencyLevel.ONE
    )


def _ttl(chance: random.Random) -> str:
    return f"USING TTL {chance.randint(1, LONGEST_TTL_S)}"


def _flat(chance: random.Random) -> str:
    """A statement on a table of plain columns."""
    table = f"{KEYSPACE}.{chance.choice([FLAT_TABLE, FLAT_TABLE, RECREATED_TABLE])}"
    number, pk = chance.randrange(10**6), chance.randrange(6)
    ck, other = sorted(f"c{chance.randrange(10)}" for _ in range(2))
    where = f"WHERE pk = {pk} AND ck = '{ck}'"
    statements = [
        *[f"INSERT INTO {table} (pk, ck, n, v) VALUES ({pk}, '{ck}', {number}, 'v{number}')"] * 4,
        *[f"INSERT INTO {table} (pk, ck, n, v) VALUES ({pk}, '{ck}', {number}, 'v{number}') {_ttl(chance)}"] * 3,
        f"INSERT INTO {table} (pk, ck) VALUES ({pk}, '{ck}')",
        f"INSERT INTO {table} (pk, ck) VALUES ({pk}, '{ck}') {_ttl(chance)}",
        f"UPDATE {table} SET v = 'u{number}' {where}",
        *[f"UPDATE {table} {_ttl(chance)} SET v = 'u{number}' {where}"] * 2,
        f"UPDATE {table} {_ttl(chance)} SET n = {number} {where}",
        f"DELETE n FROM {table} {where}",
        f"DELETE FROM {table} {where}",
        f"DELETE FROM {table} WHERE pk = {pk} AND ck >= '{ck}' AND ck < '{other}'",
        f"DELETE FROM {table} WHERE pk = {pk} AND ck > '{other}'",
        *([f"DELETE FROM {table} WHERE pk = {pk}"] if number % 4 == 0 else []),
    ]
    return chance.choice(statements)


def _cells(chance: random.Random) -> str:
    """A statement on the table of static columns and collections, whose rows expire by a default TTL."""
    table = f"{KEYSPACE}.{_CELLS}"
    number, pk, ck = chance.randrange(10**6), chance.randrange(4), chance.randrange(6)
    where = f"WHERE pk = {pk} AND ck = {ck}"
    values = f"({pk}, {ck}, 'v{number}', {{'a', 't{number % 5}'}}, {{'k{number % 3}': {number}}})"
    statements = [
        *[f"INSERT INTO {table} (pk, ck, v, tags, m) VALUES {values}"] * 3,
        f"INSERT INTO {table} (pk, ck, v, tags, m) VALUES {values} {_ttl(chance)}",
        f"INSERT INTO {table} (pk, ck, v, tags, m) VALUES {values} USING TTL 0",
        f"UPDATE {table} {_ttl(chance)} SET tags = tags + {{'t{number % 5}'}} {where}",
        f"UPDATE {table} {_ttl(chance)} SET m['k{number % 3}'] = {number} {where}",
        f"UPDATE {table} USING TTL 0 SET m['k{number % 3}'] = {number} {where}",
        f"UPDATE {table} SET tags = tags - {{'t{number % 5}'}} {where}",
        f"UPDATE {table} SET v = 'u{number}' {where}",
        f"UPDATE {table} {_ttl(chance)} SET s = 's{number}' WHERE pk = {pk}",
        f"UPDATE {table} SET n = {number} WHERE pk = {pk}",
        f"DELETE m FROM {table} {where}",
        f"DELETE s FROM {table} WHERE pk = {pk}",
        f"DELETE FROM {table} {where}",
        *([f"DELETE FROM {table} WHERE pk = {pk}"] if number % 4 == 0 else []),
    ]
    return chance.choice(statements)


_WRITERS: Final[tuple[Callable[[random.Random], str], ...]] = (_flat, _flat, _cells)
