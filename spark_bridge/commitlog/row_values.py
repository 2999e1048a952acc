"""The remaining cells of a row as column values in Avro form. The cells of a collection become one value. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from schemas.avro_names import avro_names
from schemas.cql_map_key import map_key_text
from schemas.cql_type import CqlType, ListType, MapType, NativeType, SetType, UserType, is_multi_cell
from schemas.cql_value import AvroValue, column_reader, split_partition_key, value_reader
from schemas.table_metadata import TableMetadata
from spark_bridge.commitlog.cql_order import order_of
from spark_bridge.commitlog.cql_texts import cell_reader
from spark_bridge.commitlog.reconciliation import Cell, Clustering, RemainingRow, is_live

__all__ = ["KeyValues", "RowValues"]

_Cells = Sequence[tuple[bytes | None, Cell]]
_Assemble = Callable[[_Cells], AvroValue]


class KeyValues:
    """Primary keys of one table, from CQL bytes."""

    def __init__(self, table: TableMetadata) -> None:
        self._count: Final = len(table.partition_key)
        self._names: Final = avro_names([each.name for each in table.primary_key])
        self._readers: Final = [column_reader(each) for each in table.primary_key]

    def values(self, partition_key: bytes, clustering: Clustering) -> dict[str, AvroValue]:
        """Values of the key's columns, by column. Raises CqlValueError.

        Clustering columns without a value are null, as in the key of a static row, or in a prefix.
        """
        found: list[bytes | None] = [*split_partition_key(partition_key, self._count), *(clustering or ())]
        found += [None] * (len(self._names) - len(found))
        return {
            name: None if data is None else read(data)
            for name, read, data in zip(self._names, self._readers, found, strict=True)
        }


class RowValues:
    """Value columns of one table."""

    def __init__(self, table: TableMetadata) -> None:
        columns = table.value_columns
        self._names: Final = dict(
            zip([each.name for each in columns], avro_names([each.name for each in columns]), strict=True)
        )
        self._assemble: Final = {each.name: _assembler(each.type) for each in columns}
        self._is_simple: Final = {each.name: not is_multi_cell(each.type) for each in columns}
        self._dropped_us: Final = {
            each.name: each.dropped_time_us for each in table.dropped_columns if each.name in self._names
        }

    def without_dropped(self, row: RemainingRow) -> RemainingRow:
        """The row without cells of columns that the table lacks, and without cells from before their column's drop."""
        cells = {
            name: cell
            for name, cell in row.cells.items()
            if name[0] in self._names and cell.writetime > self._dropped_us.get(name[0], -(1 << 63) - 1)
        }
        return row._replace(cells=cells)

    def values(self, rows: Sequence[RemainingRow], now_s: int) -> tuple[dict[str, AvroValue], dict[str, int]]:
        """Values by column of a row and its static row, and the write times of the columns that are one cell."""
        living: dict[str, list[tuple[bytes | None, Cell]]] = defaultdict(list)
        for row in rows:
            for (column, path), cell in row.cells.items():
                if is_live(cell, now_s):
                    living[column].append((path, cell))
        values = {
            name: self._assemble[column](living[column]) if column in living else None
            for column, name in self._names.items()
        }
        times = {
            self._names[column]: cells[0][1].writetime for column, cells in living.items() if self._is_simple[column]
        }
        return values, times


def _assembler(cql_type: CqlType) -> _Assemble:
    if not is_multi_cell(cql_type):
        read = cell_reader(cql_type, None)
        return lambda cells: read(cells[0][1].value or b"")
    match cql_type:
        case ListType(element):
            read_element, ordered = value_reader(element), _by_path(NativeType("timeuuid"))
            return lambda cells: [read_element(cell.value or b"") for _, cell in ordered(cells)]
        case SetType(element):
            read_element, ordered = value_reader(element), _by_path(element)
            return lambda cells: [read_element(path or b"") for path, _ in ordered(cells)]
        case MapType(key, value):
            key_text, read_value, ordered = map_key_text(key, value_reader), value_reader(value), _by_path(key)
            return lambda cells: {key_text(path or b""): read_value(cell.value or b"") for path, cell in ordered(cells)}
        case UserType():
            return _fields_assembler(cql_type)
    raise AssertionError(cql_type)


def _by_path(cql_type: CqlType) -> Callable[[_Cells], _Cells]:
    order = order_of(cql_type)
    return lambda cells: sorted(cells, key=lambda each: order(each[0] or b""))  # type: ignore[arg-type, return-value]  # keys of one type


def _fields_assembler(cql_type: UserType) -> _Assemble:
    names = avro_names(cql_type.field_names)
    readers = [value_reader(each) for each in cql_type.field_types]

    def assemble(cells: _Cells) -> AvroValue:
        found: dict[str, AvroValue] = dict.fromkeys(names)
        for path, cell in cells:
            index = int.from_bytes(path or b"", "big")
            if index < len(names):  # a higher index is a field that was added later
                found[names[index]] = readers[index](cell.value or b"")
        return found

    return assemble
