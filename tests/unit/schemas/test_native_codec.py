"""The properties of each native CQL type."""

from __future__ import annotations

import pytest

from schemas.cql_type import NATIVE_TYPE_NAMES
from schemas.native_codec import CODECS, AvroSchema

_UUID: AvroSchema = {"type": "string", "logicalType": "uuid"}

# The Avro type (for a record its name), the number of bytes if no length precedes them (otherwise None), and a value as
# CQL bytes and as JSON.
TYPES: list[tuple[str, AvroSchema, int | None, str, str]] = [
    ("ascii", "string", None, "6122", '"a\\""'),
    ("bigint", "long", 8, "fffffffffffffffe", "-2"),
    ("blob", "bytes", None, "cafe", '"yv4="'),
    ("boolean", "boolean", 1, "01", "true"),
    ("counter", "long", None, "0000000000000007", "7"),
    ("date", {"type": "int", "logicalType": "date"}, None, "80000001", "1"),
    ("decimal", "cql_decimal", None, "0000000204d2", '{"bigint":"BNI=","scale":2}'),
    ("double", "double", 8, "3ff8000000000000", "1.5"),
    ("duration", "cql_duration", None, "020406", '{"months":1,"days":2,"nanoseconds":3}'),
    ("empty", "null", None, "", "null"),
    ("float", "float", 4, "7fc00000", '"NaN"'),
    ("inet", "string", None, "7f000001", '"127.0.0.1"'),
    ("int", "int", 4, "fffffffe", "-2"),
    ("smallint", "int", None, "fffe", "-2"),
    ("text", "string", None, "c3a4", '"ä"'),
    ("time", {"type": "long", "logicalType": "time-micros"}, None, "00000000000007d0", "2"),
    ("timestamp", {"type": "long", "logicalType": "timestamp-millis"}, 8, "0000000000000007", "7"),
    ("timeuuid", _UUID, 16, "00000001000011f08000000000000000", '"00000001-0000-11f0-8000-000000000000"'),
    ("tinyint", "int", None, "fe", "-2"),
    ("uuid", _UUID, 16, "00000001000041f08000000000000000", '"00000001-0000-41f0-8000-000000000000"'),
    ("varint", {"type": "bytes", "logicalType": "cql_varint"}, None, "00ff", '"AP8="'),
]


@pytest.mark.parametrize(("name", "avro", "length", "data", "json"), TYPES)
def test_a_type_is_known_in_all_its_forms(
    name: str, avro: AvroSchema, length: int | None, data: str, json: str
) -> None:
    """Its Avro type, its length in the commit log, and its JSON text."""
    codec = CODECS[name]
    known = codec.avro["name"] if isinstance(codec.avro, dict) and "name" in codec.avro else codec.avro
    assert (known, codec.length) == (avro, length)
    assert codec.json(codec.read(bytes.fromhex(data))) == json


def test_every_native_type_is_in_the_table() -> None:
    """`varchar` is an alias of `text`."""
    assert {name for name, *_ in TYPES} == CODECS.keys() == NATIVE_TYPE_NAMES - {"varchar"}
