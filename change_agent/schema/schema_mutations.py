"""Reads mutations of `system_schema`: which tables and user types were created or altered, and when.

Every CREATE TABLE and ALTER TABLE writes the table's row of `tables` again, with the table's id, and the rows of the
columns that it adds, changes or drops; all with the time of the statement. DROP TABLE writes tombstones only, which
are not needed.

Cassandra source: o.a.c.schema.SchemaKeyspace (makeCreateTableMutation, makeUpdateTableMutation, addTypeToSchemaMutation). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from change_agent.db.values import Mutation, PartitionUpdate
from schemas.cql_value import split_partition_key, value_reader
from schemas.system_schema import Row
from schemas.table_metadata import ColumnMetadata

__all__ = ["SCHEMA_KEYSPACE", "SchemaChange", "TableChange", "TypeChange", "schema_change_of"]

SCHEMA_KEYSPACE: Final = "system_schema"
# Columns that are part of a definition, by their list in SystemSchema.
_COLUMNS: Final[Mapping[str, frozenset[str]]] = {
    "tables": frozenset({"id", "flags", "cdc"}),
    "views": frozenset({"id", "cdc"}),
    "columns": frozenset({"kind", "position", "clustering_order", "type"}),
    "dropped_columns": frozenset({"kind", "type", "dropped_time"}),
    "types": frozenset({"field_names", "field_types"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """A table was created or altered. `list_name` is `tables` or `views`; `row` is the row written in that list.

    `columns` and `dropped_columns` are the rows written in these lists. `removed` has the names of columns whose row
    was deleted.
    """

    table_id: UUID
    list_name: str
    keyspace: str
    name: str
    since_us: int
    row: Row
    columns: tuple[Row, ...]
    removed: frozenset[str]
    dropped_columns: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeChange:
    """A user type was created or altered."""

    keyspace: str
    name: str
    since_us: int
    row: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """All that one mutation changes."""

    tables: tuple[TableChange, ...]
    types: tuple[TypeChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _WrittenRow:
    """A row of one list. `since_us` is None if the mutation writes no value of the row, only deletions."""

    list_name: str
    table: str
    row: dict[str, object]
    since_us: int | None


def schema_change_of(mutation: Mutation) -> SchemaChange:
    """The change that a mutation of `system_schema` makes. Raises CqlValueError."""
    rows = [row for update in mutation.updates if update.table.name in _COLUMNS for row in _rows(update)]
    tables = [_table_change(each, rows) for each in rows if each.list_name in {"tables", "views"} and "id" in each.row]
    types = [
        TypeChange(keyspace=str(each.row["keyspace_name"]), name=each.table, since_us=each.since_us, row=each.row)
        for each in rows
        if each.list_name == "types" and each.since_us is not None
    ]
    return SchemaChange(tables=tuple(tables), types=tuple(types))


def _table_change(written: _WrittenRow, rows: list[_WrittenRow]) -> TableChange:
    mine = [each for each in rows if each.table == written.table]
    columns = [each for each in mine if each.list_name == "columns"]
    return TableChange(
        table_id=UUID(str(written.row["id"])),
        list_name=written.list_name,
        keyspace=str(written.row["keyspace_name"]),
        name=written.table,
        since_us=written.since_us or 0,
        row=written.row,
        columns=tuple(each.row for each in columns if each.since_us is not None),
        removed=frozenset(str(each.row["column_name"]) for each in columns if each.since_us is None),
        dropped_columns=tuple(
            each.row for each in mine if each.list_name == "dropped_columns" and each.since_us is not None
        ),
    )


def _rows(update: PartitionUpdate) -> Iterator[_WrittenRow]:
    table = update.table
    keys = _values(table.partition_key, split_partition_key(update.partition_key, len(table.partition_key)))
    wanted = _COLUMNS[table.name]
    for row in update.rows:
        if any(value is None for value in row.clustering):
            continue
        values = keys | _values(table.clustering_key, tuple(value or b"" for value in row.clustering))
        since_us: int | None = None
        for cell in row.cells:
            if cell.column.name in wanted and cell.value is not None and cell.path is None:
                values[cell.column.name] = value_reader(cell.column.type)(cell.value)
                since_us = max(since_us or cell.timestamp, cell.timestamp)
        name = values.get("type_name") or values.get("view_name") or values.get("table_name")
        yield _WrittenRow(list_name=table.name, table=str(name), row=values, since_us=since_us)


def _values(columns: tuple[ColumnMetadata, ...], values: tuple[bytes, ...]) -> dict[str, object]:
    return {column.name: value_reader(column.type)(value) for column, value in zip(columns, values, strict=True)}
