"""CQL bytes -> the value that goes into an Avro record, in the mapping that DataStax's connector established.

    text ascii -> str              boolean -> bool           blob, custom -> bytes
    tinyint smallint int -> int    bigint counter -> int     float double -> float
    varint -> bytes (two's complement, minimal)              decimal -> {"bigint": bytes, "scale": int}
    timestamp -> int milliseconds  date -> int days          time -> int microseconds (nanoseconds are cut)
    uuid timeuuid -> str           inet -> str as Java's InetAddress.getHostAddress
    duration -> {"months", "days", "nanoseconds"}
    list set vector -> list        map -> dict with text keys    tuple, user type -> dict of nullable fields

Serialized forms: o.a.c.serializers.* and the native protocol v5 specification, section 6.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
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
from schemas.json_value import AvroValue

__all__ = ["AvroValue", "CqlValueError", "minimal_varint", "split_partition_key", "value_reader"]

ValueReader = Callable[[bytes], AvroValue]


class CqlValueError(CdcError):
    """Bytes that are no value of their CQL type."""

    def __init__(self, cql_type: CqlType, reason: str) -> None:
        self.cql_type = cql_type
        self.reason = reason
        super().__init__(f"a value of type {cql_type}: {reason}")


def value_reader(cql_type: CqlType) -> ValueReader:
    """A function that turns the CQL bytes of one value into its Avro value.

    Bytes of length 0 are None for types that have no empty value of their own. The function raises CqlValueError.
    """
    read = _reader(cql_type)

    def checked(data: bytes) -> AvroValue:
        try:
            return read(data)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise CqlValueError(cql_type, f"{len(data)} bytes do not fit it ({error})") from error

    return checked


def split_partition_key(data: bytes, components: int) -> tuple[bytes, ...]:
    """The components of a serialized partition key (o.a.c.db.marshal.CompositeType). Raises CqlValueError.

    One component is stored as it is; several as uint16 length, bytes and a zero byte each.
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


def minimal_varint(data: bytes) -> bytes:
    """The same two's complement number without needless leading bytes, as Java's BigInteger.toByteArray."""
    at = 0
    while at + 1 < len(data) and (data[at], data[at + 1] >> 7) in ((0x00, 0), (0xFF, 1)):
        at += 1
    return data[at:]


_INT32: Final = struct.Struct(">i")


def _fixed(code: str) -> ValueReader:
    unpack = struct.Struct(">" + code).unpack

    def read(data: bytes) -> AvroValue:
        if not data:
            return None
        (value,) = unpack(data)
        return value  # type: ignore[no-any-return]  # struct cannot say what it unpacks

    return read


def _text(data: bytes) -> AvroValue:
    return data.decode("utf-8")


def _blob(data: bytes) -> AvroValue:
    return bytes(data)


def _boolean(data: bytes) -> AvroValue:
    return None if not data else data[0] != 0


def _varint(data: bytes) -> AvroValue:
    return minimal_varint(data) if data else None


def _decimal(data: bytes) -> AvroValue:
    if not data:
        return None
    (scale,) = _INT32.unpack_from(data)
    return {"bigint": minimal_varint(data[4:]), "scale": scale}


def _date(data: bytes) -> AvroValue:
    return None if not data else int.from_bytes(data[:4], "big") - (1 << 31)


def _time(data: bytes) -> AvroValue:
    return None if not data else int.from_bytes(data[:8], "big") // 1000


def _uuid(data: bytes) -> AvroValue:
    if not data:
        return None
    if len(data) != 16:
        raise IndexError("a uuid has 16 bytes")
    text = data.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _inet(data: bytes) -> AvroValue:
    if not data:
        return None
    if len(data) == 4:
        return ".".join(map(str, data))
    return ":".join(f"{part:x}" for part in struct.unpack(">8H", data))


def _duration(data: bytes) -> AvroValue:
    if not data:
        return None
    months, at = _signed_vint(data, 0)
    days, at = _signed_vint(data, at)
    nanoseconds, at = _signed_vint(data, at)
    return {"months": months, "days": days, "nanoseconds": nanoseconds}


_NATIVE: Final[dict[str, ValueReader]] = {
    "ascii": _text,
    "text": _text,
    "bigint": _fixed("q"),
    "counter": _fixed("q"),
    "blob": _blob,
    "boolean": _boolean,
    "date": _date,
    "decimal": _decimal,
    "double": _fixed("d"),
    "duration": _duration,
    "empty": lambda data: None,
    "float": _fixed("f"),
    "inet": _inet,
    "int": _fixed("i"),
    "smallint": _fixed("h"),
    "time": _time,
    "timestamp": _fixed("q"),
    "timeuuid": _uuid,
    "tinyint": _fixed("b"),
    "uuid": _uuid,
    "varint": _varint,
}


def _reader(cql_type: CqlType) -> ValueReader:
    match cql_type:
        case NativeType(name):
            return _NATIVE[name]
        case ListType(element) | SetType(element):
            return _sequence(_reader(element))
        case MapType(key, value):
            return _map(key, value)
        case TupleType(elements):
            return _fields(tuple(f"index_{i}" for i in range(len(elements))), elements)
        case UserType():
            return _fields(avro_names(cql_type.field_names), cql_type.field_types)
        case VectorType(element, dimension):
            return _vector(element, dimension)
        case CustomType():
            return _blob


def _sequence(read_element: ValueReader) -> ValueReader:
    def read(data: bytes) -> AvroValue:
        count, at = _count(data)
        values: list[AvroValue] = []
        for _ in range(count):
            element, at = _sized(data, at)
            values.append(None if element is None else read_element(element))
        return values

    return read


def _map(key_type: CqlType, value_type: CqlType) -> ValueReader:
    read_key, read_value = map_key_text(key_type, value_reader), _reader(value_type)

    def read(data: bytes) -> AvroValue:
        count, at = _count(data)
        values: dict[str, AvroValue] = {}
        for _ in range(count):
            key, at = _sized(data, at)
            value, at = _sized(data, at)
            values[read_key(key or b"")] = None if value is None else read_value(value)
        return values

    return read


def _fields(names: tuple[str, ...], types: tuple[CqlType, ...]) -> ValueReader:
    readers = tuple(zip(names, map(_reader, types), strict=True))

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
            # Written after a field was added: to leave it out would lose it, so whoever reads has to look again.
            raise IndexError(f"{len(data) - at} bytes are after the {len(readers)} fields that are known")
        return values

    return read


# Bytes of one element where the type has a fixed length inside a vector (o.a.c.db.marshal.AbstractType.valueLengthIfFixed).
_VECTOR_ELEMENT_LENGTH: Final = {
    "bigint": 8, "boolean": 1, "double": 8, "float": 4, "int": 4, "timestamp": 8, "timeuuid": 16, "uuid": 16,
}  # fmt: skip


def fixed_length(cql_type: CqlType) -> int | None:
    """Bytes of every value of a type that has a fixed length, else None (AbstractType.valueLengthIfFixed)."""
    if isinstance(cql_type, NativeType):
        return _VECTOR_ELEMENT_LENGTH.get(cql_type.name)
    if isinstance(cql_type, VectorType):
        element = fixed_length(cql_type.element)
        return None if element is None else element * cql_type.dimension
    return None


def _vector(element: CqlType, dimension: int) -> ValueReader:
    read_element, length = _reader(element), fixed_length(element)

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
            size, at = _unsigned_vint(data, at)
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


def _unsigned_vint(data: bytes, at: int) -> tuple[int, int]:
    """o.a.c.utils.vint.VIntCoding: the number of leading one bits is the number of further bytes."""
    first = data[at]
    extra = 8 - (~first & 0xFF).bit_length() if first != 0xFF else 8
    end = at + 1 + extra
    if end > len(data):
        raise IndexError("a vint ends too early")
    value = (first & (0xFF >> extra)) << (8 * extra) if extra < 8 else 0
    return value | int.from_bytes(data[at + 1 : end], "big"), end


def _signed_vint(data: bytes, at: int) -> tuple[int, int]:
    value, at = _unsigned_vint(data, at)
    return (value >> 1) ^ -(value & 1), at
