"""Typed rows: `from_avro` by each record's own schema version, and how CQL types come out in Spark."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path

import pulsar as pulsar_client
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from schemas.cql_type import NativeType, UserType
from schemas.cql_value import AvroValue
from schemas.row_record import schema_text
from spark_bridge import changes, current_table, raw_batch, typed
from spark_bridge.errors import TopicError
from spark_bridge.rows.folding import all_records
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.topic_schemas import TopicSchemas
from tests.fix_spark import PY4J_LEAVES_SOCKETS_OPEN, DataTopic, Record, table_schemas
from tests.servers import PulsarServer

pytestmark = [pytest.mark.filterwarnings(PY4J_LEAVES_SOCKETS_OPEN), pytest.mark.spark_line(">=4.1")]
MakeTopic = Callable[..., DataTopic]

ADDRESS = UserType("shop", "address", ("street", "number", "fee"), tuple(map(NativeType, ("text", "int", "decimal"))))
# column: (CQL type, Avro value, Spark type, value in Spark)
TYPES: Mapping[str, tuple[str, AvroValue, str, object]] = {
    "c_ascii": ("ascii", "a", "string", "a"),
    "c_bigint": ("bigint", -(1 << 63), "bigint", -(1 << 63)),
    "c_blob": ("blob", b"\x00\xff", "binary", b"\x00\xff"),
    "c_boolean": ("boolean", True, "boolean", True),
    "c_date": ("date", -1, "date", dt.date(1969, 12, 31)),
    "c_decimal": ("decimal", {"bigint": b"\xff\x6a", "scale": 2}, "decimal(38,18)", Decimal("-1.50")),
    "c_double": ("double", 0.1, "double", 0.1),
    "c_duration": (
        "duration",
        {"months": 1, "days": 2, "nanoseconds": 3},
        "struct<months:int,days:int,nanoseconds:bigint>",
        Row(months=1, days=2, nanoseconds=3),
    ),
    "c_float": ("float", 1.5, "float", 1.5),
    "c_inet": ("inet", "10.0.0.1", "string", "10.0.0.1"),
    "c_int": ("int", -5, "int", -5),
    "c_smallint": ("smallint", -300, "int", -300),
    "c_text": ("text", "ä€😀", "string", "ä€😀"),
    "c_time": ("time", 3_723_000_001, "bigint", 3_723_000_001),
    "c_timestamp": (
        "timestamp",
        1_795_219_250_123,
        "timestamp",
        dt.datetime.fromtimestamp(1_795_219_250.123),  # noqa: DTZ006  (as Spark gives rows)
    ),
    "c_timeuuid": (
        "timeuuid",
        "a5559b20-e53e-11f1-a9d7-973e92e688cb",
        "string",
        "a5559b20-e53e-11f1-a9d7-973e92e688cb",
    ),
    "c_tinyint": ("tinyint", -128, "int", -128),
    "c_varint": ("varint", (10**37).to_bytes(16, "big"), "decimal(38,0)", Decimal(10**37)),
    "l_decimal": (
        "list<decimal>",
        [{"bigint": b"\x05", "scale": 1}, {"bigint": b"\x07", "scale": -2}],
        "array<decimal(38,18)>",
        [Decimal("0.5"), Decimal(700)],
    ),
    "l_timestamp": (
        "list<timestamp>",
        [0],
        "array<timestamp>",
        [dt.datetime.fromtimestamp(0)],  # noqa: DTZ006  (as Spark gives rows)
    ),
    "m_varint": ("map<int, varint>", {"1": b"\x80"}, "map<string,decimal(38,0)>", {"1": Decimal(-128)}),
    "s_int": ("set<int>", [1, 2], "array<int>", [1, 2]),
    "t_pair": (
        "tuple<int, text>",
        {"index_0": 1, "index_1": None},
        "struct<index_0:int,index_1:string>",
        Row(index_0=1, index_1=None),
    ),
    "u_address": (
        "frozen<address>",
        {"street": "Elm", "number": None, "fee": {"bigint": b"\x0c", "scale": 1}},
        "struct<street:string,number:int,fee:decimal(38,18)>",
        Row(street="Elm", number=None, fee=Decimal("1.2")),
    ),
    "v_vector": ("vector<float, 2>", [1.5, -2.0], "array<float>", [1.5, -2.0]),
}


def test_columns_whose_names_avro_refuses_are_read_by_their_names_in_avro(
    spark: SparkSession, data_topic: MakeTopic
) -> None:
    """As the connector writes them: letters, digits and underscores; names with capitals stay."""
    place = UserType("shop", "my place", ("Street Name",), (NativeType("text"),))
    key, value = table_schemas(
        partition_key={"the key": "int"},
        regular={"1st": "text", "Mixed": "int", "string": "text", "where": 'frozen<"my place">'},
        user_types={"my place": place},
    )
    topic = data_topic(key, value)
    row: Mapping[str, AvroValue] = {
        "_1st": "a", "Mixed": 2, "string": "s", "where": {"Street_u0020_Name": "Elm"},
    }  # fmt: skip
    topic.write(Record(key={"the_u0020_key": 1}, value=row))
    (found,) = changes(spark, topic.options).select("key.*", "value.*").collect()
    assert found.asDict(recursive=True) == {"the_u0020_key": 1} | dict(row)


def test_every_cql_type_has_its_spark_type_and_value(spark: SparkSession, data_topic: MakeTopic) -> None:
    """The table of docs/spark.md, one column a type, and nulls of them all."""
    key, value = table_schemas(
        partition_key={"id": "int"},
        regular={name: cql for name, (cql, _, _, _) in TYPES.items()},
        user_types={"address": ADDRESS},
    )
    topic = data_topic(key, value)
    topic.write(Record(key={"id": 1}, value={name: avro for name, (_, avro, _, _) in TYPES.items()}))
    topic.write(Record(key={"id": 2}, value=dict.fromkeys(TYPES)), Record(key={"id": 3}))
    rows = changes(spark, topic.options).select("key.*", "op", "value.*")
    expected = {"id": "int", "op": "string"} | {name: spark_type for name, (_, _, spark_type, _) in TYPES.items()}
    assert dict(rows.dtypes) == expected
    full, empty, deleted = rows.collect()
    assert full.asDict() == {"id": 1, "op": "u"} | {name: value for name, (_, _, _, value) in TYPES.items()}
    assert empty.asDict() == {"id": 2, "op": "u"} | dict.fromkeys(TYPES)
    assert deleted.asDict() == {"id": 3, "op": "d"} | dict.fromkeys(TYPES)


NUMBERS = table_schemas(
    partition_key={"id": "varint"},
    regular={"a": "decimal", "b": "varint", "c": "map<text, frozen<list<decimal>>>", "d": "frozen<address>"},
    user_types={"address": ADDRESS},
)
HUGE = 10**60


def huge_numbers(topic: DataTopic) -> None:
    topic.write(
        Record(
            key={"id": HUGE.to_bytes(26, "big")},
            value={
                "a": {"bigint": (1).to_bytes(1, "big"), "scale": 30},
                "b": (-HUGE).to_bytes(26, "big", signed=True),
                "c": {"k": [{"bigint": b"\x96", "scale": 2}]},
                "d": {"street": "Elm", "number": 3, "fee": {"bigint": b"\x0c", "scale": 1}},
            },
        )
    )


def test_numbers_as_text_are_exact_whatever_their_size(spark: SparkSession, data_topic: MakeTopic) -> None:
    """`numbers=string`: every digit and the scale, inside of collections and user types too."""
    topic = data_topic(*NUMBERS)
    huge_numbers(topic)
    (row,) = changes(spark, {**topic.options, "numbers": "string"}).select("key.*", "value.*").collect()
    assert row.asDict(recursive=True) == {
        "id": str(HUGE),
        "a": "1E-30",
        "b": str(-HUGE),
        "c": {"k": ["-1.06"]},
        "d": {"street": "Elm", "number": 3, "fee": "1.2"},
    }


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("key.id", "column id: 009F4F2726179A224501D762422C946590D91000000000000000 does not fit DECIMAL(38, 0)"),
        ("value.b", "column b: FF60B0D8D9E865DDBAFE289DBDD36B9A6F26F000000000000000 does not fit DECIMAL(38, 0)"),
        ("value.a", "column a: 1E-30 does not fit DECIMAL(38, 18); read the table with the option numbers=string"),
    ],
)
def test_a_number_that_does_not_fit_is_an_error_and_never_rounded(
    spark: SparkSession, data_topic: MakeTopic, column: str, message: str
) -> None:
    """The default gives DECIMAL: what that cannot hold exactly ends the query, with the column's name."""
    topic = data_topic(*NUMBERS)
    huge_numbers(topic)
    with pytest.raises(PySparkException) as error:
        changes(spark, topic.options).select(column).collect()
    assert message in str(error.value)


DECIMALS = [
    (15, 1, "1.5"),
    (-(10**30), 30, "-1"),
    (5 * 10**20, 20, "5"),
    (0, 400, "0"),
    (123, -3, "123000"),
    (10**38 - 1, 18, "99999999999999999999.999999999999999999"),
    (1, 18, "0.000000000000000001"),
]


def test_a_decimal_of_any_scale_that_fits_is_exact(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Every value has a scale of its own in Cassandra; trailing zeros beyond 18 digits are no loss."""
    topic = data_topic(*NUMBERS)
    for number, (unscaled, scale, _) in enumerate(DECIMALS):
        data = unscaled.to_bytes(17, "big", signed=True)
        topic.write(Record(key={"id": bytes([number])}, value={"a": {"bigint": data, "scale": scale}}))
    rows = changes(spark, topic.options).select("key.id", "value.a").collect()
    assert {int(row.id): row.a for row in rows} == {n: Decimal(text) for n, (_, _, text) in enumerate(DECIMALS)}


CLUSTERED = table_schemas(partition_key={"pk": "text"}, clustering={"ck": "int"}, regular={"v": "int"})
BEFORE = table_schemas(partition_key={"id": "int"}, regular={"b": "text", "old": "int"})
AFTER = table_schemas(partition_key={"id": "int"}, regular={"a": "int", "b": "text", "c": "list<decimal>"})


def test_columns_added_and_dropped_in_mid_stream(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Each record is read by its own version: added columns are null before, a dropped one is gone."""
    topic = data_topic(*BEFORE)
    topic.write(Record(key={"id": 1}, value={"b": "x", "old": 9}), Record(key={"id": 2}), batch=2)
    topic.write(Record(key={"id": 3}, value={"a": 5, "b": "y", "c": []}), value_schema=AFTER[1])
    topic.write(Record(key={"id": 4}, value={"b": "z", "old": 8}))
    rows = changes(spark, topic.options).select("key.id", "schema_version", "op", "value.*").collect()
    assert rows == [
        Row(id=1, schema_version=0, op="u", a=None, b="x", c=None),
        Row(id=2, schema_version=0, op="d", a=None, b=None, c=None),
        Row(id=3, schema_version=1, op="u", a=5, b="y", c=[]),
        Row(id=4, schema_version=0, op="u", a=None, b="z", c=None),
    ]


def test_a_renamed_key_column_goes_by_its_new_name(spark: SparkSession, data_topic: MakeTopic) -> None:
    """ALTER TABLE RENAME changes no byte of a key."""
    topic = data_topic(*table_schemas(partition_key={"id": "int"}, clustering={"ck": "text"}, regular={"v": "int"}))
    topic.write(Record(key={"id": 1, "ck": "a"}, value={"v": 1}))
    renamed, _ = table_schemas(partition_key={"id": "int"}, clustering={"place": "text"}, regular={"v": "int"})
    topic.writer.write(topic.name, renamed, topic.value_schema, [Record(key={"id": 2, "place": "b"}, value={"v": 2})])
    rows = changes(spark, topic.options).select("key.*", "value.*").collect()
    assert rows == [Row(id=1, place="a", v=1), Row(id=2, place="b", v=2)]


def test_a_schema_that_came_after_the_query_began_is_named(
    spark: SparkSession, data_topic: MakeTopic, tmp_path: Path
) -> None:
    """A running stream has its columns; ALTER TABLE ends it with a line that says so, and a restart goes on."""
    topic = data_topic(*BEFORE)
    topic.write(Record(key={"id": 1}, value={"b": "x"}))

    def run() -> list[Row]:
        raw = spark.readStream.format("cassandra_cdc").options(**topic.options).load()
        rows = typed(raw, topic.options).select("key.*", "value.*")
        seen: list[Row] = []

        def sink(frame: DataFrame, batch: int) -> None:
            seen.extend(frame.collect())
            if batch == 0:
                topic.write(Record(key={"id": 2}, value={"a": 7}), value_schema=AFTER[1])

        stream = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
        query = stream.trigger(processingTime="0 seconds").start()
        try:
            query.processAllAvailable()
            query.processAllAvailable()
        finally:
            query.stop()
        return seen

    with pytest.raises(PySparkException) as error:
        run()
    assert "has schema version 1, which this query does not know (it knows 0); start it again" in str(error.value)
    assert run() == [Row(id=2, a=7, b=None, c=None)]


def test_a_micro_batch_is_typed_by_the_newest_schema(
    spark: SparkSession, data_topic: MakeTopic, tmp_path: Path
) -> None:
    """In `foreachBatch` each batch has the columns of its time: ALTER TABLE ends nothing."""
    topic = data_topic(*BEFORE)
    topic.write(Record(key={"id": 1}, value={"b": "x"}))
    seen: list[Row] = []

    def sink(raw: DataFrame, batch: int) -> None:
        seen.extend(typed(raw, topic.options).select("key.*", "value.*").collect())
        if batch == 0:
            topic.write(Record(key={"id": 2}, value={"a": 7}), value_schema=AFTER[1])

    raw = spark.readStream.format("cassandra_cdc").options(**topic.options).load()
    stream = raw.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
    query = stream.trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    query.processAllAvailable()
    query.stop()
    assert seen == [Row(id=1, b="x", old=None), Row(id=2, a=7, b=None, c=None)]


def test_typed_columns_in_a_stream(spark: SparkSession, data_topic: MakeTopic, tmp_path: Path) -> None:
    """`typed` works on a streaming DataFrame as on a batch one."""
    topic = data_topic(*AFTER)
    topic.write(Record(key={"id": 1}, value={"a": 1, "c": [{"bigint": b"\x0f", "scale": 1}]}), Record(key={"id": 2}))
    raw = spark.readStream.format("cassandra_cdc").options(**topic.options).load()
    rows = typed(raw, topic.options).select("key.id", "op", "value.c")
    stream = rows.writeStream.format("memory").queryName("typed_rows").option("checkpointLocation", str(tmp_path))
    assert stream.trigger(availableNow=True).start().awaitTermination(300)
    assert spark.table("typed_rows").orderBy(F.col("id")).collect() == [
        Row(id=1, op="u", c=[Decimal("1.5")]),
        Row(id=2, op="d", c=None),
    ]


def test_an_undecodable_record_is_named_or_kept(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Bytes that are no Avro of the record's schema: an error with the message id, or by option a row in `_corrupt`."""
    topic = data_topic(*BEFORE)
    topic.write(Record(key={"id": 1}, value={"b": "good"}))
    cut, key = base64.b64encode(b"\x02\x0ax").decode(), base64.b64encode(b"\x04").decode()
    bad = [
        {"key": key, "value": cut, "properties": {}},
        {"key": base64.b64encode(b"\xff").decode(), "value": None, "properties": {}},
    ]
    texts = schema_text(BEFORE[0]), schema_text(BEFORE[1])
    ids = [each.removesuffix(":-1") for each in topic.writer.write_bytes(topic.name, *texts, bad)]
    topic.write(Record(key={"id": 3}, value={"b": "good"}))
    said = f"topic {topic.name}: the value of message {ids[0]} cannot be decoded by its schema version 0"
    with pytest.raises(PySparkException) as error:
        changes(spark, topic.options).where(f"message_id <> '{ids[1]}'").collect()
    assert said in str(error.value)
    with pytest.raises(PySparkException, match=f"the value of message {ids[0]} cannot be decoded"):
        current_table(spark, topic.options).collect()
    kept = changes(spark, {**topic.options, "corruptRows": "keep"}).orderBy("message_id")
    assert kept.select("key.id", "value.b", "_corrupt.key", "_corrupt.value").collect() == [
        Row(id=1, b="good", key=None, value=None),
        Row(id=2, b=None, key=b"\x04", value=b"\x02\x0ax"),
        Row(id=None, b=None, key=b"\xff", value=None),
        Row(id=3, b="good", key=None, value=None),
    ]
    assert [row.reason and row.reason[:40] for row in kept.select("_corrupt.reason").collect()] == [
        None,
        said[:40],
        said[:40],
        None,
    ]


@pytest.mark.parametrize("kind", ["row", "row_deletion"])
def test_an_undecodable_key_of_a_clustered_table_is_named(
    spark: SparkSession, data_topic: MakeTopic, kind: str
) -> None:
    """There the key tells what a record speaks about, before it is a row of the table."""
    topic = data_topic(*CLUSTERED)
    topic.write(Record(key={"pk": "a", "ck": 1}, value={"v": 1}))
    key, value = base64.b64encode(b"\xff").decode(), base64.b64encode(b"\x02\x02").decode()
    bad = {"key": key, "value": value if kind == "row" else None, "properties": {"kind": kind}}
    (written,) = topic.writer.write_bytes(topic.name, *map(schema_text, CLUSTERED), [bad])
    said = f"topic {topic.name}: the key of message {written.removesuffix(':-1')} cannot be decoded by its schema version 0"
    with pytest.raises(PySparkException) as error:
        current_table(spark, topic.options).collect()
    assert said in str(error.value)
    schemas = TopicSchemas.fetch(BridgeOptions.from_mapping(topic.options))
    with pytest.raises(PySparkException) as error:
        all_records(raw_batch(spark, topic.options), schemas).collect()
    assert said in str(error.value)


def test_a_topic_without_a_schema_is_named(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Nothing was ever published: there are no columns yet."""
    topic = data_topic(*BEFORE)
    with pytest.raises(TopicError) as error:
        changes(spark, topic.options)
    assert str(error.value) == (
        f"topic {topic.name}: has no schema yet: the connector registers one with its first record"
    )


def test_a_topic_with_another_kind_of_schema_is_named(
    spark: SparkSession, data_topic: MakeTopic, pulsar: PulsarServer
) -> None:
    """A topic of plain texts has no key and value columns."""
    topic = data_topic(*BEFORE)
    client = pulsar_client.Client(
        pulsar.service_url, logger=pulsar_client.ConsoleLogger(pulsar_client.LoggerLevel.Error)
    )
    client.create_producer(topic.name, schema=pulsar_client.schema.StringSchema()).close()
    client.close()
    with pytest.raises(TopicError) as error:
        changes(spark, topic.options)
    assert f"topic {topic.name}: schema version 0 is STRING; typed columns need KEY_VALUE SEPARATED AVRO" in str(
        error.value
    )
