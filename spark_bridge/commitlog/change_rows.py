"""Mutations as rows of the data source: one for each row that was changed, and for each deletion of many rows.

With `values=json` keys, paths and values are JSON text; with `values=cql` they are the CQL bytes, which is what the functions
of `spark_bridge.commitlog` fold.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple
from uuid import UUID

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from change_agent.db.values import Clustering, DeletionTime, Mutation, PartitionUpdate, RangeTombstone, Row
from schemas.cql_type import CqlType
from schemas.table_metadata import TableMetadata
from spark_bridge.commitlog.cql_texts import CellTexts, KeyTexts

__all__ = ["ChangeRows", "Form", "spark_schema"]

Form = Literal["json", "cql"]
_BYTES_PER_BATCH: Final = 8 << 20
_ROWS_PER_BATCH: Final = 8192

_DELETION: Final = pa.struct([("writetime", pa.int64()), ("local_deletion_time", pa.int64())])
_MARKER: Final = pa.struct([("writetime", pa.int64()), ("ttl", pa.int64()), ("expires_at", pa.int64())])
_COMPLEX: Final = pa.struct([("column", pa.string()), ("writetime", pa.int64()), ("local_deletion_time", pa.int64())])


@lru_cache(maxsize=2)
def _arrow_schema(form: Form) -> pa.Schema:
    data = pa.string() if form == "json" else pa.binary()
    clustering = data if form == "json" else pa.list_(data)
    cell = pa.struct([
        ("column", pa.string()), ("path", data), ("value", data), ("writetime", pa.int64()), ("ttl", pa.int64()),
        ("local_deletion_time", pa.int64()),
    ])  # fmt: skip
    bounds = pa.struct([
        ("start", clustering), ("start_inclusive", pa.bool_()), ("end", clustering), ("end_inclusive", pa.bool_()),
    ])  # fmt: skip
    return pa.schema([
        ("node", pa.string()), ("segment", pa.string()), ("segment_id", pa.int64()), ("position", pa.int64()),
        ("keyspace", pa.string()), ("table", pa.string()), ("table_id", pa.string()), ("kind", pa.string()),
        ("partition_key", data), ("clustering", clustering), ("writetime", pa.int64()), ("marker", _MARKER),
        ("deletion", _DELETION), ("range", bounds), ("complex_deletions", pa.list_(_COMPLEX)),
        ("cells", pa.list_(cell)), ("fault", pa.string()),
    ])  # fmt: skip


def spark_schema(form: Form) -> StructType:
    """The columns of the data source."""
    return from_arrow_schema(_arrow_schema(form))


class _Change(NamedTuple):
    """One row, by the columns behind `segment_id`; the cells are apart."""

    position: int | None
    keyspace: str | None
    table: str | None
    table_id: str | None
    kind: str
    partition_key: str | bytes | None
    clustering: object
    writetime: int | None
    marker: tuple[int, int, int | None] | None
    deletion: tuple[int, int] | None
    range: tuple[object, bool, object, bool] | None
    complex_deletions: list[tuple[str, int, int]] | None
    fault: str | None


class _TableTexts:
    """What turns one table's bytes into text; columns by name and type, for a type may have been altered."""

    def __init__(self, table: TableMetadata) -> None:
        self.table_id: Final = str(table.table_id)
        self.keys: Final = KeyTexts(table)
        self.columns: Final[dict[tuple[str, CqlType], CellTexts]] = {}


class ChangeRows:
    """Collects the rows of one segment into record batches. `wanted`: ids of the tables whose rows are (None: all).

    `written` are bounds of the highest write time of a row, in microseconds, the second left out.
    """

    def __init__(
        self,
        form: Form,
        node: str,
        segment: str,
        segment_id: int,
        wanted: frozenset[UUID] | None,
        written: tuple[int | None, int | None] = (None, None),
    ) -> None:
        self._form: Final[Form] = form
        self._place: Final = (node, segment, segment_id)
        self._wanted: Final = wanted
        self._written: Final = written
        self._tables: Final[dict[int, tuple[TableMetadata, _TableTexts]]] = {}
        self._changes: list[_Change] = []
        self._cell_counts: list[int] = []
        self._cells: list[tuple[object, ...]] = []
        self._size = 0

    @property
    def is_full(self) -> bool:
        """True when a batch should be taken."""
        return len(self._changes) >= _ROWS_PER_BATCH or self._size >= _BYTES_PER_BATCH

    def add(self, position: int, size: int, mutation: Mutation) -> None:
        """Raises CqlValueError where bytes are no value of their column's type; what was added of the mutation stays.

        `size` are the mutation's bytes.
        """
        self._size += size
        for update in mutation.updates:
            if self._wanted is None or update.table.table_id in self._wanted:
                self._add_update(position, update)

    def add_fault(self, position: int | None, reason: str) -> None:
        """What cannot be read of the segment."""
        self._append(_Change(position, None, None, None, "fault", None, None, None, None, None, None, None, reason), [])

    def take(self) -> pa.RecordBatch:
        """What was collected, which is forgotten here."""
        schema, count = _arrow_schema(self._form), len(self._changes)
        node, segment, segment_id = self._place
        columns = dict(zip(_Change._fields, zip(*self._changes, strict=True), strict=True)) if count else {}
        arrays: list[pa.Array] = [
            pa.repeat(pa.scalar(node), count),
            pa.repeat(pa.scalar(segment), count),
            pa.repeat(pa.scalar(segment_id, pa.int64()), count),
        ]
        for field in list(schema)[3:]:
            if field.name == "cells":
                arrays.append(self._cell_arrays(field.type))
            elif pa.types.is_struct(field.type):
                arrays.append(_structs(columns.get(field.name, ()), field.type))
            else:
                arrays.append(pa.array(columns.get(field.name, ()), field.type))
        self._changes, self._cell_counts, self._size = [], [], 0
        self._cells = []
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _cell_arrays(self, cells: pa.ListType) -> pa.ListArray:
        fields = list(cells.value_type)
        columns = list(zip(*self._cells, strict=True)) or [()] * len(fields)
        parts = [pa.array(values, each.type) for values, each in zip(columns, fields, strict=True)]
        offsets = pa.array([0, *itertools.accumulate(self._cell_counts)], pa.int32())
        return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(parts, fields=fields))

    def _add_update(self, position: int, update: PartitionUpdate) -> None:
        table = update.table
        known = self._tables.get(id(table))
        if known is None:
            known = self._tables[id(table)] = table, _TableTexts(table)
        texts = known[1]
        key = update.partition_key if self._form == "cql" else texts.keys.partition(update.partition_key)
        head = (position, table.keyspace, table.name, texts.table_id)
        if update.partition_deletion is not None:
            deletion = _deletion(update.partition_deletion)
            self._append(
                _Change(*head, "partition_deletion", key, None, deletion[0], None, deletion, None, None, None), []
            )
        if update.static_row is not None:
            self._add_row(head, "static_row", key, None, update.static_row, texts)
        for each in update.range_tombstones:
            deletion = each.timestamp, each.local_deletion_time
            bounds = self._bounds(each, texts)
            self._append(
                _Change(*head, "range_deletion", key, None, deletion[0], None, deletion, bounds, None, None), []
            )
        for row in update.rows:
            clustering = self._clustering(row.clustering, texts)
            self._add_row(head, "row", key, clustering, row, texts)

    def _add_row(
        self,
        head: tuple[int, str, str, str],
        kind: str,
        key: str | bytes,
        clustering: object,
        row: Row,
        texts: _TableTexts,
    ) -> None:
        marker = None
        if row.liveness is not None:
            marker = row.liveness.timestamp, row.liveness.ttl, row.liveness.local_expiration_time
        deletion = None if row.deletion is None else _deletion(row.deletion)
        complex_deletions = [
            (each.column.name, each.timestamp, each.local_deletion_time) for each in row.complex_deletions
        ]
        times = [each.timestamp for each in row.cells]
        times += [each[1] for each in complex_deletions]
        times += [each[0] for each in (marker, deletion) if each is not None]
        if deletion is not None and not row.cells and marker is None and not complex_deletions:
            kind = "row_deletion"
        self._append(
            _Change(*head, kind, key, clustering, max(times), marker, deletion, None, complex_deletions, None),
            self._row_cells(row, texts),
        )

    def _row_cells(self, row: Row, texts: _TableTexts) -> list[tuple[object, ...]]:
        if self._form == "cql":
            return [
                (each.column.name, each.path, each.value, each.timestamp, each.ttl, each.local_deletion_time)
                for each in row.cells
            ]
        found: list[tuple[object, ...]] = []
        for each in row.cells:
            column = each.column
            of_column = texts.columns.get((column.name, column.type))
            if of_column is None:
                of_column = texts.columns[column.name, column.type] = CellTexts(column.type)
            path, value = of_column.path(each.path), of_column.value(each.path, each.value)
            found.append((column.name, path, value, each.timestamp, each.ttl, each.local_deletion_time))
        return found

    def _append(self, change: _Change, cells: Sequence[tuple[object, ...]]) -> None:
        if change.writetime is not None and not self._is_wanted_time(change.writetime):
            return
        self._changes.append(change)
        self._cell_counts.append(len(cells))
        self._cells += cells

    def _is_wanted_time(self, writetime: int) -> bool:
        low, high = self._written
        return (low is None or writetime >= low) and (high is None or writetime < high)

    def _clustering(self, values: Clustering, texts: _TableTexts) -> object:
        return list(values) if self._form == "cql" else texts.keys.clustering(values)

    def _bounds(self, each: RangeTombstone, texts: _TableTexts) -> tuple[object, bool, object, bool]:
        start, end = self._clustering(each.start, texts), self._clustering(each.end, texts)
        return start, each.start_inclusive, end, each.end_inclusive


def _deletion(deletion: DeletionTime) -> tuple[int, int]:
    return deletion.timestamp, deletion.local_deletion_time


def _structs(values: Sequence[tuple[object, ...] | None], kind: pa.StructType) -> pa.StructArray:
    fields = list(kind)
    empty = (None,) * len(fields)
    parts = list(zip(*[empty if each is None else each for each in values], strict=True)) or [()] * len(fields)
    arrays = [pa.array(part, field.type) for part, field in zip(parts, fields, strict=True)]
    return pa.StructArray.from_arrays(
        arrays, fields=fields, mask=pa.array([each is None for each in values], pa.bool_())
    )
