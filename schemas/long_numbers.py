"""Varints and decimals as text, however many digits they have. Pure.

Python refuses `str` and `int` for integers of more than 4,300 digits (`sys.set_int_max_str_digits`). Cassandra takes
longer ones. `Decimal` has no such limit, and its conversions here are exact.
"""

from __future__ import annotations

from decimal import Decimal

__all__ = ["decimal_of", "integer_of", "integer_text"]


def integer_text(number: int) -> str:
    """The digits of an integer, after its sign."""
    return str(Decimal(number))


def integer_of(text: str) -> int:
    """The integer that a text of digits gives. Raises ValueError for another text."""
    digits = text.strip()
    if digits[:1] in {"+", "-"}:
        digits = digits[1:]
    # A fraction must not be lost: `int` raises the error for a text that is no integer.
    return int(Decimal(text)) if digits.isdecimal() else int(text)


def decimal_of(unscaled: int, scale: int) -> Decimal:
    """The decimal `unscaled` * 10 ** -`scale`."""
    return Decimal((unscaled < 0, Decimal(unscaled).as_tuple().digits, -scale))
