"""The text of a CQL map key: Avro and JSON maps have text keys only.

The same text as `toString()` of the Java driver's value, which is what DataStax's connector writes; hex with `0x` for
blobs, and the JSON text for composite keys, where that connector fails.
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
        if cql_type.name == "time":  # nanoseconds would be cut in the Avro value
            return lambda data: time_text(int.from_bytes(data, "big"))
        text_of = CODECS[cql_type.name].key_text
    else:
        text_of = json_text(cql_type)
    read = value_reader(cql_type)
    return lambda data: text_of(read(data))
