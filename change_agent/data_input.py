"""A cursor over bytes that never reads beyond their end: the DataInputPlus of the commit log decoder.

Cassandra source: o.a.c.io.util.DataInputPlus, o.a.c.utils.vint.VIntCoding.
"""

from __future__ import annotations

from typing import Final, final

from change_agent.errors import BufferUnderflowError, MalformedMutationError

__all__ = ["DataInput", "uint32_at", "wrapped_int", "wrapped_long"]

_INT_SIGN: Final = 0x8000_0000
_INT_RANGE: Final = 0x1_0000_0000
_LONG_SIGN: Final = 0x8000_0000_0000_0000
_LONG_RANGE: Final = 0x1_0000_0000_0000_0000

# The compiled decoder computes with numbers in this range within a machine word.
_SMALL: Final = 0x2000_0000_0000_0000

_from_bytes: Final = int.from_bytes

# The number of leading one bits, by a vint's first byte.
_EXTRA_BYTES: Final = bytes(8 - (first ^ 0xFF).bit_length() for first in range(256))


@final
class DataInput:
    """Reads big-endian values in sequence.

    Each method that reads raises BufferUnderflowError at the end of the bytes.
    """

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.end = len(data)

    def remaining(self) -> int:
        """Number of bytes that are not read yet."""
        return self.end - self.position

    def read_unsigned_byte(self) -> int:
        """Byte: 0..255."""
        at = self.position
        if at >= self.end:
            raise self._underflow(1)
        self.position = at + 1
        return self.data[at]

    def read_unsigned_short(self) -> int:
        """UInt16."""
        at = self.position
        if at + 2 > self.end:
            raise self._underflow(2)
        self.position = at + 2
        return (self.data[at] << 8) | self.data[at + 1]

    def read_unsigned_vint(self) -> int:
        """Vint: 1 to 9 bytes, 0..2^64-1. The leading one bits of the first byte count the bytes that follow."""
        at = self.position
        if at >= self.end:
            raise self._underflow(1)
        first = self.data[at]
        at += 1
        if first < 0x80:
            self.position = at
            return first
        extra = _EXTRA_BYTES[first]
        after = at + extra
        if after > self.end:
            raise self._underflow(1 + extra)
        self.position = after
        return ((first & (0xFF >> extra)) << (extra * 8)) | _from_bytes(self.data[at:after], "big")

    def read_unsigned_vint32(self) -> int:
        """Vint of a Java int, which may be negative: its sign fills all 64 bits (VIntCoding.readUnsignedVInt32).

        Raises MalformedMutationError if the value does not fit into 32 bits.
        """
        value = self.read_unsigned_vint()
        if value < _INT_SIGN:
            return value
        if value >= _LONG_RANGE - _INT_SIGN:
            return value - _LONG_RANGE
        raise MalformedMutationError(f"a vint of {value} is not a number of 32 bits")

    def read_length(self) -> int:
        """Vint that counts bytes, or items of at least one byte each.

        It cannot exceed the number of remaining bytes.
        """
        length = self.read_unsigned_vint()
        if length > self.end - self.position:
            raise self._underflow(length)
        return length

    def read_bytes(self, length: int) -> bytes:
        """`length` bytes, copied."""
        at = self.position
        after = at + length
        if after > self.end or length < 0:
            raise self._underflow(length)
        self.position = after
        return self.data[at:after]

    def skip(self, length: int) -> None:
        """Pass over `length` bytes."""
        after = self.position + length
        if after > self.end or length < 0:
            raise self._underflow(length)
        self.position = after

    def read_with_vint_length(self) -> bytes:
        """Vint length, then that many bytes (o.a.c.utils.ByteBufferUtil.readWithVIntLength)."""
        return self.read_bytes(self.read_unsigned_vint())

    def _underflow(self, wanted: int) -> BufferUnderflowError:
        return BufferUnderflowError(
            f"the mutation ends too early: {wanted} more bytes wanted at its byte {self.position} of {self.end}"
        )


def uint32_at(data: bytes, at: int) -> int:
    """UInt32 at an offset. The caller has checked that four bytes are there."""
    return (data[at] << 24) | (data[at + 1] << 16) | (data[at + 2] << 8) | data[at + 3]


def wrapped_long(value: int) -> int:
    """`value` wrapped to a signed number of 64 bits, as Java's long arithmetic does."""
    if -_SMALL <= value < _SMALL:
        return value
    if -_LONG_SIGN <= value < _LONG_SIGN:
        return value
    value %= _LONG_RANGE
    return value - _LONG_RANGE if value >= _LONG_SIGN else value


def wrapped_int(value: int) -> int:
    """`value` wrapped to a signed number of 32 bits, as Java's int arithmetic does."""
    if -_INT_SIGN <= value < _INT_SIGN:
        return value
    value %= _INT_RANGE
    return value - _INT_RANGE if value >= _INT_SIGN else value
