"""Avro values of key columns -> CQL bytes, for keys of DataStax's agents: the reverse of `schemas.cql_value`."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from schemas.cql_type import CqlType, NativeType
from schemas.errors import CdcError
from schemas.native_codec import CODECS, AvroValue

__all__ = ["UnwritableKeyError", "cql_bytes", "joined_partition_key"]


class UnwritableKeyError(CdcError):
    """A value that does not fit the type of its key column."""

    def __init__(self, cql_type: CqlType, value: AvroValue) -> None:
        self.cql_type = cql_type
        super().__init__(f"a key column of type {cql_type} cannot be {value!r:.100}")


def cql_bytes(cql_type: CqlType, value: AvroValue) -> bytes:
    """The CQL bytes of a value of a native type. Raises UnwritableKeyError."""
    write = CODECS[cql_type.name].write if isinstance(cql_type, NativeType) else None
    if write is None:
        raise UnwritableKeyError(cql_type, value)
    try:
        return write(value)
    except (struct.error, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise UnwritableKeyError(cql_type, value) from error


def joined_partition_key(components: Sequence[bytes]) -> bytes:
    """A serialized partition key. Of several components, each has its length (uint16), its bytes and a zero byte."""
    if len(components) == 1:
        return components[0]
    return b"".join(len(each).to_bytes(2, "big") + each + b"\0" for each in components)
