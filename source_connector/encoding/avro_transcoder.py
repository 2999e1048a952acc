"""Converts CQL bytes of columns directly to Avro, without Python values in between, if the two forms are similar.

    Value => {Field}
      Field => 0, null | 2, Avro of the column's type             (a union with null, zigzag vint of the branch)

Types whose forms differ too much, and invalid bytes, are converted with `schemas.cql_value` and fastavro. These are the
reference, and raise the errors. Every row is written here, so this module is compiled. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, final

from schemas.avro_forms import (
    AS_BOOLEAN,
    AS_BYTES,
    AS_DATE,
    AS_FLOATING,
    AS_LIST,
    AS_OTHER,
    AS_SIGNED,
    AS_TEXT,
    AS_TIME,
    AS_UUID,
    AS_VARINT,
    DATE_EPOCH,
    avro_form,
)
from schemas.cql_type import CqlType, ListType, SetType
from source_connector.encoding.native_rows import NativeRecordWriter, native_rows

__all__ = ["FieldWriter", "RecordTranscoder", "zigzag"]

_CORE: Final = native_rows()
_ROW: Final[type] = object if _CORE is None else _CORE.Row
_NULL: Final = b"\0"
_NOT_NULL: Final = b"\2"
_END: Final = b"\0"
_UUID_LENGTH: Final = b"\x48"  # 36, as a zigzag vint


def _short(value: int) -> bytes:
    """The vint of a number below 2**14: the last bytes of a longer vint."""
    return bytes((value,)) if value < 0x80 else bytes((value & 0x7F | 0x80, value >> 7))


# By 14 bits of a number: the last bytes of its vint, and two bytes before those.
_ENDS: Final = [_short(each) for each in range(0x4000)]
_PAIRS: Final = [bytes((each & 0x7F | 0x80, each >> 7 | 0x80)) for each in range(0x4000)]
_from_bytes: Final = int.from_bytes


@final
class FieldWriter:
    """Writes one nullable column. `convert` is the slow way to the same bytes, with the union's branch."""

    __slots__ = ("_copied_as", "_element", "_length", "convert")

    def __init__(self, cql_type: CqlType, convert: Callable[[bytes], bytes]) -> None:
        self.convert: Final = convert
        self._copied_as: int
        self._length: int
        self._copied_as, self._length = avro_form(cql_type)
        self._element: FieldWriter | None = None
        if isinstance(cql_type, ListType | SetType):
            # Also for a list in a list. If one element cannot be copied, the whole value is converted the slow way.
            self._element = FieldWriter(cql_type.element, convert)

    def write(self, value: bytes) -> bytes:
        """Avro of the column's CQL bytes. Raises the errors of `convert`."""
        copied = self.copied(value)
        return self.convert(value) if copied is None else _NOT_NULL + copied

    @property
    def forms(self) -> list[tuple[int, int]]:
        """The form, and those of the elements of lists."""
        inner = [] if self._element is None else self._element.forms
        return [(self._copied_as, self._length), *inner]

    def copied(self, value: bytes) -> bytes | None:  # one line a type
        """Avro of the bytes, without the branch; None if they must be converted the slow way."""
        copied_as, length = self._copied_as, len(value)
        if copied_as == AS_TEXT:
            return _vint(2 * length) + value if _is_text(value) else None
        if copied_as == AS_BYTES:
            return _vint(2 * length) + value
        if copied_as == AS_LIST:
            return self._list(value, length)
        if copied_as == AS_VARINT:
            if length == 0 or (length > 1 and (value[0] == 0 or value[0] == 0xFF)):
                return None  # a null, or perhaps not the shortest form
            return _vint(2 * length) + value
        if copied_as == AS_OTHER or length != self._length:
            return None
        if copied_as == AS_SIGNED:
            number = _from_bytes(value, "big")
            sign = 1 << (8 * length - 1)
            return zigzag(number if number < sign else number - 2 * sign)
        if copied_as == AS_FLOATING:
            # A NaN of 4 bytes may change when Python converts it, as the slow way does.
            return None if length == 4 and value[0] & 0x7F == 0x7F and value[1] >= 0x80 else value[::-1]
        if copied_as == AS_DATE:
            return zigzag(_from_bytes(value, "big") - DATE_EPOCH)
        if copied_as == AS_TIME:
            return None if value[0] >= 0x80 else zigzag(_from_bytes(value, "big") // 1000)
        if copied_as == AS_UUID:
            text = value.hex()
            dashed = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
            return _UUID_LENGTH + dashed.encode()
        assert copied_as == AS_BOOLEAN
        return b"\1" if value[0] else b"\0"

    def _list(self, value: bytes, length: int) -> bytes | None:
        element = self._element
        if element is None or length < 4:
            return None
        count, at = _size(value, 0), 4
        if count > length // 4:
            return None
        parts: list[bytes] = [] if count == 0 else [_vint(2 * count)]
        for _ in range(count):
            if at + 4 > length:
                return None
            end = at + 4 + _size(value, at)
            if end > length:  # a null element has a size of more than there is
                return None
            copied = element.copied(value[at + 4 : end])
            if copied is None:
                return None
            parts.append(copied)
            at = end
        parts.append(_END)
        return b"".join(parts)


@final
class RecordTranscoder:
    """Writes records of nullable fields, one for each column."""

    __slots__ = ("_fields", "_writer")

    def __init__(self, fields: Sequence[FieldWriter]) -> None:
        self._fields: list[FieldWriter] = list(fields)
        self._writer: NativeRecordWriter | None = None
        if _CORE is not None:
            self._writer = _CORE.RecordWriter([(each.forms, each.convert) for each in fields])

    def write(self, values: Sequence[bytes | None], start: int) -> bytes:
        """The record whose columns' CQL bytes begin at `start`. Raises CqlValueError, and the errors of fastavro."""
        if self._writer is not None and isinstance(values, _ROW):
            return self._writer.write(values, start)
        parts: list[bytes] = []
        at = start
        for field in self._fields:
            value = values[at]
            at += 1
            parts.append(_NULL if value is None else field.write(value))
        return b"".join(parts)


def _is_text(value: bytes) -> bool:
    if value.isascii():
        return True
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _size(data: bytes, at: int) -> int:
    return data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]


def zigzag(value: int) -> bytes:
    """Avro's int and long."""
    return _vint(2 * value if value >= 0 else -2 * value - 1)


def _vint(value: int) -> bytes:
    if value < 0x4000:
        return _ENDS[value]
    parts: list[bytes] = []
    while value > 0x3FFF:
        parts.append(_PAIRS[value & 0x3FFF])
        value >>= 14
    parts.append(_ENDS[value])
    return b"".join(parts)
