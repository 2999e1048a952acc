"""The digest of a change: MD5 over the values that every replica stores alike, in one canonical form.

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
from hashlib import md5
from typing import Final, final
from uuid import UUID

from change_agent.db.values import Cell, Clustering, DeletionTime, LivenessInfo, RangeTombstone, Row
from schemas.mutation_event import MutationKind

__all__ = ["Digests"]

_SIZE: Final = struct.Struct(">i").pack
_COUNT: Final = struct.Struct(">h").pack
_TIMES2: Final = struct.Struct(">sqq").pack
_TIMES3: Final = struct.Struct(">sqqq").pack
_CELL_TIMES: Final = struct.Struct(">qqq").pack
_ABSENT: Final = _SIZE(-1)
_KINDS: Final = {kind.value: bytes((index,)) for index, kind in enumerate(MutationKind)}
_ROW: Final = MutationKind.ROW
# Most values are short.
_SIZES: Final = [_SIZE(size) for size in range(256)]


@final
class Digests:
    """Digests of one table's changes, 16 bytes each."""

    __slots__ = ("_column_tags", "_heads", "_row_head")

    def __init__(self, table_id: UUID) -> None:
        # Keys are the enum's values: hashing an enum member calls a Python function.
        self._heads: dict[str, bytes] = {kind: table_id.bytes + tag for kind, tag in _KINDS.items()}
        self._row_head = self._heads[_ROW.value]
        self._column_tags: dict[str, bytes] = {}

    def of_row(self, kind: MutationKind, partition_key: bytes, row: Row) -> bytes:
        """Digest of one row or static row."""
        head = self._row_head if kind is _ROW else self._heads[kind.value]
        parts = [head, _size(len(partition_key)), partition_key]
        _add_clustering(parts, row.clustering)
        if row.deletion is not None:
            parts.append(_TIMES2(b"D", row.deletion.timestamp, row.deletion.local_deletion_time))
        if row.liveness is not None:
            parts.append(_liveness(row.liveness))
        for deletion in row.complex_deletions:
            _add_sized(parts, b"X", deletion.column.name.encode())
            parts.append(_TIMES2(b"D", deletion.timestamp, deletion.local_deletion_time))
        self._add_cells(parts, row.cells)
        return _md5(parts)

    def of_range_deletion(self, partition_key: bytes, tombstone: RangeTombstone) -> bytes:
        """Digest of one range deletion."""
        parts = [self._heads[MutationKind.RANGE_DELETION.value], _size(len(partition_key)), partition_key]
        parts.append(_TIMES2(b"D", tombstone.timestamp, tombstone.local_deletion_time))
        _add_clustering(parts, tombstone.start)
        parts.append(b"\1" if tombstone.start_inclusive else b"\0")
        _add_clustering(parts, tombstone.end)
        parts.append(b"\1" if tombstone.end_inclusive else b"\0")
        return _md5(parts)

    def of_partition_deletion(self, partition_key: bytes, deletion: DeletionTime) -> bytes:
        """Digest of one partition deletion."""
        parts = [self._heads[MutationKind.PARTITION_DELETION.value], _size(len(partition_key)), partition_key]
        parts.append(_TIMES2(b"D", deletion.timestamp, deletion.local_deletion_time))
        return _md5(parts)

    def _add_cells(self, parts: list[bytes], cells: list[Cell]) -> None:
        timestamp = ttl = -1
        local_time: int | None = None
        times = b""
        for cell in cells:
            path, value = cell.path, cell.value
            parts.append(self._column_tag(cell.column.name))
            if path is None:
                parts.append(_ABSENT)
            else:
                _add_sized(parts, b"", path)
            if value is None:
                parts.append(_ABSENT)
            else:
                parts.append(_size(len(value)))
                parts.append(value)
            # The cells of one statement have the same times.
            if not times or cell.timestamp != timestamp or cell.ttl != ttl or cell.local_deletion_time != local_time:
                timestamp, ttl, local_time = cell.timestamp, cell.ttl, cell.local_deletion_time
                times = _CELL_TIMES(timestamp, ttl, _time(local_time))
            parts.append(times)

    def _column_tag(self, name: str) -> bytes:
        tag = self._column_tags.get(name)
        if tag is None:
            encoded = name.encode()
            tag = self._column_tags[name] = b"C" + _size(len(encoded)) + encoded
        return tag


def _liveness(liveness: LivenessInfo) -> bytes:
    return _TIMES3(b"L", liveness.timestamp, liveness.ttl, _time(liveness.local_expiration_time))


def _add_clustering(parts: list[bytes], clustering: Clustering) -> None:
    parts.append(_COUNT(len(clustering)))
    for value in clustering:
        if value is None:
            parts.append(_ABSENT)
        else:
            _add_sized(parts, b"", value)


def _add_sized(parts: list[bytes], tag: bytes, value: bytes) -> None:
    parts.append(tag + _size(len(value)))
    parts.append(value)


def _size(size: int) -> bytes:
    return _SIZES[size] if size < len(_SIZES) else _SIZE(size)


def _time(seconds: int | None) -> int:
    return -1 if seconds is None else seconds


def _md5(parts: list[bytes]) -> bytes:
    return md5(b"".join(parts), usedforsecurity=False).digest()
