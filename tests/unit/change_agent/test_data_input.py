"""The bounds-checked cursor."""

from __future__ import annotations

import pytest

from change_agent.data_input import DataInput, wrapped_int, wrapped_long
from change_agent.errors import BufferUnderflowError

VINTS = [
    ("00", 0),
    ("7f", 127),
    ("8080", 128),
    ("bfff", 0x3FFF),
    ("c04000", 0x4000),
    ("e0200000", 0x20_0000),
    ("f010000000", 0x1000_0000),
    ("f80800000000", 0x8_0000_0000),
    ("fc040000000000", 0x400_0000_0000),
    ("fe02000000000000", 0x2_0000_0000_0000),
    ("ff0100000000000000", 0x100_0000_0000_0000),
    ("ffffffffffffffffff", 0xFFFF_FFFF_FFFF_FFFF),
]


@pytest.mark.parametrize(("text", "value"), VINTS)
def test_a_vint_has_as_many_bytes_as_its_first_says(text: str, value: int) -> None:
    """All nine lengths, as o.a.c.utils.vint.VIntCoding writes them."""
    data = DataInput(bytes.fromhex(text + "aa"))
    assert data.read_unsigned_vint() == value
    assert data.remaining() == 1


@pytest.mark.parametrize(("text", "value"), VINTS)
def test_a_cut_vint_is_an_underflow(text: str, value: int) -> None:
    """The vint is cut at every length."""
    content = bytes.fromhex(text)
    for cut in range(len(content)):
        with pytest.raises(BufferUnderflowError):
            DataInput(content[:cut]).read_unsigned_vint()


def test_values_are_read_one_after_the_other() -> None:
    """A byte, a UInt16, and bytes after their length."""
    data = DataInput(bytes.fromhex("ff 8001 03 616263 02 2a2a"))
    assert data.read_unsigned_byte() == 0xFF
    assert data.read_unsigned_short() == 0x8001
    assert data.read_with_vint_length() == b"abc"
    assert data.read_length() == 2
    assert data.read_bytes(2) == b"**"
    assert data.remaining() == 0


def test_a_length_beyond_the_end_is_refused_before_anything_is_made_of_it() -> None:
    """2^63 bytes or elements cannot follow in a few bytes."""
    content = bytes.fromhex("ff8000000000000000 0000")
    for read in (DataInput.read_length, DataInput.read_with_vint_length):
        with pytest.raises(BufferUnderflowError, match="9223372036854775808 more bytes wanted at its byte 9 of 11"):
            read(DataInput(content))


@pytest.mark.parametrize(
    ("value", "as_int", "as_long"),
    [
        (5, 5, 5),
        (-5, -5, -5),
        (2**31 - 1, 2**31 - 1, 2**31 - 1),
        (2**31, -(2**31), 2**31),
        (2**63, 0, -(2**63)),
        (2**64 - 1, -1, -1),
        (2**64 + 1_442_880_000, 1_442_880_000, 1_442_880_000),
    ],
)
def test_sums_wrap_as_in_java(value: int, as_int: int, as_long: int) -> None:
    """A time before the minimum of an update is written as a difference that overflows."""
    assert wrapped_int(value) == as_int
    assert wrapped_long(value) == as_long
