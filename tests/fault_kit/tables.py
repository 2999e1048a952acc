"""The workload's tables: all types, keys of many types, static columns, counters, TTLs, schema changes, and a table
without CDC."""

from __future__ import annotations

from typing import Final

from tests.fault_kit.literals import NATIVE_TYPES

__all__ = [
    "ALL_TYPES",
    "KEYSPACE",
    "PARTITIONED",
    "RECREATED",
    "RECREATED_FORMS",
    "TRACKED",
    "TRUNCATED",
    "UNTRACKED",
    "create_recreated",
    "role_statements",
    "schema_statements",
]

KEYSPACE: Final = "faults"

ALL_TYPES: Final[dict[str, str]] = {
    **{f"v_{name}": name for name in NATIVE_TYPES},
    "list_int": "list<int>",
    "list_timestamp": "list<timestamp>",
    "list_inet": "list<inet>",
    "set_text": "set<text>",
    "set_date": "set<date>",
    "map_text": "map<text, smallint>",
    "map_uuid": "map<uuid, decimal>",
    "map_frozen": "map<int, frozen<list<bigint>>>",
    "frozen_set": "frozen<set<varint>>",
    "a_tuple": "tuple<int, text, tinyint>",
}
"""Columns of `everything`, frozen and multi-cell, without its columns of a user type and its vector."""

RECREATED: Final = "recreated"
"""The table that is dropped and created again."""

TRACKED: Final = (
    "everything",
    "keyed",
    "clustered",
    "counted",
    "leases",
    "short_lived",
    "altered",
    RECREATED,
    "only_keys",
    "mixed",
)
"""Tables with `cdc = true`."""

PARTITIONED: Final = ("everything", "keyed", "clustered", "short_lived", RECREATED)
"""Tables whose data topic is created with one partition, and gets more. Pulsar creates the other tables' topics
itself."""

TRUNCATED: Final = ("only_keys", "mixed")
"""Tables that are truncated. No statement writes to them with its own timestamp: by the contract, a row with a
timestamp later than the truncation stays on the data topic. Their events topics are not deleted, because the message of
a truncation would be lost."""

UNTRACKED: Final = "untracked"
"""A table without CDC, which is written in batches together with tables with CDC."""

RECREATED_FORMS: Final = ("v int", "v text, w set<int>", "v list<text>, x double")
"""The columns of `recreated` behind its key: each time it is created again, the next form is used."""

_FORMS: Final[dict[str, str]] = {
    "keyed": "a text, b smallint, c date, d varint, e timestamp, f inet, v text, n int,"
    " PRIMARY KEY ((a, b), c, d, e, f)) WITH CLUSTERING ORDER BY (c DESC, d ASC, e DESC, f ASC) AND cdc = true",
    "clustered": "pk int, c1 int, c2 text, s1 text static, s2 int static, v text, w int, l list<int>,"
    " PRIMARY KEY (pk, c1, c2)) WITH CLUSTERING ORDER BY (c1 DESC, c2 ASC) AND cdc = true",
    "counted": "pk int, ck int, n counter, PRIMARY KEY (pk, ck)) WITH cdc = true",
    "leases": "id int PRIMARY KEY, owner text, version int) WITH cdc = true",
    "short_lived": "pk int, ck int, v text, w int, PRIMARY KEY (pk, ck)) WITH cdc = true AND gc_grace_seconds = 864000",
    "altered": "id int PRIMARY KEY, v text) WITH cdc = true",
    "only_keys": "a int, b text, PRIMARY KEY (a, b)) WITH cdc = true",
    "mixed": '"Pk" int, "a b" text, "Class" text, PRIMARY KEY ("Pk")) WITH cdc = true',
    UNTRACKED: "pk int, ck int, v text, PRIMARY KEY (pk, ck)) WITH cdc = false",
}


def schema_statements(nodes: int, *, has_vectors: bool) -> list[str]:
    """CQL that creates the keyspace, with a replica on each of the nodes, and its tables."""
    columns = ", ".join(f"{name} {cql_type}" for name, cql_type in ALL_TYPES.items())
    vector = ", a_vector vector<float, 3>" if has_vectors else ""
    return [
        f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': {nodes}}}",
        f"CREATE TYPE {KEYSPACE}.point (x double, label text)",
        f"CREATE TABLE {KEYSPACE}.everything (pk int, ck int, {columns}, place point, places list<frozen<point>>{vector},"
        " PRIMARY KEY (pk, ck)) WITH cdc = true",
        *(f"CREATE TABLE {KEYSPACE}.{name} ({form}" for name, form in _FORMS.items()),
        create_recreated(0),
    ]


def role_statements(name: str, password: str) -> list[str]:
    """CQL that creates a role that may only read the keyspace."""
    return [
        f"CREATE ROLE {name} WITH LOGIN = true AND PASSWORD = '{password}'",
        f"GRANT SELECT ON KEYSPACE {KEYSPACE} TO {name}",
    ]


def create_recreated(turn: int) -> str:
    """CQL that creates `recreated`. `turn`: how often it was created before."""
    form = RECREATED_FORMS[turn % len(RECREATED_FORMS)]
    return f"CREATE TABLE {KEYSPACE}.{RECREATED} (id int PRIMARY KEY, {form}) WITH cdc = true"
