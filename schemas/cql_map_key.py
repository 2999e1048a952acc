"""The text of a CQL map key: Avro and JSON maps have text keys only.

It is the text of `toString()` of the Java driver's value, which DataStax's connector writes, except for two kinds:
blobs are hex with `0x`, and composite keys, where that connector fails, are JSON text.
"""

from __future__ import annotations

from collections.abc import Callable

from schemas.cql_type import CqlType, NativeType
from schemas.json_value import json_text
from schemas.native_codec import CODECS, AvroValue, time_text

__all__ = ["map_key_text"]


def map_key_text(
    cql_type: CqlType, value_reader: Callable[[CqlType], Callable[[bytes], AvroValue]]
) -> Callable[[bytes], str]:
    """A function from the CQL bytes of a map key to its text.

    The text is empty for a key of length 0 of a type that has no empty value of its own.
    """
    if isinstance(cql_type, NativeType):
        if cql_type.name == "time":  # the Avro value has only microseconds
            return lambda data: time_text(int.from_bytes(data, "big"))
        return _native_text(CODECS[cql_type.name].key_text, value_reader(cql_type))
    text_of, read = json_text(cql_type), value_reader(cql_type)
    return lambda data: text_of(read(data))


def _native_text(text_of: Callable[[AvroValue], str], read: Callable[[bytes], AvroValue]) -> Callable[[bytes], str]:
    def text(data: bytes) -> str:
        value = read(data)
        return "" if value is None else text_of(value)

    return text
