"""Rebuilds from a record's Avro key the row's CQL key, which an event needs, and the token of its partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cassandra.metadata import Murmur3Token

from schemas.avro_names import avro_names
from schemas.cql_bytes import UnwritableKeyError, cql_bytes, joined_partition_key
from schemas.cql_type import CqlType, NativeType
from schemas.cql_value import AvroValue, column_reader
from schemas.row_record import data_key_schema, record_writer
from schemas.table_metadata import TableMetadata
from spark_bridge.rows.key_forms import UNREADABLE
from spark_bridge.rows.record_reader import record_reader

__all__ = ["RowKey", "RowKeys", "token_of"]

_CUT: Final = "time"
"""The native type whose Avro form (microseconds) is less precise than its CQL bytes (nanoseconds)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKey:
    """`avro`: the key as on the topic.

    `parts`: the CQL bytes of its columns; clustering columns of a static row are null.
    """

    avro: bytes
    parts: tuple[bytes | None, ...]
    has_row: bool


class RowKeys:
    """Keys of one table, by its current schema in Cassandra. A key column that was renamed changes no byte."""

    def __init__(self, table: TableMetadata) -> None:
        self._width = len(table.partition_key)
        schema = data_key_schema(table)
        self._read = record_reader(schema)
        self._columns = list(zip(avro_names([each.name for each in table.primary_key]), table.primary_key, strict=True))
        self._write = record_writer(schema)
        # Clustering columns may have the form of an earlier version of a user type.
        fields = schema["fields"]
        assert isinstance(fields, list)
        self._read_partition = record_reader({**schema, "fields": fields[: self._width]})

    @property
    def are_exact(self) -> bool:
        """True when every partition key of the table can be rebuilt from its Avro form."""
        types = [column.type for _, column in self._columns[: self._width]]
        return all(isinstance(each, NativeType) and each.name != _CUT for each in types)

    def of(self, avro: bytes) -> RowKey:
        """The key of a row by its Avro form.

        Raises UnwritableKeyError if the CQL bytes cannot be rebuilt (`time`, collections, tuples, user types).
        """
        try:
            values = self._read(avro)
        except UNREADABLE:
            nested = [column.type for _, column in self._columns if not isinstance(column.type, NativeType)]
            raise UnwritableKeyError(nested[0] if nested else self._columns[-1][1].type, avro) from None
        parts = tuple(
            None if values[name] is None else _exact_bytes(column.type, values[name]) for name, column in self._columns
        )
        return RowKey(avro=avro, parts=parts, has_row=all(each is not None for each in parts[self._width :]))

    def row_of(self, avro: bytes) -> RowKey:
        """As `of`, for a key that is surely that of a row. Clustering values that are null in Avro have no bytes."""
        return RowKey(avro=avro, parts=tuple(each or b"" for each in self.of(avro).parts), has_row=True)

    def avro_of(self, parts: Sequence[bytes | None]) -> bytes:
        """The Avro form of a key, from the CQL bytes of its columns. Raises CqlValueError."""
        pairs = zip(self._columns, parts, strict=True)
        return self._write(
            {name: None if each is None else column_reader(column)(each) for (name, column), each in pairs}
        )

    def static_row_of(self, avro: bytes) -> RowKey:
        """The key of a partition's static row, from any key in that partition. Raises UnwritableKeyError."""
        values = self._read_partition(avro)
        values |= {name: None for name, _ in self._columns[self._width :]}
        return self.of(self._write(values))

    def token(self, avro: bytes) -> int:
        """The token of the key's partition. Raises UnwritableKeyError unless `are_exact`."""
        values = self._read_partition(avro)
        return token_of([_exact_bytes(column.type, values[name]) for name, column in self._columns[: self._width]])


def token_of(components: Sequence[bytes | None]) -> int:
    """The Murmur3 token of a partition key, from the CQL bytes of its columns."""
    token: int = Murmur3Token.hash_fn(joined_partition_key([each or b"" for each in components]))
    return token


def _exact_bytes(cql_type: CqlType, value: AvroValue) -> bytes:
    if cql_type == NativeType(_CUT):
        raise UnwritableKeyError(cql_type, value)
    return cql_bytes(cql_type, value)
