"""Random statements on tables that are each made for one feature of a mutation, so that every run has all of them.

Columns whose names start with `dropped_`, `again_` or `grown_` change their meaning by `ALTERATIONS`, after most of the
writes. (The names in a mutation then show its feature: `tests/oracle/features.py`.)
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

__all__ = ["FeaturedCql"]

_NARROW, _WIDE = 20, 70

_SCHEMA: Final = (
    "CREATE TABLE ks.pair_left (p text, c int, v int, PRIMARY KEY (p, c)) WITH cdc = true",
    "CREATE TABLE ks.pair_right (p text PRIMARY KEY, l list<int>) WITH cdc = false",
    "CREATE TABLE ks.counted (k int, c int, n counter, m counter, s counter static, PRIMARY KEY (k, c))",
    "CREATE TABLE ks.compact_dense (k int, a int, b text, v int, PRIMARY KEY (k, a, b))"
    " WITH COMPACT STORAGE AND cdc = true",
    "CREATE TABLE ks.compact_static (k int PRIMARY KEY, v int, w text) WITH COMPACT STORAGE AND cdc = true",
    "CREATE TABLE ks.ranges (p int, a int, b text, c bigint, v int, s int static, PRIMARY KEY (p, a, b, c))"
    " WITH cdc = true AND CLUSTERING ORDER BY (a ASC, b DESC, c ASC)",
    "CREATE TABLE ks.timed (k int, c int, v text, w text, PRIMARY KEY (k, c)) WITH cdc = true",
    "CREATE TYPE ks.address (street text, zip int, codes frozen<list<int>>)",
    "CREATE TABLE ks.parts (k int, c int, l list<text>, s set<int>, m map<text, frozen<list<int>>>, u address,"
    " t tuple<int, text>, sm map<int, int> static, PRIMARY KEY (k, c)) WITH cdc = true",
    "CREATE TYPE ks.growing (a int)",
    "CREATE TABLE ks.changed (k int, c int, kept int, dropped_int int, dropped_list list<int>, dropped_text text static,"
    " again_text ascii, again_blob text, grown_cells growing, grown_value frozen<growing>, PRIMARY KEY (k, c))"
    " WITH cdc = true",
    "CREATE TABLE ks.base (k int, c int, v int, w text, PRIMARY KEY (k, c)) WITH cdc = true",
    "CREATE MATERIALIZED VIEW ks.base_by_value AS SELECT * FROM ks.base"
    " WHERE v IS NOT NULL AND k IS NOT NULL AND c IS NOT NULL PRIMARY KEY (v, k, c)",
    "CREATE TABLE ks.indexed (k int PRIMARY KEY, v text) WITH cdc = true",
    "CREATE INDEX ON ks.indexed (v)",
    "CREATE TABLE ks.conditional (k int, c int, v int, PRIMARY KEY (k, c)) WITH cdc = true",
)

_ALTERATIONS: Final = (
    "ALTER TABLE ks.changed DROP dropped_int",
    "ALTER TABLE ks.changed DROP dropped_list",
    "ALTER TABLE ks.changed DROP dropped_text",
    "ALTER TABLE ks.changed DROP again_text",
    "ALTER TABLE ks.changed ADD again_text text",
    "ALTER TABLE ks.changed DROP again_blob",
    "ALTER TABLE ks.changed ADD again_blob blob",
    "ALTER TYPE ks.growing ADD b text",
    "ALTER TYPE ks.growing RENAME a TO renamed",
)

_VECTORS: Final = (
    "CREATE TABLE ks.vectors (k int PRIMARY KEY, f vector<float, 3>, t vector<text, 2>, n vector<vector<int, 2>, 2>)"
    " WITH cdc = true"
)


@dataclass(kw_only=True)
class FeaturedCql:
    """Statements on the tables above, in one keyspace. The same seed of `rng` gives the same CQL."""

    rng: random.Random
    keyspace: str
    with_vectors: bool
    altered: bool = False

    def schema(self) -> list[str]:
        """Statements that make the tables."""
        return self._here([*_SCHEMA, _table_of("narrow", _NARROW), _table_of("wide", _WIDE)]) + (
            self._here([_VECTORS]) if self.with_vectors else []
        )

    def alterations(self) -> list[str]:
        """Statements that change some of the tables; :meth:`write` then uses the new columns."""
        self.altered = True
        return self._here(_ALTERATIONS)

    def write(self) -> str:
        """One statement, which gives one mutation of the log and perhaps some of a view."""
        kinds: list[Callable[[], str]] = [
            self._pair,
            self._counter,
            self._compact,
            self._compact,
            self._compact,
            self._range,
            self._range,
            self._ranges,
            self._ranges,
            self._timed,
            self._parts,
            self._parts,
            self._rewritten,
            self._changed,
            self._changed,
            self._changed,
            self._viewed,
            self._indexed,
            self._conditional,
            lambda: self._subsets("narrow", _NARROW),
            lambda: self._subsets("wide", _WIDE),
        ]
        if self.with_vectors:
            kinds += [self._vector, self._vector]
        return self._here([self.rng.choice(kinds)()])[0]

    def _here(self, statements: list[str] | tuple[str, ...]) -> list[str]:
        return [statement.replace("ks.", f"{self.keyspace}.") for statement in statements]

    def _small(self) -> int:
        return self.rng.randrange(50)

    def _pair(self) -> str:
        rng, key = self.rng, f"k{self._small()}"
        left = rng.choice(
            [
                f"INSERT INTO ks.pair_left (p, c, v) VALUES ('{key}', {self._small()}, 1)",
                f"DELETE FROM ks.pair_left WHERE p = '{key}' AND c > {self._small()}",
            ]
        )
        right = rng.choice(
            [
                f"UPDATE ks.pair_right SET l = l + [{self._small()}] WHERE p = '{key}'",
                f"INSERT INTO ks.pair_right (p, l) VALUES ('{key}', [1, 2])",
                f"DELETE FROM ks.pair_right WHERE p = '{key}'",
            ]
        )
        return _batch([left, right])

    def _counter(self) -> str:
        where = f"WHERE k = {self._small()} AND c = {self._small()}"
        return self.rng.choice(
            [
                f"UPDATE ks.counted SET n = n + {self._small()}, m = m - 1 {where}",
                f"UPDATE ks.counted SET n = n - 1, s = s + 1 {where}",
                f"BEGIN COUNTER BATCH UPDATE ks.counted SET n = n + 1 {where};"
                f" UPDATE ks.counted SET m = m + 2 {where}; APPLY BATCH",
            ]
        )

    def _compact(self) -> str:
        k, a = self._small(), self._small()
        return self.rng.choice(
            [
                f"INSERT INTO ks.compact_dense (k, a, b, v) VALUES ({k}, {a}, 'x', 1)",
                f"INSERT INTO ks.compact_dense (k, a, v) VALUES ({k}, {a}, 2)",
                f"INSERT INTO ks.compact_dense (k, a, v) VALUES ({k}, {a}, {a}) USING TTL 5000",
                f"DELETE FROM ks.compact_dense WHERE k = {k} AND a = {a}",
                f"INSERT INTO ks.compact_static (k, v, w) VALUES ({k}, {a}, '')",
                f"DELETE w FROM ks.compact_static WHERE k = {k}",
            ]
        )

    def _range(self) -> str:
        rng = self.rng
        where = f"p = {self._small()} AND a = 1 AND b = {rng.choice(['', 'x', 'y'])!r}"
        bound = rng.choice(["", "", "", " AND c > 5", " AND c >= 5", " AND c < 7", " AND c > 1 AND c <= 8"])
        return rng.choice(
            [
                *([f"DELETE FROM ks.ranges WHERE {where}{bound}"] * 3),
                f"DELETE FROM ks.ranges WHERE {where} AND c = {self._small()}",
                f"INSERT INTO ks.ranges (p, a, b, c, v) VALUES ({self._small()}, 1, '', {self._small()}, 2)",
                f"UPDATE ks.ranges SET s = {self._small()} WHERE p = {self._small()}",
                f"DELETE FROM ks.ranges WHERE p = {self._small()}",
            ]
        )

    def _ranges(self) -> str:
        """Adjacent ranges with different times: one ends where the next one starts."""
        rng, key = self.rng, self._small()
        low, high = sorted(rng.sample(range(100), 2))
        ends, starts = rng.choice([("<", ">="), ("<=", ">")])
        first = rng.choice([f"a >= {low} AND a {ends} {high}", f"a > {low} AND a {ends} {high}", f"a {ends} {high}"])
        second = rng.choice(
            [
                f"a {starts} {high} AND a < 200",
                f"a {starts} {high} AND a <= 200",
                f"a {starts} {high}",
            ]
        )
        times = rng.sample(range(1, 10**6), 2)
        statements = [
            f"DELETE FROM ks.ranges USING TIMESTAMP {time} WHERE p = {key} AND {bounds}"
            for time, bounds in zip(times, (first, second), strict=True)
        ]
        if rng.random() < 0.4:
            statements.append(
                f"INSERT INTO ks.ranges (p, a, b, c, v, s) VALUES ({key}, {low}, {rng.choice(['', 'n'])!r}, 1, 1, 1)"
            )
        return _batch(statements)

    def _timed(self) -> str:
        rng, k, c = self.rng, self._small(), self._small()
        ttl = rng.choice([1, 600, 100_000])
        return rng.choice(
            [
                f"INSERT INTO ks.timed (k, c, v, w) VALUES ({k}, {c}, 'x', '') USING TTL {ttl}",
                f"UPDATE ks.timed USING TTL {ttl} SET v = 'y' WHERE k = {k} AND c = {c}",
                f"INSERT INTO ks.timed (k, c) VALUES ({k}, {c}) USING TTL {ttl}",
                _batch(
                    [
                        f"INSERT INTO ks.timed (k, c, v) VALUES ({k}, {c}, 'x') USING TIMESTAMP 50 AND TTL {ttl}",
                        f"UPDATE ks.timed USING TIMESTAMP 60 AND TTL 77 SET w = 'z' WHERE k = {k} AND c = {c}",
                    ]
                ),
            ]
        )

    def _parts(self) -> str:
        rng = self.rng
        where = f"WHERE k = {self._small()} AND c = {self._small()}"
        ttl = rng.choice(["", "", f" USING TTL {rng.randint(1, 9000)}"])
        insert = f"INSERT INTO ks.parts (k, c, l, s, m, u, t) VALUES ({self._small()}, {self._small()}"
        return rng.choice(
            [
                f"UPDATE ks.parts{ttl} SET l = l + ['z'], s = s + {{{self._small()}}}, m['y'] = [] {where}",
                f"UPDATE ks.parts{ttl} SET l = ['first'] + l, u.zip = {self._small()} {where}",
                f"UPDATE ks.parts SET s = s - {{{self._small()}}}, u.street = null {where}",
                f"DELETE m['x'], s[{self._small()}], u.zip FROM ks.parts {where}",
                f"{insert}, ['a', ''], {{1}}, {{'k': [1]}}, {{street: 's', zip: 1}}, (1, null)){ttl}",
                f"UPDATE ks.parts{ttl} SET l = ['only'], u = {{zip: 7}}, t = ({self._small()}, 'x') {where}",
                f"UPDATE ks.parts SET sm[{self._small()}] = 2 {where.partition(' AND ')[0]}",
                f"DELETE l, u, t FROM ks.parts {where}",
            ]
        )

    def _rewritten(self) -> str:
        k, c, time = self._small(), self._small(), self.rng.randrange(10**6)
        return _batch(
            [
                f"DELETE FROM ks.timed USING TIMESTAMP {time} WHERE k = {k} AND c = {c}",
                f"INSERT INTO ks.timed (k, c, v) VALUES ({k}, {c}, 'new') USING TIMESTAMP {time + self.rng.choice([1, 9])}",
            ]
        )

    def _changed(self) -> str:
        rng, k, c = self.rng, self._small(), self._small()
        where = f"WHERE k = {k} AND c = {c}"
        if self.altered:
            return rng.choice(
                [
                    f"UPDATE ks.changed SET kept = 1, again_text = 'ü', again_blob = 0xff {where}",
                    f"UPDATE ks.changed SET grown_cells.b = 'b', grown_value = {{renamed: 2, b: 'x'}} {where}",
                ]
            )
        return rng.choice(
            [
                f"INSERT INTO ks.changed (k, c, kept, dropped_int, dropped_list, again_text, again_blob)"
                f" VALUES ({k}, {c}, 1, 2, [3], '4', '5')",
                f"UPDATE ks.changed SET dropped_int = 1, dropped_list = dropped_list + [5] {where}",
                f"UPDATE ks.changed SET dropped_text = 'x' WHERE k = {k}",
                f"UPDATE ks.changed USING TIMESTAMP 4000000000000000 SET dropped_int = 5, again_text = 'late' {where}",
                f"UPDATE ks.changed SET again_text = 'a', again_blob = 'b', kept = 2 {where}",
                f"UPDATE ks.changed SET grown_cells.a = 1, grown_value = {{a: 2}} {where}",
                f"UPDATE ks.changed SET grown_cells = {{a: 3}}, kept = null {where}",
            ]
        )

    def _viewed(self) -> str:
        k, c = self._small(), self._small()
        return self.rng.choice(
            [
                f"INSERT INTO ks.base (k, c, v, w) VALUES ({k}, {c}, {self._small()}, 'x')",
                f"UPDATE ks.base USING TTL 3000 SET v = {self._small()} WHERE k = {k} AND c = {c}",
            ]
        )

    def _indexed(self) -> str:
        return f"INSERT INTO ks.indexed (k, v) VALUES ({self._small()}, 'v{self._small()}')"

    def _conditional(self) -> str:
        # A key that is used once, so that the condition holds.
        return f"INSERT INTO ks.conditional (k, c, v) VALUES ({self.rng.getrandbits(31)}, 1, 1) IF NOT EXISTS"

    def _vector(self) -> str:
        numbers = [self.rng.uniform(-9, 9) for _ in range(3)]
        texts = [self.rng.choice(["", "a", "long" * 50]) for _ in range(2)]
        return f"INSERT INTO ks.vectors (k, f, t, n) VALUES ({self._small()}, {numbers}, {texts}, [[1, 2], [3, 4]])"

    def _subsets(self, table: str, count: int) -> str:
        """Two rows that together name all columns, so that one of them has only some of the header's columns."""
        rng, key = self.rng, self._small()
        chosen = [rng.randint(1, count - 1), count]
        rows = []
        for row, size in enumerate(chosen):
            names = rng.sample(range(count), size)
            sets = ", ".join(f"v{at} = {'{1}' if at % 9 == 0 else at}" for at in names)
            rows.append(f"UPDATE ks.{table} SET {sets} WHERE k = {key} AND c = {row}")
        return _batch(rows)


def _table_of(name: str, count: int) -> str:
    columns = ", ".join(f"v{at} {'set<int>' if at % 9 == 0 else 'int'}" for at in range(count))
    return f"CREATE TABLE ks.{name} (k int, c int, {columns}, PRIMARY KEY (k, c)) WITH cdc = true"


def _batch(statements: list[str]) -> str:
    return f"BEGIN UNLOGGED BATCH {'; '.join(statements)}; APPLY BATCH"
