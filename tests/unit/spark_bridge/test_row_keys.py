"""Conversion of an Avro key back to the CQL key and its token."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from schemas.cql_bytes import UnwritableKeyError
from schemas.cql_type import NativeType, UserType
from schemas.cql_value import value_reader
from schemas.native_codec import CODECS
from schemas.row_record import data_key_schema, record_writer
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata
from spark_bridge.jobs.row_keys import RowKeys, token_of
from tests.cql.tables import table_of

# CQL bytes of each native type that is allowed in a key; `time` cannot be converted back.
BYTES = [
    ("ascii", "61"),
    ("bigint", "fffffffffffffffe"),
    ("blob", "cafe"),
    ("boolean", "01"),
    ("date", "80000001"),
    ("date", "00000000"),
    ("date", "ffffffff"),  # Before year 1, and after 9999.
    ("decimal", "00000002ff6a"),
    ("double", "3ff8000000000000"),
    ("float", "7fc00000"),
    ("inet", "7f000001"),
    ("inet", "20010db8000000000000000000000001"),
    ("int", "fffffffe"),
    ("smallint", "fffe"),
    ("text", "c3a4"),
    ("timestamp", "00000176bb3e707b"),
    ("timestamp", "4000000000000000"),
    ("timestamp", "ffffc77ced0327ff"),
    ("timeuuid", "a5559b20e53e11f1a9d7973e92e688cb"),
    ("tinyint", "fe"),
    ("uuid", "00000001000041f08000000000000000"),
    ("varint", "00ff"),
]


def table(partition_type: NativeType | UserType, *clustering: str) -> TableMetadata:
    return table_of(
        {"pk": partition_type},
        {f"ck{at}": each for at, each in enumerate(clustering)},
        name="shop.t",
        table_id=UUID("a5559b20-e53e-11f1-a9d7-973e92e688cb"),
    )


def test_a_key_has_the_bytes_and_the_token_that_cassandra_has() -> None:
    """`SELECT token(1)` is -4069959284402364209; a row's key has all clustering columns."""
    of = table(NativeType("int"), "text", "bigint")
    avro = record_writer(data_key_schema(of))({"pk": 1, "ck0": "a", "ck1": -1})
    key = RowKeys(of).of(avro)
    assert (key.avro, key.parts, key.has_row) == (avro, (b"\0\0\0\1", b"a", b"\xff" * 8), True)
    assert RowKeys(of).token(avro) == token_of(key.parts[:1]) == -4069959284402364209


@pytest.mark.parametrize(("cql_type", "data"), BYTES)
def test_a_key_of_a_native_type_becomes_the_bytes_of_cassandra_again(cql_type: str, data: str) -> None:
    """The value is a partition key and a clustering column, which the static row's key lacks."""
    value = value_reader(NativeType(cql_type))(bytes.fromhex(data))
    of = table(NativeType(cql_type), cql_type)
    keys, write = RowKeys(of), record_writer(data_key_schema(of))
    avro = write({"pk": value, "ck0": value})
    assert keys.are_exact
    assert keys.of(avro).parts == (bytes.fromhex(data),) * 2
    assert keys.token(avro) == token_of([bytes.fromhex(data)])
    static = keys.static_row_of(avro)
    assert (static.avro, static.parts) == (write({"pk": value, "ck0": None}), (bytes.fromhex(data), None))


def test_every_native_type_of_a_key_is_tried() -> None:
    """A new type needs a line in the list above."""
    assert {name for name, _ in BYTES} == {name for name, each in CODECS.items() if each.write is not None} - {"time"}


def test_the_static_row_of_a_key_has_no_clustering_columns() -> None:
    """Null in Avro is null in CQL, whether the key is a static row's or is made one."""
    of = table(NativeType("int"), "text")
    write = record_writer(data_key_schema(of))
    bare = write({"pk": 1, "ck0": None})
    for key in (RowKeys(of).of(bare), RowKeys(of).static_row_of(write({"pk": 1, "ck0": "a"}))):
        assert (key.avro, key.parts, key.has_row) == (bare, (b"\0\0\0\1", None), False)


def test_the_bytes_of_cassandra_give_the_key_of_an_event() -> None:
    """They are used where the topic has hashes in the key."""
    of = table(NativeType("int"), "text")
    write = record_writer(data_key_schema(of))
    assert RowKeys(of).avro_of((b"\0\0\0\1", b"a")) == write({"pk": 1, "ck0": "a"})
    assert RowKeys(of).avro_of((b"\0\0\0\1", None)) == write({"pk": 1, "ck0": None})


def test_a_key_that_has_no_way_back_is_named() -> None:
    """A user type in the key, or a `time`, which has lost its nanoseconds."""
    of = table(UserType("shop", "place", ("x",), (NativeType("int"),)))
    avro = record_writer(data_key_schema(of))({"pk": {"x": 1}})
    with pytest.raises(UnwritableKeyError, match="a key column of type"):
        RowKeys(of).of(avro)
    assert not RowKeys(of).are_exact
    assert not RowKeys(table(NativeType("time"))).are_exact
    of = table(NativeType("int"), "time")
    write = record_writer(data_key_schema(of))
    with pytest.raises(UnwritableKeyError, match="a key column of type time cannot be 2"):
        RowKeys(of).of(write({"pk": 1, "ck0": 2}))
    assert RowKeys(of).are_exact
    assert RowKeys(of).of(write({"pk": 1, "ck0": None})).parts == (b"\0\0\0\1", None)


def test_a_row_of_equal_decimals_has_one_key() -> None:
    """As on the data topic: 1.0 and 1.00 in a clustering column are one row."""
    keys = RowKeys(table(NativeType("int"), "decimal"))
    one, one_too = (keys.avro_of((b"\0\0\0\1", bytes.fromhex(each))) for each in ("000000010a", "0000000264"))
    assert one == one_too
    assert keys.of(one).parts == (b"\0\0\0\1", bytes.fromhex("0000000001"))


def test_a_row_of_any_nan_has_one_key() -> None:
    """As on the data topic: all NaN in a clustering column are one row."""
    keys = RowKeys(table(NativeType("int"), "double"))
    one, one_too = (
        keys.avro_of((b"\0\0\0\1", bytes.fromhex(each))) for each in ("fff8000000000001", "7ff8000000000000")
    )
    assert one == one_too
    assert keys.of(one).parts == (b"\0\0\0\1", bytes.fromhex("7ff8000000000000"))


def test_a_row_may_have_a_clustering_value_without_bytes() -> None:
    """In Avro it is null, as in the key of a static row."""
    keys = RowKeys(table(NativeType("int"), "int", "text"))
    avro = keys.avro_of((b"\0\0\0\1", b"", b""))
    assert (keys.row_of(avro).parts, keys.row_of(avro).has_row) == ((b"\0\0\0\1", b"", b""), True)
    assert keys.of(avro).has_row is False


def test_a_key_from_before_a_user_type_grew_has_a_token_and_no_cql_bytes() -> None:
    """A clustering column behind it moves, so that the key cannot be read by the present definition."""
    native = table(NativeType("int"), "text")

    def of(*fields: str) -> TableMetadata:
        spot = UserType("shop", "spot", fields, tuple(NativeType("int") for _ in fields), frozen=True)
        at = ColumnMetadata(name="at", kind=ColumnKind.CLUSTERING, type=spot, position=0)
        return replace(native, clustering_key=(at, *native.clustering_key))

    before, now = of("x"), of("x", "y")
    avro = record_writer(data_key_schema(before))({"pk": 1, "at": {"x": 5}, "ck0": "a"})
    keys = RowKeys(now)
    assert keys.token(avro) == -4069959284402364209
    assert keys.static_row_of(avro).parts == (b"\0\0\0\1", None, None)
    with pytest.raises(UnwritableKeyError):
        keys.row_of(avro)
