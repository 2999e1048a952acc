"""Keys of rows and cells that are equal for Cassandra although their bytes differ: decimals and varints."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from schemas.cql_type import CqlType, ListType, MapType, NativeType, SetType, TupleType, UserType, VectorType
from schemas.table_metadata import TableMetadata
from spark_bridge.commitlog.cell_versions import PartitionHistory
from spark_bridge.commitlog.change_rows import spark_schema
from spark_bridge.commitlog.cql_order import order_of
from spark_bridge.commitlog.equal_values import EqualValues, canonical_form
from spark_bridge.commitlog.partitions import CHANGE_COLUMNS, KeyBytes
from spark_bridge.commitlog.reconciliation import STATIC, Cell, Change, Partition
from spark_bridge.commitlog.views import rows_fold
from tests.cql.tables import table_of

_DECIMAL, _INT, _VARINT = NativeType("decimal"), NativeType("int"), NativeType("varint")


def _decimal(unscaled: int, scale: int) -> bytes:
    return struct.pack(">i", scale) + unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)


def _sized(*values: bytes | None) -> bytes:
    return b"".join(struct.pack(">i", -1) if each is None else struct.pack(">i", len(each)) + each for each in values)


def _collection(count: int, *values: bytes) -> bytes:
    return struct.pack(">i", count) + _sized(*values)


_ONE, _ONE_TOO, _TWO = _decimal(10, 1), _decimal(100, 2), _decimal(2, 0)
_HUNDRED, _HUNDRED_TOO = _decimal(100, 0), _decimal(1, -2)
_USER_TYPE = UserType("k", "t", ("a", "b"), (_DECIMAL, _INT), True)


@pytest.mark.parametrize(
    ("cql_type", "same", "other"),
    [
        (_DECIMAL, [_ONE, _ONE_TOO, _decimal(1, 0)], [_TWO, _HUNDRED, b"", _decimal(-1, 0), _decimal(0, 0)]),
        (_DECIMAL, [_HUNDRED, _HUNDRED_TOO], [_ONE]),
        (_DECIMAL, [_decimal(0, 0), _decimal(0, 5), _decimal(0, -5)], [b"", _ONE]),
        (_DECIMAL, [_decimal(1, 2**31 - 1), _decimal(10, 2**31 - 1)[:4] + b"\x00\x01"], [_decimal(1, -(2**31))]),
        (_VARINT, [b"\x01", b"\x00\x01"], [b"\x00", b"\xff", b""]),
        (_VARINT, [b"\xff", b"\xff\xff\xff"], [b"\x00\xff"]),
        (
            NativeType("double"),
            [bytes.fromhex(each) for each in ("7ff8000000000000", "fff8000000000000", "7ff8000000000001")],
            [struct.pack(">d", each) for each in (0.0, -0.0, float("inf"))] + [b""],
        ),
        (NativeType("double"), [bytes(8)], [struct.pack(">d", -0.0)]),
        (NativeType("float"), [bytes.fromhex(each) for each in ("7fc00000", "ffc00000")], [bytes(4), b""]),
        (NativeType("boolean"), [b"\1", b"\2"], [b"\0", b""]),
        (ListType(_DECIMAL, True), [_collection(1, _ONE), _collection(1, _ONE_TOO)], [_collection(2, _ONE, _ONE)]),
        (
            MapType(_INT, SetType(_DECIMAL, True), True),
            [_collection(1, b"\0\0\0\1", _collection(1, each)) for each in (_ONE, _ONE_TOO)],
            [_collection(1, b"\0\0\0\1", _collection(1, _TWO)), _collection(1, b"\0\0\0\2", _collection(1, _ONE))],
        ),
        (TupleType((_DECIMAL, _INT)), [_sized(_ONE, None), _sized(_ONE_TOO, None)], [_sized(_ONE, b"\0\0\0\0")]),
        (_USER_TYPE, [_sized(_ONE), _sized(_ONE_TOO, None)], [_sized(None), _sized(b"")]),
        (TupleType((_INT, _INT)), [_sized(b"\0\0\0\1"), _sized(b"\0\0\0\1", None)], [_sized(None, b"\0\0\0\1"), b""]),
        (TupleType((_INT, _INT)), [_sized(None), _sized(None, None)], [b"", _sized(b""), _sized(b"\0\0\0\0")]),
        (
            VectorType(_DECIMAL, 2),
            [b"".join(bytes([len(each)]) + each for each in (_ONE, first)) for first in (_HUNDRED, _HUNDRED_TOO)],
            [b"".join(bytes([len(each)]) + each for each in (_HUNDRED, _ONE))],
        ),
        (
            VectorType(NativeType("float"), 2),
            [bytes.fromhex(each) for each in ("3f8000007fc00000", "3f800000ffc00000")],
            [struct.pack(">2f", *each) for each in ((1.0, 0.0), (1.0, -0.0), (float("nan"), 1.0))] + [b""],
        ),
        (
            VectorType(VectorType(NativeType("double"), 1), 1),
            [bytes.fromhex(each) for each in ("7ff8000000000000", "fff8000000000000")],
            [struct.pack(">d", 1.0), b""],
        ),
        (VectorType(NativeType("boolean"), 1), [b"\1", b"\2"], [b"\0", b""]),
    ],
)
def test_equal_values_have_one_form(cql_type: CqlType, same: Sequence[bytes], other: Sequence[bytes]) -> None:
    """This also holds within frozen values; an empty value equals none of them."""
    form = canonical_form(cql_type)
    assert form is not None
    assert len({form(each) for each in same}) == 1
    assert form(same[0]) not in {form(each) for each in other}


@pytest.mark.parametrize("cql_type", [_INT, NativeType("inet"), MapType(_INT, _INT, True), VectorType(_INT, 2)])
def test_other_types_cost_nothing(cql_type: CqlType) -> None:
    """Cassandra compares the bytes of these types, so changes pass unchanged."""
    assert canonical_form(cql_type) is None
    changes = [Change("row", (b"x",), cells=[(("v", None), Cell(b"a", 1))])]
    assert EqualValues(_table(cql_type), {"m": MapType(_INT, _DECIMAL)}).unified(changes) is changes


_FIELDS = st.lists(st.none() | st.sampled_from([b"", b"\0\0\0\1", b"\xff\xff\xff\xff"]), min_size=1, max_size=3)


@given(_FIELDS, _FIELDS)
def test_fields_that_are_missing_at_the_end_are_nulls(
    left: Sequence[bytes | None], right: Sequence[bytes | None]
) -> None:
    """This is so after ALTER TYPE ADD: TupleType.compareCustom. The order takes the same values for equal."""
    fields = TupleType((_INT, _INT, _INT))
    form, order = canonical_form(fields), order_of(fields)
    assert form is not None
    is_equal = [*left, None, None][:3] == [*right, None, None][:3]
    assert (form(_sized(*left)) == form(_sized(*right))) == is_equal
    assert (order(_sized(*left)) == order(_sized(*right))) == is_equal


_DECIMALS = st.builds(_decimal, st.integers(-300, 300), st.integers(-3, 3))


@given(_DECIMALS, _DECIMALS)
def test_forms_are_equal_where_cassandra_finds_no_order(left: bytes, right: bytes) -> None:
    """Equal means equal by BigDecimal.compareTo."""
    form, order = canonical_form(_DECIMAL), order_of(_DECIMAL)
    assert form is not None
    assert (form(left) == form(right)) == (order(left) == order(right))


def _table(clustering: CqlType) -> TableMetadata:
    return table_of({"p": _INT}, {"c": clustering}, name="k.t")


def test_a_row_and_an_element_that_are_written_differently_are_one() -> None:
    """The later write wins in both views; if two rows have the same element, each shows its own bytes."""
    same = EqualValues(_table(_DECIMAL), {"v": _INT, "s": SetType(_DECIMAL), "m": MapType(_VARINT, _INT)})
    changes = [
        Change("row", (_ONE,), cells=[(("v", None), Cell(b"old", 1)), (("s", _HUNDRED), Cell(b"", 1))]),
        Change("row", (_ONE_TOO,), cells=[(("v", None), Cell(b"new", 2)), (("s", _HUNDRED_TOO), Cell(None, 2, 0, 5))]),
        Change("row", (_TWO,), cells=[(("s", _HUNDRED_TOO), Cell(b"", 3)), (("m", b"\0\1"), Cell(b"x", 3))]),
        Change("static_row", STATIC, cells=[(("v", None), Cell(b"static", 1))]),
    ]
    partition, history = Partition(lambda *_: False), PartitionHistory(lambda *_: False)
    for each in same.unified(changes):
        partition.add(each)
        history.add(each)
    assert {row.clustering: row.cells for row in partition.rows()} == {
        (_ONE,): {("v", None): Cell(b"new", 2), ("s", _HUNDRED): Cell(None, 2, 0, 5)},
        (_TWO,): {("s", _HUNDRED_TOO): Cell(b"", 3), ("m", b"\0\1"): Cell(b"x", 3)},
        STATIC: {("v", None): Cell(b"static", 1)},
    }
    ended = {(each.column, each.cell.writetime): each.replaced_by for each in history.versions() if each.replaced_by}
    assert ended == {("v", 1): "value", ("s", 1): "tombstone"}


def _inserted(clustering: bytes, writetime: int) -> Mapping[str, object]:
    marker = {"writetime": writetime, "ttl": 0, "expires_at": None}
    return {"partition_key": b"\0\0\0\7", "kind": "row", "clustering": [clustering], "marker": marker, "cells": []}


def test_the_table_at_a_moment_has_one_row_for_equal_clusterings() -> None:
    """One task of Spark folds it this way."""
    table = _table(_DECIMAL)
    schema = to_arrow_schema(spark_schema("cql"))
    fields = pa.schema([schema.field(each) for each in CHANGE_COLUMNS])
    changes = [_inserted(_ONE, 1), _inserted(_ONE_TOO, 2), _inserted(_TWO, 1)]
    batch = pa.RecordBatch.from_pylist(changes, fields)
    rows = [row for found in rows_fold(table, 10)([batch]) for row in found.to_pylist()]
    assert [row["key"] for row in rows] == [KeyBytes(table).avro(b"\0\0\0\7", (each,)) for each in (_ONE, _TWO)]
