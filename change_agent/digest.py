"""The digest of a changed row: MD5 over what every replica stores alike, in one canonical form.

    Row      => TableId Kind PartitionKey Clustering {Deletion} {Liveness} {ComplexDeletion} {Cell}
      TableId         => 16 bytes
      Kind            => 1 byte, index in MutationKind
      PartitionKey    => Sized
      Clustering      => Int16 count, {Sized}
      Deletion        => 'D' Int64 timestamp, Int64 local deletion time
      Liveness        => 'L' Int64 timestamp, Int64 ttl, Int64 local expiration time (-1: none)
      ComplexDeletion => 'X' Sized name, Int64 timestamp, Int64 local deletion time
      Cell            => 'C' Sized name, Sized path, Sized value, Int64 timestamp, Int64 ttl, Int64 local time (-1: none)
    Range    => TableId Kind PartitionKey Deletion Clustering start, 1 byte inclusive, Clustering end, 1 byte inclusive
    Sized    => Int32 length (-1: absent), bytes

Everything has a length or a tag, so that no two different rows share a form. Pure.
"""

from __future__ import annotations

import struct
from functools import cache
from hashlib import md5
from typing import Final
from uuid import UUID

from change_agent.db.values import Clustering, DeletionTime, RangeTombstone, Row
from schemas.mutation_event import MutationKind

__all__ = ["partition_deletion_digest", "range_deletion_digest", "row_digest"]

_SIZE: Final = struct.Struct(">i").pack
_COUNT: Final = struct.Struct(">h").pack
_TIMES2: Final = struct.Struct(">sqq").pack
_TIMES3: Final = struct.Struct(">sqqq").pack
_CELL_TIMES: Final = struct.Struct(">qqq").pack
_ABSENT: Final = _SIZE(-1)
_KINDS: Final = {kind: bytes((index,)) for index, kind in enumerate(MutationKind)}


def row_digest(table_id: UUID, kind: MutationKind, partition_key: bytes, row: Row) -> bytes:
    """Digest of one row or static row, 16 bytes."""
    parts = _head(table_id, kind, partition_key)
    _add_clustering(parts, row.clustering)
    if row.deletion is not None:
        parts.append(_TIMES2(b"D", row.deletion.timestamp, row.deletion.local_deletion_time))
    liveness = row.liveness
    if liveness is not None:
        parts.append(_TIMES3(b"L", liveness.timestamp, liveness.ttl, _time(liveness.local_expiration_time)))
    for deletion in row.complex_deletions:
        parts += (b"X", _sized(deletion.column.name.encode()))
        parts.append(_TIMES2(b"D", deletion.timestamp, deletion.local_deletion_time))
    for cell in row.cells:
        path, value = cell.path, cell.value
        parts += (
            _column_tag(cell.column.name),
            _ABSENT if path is None else _SIZE(len(path)) + path,
            _ABSENT if value is None else _SIZE(len(value)) + value,
            _CELL_TIMES(cell.timestamp, cell.ttl, _time(cell.local_deletion_time)),
        )
    return _md5(parts)


def range_deletion_digest(table_id: UUID, partition_key: bytes, tombstone: RangeTombstone) -> bytes:
    """Digest of one range deletion, 16 bytes."""
    parts = _head(table_id, MutationKind.RANGE_DELETION, partition_key)
    parts.append(_TIMES2(b"D", tombstone.timestamp, tombstone.local_deletion_time))
    _add_clustering(parts, tombstone.start)
    parts.append(b"\1" if tombstone.start_inclusive else b"\0")
    _add_clustering(parts, tombstone.end)
    parts.append(b"\1" if tombstone.end_inclusive else b"\0")
    return _md5(parts)


def partition_deletion_digest(table_id: UUID, partition_key: bytes, deletion: DeletionTime) -> bytes:
    """Digest of one partition deletion, 16 bytes."""
    parts = _head(table_id, MutationKind.PARTITION_DELETION, partition_key)
    parts.append(_TIMES2(b"D", deletion.timestamp, deletion.local_deletion_time))
    return _md5(parts)


@cache
def _column_tag(name: str) -> bytes:
    return b"C" + _sized(name.encode())


def _head(table_id: UUID, kind: MutationKind, partition_key: bytes) -> list[bytes]:
    return [table_id.bytes, _KINDS[kind], _sized(partition_key)]


def _add_clustering(parts: list[bytes], clustering: Clustering) -> None:
    parts.append(_COUNT(len(clustering)))
    parts += [_ABSENT if value is None else _sized(value) for value in clustering]


def _sized(value: bytes) -> bytes:
    return _SIZE(len(value)) + value


def _time(seconds: int | None) -> int:
    return -1 if seconds is None else seconds


def _md5(parts: list[bytes]) -> bytes:
    return md5(b"".join(parts), usedforsecurity=False).digest()
