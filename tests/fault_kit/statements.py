"""Random statements on the workload's tables: the same seed gives the same sequence, apart from timestamps."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.fault_kit.literals import literal
from tests.fault_kit.tables import ALL_TYPES, KEYSPACE, RECREATED_FORMS, create_recreated

__all__ = ["GIVEN_TIME_MARK_US", "SHORT_TTL_S", "Statement", "StatementWriter"]

GIVEN_TIME_MARK_US: Final = 777
"""The last three digits of timestamps that statements give, in microseconds. The driver's own timestamps hardly ever
have them."""

SHORT_TTL_S: Final = (2, 8)
"""The least and the greatest short TTL, in seconds."""

_PARTITIONS: Final = 24
_ROWS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """CQL of one change. A schema change waits until all statements before it are answered, as a careful user does."""

    cql: str
    is_schema: bool = False


class StatementWriter:
    """Draws one statement after the other. `schema_every`: about how many statements are between two schema changes."""

    def __init__(self, seed: int, *, has_vectors: bool, schema_every: int = 1200) -> None:
        self._rng = random.Random(f"statements {seed}")
        self._columns = {**ALL_TYPES, **({"a_vector": "vector<float, 3>"} if has_vectors else {})}
        self._added: list[str] = []
        self._added_count = 0
        self._recreated = 0
        self._schema_every = schema_every
        self._choices: Final[list[tuple[int, Callable[[], str]]]] = [
            (20, self._everything),
            (14, self._clustered),
            (6, self._clustered_deletion),
            (6, self._batch),
            (10, self._keyed),
            (6, self._counted),
            (3, self._lease),
            (8, self._short_lived),
            (8, self._altered),
            (6, self._recreated_row),
            (4, self._only_keys),
            (5, self._mixed),
        ]

    def next(self) -> Statement:
        """The next statement."""
        if self._rng.random() < 1 / self._schema_every:
            return Statement(cql=self._schema_change(), is_schema=True)
        weights = [weight for weight, _ in self._choices]
        (chosen,) = self._rng.choices(self._choices, weights)
        return Statement(cql=chosen[1]())

    def created_again(self) -> Statement:
        """The CREATE that follows the DROP of `recreated`."""
        self._recreated += 1
        return Statement(cql=create_recreated(self._recreated), is_schema=True)

    def closing(self) -> list[Statement]:
        """A last row for each table, which marks the end on each topic."""
        statements = [
            "UPDATE {k}.everything SET v_int = 1 WHERE pk = -1 AND ck = -1",
            "INSERT INTO {k}.keyed (a, b, c, d, e, f, n) VALUES ('', 0, '2000-01-01', 0, 0, '::1', 1)",
            "UPDATE {k}.clustered SET w = 1 WHERE pk = -1 AND c1 = 0 AND c2 = ''",
            "UPDATE {k}.counted SET n = n + 1 WHERE pk = -1 AND ck = 0",
            "INSERT INTO {k}.leases (id, owner) VALUES (-1, '')",
            "INSERT INTO {k}.short_lived (pk, ck, v) VALUES (-1, 0, '')",
            "INSERT INTO {k}.altered (id, v) VALUES (-1, '')",
            "INSERT INTO {k}.recreated (id) VALUES (-1)",
            "INSERT INTO {k}.only_keys (a, b) VALUES (-1, '')",
            'INSERT INTO {k}.mixed ("Pk") VALUES (-1)',
        ]
        return [Statement(cql=each.replace("{k}", KEYSPACE)) for each in statements]

    def _pk(self) -> int:
        return self._rng.randrange(_PARTITIONS)

    def _ck(self) -> int:
        return self._rng.randrange(_ROWS)

    def _using(self) -> str:
        """Mostly nothing; sometimes a timestamp of some seconds ago or ahead, or a long TTL."""
        choice = self._rng.random()
        if choice < 0.1:
            return f" USING {self._timestamp()}"
        return " USING TTL 864000" if choice < 0.15 else ""

    def _timestamp(self) -> str:
        at_us = int((time.time() + self._rng.uniform(-20, 5)) * 1000) * 1000 + GIVEN_TIME_MARK_US
        return f"TIMESTAMP {at_us}"

    def _everything(self) -> str:
        rng = self._rng
        where = f"WHERE pk = {self._pk()} AND ck = {self._ck()}"
        chosen = rng.sample(sorted(self._columns), rng.randint(1, 6))
        if rng.random() < 0.08:
            return f"DELETE {', '.join(chosen)} FROM {KEYSPACE}.everything {where}"
        if rng.random() < 0.08:
            return f"DELETE FROM {KEYSPACE}.everything {where}"
        if rng.random() < 0.2:
            return f"UPDATE {KEYSPACE}.everything SET {self._collection_change()} {where}"
        if rng.random() < 0.15:
            point = f"{{x: {literal('double', rng)}, label: {literal('text', rng)}}}"
            change = rng.choice([f"place = {point}", f"place.label = {literal('text', rng)}", f"places = [{point}]"])
            return f"UPDATE {KEYSPACE}.everything{self._using()} SET {change} {where}"
        changes = ", ".join(f"{name} = {self._literal(self._columns[name])}" for name in chosen)
        return f"UPDATE {KEYSPACE}.everything{self._using()} SET {changes} {where}"

    def _literal(self, cql_type: str) -> str:
        return "null" if self._rng.random() < 0.1 else literal(cql_type, self._rng)

    def _collection_change(self) -> str:
        number = self._rng.randint(0, 9)
        return self._rng.choice(
            [
                f"list_int = list_int + [{number}]",
                f"list_int = [{number}] + list_int",
                f"set_text = set_text + {{'{number}'}}",
                f"set_text = set_text - {{'{number}'}}",
                f"map_text['{number}'] = {number}",
                f"map_text = map_text - {{'{number}'}}",
            ]
        )

    def _clustered(self) -> str:
        rng = self._rng
        if rng.random() < 0.2:
            change = rng.choice(
                [f"s1 = '{rng.random()}'", f"s2 = {rng.randint(0, 99)}", "s1 = null", "s1 = '', s2 = 1"]
            )
            return f"UPDATE {KEYSPACE}.clustered SET {change} WHERE pk = {self._pk()}"
        row = f"{self._pk()}, {self._ck()}, '{rng.randint(0, 3)}'"
        if rng.random() < 0.3:
            return (
                f"INSERT INTO {KEYSPACE}.clustered (pk, c1, c2, v, s2) VALUES ({row}, 'v{rng.random()}', {self._ck()})"
            )
        return f"INSERT INTO {KEYSPACE}.clustered (pk, c1, c2, w, l) VALUES ({row}, {rng.randint(0, 9)}, [{self._ck()}]){self._using()}"

    def _clustered_deletion(self) -> str:
        rng = self._rng
        pk, c1 = self._pk(), self._ck()
        scope = rng.choice(
            [
                f"pk = {pk}",
                f"pk = {pk} AND c1 = {c1}",
                f"pk = {pk} AND c1 > {c1}",
                f"pk = {pk} AND c1 >= {c1} AND c1 < {c1 + 3}",
                f"pk = {pk} AND c1 = {c1} AND c2 > '1'",
                f"pk = {pk} AND c1 = {c1} AND c2 = '1'",
                f"pk = {pk} AND c1 = {c1} AND c2 = '2'",
            ]
        )
        using = f" USING {self._timestamp()}" if rng.random() < 0.2 else ""
        return f"DELETE FROM {KEYSPACE}.clustered{using} WHERE {scope}"

    def _batch(self) -> str:
        rng = self._rng
        pk, text = self._pk(), f"'b{rng.random()}'"
        rows = [
            f"INSERT INTO {KEYSPACE}.clustered (pk, c1, c2, v) VALUES ({pk}, {self._ck()}, '0', {text})",
            f"INSERT INTO {KEYSPACE}.untracked (pk, ck, v) VALUES ({pk}, {self._ck()}, {text})",
            f"INSERT INTO {KEYSPACE}.short_lived (pk, ck, v) VALUES ({pk}, {self._ck()}, {text})",
            f"DELETE FROM {KEYSPACE}.clustered WHERE pk = {pk} AND c1 = {self._ck()}",
            f"UPDATE {KEYSPACE}.clustered SET s1 = {text} WHERE pk = {pk}",
        ]
        kind = rng.choice(["UNLOGGED ", ""])
        return f"BEGIN {kind}BATCH {'; '.join(rng.sample(rows, rng.randint(2, 4)))}; APPLY BATCH"

    def _keyed(self) -> str:
        rng = self._rng
        a, b = f"'{rng.choice('xyz')}'", rng.choice([-300, 0, 7])
        c, d = rng.choice(["'1969-12-31'", "'2024-02-29'"]), rng.choice([-(10**20), 0, 10**20])
        e, f = rng.choice([-1, 0, 10**12]), rng.choice(["'10.0.0.1'", "'2001:db8::1'"])
        if rng.random() < 0.2:
            return f"DELETE FROM {KEYSPACE}.keyed WHERE a = {a} AND b = {b} AND c = {c} AND d = {d} AND e = {e} AND f = {f}"
        if rng.random() < 0.04:
            return f"DELETE FROM {KEYSPACE}.keyed WHERE a = {a} AND b = {b}"
        values = f"{a}, {b}, {c}, {d}, {e}, {f}, {literal('text', rng)}, {rng.randint(0, 99)}"
        return f"INSERT INTO {KEYSPACE}.keyed (a, b, c, d, e, f, v, n) VALUES ({values}){self._using()}"

    def _counted(self) -> str:
        return f"UPDATE {KEYSPACE}.counted SET n = n + {self._rng.randint(-5, 9)} WHERE pk = {self._pk()} AND ck = {self._ck()}"

    def _lease(self) -> str:
        pk, owner = self._pk(), f"'owner-{self._rng.randint(0, 9)}'"
        return self._rng.choice(
            [
                f"INSERT INTO {KEYSPACE}.leases (id, owner, version) VALUES ({pk}, {owner}, 1) IF NOT EXISTS",
                f"UPDATE {KEYSPACE}.leases SET owner = {owner}, version = 2 WHERE id = {pk} IF version = 1",
                f"DELETE FROM {KEYSPACE}.leases WHERE id = {pk} IF version = 2",
            ]
        )

    def _short_lived(self) -> str:
        rng = self._rng
        where = f"WHERE pk = {self._pk()} AND ck = {self._ck()}"
        ttl = f"USING TTL {rng.randint(*SHORT_TTL_S)}"
        return rng.choice(
            [
                f"UPDATE {KEYSPACE}.short_lived {ttl} SET v = 'short {rng.random()}' {where}",
                f"UPDATE {KEYSPACE}.short_lived {ttl} SET w = {rng.randint(0, 99)} {where}",
                f"UPDATE {KEYSPACE}.short_lived SET v = 'long {rng.random()}' {where}",
                f"INSERT INTO {KEYSPACE}.short_lived (pk, ck, v) VALUES ({self._pk()}, {self._ck()}, 'row') {ttl}",
                f"DELETE w FROM {KEYSPACE}.short_lived {where}",
            ]
        )

    def _altered(self) -> str:
        values = [f"v = 'v{self._rng.random()}'", *(f"{name} = {self._rng.randint(0, 99)}" for name in self._added)]
        changes = ", ".join(self._rng.sample(values, self._rng.randint(1, len(values))))
        return f"UPDATE {KEYSPACE}.altered SET {changes} WHERE id = {self._pk()}"

    def _recreated_row(self) -> str:
        columns = dict(each.split(" ") for each in RECREATED_FORMS[self._recreated % len(RECREATED_FORMS)].split(", "))
        if self._rng.random() < 0.1:
            return f"DELETE FROM {KEYSPACE}.recreated WHERE id = {self._pk()}"
        values = ", ".join(literal(cql_type, self._rng) for cql_type in columns.values())
        return f"INSERT INTO {KEYSPACE}.recreated (id, {', '.join(columns)}) VALUES ({self._pk()}, {values})"

    def _only_keys(self) -> str:
        key = (self._pk(), f"'{self._rng.randint(0, 9)}'")
        if self._rng.random() < 0.3:
            return f"DELETE FROM {KEYSPACE}.only_keys WHERE a = {key[0]} AND b = {key[1]}"
        return f"INSERT INTO {KEYSPACE}.only_keys (a, b) VALUES ({key[0]}, {key[1]})"

    def _mixed(self) -> str:
        values = f"{self._pk()}, 'm{self._rng.random()}', 'c'"
        return f'INSERT INTO {KEYSPACE}.mixed ("Pk", "a b", "Class") VALUES ({values})'

    def _schema_change(self) -> str:
        choice = self._rng.random()
        if choice < 0.4 and self._added:
            return f"ALTER TABLE {KEYSPACE}.altered DROP {self._added.pop(0)}"
        if choice < 0.75:
            self._added_count += 1
            self._added.append(f"added_{self._added_count}")
            return f"ALTER TABLE {KEYSPACE}.altered ADD {self._added[-1]} int"
        return f"DROP TABLE {KEYSPACE}.recreated"
