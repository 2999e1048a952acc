"""The current table: the folding rules on real topics, one table of records and rows a rule."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import Row, SparkSession

from schemas.cql_value import AvroValue
from schemas.errors import ConfigError
from schemas.row_record import record_writer
from spark_bridge import changes, current_table
from spark_bridge.jobs.latest import latest_on_read
from tests.events_topic import wait_until
from tests.fix_spark import PY4J_LEAVES_SOCKETS_OPEN, DataTopic, Record, table_schemas

pytestmark = [pytest.mark.filterwarnings(PY4J_LEAVES_SOCKETS_OPEN), pytest.mark.spark_line(">=4.1")]
MakeTopic = Callable[..., DataTopic]
Case = tuple[str, Sequence[Record], list[tuple[object, ...]]]
"""What is shown, the records, the rows of the table that they leave."""

GOLDEN = Path(__file__).parent.parent / "golden" / "datastax"
PLAIN = table_schemas(partition_key={"id": "int"}, regular={"name": "text", "price": "decimal"})
WIDE = table_schemas(
    partition_key={"pk": "text"},
    clustering={"a": "int", "b": "text"},
    regular={"v": "int"},
    static={"s": "text", "t": "int"},
)
OLD, NEW = "a5559b20-e53e-11f1-a9d7-973e92e688cb", "b5559b20-e53e-11f1-a9d7-973e92e688cb"
SECONDS = int(time.time())


def row(pk: str, a: int, b: str, v: int | None, **more: AvroValue) -> Record:
    """A whole row as the connector publishes it."""
    properties = {"kind": "row", "table_id": OLD, "writetime": "1000"}
    return Record(key={"pk": pk, "a": a, "b": b}, value={"v": v, **more}, properties=properties)


def row_deletion(pk: str, a: int, b: str) -> Record:
    return Record(key={"pk": pk, "a": a, "b": b}, properties={"kind": "row_deletion", "table_id": OLD})


def static_row(pk: str, **statics: AvroValue) -> Record:
    properties = {"kind": "static_row", "table_id": OLD, "static_columns": '["s","t"]'}
    return Record(key={"pk": pk}, value=statics, properties=properties)


def partition_deletion(pk: str) -> Record:
    properties = {"kind": "partition_deletion", "table_id": OLD, "deletion_time": "2000"}
    return Record(key={"pk": pk}, properties=properties)


def range_deletion(
    pk: str,
    *,
    start: Mapping[str, AvroValue] | None = None,
    end: Mapping[str, AvroValue] | None = None,
    start_inclusive: bool = True,
    end_inclusive: bool = True,
    backwards: Sequence[str] = (),
) -> Record:
    """Bounds by clustering column, as the connector writes them."""
    write = record_writer(WIDE[0])
    properties = {"kind": "range_deletion", "table_id": OLD, "deletion_time": "2000"}
    for name, bound in (("range_start", start), ("range_end", end)):
        if bound is not None:
            properties[name] = base64.b64encode(write({"pk": pk, "a": None, "b": None, **bound})).decode()
    properties |= {
        "range_start_inclusive": str(start_inclusive).lower(),
        "range_end_inclusive": str(end_inclusive).lower(),
    }
    if backwards:
        properties["range_reversed"] = json.dumps(backwards)
    return Record(key={"pk": pk}, properties=properties)


def rows_of(spark: SparkSession, topic: DataTopic, **more: Sequence[str]) -> list[tuple[object, ...]]:
    return sorted(map(tuple, current_table(spark, topic.options, **more).collect()), key=str)


def test_the_newest_record_of_a_key_wins(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Inserted, updated, deleted, inserted again; the columns come in the table's order, typed."""
    topic = data_topic(*PLAIN)
    price: AvroValue = {"bigint": b"\x0f", "scale": 1}
    topic.write(
        Record(key={"id": 1}, value={"name": "a"}),
        Record(key={"id": 2}, value={"name": "b"}),
        Record(key={"id": 3}, value={"name": "c"}),
        Record(key={"id": 1}, value={"name": "a2", "price": price}),
        Record(key={"id": 2}),
        Record(key={"id": 3}),
        Record(key={"id": 3}, value={"name": None}),
        batch=3,
    )
    rows = current_table(spark, topic.options)
    assert rows.dtypes == [("id", "int"), ("name", "string"), ("price", "decimal(38,18)")]
    assert sorted(rows.collect()) == [Row(id=1, name="a2", price=Decimal("1.5")), Row(id=3, name=None, price=None)]


def test_the_table_as_of_a_time_has_what_was_published_before_and_lived_then(
    spark: SparkSession, data_topic: MakeTopic
) -> None:
    """Records that were published later do not count, and a TTL goes by that time's clock."""
    topic = data_topic(*PLAIN)
    expires = {"expires_at": str(SECONDS + 100_000)}
    topic.write(
        Record(key={"id": 1}, value={"name": "a"}), Record(key={"id": 2}, value={"name": "b"}, properties=expires)
    )
    (before_ms,) = changes(spark, topic.options).selectExpr("max(unix_millis(publish_time)) + 1").first()
    wait_until(lambda: time.time() * 1000 > before_ms, "the next millisecond")
    topic.write(Record(key={"id": 1}, value={"name": "a2"}), Record(key={"id": 3}, value={"name": "c"}))

    def names(as_of_ms: int | None) -> list[tuple[object, ...]]:
        text = None if as_of_ms is None else datetime.fromtimestamp(as_of_ms / 1000, UTC).isoformat()
        return sorted(tuple(each)[:2] for each in latest_on_read(spark, topic.options, as_of=text).collect())

    assert names(before_ms) == [(1, "a"), (2, "b")]
    assert names(None) == [(1, "a2"), (2, "b"), (3, "c")]
    assert names((SECONDS + 200_000) * 1000) == [(1, "a2"), (3, "c")]
    assert names((SECONDS - 3_600) * 1000) == []
    with pytest.raises(ConfigError, match="as_of: 'yesterday' is no time with its zone"):
        latest_on_read(spark, topic.options, as_of="yesterday")


def test_the_current_table_of_a_partitioned_topic(spark: SparkSession, data_topic: MakeTopic) -> None:
    """A key always lies in one topic partition, so each partition folds by itself."""
    topic = data_topic(*PLAIN, partitions=3)
    for generation in range(3):
        topic.write(*[Record(key={"id": n}, value={"name": f"{n}.{generation}"}) for n in range(40)], batch=5)
    topic.write(*[Record(key={"id": n}) for n in range(0, 40, 2)], batch=5)
    assert rows_of(spark, topic) == sorted(((n, f"{n}.2", None) for n in range(1, 40, 2)), key=str)


def test_the_current_table_of_an_empty_topic_needs_a_schema_only(spark: SparkSession, data_topic: MakeTopic) -> None:
    """The columns are there when the schema is, before any record."""
    topic = data_topic(*PLAIN)
    topic.write()
    assert current_table(spark, topic.options).collect() == []


def test_a_table_of_keys_only(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Its value repeats the key; the table has each column once."""
    key, _ = table_schemas(partition_key={"id": "int"}, clustering={"ck": "int"})
    topic = data_topic(key, key)
    topic.write(Record(key={"id": 1, "ck": 2}, value={"id": 1, "ck": 2}), Record(key={"id": 1, "ck": 3}))
    assert rows_of(spark, topic) == [(1, 2)]


def test_column_names_that_the_raw_columns_have_too(spark: SparkSession, data_topic: MakeTopic) -> None:
    """A table may call its columns key, value, op, topic and partition."""
    key, value = table_schemas(
        partition_key={"key": "int"},
        clustering={"scope": "int"},
        regular={"value": "text", "op": "int", "static": "int"},
    )
    topic = data_topic(key, value)
    topic.write(Record(key={"key": 1, "scope": 2}, value={"value": "x", "op": 3, "static": 4}))
    (found,) = current_table(spark, topic.options).collect()
    assert found.asDict() == {"key": 1, "scope": 2, "op": 3, "static": 4, "value": "x"}


def test_columns_follow_the_newest_schema(spark: SparkSession, data_topic: MakeTopic) -> None:
    """ALTER TABLE ADD in mid-stream: rows from before have null there."""
    topic = data_topic(*PLAIN)
    topic.write(Record(key={"id": 1}, value={"name": "a"}))
    _, added = table_schemas(partition_key={"id": "int"}, regular={"name": "text", "price": "decimal", "size": "int"})
    topic.write(Record(key={"id": 2}, value={"name": "b", "size": 7}), value_schema=added)
    assert rows_of(spark, topic) == [(1, "a", None, None), (2, "b", None, 7)]


# columns: pk, a, b, s, t, v
WIPED: Sequence[Case] = [
    (
        "a partition deletion removes the rows before it, of its partition only",
        [row("p", 1, "x", 1), row("q", 1, "x", 2), partition_deletion("p"), row("p", 2, "y", 3)],
        [("p", 2, "y", None, None, 3), ("q", 1, "x", None, None, 2)],
    ),
    (
        "survivors of a partition deletion are published again after it",
        [row("p", 1, "x", 1), row("p", 2, "x", 2), partition_deletion("p"), row("p", 2, "x", 2)],
        [("p", 2, "x", None, None, 2)],
    ),
    (
        "deleting a row takes that row only",
        [row("p", 1, "x", 1), row("p", 1, "y", 2), row_deletion("p", 1, "x")],
        [("p", 1, "y", None, None, 2)],
    ),
    (
        "a partition deletion before a row deletion changes nothing for the row",
        [row("p", 1, "x", 1), partition_deletion("p"), row_deletion("p", 1, "x"), row("p", 1, "x", 5)],
        [("p", 1, "x", None, None, 5)],
    ),
    (
        "records without a kind: a null value without clustering columns deletes the partition (DataStax)",
        [Record(key={"pk": "p", "a": 1, "b": "x"}, value={"v": 1}), Record(key={"pk": "p"})],
        [],
    ),
    (
        "a record of nulls is a row",
        [row("p", 1, "x", None)],
        [("p", 1, "x", None, None, None)],
    ),
]


def rows_by_case(
    spark: SparkSession, topic: DataTopic, cases: Sequence[Case], columns: str
) -> Mapping[str, list[tuple[object, ...]]]:
    """Write the records of every case under partition keys of its own, and answer the rows of each.

    One topic and one query for a whole table of cases: a query takes seconds.
    """
    for number, (_, records, _) in enumerate(cases):
        own = [replace(each, key={**each.key, "pk": f"{number}." + cast("str", each.key["pk"])}) for each in records]
        topic.write(*own, batch=3)
    found: dict[str, list[tuple[object, ...]]] = {name: [] for name, _, _ in cases}
    for each in current_table(spark, topic.options).select(*columns.split()).collect():
        number, _, pk = each.pk.partition(".")
        found[cases[int(number)][0]].append((pk, *each[1:]))
    return {name: sorted(rows, key=str) for name, rows in found.items()}


def test_deletions_of_partitions_and_rows(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Markers and tombstones, in topic order."""
    found = rows_by_case(spark, data_topic(*WIDE), WIPED, "pk a b s t v")
    assert found == {name: rows for name, _, rows in WIPED}


# columns: pk, a, b, v, s, t
STATICS: Sequence[Case] = [
    (
        "a static row updates every row of its partition",
        [
            row("p", 1, "x", 1, s="old"),
            row("p", 2, "x", 2, s="old"),
            row("q", 1, "x", 3),
            static_row("p", s="new", t=7),
        ],
        [("p", 1, "x", 1, "new", 7), ("p", 2, "x", 2, "new", 7), ("q", 1, "x", 3, None, None)],
    ),
    (
        "a cleared static column is null in every row",
        [static_row("p", s="s", t=1), row("p", 1, "x", 1, s="s", t=1), static_row("p", s=None, t=1)],
        [("p", 1, "x", 1, None, 1)],
    ),
    (
        "a row that was read later carries the newer static columns for all",
        [static_row("p", s="s"), row("p", 1, "x", 1, s="s"), row("p", 2, "x", 2, s="newer")],
        [("p", 1, "x", 1, "newer", None), ("p", 2, "x", 2, "newer", None)],
    ),
    (
        "a partition of static columns only is one row without clustering columns",
        [static_row("p", s="s"), row("p", 1, "x", 1, s="s"), row_deletion("p", 1, "x")],
        [("p", None, None, None, "s", None)],
    ),
    (
        "a partition whose static columns are all null, and that has no rows, is gone",
        [static_row("p", s="s"), static_row("p", s=None)],
        [],
    ),
    (
        "a partition deletion takes the static columns too",
        [static_row("p", s="s"), row("p", 1, "x", 1, s="s"), partition_deletion("p"), row("p", 2, "x", 2)],
        [("p", 2, "x", 2, None, None)],
    ),
    (
        "a static row whose partition is gone says that its columns are null",
        [
            static_row("p", s="s"),
            row("p", 1, "x", 1, s="s"),
            Record(key={"pk": "p"}, properties={"kind": "static_row", "table_id": OLD, "static_columns": '["s","t"]'}),
        ],
        [("p", 1, "x", 1, None, None)],
    ),
]


def test_static_columns(spark: SparkSession, data_topic: MakeTopic) -> None:
    """The newest record of a partition that has a value gives its static columns."""
    found = rows_by_case(spark, data_topic(*WIDE), STATICS, "pk a b v s t")
    assert found == {name: rows for name, _, rows in STATICS}


BEFORE_T, WITH_T = (
    table_schemas(
        partition_key={"pk": "text"}, clustering={"a": "int"}, regular={"v": "int"}, static=dict.fromkeys(names, "text")
    )
    for names in ("s", "st")
)


def named_statics(pk: str, **statics: AvroValue) -> Record:
    """A static row of a table whose static columns are these."""
    properties = {
        "kind": "static_row",
        "table_id": OLD,
        "writetime": str(5 + len(statics)),
        "static_columns": json.dumps([*statics], separators=(",", ":")),
    }
    return Record(key={"pk": pk}, value=statics, properties=properties)


def write_an_added_static_column(topic: DataTopic, *, is_added: bool) -> None:
    """Rows with the static column s; or what comes when t was added to it, which no row has been written with."""
    said = {"kind": "row", "table_id": OLD, "writetime": "5"}
    rows = [
        Record(key={"pk": pk, "a": a}, value={"v": a, "s": s}, properties=said)
        for pk, a, s in (("p", 1, "1"), ("p", 2, "1"), ("r", 1, None))
    ]
    if is_added:
        changed = named_statics("p", s="1", t="x"), named_statics("q", s=None, t="y")
        topic.write(*changed, value_schema=WITH_T[1])
    else:
        topic.write(named_statics("p", s="1"), *rows, named_statics("q", s="2"))


def test_a_static_column_that_is_added_is_in_every_row(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Rows of before show it as soon as it is written, and so does a partition of static columns only."""
    topic = data_topic(*BEFORE_T)
    write_an_added_static_column(topic, is_added=False)
    write_an_added_static_column(topic, is_added=True)
    shown = current_table(spark, topic.options).select("pk", "a", "s", "t", "v").collect()
    assert sorted(map(tuple, shown)) == [
        ("p", 1, "1", "x", 1),
        ("p", 2, "1", "x", 2),
        ("q", None, None, "y", None),
        ("r", 1, None, None, 1),
    ]


def test_static_columns_may_be_named_where_the_records_do_not(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Records of DataStax's connector say nothing of static columns; the caller does."""
    topic = data_topic(*WIDE)
    topic.write(
        Record(key={"pk": "p", "a": 1, "b": "x"}, value={"v": 1, "s": "old"}),
        Record(key={"pk": "p"}, value={"s": "new"}),
    )
    assert rows_of(spark, topic, static_columns=["s", "t"]) == [("p", 1, "x", 1, "new", None)]
    assert rows_of(spark, topic, static_columns=[]) == [("p", 1, "x", 1, "old", None)]


def test_the_table_of_a_topic_that_datastax_wrote(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Captured records of their connector: the same table, but for what they do not publish (ranges, expiry, TRUNCATE)."""
    *messages, registered = map(json.loads, (GOLDEN / "statements-data-key-value-avro.txt").read_text().splitlines())
    schemas = json.loads(registered["data"])
    topic = data_topic(schemas["key"], schemas["value"])
    topic.writer.write_bytes(
        topic.name,
        json.dumps(schemas["key"]),
        json.dumps(schemas["value"]),
        [
            {
                "key": each["key"],
                "value": base64.b64encode(bytes.fromhex(each["data"])).decode() if each["data"] else None,
                "properties": each["props"],
            }
            for each in messages
        ],
    )
    # columns: a, b, c, e, d; d is static
    assert rows_of(spark, topic, static_columns=["d"]) == [
        ("l", 1, "lwt", None, None),
        ("old", 1, "x", None, None),
        ("p", 2, None, None, "d9"),
        ("p", 9, "c9", None, "d9"),
        ("r", 1, "x", None, None),
        ("same", 1, "x", None, None),
        ("t", 1, "y", None, None),
        ("ttl", 1, "x", None, None),
    ]


GRID = [row("p", a, b, v) for v, (a, b) in enumerate((a, b) for a in (1, 2, 3) for b in "xyz")]
RANGES: Sequence[tuple[str, Record, str]] = [
    ("a = 2", range_deletion("p", start={"a": 2}, end={"a": 2}), "1x 1y 1z 3x 3y 3z"),
    ("a > 1", range_deletion("p", start={"a": 1}, start_inclusive=False), "1x 1y 1z"),
    ("a >= 2", range_deletion("p", start={"a": 2}), "1x 1y 1z"),
    ("a < 3", range_deletion("p", end={"a": 3}, end_inclusive=False), "3x 3y 3z"),
    ("a <= 2", range_deletion("p", end={"a": 2}), "3x 3y 3z"),
    (
        "a = 2 and b > 'x'",
        range_deletion("p", start={"a": 2, "b": "x"}, start_inclusive=False, end={"a": 2}),
        "1x 1y 1z 2x 3x 3y 3z",
    ),
    (
        "a = 2 and b >= 'x' and b < 'z'",
        range_deletion("p", start={"a": 2, "b": "x"}, end={"a": 2, "b": "z"}, end_inclusive=False),
        "1x 1y 1z 2z 3x 3y 3z",
    ),
    ("(a, b) > (2, 'y')", range_deletion("p", start={"a": 2, "b": "y"}, start_inclusive=False), "1x 1y 1z 2x 2y"),
    (
        "a = 2 and b > 'x', where b is descending",
        range_deletion("p", start={"a": 2}, end={"a": 2, "b": "x"}, end_inclusive=False, backwards=["b"]),
        "1x 1y 1z 2x 3x 3y 3z",
    ),
    (
        "a > 1, where a is descending",
        range_deletion("p", end={"a": 1}, end_inclusive=False, backwards=["a"]),
        "1x 1y 1z",
    ),
    ("the whole of another partition", range_deletion("q", start={"a": 0}), "1x 1y 1z 2x 2y 2z 3x 3y 3z"),
]


def test_range_deletions_take_the_rows_between_their_bounds(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Every form of bound: prefixes, exclusive ones, several columns, descending columns."""
    cases: list[Case] = [(name, [*GRID, marker, row("p", 9, "later", 0)], []) for name, marker, _ in RANGES]
    found = rows_by_case(spark, data_topic(*WIDE), cases, "pk a b")
    left = {name: " ".join(f"{a}{b}" for _, a, b in rows) for name, rows in found.items()}
    assert left == {name: f"{rows} 9later" for name, _, rows in RANGES}


def test_a_table_that_was_created_again_starts_empty(spark: SparkSession, data_topic: MakeTopic) -> None:
    """DROP and CREATE: only records of the newest table id count, in every topic partition."""
    topic = data_topic(*PLAIN, partitions=2)
    topic.write(*[Record(key={"id": n}, value={"name": "old"}, properties={"table_id": OLD}) for n in range(20)])
    topic.write(Record(key={"id": 3}, value={"name": "new"}, properties={"table_id": NEW}))
    assert rows_of(spark, topic) == [(3, "new", None)]


def expiring(id: int, after_s: int | None, name: str | None = "x") -> Record:  # noqa: A002  (the column's name)
    properties = {} if after_s is None else {"expires_at": str(SECONDS + after_s)}
    return Record(key={"id": id}, value=None if name is None else {"name": name}, properties=properties)


EXPIRY: Sequence[Case] = [
    ("its time is over", [expiring(1, -10)], []),
    ("its time is to come", [expiring(1, 3600)], [(1, "x", None)]),
    ("an earlier write lasts longer", [expiring(1, 3600), expiring(1, -10, "y")], [(1, "y", None)]),
    ("an earlier write has no end", [expiring(1, None), expiring(1, -10, "y")], [(1, "y", None)]),
    ("what lasted was deleted in between", [expiring(1, None), expiring(1, None, None), expiring(1, -10)], []),
    ("what lasted longer was deleted in between", [expiring(1, 3600), expiring(1, None, None), expiring(1, -10)], []),
    ("a later write has no end", [expiring(1, -10), expiring(1, None, "y")], [(1, "y", None)]),
]


def test_expired_rows_are_gone(spark: SparkSession, data_topic: MakeTopic) -> None:
    """A row is gone when all that was written since its last deletion had a TTL, and the latest is over."""
    topic = data_topic(*PLAIN)
    for case, (_, records, _) in enumerate(EXPIRY):
        topic.write(*[Record(key={"id": case}, value=each.value, properties=each.properties) for each in records])
    left = {EXPIRY[found.id][0]: found.name for found in current_table(spark, topic.options).collect()}
    assert left == {name: str(rows[0][1]) for name, _, rows in EXPIRY if rows}
