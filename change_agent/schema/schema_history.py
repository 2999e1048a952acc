"""SchemaHistory: every definition of every table that the agent has known, by table id and time, also after DROP.

It has two sources: the node's answers, and the mutations of `system_schema` in the log. Everything is stored in the
working directory (change_agent.schema.schema_store), so that the next process has it without asking the node.
"""

from __future__ import annotations

import json
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from change_agent.schema.schema_mutations import SchemaChange, TableChange
from change_agent.schema.schema_rows import altered, dated_types, is_whole, rows_by_table
from change_agent.schema.schema_store import Definition, LogPlace, SchemaStore, UserTypeRow, read_definitions
from change_agent.schema.table_versions import TableVersion, TableVersions
from change_agent.sqlite_file import DamagedFileError, UnwritableFileError, set_aside
from schemas.archived_schema import ArchivedDefinition, ArchivedPlace, ArchivedSchema
from schemas.system_schema import Row, SystemSchema, SystemSchemaError, tables_of
from schemas.table_metadata import TableMetadata

__all__ = ["NodeSchema", "SchemaHistory", "read_newest_tables"]

_log: Final = logging.getLogger(__name__)
# The copy that earlier versions of the agent kept.
_OLD_COPY: Final = "node-schema.json"
# An older confirmation is still true; storing each would cost more than it is worth.
_CONFIRM_INTERVAL_MS: Final = 5_000
# Maximum for one table. Only places after the oldest unfinished segment are needed; for older ones, time decides.
_PLACES_KEPT: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSchema:
    """A node's answer about itself: its host id and its schema. Rows may have `written_us`, their write time."""

    node_id: UUID
    schema: SystemSchema


class SchemaHistory:
    """Keeps definitions. Its owner ensures that only one thread at a time uses it.

    `tables` has the newest definitions by id: first of the tables that the node no longer has, then of those that it
    has, each sorted by time. So if several tables have the same name, the last one is the present table. `versions` has
    all definitions of each table for which the choice of the definition matters.
    """

    def __init__(self, directory: Path) -> None:
        self._directory: Final = directory
        self._store: SchemaStore | None = None
        self._definitions: Final[dict[UUID, list[Definition]]] = defaultdict(list)
        self._parsed: Final[dict[tuple[UUID, int, int], TableMetadata]] = {}
        self._types: Final[dict[tuple[str, str, int], UserTypeRow]] = {}
        # Changes of an `add` that are not written yet: user types, and definitions to store (True) or to remove (False).
        self._unstored_types: Final[dict[tuple[str, str, int], UserTypeRow]] = {}
        self._unstored: Final[list[tuple[Definition, bool]]] = []
        self._stored_confirmed_ms = 0
        self.confirmed_at_ms = 0
        self.node_id: UUID | None = None
        self.tables: Mapping[UUID, TableMetadata] = {}
        self.versions: Mapping[UUID, TableVersions] = {}
        self.places: list[LogPlace] = []

    def load(self) -> None:
        """Read the stored history. A damaged store is set aside and logged, and a new one begins.

        Raises UnwritableFileError, because a full disk does not mean that the stored state is damaged. `load` may then
        be called again.
        """
        try:
            self._load()
        except UnwritableFileError:
            self._forget()
            raise
        except (DamagedFileError, SystemSchemaError, ValueError, KeyError, TypeError) as error:
            self._begin_anew(str(error))
        if self.node_id is None:
            self._take_over_old_copy()

    def close(self) -> None:
        """Store the time of the last confirmation, and close the file."""
        if self._store is not None:
            try:
                self._store_confirmed()
            except UnwritableFileError as error:
                _log.warning("%s; the next start reads the schema from the node", error)
            self._store.close()
            self._store = None

    def add(self, read: NodeSchema) -> None:
        """Take the node's present definitions, and keep those that it no longer has.

        Raises SystemSchemaError, UnwritableFileError.
        """
        found = rows_by_table(read.schema)
        parsed = tables_of(read.schema)
        changed: list[Definition] = []
        gone: list[Definition] = []
        for definitions in self._definitions.values():
            for each in definitions:
                if each.present and (each.table_id not in found or not _is_same(each, found[each.table_id].rows)):
                    each.present = False
                    each.confirmed_ms = _unless_to_come(self.confirmed_at_ms)
                    changed.append(each)
        for table_id, rows in found.items():
            if not any(each.present for each in self._definitions[table_id]):
                definition = Definition(
                    table_id=table_id,
                    since_us=rows.since_us,
                    types_since_us=rows.types_since_us,
                    rows=rows.rows,
                    present=True,
                )
                gone += self._replace(definition)
                changed.append(definition)
                self._parsed[definition.key] = parsed[table_id]
        self._unstored_types.update({each.key: each for each in _user_types(read.schema)})
        self._unstored.extend([(each, True) for each in changed] + [(each, False) for each in gone])
        self._store_added()
        if read.node_id != self.node_id:
            self._opened().set_meta("node_id", str(read.node_id))
            self.node_id = read.node_id

    def confirm(self, time_ms: int) -> None:
        """Note that the schema added last was the node's schema at `time_ms` (since the epoch)."""
        # It may be an earlier time than before: the clock was set back.
        self.confirmed_at_ms = time_ms
        if abs(time_ms - self._stored_confirmed_ms) >= _CONFIRM_INTERVAL_MS:
            self._store_confirmed()

    def note(self, change: SchemaChange, segment_id: int, position: int) -> bool:
        """Store a change of the schema at this position of the log. Return True if it added definitions.

        Raises SystemSchemaError, UnwritableFileError.
        """
        # The node may have returned a schema while the disk was full. It is not used before it is stored.
        self._store_added()
        self._add_types(
            UserTypeRow(keyspace=each.keyspace, name=each.name, since_us=each.since_us, row=each.row)
            for each in change.types
        )
        definitions = [made for each in change.tables if (made := self._altered(each)) is not None]
        if definitions:
            parsed = {each.key: tables_of(each.rows)[each.table_id] for each in definitions}
            self._opened().put_definitions(definitions)
            for each in definitions:
                self._definitions[each.table_id].append(each)
            self._parsed.update(parsed)
            self._derive({each.table_id for each in definitions})
        known = [each for each in change.tables if each.table_id in self._definitions]
        places = [
            LogPlace(segment_id=segment_id, position=position, table_id=each.table_id, since_us=each.since_us)
            for each in known
        ]
        self._opened().put_places(places)
        taken = {(each.segment_id, each.position, each.table_id) for each in places}
        self.places = [each for each in self.places if (each.segment_id, each.position, each.table_id) not in taken]
        self.places += places
        self._leave_newest_places({each.table_id for each in places})
        return bool(definitions)

    def settle(self, places: Iterable[LogPlace]) -> None:
        """Note that all entries that are read from now on were written with the definitions of these places."""
        for each in places:
            each.settled = True
        self._opened().put_places(places)

    def forget_places_before(self, segment_id: int, position: int) -> None:
        """Remove the places up to this position.

        A part of the log is missing there, so they prove nothing for later entries.
        """
        self.places = [each for each in self.places if (each.segment_id, each.position) > (segment_id, position)]
        self._opened().remove_places_before(segment_id, position)

    def archived(self, node_id: UUID, began_ms: int) -> ArchivedSchema:
        """The whole history, for an archive of this node's segments that began at `began_ms` (since the epoch)."""
        return ArchivedSchema(
            node_id=node_id,
            began_ms=began_ms,
            definitions=tuple(
                ArchivedDefinition(
                    table_id=each.table_id,
                    since_us=each.since_us,
                    types_since_us=each.types_since_us,
                    confirmed_ms=each.confirmed_ms,
                    present=each.present,
                    rows=each.rows,
                )
                for definitions in self._definitions.values()
                for each in definitions
            ),
            places=tuple(
                ArchivedPlace(
                    segment_id=each.segment_id, position=each.position, table_id=each.table_id, since_us=each.since_us
                )
                for each in self.places
            ),
        )

    def _leave_newest_places(self, table_ids: Iterable[UUID]) -> None:
        for table_id in table_ids:
            mine = sorted((each.segment_id, each.position) for each in self.places if each.table_id == table_id)
            if len(mine) > _PLACES_KEPT:
                first = mine[-_PLACES_KEPT // 2]
                old = [
                    each
                    for each in self.places
                    if each.table_id == table_id and (each.segment_id, each.position) < first
                ]
                self.places = [each for each in self.places if each not in old]
                self._opened().remove_places(old)

    def _opened(self) -> SchemaStore:
        if self._store is None:
            self._store = SchemaStore(self._directory)
        return self._store

    def _load(self) -> None:
        store = self._opened()
        for definition in store.definitions():
            self._definitions[definition.table_id].append(definition)
            self._parse(definition)
        self._types.update({each.key: each for each in store.user_types()})
        self.places = store.places()
        node_id = store.meta("node_id")
        self.node_id = None if node_id is None else UUID(node_id)
        self._stored_confirmed_ms = int(store.meta("confirmed_ms") or 0)
        self.confirmed_at_ms = _unless_to_come(self._stored_confirmed_ms)
        self._derive(self._definitions)

    def _forget(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
        self._definitions.clear()
        self._parsed.clear()
        self._types.clear()
        self.places, self.node_id, self.confirmed_at_ms = [], None, 0
        self.tables, self.versions = {}, {}

    def _begin_anew(self, reason: str) -> None:
        self._forget()
        path = self._directory / "schema.sqlite"
        set_aside(path)
        self._opened()
        _log.error(
            "%s is damaged (%s): set aside as %s.damaged, the schema is read from the node again; changes of tables that were dropped "
            "before now may be parked, and changes of tables whose cdc was off for a time may be published",
            path,
            reason,
            path.name,
        )

    def _take_over_old_copy(self) -> None:
        path = self._directory / _OLD_COPY
        try:
            stored = json.loads(path.read_bytes())
            for schema in (*stored["dropped"], stored["schema"]):
                self.add(NodeSchema(node_id=UUID(stored["node_id"]), schema=schema))
            self.confirm(path.stat().st_mtime_ns // 1_000_000)
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError, SystemSchemaError) as error:
            _log.error("%s is damaged (%s): the schema is read from the node again; delete the file", path, error)
            return
        path.unlink()
        _log.info("took over %s", path)

    def _store_confirmed(self) -> None:
        if self.confirmed_at_ms != self._stored_confirmed_ms:
            self._opened().set_meta("confirmed_ms", str(self.confirmed_at_ms))
            self._stored_confirmed_ms = self.confirmed_at_ms

    def _store_added(self) -> None:
        """Store the types and definitions of the node's answer, then use them. Raises UnwritableFileError."""
        self._add_types(self._unstored_types.values())
        self._unstored_types.clear()
        if self._unstored:
            self._opened().put_definitions(
                [each for each, stays in self._unstored if stays], [each for each, stays in self._unstored if not stays]
            )
            self._derive({each.table_id for each, _ in self._unstored})
            self._unstored.clear()

    def _replace(self, definition: Definition) -> list[Definition]:
        """Add a definition. Return the definitions that it replaces and that have to be removed from the store."""
        others = self._definitions[definition.table_id]
        # A definition without a time is from an earlier version of the agent. The node returns the same one with its
        # time.
        undated = [each for each in others if each.since_us == 0 and _is_same(each, definition.rows)]
        gone = [each for each in others if each in undated or each.key == definition.key]
        self._definitions[definition.table_id] = [*(each for each in others if each not in gone), definition]
        for each in gone:
            self._parsed.pop(each.key, None)
        return [each for each in gone if each.key != definition.key]

    def _altered(self, change: TableChange) -> Definition | None:
        """The definition after a change; None if it is known already, or if no definition to change is known."""
        known = sorted(self._definitions.get(change.table_id, ()), key=lambda each: each.since_us)
        if any(each.since_us == change.since_us for each in known):
            return None
        before = [each for each in known if each.since_us < change.since_us]
        base = None
        if not is_whole(change, before[-1].rows if before else None):
            nearest = before[-1:] or known[:1]
            if not nearest:
                return None
            base = nearest[0].rows
        rows = altered(base, change, self._types_at(change.keyspace, change.since_us))
        return Definition(table_id=change.table_id, since_us=change.since_us, types_since_us=0, rows=rows)

    def _types_at(self, keyspace: str, time_us: int) -> dict[str, Row]:
        """A keyspace's user types at a time, by name. A type that is known only from later has its first definition."""
        types: dict[str, Row] = {}
        for each in sorted(self._types.values(), key=lambda each: each.since_us):
            if each.keyspace == keyspace and (each.since_us <= time_us or each.name not in types):
                types[each.name] = each.row
        return types

    def _add_types(self, types: Iterable[UserTypeRow]) -> None:
        """Store the user types that are not known yet, then use them. Raises UnwritableFileError."""
        new = {each.key: each for each in types if self._types.get(each.key) != each}
        if new:
            self._opened().put_user_types(list(new.values()))
            self._types.update(new)

    def _parse(self, definition: Definition) -> None:
        self._parsed[definition.key] = tables_of(definition.rows)[definition.table_id]

    def _derive(self, table_ids: Iterable[UUID]) -> None:
        tables, versions = dict(self.tables), dict(self.versions)
        for table_id in table_ids:
            made = TableVersions([self._version(each) for each in self._definitions[table_id]])
            tables[table_id] = made.newest
            versions.pop(table_id, None)
            if made.differ:
                versions[table_id] = made
        self.tables = {each: tables[each] for each in sorted(tables, key=self._life)}
        self.versions = versions

    def _life(self, table_id: UUID) -> tuple[bool, int]:
        """Sort key of a table: True if the node has the table, then the time of its newest definition."""
        definitions = self._definitions[table_id]
        return any(each.present for each in definitions), max(each.since_us for each in definitions)

    def _version(self, definition: Definition) -> TableVersion:
        confirmed_us = None if definition.present else definition.confirmed_ms * 1000
        return TableVersion(table=self._parsed[definition.key], since_us=definition.since_us, confirmed_us=confirmed_us)


def read_newest_tables(path: Path) -> dict[UUID, TableMetadata]:
    """The newest definition of every table that an agent has known, by id. The agent may be running.

    Raises DamagedFileError, SystemSchemaError.
    """
    # The definitions are sorted by time, so the newest one of each table stays.
    return {each.table_id: tables_of(each.rows)[each.table_id] for each in read_definitions(path)}


def _user_types(schema: SystemSchema) -> list[UserTypeRow]:
    return [
        UserTypeRow(keyspace=str(row["keyspace_name"]), name=str(row["type_name"]), since_us=since_us, row=row)
        for row, since_us in dated_types(schema)
    ]


def _unless_to_come(time_ms: int) -> int:
    """`time_ms`; 0, which means unknown, if it is in the future because the clock was set back."""
    return time_ms if time_ms <= time.time_ns() // 1_000_000 else 0


def _is_same(definition: Definition, rows: SystemSchema) -> bool:
    return {name: each for name, each in definition.rows.items() if each} == {
        name: each for name, each in rows.items() if each
    }
