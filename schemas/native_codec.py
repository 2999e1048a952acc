"""NativeCodec: everything about a native CQL type. To add a type, add an entry to `CODECS`.

    text ascii -> str              boolean -> bool           blob -> bytes
    tinyint smallint int -> int    bigint counter -> int     float double -> float
    varint -> bytes (two's complement, minimal)              decimal -> {"bigint": bytes, "scale": int}
    timestamp -> int milliseconds  date -> int days          time -> int microseconds (nanoseconds are cut)
    uuid timeuuid -> str           inet -> str as Java's InetAddress.getHostAddress
    duration -> {"months", "days", "nanoseconds"}

Serialized forms: o.a.c.serializers.* and the native protocol v5 specification, section 6.
"""

from __future__ import annotations

import base64
import ipaddress
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Final
from uuid import UUID

from schemas.java_text import java_double_text, java_float_text
from schemas.long_numbers import decimal_of, integer_text

__all__ = [
    "CODECS",
    "AvroSchema",
    "AvroValue",
    "JsonText",
    "NativeCodec",
    "RecordSchema",
    "ValueReader",
    "bytes_json",
    "json_string",
    "minimal_varint",
    "plain_decimal",
    "time_text",
    "unsigned_vint",
    "with_one_nan",
]

RecordSchema = dict[str, "AvroSchema | int | None"]
AvroSchema = str | RecordSchema | list["AvroSchema"]
AvroValue = None | bool | int | float | str | bytes | list["AvroValue"] | dict[str, "AvroValue"]
ValueReader = Callable[[bytes], AvroValue]
JsonText = Callable[[AvroValue], str]

_EPOCH: Final = date(1970, 1, 1)
_NANOSECONDS_PER_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeCodec:
    """Conversions of one native type between its CQL bytes, its Avro value and texts."""

    avro: AvroSchema
    """The Avro type, with the mapping of DataStax's connector."""
    read: ValueReader
    """CQL bytes to the Avro value. Bytes of length 0 are None for types that have no empty value of their own.

    Raises struct.error, IndexError or UnicodeDecodeError for bytes that are not a value of the type.
    """
    json: JsonText
    """The Avro value as JSON text."""
    write: Callable[[AvroValue], bytes] | None = None
    """The Avro value to CQL bytes, for types of primary key columns in events of DataStax's agents.

    These agents write tinyint and smallint without their sign (-5 as 251), which is corrected here. They cut `time` to
    microseconds, which cannot be corrected. Raises ValueError, TypeError, KeyError, struct.error or OverflowError.
    """
    key_text: Callable[[AvroValue], str] = str
    """The Avro value as the text of a map key: `toString()` of the Java driver's value."""
    length: int | None = None
    """Length in bytes of every non-empty value, if Cassandra stores no length (AbstractType.valueLengthIfFixed).

    None for all other types, even if all their values have the same length: tinyint, smallint, date, time.
    """


_CQL_DECIMAL: Final[AvroSchema] = {
    "type": "record",
    "name": "cql_decimal",
    "namespace": "",
    "fields": [{"name": "bigint", "type": "bytes"}, {"name": "scale", "type": "int"}],
    "logicalType": "cql_decimal",
}
_CQL_DURATION: Final[AvroSchema] = {
    "type": "record",
    "name": "cql_duration",
    "namespace": "",
    "fields": [
        {"name": "months", "type": "int"},
        {"name": "days", "type": "int"},
        {"name": "nanoseconds", "type": "long"},
    ],
    "logicalType": "cql_duration",
}
_UUID: Final[AvroSchema] = {"type": "string", "logicalType": "uuid"}
_NULL: Final = "null"
_ESCAPES: Final = {
    **{code: f"\\u{code:04X}" for code in range(0x20)},
    **{ord(char): f"\\{letter}" for char, letter in zip('\b\t\n\f\r"\\', 'btnfr"\\', strict=True)},
}


def json_string(text: str) -> str:
    """A text as JSON, with quotes."""
    return f'"{text.translate(_ESCAPES)}"'


def minimal_varint(data: bytes) -> bytes:
    """The same two's complement number in the fewest bytes, as Java's BigInteger.toByteArray returns it."""
    at = 0
    while at + 1 < len(data) and (data[at], data[at + 1] >> 7) in ((0x00, 0), (0xFF, 1)):
        at += 1
    return data[at:]


_INT32: Final = struct.Struct(">i")
_LEAST_SCALE: Final = -(1 << 31)
# Integers with up to so many zeros at their end keep them, as clients usually write them: 100, not 1E+2.
_PLAIN_ZEROS: Final = 38


def plain_decimal(data: bytes) -> AvroValue:
    """The Avro value of a decimal, the same for equal numbers: 1.50 and 1.5 are 1.5; 1E+2 and 100 are 100.

    Raises struct.error for bytes that are no decimal.
    """
    if len(data) <= _INT32.size:
        return _read_decimal(data)
    (scale,), unscaled = _INT32.unpack_from(data), int.from_bytes(data[4:], "big", signed=True)
    if unscaled == 0:
        scale = 0
    elif unscaled % 10 == 0 or scale < 0:
        digits = str(Decimal(unscaled))  # `str(int)` refuses numbers of more than 4,300 digits
        zeros = min(len(digits) - len(digits.rstrip("0")), scale - _LEAST_SCALE)
        unscaled, scale = unscaled // 10**zeros, scale - zeros
        if -_PLAIN_ZEROS <= scale < 0:
            unscaled, scale = unscaled * 10**-scale, 0
    length = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    return {"bigint": unscaled.to_bytes(length, "big", signed=True), "scale": scale}


def with_one_nan(read: ValueReader) -> ValueReader:
    """A reader of doubles or floats that returns the same object for every NaN, whatever its bytes are."""

    def read_one(data: bytes) -> AvroValue:
        value = read(data)
        return math.nan if isinstance(value, float) and math.isnan(value) else value

    return read_one


def _reader_of(code: str) -> ValueReader:
    unpack = struct.Struct(">" + code).unpack

    def read(data: bytes) -> AvroValue:
        if not data:
            return None
        (value,) = unpack(data)
        return value  # type: ignore[no-any-return]  # struct cannot say what it unpacks

    return read


def _read_text(data: bytes) -> AvroValue:
    return data.decode("utf-8")


def _read_blob(data: bytes) -> AvroValue:
    return bytes(data)


def _read_boolean(data: bytes) -> AvroValue:
    return None if not data else data[0] != 0


def _read_varint(data: bytes) -> AvroValue:
    return minimal_varint(data) if data else None


def _read_decimal(data: bytes) -> AvroValue:
    if not data:
        return None
    (scale,) = _INT32.unpack_from(data)
    return {"bigint": minimal_varint(data[4:]), "scale": scale}


def _read_date(data: bytes) -> AvroValue:
    return None if not data else int.from_bytes(data[:4], "big") - (1 << 31)


def _read_time(data: bytes) -> AvroValue:
    return None if not data else int.from_bytes(data[:8], "big") // 1000


def _read_uuid(data: bytes) -> AvroValue:
    if not data:
        return None
    if len(data) != 16:
        raise IndexError("a uuid has 16 bytes")
    text = data.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _read_inet(data: bytes) -> AvroValue:
    if not data:
        return None
    if len(data) == 4:
        return ".".join(map(str, data))
    return ":".join(f"{part:x}" for part in struct.unpack(">8H", data))


def _read_duration(data: bytes) -> AvroValue:
    if not data:
        return None
    months, at = _signed_vint(data, 0)
    days, at = _signed_vint(data, at)
    nanoseconds, at = _signed_vint(data, at)
    return {"months": months, "days": days, "nanoseconds": nanoseconds}


def unsigned_vint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned vint and its end. The number of leading one bits is the number of further bytes.

    Cassandra source: o.a.c.utils.vint.VIntCoding.
    """
    first = data[at]
    extra = 8 - (~first & 0xFF).bit_length() if first != 0xFF else 8
    end = at + 1 + extra
    if end > len(data):
        raise IndexError("a vint ends too early")
    value = (first & (0xFF >> extra)) << (8 * extra) if extra < 8 else 0
    return value | int.from_bytes(data[at + 1 : end], "big"), end


def _signed_vint(data: bytes, at: int) -> tuple[int, int]:
    value, at = unsigned_vint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _writer_of(code: str) -> Callable[[AvroValue], bytes]:
    return struct.Struct(">" + code).pack


def _signed_writer_of(code: str, bits: int) -> Callable[[AvroValue], bytes]:
    pack, limit = struct.Struct(">" + code).pack, 1 << (bits - 1)

    def write(value: AvroValue) -> bytes:
        number = _as_int(value)
        return pack(number - 2 * limit if limit <= number < 2 * limit else number)

    return write


def _as_int(value: AvroValue) -> int:
    if not isinstance(value, int):
        raise TypeError("no integer")
    return value


def _as_bytes(value: AvroValue) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("no bytes")
    return value


def _as_text(value: AvroValue) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _write_decimal(value: AvroValue) -> bytes:
    if not isinstance(value, dict):
        raise TypeError("no record")
    return struct.pack(">i", _as_int(value["scale"])) + _as_bytes(value["bigint"])


def _boolean_json(value: AvroValue) -> str:
    return "true" if value else "false"


def _string_json(value: AvroValue) -> str:
    assert isinstance(value, str)
    return json_string(value)


def bytes_json(value: AvroValue) -> str:
    assert isinstance(value, bytes)
    return f'"{base64.b64encode(value).decode()}"'


def _double_json(value: AvroValue) -> str:
    assert isinstance(value, float)
    return _quoted_unless_number(java_double_text(value))


def _float_json(value: AvroValue) -> str:
    assert isinstance(value, float)
    return _quoted_unless_number(java_float_text(value))


def _quoted_unless_number(text: str) -> str:
    return f'"{text}"' if text[-1].isalpha() else text


def _decimal_json(value: AvroValue) -> str:
    assert isinstance(value, dict)
    return f'{{"bigint":{bytes_json(value["bigint"])},"scale":{value["scale"]!r}}}'


def _duration_json(value: AvroValue) -> str:
    assert isinstance(value, dict)
    return f'{{"months":{value["months"]!r},"days":{value["days"]!r},"nanoseconds":{value["nanoseconds"]!r}}}'


def _varint_text(value: AvroValue) -> str:
    assert isinstance(value, bytes)
    return integer_text(int.from_bytes(value, "big", signed=True))


def _decimal_text(value: AvroValue) -> str:
    # Decimal and BigDecimal share the conversion rule ("to-scientific-string"), exponent sign included.
    assert isinstance(value, dict)
    unscaled, scale = value["bigint"], value["scale"]
    assert isinstance(unscaled, bytes) and isinstance(scale, int)
    return str(decimal_of(int.from_bytes(unscaled, "big", signed=True), scale))


def _timestamp_text(value: AvroValue) -> str:
    """The text of Java's `Instant.toString`: no fraction if it is zero, else three digits."""
    assert isinstance(value, int)
    seconds, milliseconds = divmod(value, 1000)
    days, second_of_day = divmod(seconds, 86_400)
    clock = f"{second_of_day // 3600:02}:{second_of_day // 60 % 60:02}:{second_of_day % 60:02}"
    fraction = f".{milliseconds:03}" if milliseconds else ""
    return f"{_date_text(days)}T{clock}{fraction}Z"


def _date_text(value: AvroValue) -> str:
    """The text of Java's `LocalDate.toString`, also for years outside Python's calendar."""
    assert isinstance(value, int)
    cycles, days = divmod(value, 146_097)  # days of 400 Gregorian years
    within = _EPOCH + timedelta(days=days)
    year = within.year + 400 * cycles
    if year > 9999:
        text = f"+{year}"
    else:
        text = f"{year:04}" if year >= 0 else f"-{-year:04}"
    return f"{text}-{within.month:02}-{within.day:02}"


def time_text(nanoseconds: int) -> str:
    """The text of Java's `LocalTime.toString`: the shortest of HH:mm, HH:mm:ss and 3, 6 or 9 digits of a fraction."""
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


CODECS: Final[Mapping[str, NativeCodec]] = {
    "ascii": NativeCodec(
        avro="string", read=_read_text, json=_string_json, write=lambda value: _as_text(value).encode()
    ),
    "bigint": NativeCodec(avro="long", read=_reader_of("q"), json=str, write=_writer_of("q"), length=8),
    "blob": NativeCodec(avro="bytes", read=_read_blob, json=bytes_json, write=_as_bytes, key_text=_blob_text),
    "boolean": NativeCodec(
        avro="boolean", read=_read_boolean, json=_boolean_json, write=_writer_of("?"), key_text=_boolean_json, length=1
    ),
    "counter": NativeCodec(avro="long", read=_reader_of("q"), json=str),
    "date": NativeCodec(
        avro={"type": "int", "logicalType": "date"},
        read=_read_date,
        json=str,
        write=lambda value: struct.pack(">I", _as_int(value) + (1 << 31)),
        key_text=_date_text,
    ),
    "decimal": NativeCodec(
        avro=_CQL_DECIMAL, read=_read_decimal, json=_decimal_json, write=_write_decimal, key_text=_decimal_text
    ),
    "double": NativeCodec(
        avro="double", read=_reader_of("d"), json=_double_json, write=_writer_of("d"), key_text=_double_text, length=8
    ),
    "duration": NativeCodec(avro=_CQL_DURATION, read=_read_duration, json=_duration_json),
    "empty": NativeCodec(avro="null", read=lambda data: None, json=lambda value: _NULL),
    "float": NativeCodec(
        avro="float", read=_reader_of("f"), json=_float_json, write=_writer_of("f"), key_text=_float_text, length=4
    ),
    "inet": NativeCodec(
        avro="string",
        read=_read_inet,
        json=_string_json,
        write=lambda value: ipaddress.ip_address(_as_text(value)).packed,
    ),
    "int": NativeCodec(avro="int", read=_reader_of("i"), json=str, write=_writer_of("i"), length=4),
    "smallint": NativeCodec(avro="int", read=_reader_of("h"), json=str, write=_signed_writer_of("h", 16)),
    "text": NativeCodec(
        avro="string", read=_read_text, json=_string_json, write=lambda value: _as_text(value).encode()
    ),
    "time": NativeCodec(
        avro={"type": "long", "logicalType": "time-micros"},
        read=_read_time,
        json=str,
        write=lambda value: struct.pack(">q", _as_int(value) * 1000),
    ),
    "timestamp": NativeCodec(
        avro={"type": "long", "logicalType": "timestamp-millis"},
        read=_reader_of("q"),
        json=str,
        write=_writer_of("q"),
        key_text=_timestamp_text,
        length=8,
    ),
    "timeuuid": NativeCodec(
        avro=_UUID, read=_read_uuid, json=_string_json, write=lambda value: UUID(_as_text(value)).bytes, length=16
    ),
    "tinyint": NativeCodec(avro="int", read=_reader_of("b"), json=str, write=_signed_writer_of("b", 8)),
    "uuid": NativeCodec(
        avro=_UUID, read=_read_uuid, json=_string_json, write=lambda value: UUID(_as_text(value)).bytes, length=16
    ),
    "varint": NativeCodec(
        avro={"type": "bytes", "logicalType": "cql_varint"},
        read=_read_varint,
        json=bytes_json,
        write=_as_bytes,
        key_text=_varint_text,
    ),
}
"""The codecs by the type's CQL name; `varchar` is `text`."""
