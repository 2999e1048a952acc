"""A table in the schema histories of an archive: its lives, its definitions, and since when the archive is complete."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final, NamedTuple
from uuid import UUID

from schemas.archived_schema import ArchivedDefinition, ArchivedSchema
from schemas.cql_type import CqlType
from schemas.errors import ConfigError
from schemas.system_schema import tables_of
from schemas.table_metadata import TableMetadata
from spark_bridge.commitlog.archive import ArchivedSegment, CommitLogArchive
from spark_bridge.commitlog.options import CommitLogOptions

__all__ = ["ArchivedTable", "iso_time"]

# From the epoch of uuids (1582-10-15) to that of Unix, in units of 100 ns.
_UUID_EPOCH: Final = 0x01B21DD213814000


class _Definition(NamedTuple):
    """A definition of a table, in the history of any node.

    `types_since_us` orders definitions that differ only in their user types.
    """

    since_us: int
    types_since_us: int
    table: TableMetadata
    archived: ArchivedDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedTable:
    """One table at a moment. `columns`: types of all columns that it ever had, by name. Times are microseconds.

    `first_began_us`: since when the archive has segments of at least one node. `began_us`: since when it has those of
    all nodes; `last_node` is the node that came last. `created_us`: when the table was made, or its first known
    definition. `untracked_us`: when the table first had `cdc = false`, up to the moment (0: time not known); None if it
    never had. `dropped_after_us`: the last time at which a node had the table, if no node has it now; None if a node
    has it, or if the time is not known.
    """

    table: TableMetadata
    columns: Mapping[str, CqlType]
    first_began_us: int
    began_us: int
    last_node: str
    created_us: int
    untracked_us: int | None
    dropped_after_us: int | None

    @classmethod
    def fetch(cls, options: CommitLogOptions, moment_us: int | None = None) -> ArchivedTable:
        """The table as it was at the moment (None: now). Raises ConfigError, ArchiveReadError."""
        if options.table is None:
            raise ConfigError.of("table", "is missing: name the table as KEYSPACE.TABLE")
        archive = CommitLogArchive(options.archive_url)
        names: set[str] = set()
        found: dict[UUID, list[_Definition]] = defaultdict(list)
        began_us: dict[str, int] = {}
        for node in archive.nodes():
            if options.node_ids is not None and node not in options.node_ids:
                continue
            schema = archive.schema(node)
            began_us[node] = _began_ms(schema, archive.segments(node)) * 1000
            for each in schema.definitions:
                table = tables_of(each.rows)[each.table_id]
                names.add(table.full_name)
                if table.full_name == options.table:
                    found[each.table_id].append(_Definition(each.since_us, each.types_since_us, table, each))
        if not found:
            near = " or ".join(get_close_matches(options.table, sorted(names), cutoff=0.8))
            advice = f"did you mean {near}?" if near else "check keyspace and table, and the option archiveUrl"
            raise ConfigError.of("table", f"{options.table} is in no schema history of the archive; {advice}")
        lives = {each: _created_us(each, min(made.since_us for made in found[each])) for each in found}
        table_id = _life_at(lives, moment_us)
        definitions = sorted(found[table_id], key=lambda each: (each.since_us, each.types_since_us))
        known = [each for each in definitions if moment_us is None or max(each[:2]) <= moment_us]
        table = (known or definitions[:1])[-1].table
        if table.is_view:
            raise ConfigError.of("table", f"{options.table} is a materialized view; read its table")
        last_node = max(began_us, key=began_us.__getitem__)
        return cls(
            table=table,
            columns=_types(each.table for each in definitions),
            first_began_us=min(began_us.values()),
            began_us=began_us[last_node],
            last_node=last_node,
            created_us=lives[table_id],
            untracked_us=next((each.since_us for each in known if not each.table.cdc), None),
            dropped_after_us=_dropped_after_us([each.archived for each in definitions]),
        )

    def require(self, moment_us: int, *, partial: bool) -> None:
        """Raise ConfigError if the archive may lack data that the table had at the moment.

        With `partial`, this is an error only before the archive began, or after the table was dropped.
        """
        if moment_us < self.first_began_us:
            reason = (
                f"{iso_time(moment_us)} is before the archive began ({iso_time(self.first_began_us)}): "
                "the archive does not have it"
            )
            raise ConfigError.of("moment", reason)
        if self.dropped_after_us is not None and moment_us > self.dropped_after_us:
            reason = (
                f"{self.table.full_name} was dropped at or after {iso_time(self.dropped_after_us)}, and is not known to have been "
                f"there at {iso_time(moment_us)}: give an earlier moment"
            )
            raise ConfigError.of("moment", reason)
        if self.created_us < self.began_us and not partial:
            reason = (
                f"{self.table.full_name} was made at {iso_time(self.created_us)}, before the archive of node {self.last_node} "
                f"began ({iso_time(self.began_us)}): what that node alone had before is not in it, unless it joined the cluster "
                "then; partial=True shows what was written since, and what other nodes have"
            )
            raise ConfigError.of("moment", reason)
        if self.untracked_us is not None and not partial:
            at = f" at {iso_time(self.untracked_us)}" if self.untracked_us else ""
            reason = (
                f"{self.table.full_name} had cdc = false{at}: the archive has only segments with a change of a table with "
                "cdc = true, so some changes may be missing; partial=True shows the table without them"
            )
            raise ConfigError.of("table", reason)


def iso_time(time_us: int) -> str:
    """A time as text, for messages."""
    try:
        return datetime.fromtimestamp(time_us / 1_000_000, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return f"{time_us} us"


def _dropped_after_us(definitions: Sequence[ArchivedDefinition]) -> int | None:
    if any(each.present for each in definitions):
        return None
    return max(each.confirmed_ms for each in definitions) * 1000 or None


def _began_ms(schema: ArchivedSchema, segments: Sequence[ArchivedSegment]) -> int:
    """Since when the archive has all segments of a node.

    If the first segment is missing, a life cycle rule of the store has deleted the oldest ones. The result is then the
    time when the oldest remaining segment was archived. Its id is not this time: Cassandra counts ids up from the
    node's start.
    """
    if segments and (schema.first_segment is None or segments[0].segment_id <= schema.first_segment):
        return schema.began_ms
    archived_ms = segments[0].modified_ms if segments else None
    return max(schema.began_ms, time.time_ns() // 1_000_000 if archived_ms is None else archived_ms)


def _types(definitions: Iterable[TableMetadata]) -> dict[str, CqlType]:
    found: dict[str, CqlType] = {}
    for each in definitions:
        found |= {column.name: column.type for column in each.dropped_columns}
        found |= {column.name: column.type for column in each.value_columns}
    return found


def _life_at(created_us: Mapping[UUID, int], moment_us: int | None) -> UUID:
    """Id of the newest table of this name at the moment (None: now); the first one if there was none yet."""
    at_us = max(created_us.values()) if moment_us is None else moment_us
    born = [each for each in created_us if created_us[each] <= at_us]
    return max(born, key=created_us.__getitem__) if born else min(created_us, key=created_us.__getitem__)


def _created_us(table_id: UUID, first_us: int) -> int:
    """The time inside the id if Cassandra made the id; otherwise the time of the first definition."""
    return (table_id.time - _UUID_EPOCH) // 10 if table_id.version == 1 else first_us
