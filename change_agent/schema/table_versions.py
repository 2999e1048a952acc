"""TableVersions: the definitions that one table had under its id, and the one that explains a mutation.

A mutation names its columns. It has neither their types nor whether the table had `cdc = true`. Two sources show
this:

- The log. A change of the schema is itself a mutation of `system_schema`, in the same log as the writes before and
  after it. If nothing is missing in between, the log gives the exact position of the change.
- Time. The node says when a definition was written, and until when it was the current one.

If it is not known, a mutation counts as written with `cdc = true`. Pure.

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

# A write that was under way when the flag changed: Cassandra gives up on writes after 2 s by default.
_IN_FLIGHT_US: Final = 10_000_000
# For the clocks of nodes and agent, and for the sync period between an entry and the index that covers it.
_MARGIN_US: Final = 15_000_000

_Layout = tuple[bool, bool, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """One definition. `since_us`: write time of the statement that made it (microseconds), 0 when not known.

    `confirmed_us`: the last moment (microseconds, the agent's clock) when the node said that it is the present one; None
    when it is, 0 when the node never said it.
    """

    table: TableMetadata
    since_us: int
    confirmed_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvidence:
    """The log says that this definition is the last before a mutation. `settled`: the node used it by then, for sure."""

    since_us: int
    settled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenWhen:
    """When a mutation was written (microseconds): its own lowest write time, which a client may choose, and bounds.

    `confirmed_us` is when the node last said which definitions are the present ones.
    """

    written_us: int
    earliest_us: int
    latest_us: int
    confirmed_us: int


@final
class TableVersions:
    """The definitions of one table id, never empty. `newest` is the last; `differ` says whether the choice matters."""

    def __init__(self, versions: Sequence[TableVersion]) -> None:
        self._versions: Final = sorted(versions, key=lambda each: each.since_us)
        self.newest: Final = self._versions[-1].table
        self._is_contested: Final = len(self._versions) > 1 and _are_contested([each.table for each in self._versions])
        self.differ: Final = self._is_contested or len({each.table.cdc for each in self._versions}) > 1
        self._made: Final[dict[tuple[int, bool], TableMetadata]] = {}

    def is_last(self, since_us: int, when: WrittenWhen) -> bool:
        """True when the definition of `since_us` is the last that there was before anything that `when` says."""
        newest = self._versions[-1]
        return newest.since_us == since_us and newest.confirmed_us is None and when.confirmed_us >= when.latest_us

    def definitions(self, when: WrittenWhen, evidence: LogEvidence | None) -> tuple[TableMetadata, ...]:
        """The definition that fits a mutation, followed by others to try if the bytes do not fit it.

        `cdc` of all of them says whether the mutation is to be published.
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
        """The same object for the same answer, for others keep what they worked out of it."""
        table = self._made.get((at, captured))
        if table is None:
            # Keys have today's names: the connector reads the row by these names.
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
    """The values that decide how the cells of a column are laid out."""
    return is_multi_cell(cql_type), cql_type == NativeType("counter"), fixed_length(cql_type)


def _are_contested(tables: Sequence[TableMetadata]) -> bool:
    """True when the last definition cannot read what was written under another."""
    newest = _layouts(tables[-1])
    return any(newest.get(column) != layout for table in tables for column, layout in _layouts(table).items())
