"""The write time of a mutation, from its first bytes: no schema is needed.

Cassandra source: o.a.c.db.rows.EncodingStats.Serializer. Pure.
"""

from __future__ import annotations

from typing import Final

from change_agent.data_input import DataInput, wrapped_long

__all__ = ["lowest_write_time_us"]

_IS_EMPTY: Final = 0x01
# o.a.c.db.rows.EncodingStats: 2015-09-22T00:00:00Z in microseconds.
_TIMESTAMP_EPOCH: Final = 1_442_880_000_000_000


def lowest_write_time_us(payload: bytes) -> int:
    """The lowest write time (microseconds) in the first partition update of a mutation. Raises BufferUnderflowError.

    If the update has none, it is the epoch of EncodingStats, in 2015.
    """
    data = DataInput(payload)
    data.read_length()  # number of updates
    data.read_bytes(16)  # table id
    data.read_with_vint_length()  # partition key
    if data.read_unsigned_byte() & _IS_EMPTY:
        return _TIMESTAMP_EPOCH
    return wrapped_long(data.read_unsigned_vint() + _TIMESTAMP_EPOCH)
