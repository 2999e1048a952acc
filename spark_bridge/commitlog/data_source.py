"""The Python Data Source `cassandra_commitlog`: an archive of commit log segments as a DataFrame of changes.

Spark makes these objects in short-lived Python processes and pickles them for tasks, so they hold options only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, In, InputPartition
from pyspark.sql.types import StructType

from schemas.cql_value import CqlValueError
from schemas.errors import ConfigError
from schemas.table_metadata import TableMetadata
from spark_bridge.commitlog.archive import ArchivedSegment, CommitLogArchive
from spark_bridge.commitlog.change_rows import ChangeRows, spark_schema
from spark_bridge.commitlog.options import CommitLogOptions
from spark_bridge.commitlog.segment_reading import (
    Fault,
    ReadMutation,
    check_segment_options,
    known_schema,
    read_segment,
    refuse_newer_versions,
)
from spark_bridge.errors import ArchiveReadError
from spark_bridge.reading.garbage import few_collections
from spark_bridge.topics.options import refuse_catalog_table

__all__ = ["CommitLogDataSource"]

# Tolerance: write times come from the clocks of nodes and clients, the archive's times from other clocks.
_CLOCKS_DIFFER_MS: Final = 600_000
_PRUNING: Final = ("node", "segment", "segment_id", "keyspace", "table", "table_id")


class CommitLogDataSource(DataSource):
    """`spark.read.format("cassandra_commitlog")`; see docs/commitlog-dataframe.md."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "cassandra_commitlog"

    def schema(self) -> StructType:
        """The columns, the same for every archive.

        `load()` calls this, so wrong options are found here. Raises ConfigError.
        """
        refuse_catalog_table(self.name(), self.options)
        return spark_schema(CommitLogOptions.from_mapping(self.options).values)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader, with one task for each segment."""
        options = CommitLogOptions.from_mapping(self.options)
        return PushdownReader(options) if options.filter_pushdown else CommitLogReader(options)


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """The input of one task. `runs`: ids of the node's archived segments, as first and last id of each unbroken run."""

    segment: ArchivedSegment
    runs: tuple[tuple[int, int], ...]
    wanted: frozenset[UUID] | None


class CommitLogReader(DataSourceReader):
    """Reads all segments of the archive that can hold wanted changes."""

    def __init__(self, options: CommitLogOptions) -> None:
        self._options = options
        self._equal: dict[str, frozenset[object]] = {}

    def partitions(self) -> list[InputPartition]:
        """The segments to read.

        Raises ConfigError, and ArchiveReadError for a missing schema history or an unknown version.
        """
        options = self._options
        check_segment_options(options.commitlog_options)
        archive = CommitLogArchive(options.archive_url)
        tasks: list[SegmentTask] = []
        tables: dict[UUID, TableMetadata] = {}
        for node in self._nodes(archive):
            segments = archive.segments(node)
            if not segments:
                continue
            wanted_segments = [each for each in segments if self._may_hold(each)]
            refuse_newer_versions(wanted_segments)
            of_node = known_schema(archive.schema_text(node), keep_dropped=False).tables
            tables |= of_node
            runs = tuple(_runs(each.segment_id for each in segments))
            wanted = self._wanted(of_node.values())
            tasks += [SegmentTask(each, runs, wanted) for each in wanted_segments if wanted is None or wanted]
        self._require_table(tables.values())
        return [InputPartition(each) for each in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one segment."""
        task = partition.value if partition is not None else None
        if not isinstance(task, SegmentTask):
            return  # a partition that Spark plans itself if there is nothing to read
        options, segment = self._options, task.segment
        text = CommitLogArchive(options.archive_url).schema_text(segment.node)
        schema = known_schema(text, keep_dropped=options.dropped_columns == "show")
        rows = ChangeRows(
            options.values,
            segment.node,
            segment.name,
            segment.segment_id,
            task.wanted,
            (_micros(options.starting_ms), _micros(options.ending_ms)),
        )
        found = read_segment(
            segment, schema, archived_ids=_ids(task.runs), wanted=task.wanted, options_file=options.commitlog_options
        )
        # `found` is closed at once when the query stops, because it has a copy of the segment open.
        with few_collections(), closing(found):
            for each in found:
                self._take(rows, segment, each)
                if rows.is_full:
                    yield rows.take()
        yield rows.take()

    def _take(self, rows: ChangeRows, segment: ArchivedSegment, found: ReadMutation | Fault) -> None:
        if isinstance(found, Fault):
            self._note_fault(rows, segment, found.position, found.reason)
            return
        try:
            rows.add(found.position, found.size, found.mutation)
        except CqlValueError as error:
            self._note_fault(rows, segment, found.position, str(error))

    def _note_fault(self, rows: ChangeRows, segment: ArchivedSegment, position: int | None, reason: str) -> None:
        if self._options.damaged_segments == "fail":
            where = segment.url if position is None else f"{segment.url}, position {position}"
            raise ArchiveReadError(
                where,
                f"{reason}; damagedSegments=report reads what can be read, and reports this in a row of kind `fault`",
            )
        rows.add_fault(position, reason)

    def _nodes(self, archive: CommitLogArchive) -> list[str]:
        found, wanted = archive.nodes(), self._options.node_ids
        if wanted is not None and (missing := wanted.difference(found)):
            reason = f"not in the archive: {', '.join(sorted(missing))}; it has {', '.join(found)}"
            raise ConfigError.of("nodes", reason)
        return [each for each in found if (wanted is None or each in wanted) and self._admits("node", each)]

    def _may_hold(self, segment: ArchivedSegment) -> bool:
        """Return False if the segment cannot hold wanted changes, by its name and the time when it was archived.

        A segment's id is a time before its first change.
        """
        starting, ending = self._options.starting_ms, self._options.ending_ms
        is_too_new = ending is not None and segment.segment_id > ending + _CLOCKS_DIFFER_MS
        is_too_old = (
            starting is not None
            and segment.modified_ms is not None
            and segment.modified_ms < starting - _CLOCKS_DIFFER_MS
        )
        is_named = self._admits("segment", segment.name) and self._admits("segment_id", segment.segment_id)
        return is_named and not is_too_new and not is_too_old

    def _wanted(self, tables: Iterable[TableMetadata]) -> frozenset[UUID] | None:
        """Ids of the tables to read; None: all tables."""
        by_table = {"keyspace", "table", "table_id"} & self._equal.keys()
        if self._options.table is None and not by_table:
            return None
        return frozenset(
            each.table_id
            for each in tables
            if self._options.table in {None, each.full_name}
            and self._admits("keyspace", each.keyspace)
            and self._admits("table", each.name)
            and self._admits("table_id", str(each.table_id))
        )

    def _require_table(self, tables: Iterable[TableMetadata]) -> None:
        names = {each.full_name for each in tables}
        if self._options.table is not None and names and self._options.table not in names:
            raise ConfigError.of("table", f"{self._options.table} is in no schema history of the archive")

    def _admits(self, column: str, value: object) -> bool:
        return column not in self._equal or value in self._equal[column]


class PushdownReader(CommitLogReader):
    """The same reader, pruned by the query's filters on node, segment and table. Spark applies these filters again."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  (Spark's name)
        """Note the filters that can prune. Return all filters, so that Spark applies them, too."""
        for each in filters:
            if isinstance(each, EqualTo | In) and len(each.attribute) == 1 and each.attribute[0] in _PRUNING:
                values = frozenset(each.value if isinstance(each, In) else (each.value,))
                name = each.attribute[0]
                self._equal[name] = self._equal[name] & values if name in self._equal else values
        return filters


def _micros(time_ms: int | None) -> int | None:
    return None if time_ms is None else time_ms * 1000


def _runs(ids: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending ids as runs without a gap: the first and the last id of each."""
    ordered = list(ids)
    ends = [at for at, (left, right) in enumerate(pairwise(ordered)) if right != left + 1] + [len(ordered) - 1]
    starts = [0, *(each + 1 for each in ends[:-1])]
    return [(ordered[first], ordered[last]) for first, last in zip(starts, ends, strict=True)]


def _ids(runs: Iterable[tuple[int, int]]) -> Iterator[int]:
    for first, last in runs:
        yield from range(first, last + 1)
