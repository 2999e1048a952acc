"""CQL bytes -> the value in an Avro record, with the mapping of DataStax's connector.

    native types as in `schemas.native_codec`; custom types -> bytes
    list set vector -> list        map -> dict with text keys    tuple, user type -> dict of nullable fields

Serialized forms: o.a.c.serializers.* and the native protocol v5 specification, section 6.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from schemas.avro_names import avro_names
from schemas.cql_map_key import map_key_text
from schemas.cql_type import (
    CqlType,
    CustomType,
    ListType,
    MapType,
    NativeType,
    SetType,
    TupleType,
    UserType,
    VectorType,
)
from schemas.errors import CdcError
from schemas.json_value import json_text
from schemas.native_codec import (
    CODECS,
    AvroValue,
    ValueReader,
    minimal_varint,
    plain_decimal,
    unsigned_vint,
    with_one_nan,
)
from schemas.table_metadata import ColumnKind, ColumnMetadata

__all__ = [
    "AvroValue",
    "CqlValueError",
    "column_json_reader",
    "column_reader",
    "has_equal_forms",
    "json_reader",
    "minimal_varint",
    "split_partition_key",
    "value_reader",
]

_Natives = Mapping[str, ValueReader]
_NATIVES: Final[_Natives] = {name: codec.read for name, codec in CODECS.items()}
_EQUAL_FORMS: Final[_Natives] = {
    "decimal": plain_decimal,
    "double": with_one_nan(_NATIVES["double"]),
    "float": with_one_nan(_NATIVES["float"]),
}
_OF_CLUSTERING: Final[_Natives] = {**_NATIVES, **_EQUAL_FORMS}
"""The readers for clustering columns: equal values become one Avro value."""


class CqlValueError(CdcError):
    """Bytes that are not a value of their CQL type."""

    def __init__(self, cql_type: CqlType, reason: str) -> None:
        self.cql_type = cql_type
        self.reason = reason
        super().__init__(f"a value of type {cql_type}: {reason}")


def value_reader(cql_type: CqlType) -> ValueReader:
    """A function that turns the CQL bytes of one value into its Avro value.

    Bytes of length 0 are None for types that have no empty value of their own. The function raises CqlValueError.
    """
    return _checked(cql_type, _NATIVES)


def column_reader(column: ColumnMetadata) -> ValueReader:
    """As `value_reader`, for the values of a column.

    Cassandra has one row for clustering values that are equal, such as the decimals 1.0 and 1.00, or all forms of NaN.
    So these have one Avro value, and the row has one key. In a partition key they are two keys of two rows.
    """
    return _checked(column.type, _OF_CLUSTERING if column.kind is ColumnKind.CLUSTERING else _NATIVES)


def has_equal_forms(cql_type: CqlType) -> bool:
    """True if `column_reader` makes equal values of the type one Avro value: decimals, doubles, floats, also inside."""
    match cql_type:
        case NativeType(name):
            return name in _EQUAL_FORMS
        case ListType(element) | SetType(element) | VectorType(element, _):
            return has_equal_forms(element)
        case MapType(key, value):
            return has_equal_forms(key) or has_equal_forms(value)
        case TupleType(types) | UserType(field_types=types):
            return any(map(has_equal_forms, types))
        case _:
            return False


def _checked(cql_type: CqlType, natives: _Natives) -> ValueReader:
    read = _reader(cql_type, natives)

    def checked(data: bytes) -> AvroValue:
        try:
            return read(data)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise CqlValueError(cql_type, f"{len(data)} bytes do not fit it ({error})") from error

    return checked


def json_reader(cql_type: CqlType) -> Callable[[bytes], str]:
    """A function that turns the CQL bytes of one value into its JSON text. The function raises CqlValueError."""
    read, text = value_reader(cql_type), json_text(cql_type)
    return lambda data: text(read(data))


def column_json_reader(column: ColumnMetadata) -> Callable[[bytes], str]:
    """As `json_reader`, for the values of a column; equal clustering values have one text."""
    read, text = column_reader(column), json_text(column.type)
    return lambda data: text(read(data))


def split_partition_key(data: bytes, components: int) -> tuple[bytes, ...]:
    """The components of a serialized partition key (o.a.c.db.marshal.CompositeType). Raises CqlValueError.

    A single component is stored as it is. Of several components, each has its length (uint16), its bytes and a zero
    byte.
    """
    if components == 1:
        return (data,)
    found, at = [], 0
    for _ in range(components):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        if end + 1 > len(data):
            raise CqlValueError(CustomType("CompositeType"), f"partition key of {len(data)} bytes ends too early")
        found.append(data[at + 2 : end])
        at = end + 1
    if at != len(data):
        raise CqlValueError(CustomType("CompositeType"), f"partition key has {len(data) - at} bytes too many")
    return tuple(found)


_INT32: Final = struct.Struct(">i")


def _reader(cql_type: CqlType, natives: _Natives) -> ValueReader:
    match cql_type:
        case NativeType(name):
            return natives[name]
        case ListType(element) | SetType(element):
            return _sequence(_reader(element, natives))
        case MapType(key, value):
            return _map(key, value, natives)
        case TupleType(elements):
            return _fields(tuple(f"index_{i}" for i in range(len(elements))), elements, natives)
        case UserType():
            return _fields(avro_names(cql_type.field_names), cql_type.field_types, natives)
        case VectorType(element, dimension):
            return _vector(element, dimension, natives)
        case CustomType():
            return CODECS["blob"].read


def _sequence(read_element: ValueReader) -> ValueReader:
    def read(data: bytes) -> AvroValue:
        count, at = _count(data)
        values: list[AvroValue] = []
        for _ in range(count):
            element, at = _sized(data, at)
            values.append(None if element is None else read_element(element))
        return values

    return read


def _map(key_type: CqlType, value_type: CqlType, natives: _Natives) -> ValueReader:
    read_key, read_value = map_key_text(key_type, partial(_checked, natives=natives)), _reader(value_type, natives)

    def read(data: bytes) -> AvroValue:
        count, at = _count(data)
        values: dict[str, AvroValue] = {}
        for _ in range(count):
            key, at = _sized(data, at)
            value, at = _sized(data, at)
            values[read_key(key or b"")] = None if value is None else read_value(value)
        return values

    return read


def _fields(names: tuple[str, ...], types: tuple[CqlType, ...], natives: _Natives) -> ValueReader:
    readers = tuple(zip(names, [_reader(each, natives) for each in types], strict=True))

    def read(data: bytes) -> AvroValue:
        if not data:
            return None
        values: dict[str, AvroValue] = {}
        at = 0
        for name, read_field in readers:
            # A value written before a field was added ends early: the rest is null.
            field, at = _sized(data, at) if at < len(data) else (None, at)
            values[name] = None if field is None else read_field(field)
        if at != len(data):
            # The value was written after a field was added. The caller has to read the schema again, or the field is
            # lost.
            raise IndexError(f"{len(data) - at} bytes are after the {len(readers)} fields that are known")
        return values

    return read


def fixed_length(cql_type: CqlType) -> int | None:
    """Length in bytes of every value of the type; None if it is not fixed (AbstractType.valueLengthIfFixed)."""
    if isinstance(cql_type, NativeType):
        return CODECS[cql_type.name].length
    if isinstance(cql_type, VectorType):
        element = fixed_length(cql_type.element)
        return None if element is None else element * cql_type.dimension
    return None


def _vector(element: CqlType, dimension: int, natives: _Natives) -> ValueReader:
    read_element, length = _reader(element, natives), fixed_length(element)

    def read_fixed(data: bytes) -> AvroValue:
        if not data:
            return None
        assert length is not None
        if len(data) != length * dimension:
            raise IndexError(f"expected {length * dimension} bytes")
        return [read_element(data[at : at + length]) for at in range(0, len(data), length)]

    def read_sized(data: bytes) -> AvroValue:
        if not data:
            return None
        values: list[AvroValue] = []
        at = 0
        for _ in range(dimension):
            size, at = unsigned_vint(data, at)
            if size > len(data) - at:
                raise IndexError(f"an element of {size} bytes")
            values.append(read_element(data[at : at + size]))
            at += size
        return values

    return read_sized if length is None else read_fixed


def _count(data: bytes) -> tuple[int, int]:
    (count,) = _INT32.unpack_from(data)
    if not 0 <= count <= len(data) // 4:
        raise IndexError(f"a count of {count}")
    return count, 4


def _sized(data: bytes, at: int) -> tuple[bytes | None, int]:
    (size,) = _INT32.unpack_from(data, at)
    at += 4
    if size < 0:
        return None, at
    if size > len(data) - at:
        raise IndexError(f"a size of {size}")
    return data[at : at + size], at + size
