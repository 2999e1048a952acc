"""How a trace shows the values of a record: exactly, also those that Python's own types do not hold."""

from __future__ import annotations

import json

import pytest

from cdc.trace.avro_values import read_avro, value_reader_of
from schemas.native_codec import CODECS, AvroSchema, AvroValue
from schemas.row_record import record_writer


def shown(avro_type: AvroSchema, value: AvroValue) -> object:
    """The field `v` of a record, as a trace shows it."""
    fields: list[AvroSchema] = [{"name": "v", "type": ["null", avro_type], "default": None}]
    record: dict[str, AvroSchema | int | None] = {"type": "record", "name": "t", "namespace": "ks", "fields": fields}
    schema = value_reader_of(json.dumps(record))
    assert schema is not None
    return read_avro(schema, record_writer(record)({"v": value}))["v"]


@pytest.mark.parametrize(
    ("unscaled", "scale", "text"),
    [
        (10**40 + 1, 2, "100000000000000000000000000000000000000.01"),
        (-150, 2, "-1.50"),
        (1, 2**31 - 1, "1E-2147483647"),
        (1, -(2**31), "1E+2147483648"),
    ],
)
def test_a_decimal_is_not_rounded(unscaled: int, scale: int, text: str) -> None:
    """Python's usual precision is 28 digits. A value that was rounded would count as equal to another one."""
    value: AvroValue = {"bigint": unscaled.to_bytes(20, "big", signed=True), "scale": scale}
    assert shown(CODECS["decimal"].avro, value) == text


@pytest.mark.parametrize(
    ("cql_type", "value", "text"),
    [
        ("timestamp", 0, "1970-01-01 00:00:00+00:00"),
        ("timestamp", 9_000_000_000_000_000, 9_000_000_000_000_000),
        ("timestamp", -9_000_000_000_000_000, -9_000_000_000_000_000),
        ("date", 0, "1970-01-01"),
        ("date", 2**31 - 1, 2**31 - 1),
    ],
)
def test_a_time_outside_of_the_years_1_to_9999_is_a_number(cql_type: str, value: int, text: object) -> None:
    """Cassandra has such times. They ended the trace of their row in a traceback."""
    assert shown(CODECS[cql_type].avro, value) == text


def test_a_map_with_the_names_of_a_decimal_is_a_map() -> None:
    """Only bytes and a number make a decimal."""
    assert shown({"type": "map", "values": "int"}, {"bigint": 1, "scale": 2}) == {"bigint": 1, "scale": 2}
