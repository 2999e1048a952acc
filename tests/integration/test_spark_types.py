"""Columns in Spark: their names, the type and the value of each CQL type, and numbers of any size."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from schemas.cql_type import NativeType, UserType
from schemas.cql_value import AvroValue
from schemas.row_record import AvroSchema
from spark_bridge import changes, raw_batch, typed
from spark_bridge.rows.avro_encoding import AvroEncoder, field_types
from spark_bridge.rows.typed import value_decoder
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.topic_schemas import TopicSchemas
from tests.fixtures.spark import DataTopic, MakeTopic, Record, table_schemas

pytestmark = pytest.mark.spark_line(">=4.1")

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
    """The names are those that the connector writes to Avro: letters, digits and underscores. Capitals stay."""
    place = UserType("shop", "my place", ("Street Name",), (NativeType("text"),))
    key, value = table_schemas(
        partition_key={"the key": "int"},
        regular={"1st": "text", "Mixed": "int", "string": "text", "where": 'frozen<"my place">'},
        user_types={"my place": place},
    )
    topic = data_topic(key, value)
    row: Mapping[str, AvroValue] = {"_1st": "a", "Mixed": 2, "string": "s", "where": {"Street_u0020_Name": "Elm"}}
    topic.write(Record(key={"the_u0020_key": 1}, value=row))
    (found,) = changes(spark, topic.options).select("key.*", "value.*").collect()
    assert found.asDict(recursive=True) == {"the_u0020_key": 1} | dict(row)


def test_every_cql_type_has_its_spark_type_and_value(spark: SparkSession, data_topic: MakeTopic) -> None:
    """The types of docs/spark.md, one column for each type, with values and with nulls."""
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


def test_every_cql_type_is_encoded_again_as_it_was(spark: SparkSession, data_topic: MakeTopic) -> None:
    """With numbers as text, the bytes are equal. Decimals of a fixed scale get the scale that they need, and are read
    as equal values."""
    key, value = table_schemas(
        partition_key={"id": "int"},
        regular={name: cql for name, (cql, _, _, _) in TYPES.items()} | {"zero": "decimal", "huge": "decimal"},
        user_types={"address": ADDRESS},
    )
    topic = data_topic(key, value)
    full = {name: avro for name, (_, avro, _, _) in TYPES.items()}
    numbers = {"zero": {"bigint": b"\0", "scale": 0}, "huge": {"bigint": (10**19).to_bytes(9, "big"), "scale": 0}}
    topic.write(
        Record(key={"id": 1}, value={**full, **numbers}), Record(key={"id": 2}, value=dict.fromkeys(value_names(value)))
    )

    def encoded_again(kind: str) -> tuple[list[object], list[object]]:
        options = {**topic.options, "numbers": kind}
        schemas = TopicSchemas.fetch(BridgeOptions.from_mapping(options))
        encoder, decoder = AvroEncoder(schemas.newest.value), value_decoder(schemas, "string")
        rows = typed(raw_batch(spark, topic.options), options)
        columns = {
            each.name: (F.col("value").getField(each.name), each.dataType) for each in rows.schema["value"].dataType
        }
        again = rows.select("message_id", encoder.encode(encoder.record(columns)).alias("again"))
        both = again.join(raw_batch(spark, topic.options).select("message_id", "value", "schema_version"), "message_id")
        if kind == "decimal":
            both = both.select(
                "message_id",
                *[decoder.decode(F.col(each), F.col("schema_version")).alias(each) for each in ("again", "value")],
            )
            both = both.select(
                "message_id", *[F.to_json(decoder.finish(F.col(each))).alias(each) for each in ("again", "value")]
            )
        found = both.orderBy("message_id").collect()
        return [each.again for each in found], [each.value for each in found]

    again, before = encoded_again("string")
    assert again == before
    again, before = encoded_again("decimal")
    shorter = str(before[0]).replace('"-1.50"', '"-1.5"').replace('"7E+2"', '"700"')
    assert again == [shorter, before[1]]
    assert again[0] != before[0]


def value_names(schema: AvroSchema) -> list[str]:
    """Names of a record's fields."""
    return [name for name, _ in field_types(schema)]


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
    """`numbers=string` keeps every digit and the scale, also in collections and user types."""
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
    """By default numbers are DECIMAL: a number that does not fit exactly ends the query with the column's name."""
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
    """In Cassandra each value has its own scale; trailing zeros beyond 18 digits are no loss."""
    topic = data_topic(*NUMBERS)
    for number, (unscaled, scale, _) in enumerate(DECIMALS):
        data = unscaled.to_bytes(17, "big", signed=True)
        topic.write(Record(key={"id": bytes([number])}, value={"a": {"bigint": data, "scale": scale}}))
    rows = changes(spark, topic.options).select("key.id", "value.a").collect()
    assert {int(row.id): row.a for row in rows} == {n: Decimal(text) for n, (_, _, text) in enumerate(DECIMALS)}
