"""Values that Cassandra treats as equal although their bytes differ: 1.0 and 1.00, a varint with superfluous bytes, the
many forms of NaN, or of true.

Rows and cells whose names are equal in this sense are one row and one cell. They keep the bytes of the first name.
Cassandra source: compareCustom of DecimalType, IntegerType, DoubleType, FloatType and BooleanType in o.a.c.db.marshal.
Pure.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from schemas.cql_type import (
    CqlType,
    ListType,
    MapType,
    NativeType,
    SetType,
    TupleType,
    UserType,
    VectorType,
    is_multi_cell,
)
from schemas.cql_value import fixed_length
from schemas.native_codec import minimal_varint
from schemas.table_metadata import TableMetadata
from spark_bridge.commitlog.cql_order import sized_values, vector_values
from spark_bridge.commitlog.cql_texts import path_type
from spark_bridge.commitlog.reconciliation import CellName, Change, Clustering

__all__ = ["EqualValues", "canonical_form"]

_Canonical = Callable[[bytes], bytes]
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


def canonical_form(cql_type: CqlType) -> _Canonical | None:
    """A function from a value to bytes that are the same for equal values; None if the value's own bytes are."""
    match cql_type:
        case NativeType("varint"):
            return minimal_varint
        case NativeType("decimal"):
            return _decimal
        case NativeType("double"):
            return _floating(struct.Struct(">d"))
        case NativeType("float"):
            return _floating(struct.Struct(">f"))
        case NativeType("boolean"):
            return lambda data: b"\1" if any(data) else data
        case ListType(element) | SetType(element):
            return _of_parts([element], _INT32.size)
        case MapType(key, value):
            return _of_parts([key, value], _INT32.size)
        case TupleType(types) | UserType(field_types=types):
            return _of_fields(types)
        case VectorType(element, dimension):
            of_element, length = canonical_form(element), fixed_length(element)
            return None if of_element is None else lambda data: _vector(data, dimension, length, of_element)
        case _:
            return None


class EqualValues:
    """The equal values of one table. `columns`: types of its columns, by name."""

    def __init__(self, table: TableMetadata, columns: Mapping[str, CqlType]) -> None:
        self._clustering: Final = [canonical_form(each.type) for each in table.clustering_key]
        self._paths: Final = {
            name: form
            for name, each in columns.items()
            if is_multi_cell(each) and (form := canonical_form(path_type(each))) is not None
        }

    def unified(self, changes: Iterable[Change]) -> Iterable[Change]:
        """The changes of one partition with one name for each row and cell.

        Unchanged if no type of the table needs it.
        """
        return self._unified(changes) if self._paths or any(self._clustering) else changes

    def _unified(self, changes: Iterable[Change]) -> Iterator[Change]:
        rows: dict[Clustering, Clustering] = {}
        paths: dict[tuple[Clustering, str, bytes], bytes] = {}

        def name_of(clustering: Clustering, name: CellName) -> CellName:
            column, path = name
            form = self._paths.get(column)
            if form is None or path is None:
                return name
            return column, paths.setdefault((clustering, column, form(path)), path)

        for change in changes:
            found = change.clustering
            clustering = found if found is None else rows.setdefault(self._form(found), found)
            cells = [(name_of(clustering, name), cell) for name, cell in change.cells]
            yield change._replace(clustering=clustering, cells=cells)

    def _form(self, clustering: tuple[bytes | None, ...]) -> tuple[bytes | None, ...]:
        return tuple(
            value if form is None or value is None else form(value)
            for form, value in zip(self._clustering, clustering, strict=True)
        )


def _decimal(data: bytes) -> bytes:
    """Scale and unscaled value without trailing zeros. An empty value stays empty."""
    if len(data) <= _INT32.size:
        return data
    (scale,), unscaled = _INT32.unpack_from(data), int.from_bytes(data[_INT32.size :], "big", signed=True)
    if unscaled == 0:
        return bytes(_INT64.size)
    while unscaled % 10 == 0:
        unscaled //= 10
        scale -= 1
    return _INT64.pack(scale) + unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)


def _floating(form: struct.Struct) -> _Canonical:
    """The bytes themselves, except for NaN, of which Java compares one form. -0.0 and 0.0 are two values."""
    nan = form.pack(math.nan)

    def one(data: bytes) -> bytes:
        return nan if data and math.isnan(*form.unpack(data)) else data

    return one


def _of_parts(types: Iterable[CqlType], header: int) -> _Canonical | None:
    """Canonical form of a header and values after it, each with its size. The types apply to the values in turn."""
    forms = [canonical_form(each) for each in types]
    if not any(forms):
        return None

    def form(data: bytes) -> bytes:
        parts = [data[:header]]
        for at, value in enumerate(sized_values(data, header)):
            of_part = forms[at % len(forms)]
            found = value if of_part is None or value is None else of_part(value)
            parts.append(_INT32.pack(-1) if found is None else _INT32.pack(len(found)) + found)
        return b"".join(parts)

    return form


def _of_fields(types: Sequence[CqlType]) -> _Canonical:
    """Canonical form of a tuple or a user type: fields that are missing at its end are the same as nulls there."""
    forms = [canonical_form(each) for each in types]

    def form(data: bytes) -> bytes:
        parts, known = list[bytes](), 0
        for of_field, value in zip(forms, sized_values(data, 0), strict=False):
            found = value if of_field is None or value is None else of_field(value)
            parts.append(_INT32.pack(-1) if found is None else _INT32.pack(len(found)) + found)
            known = known if found is None else len(parts)
        return b"".join(parts[:known] or parts[:1])

    return form


def _vector(data: bytes, dimension: int, length: int | None, form: _Canonical) -> bytes:
    """Canonical form of a vector of a type that has one. `length`: that of each element; None if it follows its size."""
    parts = [form(each) for each in vector_values(data, dimension, length)]
    return b"".join(_INT32.pack(len(each)) + each for each in parts)
