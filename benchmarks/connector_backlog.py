"""Tables of the connector's benchmark, and their backlogs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.query import BatchStatement, BatchType

__all__ = ["EXPIRING", "KEYSPACE", "SCENARIOS", "Scenario", "create_keyspace", "write_many_tables"]

KEYSPACE: Final = "bench"
_WIDE: Final = 500
_GROUP: Final = 20
_HOT_KEYS: Final = 100
_VALUES: Final = "a text, b text, c int, d bigint, e double"

Values = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One table, named after the measurement. `share`: the part of the wanted changes that is written."""

    table: str
    about: str
    columns: str
    share: float
    changes: Callable[[int], Iterator[Values]]
    batch: int = 1
    """The number of changes of one partition in one statement."""
    in_flight: int = 64
    """The number of statements in flight while the changes are written."""
    ttl_s: int = 0
    """The table's default TTL; 0: nothing expires."""

    def write(self, session: Session, rows: int) -> int:
        """Create the table and write its changes. Return how many were written."""
        count = max(_GROUP, int(rows * self.share) // self.batch * self.batch)
        session.execute(
            f"CREATE TABLE {KEYSPACE}.{self.table} ({self.columns}) "
            f"WITH cdc = true AND default_time_to_live = {self.ttl_s}"
        )
        changes = self.changes(count)
        first = next(changes)
        insert = session.prepare(
            f"INSERT INTO {KEYSPACE}.{self.table} ({_names(self.columns)}) VALUES ({_marks(first)})"
        )
        _execute(session, insert, [first, *changes], self.batch, self.in_flight)
        return count


def create_keyspace(session: Session) -> None:
    """Create the keyspace with one replica, for one node."""
    session.execute(
        f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )


def write_many_tables(session: Session, tables: int, rows: int) -> None:
    """Create the tables `many_0` and so on, and write `rows` rows to each."""
    for number in range(tables):
        table = f"{KEYSPACE}.many_{number}"
        session.execute(f"CREATE TABLE {table} (pk text, ck int, {_VALUES}, PRIMARY KEY (pk, ck)) WITH cdc = true")
        insert = session.prepare(f"INSERT INTO {table} (pk, ck, a, b, c, d, e) VALUES (?, ?, ?, ?, ?, ?, ?)")
        _execute(session, insert, list(_grouped(rows)), _GROUP, 1)


def _execute(session: Session, insert: object, changes: Sequence[Values], batch: int, in_flight: int) -> None:
    if batch == 1:
        execute_concurrent_with_args(session, insert, changes, concurrency=in_flight)
        return
    for at in range(0, len(changes), batch):
        together = BatchStatement(BatchType.UNLOGGED)
        for values in changes[at : at + batch]:
            together.add(insert, values)
        session.execute(together)


def _row(number: int) -> Values:
    return "a" * 40, f"value {number}", number, number * number, number / 3


def _shuffled(rows: int) -> list[int]:
    numbers = list(range(rows))
    random.Random(rows).shuffle(numbers)
    return numbers


def _distinct(rows: int) -> Iterator[Values]:
    return ((f"key-{number:08}", number % 7, *_row(number)) for number in _shuffled(rows))


def _composite(rows: int) -> Iterator[Values]:
    return ((f"key-{number:08}", number % 100, number % 7, *_row(number)) for number in _shuffled(rows))


def _grouped(rows: int) -> Iterator[Values]:
    return ((f"key-{number // _GROUP:08}", number % _GROUP, *_row(number)) for number in range(rows))


def _wide(rows: int) -> Iterator[Values]:
    return ((f"key-{number:08}", *(f"v{number}" for _ in range(_WIDE))) for number in _shuffled(rows))


def _hot(rows: int) -> Iterator[Values]:
    return (("hot", number % _HOT_KEYS, *_row(number)) for number in range(rows))


def _names(columns: str) -> str:
    found = [each.split()[0] for each in columns.partition("PRIMARY KEY (")[0].split(",") if each.strip()]
    return ", ".join(found)


def _marks(values: Values) -> str:
    return ", ".join("?" for _ in values)


SCENARIOS: Final = (
    Scenario(
        table="distinct",
        about="distinct random keys, as the rival is measured",
        share=1.0,
        changes=_distinct,
        columns=f"pk text, ck int, {_VALUES}, PRIMARY KEY (pk, ck)",
    ),
    Scenario(
        table="single",
        about="two partition columns; eight keys that wait have the second one in common",
        share=0.3,
        changes=_composite,
        columns=f"pk text, part int, ck int, {_VALUES}, PRIMARY KEY ((pk, part), ck)",
    ),
    Scenario(
        table="grouped",
        about="20 keys of each partition",
        share=1.0,
        changes=_grouped,
        batch=_GROUP,
        columns=f"pk text, ck int, {_VALUES}, PRIMARY KEY (pk, ck)",
    ),
    Scenario(
        table="wide",
        about="500 columns",
        share=0.02,
        changes=_wide,
        in_flight=4,
        columns=f"pk text, {', '.join(f'c{number} text' for number in range(_WIDE))}, PRIMARY KEY (pk)",
    ),
    Scenario(
        table="hot",
        about="changes to 100 keys of one partition",
        share=0.1,
        changes=_hot,
        batch=100,
        columns=f"pk text, ck int, {_VALUES}, PRIMARY KEY (pk, ck)",
    ),
)

EXPIRING: Final = Scenario(
    table="expiring",
    about="distinct random keys that expire in a day",
    share=1.0,
    changes=_distinct,
    ttl_s=86_400,
    columns=f"pk text, ck int, {_VALUES}, PRIMARY KEY (pk, ck)",
)
"""The table that is drained with and without `expiry.publish`."""
