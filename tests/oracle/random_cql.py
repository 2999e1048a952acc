"""Random schemas and statements. The same seed gives the same CQL, so that a failure can be repeated."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.cql.type_text import split_arguments
from tests.oracle.cql_values import RandomTypes
from tests.oracle.featured_cql import FeaturedCql

__all__ = ["RandomCql", "random_cql"]

_TABLES = 8
# Share of the writes to tables with random columns, and share of all writes before the tables are altered.
_GENERAL = 0.35
_BEFORE = 0.7


@dataclass(frozen=True, kw_only=True)
class RandomCql:
    """CQL in four parts, which run one after the other; the writes of a part run in any order."""

    schema: list[str]
    writes: list[str]
    alterations: list[str]
    later_writes: list[str]


@dataclass(frozen=True, kw_only=True)
class _Table:
    name: str
    partition_key: dict[str, str]
    clustering: dict[str, str]
    static: dict[str, str]
    regular: dict[str, str]

    @property
    def columns(self) -> dict[str, str]:
        return self.static | self.regular


def random_cql(seed: int, keyspace: str, count: int, *, with_vectors: bool) -> RandomCql:
    """CQL that makes a keyspace, and about `count` statements that write to it."""
    rng = random.Random(seed)
    types = RandomTypes(rng=rng, with_vectors=with_vectors)
    schema = [f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"]
    for index in range(3):
        fields = [types.element_type() for _ in range(rng.randint(1, 6))]
        text = ", ".join(f"f{at} {each}" for at, each in enumerate(fields))
        schema.append(f"CREATE TYPE {keyspace}.udt{index} ({text})")
        types.user_types[f"udt{index}"] = fields
    tables = [_random_table(types, index) for index in range(_TABLES)]
    schema += [_create(keyspace, table, types) for table in tables]
    featured = FeaturedCql(rng=rng, keyspace=keyspace, with_vectors=with_vectors)

    def writes(share: float) -> list[str]:
        return [
            _write_somewhere(keyspace, rng.choice(tables), types) if rng.random() < _GENERAL else featured.write()
            for _ in range(round(count * share))
        ]

    return RandomCql(
        schema=schema + featured.schema(),
        writes=writes(_BEFORE),
        alterations=featured.alterations(),
        later_writes=writes(1 - _BEFORE),
    )


def _random_table(types: RandomTypes, index: int) -> _Table:
    rng = types.rng
    clustering = rng.choice([0, 1, 1, 2, 3])
    regular = rng.choice([0, 1, 5, 12, 40, 63, 64, 65, 90])
    static = rng.choice([0, 0, 1, 4]) if clustering else 0
    return _Table(
        name=f"t{index}",
        partition_key={f"p{at}": types.key_type() for at in range(rng.choice([1, 1, 2, 3]))},
        clustering={f"c{at}": types.key_type() for at in range(clustering)},
        static={f"s{at}": types.column_type() for at in range(static)},
        regular={f"r{at}": types.column_type() for at in range(regular)},
    )


def _create(keyspace: str, table: _Table, types: RandomTypes) -> str:
    rng = types.rng
    parts = [f"{name} {kind}" for name, kind in (table.partition_key | table.clustering | table.regular).items()]
    parts += [f"{name} {kind} STATIC" for name, kind in table.static.items()]
    rng.shuffle(parts)
    key = f"({', '.join(table.partition_key)})"
    parts.append(f"PRIMARY KEY ({', '.join([key, *table.clustering])})")
    options = ["cdc = true"] if rng.random() < 0.8 else ["cdc = false"]
    if rng.random() < 0.2:
        options.append(f"default_time_to_live = {rng.randint(100, 100_000)}")
    if table.clustering:
        order = ", ".join(f"{name} {rng.choice(['ASC', 'DESC'])}" for name in table.clustering)
        options.append(f"CLUSTERING ORDER BY ({order})")
    return f"CREATE TABLE {keyspace}.{table.name} ({', '.join(parts)}) WITH {' AND '.join(options)}"


def _write_somewhere(keyspace: str, table: _Table, types: RandomTypes) -> str:
    rng = types.rng
    if rng.random() < 0.85:
        return _write(f"{keyspace}.{table.name}", table, types)
    # Several changes of one partition come in one partition update, also overlapping ranges and overwritten cells.
    key = _partition(table, types)
    statements = [_write(f"{keyspace}.{table.name}", table, types, key) for _ in range(rng.randint(2, 6))]
    return f"BEGIN {rng.choice(['UNLOGGED ', ''])}BATCH {'; '.join(statements)}; APPLY BATCH"


def _write(target: str, table: _Table, types: RandomTypes, key: list[str] | None = None) -> str:
    rng = types.rng
    key = key or _partition(table, types)
    kinds = ["insert", "insert", "update", "update", "cells", "row", "partition"]
    kinds += ["range", "range"] if table.clustering else []
    kinds += ["static"] if table.static else []
    kind = rng.choice(kinds)
    if kind == "insert":
        return _insert(target, table, types, key)
    if kind in {"update", "static"} and (columns := table.static if kind == "static" else table.regular):
        where = key if kind == "static" else key + _where(table.clustering, types)
        changes = [_assignment(name, columns[name], types) for name in _some(rng, columns)]
        return f"UPDATE {target}{_using(rng)} SET {', '.join(changes)} WHERE {' AND '.join(where)}"
    if kind == "cells" and table.regular:
        where = key + _where(table.clustering, types)
        removed = [_removal(name, table.regular[name], types) for name in _some(rng, table.regular)]
        return f"DELETE {', '.join(removed)} FROM {target}{_using_timestamp(rng)} WHERE {' AND '.join(where)}"
    where = list(key)
    if kind == "range":
        where += _range(table, types)
    elif kind != "partition":
        where += _where(table.clustering, types)
    return f"DELETE FROM {target}{_using_timestamp(rng)} WHERE {' AND '.join(where)}"


def _insert(target: str, table: _Table, types: RandomTypes, key: list[str]) -> str:
    pairs = [text.split(" = ", 1) for text in key + _where(table.clustering, types)]
    for name in _some(types.rng, table.columns) if table.columns else []:
        value = "null" if types.rng.random() < 0.1 else types.literal(table.columns[name])
        pairs.append([name, value])
    names, values = zip(*pairs, strict=True)
    return f"INSERT INTO {target} ({', '.join(names)}) VALUES ({', '.join(values)}){_using(types.rng)}"


def _assignment(name: str, cql_type: str, types: RandomTypes) -> str:
    """The SET of one column: a new value, or a change of some elements."""
    rng = types.rng
    outer, arguments = split_arguments(cql_type)
    value = "null" if rng.random() < 0.1 else types.literal(cql_type)
    if rng.random() < 0.5:
        return f"{name} = {value}"
    match outer:
        case "list" if value != "null":
            return f"{name} = {value} + {name}" if rng.random() < 0.5 else f"{name} = {name} + {value}"
        case "set" if value != "null":
            return f"{name} = {name} {rng.choice('+-')} {value}"
        case "map":
            element = "null" if rng.random() < 0.3 else types.literal(arguments[1])
            return f"{name}[{types.literal(arguments[0])}] = {element}"
        case _ if outer in types.user_types:
            at = rng.randrange(len(types.user_types[outer]))
            return f"{name}.f{at} = {types.literal(types.user_types[outer][at])}"
        case _:
            return f"{name} = {value}"


def _removal(name: str, cql_type: str, types: RandomTypes) -> str:
    outer, arguments = split_arguments(cql_type)
    if outer in {"map", "set"} and types.rng.random() < 0.5:
        return f"{name}[{types.literal(arguments[0])}]"
    if outer in types.user_types and types.rng.random() < 0.5:
        return f"{name}.f{types.rng.randrange(len(types.user_types[outer]))}"
    return name


def _range(table: _Table, types: RandomTypes) -> list[str]:
    """Some clustering columns by value, and the next one by bounds, on one side or on both."""
    rng = types.rng
    names = list(table.clustering)
    depth = rng.randrange(len(names))
    where = _where({name: table.clustering[name] for name in names[:depth]}, types)
    if depth == 0 and rng.random() < 0.2:
        return where + _where({names[0]: table.clustering[names[0]]}, types)
    bounds = [f"{names[depth]} {rng.choice(['>', '>='])} {types.literal(table.clustering[names[depth]])}"]
    bounds.append(f"{names[depth]} {rng.choice(['<', '<='])} {types.literal(table.clustering[names[depth]])}")
    return where + rng.choice([bounds, bounds[:1], bounds[1:]])


def _partition(table: _Table, types: RandomTypes) -> list[str]:
    """A partition key that Cassandra accepts: a single column must not be empty."""
    while (where := _where(table.partition_key, types))[0].endswith((" = ''", " = 0x")) and len(where) == 1:
        pass
    return where


def _where(columns: dict[str, str], types: RandomTypes) -> list[str]:
    return [f"{name} = {_key_literal(cql_type, types)}" for name, cql_type in columns.items()]


def _key_literal(cql_type: str, types: RandomTypes) -> str:
    """One of few literals, so that statements hit the same partitions and rows."""
    few = random.Random(f"{cql_type} {types.rng.randrange(4)}")
    return RandomTypes(rng=few, with_vectors=types.with_vectors, user_types=types.user_types).literal(cql_type)


def _some(rng: random.Random, columns: dict[str, str]) -> list[str]:
    """At least one column; most often few, sometimes all."""
    names = list(columns)
    return rng.sample(names, rng.choice([1, min(3, len(names)), rng.randint(1, len(names)), len(names)]))


def _using(rng: random.Random) -> str:
    options = ["TTL " + str(rng.choice([0, 1, 60, 100_000]))] if rng.random() < 0.25 else []
    options += [_timestamp(rng)] if rng.random() < 0.25 else []
    return f" USING {' AND '.join(options)}" if options else ""


def _using_timestamp(rng: random.Random) -> str:
    return f" USING {_timestamp(rng)}" if rng.random() < 0.25 else ""


def _timestamp(rng: random.Random) -> str:
    return f"TIMESTAMP {rng.choice([-1, 0, 1, 2**62, -(2**62), rng.randint(10**15, 2 * 10**15)])}"
