"""From an Avro key back to the CQL key and its token."""

from __future__ import annotations

from uuid import UUID

import pytest

from schemas.cql_bytes import UnwritableKeyError
from schemas.cql_type import NativeType, UserType
from schemas.row_record import data_key_schema, record_writer
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata
from spark_bridge.jobs.row_keys import RowKeys, token_of


def table(partition_type: NativeType | UserType, *clustering: str) -> TableMetadata:
    return TableMetadata(
        keyspace="shop",
        name="t",
        table_id=UUID("a5559b20-e53e-11f1-a9d7-973e92e688cb"),
        partition_key=(ColumnMetadata(name="pk", kind=ColumnKind.PARTITION_KEY, type=partition_type, position=0),),
        clustering_key=tuple(
            ColumnMetadata(name=f"ck{at}", kind=ColumnKind.CLUSTERING, type=NativeType(each), position=at)
            for at, each in enumerate(clustering)
        ),
        static_columns=(),
        regular_columns=(),
    )


def test_a_key_has_the_bytes_and_the_token_that_cassandra_has() -> None:
    """`SELECT token(1)` is -4069959284402364209; a row has all its clustering columns."""
    of = table(NativeType("int"), "text", "bigint")
    avro = record_writer(data_key_schema(of))({"pk": 1, "ck0": "a", "ck1": -1})
    key = RowKeys(of).of(avro)
    assert (key.avro, key.parts, key.has_row) == (avro, (b"\0\0\0\1", b"a", b"\xff" * 8), True)
    assert RowKeys(of).token(avro) == token_of(key.parts[:1]) == -4069959284402364209


def test_the_static_row_of_a_key_has_no_clustering_columns() -> None:
    """Null in Avro is null in CQL, whether it was so or is made so."""
    of = table(NativeType("int"), "text")
    write = record_writer(data_key_schema(of))
    bare = write({"pk": 1, "ck0": None})
    for key in (RowKeys(of).of(bare), RowKeys(of).static_row_of(write({"pk": 1, "ck0": "a"}))):
        assert (key.avro, key.parts, key.has_row) == (bare, (b"\0\0\0\1", None), False)


def test_the_bytes_of_cassandra_give_the_key_of_an_event() -> None:
    """Where the topic has hashes for it."""
    of = table(NativeType("int"), "text")
    write = record_writer(data_key_schema(of))
    assert RowKeys(of).avro_of((b"\0\0\0\1", b"a")) == write({"pk": 1, "ck0": "a"})
    assert RowKeys(of).avro_of((b"\0\0\0\1", None)) == write({"pk": 1, "ck0": None})


def test_a_key_that_has_no_way_back_is_named() -> None:
    """A user type in the key; a `time` has lost its nanoseconds."""
    of = table(UserType("shop", "place", ("x",), (NativeType("int"),)))
    avro = record_writer(data_key_schema(of))({"pk": {"x": 1}})
    with pytest.raises(UnwritableKeyError, match="a key column of type"):
        RowKeys(of).of(avro)
    assert not RowKeys(of).are_exact
    assert not RowKeys(table(NativeType("time"))).are_exact
    assert RowKeys(table(NativeType("int"), "time")).are_exact
