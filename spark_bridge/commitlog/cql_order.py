"""How Cassandra sorts the values of a type: sort keys for CQL bytes, which Python compares in the same order. Pure.

An empty value comes first. Cassandra source: o.a.c.db.marshal.*Type.compareCustom, AbstractType.ComparisonType.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Final

from schemas.cql_type import CqlType, ListType, MapType, NativeType, SetType, TupleType, UserType, VectorType
from schemas.cql_value import fixed_length
from schemas.long_numbers import decimal_of
from schemas.native_codec import unsigned_vint
from spark_bridge.rows.range_scope import float_order

__all__ = ["ClusteringOrder", "Order", "order_of", "sized_values", "vector_values"]

Order = Callable[[bytes], object]
_INT32: Final = struct.Struct(">i")
_FLOATS: Final = {"float": struct.Struct(">f"), "double": struct.Struct(">d")}
_INTEGERS: Final = frozenset({"bigint", "counter", "int", "smallint", "time", "timestamp", "tinyint", "varint"})


def order_of(cql_type: CqlType) -> Order:
    """A function that gives sort keys of the type's values.

    For types that are not named here, Cassandra compares bytes.
    """
    compare = _order(cql_type)
    return lambda data: (1, compare(data)) if data else (0,)


class ClusteringOrder:
    """Compares rows with the bounds of ranges. A bound is a prefix of the clustering columns.

    An inclusive start lies before all rows with its prefix, an exclusive one after them. For an end, it is the reverse.
    """

    def __init__(self, columns: Sequence[tuple[CqlType, bool]]) -> None:
        """`columns`: type of each clustering column, and True if the column is in descending order."""
        self._orders: Final = [(order_of(cql_type), is_reversed) for cql_type, is_reversed in columns]

    def is_after(self, row: Sequence[bytes | None], start: Sequence[bytes | None], *, inclusive: bool) -> bool:
        """True when a range that starts at `start` can hold the row."""
        side = self._compare(row, start)
        return side > 0 or (side == 0 and inclusive)

    def is_before(self, row: Sequence[bytes | None], end: Sequence[bytes | None], *, inclusive: bool) -> bool:
        """True when a range that ends at `end` can hold the row."""
        side = self._compare(row, end)
        return side < 0 or (side == 0 and inclusive)

    def _compare(self, row: Sequence[bytes | None], bound: Sequence[bytes | None]) -> int:
        """1 if the row is after the bound, -1 if before; 0 if the row has the bound's prefix, as with an open end.

        The first column that differs decides.
        """
        for value, limit, (order, is_reversed) in zip(row, bound, self._orders, strict=False):
            if value == limit:
                continue
            if value is None or limit is None:
                is_above = limit is None
            else:
                left, right = order(value), order(limit)
                if left == right:
                    continue
                is_above = left > right  # type: ignore[operator]  # both are of one type
            return 1 if is_above != is_reversed else -1
        return 0


def _order(cql_type: CqlType) -> Order:
    match cql_type:
        case NativeType(name) if name in _INTEGERS:
            return lambda data: int.from_bytes(data, "big", signed=True)
        case NativeType(name) if name in _FLOATS:
            return lambda data: float_order(*_FLOATS[name].unpack(data))
        case NativeType("decimal"):
            return _decimal
        case NativeType("uuid"):
            return _uuid
        case NativeType("timeuuid"):
            return lambda data: (_uuid_time(data), bytes(each ^ 0x80 for each in data[8:]))
        case ListType(element) | SetType(element):
            of_element = order_of(element)
            return lambda data: [of_element(each or b"") for each in sized_values(data, _INT32.size)]
        case MapType(key, value):
            orders = order_of(key), order_of(value)
            return lambda data: [orders[at % 2](each or b"") for at, each in enumerate(sized_values(data, _INT32.size))]
        case TupleType(types) | UserType(field_types=types):
            fields = [order_of(each) for each in types]
            return lambda data: _fields_order(data, fields)
        case VectorType(element, dimension):
            of_element, length = order_of(element), fixed_length(element)
            return lambda data: [of_element(each) for each in vector_values(data, dimension, length)]
        case _:
            return lambda data: data


def _fields_order(data: bytes, fields: Sequence[Order]) -> list[tuple[object, ...]]:
    """Sort key of a tuple or a user type. Fields that are missing at its end are the same as nulls there."""
    found: list[tuple[object, ...]] = [
        (0,) if each is None else (1, field(each)) for field, each in zip(fields, sized_values(data, 0), strict=False)
    ]
    while found and found[-1] == (0,):
        found.pop()
    return found


def _decimal(data: bytes) -> Decimal:
    return decimal_of(int.from_bytes(data[4:], "big", signed=True), _INT32.unpack_from(data)[0])


def _uuid(data: bytes) -> tuple[int, int, bytes]:
    """Sort key of a uuid: by version, then version 1 by its time, then by bytes."""
    version = data[6] >> 4
    return version, _uuid_time(data) if version == 1 else 0, data[8:] if version == 1 else data


def _uuid_time(data: bytes) -> int:
    return (
        (int.from_bytes(data[6:8], "big") & 0xFFF) << 48
        | int.from_bytes(data[4:6], "big") << 32
        | int.from_bytes(data[:4], "big")
    )


def sized_values(data: bytes, at: int) -> Iterator[bytes | None]:
    """The values from `at` on, each of which follows its size; None for a null."""
    while at < len(data):
        (size,) = _INT32.unpack_from(data, at)
        at += _INT32.size
        yield None if size < 0 else data[at : at + size]
        at += max(size, 0)


def vector_values(data: bytes, dimension: int, length: int | None) -> Iterator[bytes]:
    """The elements of a vector, each of which has `length` bytes. If that is None, each one follows its size."""
    at = 0
    for _ in range(dimension if data else 0):
        size, at = unsigned_vint(data, at) if length is None else (length, at)
        yield data[at : at + size]
        at += size
