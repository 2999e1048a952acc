"""Random values of random types, nested three deep: from CQL through both topics, in Avro and JSON, and to Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any, Final

import pytest
from cassandra.cluster import Session
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from schemas.cql_type import CqlType, ListType, MapType, NativeType, SetType, TupleType, UserType, VectorType
from tests.cql.forms import comparable, consumer_form, from_json, order_of, sorted_sets
from tests.cql.strategies import cql_text, cql_types, declared, literals, user_types_of
from tests.fixtures.drawn import Serve, drawn, newest, spark_rows, table_rows
from tests.servers.interface import PulsarServer
from tests.topics.data_topic import DataTopic

_ROWS: Final = 4
_COLUMNS: Final = 96
_SHARE_OF_SPARK: Final = 8
"""One in this many columns is in a table that Spark reads, too: Spark takes seconds for many nested types."""
_EXACT: Final = Context(prec=200)


def _columns() -> st.SearchStrategy[tuple[CqlType, list[str]]]:
    return cql_types(3).flatmap(
        lambda each: st.tuples(st.just(each), st.lists(literals(each), min_size=_ROWS, max_size=_ROWS))
    )


@pytest.mark.timeout(1800)
def test_a_value_of_any_type_nested_three_deep_is_equal_in_avro_json_and_spark(
    cql: Session,
    keyspace: str,
    serve: Serve,
    pulsar: PulsarServer,
    spark: SparkSession,
) -> None:
    """The values are compared with those that the driver reads, by code that is not ours; a failure names the simplest
    wrong column."""
    columns = drawn(_columns(), _COLUMNS)
    parts = [columns[::_SHARE_OF_SPARK], *(columns[at::2] for at in range(2))]
    for number, part in enumerate(parts):
        for user_type in dict.fromkeys(found for cql_type, _ in part for found in user_types_of(cql_type)):
            cql.execute(f"CREATE TYPE IF NOT EXISTS {keyspace}.{declared(user_type)}")
        columns_text = ", ".join(f"c{at} {cql_text(cql_type)}" for at, (cql_type, _) in enumerate(part))
        cql.execute(f"CREATE TABLE {keyspace}.t{number} (pk int PRIMARY KEY, {columns_text}) WITH cdc = true")
    topics = serve([f"t{number}" for number in range(len(parts))], "key-value-avro", "key-value-json")
    for number, part in enumerate(parts):
        names = ", ".join(f"c{at}" for at in range(len(part)))
        for row in range(_ROWS):
            values = ", ".join(values[row] for _, values in part)
            cql.execute(f"INSERT INTO {keyspace}.t{number} (pk, {names}) VALUES ({row + 1}, {values})")
    wrong = []
    for number, part in enumerate(parts):
        types = {f"c{at}": cql_type for at, (cql_type, _) in enumerate(part)}
        rows = table_rows(cql, f"{keyspace}.t{number}")
        expected = {pk: {name: consumer_form(types[name], row[name]) for name in types} for pk, row in rows.items()}
        assert sorted(expected) == list(range(1, _ROWS + 1))
        found = {
            "avro": _forms(topics["key-value-avro"][number], types, sorted_sets),
            "json": _forms(topics["key-value-json"][number], types, from_json),
        }
        for where, by_key in found.items():
            wrong += [
                (cql_text(types[name]), where, value, by_key[pk][name])
                for pk, row in expected.items()
                for name, value in row.items()
                if by_key[pk][name] != value
            ]
        if number > 0:
            continue
        read = {row["pk"]: row for row in spark_rows(spark, pulsar, topics["key-value-avro"][number].name)}
        assert sorted(read) == sorted(expected)
        for pk, row in read.items():
            forms = {
                name: (_spark_form(types[name], expected[pk][name]), _found_form(types[name], row[name]))
                for name in types
            }
            wrong += [(cql_text(types[name]), "spark", *pair) for name, pair in forms.items() if pair[0] != pair[1]]
    wrong.sort(key=lambda each: len(each[0]))
    assert not wrong, f"{len(wrong)} values differ; the simplest: type, place, expected, found = {wrong[0]}"


def _forms(topic: DataTopic, types: Mapping[str, CqlType], convert: Callable[[CqlType, Any], Any]) -> dict[int, Any]:
    found = {}
    for pk, record in newest(topic, _ROWS).items():
        assert record.value is not None
        found[pk] = {name: convert(cql_type, record.value.get(name)) for name, cql_type in types.items()}
    return found


def _spark_form(cql_type: CqlType, value: Any) -> Any:
    """The form that docs/spark.md documents for an Avro value, with dates as days and timestamps as milliseconds."""
    if value is None:
        return None
    match cql_type:
        case NativeType("varint"):
            return str(int.from_bytes(value, "big", signed=True))
        case NativeType("decimal"):
            return Decimal(int.from_bytes(value["bigint"], "big", signed=True)).scaleb(-value["scale"], _EXACT)
        case ListType(element) | VectorType(element, _):
            return [_spark_form(element, each) for each in value]
        case SetType(element):
            return sorted((_spark_form(element, each) for each in value), key=order_of)
        case MapType(_, of):
            return {key: _spark_form(of, each) for key, each in value.items()}
        case TupleType(types) | UserType(_, _, _, types):
            return {name: _spark_form(each, value[name]) for name, each in zip(value, types, strict=True)}
        case _:
            return value


def _found_form(cql_type: CqlType, value: Any) -> Any:
    """The same form of a value in Spark's rows."""
    if value is None:
        return None
    match cql_type:
        case NativeType("date"):
            return (value - dt.date(1970, 1, 1)).days
        case NativeType("timestamp"):
            return round(
                (value.astimezone(dt.UTC) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) / dt.timedelta(milliseconds=1)
            )
        case NativeType("decimal"):
            return Decimal(value)
        case NativeType("blob"):
            return bytes(value)
        case NativeType("double" | "float"):
            return comparable(value)
        case ListType(element) | VectorType(element, _):
            return [_found_form(element, each) for each in value]
        case SetType(element):
            return sorted((_found_form(element, each) for each in value), key=order_of)
        case MapType(_, of):
            return {key: _found_form(of, each) for key, each in value.items()}
        case TupleType(types) | UserType(_, _, _, types):
            return {name: _found_form(each, value[name]) for name, each in zip(value, types, strict=True)}
        case _:
            return value
