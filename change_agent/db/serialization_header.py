"""The header before the rows of a partition update: encoding statistics and the columns that the rows use.

    Header       => Stats [StaticColumns] Columns
      Stats      => MinTimestamp MinLocalDeletionTime MinTtl: vints, deltas to the epochs below
      Columns    => Vint count, {Name}
      Name       => Vint length, bytes
    ColumnSubset => Vint; see read_column_subset

The header has the names of columns, not their types. The types come from the schema, as a TableLayout.

Cassandra source: o.a.c.db.SerializationHeader, o.a.c.db.Columns.Serializer, o.a.c.db.rows.EncodingStats. Pure.
"""

from __future__ import annotations

from typing import Final, final

from change_agent.data_input import DataInput, wrapped_int, wrapped_long
from change_agent.db.marshal import fixed_length
from change_agent.errors import MalformedMutationError, UnknownColumnError
from schemas.cql_type import NativeType, is_multi_cell
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata

__all__ = ["ColumnLayout", "KnownColumns", "SerializationHeader", "TableLayout", "read_column_subset", "read_header"]

# o.a.c.db.rows.EncodingStats: 2015-09-22T00:00:00Z, in microseconds and in seconds.
_TIMESTAMP_EPOCH: Final = 1_442_880_000_000_000
_DELETION_TIME_EPOCH: Final = 1_442_880_000

# Maximum number of cached column lists of one table. More are unusual, and damaged bytes could make any number of them.
_MAX_LISTS: Final = 256

# For this many columns or more, subsets are lists of indexes instead of bitmaps.
_LARGE_SET: Final = 64


@final
class ColumnLayout:
    """Layout of the cells of one column. `dropped_time_us` is None if no column of this name was ever dropped."""

    __slots__ = ("column", "dropped_time_us", "fixed_length", "is_complex", "is_counter")

    def __init__(self, column: ColumnMetadata, dropped_time_us: int | None) -> None:
        self.column = column
        self.is_complex = is_multi_cell(column.type)
        self.is_counter = column.type == NativeType("counter")
        self.fixed_length = fixed_length(column.type)
        self.dropped_time_us = dropped_time_us


@final
class TableLayout:
    """The decoder's view of one table, computed once. Columns are found by kind and by the bytes of their name."""

    __slots__ = ("clustering_lengths", "regular_columns", "static_columns", "table")

    def __init__(self, table: TableMetadata) -> None:
        self.table = table
        self.clustering_lengths = [fixed_length(column.type) for column in table.clustering_key]
        self.static_columns = KnownColumns(table, ColumnKind.STATIC)
        self.regular_columns = KnownColumns(table, ColumnKind.REGULAR)


@final
class KnownColumns:
    """The columns of one kind of a table, with a cache of the column lists in headers."""

    __slots__ = ("_by_name", "_lists", "_table_name")

    def __init__(self, table: TableMetadata, kind: ColumnKind) -> None:
        self._table_name = table.full_name
        self._by_name = _layouts(table, kind)
        # Encoded names -> columns. A statement has the same columns every time.
        self._lists: dict[bytes, list[ColumnLayout]] = {}

    def read_list(self, data: DataInput) -> list[ColumnLayout]:
        """Columns => Vint count, {Name}. Raises UnknownColumnError, BufferUnderflowError."""
        start = data.position
        count = data.read_length()
        names_start = data.position
        for _ in range(count):
            data.skip(data.read_unsigned_vint())
        encoded = data.data[start : data.position]
        columns = self._lists.get(encoded)
        if columns is None:
            columns = [self.column(name) for name in _names(data, names_start, count)]
            if len(self._lists) >= _MAX_LISTS:
                self._lists.clear()
            self._lists[encoded] = columns
        return columns

    def layouts(self) -> dict[bytes, ColumnLayout]:
        """All columns by name, the dropped ones too."""
        return self._by_name

    def column(self, name: bytes) -> ColumnLayout:
        """The layout of a column. Raises UnknownColumnError."""
        column = self._by_name.get(name)
        if column is None:
            raise UnknownColumnError(self._table_name, name.decode(errors="backslashreplace"))
        return column


def _names(data: DataInput, start: int, count: int) -> list[bytes]:
    """The names of a list, read a second time. The caller has checked that they are within the bytes."""
    data.position = start
    return [data.read_with_vint_length() for _ in range(count)]


def _layouts(table: TableMetadata, kind: ColumnKind) -> dict[bytes, ColumnLayout]:
    """The columns of one kind, with the dropped ones, which old segments still have.

    A column that was dropped and added again is read with its present type, as in Cassandra, which allows only a
    compatible type.
    """
    dropped = {column.name: column for column in table.dropped_columns if column.kind is kind}
    layouts = {
        name.encode(): ColumnLayout(
            ColumnMetadata(name=name, kind=kind, type=column.type), dropped_time_us=column.dropped_time_us
        )
        for name, column in dropped.items()
    }
    for column in table.static_columns if kind is ColumnKind.STATIC else table.regular_columns:
        again = dropped.get(column.name)
        layouts[column.name.encode()] = ColumnLayout(column, again.dropped_time_us if again else None)
    return layouts


@final
class SerializationHeader:
    """Minimum values, to which the deltas of one partition update are added, and its columns in wire order."""

    __slots__ = (
        "clustering_lengths",
        "min_local_deletion_time",
        "min_timestamp",
        "min_ttl",
        "regular_columns",
        "static_columns",
        "unsigned_deletion_times",
    )

    def __init__(
        self,
        *,
        min_timestamp: int,
        min_local_deletion_time: int,
        min_ttl: int,
        static_columns: list[ColumnLayout],
        regular_columns: list[ColumnLayout],
        clustering_lengths: list[int],
        unsigned_deletion_times: bool,
    ) -> None:
        self.min_timestamp = min_timestamp
        self.min_local_deletion_time = min_local_deletion_time
        self.min_ttl = min_ttl
        self.static_columns = static_columns
        self.regular_columns = regular_columns
        self.clustering_lengths = clustering_lengths
        self.unsigned_deletion_times = unsigned_deletion_times

    def read_timestamp(self, data: DataInput) -> int:
        """Microseconds; any 64-bit value."""
        return wrapped_long(data.read_unsigned_vint() + self.min_timestamp)

    def read_local_deletion_time(self, data: DataInput) -> int:
        """Seconds; a negative value is invalid.

        For a LIVE deletion, which has no such time, it overflows to any value.
        """
        seconds = data.read_unsigned_vint32() + self.min_local_deletion_time
        return seconds % 0x1_0000_0000 if self.unsigned_deletion_times else wrapped_int(seconds)

    def read_ttl(self, data: DataInput) -> int:
        """Seconds. Raises MalformedMutationError if negative."""
        ttl = wrapped_int(data.read_unsigned_vint32() + self.min_ttl)
        if ttl < 0:
            raise MalformedMutationError(f"a TTL of {ttl} s")
        return ttl


def read_header(
    data: DataInput, layout: TableLayout, has_static: bool, unsigned_deletion_times: bool
) -> SerializationHeader:
    """The header of a partition update. Raises UnknownColumnError, MalformedMutationError, BufferUnderflowError."""
    min_timestamp = wrapped_long(data.read_unsigned_vint() + _TIMESTAMP_EPOCH)
    min_local_deletion_time = wrapped_int(data.read_unsigned_vint32() + _DELETION_TIME_EPOCH)
    min_ttl = data.read_unsigned_vint32()
    static_columns = layout.static_columns.read_list(data) if has_static else []
    return SerializationHeader(
        min_timestamp=min_timestamp,
        min_local_deletion_time=min_local_deletion_time,
        min_ttl=min_ttl,
        static_columns=static_columns,
        regular_columns=layout.regular_columns.read_list(data),
        clustering_lengths=layout.clustering_lengths,
        unsigned_deletion_times=unsigned_deletion_times,
    )


def read_column_subset(data: DataInput, superset: list[ColumnLayout]) -> list[ColumnLayout]:
    """The header's columns that a row has.

        ColumnSubset => 0                        all of them
                      | Bitmap                   fewer than 64 in the superset: one bit for each missing one
                      | Missing {Index}          64 or more: how many are missing, then the indexes (vints) of those
                                                 present, or of those missing if at least half are present

    Raises MalformedMutationError, BufferUnderflowError.
    """
    encoded = data.read_unsigned_vint()
    if encoded == 0:
        return superset
    if len(superset) >= _LARGE_SET:
        return _read_large_subset(data, superset, encoded)
    if encoded >> len(superset):
        raise MalformedMutationError(f"a column bitmap has bits beyond its {len(superset)} columns")
    return [column for index, column in enumerate(superset) if not (encoded >> index) & 1]


def _read_large_subset(data: DataInput, superset: list[ColumnLayout], missing: int) -> list[ColumnLayout]:
    total = len(superset)
    if missing > total:
        raise MalformedMutationError(f"a row misses {missing} of {total} columns")
    present = total - missing
    if present < total // 2:
        return [superset[index] for index in _read_indexes(data, present, total)]
    absent = set(_read_indexes(data, missing, total))
    return [column for index, column in enumerate(superset) if index not in absent]


def _read_indexes(data: DataInput, count: int, total: int) -> list[int]:
    """Strictly ascending indexes below `total`."""
    indexes: list[int] = []
    last = -1
    for _ in range(count):
        index = data.read_unsigned_vint()
        if not last < index < total:
            raise MalformedMutationError(f"column index {index} behind {last}, of {total} columns")
        indexes.append(index)
        last = index
    return indexes
