"""Projection: the selected columns of a table, and how its rows become keys and values of the data topic. Pure.

A projection belongs to one state of the table's schema. Its statements, Avro schemas and converters belong together,
so the bytes of a row are always written with the schema with which the row was selected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from schemas.avro_names import avro_names
from schemas.cql_identifier import quoted
from schemas.cql_type import NativeType, is_multi_cell
from schemas.cql_value import CqlValueError, has_equal_forms, split_partition_key
from schemas.hidden_columns import HiddenColumns, Hiding
from schemas.mutation_event import MutationEvent, MutationKind
from schemas.row_record import events_key_schema, schema_text
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata
from source_connector.data_format import DataFormat
from source_connector.encoding.published_table import published_table
from source_connector.encoding.row_encoder import RawValues, row_encoder
from source_connector.encoding.row_sizes import RowSize
from source_connector.encoding.selection import Selection
from source_connector.errors import DeploymentError, RowConversionError
from source_connector.host.record import DataSchema

__all__ = ["Projection", "RawValues"]

# Looked up for every row: access to a member of an enum's class costs as much as the creation of an object.
_ROW: Final = MutationKind.ROW
_ROW_DELETION: Final = MutationKind.ROW_DELETION
_STATIC_ROW: Final = MutationKind.STATIC_ROW
_KEY_VALUE_AVRO: Final = DataFormat.KEY_VALUE_AVRO
# In Avro an inet is a text like any other, and a uuid has the type of a timeuuid.
_UNSHOWN: Final = frozenset({"inet", "uuid"})


class Projection:
    """One table in one state of its schema.

    Raises DeploymentError when no column is left to replicate, or when columns cannot be hidden as the options say.
    """

    def __init__(
        self,
        table: TableMetadata,
        columns: str = ".*",
        data_format: DataFormat = DataFormat.KEY_VALUE_AVRO,
        hidden: HiddenColumns | None = None,
    ) -> None:
        self.table: Final = table
        self.table_id_text: Final = str(table.table_id)
        self.generation_text: Final = "" if table.generation is None else str(table.generation)
        self.column_names: Final = frozenset(each.name for each in table.primary_key + table.value_columns)
        """All columns that may be named by an event."""
        self.data_format: Final = data_format
        self._partition_columns: Final = len(table.partition_key)
        self.row_size: Final = RowSize()
        """The size of the rows, as answers have shown it."""
        wanted = re.compile(columns)
        self._published: Final = published_table(table, hidden)
        """None if no column is hidden, as for most tables. Then rows are encoded without a detour."""
        self._hides_key: Final = self._published is not None and self._published.hides_key
        # DataStax's agents write decimals and NaN of clustering columns as the client did: equal ones would be two keys.
        is_same = not any(has_equal_forms(each.type) for each in table.clustering_key)
        self._encoded_as_events: Final = data_format is _KEY_VALUE_AVRO and not self._hides_key and is_same
        dropped = {name for name, each in self.hidden.items() if each is Hiding.DROP}
        self.value_columns: Final = tuple(
            each for each in table.value_columns if wanted.fullmatch(each.name) and each.name not in dropped
        )
        if table.value_columns and not self.value_columns:
            left = " that columns.drop leaves" if dropped else ""
            raise DeploymentError(f"columns: {columns!r} matches no value column of {table.full_name}{left}")
        shown_table, shown_columns = table, self.value_columns
        if self._published is not None:
            shown_table = self._published.table
            names = {each.name for each in self.value_columns}
            shown_columns = tuple(each for each in shown_table.value_columns if each.name in names)
        self._encoder = row_encoder(data_format, shown_table, shown_columns)
        self._avro_key = self._encoder.key
        if data_format is not DataFormat.KEY_VALUE_AVRO:
            self._avro_key = row_encoder(DataFormat.KEY_VALUE_AVRO, shown_table, shown_columns).key
        self._clear_key: Callable[[RawValues], bytes] | None = None
        """Created when it is needed."""
        self.key_schema: Final = self._encoder.key_schema
        self._event_key_schema: Final = schema_text(events_key_schema(table))
        self.value_schema: Final = self._encoder.value_schema
        self.deleted: Final = self._encoder.deleted
        """The value of a row that does not exist."""
        self._static_names = _field_names(self.value_columns, table.static_columns)
        self.field_names: Final = dict(
            zip(
                (each.name for each in self.value_columns),
                _field_names(self.value_columns, self.value_columns),
                strict=True,
            )
        )
        """Names of the value columns' fields in the value's record, by column name."""
        places = {each.name: at for at, each in enumerate(self.value_columns)}
        self.multi_cell_places: Final = [
            (each.name, places.get(each.name, -1)) for each in table.regular_columns if is_multi_cell(each.type)
        ]
        """Regular columns whose cells have a TTL each, and their indexes in the value columns; -1 if not selected."""
        self._reversed_names = _field_names(table.primary_key, [each for each in table.clustering_key if each.reversed])
        self._unshown_types = _unshown_types(table)
        self.row_selection: Final = Selection(
            key_columns=(),
            value_columns=self.value_columns or table.primary_key,
            timed_columns=tuple(each.name for each in table.regular_columns if not is_multi_cell(each.type)),
        )
        """The columns of one row that is read by its whole key, for events of rows."""
        self.group_selection: Final = Selection(
            key_columns=table.primary_key,
            value_columns=self.row_selection.value_columns,
            timed_columns=self.row_selection.timed_columns,
        )
        """The same columns after the key, which distinguishes the rows of several keys."""
        self.static_selection: Final = Selection(
            key_columns=(),
            value_columns=tuple(each for each in self.value_columns if each.kind is ColumnKind.STATIC),
            timed_columns=tuple(each.name for each in table.static_columns if not is_multi_cell(each.type)),
        )
        """The columns of a partition's static row."""
        self.scope_selection: Final = Selection(
            key_columns=table.primary_key,
            value_columns=self.value_columns,
            timed_columns=self.row_selection.timed_columns,
        )
        """The columns of several rows of a partition, with their keys."""

    def schema_equals(self, other: Projection) -> bool:
        """True when records of both are written with the same schemas."""
        return (self.key_schema, self.value_schema) == (other.key_schema, other.value_schema)

    def data_schema(self, schema_id: int) -> DataSchema:
        """The schema for the data topic's registry."""
        return DataSchema(
            schema_id=schema_id,
            data_format=self.data_format,
            name=self.table.name,
            key_schema=self.key_schema,
            value_schema=self.value_schema,
        )

    def row_key_values(self, partition_key: bytes, clustering: Sequence[bytes | None]) -> list[bytes | None]:
        """Values of a statement's markers for one row (or, without clustering, for one partition)."""
        return [*self.partition_values(partition_key), *clustering]

    def partition_values(self, partition_key: bytes) -> tuple[bytes, ...]:
        """Values of the partition key's columns. Raises CqlValueError."""
        if self._partition_columns == 1:  # for most tables: no call of a function that is not compiled
            return (partition_key,)
        return split_partition_key(partition_key, self._partition_columns)

    def avro_key(self, key_values: RawValues) -> bytes:
        """The key as Avro from CQL bytes; missing clustering values are null. Raises RowConversionError."""
        return self._converted(key_values, lambda: self._avro_key(self._shown_key(key_values)))

    def event_key_of(self, key_values: RawValues) -> bytes:
        """The key of an event, never hidden: it distinguishes the events of one row. Raises RowConversionError."""
        if self._clear_key is None:
            encoder = row_encoder(_KEY_VALUE_AVRO, self.table, self.table.value_columns)
            self._clear_key = encoder.key if self._hides_key else self._avro_key
        write = self._clear_key
        return self._converted(key_values, lambda: write(key_values))

    def record_key(self, key_values: RawValues) -> bytes:
        """The key in the data topic's format. Raises RowConversionError."""
        return self._converted(key_values, lambda: self._encoder.key(self._shown_key(key_values)))

    def event_key(self, event: MutationEvent, key_schema: str) -> bytes:
        """The data topic's key for the row or partition of an event. Raises RowConversionError.

        `key_schema` is the schema of the event's own key.
        """
        if self._encoded_as_events and self.has_keys_of(key_schema):
            return event.key
        return self.record_key(self.row_key_values(event.partition_key, event.clustering))

    def has_keys_of(self, key_schema: str) -> bool:
        """False if keys of this schema may have other bytes: a user type in the key got a field before or since.

        An empty text is not known to differ.
        """
        return key_schema in (self._event_key_schema, self.key_schema, "")

    def record_value(self, selection: Selection, row: RawValues, key_values: RawValues) -> bytes:
        """The data topic's value, from a row of the selection and its key. Raises RowConversionError."""
        columns = selection.value_columns if self.value_columns else ()
        return self._encoded(columns, row[len(selection.key_columns) :], key_values)

    def row_value(
        self, selection: Selection, row: RawValues, partition_key: bytes, clustering: Sequence[bytes | None]
    ) -> bytes:
        """The same value, with the parts of the row's key. Raises RowConversionError."""
        transcoder = self._encoder.transcoder
        if transcoder is None or selection.value_columns is not self.value_columns:
            return self.record_value(selection, row, self.row_key_values(partition_key, clustering))
        try:
            if self._published is not None:
                values = row[len(selection.key_columns) :]
                return transcoder.write(self._published.shown(selection.value_columns, values), 0)
            return transcoder.write(row, len(selection.key_columns))
        except (CqlValueError, *_AVRO_ERRORS) as error:
            raise self._error(self.row_key_values(partition_key, clustering), error)

    def static_value(self, selection: Selection, row: RawValues, key_values: RawValues) -> bytes:
        """The value of a partition's static row, from a row of a wider selection. Raises RowConversionError."""
        columns = self.static_selection.value_columns
        found = dict(
            zip((each.name for each in selection.value_columns), row[len(selection.key_columns) :], strict=False)
        )
        return self._encoded(columns, [found[column.name] for column in columns], key_values)

    def selection_for(self, kind: MutationKind) -> Selection:
        """The columns to read for an event of this kind."""
        if kind is _ROW or kind is _ROW_DELETION:
            return self.row_selection
        if kind is _STATIC_ROW:
            return self.static_selection
        return self.scope_selection

    def select(self, selection: Selection, where: str) -> str:
        """The CQL of a SELECT with markers."""
        return f"{selection.text} FROM {quoted(self.table.keyspace)}.{quoted(self.table.name)} WHERE {where}"

    @property
    def row_where(self) -> str:
        """The condition for a whole primary key."""
        return " AND ".join(f"{quoted(column.name)} = ?" for column in self.table.primary_key)

    @property
    def partition_where(self) -> str:
        """The condition for a partition key."""
        return " AND ".join(f"{quoted(column.name)} = ?" for column in self.table.partition_key)

    @property
    def static_names(self) -> Sequence[str]:
        """Names of the static columns' fields."""
        return self._static_names

    @property
    def reversed_names(self) -> Sequence[str]:
        """Names of the fields of clustering columns with descending order."""
        return self._reversed_names

    @property
    def unshown_types(self) -> Mapping[str, str]:
        """Types of the clustering columns whose order the key's Avro schema does not show, by field name."""
        return self._unshown_types

    @property
    def hidden(self) -> dict[str, Hiding]:
        """Columns whose values are not published unchanged, and how they are hidden."""
        return {} if self._published is None else self._published.hidden

    @property
    def hides_key(self) -> bool:
        """True when the bytes of keys must not be shown, also not in log lines."""
        return self._hides_key

    def _shown_key(self, key_values: RawValues) -> RawValues:
        return key_values if self._published is None else self._published.shown(self.table.primary_key, key_values)

    def _encoded(self, columns: Sequence[ColumnMetadata], values: RawValues, key_values: RawValues) -> bytes:
        published = self._published
        if published is None:
            return self._converted(key_values, lambda: self._encoder.value(columns, values, key_values))
        return self._converted(
            key_values,
            lambda: self._encoder.value(columns, published.shown(columns, values), self._shown_key(key_values)),
        )

    def _converted(self, key_values: RawValues, convert: Callable[[], bytes]) -> bytes:
        try:
            return convert()
        except (CqlValueError, *_AVRO_ERRORS) as error:
            raise self._error(key_values, error)

    def _error(self, key_values: RawValues, error: Exception) -> RowConversionError:
        key = "(hidden)"
        if not self._hides_key:
            key = " ".join("null" if each is None else each.hex() for each in key_values)
        return RowConversionError(self.table.full_name, key, " ".join(str(error).split()))


def _field_names(record: Sequence[ColumnMetadata], columns: Sequence[ColumnMetadata]) -> list[str]:
    """The columns' field names in a record. A column that is not in the record keeps its own name."""
    names = [each.name for each in record]
    fields = dict(zip(names, avro_names(names), strict=True))
    return [fields.get(each.name, each.name) for each in columns]


def _unshown_types(table: TableMetadata) -> dict[str, str]:
    names = _field_names(table.primary_key, table.clustering_key)
    types = [each.type for each in table.clustering_key]
    return {
        name: each.name
        for name, each in zip(names, types, strict=True)
        if isinstance(each, NativeType) and each.name in _UNSHOWN
    }


# The exceptions of fastavro for a value that does not fit its schema.
_AVRO_ERRORS: Final = (ValueError, TypeError, KeyError, OverflowError, AttributeError)
