"""Keys of events: the bytes that are copied directly from CQL to Avro equal those of the reference encoder."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from change_agent.events.avro_key import EventKeys
from schemas.avro_names import avro_names
from schemas.cql_type import CqlType, CustomType, ListType, NativeType, TupleType, UserType, VectorType
from schemas.cql_value import AvroValue, CqlValueError, column_reader, split_partition_key
from schemas.row_record import events_key_schema, record_writer
from schemas.table_metadata import TableMetadata
from tests.cql.native_types import NATIVE_TYPES
from tests.cql.tables import table_of

_INT, _TEXT = NativeType("int"), NativeType("text")
_TYPES: list[CqlType] = [
    *map(NativeType, NATIVE_TYPES),
    ListType(_TEXT),
    TupleType((_INT, _TEXT)),
    UserType("ks", "a type", ("a b", "c"), (_INT, _TEXT)),
    VectorType(_INT, 2),
    CustomType("org.example.SomeType"),
]


def _table(partition: list[CqlType], clustering: list[CqlType]) -> TableMetadata:
    return table_of(
        {f"p {i}": each for i, each in enumerate(partition)}, {f"c{i}": each for i, each in enumerate(clustering)}
    )


def _reference(table: TableMetadata, partition_key: bytes, clustering: tuple[bytes | None, ...]) -> bytes | None:
    """The key as encoded from values by fastavro; None if the values are refused."""
    values: list[bytes | None] = [*split_partition_key(partition_key, len(table.partition_key)), *clustering]
    names = avro_names([each.name for each in table.primary_key])
    try:
        record: dict[str, AvroValue] = {
            name: None if value is None else column_reader(column)(value)
            for name, column, value in zip(names, table.primary_key, values, strict=True)
        }
    except CqlValueError:
        return None
    if any(record[name] is None for name in names[: len(table.partition_key)]):
        return None
    try:
        return record_writer(events_key_schema(table))(record)
    except (ValueError, OverflowError):
        return None


def _written(table: TableMetadata, partition_key: bytes, clustering: tuple[bytes | None, ...]) -> bytes | None:
    keys = EventKeys(table)
    try:
        return keys.key(keys.partition(partition_key), clustering)
    except CqlValueError:
        return None


_VALUES = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([1, 2, 4, 8, 16]).flatmap(lambda size: st.binary(min_size=size, max_size=size)),
    st.text(max_size=40).map(str.encode),
)


@pytest.mark.parametrize("cql_type", _TYPES, ids=str)
@settings(max_examples=60, deadline=None)
@example(b"")
@example(b"\x80")
@example(b"\x7f\xff\xff\xff")
@example(b"\x80" + b"\0" * 7)
@example(b"\xff" * 16)
@example(struct.pack(">f", 1.5))
@given(_VALUES)
def test_a_value_of_any_type_is_written_as_by_the_reference(cql_type: CqlType, value: bytes) -> None:
    """Test the type in the partition key and as a clustering column. Both encoders refuse the same values."""
    for table, key, clustering in (
        (_table([cql_type], []), value, ()),
        (_table([_INT], [cql_type]), b"\0\0\0\1", (value,)),
    ):
        assert _written(table, key, clustering) == _reference(table, key, clustering)


def test_equal_decimals_are_one_key_of_a_row_and_two_keys_of_partitions() -> None:
    """Cassandra compares the values of clustering columns, and the bytes of partition keys."""
    decimal = NativeType("decimal")
    forms = [struct.pack(">i", scale) + number for scale, number in ((0, b"\1"), (1, b"\x0a"), (2, b"\0\0\x64"))]
    by_row = _table([_INT], [decimal])
    assert {_written(by_row, b"\0\0\0\1", (each,)) for each in forms} == {b"\2\2\2\1\0"}
    by_partition = _table([decimal], [])
    assert [_written(by_partition, each, ()) for each in forms] == [b"\2\1\0", b"\2\x0a\2", b"\2\x64\4"]


@pytest.mark.parametrize(
    ("name", "forms"),
    [
        (
            "double",
            ["7ff8000000000000", "7ff8000000000001", "fff8000000000000", "7ff0000000000001", "ffffffffffffffff"],
        ),
        ("float", ["7fc00000", "7fc00001", "ffc00000", "7f800001", "ffffffff"]),
    ],
)
def test_all_nan_are_one_key_of_a_row_and_several_keys_of_partitions(name: str, forms: list[str]) -> None:
    """Cassandra compares the values of clustering columns, and the bytes of partition keys.

    A partition's key keeps the bytes, except that Python sets the highest fraction bit of a float's NaN.
    """
    values = [bytes.fromhex(each) for each in forms]
    by_row, by_partition = _table([_INT], [NativeType(name)]), _table([NativeType(name)], [])
    assert {_written(by_row, b"\0\0\0\1", (each,)) for each in values} == {b"\2\2" + values[0][::-1]}
    kept = [each for each in values if name == "double" or each[1] & 0x40]
    assert [_written(by_partition, each, ()) for each in kept] == [each[::-1] for each in kept]


@pytest.mark.parametrize("name", ["double", "float"])
def test_numbers_that_are_no_nan_keep_their_bytes(name: str) -> None:
    """Infinity is next to NaN. The two zeros are two rows for Cassandra."""
    code = {"double": ">d", "float": ">f"}[name]
    numbers = [0.0, -0.0, 1.5, -1.5, float("inf"), float("-inf")]
    values = [struct.pack(code, each) for each in numbers]
    table = _table([_INT], [NativeType(name)])
    assert [_written(table, b"\0\0\0\1", (each,)) for each in values] == [b"\2\2" + each[::-1] for each in values]


def test_a_key_of_several_columns() -> None:
    """A composite partition key with an absent clustering column, with an empty one, and a partition deletion."""
    table = _table([_TEXT, _INT], [_INT, _TEXT])
    partition_key = b"\0\2ab\0\0\4\0\0\0\5\0"
    for clustering in ((b"\0\0\0\7", "ü".encode()), (None, b""), (b"", None)):
        written = _written(table, partition_key, clustering)
        assert written is not None
        assert written == _reference(table, partition_key, clustering)
    keys = EventKeys(table)
    assert keys.key(keys.partition(partition_key), ()) == b"\4ab\x0a\0\0"


def test_an_empty_part_of_a_partition_key_is_refused_with_its_type() -> None:
    """Avro has no null for this field. The agent parks such a mutation and does not end."""
    keys = EventKeys(_table([_INT, _TEXT], []))
    with pytest.raises(CqlValueError, match="a value of type int: an empty value has no form"):
        keys.partition(b"\0\0\0\0\1a\0")
