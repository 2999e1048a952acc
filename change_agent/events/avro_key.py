"""The Avro keys of events, made directly from the CQL bytes of the key columns, without Python values in between.

    Key        => {Partition} {Clustering}
      Partition  => Avro of the column's type
      Clustering => 0, absent | 2, Avro of the column's type       (a union with null, zigzag vint of the branch)

Types with similar CQL and Avro forms are copied here. `schemas.cql_value` and fastavro convert all other types, and
bytes of an unexpected form. This conversion is the reference, and raises the errors. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, final

from change_agent.db.values import Clustering
from schemas.avro_forms import (
    AS_BOOLEAN,
    AS_BYTES,
    AS_DATE,
    AS_FLOATING,
    AS_OTHER,
    AS_SIGNED,
    AS_TEXT,
    AS_UUID,
    DATE_EPOCH,
    avro_form,
)
from schemas.avro_names import avro_names
from schemas.cql_type import CqlType
from schemas.cql_value import CqlValueError, column_reader, split_partition_key
from schemas.row_record import events_key_schema, record_writer, schema_text
from schemas.table_metadata import ColumnMetadata, TableMetadata

__all__ = ["EventKeys"]

_NULL: Final = b"\0"
_NOT_NULL: Final = b"\2"
_UUID_LENGTH: Final = b"\x48"  # 36, as a zigzag vint
_ONE_BYTE: Final = [bytes((value,)) for value in range(0x80)]
_from_bytes: Final = int.from_bytes


@final
class EventKeys:
    """Writes the Avro keys of one table's events; `schema` is the Avro schema they are written with, as JSON."""

    __slots__ = ("_clustering", "_no_clustering", "_partition", "schema", "table")

    def __init__(self, table: TableMetadata) -> None:
        self.table = table
        self.schema: str = schema_text(events_key_schema(table))
        self._partition = [
            _Field(column, replace(table, partition_key=(column,), clustering_key=()), False)
            for column in table.partition_key
        ]
        self._clustering = [
            _Field(column, replace(table, partition_key=(), clustering_key=(column,)), True)
            for column in table.clustering_key
        ]
        self._no_clustering = _NULL * len(self._clustering)

    def partition(self, partition_key: bytes) -> bytes:
        """The common part of the keys of a partition's rows. Raises CqlValueError."""
        if len(self._partition) == 1:
            return self._partition[0].encoded(partition_key)
        values = split_partition_key(partition_key, len(self._partition))
        return b"".join([self._partition[index].encoded(value) for index, value in enumerate(values)])

    def key(self, partition: bytes, clustering: Clustering) -> bytes:
        """The Avro key of a row, or of a partition where `clustering` is empty. Raises CqlValueError."""
        if not clustering:
            return partition + self._no_clustering
        parts = [partition]
        for index, value in enumerate(clustering):
            parts.append(_NULL if value is None else self._clustering[index].encoded(value))
        return b"".join(parts)


@final
class _Field:
    """One column of a key. `alone` is a table whose key is this column only."""

    __slots__ = ("_copied_as", "_length", "_name", "_nullable", "_read", "_type", "_write")

    def __init__(self, column: ColumnMetadata, alone: TableMetadata, nullable: bool) -> None:
        (self._name,) = avro_names([column.name])
        self._type: CqlType = column.type
        self._nullable = nullable
        self._copied_as, self._length = avro_form(column.type)
        self._read = column_reader(column)
        self._write = record_writer(events_key_schema(alone))

    def encoded(self, value: bytes) -> bytes:
        """Avro of the column's CQL bytes, with the union's branch if the column is nullable. Raises CqlValueError."""
        copied = self._copied(value)
        if copied is None:
            return self._converted(value)
        return _NOT_NULL + copied if self._nullable else copied

    def _copied(self, value: bytes) -> bytes | None:
        """Avro of bytes that can be copied; None for bytes that have to be converted."""
        copied_as = self._copied_as
        if copied_as == AS_TEXT:
            return _vint(2 * len(value)) + value if _is_text(value) else None
        if copied_as == AS_BYTES:
            return _vint(2 * len(value)) + value
        if copied_as == AS_OTHER or len(value) != self._length:
            return None
        if copied_as == AS_SIGNED:
            return _signed(_from_bytes(value, "big"), 1 << (8 * self._length - 1))
        if copied_as == AS_DATE:
            return _zigzag(_from_bytes(value, "big") - DATE_EPOCH)
        if copied_as == AS_UUID:
            text = value.hex()
            dashed = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
            return _UUID_LENGTH + dashed.encode()
        if copied_as == AS_BOOLEAN:
            return b"\1" if value[0] else _NULL
        if copied_as == AS_FLOATING:
            # The reference converts a float of 4 bytes to a Python float and back, which may change the bytes of a NaN.
            # All NaN of a clustering column are one row.
            is_copied = self._length == 8 and not (self._nullable and _may_be_nan(value))
            return value[::-1] if is_copied else None
        return None  # other types are rare in keys

    def _converted(self, value: bytes) -> bytes:
        converted = self._read(value)
        if converted is None and not self._nullable:
            raise CqlValueError(self._type, "an empty value has no form in a partition key's Avro schema")
        try:
            return self._write({self._name: converted})
        except (ValueError, TypeError, OverflowError):
            # The error's text would show the value.
            pass
        raise CqlValueError(self._type, f"{len(value)} bytes make a value that Avro's schema does not take")


def _is_text(value: bytes) -> bool:
    if value.isascii():
        return True
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _may_be_nan(value: bytes) -> bool:
    """True if 8 bytes are a double that is NaN or infinite."""
    return value[0] & 0x7F == 0x7F and value[1] >= 0xF0


def _signed(unsigned: int, sign: int) -> bytes:
    return _zigzag(unsigned if unsigned < sign else unsigned - 2 * sign)


def _zigzag(value: int) -> bytes:
    """Avro's int and long."""
    return _vint(2 * value if value >= 0 else -2 * value - 1)


def _vint(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
