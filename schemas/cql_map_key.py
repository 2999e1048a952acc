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
    """A function from the CQL bytes of a map key to its text."""
    if isinstance(cql_type, NativeType):
        if cql_type.name == "time":  # the Avro value has only microseconds
            return lambda data: time_text(int.from_bytes(data, "big"))
        text_of = CODECS[cql_type.name].key_text
    else:
        text_of = json_text(cql_type)
    read = value_reader(cql_type)
    return lambda data: text_of(read(data))
