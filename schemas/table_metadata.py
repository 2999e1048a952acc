"""The definition of a Cassandra table, as values that `schemas.system_schema` builds.

Cassandra source: o.a.c.schema.TableMetadata, ColumnMetadata, DroppedColumn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from schemas.cql_type import CqlType

__all__ = ["ColumnKind", "ColumnMetadata", "DroppedColumn", "TableMetadata", "is_earlier", "is_earlier_life"]


class ColumnKind(Enum):
    """The kinds of `system_schema.columns.kind`."""

    PARTITION_KEY = "partition_key"
    CLUSTERING = "clustering"
    STATIC = "static"
    REGULAR = "regular"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMetadata:
    """One column. `position` is the order of the columns of a key; -1 for other columns."""

    name: str
    kind: ColumnKind
    type: CqlType
    position: int = -1
    reversed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedColumn:
    """A column that was dropped: its cells with `timestamp <= dropped_time_us` no longer exist."""

    name: str
    kind: ColumnKind
    type: CqlType
    dropped_time_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMetadata:
    """One table (or materialized view) under one table id. Static and regular columns are ordered by name.

    `flags` are those of `system_schema.tables.flags` (compound, counter, dense, super). `generation` is Cassandra's
    write time of the table's CREATE in microseconds; None if it was not queried.
    """

    keyspace: str
    name: str
    table_id: UUID
    partition_key: tuple[ColumnMetadata, ...]
    clustering_key: tuple[ColumnMetadata, ...]
    static_columns: tuple[ColumnMetadata, ...]
    regular_columns: tuple[ColumnMetadata, ...]
    dropped_columns: tuple[DroppedColumn, ...] = ()
    flags: frozenset[str] = field(default_factory=lambda: frozenset({"compound"}))
    cdc: bool = False
    is_view: bool = False
    generation: int | None = None

    @property
    def primary_key(self) -> tuple[ColumnMetadata, ...]:
        """Partition key columns, then clustering columns."""
        return self.partition_key + self.clustering_key

    @property
    def value_columns(self) -> tuple[ColumnMetadata, ...]:
        """Regular columns by name, then static columns by name: the order of the data topic's value."""
        return self.regular_columns + self.static_columns

    @property
    def is_counter(self) -> bool:
        """True for a counter table."""
        return "counter" in self.flags

    @property
    def full_name(self) -> str:
        """`keyspace.table`, as the user wrote the names (no quotes)."""
        return f"{self.keyspace}.{self.name}"


def is_earlier(table_id: UUID, other: UUID) -> bool:
    """True if the first id is certainly older than the other: ids that Cassandra makes contain their time."""
    return table_id.version == 1 == other.version and table_id.time < other.time


def is_earlier_life(table: TableMetadata, other: TableMetadata) -> bool:
    """True if the first table was certainly created first, even if an earlier id is used again (`WITH ID`)."""
    if table.generation is not None and other.generation is not None:
        return table.generation < other.generation
    return is_earlier(table.table_id, other.table_id)
