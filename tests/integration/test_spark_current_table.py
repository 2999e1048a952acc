"""The current table: the folding rules on real topics. Deletions and static columns have their own files."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from schemas.cql_value import AvroValue
from schemas.errors import ConfigError
from spark_bridge import changes, current_table
from spark_bridge.jobs.latest import latest_on_read
from tests.fixtures.spark import MakeTopic, Record, table_schemas
from tests.topics.events_topic import wait_until
from tests.topics.table_records import NEW, OLD, PLAIN, Case, rows_of

pytestmark = pytest.mark.spark_line(">=4.1")

GOLDEN = Path(__file__).parent.parent / "golden" / "datastax"
SECONDS = int(time.time())
DAY = 86_400
"""Large enough for the hours that may lie between the import, when `SECONDS` was set, and a test."""


def test_the_newest_record_of_a_key_wins(spark: SparkSession, data_topic: MakeTopic) -> None:
    """A row is inserted, updated, deleted and inserted again; the columns are typed, and in the table's order."""
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
    """Records that were published later do not count, and TTLs expire by the given time."""
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
    """A key is always in one topic partition, so each partition is folded separately."""
    topic = data_topic(*PLAIN, partitions=3)
    for generation in range(3):
        topic.write(*[Record(key={"id": n}, value={"name": f"{n}.{generation}"}) for n in range(40)], batch=5)
    topic.write(*[Record(key={"id": n}) for n in range(0, 40, 2)], batch=5)
    assert rows_of(spark, topic) == sorted(((n, f"{n}.2", None) for n in range(1, 40, 2)), key=str)


def test_the_current_table_of_an_empty_topic_needs_a_schema_only(spark: SparkSession, data_topic: MakeTopic) -> None:
    """The columns exist once the schema does, before any record."""
    topic = data_topic(*PLAIN)
    topic.write()
    assert current_table(spark, topic.options).collect() == []


def test_a_table_of_keys_only(spark: SparkSession, data_topic: MakeTopic) -> None:
    """The value of such a table repeats the key; the DataFrame has each column once."""
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
    """After ALTER TABLE ADD within the stream, earlier rows have null in the new column."""
    topic = data_topic(*PLAIN)
    topic.write(Record(key={"id": 1}, value={"name": "a"}))
    _, added = table_schemas(partition_key={"id": "int"}, regular={"name": "text", "price": "decimal", "size": "int"})
    topic.write(Record(key={"id": 2}, value={"name": "b", "size": 7}), value_schema=added)
    assert rows_of(spark, topic) == [(1, "a", None, None), (2, "b", None, 7)]


def test_the_table_of_a_topic_that_datastax_wrote(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Captured records of DataStax's connector give the same table, except for changes that it does not publish
    (ranges, expiry, TRUNCATE)."""
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


def test_a_table_that_was_created_again_starts_empty(spark: SparkSession, data_topic: MakeTopic) -> None:
    """After DROP and CREATE, only records of the newest table count, in every topic partition."""
    topic = data_topic(*PLAIN, partitions=2)
    topic.write(*[Record(key={"id": n}, value={"name": "old"}, properties={"table_id": OLD}) for n in range(20)])
    topic.write(Record(key={"id": 3}, value={"name": "new"}, properties={"table_id": NEW}))
    assert rows_of(spark, topic) == [(3, "new", None)]
    back = data_topic(*PLAIN)
    for number, table_id in enumerate((OLD, NEW, OLD)):  # The last one is created again `WITH ID`.
        said = {"table_id": table_id, "table_generation": f"200000000000000{number}"}
        back.write(Record(key={"id": number}, value={"name": "again"}, properties=said))
    assert rows_of(spark, back) == [(2, "again", None)]


def expiring(id: int, after_s: int | None, name: str | None = "x") -> Record:  # noqa: A002  (the column's name)
    properties = {} if after_s is None else {"expires_at": str(SECONDS + after_s)}
    return Record(key={"id": id}, value=None if name is None else {"name": name}, properties=properties)


def telling(id: int, text: str, **after_s: int) -> Record:  # noqa: A002  (the column's name)
    """A record with TTLs as a connector publishes it. `sure`: when the row expires, independent of earlier writes;
    `row`: when the row expires, unless earlier writes remain; `column`: when the column expires."""
    properties = {}
    if "column" in after_s:
        properties["columns_expire_at"] = json.dumps({"name": SECONDS + after_s["column"]})
        properties["cells_expire_at"] = str(SECONDS + after_s["column"])
    for said in ("sure", "row"):
        if said in after_s:
            properties |= {"expires_at": str(SECONDS + after_s[said])}
    if "sure" in after_s:
        properties["row_marker"] = "expires"
    return Record(key={"id": id}, value={"name": text}, properties=properties)


EXPIRY: Sequence[Case] = [
    ("its time is over", [expiring(1, -10)], []),
    ("its time is to come", [expiring(1, DAY)], [(1, "x", None)]),
    ("an earlier write lasts longer", [expiring(1, DAY), expiring(1, -10, "y")], [(1, "y", None)]),
    ("an earlier write has no end", [expiring(1, None), expiring(1, -10, "y")], [(1, "y", None)]),
    ("what lasted was deleted in between", [expiring(1, None), expiring(1, None, None), expiring(1, -10)], []),
    ("what lasted longer was deleted in between", [expiring(1, DAY), expiring(1, None, None), expiring(1, -10)], []),
    ("a later write has no end", [expiring(1, -10), expiring(1, None, "y")], [(1, "y", None)]),
    ("a deletion came with an insert with a TTL", [expiring(1, None), telling(1, "y", sure=-10, column=-10)], []),
    ("a shorter insert came later", [telling(1, "x", sure=DAY, column=DAY), telling(1, "y", sure=-5, column=-5)], []),
    ("an update outlives the insert", [telling(1, "x", sure=-10), telling(1, "y", column=DAY)], [(1, "y", None)]),
    ("insert and update are over", [telling(1, "x", sure=-10), telling(1, "y", column=-5)], []),
    ("a column is over", [telling(1, "x", column=-10)], [(1, None, None)]),
    ("a column of what was there before is over", [expiring(1, None), telling(1, "y", column=-10)], [(1, None, None)]),
    (
        "what was asked for stays by what was before",
        [expiring(1, None), telling(1, "y", row=-9, column=-9)],
        [(1, None, None)],
    ),
    ("what was asked for is over", [telling(1, "y", row=-9, column=-9)], []),
]


def test_expired_rows_are_gone(spark: SparkSession, data_topic: MakeTopic) -> None:
    """A row is gone when all writes since its last deletion had a TTL, and the latest of these has expired."""
    topic = data_topic(*PLAIN)
    for case, (_, records, _) in enumerate(EXPIRY):
        topic.write(*[Record(key={"id": case}, value=each.value, properties=each.properties) for each in records])
    left = {EXPIRY[found.id][0]: found.name for found in current_table(spark, topic.options).collect()}
    assert left == {name: rows[0][1] for name, _, rows in EXPIRY if rows}
