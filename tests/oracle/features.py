"""The contents of random mutations: a count for each feature that a mutation of the commit log can have.

The counts use the lines that the readers print, the schema that they read with, and the mutation's bytes (for the names
of columns that no longer exist). Printed values do not show some encodings (cells that use their row's times, subsets
of columns): there the count follows the rule by which the writer chooses the encoding: UnfilteredSerializer,
Cell.Serializer.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, cast
from uuid import UUID

from change_agent.db.marshal import VARIABLE_LENGTH, fixed_length
from schemas.cql_type import CqlType, TupleType, UserType, VectorType
from schemas.table_metadata import ColumnMetadata, TableMetadata

__all__ = ["FEATURES", "FeatureCounts", "absence", "count_features", "feature_table"]

_Json = dict[str, object]
_LARGE_SET: Final = 64


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a table. `columns` are the columns that all rows of its update name together.

    For a static row, they are the static columns that the header of its update names.
    """

    table: TableMetadata
    json: _Json
    columns: frozenset[str]

    @property
    def cells(self) -> list[_Json]:
        return cast(list[_Json], self.json["cells"])

    @property
    def clustering(self) -> list[str | None]:
        return cast(list[str | None], self.json["clustering"])

    @property
    def named(self) -> frozenset[str]:
        found = [*self.cells, *cast(list[_Json], self.json["complex_deletions"])]
        return frozenset(str(each["column"]) for each in found)

    @property
    def liveness(self) -> _Json | None:
        return cast(_Json | None, self.json["liveness"])

    @property
    def overwritten(self) -> frozenset[str]:
        """Multi-cell columns with a deletion of all older cells."""
        return frozenset(str(each["column"]) for each in cast(list[_Json], self.json["complex_deletions"]))

    def typed_cells(self) -> Iterable[tuple[CqlType, _Json]]:
        types = {column.name: column.type for column in self.table.value_columns}
        return ((types[str(cell["column"])], cell) for cell in self.cells if cell["column"] in types)


@dataclass(frozen=True)
class _Mutation:
    """One printed line, and the bytes of its mutation."""

    updates: Sequence[_Json]
    tables: Mapping[UUID, TableMetadata]
    payload: bytes

    @cached_property
    def rows(self) -> list[_Row]:
        return [row for update in self.updates for row in self._rows_of(update)]

    @cached_property
    def ranges(self) -> list[_Json]:
        return [each for update in self.updates for each in cast(list[_Json], update["range_tombstones"])]

    @cached_property
    def touched(self) -> list[TableMetadata]:
        return [self.tables[UUID(str(update["table_id"]))] for update in self.updates]

    def in_table(self, prefix: str) -> bool:
        return any(table.name.startswith(prefix) for table in self.touched)

    def names(self, prefix: bytes) -> bool:
        """Return whether a column with this prefix is named in a header, although it may no longer exist."""
        return any(bytes([len(name)]) + name in self.payload for name in _CHANGED_COLUMNS if name.startswith(prefix))

    def any_cell(self, holds: Callable[[_Row, _Json], bool]) -> bool:
        return any(holds(row, cell) for row in self.rows for cell in row.cells)

    def any_value(self, holds: Callable[[CqlType, _Json], bool]) -> bool:
        return any(holds(cql_type, cell) for row in self.rows for cql_type, cell in row.typed_cells())

    def _rows_of(self, update: _Json) -> Iterable[_Row]:
        table = self.tables[UUID(str(update["table_id"]))]
        regular = [_Row(table, each, frozenset()) for each in cast(list[_Json], update["rows"])]
        columns: frozenset[str] = frozenset().union(*(row.named for row in regular))
        yield from (_Row(table, row.json, columns) for row in regular)
        if update["static_row"] is not None:
            yield _Row(table, cast(_Json, update["static_row"]), self._static_columns(table))

    def _static_columns(self, table: TableMetadata) -> frozenset[str]:
        """The static columns in the header of the table's update. An update begins with the table's id."""
        start = self.payload.find(table.table_id.bytes)
        others = [self.payload.find(each.table_id.bytes, start) for each in self.touched if each is not table]
        update = self.payload[start : min((each for each in others if each >= 0), default=None)]
        names = [each.name for each in table.static_columns]
        return frozenset(name for name in names if bytes([len(name.encode())]) + name.encode() in update)


_CHANGED_COLUMNS: Final = (
    b"dropped_int",
    b"dropped_list",
    b"dropped_text",
    b"again_text",
    b"again_blob",
    b"grown_cells",
    b"grown_value",
)


def _with_ttl(times: _Json | None) -> bool:
    return times is not None and times["ttl"] != 0


def _is_boundary(mutation: _Mutation) -> bool:
    return any(
        before["end"] == after["start"] and before["end_inclusive"] != after["start_inclusive"]
        for update in mutation.updates
        for before, after in itertools.pairwise(cast(list[_Json], update["range_tombstones"]))
    )


def _uses_row_timestamp(row: _Row, cell: _Json) -> bool:
    return row.liveness is not None and row.liveness["timestamp"] == cell["timestamp"]


def _uses_row_ttl(row: _Row, cell: _Json) -> bool:
    liveness = row.liveness
    return (
        liveness is not None
        and _with_ttl(liveness)
        and liveness["ttl"] == cell["ttl"]
        and liveness["local_expiration_time"] == cell["local_deletion_time"]
    )


def _is_user_cell(cql_type: CqlType, cell: _Json) -> bool:
    return isinstance(cql_type, UserType) and cell["path"] is not None


def _is_vector(cql_type: CqlType, *, fixed: bool) -> bool:
    return isinstance(cql_type, VectorType) and (fixed_length(cql_type) != VARIABLE_LENGTH) is fixed


def _is_subset(row: _Row, *, large: bool) -> bool:
    return row.named < row.columns and (len(row.columns) >= _LARGE_SET) is large


def _is_reversed(columns: Sequence[ColumnMetadata]) -> bool:
    return any(column.reversed for column in columns)


FEATURES: Final[Mapping[str, Callable[[_Mutation], bool]]] = {
    "several tables": lambda m: len(m.updates) > 1,
    "compact table": lambda m: m.in_table("compact_"),
    "counter": lambda m: any(table.is_counter for table in m.touched),
    "static row": lambda m: any(update["static_row"] for update in m.updates),
    "static row alone": lambda m: any(update["static_row"] and not update["rows"] for update in m.updates),
    "partition deletion": lambda m: any(update["partition_deletion"] for update in m.updates),
    "row deletion": lambda m: any(row.json["deletion"] for row in m.rows),
    "row deletion and new cells": lambda m: any(row.json["deletion"] and row.cells for row in m.rows),
    "range: inclusive start": lambda m: any(each["start"] and each["start_inclusive"] for each in m.ranges),
    "range: exclusive start": lambda m: any(each["start"] and not each["start_inclusive"] for each in m.ranges),
    "range: inclusive end": lambda m: any(each["end"] and each["end_inclusive"] for each in m.ranges),
    "range: exclusive end": lambda m: any(each["end"] and not each["end_inclusive"] for each in m.ranges),
    "range: open start": lambda m: any(not each["start"] for each in m.ranges),
    "range: open end": lambda m: any(not each["end"] for each in m.ranges),
    "range: prefix of the clustering": lambda m: any(each["start"] == each["end"] != [] for each in m.ranges),
    "range: boundary of adjacent ones": _is_boundary,
    "row marker": lambda m: any(row.liveness for row in m.rows),
    "row marker alone": lambda m: any(row.liveness and not row.cells for row in m.rows),
    "cells without a row marker": lambda m: any(row.cells and not row.liveness for row in m.rows),
    "TTL of a row": lambda m: any(_with_ttl(row.liveness) for row in m.rows),
    "TTL of cells alone": lambda m: m.any_cell(lambda row, cell: _with_ttl(cell) and not _with_ttl(row.liveness)),
    "cell with its row's timestamp": lambda m: m.any_cell(_uses_row_timestamp),
    "cell with its row's TTL": lambda m: m.any_cell(_uses_row_ttl),
    "cell tombstone": lambda m: m.any_cell(lambda _, cell: cell["path"] is None and cell["value"] is None),
    "empty value": lambda m: m.any_cell(lambda _, cell: cell["value"] == ""),
    "elements added": lambda m: m.any_cell(
        lambda row, cell: (
            cell["path"] is not None and cell["value"] is not None and cell["column"] not in row.overwritten
        )
    ),
    "complex column overwritten": lambda m: m.any_cell(lambda row, cell: cell["column"] in row.overwritten),
    "element removed": lambda m: m.any_cell(lambda _, cell: cell["path"] is not None and cell["value"] is None),
    "user type that is not frozen": lambda m: m.any_value(_is_user_cell),
    "tuple": lambda m: m.any_value(lambda cql_type, _: isinstance(cql_type, TupleType)),
    "vector of fixed length": lambda m: m.any_value(lambda cql_type, _: _is_vector(cql_type, fixed=True)),
    "vector of variable length": lambda m: m.any_value(lambda cql_type, _: _is_vector(cql_type, fixed=False)),
    "reversed clustering": lambda m: any(row.clustering and _is_reversed(row.table.clustering_key) for row in m.rows),
    "empty clustering value": lambda m: any("" in row.clustering for row in m.rows),
    "absent clustering value": lambda m: any(None in row.clustering for row in m.rows),
    "column subset: bitmap": lambda m: any(_is_subset(row, large=False) for row in m.rows),
    "column subset: 64 and more": lambda m: any(_is_subset(row, large=True) for row in m.rows),
    "column dropped since": lambda m: m.names(b"dropped_"),
    "column re-added with another type": lambda m: m.names(b"again_"),
    "user type altered since": lambda m: m.names(b"grown_"),
    "view": lambda m: any(table.is_view for table in m.touched),
    "table with an index": lambda m: m.in_table("indexed"),
    "LWT (its paxos rows are skipped)": lambda m: m.in_table("conditional"),
}
"""A test for each feature, in the order of the report."""


@dataclass(slots=True)
class FeatureCounts:
    """The mutations of one Cassandra that were examined, and how many had each feature."""

    line: str
    version: int
    seed: int
    mutations: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def share(self, feature: str) -> float:
        """The share of the mutations with this feature."""
        return self.counts[feature] / self.mutations


def absence(feature: str, line: str) -> str | None:
    """The reason why a Cassandra line cannot have a feature in its mutations; None if it can."""
    if feature.startswith("vector") and not line.startswith("5."):
        return "vectors came with Cassandra 5.0"
    return None


def count_features(
    counts: FeatureCounts,
    keyspace: str,
    mutations: Iterable[tuple[str, bytes]],
    tables: Mapping[UUID, TableMetadata],
) -> None:
    """Add the mutations of one keyspace: the printed line and the bytes of each."""
    for line, payload in mutations:
        printed = json.loads(line)
        if printed["keyspace"] != keyspace:
            continue
        mutation = _Mutation(printed["updates"], tables, payload)
        counts.mutations += 1
        counts.counts.update(name for name, holds in FEATURES.items() if holds(mutation))


def feature_table(all_counts: Sequence[FeatureCounts]) -> list[str]:
    """One line for each feature and one column for each Cassandra; `-` if it is impossible, with the reason below."""
    width = max(map(len, FEATURES))
    heads = [f"{each.line} (v{each.version})" for each in all_counts]
    text = [" ".join([" " * width, *(f"{head:>19}" for head in heads)])]
    text.append(" ".join([f"{'random mutations':{width}}", *(f"{each.mutations:>19,}" for each in all_counts)]))
    reasons: dict[str, list[str]] = {}
    for feature in FEATURES:
        found = [f"{feature:{width}}"]
        for each in all_counts:
            reason = absence(feature, each.line)
            found.append(f"{'-':>19}" if reason else f"{each.counts[feature]:>11,} {each.share(feature):>6.1%}")
            if reason:
                reasons.setdefault(reason, []).append(f"{feature} on {each.line}")
        text.append(" ".join(found))
    text += [f"- {reason}: no {', '.join(where)}" for reason, where in reasons.items()]
    seeds = ", ".join(f"{each.line}: {each.seed}" for each in all_counts)
    return [*text, f"{sum(each.mutations for each in all_counts):,} random mutations; seeds {seeds}"]
