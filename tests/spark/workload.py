"""A seeded random workload on five tables of all types, and the Spark driver that mirrors them, which tests kill.

The statements are CQL. The expected rows are those that `SELECT` returns after all statements.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent

from cdc.sandbox.prerequisites import java_home
from tests.servers.interface import REPOSITORY
from tests.spark.settings import PATIENCE_S

__all__ = [
    "ALTERATIONS",
    "TABLES",
    "USER_TYPE",
    "MirrorDriver",
    "Statements",
    "WorkloadTable",
    "cassandra_rows",
    "commits",
    "run_statements",
]

_CONCURRENCY: Final = 32
_WITHIN_S: Final = 5_400
"""The longest time for a driver on a loaded machine to start, to commit, or to apply a backlog of 100,000 records."""


@dataclass(frozen=True, kw_only=True)
class WorkloadTable:
    """A table of the workload. `definition` does not have the table's name."""

    name: str
    key: tuple[str, ...]
    definition: str


TABLES: Final = (
    WorkloadTable(
        name="scalars",
        key=("id",),
        definition="(id int PRIMARY KEY, a ascii, b bigint, c blob, d boolean, e date, f decimal, g double, h duration,"
        " i float, j inet, k smallint, l text, m time, n timestamp, o timeuuid, p tinyint, q uuid, r varint)",
    ),
    WorkloadTable(
        name="wide",
        key=("pk", "a", "b"),
        definition="(pk int, a int, b text, v int, w text, l list<int>, s int static, t text static,"
        " PRIMARY KEY (pk, a, b)) WITH CLUSTERING ORDER BY (a DESC, b ASC)",
    ),
    WorkloadTable(
        name="visits",
        key=("city", "day", "at"),
        definition="(city text, day date, at timeuuid, note text, amount decimal, who uuid, total bigint static,"
        " PRIMARY KEY ((city, day), at)) WITH CLUSTERING ORDER BY (at DESC)",
    ),
    WorkloadTable(
        name="nested",
        key=("id",),
        definition="(id uuid PRIMARY KEY, tags set<text>, marks list<int>, attributes map<text, text>, home place,"
        " places frozen<list<frozen<place>>>, pair tuple<int, text>, way vector<float, 3>,"
        " deep frozen<map<text, frozen<set<int>>>>)",
    ),
    WorkloadTable(
        name="keys", key=("pk", "n", "flag"), definition="(pk text, n bigint, flag boolean, PRIMARY KEY (pk, n, flag))"
    ),
)
USER_TYPE: Final = "CREATE TYPE {ks}.place (street text, number int, fee decimal)"
ALTERATIONS: Final = (
    {"scalars": "ALTER TABLE {ks}.scalars ADD later text", "wide": "ALTER TABLE {ks}.wide ADD x bigint"},
    {"wide": "ALTER TABLE {ks}.wide DROP w", "nested": "ALTER TABLE {ks}.nested ADD more set<int>"},
)
"""Statements between the thirds of a workload, by table. `{ks}` is the keyspace."""


class Statements:
    """Draws statements by a seed. Keys are few, so that many statements are for the same row.

    `alterations`: how many of ALTERATIONS were done, which decides which columns there are.
    """

    def __init__(self, keyspace: str, tables: Collection[WorkloadTable], seed: int, keys: int) -> None:
        self._ks = keyspace
        self._chance = random.Random(seed)
        self._keys = keys
        self._number = 0
        self.alterations = 0
        by_table = {
            "scalars": [self._scalars],
            "wide": [self._wide, self._wide],
            "visits": [self._visits],
            "nested": [self._nested],
            "keys": [self._keys_only],
        }
        self._kinds = [kind for each in tables for kind in by_table[each.name]]

    def take(self, count: int) -> Iterator[str]:
        """Yield the next `count` statements."""
        for _ in range(count):
            self._number += 1
            yield self._chance.choice(self._kinds)()

    def _scalars(self) -> str:
        chance, number, table = self._chance, self._number, f"{self._ks}.scalars"
        key = chance.randrange(self._keys)
        every = (
            f"'ascii {number}', {number << 33}, 0x{number:08x}, {number % 2 == 0}, '20{number % 30:02d}-02-{1 + number % 28:02d}',"
            f" {number}.{number % 1000:03d}, {number}.25, {number % 12}mo{number % 28}d{number}ns, {number % 4096}.5,"
            f" '10.0.{number % 256}.{number // 256 % 256}', {number % 32000}, 'text {number} größe', '0{number % 10}:12:13.{number % 1000:03d}',"
            f" {1_700_000_000_000 + number}, {_time_uuid(number)}, {number % 128}, {_uuid(number)}, {10**30 + number}"
        )
        later = f", later = 'later {number}'" if self.alterations else ""
        statements = [
            f"INSERT INTO {table} (id, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r) VALUES ({key}, {every})",
            f"INSERT INTO {table} (id, l, r) VALUES ({key}, 'row {number}', -{number})",
            f"UPDATE {table} SET f = -{number}.5, h = {number}d{later} WHERE id = {key}",
            f"UPDATE {table} SET l = null, n = null WHERE id = {key}",
            f"DELETE a, b, c FROM {table} WHERE id = {key}",
            f"DELETE FROM {table} WHERE id = {key}",
        ]
        return chance.choice(statements)

    def _wide(self) -> str:
        chance, number, table = self._chance, self._number, f"{self._ks}.wide"
        pk, a, b, other = (
            chance.randrange(max(2, self._keys // 20)),
            chance.randrange(6),
            chance.choice("xyz"),
            chance.randrange(6),
        )
        where = f"WHERE pk = {pk} AND a = {a} AND b = '{b}'"
        text = "w" if self.alterations < len(ALTERATIONS) else "t"
        new = (
            f"UPDATE {table} SET x = {number} {where}"
            if self.alterations
            else f"UPDATE {table} SET v = {number} {where}"
        )
        statements = [
            f"INSERT INTO {table} (pk, a, b, v, {text}) VALUES ({pk}, {a}, '{b}', {number}, 'row {number}')",
            f"INSERT INTO {table} (pk, a, b) VALUES ({pk}, {a}, '{b}')",
            f"INSERT INTO {table} (pk, a, b, v, s) VALUES ({pk}, {a}, '{b}', {number}, {number})",
            f"UPDATE {table} SET v = {number}, l = l + [{number}] {where}",
            f"UPDATE {table} SET v = null {where}",
            new,
            f"DELETE v, l FROM {table} {where}",
            f"DELETE FROM {table} {where}",
            f"UPDATE {table} SET s = {number}, t = 'static {number}' WHERE pk = {pk}",
            f"DELETE s FROM {table} WHERE pk = {pk}",
            f"DELETE FROM {table} WHERE pk = {pk} AND a = {a}",
            f"DELETE FROM {table} WHERE pk = {pk} AND a >= {min(a, other)} AND a < {max(a, other)}",
            f"DELETE FROM {table} WHERE pk = {pk} AND a = {a} AND b > '{b}'",
            *([f"DELETE FROM {table} WHERE pk = {pk}"] if number % 6 == 0 else []),
        ]
        return chance.choice(statements)

    def _visits(self) -> str:
        chance, number, table = self._chance, self._number, f"{self._ks}.visits"
        city, day = chance.choice("ABC"), f"2026-11-{1 + chance.randrange(max(2, self._keys // 30)) % 28:02d}"
        partition = f"city = '{city}' AND day = '{day}'"
        at, other = sorted((chance.randrange(24), chance.randrange(24)))
        statements = [
            f"INSERT INTO {table} (city, day, at, note, amount, who) VALUES ('{city}', '{day}', {_time_uuid(at * 1800)},"
            f" 'visit {number}', {number}.75, {_uuid(number)})",
            f"INSERT INTO {table} (city, day, at, amount) VALUES ('{city}', '{day}', {_time_uuid(other * 1800)}, {number})",
            f"UPDATE {table} SET note = 'seen {number}' WHERE {partition} AND at = {_time_uuid(at * 1800)}",
            f"UPDATE {table} SET total = {number} WHERE {partition}",
            f"DELETE FROM {table} WHERE {partition} AND at = {_time_uuid(other * 1800)}",
            f"DELETE FROM {table} WHERE {partition} AND at > {_time_uuid(at * 1800)} AND at <= {_time_uuid(other * 1800)}",
            *([f"DELETE FROM {table} WHERE {partition}"] if number % 5 == 0 else []),
        ]
        return chance.choice(statements)

    def _nested(self) -> str:
        chance, number, table = self._chance, self._number, f"{self._ks}.nested"
        key = _uuid(chance.randrange(self._keys))
        place = f"{{street: 'street {number}', number: {number}, fee: {number}.5}}"
        more = f"UPDATE {table} SET more = more + {{{number}}} WHERE id = {key}"
        statements = [
            f"INSERT INTO {table} (id, tags, marks, attributes, home, places, pair, way, deep) VALUES ({key}, {{'a', 't{number}'}},"
            f" [{number}, 2], {{'k{number}': 'v', 'z': 'ü'}}, {place}, [{place}, {{street: 'only'}}], ({number}, 'p'),"
            f" [{number}, 0.5, -1], {{'m': {{1, {number}}}}})",
            f"UPDATE {table} SET tags = tags + {{'t{number}'}}, marks = marks + [{number}] WHERE id = {key}",
            f"UPDATE {table} SET tags = tags - {{'a'}}, attributes['k'] = 'v{number}' WHERE id = {key}",
            f"UPDATE {table} SET pair = ({number}, null), home = null WHERE id = {key}",
            more if self.alterations == len(ALTERATIONS) else f"DELETE attributes FROM {table} WHERE id = {key}",
            f"DELETE marks, way FROM {table} WHERE id = {key}",
            f"DELETE FROM {table} WHERE id = {key}",
        ]
        return chance.choice(statements)

    def _keys_only(self) -> str:
        chance, table = self._chance, f"{self._ks}.keys"
        pk, n, flag = (
            f"'{chance.randrange(max(2, self._keys // 10))}'",
            chance.randrange(5) << 40,
            chance.choice(["true", "false"]),
        )
        insert = f"INSERT INTO {table} (pk, n, flag) VALUES ({pk}, {n}, {flag})"
        statements = [
            insert,
            insert,
            insert,
            f"DELETE FROM {table} WHERE pk = {pk} AND n = {n} AND flag = {flag}",
            f"DELETE FROM {table} WHERE pk = {pk} AND n > {n}",
            *([f"DELETE FROM {table} WHERE pk = {pk}"] if self._number % 4 == 0 else []),
        ]
        return chance.choice(statements)


def run_statements(session: Session, statements: Iterator[str]) -> None:
    """Run statements, many at the same time. Their order is not known; Cassandra has the expected rows afterwards."""
    batch = [(statement, ()) for statement in statements]
    for success, error in execute_concurrent(session, batch, _CONCURRENCY, raise_on_first_error=False):
        assert success, error


class MirrorDriver:
    """A Spark driver in its own process, which updates mirrors, change logs and histories until it is killed."""

    def __init__(self, python: str, job: Mapping[str, object], folder: Path) -> None:
        """`job`: see `tests/spark/workload_driver.py`. `python`: its environment decides the line of Spark, and so the
        reader.

        `folder` is created for the job's file and the driver's log.
        """
        folder.mkdir()
        self._command = [python, "-m", "tests.spark.workload_driver", str(folder / "job.json")]
        (folder / "job.json").write_text(json.dumps(job))
        self._log = folder / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, mode: str, first: str) -> None:
        """Start it, or start it again, with this table first. The modes `follow` and `rounds` run until it is
        killed."""
        self._start(mode, first)

    def run_to_end(self) -> None:
        """Run it up to the current end of the topics."""
        self._run("once")

    def write_fresh(self, table: str) -> None:
        """Write `fresh_table` of this table to the Parquet files `TARGET-fresh`. No driver may run meanwhile."""
        self._run("fresh", table)

    def _run(self, *arguments: str) -> None:
        self._start(*arguments)
        assert self._process is not None
        assert self._process.wait(timeout=_WITHIN_S) == 0, self.log_tail()
        self._process = None

    def kill(self) -> None:
        """Send SIGKILL to the driver, its JVM and its workers."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        """Kill it if it runs."""
        if self._process is not None:
            self.kill()

    def _start(self, *arguments: str) -> None:
        kept = {name: each for name, each in os.environ.items() if name != "SPARK_HOME"}
        environment = {
            **kept,
            "PYTHONPATH": str(REPOSITORY),
            "PYSPARK_PYTHON": self._command[0],
            "JAVA_HOME": str(java_home()),
            "SPARK_AUTH_SOCKET_TIMEOUT": str(PATIENCE_S),
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=environment,
                cwd=REPOSITORY,
            )

    def wait_until(self, is_done: Callable[[], bool], what: str) -> None:
        """Wait until `is_done` returns True. Raises AssertionError when the driver ends before that."""
        deadline = time.monotonic() + _WITHIN_S
        while not is_done():
            assert self._process is not None
            assert self._process.poll() is None, f"the driver ended: {self.log_tail()}"
            assert time.monotonic() < deadline, f"no {what} within {_WITHIN_S} s: {self.log_tail()}"
            time.sleep(0.2)

    def log_tail(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-6000:]


def commits(lake: Path, table: str, mirror: str = "*") -> frozenset[Path]:
    """The commits of the Delta tables of this name, in all mirrors together, or in the one of this name.

    The kept records are no Delta table: `kept` has a folder for each run, from the start of its write.
    """
    return frozenset(lake.glob(f"{mirror}/kept/*" if table == "kept" else f"{mirror}/{table}/_delta_log/*.json"))


def cassandra_rows(session: Session, table: str) -> list[Mapping[str, object]]:
    """The rows of `SELECT *`, with values in Spark's form."""
    rows = session.execute(f"SELECT * FROM {table}")
    return [{name: _spark_form(value) for name, value in row._asdict().items()} for row in rows]


def _spark_form(value: object) -> object:
    if hasattr(value, "nanosecond_time"):  # cassandra.util.Time
        return value.nanosecond_time // 1000
    if hasattr(value, "months"):  # cassandra.util.Duration
        return {"months": value.months, "days": value.days, "nanoseconds": value.nanoseconds}
    if isinstance(value, tuple) and not hasattr(value, "_asdict"):
        return {f"index_{at}": each for at, each in enumerate(value)}
    return value


def _uuid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


def _time_uuid(seconds: int) -> str:
    """The text of a version 1 UUID. For times half an hour apart, the order of texts is not the order of times."""
    ticks = (1_700_000_000 + seconds) * 10_000_000 + 0x01B21DD213814000
    return f"{ticks & 0xFFFFFFFF:08x}-{ticks >> 32 & 0xFFFF:04x}-1{ticks >> 48 & 0xFFF:03x}-8000-000000000001"
