"""TableVersions: the definitions that one table had under its id, and the choice of the one for a mutation.

A mutation has the names of its columns. It has neither their types nor the table's `cdc` option. Two sources show
these:

- The log. A change of the schema is itself a mutation of `system_schema`, in the same log as the writes before and
  after it. If nothing is missing in between, the log gives the exact position of the change.
- Time. The node says when a definition was written, and until when it was the current one.

If neither source decides, a mutation counts as written with `cdc = true`. Pure.

Cassandra source: o.a.c.schema.SchemaKeyspace, o.a.c.db.SystemKeyspace.updateSchemaVersion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from change_agent.db.marshal import fixed_length
from schemas.cql_type import CqlType, NativeType, is_multi_cell
from schemas.table_metadata import ColumnKind, ColumnMetadata, DroppedColumn, TableMetadata

__all__ = ["LogEvidence", "TableVersion", "TableVersions", "WrittenWhen"]

# How long a write may have been under way when `cdc` changed: Cassandra gives up on writes after 2 s by default.
_IN_FLIGHT_US: Final = 10_000_000
# Tolerance for the clocks of nodes and agent, and for the sync period between an entry and the index that covers it.
_MARGIN_US: Final = 15_000_000

_Layout = tuple[bool, bool, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """One definition. `since_us`: write time of the statement that made it (microseconds); 0 if not known.

    `confirmed_us`: the last time (microseconds, the agent's clock) when the node confirmed it as the present
    definition. None: it is the present definition. 0: the node never confirmed it.
    """

    table: TableMetadata
    since_us: int
    confirmed_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvidence:
    """Evidence of the log: the last definition before a mutation is the one of `since_us`.

    `settled`: the node certainly used this definition for the mutation.
    """

    since_us: int
    settled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenWhen:
    """Time of a mutation (microseconds): its own lowest write time, which a client may choose, and two bounds.

    `confirmed_us` is the time when the node last confirmed the present definitions.
    """

    written_us: int
    earliest_us: int
    latest_us: int
    confirmed_us: int


@final
class TableVersions:
    """The definitions of one table id, at least one. `newest` is the last; `differ` is True if the choice matters."""

    def __init__(self, versions: Sequence[TableVersion]) -> None:
        self._versions: Final = sorted(versions, key=lambda each: each.since_us)
        self.newest: Final = self._versions[-1].table
        self._is_contested: Final = len(self._versions) > 1 and _are_contested([each.table for each in self._versions])
        self.differ: Final = self._is_contested or len({each.table.cdc for each in self._versions}) > 1
        self._made: Final[dict[tuple[int, bool], TableMetadata]] = {}

    def is_last(self, since_us: int, when: WrittenWhen) -> bool:
        """True if the definition of `since_us` is the newest one, and the node still had it after `when.latest_us`."""
        newest = self._versions[-1]
        return newest.since_us == since_us and newest.confirmed_us is None and when.confirmed_us >= when.latest_us

    def definitions(self, when: WrittenWhen, evidence: LogEvidence | None) -> tuple[TableMetadata, ...]:
        """The definition for a mutation, followed by others to try if the bytes do not fit it.

        All of them have the same `cdc`: True if the mutation has to be published.
        """
        at = self._at(when, evidence)
        captured = self._is_captured(at, when, evidence)
        if not self._is_contested:
            return (self._definition(len(self._versions) - 1, captured),)
        order = [at, *(index for index in reversed(range(len(self._versions))) if index != at)]
        return tuple(self._definition(index, captured) for index in order)

    def _at(self, when: WrittenWhen, evidence: LogEvidence | None) -> int:
        time_us = min(max(when.written_us, when.earliest_us), when.latest_us) if evidence is None else evidence.since_us
        before = [index for index, each in enumerate(self._versions) if each.since_us <= time_us]
        return before[-1] if before else 0

    def _is_captured(self, at: int, when: WrittenWhen, evidence: LogEvidence | None) -> bool:
        version = self._versions[at]
        if version.table.cdc:
            return True
        if evidence is not None:
            was_captured = at == 0 or self._versions[at - 1].table.cdc
            in_flight = evidence.since_us - _IN_FLIGHT_US < when.written_us <= evidence.since_us
            return was_captured and (in_flight or not evidence.settled)
        if when.earliest_us < version.since_us + _MARGIN_US:
            return True
        if self.is_last(version.since_us, when):
            return False
        until_us = when.confirmed_us if version.confirmed_us is None else version.confirmed_us
        return when.latest_us > until_us - _MARGIN_US

    def _definition(self, at: int, captured: bool) -> TableMetadata:
        """A definition with this `cdc`.

        Equal calls return the same object, because callers cache values for each object.
        """
        table = self._made.get((at, captured))
        if table is None:
            # Key columns have their newest names: the connector reads the row by these names.
            newest = self.newest
            table = self._made[at, captured] = replace(
                self._versions[at].table,
                cdc=captured,
                name=newest.name,
                partition_key=newest.partition_key,
                clustering_key=newest.clustering_key,
            )
        return table


def _layouts(table: TableMetadata) -> dict[tuple[ColumnKind, str], _Layout]:
    columns: list[ColumnMetadata | DroppedColumn] = [*table.dropped_columns, *table.value_columns]
    return {(each.kind, each.name): _layout(each.type) for each in columns}


def _layout(cql_type: CqlType) -> _Layout:
    """The properties that decide the layout of a column's cells."""
    return is_multi_cell(cql_type), cql_type == NativeType("counter"), fixed_length(cql_type)


def _are_contested(tables: Sequence[TableMetadata]) -> bool:
    """True if the last definition cannot decode mutations that were written with another one."""
    newest = _layouts(tables[-1])
    return any(newest.get(column) != layout for table in tables for column, layout in _layouts(table).items())
