"""The content of a mutation, as values. Names, order and meaning are those of org.apache.cassandra.db.

Times: `timestamp` is in microseconds, `ttl` in seconds, `local_deletion_time` and `local_expiration_time` in seconds of
Unix time. Values, keys and paths are the CQL bytes.

These are plain final classes, not dataclasses: hundreds of thousands of objects are made, and mypyc makes such classes
fast.
"""

from __future__ import annotations

from typing import final

from schemas.table_metadata import ColumnMetadata, TableMetadata

__all__ = [
    "Cell",
    "Clustering",
    "ComplexDeletion",
    "DeletionTime",
    "LivenessInfo",
    "Mutation",
    "PartitionUpdate",
    "RangeTombstone",
    "Row",
]

# One value for each clustering column: None if it is absent (compact tables), b"" if it is empty.
Clustering = tuple[bytes | None, ...]


@final
class DeletionTime:
    """Everything in its scope that was written at or before `timestamp` is deleted."""

    __slots__ = ("local_deletion_time", "timestamp")

    def __init__(self, timestamp: int, local_deletion_time: int) -> None:
        self.timestamp = timestamp
        self.local_deletion_time = local_deletion_time


@final
class LivenessInfo:
    """The row marker: INSERT writes one, UPDATE does not. `local_expiration_time` is None if `ttl` is 0."""

    __slots__ = ("local_expiration_time", "timestamp", "ttl")

    def __init__(self, timestamp: int, ttl: int, local_expiration_time: int | None) -> None:
        self.timestamp = timestamp
        self.ttl = ttl
        self.local_expiration_time = local_expiration_time


@final
class ComplexDeletion:
    """All cells of one multi-cell column are deleted; an overwritten collection has this and new cells."""

    __slots__ = ("column", "local_deletion_time", "timestamp")

    def __init__(self, column: ColumnMetadata, timestamp: int, local_deletion_time: int) -> None:
        self.column = column
        self.timestamp = timestamp
        self.local_deletion_time = local_deletion_time


@final
class Cell:
    """One value. `value` is None for a tombstone; `path` is None unless the column is multi-cell.

    The path is the element of a set, the key of a map, the timeuuid of a list element or the index (Int16) of a user
    type's field. A cell with a `ttl` expires at its `local_deletion_time`; a tombstone was written then.
    """

    __slots__ = ("column", "local_deletion_time", "path", "timestamp", "ttl", "value")

    def __init__(
        self,
        column: ColumnMetadata,
        path: bytes | None,
        value: bytes | None,
        timestamp: int,
        ttl: int,
        local_deletion_time: int | None,
    ) -> None:
        self.column = column
        self.path = path
        self.value = value
        self.timestamp = timestamp
        self.ttl = ttl
        self.local_deletion_time = local_deletion_time


@final
class Row:
    """The changes of one row. The static row has no clustering. `cells` are in the order of the log.

    `deletion_is_shadowable` marks the row deletions of views that a newer row marker undoes.
    """

    __slots__ = ("cells", "clustering", "complex_deletions", "deletion", "deletion_is_shadowable", "liveness")

    def __init__(
        self,
        clustering: Clustering,
        liveness: LivenessInfo | None,
        deletion: DeletionTime | None,
        deletion_is_shadowable: bool,
        complex_deletions: list[ComplexDeletion],
        cells: list[Cell],
    ) -> None:
        self.clustering = clustering
        self.liveness = liveness
        self.deletion = deletion
        self.deletion_is_shadowable = deletion_is_shadowable
        self.complex_deletions = complex_deletions
        self.cells = cells

    def is_empty(self) -> bool:
        """True if the row has no content, for example because all its cells were of dropped columns."""
        return not (self.cells or self.complex_deletions) and self.liveness is None and self.deletion is None


@final
class RangeTombstone:
    """All rows between two clustering prefixes are deleted. An empty prefix is an open end."""

    __slots__ = ("end", "end_inclusive", "local_deletion_time", "start", "start_inclusive", "timestamp")

    def __init__(
        self,
        start: Clustering,
        start_inclusive: bool,
        end: Clustering,
        end_inclusive: bool,
        timestamp: int,
        local_deletion_time: int,
    ) -> None:
        self.start = start
        self.start_inclusive = start_inclusive
        self.end = end
        self.end_inclusive = end_inclusive
        self.timestamp = timestamp
        self.local_deletion_time = local_deletion_time


@final
class PartitionUpdate:
    """The changes of a mutation in one partition of one table. `partition_key` is serialized as Cassandra stores it."""

    __slots__ = ("partition_deletion", "partition_key", "range_tombstones", "rows", "static_row", "table")

    def __init__(
        self,
        table: TableMetadata,
        partition_key: bytes,
        partition_deletion: DeletionTime | None,
        static_row: Row | None,
        rows: list[Row],
        range_tombstones: list[RangeTombstone],
    ) -> None:
        self.table = table
        self.partition_key = partition_key
        self.partition_deletion = partition_deletion
        self.static_row = static_row
        self.rows = rows
        self.range_tombstones = range_tombstones


@final
class Mutation:
    """Updates of one partition key in one or several tables of one keyspace; never empty."""

    __slots__ = ("updates",)

    def __init__(self, updates: list[PartitionUpdate]) -> None:
        self.updates = updates

    @property
    def keyspace(self) -> str:
        """The keyspace of all updates."""
        return self.updates[0].table.keyspace
