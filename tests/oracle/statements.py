"""CQL for every kind of content that a mutation can have, on tables of one keyspace that the caller names.

Statements stand in order: schema changes in between are part of what is tested.
"""

from __future__ import annotations

from typing import Final

__all__ = ["statements"]

_NATIVE_VALUES: Final = {
    "ascii": "'abc'",
    "bigint": "-5000000000",
    "blob": "0xcafe00",
    "boolean": "true",
    "date": "'1969-12-31'",
    "decimal": "-1.50",
    "double": "1e-300",
    "duration": "1mo2d3ns",
    "float": "-0.0",
    "inet": "'2001:db8::1'",
    "int": "-70000",
    "smallint": "-300",
    "text": "'snow ☃ 𝄞'",
    "time": "'01:02:03.123456789'",
    "timestamp": "1609459200123",
    "timeuuid": "50554d6e-29bb-11e5-b345-feff819cdc9f",
    "tinyint": "-5",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "varint": "-123456789012345678901234567890",
}


def statements(keyspace: str, *, with_vectors: bool, beyond_2038: bool = False) -> list[str]:
    """All statements, for a keyspace that does not exist yet. Only logs of version 8 have times beyond 2038."""
    written = [*_types(), *_deletions(), *_batches(), *_counters(), *_wide(), *_compact(), *_alterations(), *_others()]
    if with_vectors:
        written += _vectors()
    if beyond_2038:
        written += _long_lived()
    create = f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    return [create, *(statement.replace("ks.", f"{keyspace}.") for statement in written)]


def _types() -> list[str]:
    columns = ", ".join(f"v_{name} {name}" for name in _NATIVE_VALUES)
    names = ", ".join(f"v_{name}" for name in _NATIVE_VALUES)
    found = [
        f"CREATE TABLE ks.natives (k int PRIMARY KEY, {columns}) WITH cdc = true",
        f"INSERT INTO ks.natives (k, {names}) VALUES (1, {', '.join(_NATIVE_VALUES.values())})",
        "INSERT INTO ks.natives (k) VALUES (2)",
        *(f"UPDATE ks.natives SET v_{name} = null WHERE k = 3" for name in _NATIVE_VALUES),
        # Values without bytes, which most types allow.
        "INSERT INTO ks.natives (k, v_int, v_bigint, v_boolean, v_double, v_timestamp)"
        " VALUES (4, blobAsInt(0x), blobAsBigint(0x), blobAsBoolean(0x), blobAsDouble(0x), blobAsTimestamp(0x))",
        "INSERT INTO ks.natives (k, v_text, v_blob, v_ascii, v_uuid, v_varint)"
        " VALUES (5, '', 0x, '', blobAsUuid(0x), blobAsVarint(0x))",
    ]
    for name, value in _NATIVE_VALUES.items():
        if name == "duration":
            continue
        found += [
            f"CREATE TABLE ks.by_{name} (p {name}, c {name}, v {name}, PRIMARY KEY (p, c))"
            " WITH cdc = true AND CLUSTERING ORDER BY (c DESC)",
            f"INSERT INTO ks.by_{name} (p, c, v) VALUES ({value}, {value}, {value})",
            f"DELETE FROM ks.by_{name} WHERE p = {value} AND c >= {value}",
        ]
    found += [
        "CREATE TYPE ks.inner_type (n int, d decimal)",
        "CREATE TYPE ks.address (street text, zip int, codes frozen<list<int>>, i frozen<inner_type>)",
        "CREATE TABLE ks.collections (k int, c int, l list<text>, s set<int>, m map<text, frozen<list<int>>>,"
        " fl frozen<list<text>>, fs frozen<set<int>>, fm frozen<map<text, int>>, u address, fu frozen<address>,"
        " t tuple<int, text>, tt frozen<tuple<int, frozen<tuple<text, uuid>>>>, lu list<frozen<address>>,"
        " md map<date, time>, st static, sm map<int, int> static, su address static, PRIMARY KEY (k, c))"
        " WITH cdc = true".replace("st static", "st text static"),
        "INSERT INTO ks.collections (k, c, l, s, m, fl, fs, fm) VALUES"
        " (1, 1, ['a', 'b'], {3, 1}, {'x': [1, 2]}, ['a', ''], {1}, {'q': 1})",
        "INSERT INTO ks.collections (k, c, l, u, fu, t, tt, lu, md) VALUES (1, 2, ['a', 'b'], {street: 'x', zip: 1},"
        " {street: 'x', codes: [1], i: {n: 1, d: 1.5}}, (1, null), (1, ('a', null)), [{zip: 5}, {street: ''}],"
        " {'2020-01-01': '10:00:00'})",
        "UPDATE ks.collections SET l = l + ['z'], s = s - {3}, m['y'] = [], u.zip = 7 WHERE k = 1 AND c = 1",
        "UPDATE ks.collections SET l = ['first'] + l, u.street = null WHERE k = 1 AND c = 1",
        "UPDATE ks.collections SET l = [], s = {}, m = {}, u = null, fl = null WHERE k = 1 AND c = 1",
        "UPDATE ks.collections SET sm[1] = 2, st = 'static', su.zip = 3 WHERE k = 1",
        "UPDATE ks.collections SET sm = {1: 1}, su = {zip: 1} WHERE k = 2",
        "DELETE m['x'], s[1], u.zip FROM ks.collections WHERE k = 1 AND c = 1",
        "DELETE l, s, m, u, fl, t FROM ks.collections WHERE k = 1 AND c = 1",
        "DELETE st, sm[1], su FROM ks.collections WHERE k = 1",
        "INSERT INTO ks.collections (k, c, l, st) VALUES (1, 3, ['ttl'], 'ttl') USING TTL 500 AND TIMESTAMP 1500",
        "UPDATE ks.collections USING TTL 700 SET l = l + ['t'], m['t'] = [9], u.zip = 8 WHERE k = 1 AND c = 3",
        "UPDATE ks.collections SET l[0] = 'changed' WHERE k = 1 AND c = 2",
        "DELETE l[1] FROM ks.collections WHERE k = 1 AND c = 2",
    ]
    return found


def _deletions() -> list[str]:
    table = "DELETE FROM ks.ranges WHERE p = 1"
    return [
        "CREATE TABLE ks.ranges (p int, a int, b text, c bigint, v int, s int static, PRIMARY KEY (p, a, b, c))"
        " WITH cdc = true AND CLUSTERING ORDER BY (a ASC, b DESC, c ASC)",
        "INSERT INTO ks.ranges (p, a, b, c, v, s) VALUES (1, 1, '', 1, 1, 1)",
        "INSERT INTO ks.ranges (p, a, b, c) VALUES (1, 1, 'x', 2) USING TTL 3600",
        "UPDATE ks.ranges SET v = 5 WHERE p = 1 AND a = 1 AND b = 'x' AND c = 3",
        "DELETE v FROM ks.ranges WHERE p = 1 AND a = 1 AND b = 'x' AND c = 3",
        f"{table} AND a = 1 AND b = 'x' AND c = 3",
        f"{table} AND a = 1 AND b = 'x'",
        f"{table} AND a = 1",
        f"{table} AND a > 1",
        f"{table} AND a >= 1 AND a < 9",
        f"{table} AND a < 3",
        f"{table} AND a = 1 AND b > 'a'",
        f"{table} AND a = 1 AND b >= '' AND b <= 'z'",
        f"{table} AND a = 1 AND b = '' AND c > 0",
        f"{table} AND a = 1 AND b = 'x' AND c <= -1",
        f"{table} AND (a, b) > (1, 'x')",
        f"{table} AND (a, b, c) >= (1, 'x', 5) AND (a) < (7)",
        f"{table} AND a IN (1, 2) AND b = 'q'",
        table,
        "DELETE FROM ks.ranges USING TIMESTAMP -9 WHERE p = 2",
        "DELETE s FROM ks.ranges WHERE p = 3",
        # Boundaries: two ranges touch, and one range covers another one with a different time.
        "BEGIN UNLOGGED BATCH"
        " DELETE FROM ks.ranges USING TIMESTAMP 10 WHERE p = 4 AND a >= 1 AND a < 5;"
        " DELETE FROM ks.ranges USING TIMESTAMP 20 WHERE p = 4 AND a >= 5 AND a <= 9;"
        " DELETE FROM ks.ranges USING TIMESTAMP 30 WHERE p = 4 AND a > 9;"
        " APPLY BATCH",
        "BEGIN UNLOGGED BATCH"
        " DELETE FROM ks.ranges USING TIMESTAMP 10 WHERE p = 5 AND a > 1;"
        " DELETE FROM ks.ranges USING TIMESTAMP 20 WHERE p = 5 AND a > 3 AND a <= 4;"
        " DELETE FROM ks.ranges USING TIMESTAMP 5 WHERE p = 5;"
        " INSERT INTO ks.ranges (p, a, b, c, v) VALUES (5, 2, 'new', 1, 1);"
        " INSERT INTO ks.ranges (p, a, b, c, v) VALUES (5, 4, 'new', 1, 1);"
        " UPDATE ks.ranges SET s = 1 WHERE p = 5;"
        " APPLY BATCH",
    ]


def _batches() -> list[str]:
    return [
        "CREATE TABLE ks.left_side (k text, c int, v int, PRIMARY KEY (k, c)) WITH cdc = true",
        "CREATE TABLE ks.right_side (k text PRIMARY KEY, v list<int>) WITH cdc = false",
        "CREATE TABLE ks.third_side (k text PRIMARY KEY, v text) WITH cdc = true AND default_time_to_live = 900",
        "BEGIN BATCH INSERT INTO ks.left_side (k, c, v) VALUES ('a', 1, 1);"
        " INSERT INTO ks.right_side (k, v) VALUES ('a', [1, 2]); UPDATE ks.third_side SET v = 'x' WHERE k = 'a';"
        " INSERT INTO ks.left_side (k, c, v) VALUES ('b', 1, 1); APPLY BATCH",
        "BEGIN UNLOGGED BATCH DELETE FROM ks.right_side WHERE k = 'a'; DELETE FROM ks.third_side WHERE k = 'a';"
        " DELETE FROM ks.left_side WHERE k = 'a' AND c > 0; APPLY BATCH",
        # Rows that are deleted and written again, with a later and with an earlier time.
        "BEGIN BATCH DELETE FROM ks.left_side USING TIMESTAMP 100 WHERE k = 'c' AND c = 1;"
        " INSERT INTO ks.left_side (k, c, v) VALUES ('c', 1, 1) USING TIMESTAMP 101;"
        " DELETE FROM ks.left_side USING TIMESTAMP 100 WHERE k = 'c' AND c = 2;"
        " INSERT INTO ks.left_side (k, c, v) VALUES ('c', 2, 1) USING TIMESTAMP 99;"
        " INSERT INTO ks.left_side (k, c, v) VALUES ('c', 3, 1) USING TIMESTAMP 50 AND TTL 10;"
        " UPDATE ks.left_side USING TIMESTAMP 60 AND TTL 20 SET v = 2 WHERE k = 'c' AND c = 3; APPLY BATCH",
        "INSERT INTO ks.third_side (k, v) VALUES ('t', 'x') USING TTL 0",
        "INSERT INTO ks.left_side (k, c, v) VALUES ('d', 1, 1) USING TIMESTAMP 9223372036854775807",
        "INSERT INTO ks.left_side (k, c, v) VALUES ('d', 1, 1) USING TIMESTAMP -9223372036854775807",
        "INSERT INTO ks.left_side (k, c, v) VALUES ('d', 2, 1) IF NOT EXISTS",
        "UPDATE ks.left_side SET v = 2 WHERE k = 'd' AND c = 2 IF v = 1",
        "DELETE FROM ks.left_side WHERE k = 'd' AND c = 2 IF EXISTS",
    ]


def _counters() -> list[str]:
    return [
        "CREATE TABLE ks.counters (k int, c int, n counter, m counter, s counter static, PRIMARY KEY (k, c))",
        "UPDATE ks.counters SET n = n + 5, m = m - 1 WHERE k = 1 AND c = 1",
        "UPDATE ks.counters SET n = n + 1, s = s + 1 WHERE k = 1 AND c = 1",
        "BEGIN COUNTER BATCH UPDATE ks.counters SET n = n + 1 WHERE k = 1 AND c = 1;"
        " UPDATE ks.counters SET n = n + 2 WHERE k = 1 AND c = 2; APPLY BATCH",
        "DELETE n FROM ks.counters WHERE k = 1 AND c = 1",
        "DELETE FROM ks.counters WHERE k = 1 AND c = 1",
    ]


def _wide() -> list[str]:
    found = []
    for count in (63, 64, 65, 130):
        columns = ", ".join(f"c{index} {'set<int>' if index % 7 == 0 else 'int'}" for index in range(count))
        found.append(f"CREATE TABLE ks.wide{count} (k int PRIMARY KEY, {columns}) WITH cdc = true")
        # Rows of one update that together name all columns, so that each has only some of the header's columns.
        for chosen in (1, count // 2 - 1, count // 2, count - 1, count):
            half = [f"c{index} = {'{1}' if index % 7 == 0 else index}" for index in range(chosen)]
            found.append(f"UPDATE ks.wide{count} SET {', '.join(half)} WHERE k = {chosen}")
    clustering = [f"c{index}" for index in range(40)]
    keys = ", ".join(clustering)
    values = ", ".join(["''", *(f"'v{index}'" for index in range(1, 40))])
    found += [
        f"CREATE TABLE ks.deep (k int, {', '.join(f'{name} text' for name in clustering)}, v int,"
        f" PRIMARY KEY (k, {keys})) WITH cdc = true",
        f"INSERT INTO ks.deep (k, {keys}, v) VALUES (1, {values}, 1)",
        f"DELETE FROM ks.deep WHERE k = 1 AND c0 = '' AND {' AND '.join(f'{name} = {chr(39)}{chr(39)}' for name in clustering[1:35])}",
    ]
    for count in (20, 63, 64, 70):
        columns = ", ".join(f"v{index} {'list<text>' if index % 9 == 0 else 'text'}" for index in range(count))
        found.append(f"CREATE TABLE ks.rows{count} (k int, c int, {columns}, PRIMARY KEY (k, c)) WITH cdc = true")
        rows = []
        for row, chosen in enumerate([1, 2, count // 2 - 1, count // 2, count // 2 + 1, count - 1, count, 0]):
            sets = [f"v{index} = {'[]' if index % 9 == 0 else chr(39) + chr(39)}" for index in range(count)]
            picked = sets[row : row + chosen] if row % 2 else sets[:chosen]
            if picked:
                rows.append(f"UPDATE ks.rows{count} SET {', '.join(picked)} WHERE k = 1 AND c = {row}")
            else:
                rows.append(f"INSERT INTO ks.rows{count} (k, c) VALUES (1, {row})")
        found.append(f"BEGIN UNLOGGED BATCH {'; '.join(rows)}; APPLY BATCH")
    return found


def _compact() -> list[str]:
    return [
        "CREATE TABLE ks.dense (k int, a int, b text, v int, PRIMARY KEY (k, a, b)) WITH COMPACT STORAGE AND cdc = true",
        "INSERT INTO ks.dense (k, a, b, v) VALUES (1, 1, 'x', 1)",
        "INSERT INTO ks.dense (k, a, v) VALUES (1, 2, 2)",  # leaves a clustering value absent
        "DELETE FROM ks.dense WHERE k = 1 AND a = 1 AND b = 'x'",
        "DELETE FROM ks.dense WHERE k = 1 AND a = 2",
        "DELETE FROM ks.dense WHERE k = 1",
        "CREATE TABLE ks.dense_keys (k int, a int, PRIMARY KEY (k, a)) WITH COMPACT STORAGE AND cdc = true",
        "INSERT INTO ks.dense_keys (k, a) VALUES (1, 1)",
        "DELETE FROM ks.dense_keys WHERE k = 1 AND a = 1",
        "CREATE TABLE ks.static_compact (k int PRIMARY KEY, v int, w text) WITH COMPACT STORAGE AND cdc = true",
        "INSERT INTO ks.static_compact (k, v, w) VALUES (1, 1, 'x')",
        "INSERT INTO ks.static_compact (k, v) VALUES (2, 1) USING TTL 50",
        "DELETE w FROM ks.static_compact WHERE k = 1",
        "DELETE FROM ks.static_compact WHERE k = 1",
    ]


def _alterations() -> list[str]:
    return [
        "CREATE TYPE ks.grows (a int)",
        "CREATE TABLE ks.altered (k int, c int, kept int, gone int, gone_too list<int>, gone_static text static,"
        " gone_frozen frozen<grows>, gone_nested map<int, frozen<grows>>,"
        " again int, again_set set<text>, late int, g grows, fg frozen<grows>,"
        " PRIMARY KEY (k, c)) WITH cdc = true",
        "INSERT INTO ks.altered (k, c, kept, gone, gone_too, gone_static, gone_frozen, again, again_set, late, g, fg)"
        " VALUES (1, 1, 1, 2, [3], '4', {a: 5}, 6, {'7'}, 8, {a: 9}, {a: 10})",
        "UPDATE ks.altered SET gone_nested[1] = {a: 1}, kept = 2 WHERE k = 1 AND c = 1",
        "UPDATE ks.altered SET gone = 1, gone_too = gone_too + [5] WHERE k = 1 AND c = 2",  # nothing is left of this row
        "UPDATE ks.altered SET gone_static = 'x' WHERE k = 1",  # nor of this one
        "UPDATE ks.altered USING TIMESTAMP 4000000000000000 SET gone = 5, again = 9 WHERE k = 1 AND c = 3",
        "INSERT INTO ks.altered (k, c, late) VALUES (1, 4, 1)",
        "ALTER TABLE ks.altered DROP gone",
        "ALTER TABLE ks.altered DROP gone_too",
        "ALTER TABLE ks.altered DROP gone_static",
        "ALTER TABLE ks.altered DROP gone_frozen",
        "ALTER TABLE ks.altered DROP gone_nested",
        "ALTER TABLE ks.altered DROP again",
        "ALTER TABLE ks.altered DROP again_set",
        "ALTER TABLE ks.altered DROP late USING TIMESTAMP 12345",
        "ALTER TABLE ks.altered ADD again int",
        "ALTER TABLE ks.altered ADD again_set set<text>",
        'ALTER TABLE ks.altered ADD "New ""é"" Column" text',
        "ALTER TYPE ks.grows ADD b text",
        "ALTER TYPE ks.grows RENAME a TO renamed",
        "ALTER TABLE ks.altered RENAME c TO clustering_renamed",
        'INSERT INTO ks.altered (k, clustering_renamed, again, again_set, g, fg, "New ""é"" Column")'
        " VALUES (2, 1, 1, {'back'}, {renamed: 1, b: 'x'}, {b: 'y'}, 'n')",
        "CREATE TABLE ks.recreated (k int PRIMARY KEY, v int) WITH cdc = true",
        "INSERT INTO ks.recreated (k, v) VALUES (1, 1)",
        "DROP TABLE ks.recreated",
        "CREATE TABLE ks.recreated (k int PRIMARY KEY, v text) WITH cdc = true",
        "INSERT INTO ks.recreated (k, v) VALUES (1, 'x')",
        "TRUNCATE ks.recreated",
    ]


def _others() -> list[str]:
    return [
        "CREATE TABLE ks.base (k int, c int, v int, w text, PRIMARY KEY (k, c)) WITH cdc = true",
        "CREATE MATERIALIZED VIEW ks.by_value AS SELECT * FROM ks.base"
        " WHERE v IS NOT NULL AND k IS NOT NULL AND c IS NOT NULL PRIMARY KEY (v, k, c)",
        "INSERT INTO ks.base (k, c, v, w) VALUES (1, 1, 1, 'x')",
        "UPDATE ks.base SET v = 2 WHERE k = 1 AND c = 1",
        "UPDATE ks.base USING TTL 300 SET v = 3 WHERE k = 1 AND c = 1",
        "UPDATE ks.base SET w = null WHERE k = 1 AND c = 1",
        "DELETE v FROM ks.base WHERE k = 1 AND c = 1",
        "DELETE FROM ks.base WHERE k = 1 AND c = 1",
        "CREATE TABLE ks.indexed (k int PRIMARY KEY, v text) WITH cdc = true",
        "CREATE INDEX ON ks.indexed (v)",
        "INSERT INTO ks.indexed (k, v) VALUES (1, 'x')",
        'CREATE TABLE ks."Mixed" ("K" int, "c C" int, "text" text, PRIMARY KEY (("K"), "c C")) WITH cdc = true',
        'INSERT INTO ks."Mixed" ("K", "c C", "text") VALUES (1, 1, \'x\')',
        "CREATE TABLE ks.composite (a int, b text, c uuid, v int, PRIMARY KEY ((a, b, c))) WITH cdc = true",
        "INSERT INTO ks.composite (a, b, c, v) VALUES (1, '', 123e4567-e89b-42d3-a456-426614174000, 1)",
        "CREATE TABLE ks.large (k int PRIMARY KEY, v text) WITH cdc = true",
        f"INSERT INTO ks.large (k, v) VALUES (1, '{'large' * 60_000}')",
        "CREATE TABLE ks.custom (k int PRIMARY KEY, l 'org.apache.cassandra.db.marshal.LexicalUUIDType',"
        " b 'org.apache.cassandra.db.marshal.BytesType', d 'org.apache.cassandra.db.marshal.DynamicCompositeType("
        "a=>org.apache.cassandra.db.marshal.Int32Type)') WITH cdc = true",
        "INSERT INTO ks.custom (k, l, b, d) VALUES"
        " (1, 0x123e4567e89b42d3a456426614174000, 0x0102, 0x806100040000000100)",
        "CREATE TABLE ks.long_partition (k int, c int, v text, PRIMARY KEY (k, c)) WITH cdc = true",
        "BEGIN UNLOGGED BATCH "
        + "; ".join(f"INSERT INTO ks.long_partition (k, c, v) VALUES (1, {row}, 'v{row}')" for row in range(2000))
        + "; APPLY BATCH",
    ]


def _vectors() -> list[str]:
    return [
        "CREATE TABLE ks.vectors (k int PRIMARY KEY, f vector<float, 3>, t vector<text, 2>, s vector<smallint, 2>,"
        " n vector<vector<bigint, 2>, 2>, l list<frozen<vector<int, 2>>>, m vector<frozen<map<text, int>>, 1>)"
        " WITH cdc = true",
        "INSERT INTO ks.vectors (k, f, t, s, n, l, m) VALUES"
        " (1, [1.0, 2.5, -3], ['a', ''], [1, 2], [[1, 2], [3, 4]], [[1, 2], [3, 4]], [{'a': 1}])",
        "UPDATE ks.vectors SET f = null, l = l + [[5, 6]] WHERE k = 1",
    ]


def _long_lived() -> list[str]:
    twenty_years_s = 20 * 365 * 24 * 3600
    return [
        "CREATE TABLE ks.long_lived (k int, c int, v text, m map<int, int>, PRIMARY KEY (k, c)) WITH cdc = true",
        f"INSERT INTO ks.long_lived (k, c, v, m) VALUES (1, 1, 'x', {{1: 1}}) USING TTL {twenty_years_s}",
        f"UPDATE ks.long_lived USING TTL {twenty_years_s} SET v = 'y', m[2] = 2 WHERE k = 1 AND c = 2",
        "BEGIN UNLOGGED BATCH DELETE FROM ks.long_lived USING TIMESTAMP 1 WHERE k = 1 AND c > 5;"
        f" INSERT INTO ks.long_lived (k, c, v, m) VALUES (1, 9, 'x', {{1: 1}}) USING TTL {twenty_years_s};"
        " DELETE m[7], v FROM ks.long_lived WHERE k = 1 AND c = 10; APPLY BATCH",
    ]
