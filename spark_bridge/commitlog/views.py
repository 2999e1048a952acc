"""Views of one table from an archive of commit log segments: history of cells, newest cells, the table at a moment.

Spark brings the changes of each Cassandra partition together; the rules are plain code (spark_bridge.commitlog.reconciliation).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.pandas.types import from_arrow_schema

from schemas.cql_type import CqlType
from schemas.errors import ConfigError
from schemas.row_record import data_key_schema, data_value_schema, record_writer
from schemas.table_metadata import TableMetadata
from spark_bridge.commitlog.cell_versions import PartitionHistory
from spark_bridge.commitlog.cql_texts import CellTexts
from spark_bridge.commitlog.equal_values import EqualValues
from spark_bridge.commitlog.options import CommitLogOptions
from spark_bridge.commitlog.partitions import CHANGE_COLUMNS, Fold, KeyBytes, partitions_of
from spark_bridge.commitlog.reconciliation import (
    STATIC,
    Partition,
    RemainingRow,
    is_live,
)
from spark_bridge.commitlog.row_values import RowValues
from spark_bridge.commitlog.sources import commit_log
from spark_bridge.rows.avro_columns import Numbers
from spark_bridge.rows.shared_names import shared_names, shared_names_reason
from spark_bridge.rows.typed import RecordDecoder
from spark_bridge.topics.options import option_texts

if TYPE_CHECKING:
    # It imports the agent's decoder, which readers of topics do not need.
    from spark_bridge.commitlog.archived_table import ArchivedTable

__all__ = ["Moment", "as_of", "cell_history", "latest_cells", "rows_fold"]

Options = Mapping[str, str | int | bool]
Moment = datetime | str | int
"""A time with a zone, the same in ISO 8601, or microseconds since the epoch, as WRITETIME gives them."""

_Row = tuple[object, ...]
_VERSION: Final = 1
_ROWS_PER_BATCH: Final = 4096
_YEAR_US: Final = 366 * 86_400 * 1_000_000
_CELLS: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("column", pa.string()),
        ("path", pa.string()),
        ("value", pa.string()),
        ("writetime", pa.int64()),
        ("ttl", pa.int64()),
        ("expires_at", pa.int64()),
    ]
)
_LATEST: Final = pa.schema([*_CELLS, ("is_live", pa.bool_())])
_HISTORY: Final = pa.schema([*_CELLS, ("replaced_at", pa.int64()), ("replaced_by", pa.string())])
_ROWS: Final = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("writetimes", pa.map_(pa.string(), pa.int64()))]
)


def cell_history(spark: SparkSession, options: Options, *, numbers: Numbers = "decimal") -> DataFrame:
    """Each value that each column of each row ever had: the key's columns, `column`, `path`, `value` (JSON; null for a
    tombstone), `writetime`, `ttl`, `expires_at`, `replaced_at` and `replaced_by` (both null if nothing replaced the
    value).

    If a column of the key has one of these names, the key is one struct `key`. Raises ConfigError, ArchiveReadError.
    """
    parsed = _parsed(options)
    table = _fetched(parsed)
    _refuse_counters(table.table)
    return _keyed(_folded(spark, parsed, table, _history_fold(table), _HISTORY), table.table, numbers)


def latest_cells(
    spark: SparkSession, options: Options, *, clock_s: int | None = None, numbers: Numbers = "decimal"
) -> DataFrame:
    """The newest cell of every column of every row, as Cassandra reconciles them: the key's columns, `column`, `path`,
    `value` (JSON; null for a tombstone), `writetime`, `ttl`, `expires_at`, and whether it `is_live` at `clock_s` (None:
    now).

    Cells that a deletion of their row, range, partition or collection shadows are left out. If a column of the key has
    one of these names, the key is one struct `key`. Raises ConfigError, ArchiveReadError.
    """
    parsed = _parsed(options)
    table = _fetched(parsed)
    _refuse_counters(table.table)
    now_s = int(time.time()) if clock_s is None else clock_s
    return _keyed(_folded(spark, parsed, table, _latest_fold(table, now_s), _LATEST), table.table, numbers)


def as_of(
    spark: SparkSession,
    options: Options,
    moment: Moment,
    *,
    writetimes: bool = False,
    partial: bool = False,
    numbers: Numbers = "decimal",
) -> DataFrame:
    """The table as it was at a moment: all that was written at or before it, by write time, and had not expired.

    With `writetimes`, there is one more column of this name: a map of column to microseconds, for columns that are one
    cell. `partial` also accepts a table that is older than the archive of one of the nodes, or that had `cdc = false`.
    Changes may then be missing. Raises ConfigError for a moment before the archive began or after the table was
    dropped, and if a column of the key and another column share a name; ArchiveReadError.
    """
    parsed, moment_us = _parsed(options), _micros(moment)
    table = _fetched(parsed, moment_us)
    table.require(moment_us, partial=partial)
    columns = (*table.table.primary_key, *table.table.value_columns)
    if writetimes and overlap([each.name for each in columns], ["writetimes"]):
        reason = f"{table.table.full_name} has a column of this name; read the write times with latest_cells"
        raise ConfigError.of("writetimes", reason)
    key_schema, value_schema = data_key_schema(table.table), data_value_schema(table.table)
    if shared := shared_names(key_schema, value_schema):
        reason = f"{table.table.full_name}: {shared_names_reason(shared)}; read the cells with latest_cells"
        raise ConfigError.of("table", reason)
    rows = _folded(spark, parsed, table, rows_fold(table.table, moment_us), _ROWS)
    key = RecordDecoder(table.table.full_name, [(_VERSION, key_schema)], numbers)
    value = RecordDecoder(table.table.full_name, [(_VERSION, value_schema)], numbers)
    version = F.lit(_VERSION)
    decoded = rows.select(
        key.decode(F.col("key"), version).alias("key"),
        value.decode(F.col("value"), version).alias("value"),
        "writetimes",
    )
    finished = decoded.select(
        key.finish(F.col("key")).alias("key"), value.finish(F.col("value")).alias("value"), "writetimes"
    )
    # a table of keys only repeats its key in the value
    names = [each for each in value.names if each not in key.names]
    return finished.select(
        *_fields("key", key.names), *_fields("value", names), *(["writetimes"] if writetimes else [])
    )


def _parsed(options: Options) -> CommitLogOptions:
    """The parsed options. Damaged segments fail by default, because results from them would be silently wrong."""
    texts = option_texts(options)
    if "damagedsegments" not in {name.lower() for name in texts}:
        texts["damagedSegments"] = "fail"
    return CommitLogOptions.from_mapping(texts)


def _fetched(options: CommitLogOptions, moment_us: int | None = None) -> ArchivedTable:
    from spark_bridge.commitlog.archived_table import ArchivedTable

    return ArchivedTable.fetch(options, moment_us)


def _folded(
    spark: SparkSession, options: CommitLogOptions, table: ArchivedTable, fold: Fold, schema: pa.Schema
) -> DataFrame:
    given = options.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)
    texts = {name: str(value) for name, value in given.items()}
    changes = commit_log(spark, {**texts, "values": "cql", "droppedColumns": "show"})
    mine = changes.where(F.col("table_id") == str(table.table.table_id)).select(*CHANGE_COLUMNS)
    divided = mine.repartition("partition_key").sortWithinPartitions("partition_key")
    return divided.mapInArrow(fold, from_arrow_schema(schema))


def _keyed(cells: DataFrame, table: TableMetadata, numbers: Numbers) -> DataFrame:
    """The cells with the key's columns instead of its bytes; with one struct `key` if one of their names is taken."""
    key = RecordDecoder(table.full_name, [(_VERSION, data_key_schema(table))], numbers)
    others = [each for each in cells.columns if each != "key"]
    decoded = cells.select(key.decode(F.col("key"), F.lit(_VERSION)).alias("key"), *others)
    finished = decoded.select(key.finish(F.col("key")).alias("key"), *others)
    shown = [F.col("key")] if overlap(key.names, others) else _fields("key", key.names)
    return finished.select(*shown, *others)


def overlap(names: Iterable[str], others: Iterable[str]) -> bool:
    """True when one of the names is among the others; Spark does not distinguish upper and lower case."""
    return not {each.lower() for each in names}.isdisjoint(each.lower() for each in others)


def _fields(struct: str, names: Sequence[str]) -> list[Column]:
    return [F.col(struct).getField(each).alias(each) for each in names]


def rows_fold(table: TableMetadata, moment_us: int) -> Fold:
    """A fold of changes to the rows that SELECT would have returned at the moment."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[_Row]:
        now_s = moment_us // 1_000_000
        keys, values = KeyBytes(table), RowValues(table)
        same = EqualValues(table, {each.name: each.type for each in table.value_columns})
        write = record_writer(data_value_schema(table))
        for partition_key, changes in partitions_of(batches):
            partition = Partition(keys.covers, is_counter=table.is_counter)
            for change in same.unified(changes):
                partition.add(change, moment_us)
            remaining = [values.without_dropped(each) for each in partition.rows()]
            for parts in _shown(remaining, now_s):
                row, times = values.values(parts, now_s)
                key = keys.avro(partition_key, parts[0].clustering)
                # a table of keys only repeats its key in the value
                yield key, write(row) if row else key, list(times.items())

    return lambda batches: _batches(rows(batches), _ROWS)


def _shown(remaining: Sequence[RemainingRow], now_s: int) -> Iterator[list[RemainingRow]]:
    """Each visible row together with the static row; only the static row if no other row is visible."""
    statics = [each for each in remaining if each.clustering is STATIC and each.is_visible(now_s)]
    rows = [each for each in remaining if each.clustering is not STATIC and each.is_visible(now_s)]
    if rows:
        yield from ([each, *statics] for each in rows)
    elif statics:
        yield statics


def _latest_fold(table: ArchivedTable, now_s: int) -> Fold:
    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[_Row]:
        keys, texts, values = KeyBytes(table.table), _Texts(table.columns), RowValues(table.table)
        same = EqualValues(table.table, table.columns)
        for partition_key, changes in partitions_of(batches):
            partition = Partition(keys.covers)
            for change in same.unified(changes):
                partition.add(change)
            for row in map(values.without_dropped, partition.rows()):
                key = keys.avro(partition_key, row.clustering)
                for (column, path), cell in row.cells.items():
                    shown = texts.of(column, path, cell.value)
                    expires_at = cell.local_deletion_time if cell.ttl else None
                    yield key, column, *shown, cell.writetime, cell.ttl, expires_at, is_live(cell, now_s)

    return lambda batches: _batches(rows(batches), _LATEST)


def _history_fold(table: ArchivedTable) -> Fold:
    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[_Row]:
        keys, texts = KeyBytes(table.table), _Texts(table.columns)
        same = EqualValues(table.table, table.columns)
        for partition_key, changes in partitions_of(batches):
            history = PartitionHistory(keys.covers)
            for change in same.unified(changes):
                history.add(change)
            for each in history.versions():
                cell = each.cell
                shown = texts.of(each.column, each.path, cell.value)
                expires_at = cell.local_deletion_time if cell.ttl else None
                key = keys.avro(partition_key, each.clustering)
                end = each.replaced_at, each.replaced_by
                yield key, each.column, *shown, cell.writetime, cell.ttl, expires_at, *end

    return lambda batches: _batches(rows(batches), _HISTORY)


@dataclass(slots=True)
class _Texts:
    """Converts paths and values to JSON text, by the newest known type of each column."""

    types: Mapping[str, CqlType]
    known: dict[str, CellTexts] = field(default_factory=dict)

    def of(self, column: str, path: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
        texts = self.known.get(column)
        if texts is None:
            texts = self.known[column] = CellTexts(self.types[column])
        return texts.path(path), texts.value(path, value)


def _batches(rows: Iterable[_Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    found: list[_Row] = []
    for row in rows:
        found.append(row)
        if len(found) >= _ROWS_PER_BATCH:
            yield _batch(found, schema)
            found = []
    yield _batch(found, schema)


def _batch(rows: Sequence[_Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(each, field.type) for each, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _refuse_counters(table: TableMetadata) -> None:
    if table.is_counter:
        reason = f"{table.full_name} counts, and each of its cells is one node's share: as_of adds them up"
        raise ConfigError.of("table", reason)


def _micros(moment: Moment) -> int:
    """A moment in microseconds since the epoch. Raises ConfigError."""
    if isinstance(moment, int) and not isinstance(moment, bool):
        if moment > time.time_ns() // 1000 + _YEAR_US:
            raise ConfigError.of("moment", f"{moment} is more than a year ahead; give microseconds since the epoch")
        return moment
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError as error:
            raise ConfigError.of("moment", f"{moment!r} is no time in ISO 8601") from error
    if not isinstance(moment, datetime):
        reason = f"{moment!r:.50} is no moment; give a datetime with a zone, ISO 8601, or microseconds as an int"
        raise ConfigError.of("moment", reason)
    if moment.tzinfo is None:
        raise ConfigError.of("moment", f"{moment.isoformat()} has no zone")
    seconds = int(moment.replace(microsecond=0).timestamp())
    return seconds * 1_000_000 + moment.microsecond
