"""CQL bytes of keys and cells as JSON text, in the form of the data topic's JSON (schemas.json_value). Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from schemas.cql_type import CqlType, ListType, MapType, NativeType, SetType, UserType
from schemas.cql_value import AvroValue, json_reader, split_partition_key, value_reader
from schemas.json_value import json_string, json_text
from schemas.table_metadata import ColumnMetadata, TableMetadata
from spark_bridge.commitlog.counters import counter_total

__all__ = ["CellTexts", "KeyTexts", "cell_reader", "path_reader", "path_type"]

Reader = Callable[[bytes], AvroValue]
_COUNTER: Final = NativeType("counter")
_INDEX_SIZE: Final = 2


def cell_reader(cql_type: CqlType, path: bytes | None) -> Reader:
    """A function that reads the value of one cell. `path`: path of the cell; None unless the column is multi-cell."""
    return value_reader(_cell_type(cql_type, path)) if cql_type != _COUNTER else counter_total


def path_reader(cql_type: CqlType) -> Reader:
    """A function that reads the path of a cell of a multi-cell column.

    The path is the timeuuid of a list element, the element of a set, the key of a map, or the name of a field.
    """
    if isinstance(cql_type, UserType):
        return lambda path: cql_type.field_names[int.from_bytes(path, "big")]
    return value_reader(path_type(cql_type))


class CellTexts:
    """Values and paths of the cells of one column as JSON text."""

    def __init__(self, cql_type: CqlType) -> None:
        self._type: Final = cql_type
        self._is_set: Final = isinstance(cql_type, SetType) and not cql_type.frozen
        self._read_path: Final = path_reader(cql_type)
        self._path_text: Final = json_text(path_type(cql_type))
        self._values: Final[dict[bytes | None, tuple[Reader, Callable[[AvroValue], str]]]] = {}

    def path(self, path: bytes | None) -> str | None:
        """The path as text; None if the column is not multi-cell. Raises CqlValueError."""
        return None if path is None else self._path_text(self._read_path(path))

    def value(self, path: bytes | None, value: bytes | None) -> str | None:
        """The value as text; None for a tombstone. The value of a set's cell is its element. Raises CqlValueError."""
        if value is None:
            return None
        if self._is_set:
            return self.path(path)
        # only in a user type does the type of a cell depend on its path
        of_path = path if isinstance(self._type, UserType) else None
        known = self._values.get(of_path)
        if known is None:
            read = cell_reader(self._type, path)
            known = self._values[of_path] = read, json_text(_cell_type(self._type, path))
        return known[1](known[0](value))


class KeyTexts:
    """Partition key and clustering of one table as JSON objects by column name."""

    def __init__(self, table: TableMetadata) -> None:
        self._count: Final = len(table.partition_key)
        self._partition: Final = _texts(table.partition_key)
        self._clustering: Final = _texts(table.clustering_key)

    def partition(self, key: bytes) -> str:
        """The partition key as a JSON object. Raises CqlValueError."""
        return _object(self._partition, split_partition_key(key, self._count))

    def clustering(self, values: Sequence[bytes | None]) -> str:
        """The clustering of a row, or of a range's bound (a prefix, possibly empty), as a JSON object.

        Raises CqlValueError.
        """
        return _object(self._clustering[: len(values)], values)


_ColumnText = tuple[str, Callable[[bytes], str]]


def _texts(columns: Sequence[ColumnMetadata]) -> list[_ColumnText]:
    return [(json_string(each.name), json_reader(each.type)) for each in columns]


def _object(columns: Sequence[_ColumnText], values: Sequence[bytes | None]) -> str:
    parts = [
        f"{name}:{'null' if value is None else text(value)}"
        for (name, text), value in zip(columns, values, strict=True)
    ]
    return f"{{{','.join(parts)}}}"


def path_type(cql_type: CqlType) -> CqlType:
    """The type in which the paths of a multi-cell column are shown."""
    match cql_type:
        case SetType(element):
            return element
        case MapType(key):
            return key
        case UserType():
            return NativeType("text")
        case _:
            return NativeType("timeuuid")


def _cell_type(cql_type: CqlType, path: bytes | None) -> CqlType:
    if path is None:
        return cql_type
    match cql_type:
        case ListType(element) | MapType(_, element) | SetType(element):
            return element
        case UserType() if len(path) == _INDEX_SIZE:
            return cql_type.field_types[int.from_bytes(path, "big")]
        case _:
            return cql_type
