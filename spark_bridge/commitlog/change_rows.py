"""Mutations as rows of the data source: one row for each changed row, and one for each deletion of many rows.

With `values=json`, keys, paths and values are JSON text. With `values=cql`, they are CQL bytes, which the functions of
`spark_bridge.commitlog` fold.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, Literal
from uuid import UUID

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from change_agent.db.values import (
    Cell,
    Clustering,
    DeletionTime,
    LivenessInfo,
    Mutation,
    PartitionUpdate,
    RangeTombstone,
    Row,
)
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
    cell = [
        ("column", pa.string()),
        ("path", data),
        ("value", data),
        ("writetime", pa.int64()),
        ("ttl", pa.int64()),
        ("local_deletion_time", pa.int64()),
    ]
    bounds = [
        ("start", clustering),
        ("start_inclusive", pa.bool_()),
        ("end", clustering),
        ("end_inclusive", pa.bool_()),
    ]
    change = [
        ("node", pa.string()),
        ("segment", pa.string()),
        ("segment_id", pa.int64()),
        ("position", pa.int64()),
        ("keyspace", pa.string()),
        ("table", pa.string()),
        ("table_id", pa.string()),
        ("kind", pa.string()),
        ("partition_key", data),
        ("clustering", clustering),
        ("writetime", pa.int64()),
        ("marker", _MARKER),
        ("deletion", _DELETION),
        ("range", pa.struct(bounds)),
        ("complex_deletions", pa.list_(_COMPLEX)),
        ("cells", pa.list_(pa.struct(cell))),
        ("fault", pa.string()),
    ]
    return pa.schema(change)


def spark_schema(form: Form) -> StructType:
    """The columns of the data source."""
    return from_arrow_schema(_arrow_schema(form))


# One row: the columns after `segment_id`, without the cells. The table is an index into the tables of `ChangeRows`.
_Change = tuple[
    int | None,  # position
    int | None,  # table
    str,  # kind
    str | bytes | None,  # partition_key
    object,  # clustering
    int | None,  # writetime
    LivenessInfo | None,
    DeletionTime | RangeTombstone | None,
    tuple[object, bool, object, bool] | None,  # range
    list[tuple[str, int, int]] | None,  # complex_deletions
    str | None,  # fault
]


class _TableTexts:
    """Converts one table's bytes to text. Columns are by name and type, because a type may have been altered."""

    def __init__(self, index: int, table: TableMetadata) -> None:
        self.index: Final = index
        self.table: Final = table
        self.keys: Final = KeyTexts(table)
        self.columns: Final[dict[tuple[str, CqlType], CellTexts]] = {}


class ChangeRows:
    """Collects the rows of one segment into record batches. `wanted`: ids of the tables to collect (None: all).

    `written`: bounds of the rows' highest write time, in microseconds. The second bound is exclusive.
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
        self._has_bounds: Final = written != (None, None)
        self._tables: Final[dict[int, _TableTexts]] = {}
        self._names: Final[list[TableMetadata]] = []
        self._changes: list[_Change] = []
        self._cell_counts: list[int] = []
        self._cells: list[Cell] = []
        # Only for JSON: with `values=cql`, the bytes are taken from the cells.
        self._paths: list[str | None] = []
        self._values: list[str | None] = []
        self._size = 0

    @property
    def is_full(self) -> bool:
        """True when a batch should be taken."""
        return len(self._changes) >= _ROWS_PER_BATCH or self._size >= _BYTES_PER_BATCH

    def add(self, position: int, size: int, mutation: Mutation) -> None:
        """Add the rows of a mutation. `size`: number of the mutation's bytes.

        Raises CqlValueError if bytes are not a value of their column's type. Rows that were added before stay.
        """
        self._size += size
        for update in mutation.updates:
            if self._wanted is None or update.table.table_id in self._wanted:
                self._add_update(position, update)

    def add_fault(self, position: int | None, reason: str) -> None:
        """Add a row about a part of the segment that cannot be read."""
        self._append((position, None, "fault", None, None, None, None, None, None, None, reason))

    def take(self) -> pa.RecordBatch:
        """Return the collected rows, and begin a new batch."""
        schema, count = _arrow_schema(self._form), len(self._changes)
        columns = list(zip(*self._changes, strict=True)) or [()] * 11
        (
            positions,
            tables,
            kinds,
            keys,
            clusterings,
            writetimes,
            markers,
            deletions,
            ranges,
            complex_deletions,
            faults,
        ) = columns
        of_table = pa.array(tables, pa.int32())
        node, segment, segment_id = self._place
        arrays: list[pa.Array] = [
            pa.repeat(pa.scalar(node), count),
            pa.repeat(pa.scalar(segment), count),
            pa.repeat(pa.scalar(segment_id, pa.int64()), count),
            pa.array(positions, pa.int64()),
            pa.array([each.keyspace for each in self._names], pa.string()).take(of_table),
            pa.array([each.name for each in self._names], pa.string()).take(of_table),
            pa.array([str(each.table_id) for each in self._names], pa.string()).take(of_table),
            pa.array(kinds, pa.string()),
            pa.array(keys, schema.field("partition_key").type),
            pa.array(clusterings, schema.field("clustering").type),
            pa.array(writetimes, pa.int64()),
            _structs(markers, _MARKER, attrgetter("timestamp", "ttl", "local_expiration_time")),
            _structs(deletions, _DELETION, attrgetter("timestamp", "local_deletion_time")),
            _structs(ranges, schema.field("range").type, tuple),
            pa.array(complex_deletions, schema.field("complex_deletions").type),
            self._cell_arrays(schema.field("cells").type),
            pa.array(faults, pa.string()),
        ]
        self._changes, self._cell_counts, self._cells, self._paths, self._values = [], [], [], [], []
        self._size = 0
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _cell_arrays(self, kind: pa.ListType) -> pa.ListArray:
        cells, is_cql = self._cells, self._form == "cql"
        values: list[Sequence[object]] = [
            [each.column.name for each in cells],
            [each.path for each in cells] if is_cql else self._paths,
            [each.value for each in cells] if is_cql else self._values,
            [each.timestamp for each in cells],
            [each.ttl for each in cells],
            [each.local_deletion_time for each in cells],
        ]
        fields = list(kind.value_type)
        parts = [pa.array(each, field.type) for each, field in zip(values, fields, strict=True)]
        offsets = pa.array([0, *itertools.accumulate(self._cell_counts)], pa.int32())
        return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(parts, fields=fields))

    def _add_update(self, position: int, update: PartitionUpdate) -> None:
        texts = self._tables.get(id(update.table)) or self._new_table(update.table)
        index, key = texts.index, update.partition_key
        shown_key = key if self._form == "cql" else texts.keys.partition(key)
        deletion = update.partition_deletion
        if deletion is not None:
            kind = "partition_deletion"
            self._append((position, index, kind, shown_key, None, deletion.timestamp, None, deletion, None, None, None))
        if update.static_row is not None:
            self._add_row(position, "static_row", shown_key, None, update.static_row, texts)
        for each in update.range_tombstones:
            bounds = self._range(each, texts)
            self._append(
                (position, index, "range_deletion", shown_key, None, each.timestamp, None, each, bounds, None, None)
            )
        for row in update.rows:
            self._add_row(position, "row", shown_key, self._clustering(row.clustering, texts), row, texts)

    def _new_table(self, table: TableMetadata) -> _TableTexts:
        found = self._tables[id(table)] = _TableTexts(len(self._names), table)
        self._names.append(table)
        return found

    def _add_row(
        self, position: int, kind: str, key: str | bytes, clustering: object, row: Row, texts: _TableTexts
    ) -> None:
        cells, marker, deletion = row.cells, row.liveness, row.deletion
        complex_deletions = [
            (each.column.name, each.timestamp, each.local_deletion_time) for each in row.complex_deletions
        ]
        times = [each.timestamp for each in cells]
        times += [each[1] for each in complex_deletions]
        if marker is not None:
            times.append(marker.timestamp)
        if deletion is not None:
            times.append(deletion.timestamp)
            if len(times) == 1:
                kind = "row_deletion"
        # Before the change is added: if bytes are not a value of their type, no part of the row must stay.
        shown = None if self._form == "cql" else self._cell_texts(cells, texts)
        change = (
            position,
            texts.index,
            kind,
            key,
            clustering,
            max(times),
            marker,
            deletion,
            None,
            complex_deletions,
            None,
        )
        if self._append(change, len(cells)):
            self._cells += cells
            if shown is not None:
                self._paths += [path for path, _ in shown]
                self._values += [value for _, value in shown]

    def _cell_texts(self, cells: Sequence[Cell], texts: _TableTexts) -> list[tuple[str | None, str | None]]:
        found: list[tuple[str | None, str | None]] = []
        for each in cells:
            column = each.column
            of_column = texts.columns.get((column.name, column.type))
            if of_column is None:
                of_column = texts.columns[column.name, column.type] = CellTexts(column.type)
            found.append((of_column.path(each.path), of_column.value(each.path, each.value)))
        return found

    def _append(self, change: _Change, cell_count: int = 0) -> bool:
        """Add a change. Return False if it was left out because of its write time."""
        writetime = change[5]
        if self._has_bounds and writetime is not None and not self._is_wanted_time(writetime):
            return False
        self._changes.append(change)
        self._cell_counts.append(cell_count)
        return True

    def _is_wanted_time(self, writetime: int) -> bool:
        low, high = self._written
        return (low is None or writetime >= low) and (high is None or writetime < high)

    def _clustering(self, values: Clustering, texts: _TableTexts) -> object:
        return list(values) if self._form == "cql" else texts.keys.clustering(values)

    def _range(self, each: RangeTombstone, texts: _TableTexts) -> tuple[object, bool, object, bool]:
        start, end = self._clustering(each.start, texts), self._clustering(each.end, texts)
        return start, each.start_inclusive, end, each.end_inclusive


def _structs(
    values: Sequence[object], kind: pa.StructType, read: Callable[[Any], tuple[object, ...]]
) -> pa.StructArray:
    """Structs of the values; `read` returns the fields of one that is not None."""
    mask = [each is None for each in values]
    if all(mask):
        return pa.nulls(len(values), kind)
    empty, fields = (None,) * kind.num_fields, list(kind)
    rows = [empty if each is None else read(each) for each in values]
    arrays = [pa.array(part, field.type) for part, field in zip(zip(*rows, strict=True), fields, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(mask, pa.bool_()))
