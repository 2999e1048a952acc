"""Numbers as Java prints them: the texts of map keys and of JSON."""

from __future__ import annotations

import math
import struct
from decimal import Decimal

__all__ = ["java_double_text", "java_float_text"]


def java_double_text(value: float) -> str:
    """`Double.toString` of Java: decimal from 1e-3 up to 1e7, else scientific with one digit before the point."""
    if math.isnan(value):
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return format(Decimal(repr(value)), "f") if value else repr(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    assert isinstance(exponent, int)
    scientific = exponent + len(digits) - 1
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{scientific}"


def java_float_text(value: float) -> str:
    """`Float.toString` of Java: the shortest text that gives the same 32-bit float back."""
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if _as_float32(float(text)) == value:
            return java_double_text(float(text))
    return java_double_text(value)


def _as_float32(value: float) -> float:
    try:
        (narrow,) = struct.unpack(">f", struct.pack(">f", value))
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    assert isinstance(narrow, float)
    return narrow
