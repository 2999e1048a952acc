"""Lengths of CQL values in the commit log, and the change that Cassandra makes to counters when it reads them.

Cassandra source: o.a.c.db.marshal.AbstractType.valueLengthIfFixed and its overrides, o.a.c.db.context.CounterContext.
"""

from __future__ import annotations

from typing import Final

from change_agent.errors import MalformedMutationError
from schemas.cql_type import CqlType, CustomType, NativeType, VectorType
from schemas.native_codec import CODECS

__all__ = ["VARIABLE_LENGTH", "clear_local_shards", "fixed_length"]

VARIABLE_LENGTH: Final = -1

_CLASS_LENGTHS: Final = {
    "BooleanType": 1,
    "DateType": 8,
    "DoubleType": 8,
    "EmptyType": 0,
    "FloatType": 4,
    "Int32Type": 4,
    "LexicalUUIDType": 16,
    "LongType": 8,
    "TimeUUIDType": 16,
    "TimestampType": 8,
    "UUIDType": 16,
}

_MARSHAL_PACKAGE: Final = "org.apache.cassandra.db.marshal."


def fixed_length(cql_type: CqlType) -> int:
    """Length in bytes of every non-empty value of the type; VARIABLE_LENGTH if a length precedes each value."""
    match cql_type:
        case NativeType(name):
            return CODECS[name].length or VARIABLE_LENGTH
        case VectorType(element, dimension):
            length = fixed_length(element)
            return VARIABLE_LENGTH if length == VARIABLE_LENGTH else length * dimension
        case CustomType(class_name):
            return _class_length(class_name)
        case _:
            return VARIABLE_LENGTH


def _class_length(class_name: str) -> int:
    name = class_name.removeprefix(_MARSHAL_PACKAGE)
    # ReversedType(T) is stored as T.
    if name.startswith("ReversedType(") and name.endswith(")"):
        return _class_length(name.removeprefix("ReversedType(")[:-1])
    return _CLASS_LENGTHS.get(name, VARIABLE_LENGTH)


def clear_local_shards(context: bytes) -> bytes:
    """A counter's value as Cassandra's reader returns it (CounterContext.clearAllLocal).

        Context => Count {HeaderElement} {Shard}
          Count         => Int16, of header elements; negative = local shards are to be cleared
          HeaderElement => Int16, index of a local shard, or negative for a global one

    Raises MalformedMutationError when the header is longer than the value.
    """
    if len(context) < 2:
        raise MalformedMutationError(f"a counter's value has {len(context)} bytes")
    count = int.from_bytes(context[:2], "big", signed=True)
    if count >= 0:
        return context
    header_end = 2 - 2 * count
    if header_end > len(context):
        raise MalformedMutationError(f"a counter's value of {len(context)} bytes claims {-count} header elements")
    elements = [context[at : at + 2] for at in range(2, header_end, 2)]
    kept = [element for element in elements if element[0] & 0x80]
    if len(kept) == len(elements):
        return context
    return len(kept).to_bytes(2, "big") + b"".join(kept) + context[header_end:]
