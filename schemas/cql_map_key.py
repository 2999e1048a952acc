"""The text of a CQL map key: Avro and JSON maps have text keys only.

The same text as `toString()` of the Java driver's value, which is what DataStax's connector writes; hex with `0x` for
blobs, and the JSON text for composite keys, where that connector fails.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from typing import Final

from schemas.cql_type import CqlType, NativeType
from schemas.java_text import java_double_text, java_float_text
from schemas.json_value import AvroValue, json_text

__all__ = ["map_key_text"]

_EPOCH: Final = date(1970, 1, 1)
_NANOSECONDS_PER_SECOND: Final = 1_000_000_000


def map_key_text(
    cql_type: CqlType, value_reader: Callable[[CqlType], Callable[[bytes], AvroValue]]
) -> Callable[[bytes], str]:
    """A function from the CQL bytes of a map key to its text."""
    if isinstance(cql_type, NativeType):
        if cql_type.name == "time":  # nanoseconds would be cut in the Avro value
            return lambda data: _time_text(int.from_bytes(data, "big"))
        text_of = _NATIVE_TEXT.get(cql_type.name, str)
    else:
        text_of = json_text(cql_type)
    read = value_reader(cql_type)
    return lambda data: text_of(read(data))


def _boolean_text(value: AvroValue) -> str:
    return "true" if value else "false"


def _varint_text(value: AvroValue) -> str:
    assert isinstance(value, bytes)
    return str(int.from_bytes(value, "big", signed=True))


def _decimal_text(value: AvroValue) -> str:
    # Decimal and BigDecimal share the conversion rule ("to-scientific-string"), exponent sign included.
    assert isinstance(value, dict)
    unscaled, scale = value["bigint"], value["scale"]
    assert isinstance(unscaled, bytes) and isinstance(scale, int)
    number = int.from_bytes(unscaled, "big", signed=True)
    return str(Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale)))


def _timestamp_text(value: AvroValue) -> str:
    """`Instant.toString`: no fraction when it is zero, else three digits."""
    assert isinstance(value, int)
    seconds, milliseconds = divmod(value, 1000)
    days, second_of_day = divmod(seconds, 86_400)
    clock = f"{second_of_day // 3600:02}:{second_of_day // 60 % 60:02}:{second_of_day % 60:02}"
    fraction = f".{milliseconds:03}" if milliseconds else ""
    return f"{_date_text(days)}T{clock}{fraction}Z"


def _date_text(value: AvroValue) -> str:
    """`LocalDate.toString`, for years that Python's calendar does not reach too."""
    assert isinstance(value, int)
    cycles, days = divmod(value, 146_097)  # days of 400 Gregorian years
    within = _EPOCH + timedelta(days=days)
    year = within.year + 400 * cycles
    if year > 9999:
        text = f"+{year}"
    else:
        text = f"{year:04}" if year >= 0 else f"-{-year:04}"
    return f"{text}-{within.month:02}-{within.day:02}"


def _time_text(nanoseconds: int) -> str:
    """`LocalTime.toString`: the shortest of HH:mm, HH:mm:ss and 3, 6 or 9 digits of a fraction."""
    seconds, fraction = divmod(nanoseconds, _NANOSECONDS_PER_SECOND)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}"
    if not seconds % 60 and not fraction:
        return text
    text += f":{seconds % 60:02}"
    if not fraction:
        return text
    digits = f"{fraction:09}"
    if digits.endswith("000000"):
        return f"{text}.{digits[:3]}"
    return f"{text}.{digits[:6]}" if digits.endswith("000") else f"{text}.{digits}"


def _double_text(value: AvroValue) -> str:
    assert isinstance(value, float)
    return java_double_text(value)


def _float_text(value: AvroValue) -> str:
    assert isinstance(value, float)
    return java_float_text(value)


def _blob_text(value: AvroValue) -> str:
    assert isinstance(value, bytes)
    return "0x" + value.hex()


_NATIVE_TEXT: Final[dict[str, Callable[[AvroValue], str]]] = {
    "blob": _blob_text,
    "boolean": _boolean_text,
    "date": _date_text,
    "decimal": _decimal_text,
    "double": _double_text,
    "float": _float_text,
    "timestamp": _timestamp_text,
    "varint": _varint_text,
}
