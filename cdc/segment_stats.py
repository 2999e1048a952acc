"""The output of `cdc decode --stats` for a segment: its kind, its tables, and the times of its writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from change_agent.commitlog.descriptor import CommitLogDescriptor
from change_agent.commitlog.entry import CommitLogEntry
from change_agent.db.values import Mutation, PartitionUpdate, Row
from change_agent.events.pretty_format import time_text

__all__ = ["SegmentStats", "TableStats"]

_NAME_COLUMN = "table"
_COLUMNS = ("mutations", "rows", "cells", "deletions", "bytes")
# Long.MIN_VALUE: no write has this time.
_NO_TIME = -0x8000_0000_0000_0000


@dataclass(slots=True, kw_only=True)
class TableStats:
    """Counts of one table.

    `deletions`: of rows, ranges and partitions. `bytes`: the sizes of the complete mutations that have an update of the
    table.
    """

    mutations: int = 0
    rows: int = 0
    cells: int = 0
    deletions: int = 0
    bytes: int = 0

    def add(self, update: PartitionUpdate, size: int) -> None:
        """Count an update that is part of a mutation of `size` bytes."""
        rows = [row for row in (update.static_row, *update.rows) if row is not None]
        self.mutations += 1
        self.rows += len(rows)
        self.cells += sum(len(row.cells) for row in rows)
        self.deletions += len(update.range_tombstones) + (update.partition_deletion is not None)
        self.deletions += sum(row.deletion is not None for row in rows)
        self.bytes += size


@dataclass(slots=True, kw_only=True)
class SegmentStats:
    """Statistics of one segment. Times are write timestamps in microseconds, which clients may choose."""

    name: str
    file_size: int = 0
    version: int | None = None
    encoding: str = ""
    position: int = 0
    """The position where reading ended."""
    mutations: int = 0
    skipped: int = 0
    """Mutations of tables that are not in the schema."""
    faults: int = 0
    """Number of places that could not be read."""
    earliest_us: int | None = None
    latest_us: int | None = None
    decode_seconds: float = 0.0
    tables: dict[UUID, tuple[str, TableStats]] = field(default_factory=dict)

    def describe(self, descriptor: CommitLogDescriptor) -> None:
        """Take version and encoding from the segment's header."""
        self.version = descriptor.version
        self.encoding = descriptor.encryption or descriptor.compression or "plain"

    def add(self, entry: CommitLogEntry, mutation: Mutation) -> None:
        """Count a mutation."""
        self.mutations += 1
        for update in mutation.updates:
            table_id = update.table.table_id
            if table_id not in self.tables:
                self.tables[table_id] = (update.table.full_name, TableStats())
            self.tables[table_id][1].add(update, entry.size)
            for timestamp in _timestamps(update):
                if timestamp != _NO_TIME:
                    self.earliest_us = timestamp if self.earliest_us is None else min(self.earliest_us, timestamp)
                    self.latest_us = timestamp if self.latest_us is None else max(self.latest_us, timestamp)

    def lines(self) -> Iterator[str]:
        """The statistics as lines of text. Names of tables are the last column, so that long names break nothing."""
        yield self.name
        if self.version is not None:
            yield f"  version {self.version}, {self.encoding}, {self.file_size:,} bytes, read to position {self.position:,}"
        if self.earliest_us is not None and self.latest_us is not None:
            yield f"  written {time_text(self.earliest_us)}"
            yield f"       to {time_text(self.latest_us)}"
        others = [f"{self.skipped:,} of tables not in the schema"] if self.skipped else []
        others += [f"{self.faults:,} faults"] if self.faults else []
        yield f"  {', '.join([f'{self.mutations:,} mutations', *others])}, in {self.decode_seconds:.2f} s"
        if self.tables:
            yield from _table_lines(sorted(self.tables.values(), key=lambda named: named[0]))

    def as_json(self) -> dict[str, object]:
        """The statistics as an object for JSON."""
        tables = [
            {"table": name, "table_id": str(table_id)} | {column: getattr(table, column) for column in _COLUMNS}
            for table_id, (name, table) in sorted(self.tables.items(), key=lambda item: item[1][0])
        ]
        return {
            "segment": self.name,
            "file_size": self.file_size,
            "version": self.version,
            "encoding": self.encoding,
            "position": self.position,
            "mutations": self.mutations,
            "skipped": self.skipped,
            "faults": self.faults,
            "earliest_us": self.earliest_us,
            "latest_us": self.latest_us,
            "decode_seconds": round(self.decode_seconds, 6),
            "tables": tables,
        }


def _table_lines(tables: Iterable[tuple[str, TableStats]]) -> Iterator[str]:
    lines = [[*_COLUMNS, _NAME_COLUMN]]
    lines += [[*(f"{getattr(table, column):,}" for column in _COLUMNS), name] for name, table in tables]
    widths = [max(len(line[index]) for line in lines) + 2 for index in range(len(_COLUMNS))]
    for *cells, name in lines:
        yield "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)) + f"  {name}"


def _timestamps(update: PartitionUpdate) -> Iterator[int]:
    if update.partition_deletion is not None:
        yield update.partition_deletion.timestamp
    for tombstone in update.range_tombstones:
        yield tombstone.timestamp
    if update.static_row is not None:
        yield from _row_timestamps(update.static_row)
    for row in update.rows:
        yield from _row_timestamps(row)


def _row_timestamps(row: Row) -> Iterator[int]:
    if row.liveness is not None:
        yield row.liveness.timestamp
    if row.deletion is not None:
        yield row.deletion.timestamp
    for deletion in row.complex_deletions:
        yield deletion.timestamp
    for cell in row.cells:
        yield cell.timestamp
