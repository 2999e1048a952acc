"""Keys and values of the data topic in its three formats, from CQL bytes. Pure.

    key-value-avro    Avro key, Avro value; a deleted row has no value
    key-value-json    JSON key, JSON value; a deleted row has no value
    json              the key as the message's text key, one JSON object of key and value; `{}` for a deleted row

Forms and bytes are those of DataStax's connector. In JSON a static row has its static columns only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, Protocol, TypeVar

from schemas.avro_names import avro_names
from schemas.cql_value import AvroValue, column_json_reader, column_reader
from schemas.row_record import (
    RecordWriter,
    data_key_schema,
    data_row_schema,
    data_value_schema,
    record_writer,
    schema_text,
)
from schemas.table_metadata import ColumnMetadata, TableMetadata
from source_connector.data_format import DataFormat
from source_connector.encoding.avro_transcoder import FieldWriter, RecordTranscoder

__all__ = ["RawValues", "RowEncoder", "row_encoder"]

RawValues = Sequence[bytes | None]
_NO_FIELDS: Final = b"{}"


class RowEncoder(Protocol):
    """Writes with `key_schema` and `value_schema`. Raises CqlValueError, and the errors of fastavro."""

    @property
    def key_schema(self) -> str:
        """Avro JSON text; empty if the format has no key schema."""

    @property
    def value_schema(self) -> str:
        """Avro JSON text."""

    @property
    def deleted(self) -> bytes | None:
        """The value of a row that does not exist."""

    @property
    def transcoder(self) -> RecordTranscoder | None:
        """A faster way to the result of `value` for all value columns; None if the format has none."""

    def key(self, key_values: RawValues) -> bytes:
        """The key, from the CQL bytes of the primary key's columns. Columns that are missing at the end are null."""

    def value(self, columns: Sequence[ColumnMetadata], values: RawValues, key_values: RawValues) -> bytes:
        """The value, from the CQL bytes of these value columns (none in a table of keys only) and of the key."""


def row_encoder(data_format: DataFormat, table: TableMetadata, columns: Sequence[ColumnMetadata]) -> RowEncoder:
    """The encoder of a format for a table. `columns` are the value columns that are published."""
    if data_format is DataFormat.KEY_VALUE_AVRO:
        return _AvroEncoder(table, columns)
    return _JsonEncoder(table, columns, is_one_object=data_format is DataFormat.JSON)


class _AvroEncoder:
    deleted: Final = None

    def __init__(self, table: TableMetadata, columns: Sequence[ColumnMetadata]) -> None:
        key, value = data_key_schema(table), data_value_schema(table, columns)
        self.key_schema: Final = schema_text(key)
        self.value_schema: Final = schema_text(value)
        self._write_key = record_writer(key)
        self._write_value = record_writer(value)
        self._key_fields = _fields(table.primary_key, column_reader)
        self._value_fields = dict(zip((each.name for each in columns), _fields(columns, column_reader), strict=True))
        self.transcoder: Final = RecordTranscoder([FieldWriter(each.type, _converter(table, each)) for each in columns])

    def key(self, key_values: RawValues) -> bytes:
        return self._write_key(self._key_record(key_values))

    def value(self, columns: Sequence[ColumnMetadata], values: RawValues, key_values: RawValues) -> bytes:
        if not columns:
            return self._write_value(self._key_record(key_values))
        fields = [self._value_fields[column.name] for column in columns]
        # Columns that were not selected are null: fastavro uses the default of a missing field.
        return self._write_value(
            {name: None if data is None else read(data) for (name, read), data in zip(fields, values, strict=False)}
        )

    def _key_record(self, key_values: RawValues) -> dict[str, AvroValue]:
        record: dict[str, AvroValue] = {name: None for name, _ in self._key_fields}
        for (name, read), data in zip(self._key_fields, key_values, strict=False):
            record[name] = None if data is None else read(data)
        return record


def _converter(table: TableMetadata, column: ColumnMetadata) -> Callable[[bytes], bytes]:
    """The Avro field of one column by fastavro. Created at the first use, because most columns never need it."""

    @cache
    def made() -> tuple[str, Callable[[bytes], AvroValue], RecordWriter]:
        ((name, read),) = _fields([column], column_reader)
        return name, read, record_writer(data_value_schema(table, [column]))

    def convert(data: bytes) -> bytes:
        name, read, write = made()
        return write({name: read(data)})

    return convert


class _JsonEncoder:
    transcoder: Final = None

    def __init__(self, table: TableMetadata, columns: Sequence[ColumnMetadata], *, is_one_object: bool) -> None:
        self.deleted: Final = _NO_FIELDS if is_one_object else None
        self._is_one_object = is_one_object
        if is_one_object:
            self.key_schema: str = ""
            self.value_schema: str = schema_text(data_row_schema(table, columns))
            fields = _fields((*table.primary_key, *columns), column_json_reader)
            self._key_fields, value_fields = fields[: len(table.primary_key)], fields[len(table.primary_key) :]
        else:
            self.key_schema = schema_text(data_key_schema(table))
            self.value_schema = schema_text(data_value_schema(table, columns))
            self._key_fields, value_fields = (
                _fields(table.primary_key, column_json_reader),
                _fields(columns, column_json_reader),
            )
        self._value_fields = dict(zip((each.name for each in columns), value_fields, strict=True))

    def key(self, key_values: RawValues) -> bytes:
        return _object(self._key_texts(key_values))

    def value(self, columns: Sequence[ColumnMetadata], values: RawValues, key_values: RawValues) -> bytes:
        is_row = len(key_values) == len(self._key_fields) and None not in key_values
        texts = self._key_texts(key_values) if not columns or (self._is_one_object and is_row) else []
        fields = [self._value_fields[column.name] for column in columns]
        return _object(texts + _texts(fields, values))

    def _key_texts(self, key_values: RawValues) -> list[str]:
        missing = len(self._key_fields) - len(key_values)
        return _texts(self._key_fields, [*key_values, *[None] * missing])


_Reader = TypeVar("_Reader")


def _fields(
    columns: Sequence[ColumnMetadata], reader: Callable[[ColumnMetadata], _Reader]
) -> list[tuple[str, _Reader]]:
    names = avro_names([column.name for column in columns])
    return [(name, reader(column)) for name, column in zip(names, columns, strict=True)]


def _texts(fields: Sequence[tuple[str, Callable[[bytes], str]]], values: RawValues) -> list[str]:
    return [
        f'"{name}":{"null" if data is None else text(data)}' for (name, text), data in zip(fields, values, strict=False)
    ]


def _object(texts: Sequence[str]) -> bytes:
    return f"{{{','.join(texts)}}}".encode()
