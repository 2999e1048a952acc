"""Keys that DataStax's agents wrote become the CQL bytes that Cassandra stores."""

from __future__ import annotations

import pytest

from schemas.cql_bytes import UnwritableKeyError, cql_bytes, joined_partition_key
from schemas.cql_type import ListType, NativeType
from schemas.cql_value import split_partition_key, value_reader
from schemas.json_value import AvroValue


@pytest.mark.parametrize(
    ("cql_type", "value", "expected"),
    [
        ("ascii", "a", "61"),
        ("text", "é", "c3a9"),
        ("blob", b"\xca\xfe", "cafe"),
        ("boolean", True, "01"),
        ("tinyint", 5, "05"),
        ("tinyint", 251, "fb"),
        ("tinyint", -5, "fb"),
        ("smallint", 65236, "fed4"),
        ("int", -7, "fffffff9"),
        ("bigint", -8, "fffffffffffffff8"),
        ("varint", b"\xf7", "f7"),
        ("decimal", {"bigint": b"\xff\x6a", "scale": 2}, "00000002ff6a"),
        ("double", 1.5, "3ff8000000000000"),
        ("float", -2.25, "c0100000"),
        ("inet", "192.168.1.1", "c0a80101"),
        ("inet", "2001:db8:0:0:0:0:0:1", "20010db8000000000000000000000001"),
        ("timestamp", 1609459200123, "00000176bb3e707b"),
        ("date", -1, "7fffffff"),
        ("time", 3723123456, "00000362db737800"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567e89b12d3a456426614174000"),
        ("timeuuid", "50554d6e-29bb-11e5-b345-feff819cdc9f", "50554d6e29bb11e5b345feff819cdc9f"),
    ],
)
def test_a_value_becomes_its_bytes(cql_type: str, value: AvroValue, expected: str) -> None:
    """An agent may have written the value without its sign. Reading the bytes returns the value."""
    data = cql_bytes(NativeType(cql_type), value)
    assert data.hex() == expected
    if not (isinstance(value, int) and value in (251, 65236)):
        assert value_reader(NativeType(cql_type))(data) == value


@pytest.mark.parametrize(
    ("cql_type", "value"),
    [
        ("int", "a"),
        ("int", 1 << 40),
        ("tinyint", 256),
        ("text", 1),
        ("uuid", "x"),
        ("inet", "1.2"),
        ("duration", 1),
        ("decimal", {"scale": 1}),
        ("blob", None),
        ("date", -1 << 40),
    ],
)
def test_what_is_no_value_of_the_column_is_an_error(cql_type: str, value: AvroValue) -> None:
    """It may come from an event of another table with the same name."""
    with pytest.raises(UnwritableKeyError, match=f"a key column of type {cql_type} cannot be"):
        cql_bytes(NativeType(cql_type), value)


def test_a_collection_is_in_no_key_of_those_agents() -> None:
    """These agents skip tables with a collection in the key."""
    with pytest.raises(UnwritableKeyError, match="list<int>"):
        cql_bytes(ListType(NativeType("int")), [1])


@pytest.mark.parametrize("components", [(b"a",), (b"a", b""), (b"a", b"bc", b"\0\0")])
def test_a_partition_key_is_joined_as_cassandra_splits_it(components: tuple[bytes, ...]) -> None:
    """A single component has no length; several components each have one."""
    assert split_partition_key(joined_partition_key(components), len(components)) == components
