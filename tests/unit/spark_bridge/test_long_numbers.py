"""Varints and decimals that exceed the limit of digits of Python's `str` and `int`."""

from __future__ import annotations

import struct
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.cql_type import NativeType
from schemas.long_numbers import decimal_of, integer_of, integer_text
from schemas.native_codec import CODECS
from spark_bridge.commitlog.cql_order import order_of
from spark_bridge.rows import avro_columns, avro_encoding, range_scope

_LONG = 10**5000 + 7
_TEXT = "1" + "0" * 4999 + "7"


@pytest.mark.parametrize(("number", "text"), [(_LONG, _TEXT), (-_LONG, f"-{_TEXT}")], ids=["positive", "negative"])
def test_a_number_may_have_more_than_4300_digits(number: int, text: str) -> None:
    """This holds for a value, for a key of a map, and for a clustering value beside a range deletion."""
    data = number.to_bytes(2100, "big", signed=True)
    scaled = {"bigint": data, "scale": 2}
    point = f"{text[:-2]}.07"
    assert avro_columns._varint_text(data) == CODECS["varint"].key_text(data) == text
    assert avro_columns._decimal_text(scaled) == CODECS["decimal"].key_text(scaled) == point
    assert avro_encoding._bytes_of(integer_of(text)) == avro_encoding._bytes_of(number)
    assert avro_encoding._bytes_and_scale(point) == (avro_encoding._bytes_of(number), 2)
    assert range_scope._decimal(scaled) == Decimal(point)
    assert order_of(NativeType("decimal"))(struct.pack(">i", 2) + data) == (1, Decimal(point))


@given(st.integers(), st.integers(-50, 50))
def test_numbers_are_those_of_python(number: int, scale: int) -> None:
    assert integer_text(number) == str(number)
    assert integer_of(str(number)) == number
    assert str(decimal_of(number, scale)) == str(Decimal(f"{number}E{-scale}"))


@pytest.mark.parametrize("text", ["1.5", "1e3", "x", "", "-"])
def test_another_text_is_no_integer(text: str) -> None:
    """Otherwise its fraction would be lost."""
    with pytest.raises(ValueError, match="invalid literal for int"):
        integer_of(text)
