"""A node's truncation records: `system.local.truncated_at`, a `map<uuid, blob>` from table ids to big-endian values

    segment id   long    the log's segment and position when the memtable was flushed for the truncation: earlier
    position     int     writes are gone
    time         long    milliseconds since the epoch, by the node's clock, after that flush

DROP TABLE removes the entry. The form is the same from 3.11 to 5.0. Cassandra source:
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
    """Truncations by table id, from the driver's value of the column (None if empty).

    Values of another form are left out.
    """
    if truncated_at is None:
        return {}
    return {
        table_id: Truncation(*_VALUE.unpack(value))
        for table_id, value in truncated_at.items()
        if len(value) == _VALUE.size
    }
