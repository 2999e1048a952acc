"""The demo's keyspace `shop` and a few thousand seeded changes to its three tables."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Final
from uuid import UUID

from cassandra.concurrent import execute_concurrent

from schemas.errors import CdcError

if TYPE_CHECKING:
    from cassandra.cluster import Session

__all__ = ["KEYSPACE", "TABLES", "Workload", "WorkloadError"]

KEYSPACE: Final = "shop"
TABLES: Final = ("customers", "orders", "products")

_SCHEMA: Final = (
    "CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    "CREATE TYPE shop.dimensions (width double, height double, depth double, unit text)",
    "CREATE TABLE shop.customers (id uuid PRIMARY KEY, name text, email text, credit decimal, since date)"
    " WITH cdc = true",
    "CREATE TABLE shop.orders (customer uuid, placed_at timestamp, number int, status text, total decimal, note text,"
    " PRIMARY KEY (customer, placed_at, number)) WITH CLUSTERING ORDER BY (placed_at DESC, number ASC) AND cdc = true",
    "CREATE TABLE shop.products (sku text PRIMARY KEY, title text, price decimal, in_stock boolean, tags set<text>,"
    " attributes map<text, text>, photos list<text>, size frozen<dimensions>, weights frozen<map<text, double>>)"
    " WITH cdc = true",
)
_ALTER: Final = "ALTER TABLE shop.customers ADD loyalty_points int"

_STATUSES: Final = ("placed", "paid", "shipped", "delivered", "returned")
_TAGS: Final = ("new", "sale", "green", "heavy", "gift", "last chance", "größe XL")
_WORDS: Final = ("amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "harbor", "iris", "juniper")
_EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
_CONCURRENCY: Final = 32

# One change: a CQL statement with ? marks, and its values.
Statement = tuple[str, tuple[object, ...]]


class WorkloadError(CdcError):
    """A statement of the demo was refused by Cassandra."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderKey:
    """Primary key of shop.orders."""

    customer: UUID
    placed_at: datetime
    number: int

    def values(self) -> tuple[UUID, datetime, int]:
        """In the order of the WHERE clause."""
        return (self.customer, self.placed_at, self.number)


class Workload:
    """Creates the tables and changes their rows. `changes`: the number of statements; each changes one row."""

    def __init__(self, session: Session, *, seed: int, scale: int = 1) -> None:
        self._session = session
        self._random = random.Random(seed)
        self._prepared: dict[str, object] = {}
        self.changes = 0
        self.changes_by_table = dict.fromkeys(TABLES, 0)
        self._customers = [UUID(int=self._random.getrandbits(128), version=4) for _ in range(400 * scale)]
        self._orders = [self._order_key(i) for i in range(900 * scale)]
        self._skus = [f"{self._random.choice(_WORDS)}-{i:05}" for i in range(300 * scale)]

    def create_schema(self) -> None:
        """Create the keyspace, the user type and the three tables with cdc = true."""
        for statement in _SCHEMA:
            self._session.execute(statement)

    def first_half(self) -> None:
        """Insert rows into all tables, then update rows and delete columns."""
        self._run(list(self._inserts()))
        self._run(list(self._changes(new_column=False)))

    def alter(self) -> None:
        """Add a column (ALTER TABLE) between the changes."""
        self._session.execute(_ALTER)

    def second_half(self) -> None:
        """Change rows, for customers the new column, and delete rows, all in random order."""
        statements = [*self._changes(new_column=True), *self._deletions()]
        self._random.shuffle(statements)
        self._run(statements)

    def _run(self, statements: Sequence[Statement]) -> None:
        for cql, _ in statements:
            if cql not in self._prepared:
                self._prepared[cql] = self._session.prepare(cql)
            self.changes_by_table[next(table for table in TABLES if f"shop.{table}" in cql)] += 1
        bound = [(self._prepared[cql], values) for cql, values in statements]
        for success, error in execute_concurrent(self._session, bound, _CONCURRENCY, raise_on_first_error=False):
            if not success:
                raise WorkloadError(f"demo: Cassandra refused a write: {error}")
        self.changes += len(statements)

    def _inserts(self) -> Iterator[Statement]:
        pick = self._random
        for number, customer in enumerate(self._customers):
            name = f"{pick.choice(_WORDS).title()} {pick.choice(_WORDS).title()}"
            since = (_EPOCH - timedelta(days=pick.randrange(2000))).date()
            yield (
                "INSERT INTO shop.customers (id, name, email, credit, since) VALUES (?, ?, ?, ?, ?)",
                (customer, name, f"{number}@example.org", self._money(), since),
            )
        for key in self._orders:
            yield (
                "INSERT INTO shop.orders (customer, placed_at, number, status, total) VALUES (?, ?, ?, ?, ?)",
                (*key.values(), "placed", self._money()),
            )
        for sku in self._skus:
            size = (pick.uniform(1, 90), pick.uniform(1, 90), None if pick.random() < 0.2 else 2.5, "cm")
            yield (
                "INSERT INTO shop.products (sku, title, price, in_stock, tags, attributes, photos, size, weights)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    sku,
                    sku.title(),
                    self._money(),
                    pick.random() < 0.8,
                    set(pick.sample(_TAGS, pick.randrange(4))),
                    {word: word[::-1] for word in pick.sample(_WORDS, pick.randrange(4))},
                    [f"{sku}-{i}.jpg" for i in range(pick.randrange(3))],
                    size,
                    {"net": pick.uniform(0, 5), "gross": pick.uniform(5, 9)},
                ),
            )

    def _changes(self, *, new_column: bool) -> Iterator[Statement]:
        pick = self._random
        for customer in pick.sample(self._customers, len(self._customers) // 2):
            if new_column:
                yield "UPDATE shop.customers SET loyalty_points = ? WHERE id = ?", (pick.randrange(5000), customer)
            elif pick.random() < 0.7:
                yield "UPDATE shop.customers SET credit = ? WHERE id = ?", (self._money(), customer)
            else:
                yield "DELETE email FROM shop.customers WHERE id = ?", (customer,)
        for key in pick.sample(self._orders, len(self._orders) // 2):
            if pick.random() < 0.8:
                yield (
                    "UPDATE shop.orders SET status = ?, note = ? WHERE customer = ? AND placed_at = ? AND number = ?",
                    (pick.choice(_STATUSES), pick.choice(_WORDS), *key.values()),
                )
            else:
                yield (
                    "DELETE note, total FROM shop.orders WHERE customer = ? AND placed_at = ? AND number = ?",
                    key.values(),
                )
        for sku in pick.sample(self._skus, len(self._skus) // 2):
            yield self._product_change(sku)

    def _product_change(self, sku: str) -> Statement:
        pick = self._random
        changes: tuple[Statement, ...] = (
            ("UPDATE shop.products SET tags = tags + ? WHERE sku = ?", ({pick.choice(_TAGS)}, sku)),
            ("UPDATE shop.products SET tags = tags - ? WHERE sku = ?", ({pick.choice(_TAGS)}, sku)),
            ("UPDATE shop.products SET attributes[?] = ? WHERE sku = ?", ("origin", pick.choice(_WORDS), sku)),
            ("UPDATE shop.products SET photos = photos + ? WHERE sku = ?", ([f"{sku}-extra.jpg"], sku)),
            ("UPDATE shop.products SET size = ? WHERE sku = ?", ((1.0, 2.0, 3.0, "in"), sku)),
            ("DELETE attributes FROM shop.products WHERE sku = ?", (sku,)),
        )
        return pick.choice(changes)

    def _deletions(self) -> Iterator[Statement]:
        pick = self._random
        for customer in pick.sample(self._customers, len(self._customers) // 10):
            yield "DELETE FROM shop.customers WHERE id = ?", (customer,)
        for key in pick.sample(self._orders, len(self._orders) // 10):
            yield "DELETE FROM shop.orders WHERE customer = ? AND placed_at = ? AND number = ?", key.values()
        for sku in pick.sample(self._skus, len(self._skus) // 10):
            yield "DELETE FROM shop.products WHERE sku = ?", (sku,)

    def _order_key(self, number: int) -> OrderKey:
        placed_at = _EPOCH + timedelta(milliseconds=self._random.randrange(300 * 86_400_000))
        return OrderKey(customer=self._random.choice(self._customers), placed_at=placed_at, number=number)

    def _money(self) -> Decimal:
        return Decimal(self._random.randrange(100, 1_000_000)).scaleb(-2)
