"""Rows, cells and range tombstone markers of a partition update.

    Unfiltered => END_OF_PARTITION | Row | Marker
    Row        => Flags [ExtendedFlags] Clustering Body
      Body     => [Timestamp [Ttl LocalExpirationTime]] [DeletionTime] [ColumnSubset] {SimpleColumn | ComplexColumn}
    SimpleColumn  => Cell
    ComplexColumn => [DeletionTime] Vint count, {Cell}
    Cell       => CellFlags [Timestamp] [LocalDeletionTime] [Ttl] [Path] [Value]
    Marker     => Flags Bound DeletionTime [DeletionTime, of the range that a boundary opens]
    DeletionTime => Timestamp LocalDeletionTime

Times are vints, deltas to the update's header. A static row has no Clustering.

Cassandra source: o.a.c.db.rows.UnfilteredSerializer, o.a.c.db.rows.Cell.Serializer; for values that are dropped when
they are read: o.a.c.db.rows.DeserializationHelper and BTreeRow.Builder. Pure.
"""

from __future__ import annotations

from typing import Final

from change_agent.data_input import DataInput
from change_agent.db.clustering import (
    EXCL_END_BOUND,
    EXCL_END_INCL_START_BOUNDARY,
    EXCL_START_BOUND,
    INCL_END_BOUND,
    INCL_END_EXCL_START_BOUNDARY,
    INCL_START_BOUND,
    read_bound,
    read_clustering,
)
from change_agent.db.marshal import clear_local_shards
from change_agent.db.serialization_header import ColumnLayout, SerializationHeader, read_column_subset
from change_agent.db.values import Cell, Clustering, ComplexDeletion, DeletionTime, LivenessInfo, RangeTombstone, Row
from change_agent.errors import MalformedMutationError

__all__ = ["read_deletion_time", "read_static_row", "read_unfiltereds"]

_END_OF_PARTITION: Final = 0x01
_IS_MARKER: Final = 0x02
_HAS_TIMESTAMP: Final = 0x04
_HAS_TTL: Final = 0x08
_HAS_DELETION: Final = 0x10
_HAS_ALL_COLUMNS: Final = 0x20
_HAS_COMPLEX_DELETION: Final = 0x40
_EXTENSION: Final = 0x80

_IS_STATIC: Final = 0x01
_HAS_SHADOWABLE_DELETION: Final = 0x02

_CELL_IS_DELETED: Final = 0x01
_CELL_IS_EXPIRING: Final = 0x02
_CELL_HAS_EMPTY_VALUE: Final = 0x04
_CELL_USES_ROW_TIMESTAMP: Final = 0x08
_CELL_USES_ROW_TTL: Final = 0x10

# Long.MIN_VALUE: no timestamp; a deletion with it deletes nothing.
_NO_TIMESTAMP: Final = -0x8000_0000_0000_0000


def read_static_row(data: DataInput, header: SerializationHeader) -> Row:
    """The static row, which may be empty. Raises MalformedMutationError, BufferUnderflowError."""
    flags = data.read_unsigned_byte()
    if flags & (_END_OF_PARTITION | _IS_MARKER) or not flags & _EXTENSION:
        raise MalformedMutationError(f"a static row has flags {flags:#x}")
    extended_flags = data.read_unsigned_byte()
    if not extended_flags & _IS_STATIC:
        raise MalformedMutationError(f"a static row has extended flags {extended_flags:#x}")
    return _read_row_body(data, header, flags, extended_flags, ())


def read_unfiltereds(data: DataInput, header: SerializationHeader) -> tuple[list[Row], list[RangeTombstone]]:
    """The rows that are not empty, and the range tombstones, up to the end of the partition.

    Raises MalformedMutationError, BufferUnderflowError.
    """
    rows: list[Row] = []
    markers: list[_Marker] = []
    lengths = header.clustering_lengths
    while True:
        flags = data.read_unsigned_byte()
        if flags & _END_OF_PARTITION:
            return rows, _ranges(markers) if markers else []
        extended_flags = data.read_unsigned_byte() if flags & _EXTENSION else 0
        if flags & _IS_MARKER:
            markers.append(_read_marker(data, header))
            continue
        if extended_flags & _IS_STATIC:
            raise MalformedMutationError("a static row is among the rows")
        row = _read_row_body(data, header, flags, extended_flags, read_clustering(data, lengths))
        if not row.is_empty():
            rows.append(row)


def read_deletion_time(data: DataInput, header: SerializationHeader) -> DeletionTime:
    """The next DeletionTime. Raises MalformedMutationError, BufferUnderflowError."""
    timestamp = header.read_timestamp(data)
    return DeletionTime(timestamp, _checked_time(header.read_local_deletion_time(data)))


def _read_row_body(
    data: DataInput, header: SerializationHeader, flags: int, extended_flags: int, clustering: Clustering
) -> Row:
    liveness = _read_liveness(data, header, flags) if flags & _HAS_TIMESTAMP else None
    deletion = read_deletion_time(data, header) if flags & _HAS_DELETION else None
    columns = header.static_columns if extended_flags & _IS_STATIC else header.regular_columns
    if not flags & _HAS_ALL_COLUMNS:
        columns = read_column_subset(data, columns)
    complex_deletions: list[ComplexDeletion] = []
    cells: list[Cell] = []
    for column in columns:
        if column.is_complex:
            has_deletion = flags & _HAS_COMPLEX_DELETION != 0
            _read_complex_column(data, header, column, liveness, has_deletion, complex_deletions, cells)
        else:
            cell = _read_cell(data, header, column, liveness)
            if column.dropped_time_us is None or cell.timestamp > column.dropped_time_us:
                cells.append(cell)
    row = Row(clustering, liveness, deletion, False, complex_deletions, cells)
    if deletion is not None:
        _apply_row_deletion(row, deletion, extended_flags & _HAS_SHADOWABLE_DELETION != 0)
    return row


def _apply_row_deletion(row: Row, deletion: DeletionTime, is_shadowable: bool) -> None:
    """Apply a row deletion as BTreeRow.Builder does.

    The deletion removes the row's cells and its marker unless they are newer. A newer marker removes a shadowable
    deletion.
    """
    liveness = row.liveness
    row.cells = [cell for cell in row.cells if cell.timestamp > deletion.timestamp]
    if liveness is not None and liveness.timestamp <= deletion.timestamp:
        row.liveness = None
    row.deletion_is_shadowable = is_shadowable
    if is_shadowable and row.liveness is not None:
        row.deletion = None
        row.deletion_is_shadowable = False


def _read_liveness(data: DataInput, header: SerializationHeader, flags: int) -> LivenessInfo | None:
    timestamp = header.read_timestamp(data)
    ttl = 0
    local_expiration_time = None
    if flags & _HAS_TTL:
        ttl = header.read_ttl(data)
        local_expiration_time = _expiration_time(header.read_local_deletion_time(data), ttl)
    if timestamp == _NO_TIMESTAMP:
        return None
    return LivenessInfo(timestamp, ttl, local_expiration_time if ttl else None)


def _read_complex_column(
    data: DataInput,
    header: SerializationHeader,
    column: ColumnLayout,
    liveness: LivenessInfo | None,
    has_deletion: bool,
    complex_deletions: list[ComplexDeletion],
    cells: list[Cell],
) -> None:
    """Read one multi-cell column.

    Append its deletion, and the cells that are neither dropped nor deleted, to the lists.
    """
    dropped_time = _NO_TIMESTAMP if column.dropped_time_us is None else column.dropped_time_us
    deleted_until = _NO_TIMESTAMP
    if has_deletion:
        timestamp = header.read_timestamp(data)
        local_deletion_time = header.read_local_deletion_time(data)
        # With this flag, every complex column of the row has a deletion. Most of them are LIVE: their local deletion
        # time overflows, so it is checked only for others.
        if timestamp > dropped_time:
            deleted_until = timestamp
            complex_deletions.append(ComplexDeletion(column.column, timestamp, _checked_time(local_deletion_time)))
    for _ in range(data.read_length()):
        cell = _read_cell(data, header, column, liveness)
        if column.dropped_time_us is not None and cell.timestamp <= dropped_time:
            continue
        if cell.timestamp >= deleted_until:
            cells.append(cell)


def _read_cell(
    data: DataInput, header: SerializationHeader, column: ColumnLayout, liveness: LivenessInfo | None
) -> Cell:
    flags = data.read_unsigned_byte()
    if liveness is None:
        if flags & (_CELL_USES_ROW_TIMESTAMP | _CELL_USES_ROW_TTL):
            raise MalformedMutationError("a cell refers to the row's marker, which has none")
        timestamp = header.read_timestamp(data)
    else:
        timestamp = liveness.timestamp if flags & _CELL_USES_ROW_TIMESTAMP else header.read_timestamp(data)
    local_deletion_time: int | None = None
    ttl = 0
    if flags & (_CELL_IS_DELETED | _CELL_IS_EXPIRING | _CELL_USES_ROW_TTL):
        if liveness is not None and flags & _CELL_USES_ROW_TTL:
            ttl, local_deletion_time = liveness.ttl, liveness.local_expiration_time
        else:
            seconds = header.read_local_deletion_time(data)
            ttl = header.read_ttl(data) if flags & _CELL_IS_EXPIRING else 0
            local_deletion_time = _expiration_time(seconds, ttl)
    path = data.read_with_vint_length() if column.is_complex else None
    value: bytes | None = b""
    if not flags & _CELL_HAS_EMPTY_VALUE:
        length = column.fixed_length
        value = data.read_bytes(length) if length >= 0 else data.read_with_vint_length()
        if column.is_counter and local_deletion_time is None:
            value = clear_local_shards(value)
    if local_deletion_time is not None and ttl == 0:
        # Cassandra's reader refuses it when it validates the update (ColumnMetadata.validateCell).
        if value:
            raise MalformedMutationError("a tombstone has a value")
        value = None
    return Cell(column.column, path, value, timestamp, ttl, local_deletion_time)


def _checked_time(seconds: int) -> int:
    if not 0 <= seconds <= _MAX_DELETION_TIME:
        raise MalformedMutationError(f"a local deletion time of {seconds} s")
    return seconds


def _expiration_time(seconds: int, ttl: int) -> int:
    """The checked expiration time: a cell with a TTL cannot expire earlier than `ttl` seconds after 1970.

    See Cell.decodeLocalDeletionTime. Raises MalformedMutationError.
    """
    if seconds < ttl and ttl != _EXPIRED_LIVENESS_TTL:
        raise MalformedMutationError(f"a local deletion time of {seconds} s with a TTL of {ttl} s")
    return _checked_time(seconds)


# 32 bits without the two highest values, which mean "none" and "not valid" (Cell.MAX_DELETION_TIME of 5.0).
_MAX_DELETION_TIME: Final = 0xFFFF_FFFD

# Integer.MAX_VALUE: the row marker of a view's row that has expired (LivenessInfo.EXPIRED_LIVENESS_TTL).
_EXPIRED_LIVENESS_TTL: Final = 0x7FFF_FFFF


class _Marker:
    """A bound, or a boundary, which ends one range and starts another. The unused half is None."""

    __slots__ = ("end_deletion", "end_inclusive", "start_deletion", "start_inclusive", "values")

    def __init__(
        self,
        values: Clustering,
        end_deletion: DeletionTime | None,
        end_inclusive: bool,
        start_deletion: DeletionTime | None,
        start_inclusive: bool,
    ) -> None:
        self.values = values
        self.end_deletion = end_deletion
        self.end_inclusive = end_inclusive
        self.start_deletion = start_deletion
        self.start_inclusive = start_inclusive


def _read_marker(data: DataInput, header: SerializationHeader) -> _Marker:
    kind, values = read_bound(data, header.clustering_lengths)
    ends = kind in (EXCL_END_BOUND, INCL_END_BOUND, EXCL_END_INCL_START_BOUNDARY, INCL_END_EXCL_START_BOUNDARY)
    starts = kind in (INCL_START_BOUND, EXCL_START_BOUND, EXCL_END_INCL_START_BOUNDARY, INCL_END_EXCL_START_BOUNDARY)
    return _Marker(
        values,
        read_deletion_time(data, header) if ends else None,
        kind in (INCL_END_BOUND, INCL_END_EXCL_START_BOUNDARY),
        read_deletion_time(data, header) if starts else None,
        kind in (INCL_START_BOUND, EXCL_END_INCL_START_BOUNDARY),
    )


def _ranges(markers: list[_Marker]) -> list[RangeTombstone]:
    """Range tombstones from start and end markers, which alternate (MutableDeletionInfo.Builder).

    Raises MalformedMutationError.
    """
    ranges: list[RangeTombstone] = []
    opened: _Marker | None = None
    for marker in markers:
        if (opened is None) != (marker.end_deletion is None):
            raise MalformedMutationError("the bounds of range tombstones do not alternate")
        if opened is not None:
            ranges.append(_range(opened, marker))
        opened = marker if marker.start_deletion is not None else None
    if opened is not None:
        raise MalformedMutationError("a range tombstone has no end")
    return ranges


def _range(start: _Marker, end: _Marker) -> RangeTombstone:
    deletion = start.start_deletion
    assert deletion is not None and end.end_deletion is not None
    closing = end.end_deletion
    if deletion.timestamp != closing.timestamp or deletion.local_deletion_time != closing.local_deletion_time:
        raise MalformedMutationError("a range tombstone ends with another deletion than it starts with")
    return RangeTombstone(
        start.values,
        start.start_inclusive,
        end.values,
        end.end_inclusive,
        deletion.timestamp,
        deletion.local_deletion_time,
    )
