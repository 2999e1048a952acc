"""Counters: a cell has the count of each node that coordinated an update as leader, and the counter is their sum.

    Context => Count(Int16) {HeaderElement(Int16)} {Shard}
    Shard   => Id(16 bytes) Clock(Int64) Count(Int64)

If a node's shard has two states, the one with the higher clock is newer. Every header element stands for a global
shard, the only kind that Cassandra writes since 2.1. Cassandra source: o.a.c.db.context.CounterContext. Pure.
"""

from __future__ import annotations

import struct
from typing import Final

from schemas.cql_type import NativeType
from schemas.cql_value import AvroValue, CqlValueError

__all__ = ["counter_total", "merged_counters"]

_SHARD: Final = struct.Struct(">16sqq")
_GLOBAL: Final = -0x8000

_Shards = dict[bytes, tuple[int, int]]


def counter_total(context: bytes) -> AvroValue:
    """The counter's value; None for an empty context. Raises CqlValueError."""
    return sum(count for _, count in _shards(context).values()) if context else None


def merged_counters(left: bytes, right: bytes) -> bytes:
    """A context with the later state of each shard of both contexts. Raises CqlValueError."""
    if not left or not right:
        return left or right
    shards = _shards(left)
    for shard, state in _shards(right).items():
        shards[shard] = max(state, shards.get(shard, state))
    ordered = sorted(shards.items())
    header = struct.pack(f">h{len(ordered)}h", len(ordered), *(_GLOBAL + at for at in range(len(ordered))))
    return header + b"".join(_SHARD.pack(shard, *state) for shard, state in ordered)


def _shards(context: bytes) -> _Shards:
    count = int.from_bytes(context[:2], "big", signed=True)
    at = 2 + 2 * abs(count)
    if len(context) < at or (len(context) - at) % _SHARD.size:
        raise CqlValueError(NativeType("counter"), f"a context of {len(context)} bytes does not fit its header")
    return {shard: (clock, total) for shard, clock, total in _SHARD.iter_unpack(context[at:])}
