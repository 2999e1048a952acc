"""CQL bytes to Avro values: the bytes are in the native protocol's form, the values in that of DataStax's connector."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.cql_type import CqlType, NativeType, UserType, parse_cql_type
from schemas.cql_value import (
    AvroValue,
    CqlValueError,
    column_json_reader,
    column_reader,
    has_equal_forms,
    minimal_varint,
    split_partition_key,
    value_reader,
)
from schemas.java_text import java_double_text
from schemas.long_numbers import decimal_of
from schemas.row_record import data_key_schema, record_writer
from schemas.table_metadata import ColumnKind, ColumnMetadata
from tests.cql.tables import table_of

PAIR = UserType("ks", "pair", ("a", "b"), (parse_cql_type("int", {}), parse_cql_type("text", {})))


def parse(text: str) -> CqlType:
    return parse_cql_type(text, {"pair": PAIR})


def sized(*values: bytes | None) -> bytes:
    """Values after their int32 length, or -1 for null, as inside collections, tuples and user types."""
    return b"".join(b"\xff\xff\xff\xff" if each is None else struct.pack(">i", len(each)) + each for each in values)


def counted(count: int, *values: bytes | None) -> bytes:
    return struct.pack(">i", count) + sized(*values)


@pytest.mark.parametrize(
    ("cql_type", "data", "expected"),
    [
        ("text", "hé".encode(), "hé"),
        ("text", b"", ""),
        ("blob", b"", b""),
        ("tinyint", b"\xfb", -5),
        ("smallint", b"\xfe\xd4", -300),
        ("int", b"", None),
        ("int", b"\x80\x00\x00\x00", -(2**31)),
        ("bigint", b"\xff" * 8, -1),
        ("counter", b"\x00" * 7 + b"\x09", 9),
        ("boolean", b"\x01", True),
        ("double", b"\x3f\xf8" + b"\x00" * 6, 1.5),
        ("varint", b"\x00\x00\x7f", b"\x7f"),
        ("decimal", b"\x00\x00\x00\x02\xff\x6a", {"bigint": b"\xff\x6a", "scale": 2}),
        ("timestamp", (1609459200123).to_bytes(8, "big"), 1609459200123),
        ("date", b"\x7f\xff\xff\xff", -1),
        ("time", (3723123456789).to_bytes(8, "big"), 3723123456),
        ("uuid", bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
        ("inet", b"\xc0\xa8\x01\x01", "192.168.1.1"),
        ("inet", b"\x20\x01\x0d\xb8" + b"\x00" * 11 + b"\x01", "2001:db8:0:0:0:0:0:1"),
        ("duration", b"\x02\x04\x05", {"months": 1, "days": 2, "nanoseconds": -3}),
        (
            "duration",
            b"\x00\x00\xff\x7f\xff\xff\xff\xff\xff\xff\xfe",
            {"months": 0, "days": 0, "nanoseconds": 2**62 - 1},
        ),
        ("list<int>", counted(2, b"\0\0\0\1", b"\0\0\0\2"), [1, 2]),
        ("set<text>", counted(0), []),
        ("map<int, text>", counted(1, b"\0\0\0\1", b"x"), {"1": "x"}),
        ("tuple<int, text>", sized(b"\0\0\0\1", None), {"index_0": 1, "index_1": None}),
        ("pair", sized(b"\0\0\0\1"), {"a": 1, "b": None}),
        ("vector<int, 2>", b"\0\0\0\1\0\0\0\2", [1, 2]),
        ("vector<text, 2>", b"\x01a\x02bc", ["a", "bc"]),
        ("'some.Custom'", b"\x01", b"\x01"),
    ],
)
def test_bytes_of_a_type_become_its_avro_value(cql_type: str, data: bytes, expected: AvroValue) -> None:
    """One case for each type. The expected values are literals."""
    assert value_reader(parse(cql_type))(data) == expected


@pytest.mark.parametrize(
    ("cql_type", "data"),
    [
        ("int", b"\0\0\0"),
        ("bigint", b"\0" * 9),
        ("uuid", b"\0" * 15),
        ("text", b"\xff"),
        ("inet", b"\0" * 5),
        ("duration", b"\x02"),
        ("list<int>", b"\x7f\xff\xff\xff"),
        ("list<int>", b"\xff\xff\xff\xff"),
        ("list<int>", counted(1) + b"\x7f\xff\xff\xff"),
        ("tuple<int, int>", b"\0\0\0"),
        ("vector<int, 2>", b"\0\0\0\1"),
        ("vector<text, 2>", b"\x01a\xff" + b"\xff" * 8),
    ],
)
def test_bytes_that_do_not_fit_their_type_are_a_typed_error(cql_type: str, data: bytes) -> None:
    """A wrong length or count never reads beyond the value, and never allocates what it claims."""
    with pytest.raises(CqlValueError) as caught:
        value_reader(parse(cql_type))(data)
    assert str(caught.value.cql_type) in str(caught.value)


@pytest.mark.parametrize(
    ("key_type", "data", "text"),
    [
        ("timestamp", (1609459200123).to_bytes(8, "big"), "2021-01-01T00:00:00.123Z"),
        ("timestamp", (1609459200000).to_bytes(8, "big"), "2021-01-01T00:00:00Z"),
        ("date", b"\x7f\xff\xff\xff", "1969-12-31"),
        ("time", (3723123456789).to_bytes(8, "big"), "01:02:03.123456789"),
        ("time", (3720000000000).to_bytes(8, "big"), "01:02"),
        ("time", (3723120000000).to_bytes(8, "big"), "01:02:03.120"),
        ("decimal", b"\x00\x00\x00\x02\xff\x6a", "-1.50"),
        ("varint", b"\xf7", "-9"),
        ("boolean", b"\x01", "true"),
        ("double", struct.pack(">d", 1e10), "1.0E10"),
        ("float", struct.pack(">f", 0.1), "0.1"),
        ("blob", b"\xca\xfe", "0xcafe"),
        ("frozen<list<int>>", counted(1, b"\0\0\0\1"), "[1]"),
    ],
)
def test_a_map_key_is_the_text_of_the_java_value(key_type: str, data: bytes, text: str) -> None:
    """Avro maps have text keys; existing consumers know these texts."""
    read = value_reader(parse(f"map<{key_type}, int>"))
    assert read(counted(1, data, b"\0\0\0\1")) == {text: 1}


@pytest.mark.parametrize(
    ("key_type", "value", "text"),
    [
        ("boolean", b"\0", "false"),
        ("int", b"\0\0\0\1", "1"),
        ("timestamp", bytes(8), "1970-01-01T00:00:00Z"),
        ("double", bytes(8), "0.0"),
        ("varint", b"\1", "1"),
        ("decimal", b"\0\0\0\0\1", "1"),
        ("inet", b"\x0a\0\0\1", "10.0.0.1"),
        ("text", b"a", "a"),
    ],
)
def test_an_empty_map_key_is_the_empty_text(key_type: str, value: bytes, text: str) -> None:
    """Cassandra takes bytes of length 0 as the key of an element. They are no other key, such as `false`."""
    read = value_reader(parse(f"map<{key_type}, int>"))
    assert read(counted(2, b"", b"\0\0\0\7", value, b"\0\0\0\1")) == {"": 7, text: 1}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.5, "1.5"),
        (100.0, "100.0"),
        (0.001, "0.001"),
        (0.00012, "1.2E-4"),
        (12345678.0, "1.2345678E7"),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
    ],
)
def test_a_double_is_written_as_java_does(value: float, text: str) -> None:
    """`Double.toString` switches to scientific notation outside 1e-3 to 1e7."""
    assert java_double_text(value) == text


@pytest.mark.parametrize(("data", "minimal"), [(b"\0\0\1", b"\1"), (b"\0\x80", b"\0\x80"), (b"\xff\xff", b"\xff")])
def test_a_varint_loses_needless_bytes_but_not_its_sign(data: bytes, minimal: bytes) -> None:
    """Cassandra stores what a client sent; Java's BigInteger writes the shortest form."""
    assert minimal_varint(data) == minimal


def test_a_composite_partition_key_is_split_into_its_components() -> None:
    """uint16 length, bytes and a zero byte each; a single component is the key itself."""
    assert split_partition_key(b"\0\2t1\0\0\1a\0", 2) == (b"t1", b"a")
    assert split_partition_key(b"\0\2t1\0", 1) == (b"\0\2t1\0",)
    with pytest.raises(CqlValueError):
        split_partition_key(b"\0\2t1\0\0\5a\0", 2)
    with pytest.raises(CqlValueError):
        split_partition_key(b"\0\2t1\0\0\1a\0x", 2)


def test_a_value_with_more_fields_than_its_type_is_refused() -> None:
    """The user type was extended later. Leaving out the new field would lose its value."""
    read = value_reader(parse("pair"))
    assert read(sized(b"\0\0\0\1")) == {"a": 1, "b": None}
    with pytest.raises(CqlValueError, match="5 bytes are after the 2 fields that are known"):
        read(sized(b"\0\0\0\1", b"x", b"y"))


_ONE_ROW = [(1, 0), (10, 1), (100, 2)]


def decimal_bytes(unscaled: int, scale: int) -> bytes:
    return struct.pack(">i", scale) + unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)


def read_in(kind: ColumnKind, cql_type: str, data: bytes) -> AvroValue:
    return column_reader(ColumnMetadata(name="c", kind=kind, type=parse(cql_type)))(data)


@pytest.mark.parametrize(
    ("unscaled", "scale", "expected"),
    [
        (150, 2, (15, 1)),
        (100, 0, (100, 0)),
        (1, -2, (100, 0)),
        (1, -38, (10**38, 0)),
        (1, -39, (1, -39)),
        (10**39, 0, (1, -39)),
        (0, 5, (0, 0)),
        (-1500, 3, (-15, 1)),
        (10, -(2**31), (10, -(2**31))),
        (10, 2**31 - 1, (1, 2**31 - 2)),
    ],
)
def test_a_decimal_of_a_clustering_column_has_the_form_of_its_value(
    unscaled: int, scale: int, expected: tuple[int, int]
) -> None:
    """Without zeros at the end of its fraction. An integer keeps its zeros, unless it has more than 38."""
    found = read_in(ColumnKind.CLUSTERING, "decimal", decimal_bytes(unscaled, scale))
    number, its_scale = expected
    assert found == {"bigint": decimal_bytes(number, 0)[4:], "scale": its_scale}


@given(st.integers(-(10**6), 10**6), st.integers(-50, 50), st.integers(-(10**6), 10**6), st.integers(-50, 50))
def test_decimals_of_a_clustering_column_are_the_same_where_they_are_equal(
    one: int, scale: int, other: int, other_scale: int
) -> None:
    """Equal as in Cassandra: by BigDecimal.compareTo."""
    forms = [
        read_in(ColumnKind.CLUSTERING, "decimal", decimal_bytes(*each)) for each in ((one, scale), (other, other_scale))
    ]
    assert (forms[0] == forms[1]) == (decimal_of(one, scale) == decimal_of(other, other_scale))


@pytest.mark.parametrize(
    ("cql_type", "data"),
    [
        ("frozen<list<decimal>>", lambda value: counted(1, value)),
        ("frozen<map<decimal, int>>", lambda value: counted(1, value, b"\0\0\0\1")),
        ("frozen<tuple<decimal, int>>", sized),
        ("vector<decimal, 1>", lambda value: bytes([len(value)]) + value),
    ],
)
def test_decimals_inside_a_clustering_column_are_the_same_where_they_are_equal(
    cql_type: str, data: Callable[[bytes], bytes]
) -> None:
    """In frozen collections, also in the text of a map's key, and in tuples and vectors."""
    values = [data(decimal_bytes(*each)) for each in _ONE_ROW]
    first, *others = (read_in(ColumnKind.CLUSTERING, cql_type, each) for each in values)
    assert others == [first] * 2
    assert len({repr(read_in(ColumnKind.REGULAR, cql_type, each)) for each in values}) == 3


@pytest.mark.parametrize("kind", [ColumnKind.PARTITION_KEY, ColumnKind.REGULAR, ColumnKind.STATIC])
def test_decimals_of_other_columns_keep_their_scale(kind: ColumnKind) -> None:
    """In a partition key they are several rows."""
    for unscaled, scale in _ONE_ROW:
        found = read_in(kind, "decimal", decimal_bytes(unscaled, scale))
        assert found == {"bigint": decimal_bytes(unscaled, 0)[4:], "scale": scale}


@pytest.mark.parametrize(
    ("cql_type", "data"),
    [
        ("double", lambda value: value),
        ("frozen<list<double>>", lambda value: counted(1, value)),
        ("frozen<tuple<double, int>>", sized),
        ("vector<double, 1>", lambda value: value),
    ],
)
def test_all_nan_of_a_clustering_column_are_one_value(cql_type: str, data: Callable[[bytes], bytes]) -> None:
    """Its bytes are those of Java's Double.NaN. Other columns keep the client's bytes."""
    forms = [data(bytes.fromhex(each)) for each in ("7ff8000000000000", "fff8000000000001", "7ff0000000000001")]

    def written(kind: ColumnKind) -> set[bytes]:
        column = ColumnMetadata(name="c", kind=kind, type=parse(cql_type))
        table = table_of({}, {"c": column.type})
        write = record_writer(data_key_schema(table))
        return {write({"c": column_reader(column)(each)}) for each in forms}

    (found,) = written(ColumnKind.CLUSTERING)
    assert bytes.fromhex("7ff8000000000000")[::-1] in found
    assert len(written(ColumnKind.REGULAR)) == 3


def test_the_json_text_of_a_key_column_has_the_same_form() -> None:
    """The formats with JSON keys."""
    column = ColumnMetadata(name="c", kind=ColumnKind.CLUSTERING, type=NativeType("decimal"))
    texts = {column_json_reader(column)(decimal_bytes(*each)) for each in _ONE_ROW}
    assert texts == {'{"bigint":"AQ==","scale":0}'}


@pytest.mark.parametrize(
    ("cql_type", "expected"),
    [
        ("decimal", True),
        ("float", True),
        ("frozen<map<int, frozen<list<decimal>>>>", True),
        ("vector<double, 2>", True),
        ("pair", False),
        ("varint", False),
    ],
)
def test_a_type_whose_equal_values_are_made_one_is_recognized(cql_type: str, expected: bool) -> None:
    """At any depth."""
    assert has_equal_forms(parse(cql_type)) is expected
