"""Protocol Buffers' encoding, as far as Pulsar's binary protocol needs it: integers, and bytes with their length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["Fields", "encoded", "first_bytes", "first_int", "first_text", "parsed"]

Fields = Mapping[int, Sequence[int | bytes]]
"""The values of a message by field number, in order."""

_VARINT: Final = 0
_LENGTH: Final = 2


def encoded(*fields: tuple[int, int | str | bytes | None]) -> bytes:
    """A message with these fields, in this order. Fields with None are left out."""
    out = bytearray()
    for number, value in fields:
        if value is None:
            continue
        if isinstance(value, int):
            out += _varint(number << 3 | _VARINT) + _varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += _varint(number << 3 | _LENGTH) + _varint(len(data)) + data
    return bytes(out)


def parsed(data: bytes) -> Fields:
    """The fields of a message. Raises ValueError for bytes that are not a message."""
    found: dict[int, list[int | bytes]] = {}
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        value: int | bytes
        match tag & 7:
            case 0:
                value, at = _read_varint(data, at)
            case 1:
                value, at = data[at : at + 8], at + 8
            case 2:
                size, at = _read_varint(data, at)
                value, at = data[at : at + size], at + size
            case 5:
                value, at = data[at : at + 4], at + 4
            case kind:
                raise ValueError(f"a field of kind {kind}")
        if at > len(data):
            raise ValueError("a field is cut off")
        found.setdefault(tag >> 3, []).append(value)
    return found


def first_int(fields: Fields, number: int, default: int = 0) -> int:
    """A field that holds a signed 64-bit integer."""
    value = fields.get(number, (default,))[0]
    if not isinstance(value, int):
        raise ValueError(f"field {number} is no integer")  # noqa: TRY004  (of bytes that were read, not of an argument)
    return value - (1 << 64) if value >= 1 << 63 else value


def first_bytes(fields: Fields, number: int) -> bytes:
    """A field that holds bytes, or a message; empty if the field is missing."""
    value = fields.get(number, (b"",))[0]
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} holds no bytes")  # noqa: TRY004  (likewise)
    return value


def first_text(fields: Fields, number: int) -> str:
    """A field that holds text; empty if the field is missing."""
    return first_bytes(fields, number).decode(errors="replace")


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("an integer is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
