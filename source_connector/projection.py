"""What is selected of a table, and how its rows become keys and values of the data topic. Pure.

A projection stands for one state of the table's schema: its statements, its Avro schemas and its converters belong
together, so a row's bytes are always written by the schema that they were selected for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from schemas.cql_type import is_multi_cell
from schemas.cql_value import AvroValue, CqlValueError, split_partition_key, value_reader
from schemas.mutation_event import MutationKind
from schemas.row_record import data_key_schema, data_value_schema, record_writer, schema_text
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata
from source_connector.errors import DeploymentError, RowConversionError

__all__ = ["Projection", "RawValues", "Selection"]

RawValues = Sequence[bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The columns of a SELECT in order: key columns, value columns, then write times of columns."""

    key_columns: tuple[ColumnMetadata, ...]
    value_columns: tuple[ColumnMetadata, ...]
    timed_columns: tuple[str, ...]

    @property
    def text(self) -> str:
        """`SELECT ... ` up to and without FROM; never empty."""
        names = [quoted(column.name) for column in self.key_columns + self.value_columns]
        return "SELECT " + ", ".join(names + [f"WRITETIME({quoted(name)})" for name in self.timed_columns])

    def writetimes_us(self, row: RawValues) -> dict[str, int]:
        """Write times of the live cells among the timed columns."""
        times = row[len(self.key_columns) + len(self.value_columns) :]
        found = zip(self.timed_columns, times, strict=True)
        return {name: int.from_bytes(time, "big", signed=True) for name, time in found if time is not None}


class Projection:
    """One table in one state of its schema. Raises DeploymentError when nothing is left to replicate."""

    def __init__(self, table: TableMetadata, columns: str = ".*") -> None:
        self.table: Final = table
        wanted = re.compile(columns)
        self.value_columns: Final = tuple(each for each in table.value_columns if wanted.fullmatch(each.name))
        if table.value_columns and not self.value_columns:
            raise DeploymentError(f"columns: {columns!r} matches no value column of {table.full_name}")
        self.key_schema: Final = schema_text(data_key_schema(table))
        self.value_schema: Final = schema_text(data_value_schema(table, self.value_columns))
        self._write_key = record_writer(data_key_schema(table))
        self._write_value = record_writer(data_value_schema(table, self.value_columns))
        self._readers = {each.name: value_reader(each.type) for each in table.primary_key + self.value_columns}
        self._static_names = [each.name for each in table.static_columns]
        self.row_selection: Final = Selection(
            key_columns=(),
            value_columns=self.value_columns or table.primary_key,
            timed_columns=tuple(each.name for each in table.regular_columns if not is_multi_cell(each.type)),
        )
        """Of one row by its whole key, for events of rows."""
        self.group_selection: Final = Selection(
            key_columns=table.primary_key,
            value_columns=self.row_selection.value_columns,
            timed_columns=self.row_selection.timed_columns,
        )
        """The same, behind the key that tells the rows of several keys apart."""
        self.static_selection: Final = Selection(
            key_columns=(),
            value_columns=tuple(each for each in self.value_columns if each.kind is ColumnKind.STATIC),
            timed_columns=tuple(each.name for each in table.static_columns if not is_multi_cell(each.type)),
        )
        """Of a partition's static row."""
        self.scope_selection: Final = Selection(
            key_columns=table.primary_key,
            value_columns=self.value_columns,
            timed_columns=self.row_selection.timed_columns,
        )
        """Of several rows of a partition, with their keys."""

    @property
    def column_names(self) -> frozenset[str]:
        """All columns that may be named by an event."""
        return frozenset(each.name for each in self.table.primary_key + self.table.value_columns)

    def schema_equals(self, other: Projection) -> bool:
        """True when records of both are written by the same schemas."""
        return (self.key_schema, self.value_schema) == (other.key_schema, other.value_schema)

    def row_key_values(self, partition_key: bytes, clustering: Sequence[bytes | None]) -> list[bytes | None]:
        """Values of a statement's markers for one row (or, without clustering, for one partition)."""
        return [*split_partition_key(partition_key, len(self.table.partition_key)), *clustering]

    def avro_key(self, key_values: RawValues) -> bytes:
        """The data topic's key from CQL bytes; missing clustering values are null. Raises RowConversionError."""
        columns = self.table.primary_key
        record: dict[str, AvroValue] = dict.fromkeys((column.name for column in columns), None)
        try:
            for column, data in zip(columns, key_values, strict=False):
                record[column.name] = None if data is None else self._readers[column.name](data)
            return self._write_key(record)
        except (CqlValueError, *_AVRO_ERRORS) as error:
            raise self._conversion_error(key_values, error) from error

    def avro_value(self, selection: Selection, row: RawValues) -> bytes:
        """The data topic's value from a row of the selection. Raises RowConversionError."""
        columns = selection.value_columns or selection.key_columns
        start = len(selection.key_columns) if selection.value_columns else 0
        readers = self._readers
        try:
            # Columns that were not selected are null: fastavro takes what is missing as its default.
            record: dict[str, AvroValue] = {
                column.name: None if data is None else readers[column.name](data)
                for column, data in zip(columns, row[start:], strict=False)
            }
            return self._write_value(record)
        except (CqlValueError, *_AVRO_ERRORS) as error:
            raise self._conversion_error(row[: len(selection.key_columns)], error) from error

    def selection_for(self, kind: MutationKind) -> Selection:
        """What is read for an event of this kind."""
        if kind is MutationKind.STATIC_ROW:
            return self.static_selection
        if kind in (MutationKind.ROW, MutationKind.ROW_DELETION):
            return self.row_selection
        return self.scope_selection

    def select(self, selection: Selection, where: str) -> str:
        """The CQL of a SELECT with markers."""
        return f"{selection.text} FROM {quoted(self.table.keyspace)}.{quoted(self.table.name)} WHERE {where}"

    @property
    def row_where(self) -> str:
        """The whole primary key."""
        return " AND ".join(f"{quoted(column.name)} = ?" for column in self.table.primary_key)

    @property
    def partition_where(self) -> str:
        """The partition key."""
        return " AND ".join(f"{quoted(column.name)} = ?" for column in self.table.partition_key)

    @property
    def static_names(self) -> Sequence[str]:
        """Names of the static columns."""
        return self._static_names

    def _conversion_error(self, key_values: RawValues, error: Exception) -> RowConversionError:
        key = " ".join("null" if each is None else each.hex() for each in key_values) or "(by its event)"
        return RowConversionError(self.table.full_name, key, " ".join(str(error).split()))


# What fastavro raises for a value that does not fit its schema.
_AVRO_ERRORS: Final = (ValueError, TypeError, KeyError, OverflowError, AttributeError)


def quoted(name: str) -> str:
    """A CQL identifier, taken literally."""
    return '"' + name.replace('"', '""') + '"'


def max_writetime_us(writetimes: Mapping[str, int]) -> int | None:
    """The newest of the write times."""
    return max(writetimes.values(), default=None)
