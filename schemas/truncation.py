"""What a node notes of truncations: `system.local.truncated_at`, a `map<uuid, blob>` from table ids to

    segment id   long    where the node's log was when its memtable was flushed for the truncation: what is before is gone
    position     int
    time         long    milliseconds since the epoch, by the node's clock, after that flush

all big endian. DROP TABLE removes the entry. The same from 3.11 to 5.0. Cassandra source:
o.a.c.db.SystemKeyspace.saveTruncationRecord.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

__all__ = ["Truncation", "truncations_of"]

_VALUE: Final = struct.Struct(">qiq")


class Truncation(NamedTuple):
    """The last truncation of a table on one node."""

    segment_id: int
    position: int
    time_ms: int


def truncations_of(truncated_at: Mapping[UUID, bytes] | None) -> dict[UUID, Truncation]:
    """The column as the driver has it, None where it is empty. Values of another form are left out."""
    if truncated_at is None:
        return {}
    return {
        table_id: Truncation(*_VALUE.unpack(value))
        for table_id, value in truncated_at.items()
        if len(value) == _VALUE.size
    }
