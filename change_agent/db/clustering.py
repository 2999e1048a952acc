"""Clustering prefixes: the keys of rows and the bounds of ranges.

    Clustering => Values, one for each clustering column
    Bound      => Kind Size Values
      Kind     => Byte, below
      Size     => UInt16, of values; less than the clustering columns for a prefix, 0 for an open end
    Values     => {Presence {Value}}: one Presence for each 32 values
      Presence => Vint, two bits a value from the lowest: 01 empty, 10 absent; no bytes follow for those
      Value    => bytes of the type's fixed length, or vint length and bytes

Cassandra source: o.a.c.db.ClusteringPrefix, o.a.c.db.ClusteringBoundOrBoundary. Pure.
"""

from __future__ import annotations

from typing import Final

from change_agent.data_input import DataInput
from change_agent.db.values import Clustering
from change_agent.errors import MalformedMutationError

__all__ = [
    "EXCL_END_BOUND",
    "EXCL_END_INCL_START_BOUNDARY",
    "EXCL_START_BOUND",
    "INCL_END_BOUND",
    "INCL_END_EXCL_START_BOUNDARY",
    "INCL_START_BOUND",
    "read_bound",
    "read_clustering",
]

EXCL_END_BOUND: Final = 0
INCL_START_BOUND: Final = 1
EXCL_END_INCL_START_BOUNDARY: Final = 2
INCL_END_EXCL_START_BOUNDARY: Final = 5
INCL_END_BOUND: Final = 6
EXCL_START_BOUND: Final = 7

_BOUNDARIES: Final = (EXCL_END_INCL_START_BOUNDARY, INCL_END_EXCL_START_BOUNDARY)
_KINDS: Final = (EXCL_END_BOUND, INCL_START_BOUND, INCL_END_BOUND, EXCL_START_BOUND, *_BOUNDARIES)


def read_clustering(data: DataInput, lengths: list[int]) -> Clustering:
    """A row's clustering; `lengths` are the fixed lengths of the clustering columns. Raises BufferUnderflowError."""
    return _read_values(data, lengths, len(lengths)) if lengths else ()


def read_bound(data: DataInput, lengths: list[int]) -> tuple[int, Clustering]:
    """Kind and values of a range's bound or of a boundary. Raises BufferUnderflowError, MalformedMutationError."""
    kind = data.read_unsigned_byte()
    size = data.read_unsigned_short()
    if kind not in _KINDS:
        raise MalformedMutationError(f"a range tombstone has a bound of kind {kind}")
    if size > len(lengths):
        raise MalformedMutationError(f"a range tombstone has {size} values for {len(lengths)} clustering columns")
    if size == 0:
        if kind in _BOUNDARIES:
            raise MalformedMutationError("a range tombstone has a boundary without values")
        return kind, ()
    return kind, _read_values(data, lengths, size)


def _read_values(data: DataInput, lengths: list[int], size: int) -> Clustering:
    values: list[bytes | None] = []
    presence = 0
    for index in range(size):
        if index % 32 == 0:
            presence = data.read_unsigned_vint()
        if presence & 2:
            values.append(None)
        elif presence & 1:
            values.append(b"")
        else:
            length = lengths[index]
            values.append(data.read_bytes(length) if length >= 0 else data.read_with_vint_length())
        presence >>= 2
    return tuple(values)
