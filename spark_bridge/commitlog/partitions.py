"""The bridge from Spark's Arrow batches to the rules: changes in, one Cassandra partition after the other.

The batches of a task hold complete Cassandra partitions, one after the other, so a task keeps one of them in memory at
a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from schemas.row_record import data_key_schema, record_writer
from schemas.table_metadata import TableMetadata
from spark_bridge.commitlog.cql_order import ClusteringOrder
from spark_bridge.commitlog.reconciliation import Cell, Change, Clustering, Deletion, Marker, Range
from spark_bridge.commitlog.row_values import KeyValues

__all__ = ["CHANGE_COLUMNS", "Fold", "KeyBytes", "partitions_of"]

CHANGE_COLUMNS: Final = (
    "partition_key",
    "kind",
    "clustering",
    "marker",
    "deletion",
    "range",
    "complex_deletions",
    "cells",
)
"""Columns of the data source with `values=cql`. The batches are sorted by the first one."""
Fold = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function for `mapInArrow`."""


def partitions_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes, Iterator[Change]]]:
    """Each partition key with its changes. The caller must consume the changes before it asks for the next key."""
    rows = _rows(batches)
    row = next(rows, None)

    def changes(key: bytes) -> Iterator[Change]:
        nonlocal row
        while row is not None and row[0] == key:
            yield _change(row)
            row = next(rows, None)

    while row is not None:
        yield row[0], changes(row[0])


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*[batch.column(name).to_pylist() for name in CHANGE_COLUMNS], strict=True)


def _change(row: tuple[Any, ...]) -> Change:
    _, kind, clustering, marker, deletion, bounds, complex_deletions, cells = row
    return Change(
        kind,
        None if clustering is None else tuple(clustering),
        None if marker is None else Marker(*marker.values()),
        None if deletion is None else Deletion(*deletion.values()),
        None if bounds is None else _range(*bounds.values()),
        [(name, Deletion(*rest)) for name, *rest in (each.values() for each in complex_deletions or ())],
        [((name, path), Cell(*rest)) for name, path, *rest in (each.values() for each in cells or ())],
    )


def _range(start: Sequence[bytes], start_inclusive: bool, end: Sequence[bytes], end_inclusive: bool) -> Range:
    return Range(tuple(start), start_inclusive, tuple(end), end_inclusive)


class KeyBytes:
    """Encodes keys of one table as Avro, and tells which rows a range holds."""

    def __init__(self, table: TableMetadata) -> None:
        self._values: Final = KeyValues(table)
        self._write: Final = record_writer(data_key_schema(table))
        self._order: Final = ClusteringOrder([(each.type, each.reversed) for each in table.clustering_key])

    def avro(self, partition_key: bytes, clustering: Clustering) -> bytes:
        """The key of a row, or of the static row. Raises CqlValueError."""
        return self._write(self._values.values(partition_key, clustering))

    def covers(self, each: Range, clustering: tuple[bytes | None, ...]) -> bool:
        """Return True if a range holds the row."""
        order = self._order
        return order.is_after(clustering, each.start, inclusive=each.start_inclusive) and order.is_before(
            clustering, each.end, inclusive=each.end_inclusive
        )
