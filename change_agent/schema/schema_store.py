"""SchemaStore: the definitions of all tables by id and time, in a SQLite file of the working directory.

    schema.sqlite
      meta         name, value: node_id, confirmed_ms
      definition   one row for each definition that a table had under its id
        table_id, since_us, types_since_us   when the statement that made it was written, the same of its user types
        confirmed_ms                         when the node last had this definition; 0 if it is known from the log only
        present                              1: the node's last answer has it, so meta's confirmed_ms counts for it
        rows, crc                            rows of system_schema as JSON (schemas.system_schema), CRC32 of the text
      user_type    keyspace, name, since_us, row, crc: for definitions of tables that are known from the log only
      change       where in the log a definition begins
        segment_id, position, table_id, since_us, settled

There is one writer. A transaction is durable when it returns. `confirmed_ms` is written seldom: an older value is still
true.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from change_agent.sqlite_file import (
    DamagedFileError,
    open_database,
    open_to_read,
    raise_unless_damaged,
    stored_bytes,
    transaction,
)
from schemas.system_schema import Row, SystemSchema

__all__ = ["Definition", "LogPlace", "SchemaStore", "UserTypeRow", "read_definitions", "schema_bytes"]

_NAME: Final = "schema.sqlite"
_FORMAT: Final = 1
# Size at which SQLite empties its write-ahead log, in pages of 4 KiB. With the default of 1,000 pages, the log of a
# small database that is written every few seconds grows for hours.
_LOG_PAGES: Final = 32
_STATEMENTS: Final = (
    "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS definition (table_id TEXT NOT NULL, since_us INTEGER NOT NULL,"
    " types_since_us INTEGER NOT NULL, confirmed_ms INTEGER NOT NULL, present INTEGER NOT NULL, rows TEXT NOT NULL,"
    " crc INTEGER NOT NULL, PRIMARY KEY (table_id, since_us, types_since_us))",
    "CREATE TABLE IF NOT EXISTS user_type (keyspace TEXT NOT NULL, name TEXT NOT NULL, since_us INTEGER NOT NULL,"
    " row TEXT NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (keyspace, name, since_us))",
    "CREATE TABLE IF NOT EXISTS change (segment_id INTEGER NOT NULL, position INTEGER NOT NULL, table_id TEXT NOT NULL,"
    " since_us INTEGER NOT NULL, settled INTEGER NOT NULL, PRIMARY KEY (segment_id, position, table_id))",
)
_PUT_DEFINITION: Final = "INSERT OR REPLACE INTO definition VALUES (?, ?, ?, ?, ?, ?, ?)"


@dataclass(slots=True, kw_only=True)
class Definition:
    """One row of `definition`. `confirmed_ms` and `present` are updated with the node's answers."""

    table_id: UUID
    since_us: int
    types_since_us: int
    rows: SystemSchema
    confirmed_ms: int = 0
    present: bool = False

    @property
    def key(self) -> tuple[UUID, int, int]:
        """The values that distinguish definitions."""
        return self.table_id, self.since_us, self.types_since_us


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTypeRow:
    """One row of `user_type`."""

    keyspace: str
    name: str
    since_us: int
    row: Row

    @property
    def key(self) -> tuple[str, str, int]:
        """The values that distinguish definitions."""
        return self.keyspace, self.name, self.since_us


@dataclass(slots=True, kw_only=True)
class LogPlace:
    """One row of `change`: after this position of the log the table has the definition of `since_us`.

    `settled`: the node certainly used the definition for all entries that are read from now on.
    """

    segment_id: int
    position: int
    table_id: UUID
    since_us: int
    settled: bool = False


def schema_bytes(directory: Path) -> int:
    """The size of a working directory's schema history on the disk."""
    return stored_bytes(directory / _NAME)


class SchemaStore:
    """Owns the file. Only one thread at a time may use it.

    The constructor raises DamagedFileError, StateFormatError, UnwritableFileError.
    """

    def __init__(self, directory: Path) -> None:
        self.path: Final = directory / _NAME
        self._database: Final = open_database(self.path, _FORMAT, _STATEMENTS)
        self._database.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def meta(self, name: str) -> str | None:
        """One value of `meta`; None if it was never set."""
        found = self._database.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if found is None else str(found[0])

    def set_meta(self, name: str, value: str) -> None:
        """Set one value of `meta`."""
        with transaction(self._database):
            self._database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def definitions(self) -> list[Definition]:
        """All definitions, sorted by table and time. Raises DamagedFileError."""
        return _definitions(self._database)

    def put_definitions(self, definitions: Iterable[Definition], gone: Iterable[Definition] = ()) -> None:
        """Store new or changed definitions and remove others, all or nothing."""
        with transaction(self._database):
            for each in gone:
                self._database.execute(
                    "DELETE FROM definition WHERE table_id = ? AND since_us = ? AND types_since_us = ?",
                    (str(each.table_id), each.since_us, each.types_since_us),
                )
            for each in definitions:
                text = json.dumps(each.rows, separators=(",", ":"))
                key = (str(each.table_id), each.since_us, each.types_since_us)
                content = (each.confirmed_ms, int(each.present), text, zlib.crc32(text.encode()))
                self._database.execute(_PUT_DEFINITION, key + content)

    def user_types(self) -> list[UserTypeRow]:
        """All definitions of user types, sorted by time. Raises DamagedFileError."""
        rows = _selected(self._database, "SELECT * FROM user_type ORDER BY since_us")
        return [
            UserTypeRow(keyspace=keyspace, name=name, since_us=since_us, row=_decoded(text, crc))
            for keyspace, name, since_us, text, crc in rows
        ]

    def put_user_types(self, user_types: Sequence[UserTypeRow]) -> None:
        """Store definitions of user types."""
        with transaction(self._database):
            for each in user_types:
                text = json.dumps(each.row, separators=(",", ":"))
                self._database.execute(
                    "INSERT OR REPLACE INTO user_type VALUES (?, ?, ?, ?, ?)",
                    (each.keyspace, each.name, each.since_us, text, zlib.crc32(text.encode())),
                )

    def places(self) -> list[LogPlace]:
        """All places, in the order of the log. Raises DamagedFileError."""
        rows = _selected(self._database, "SELECT * FROM change ORDER BY segment_id, position")
        return [
            LogPlace(
                segment_id=segment_id,
                position=position,
                table_id=UUID(table_id),
                since_us=since_us,
                settled=bool(settled),
            )
            for segment_id, position, table_id, since_us, settled in rows
        ]

    def put_places(self, places: Iterable[LogPlace]) -> None:
        """Store places that are new or newly settled."""
        with transaction(self._database):
            self._database.executemany(
                "INSERT OR REPLACE INTO change VALUES (?, ?, ?, ?, ?)",
                [
                    (each.segment_id, each.position, str(each.table_id), each.since_us, int(each.settled))
                    for each in places
                ],
            )

    def remove_places_before(self, segment_id: int, position: int) -> None:
        """Remove the places at or before this position."""
        with transaction(self._database):
            self._database.execute(
                "DELETE FROM change WHERE segment_id < ? OR (segment_id = ? AND position <= ?)",
                (segment_id, segment_id, position),
            )

    def remove_places(self, places: Iterable[LogPlace]) -> None:
        """Remove these places."""
        with transaction(self._database):
            self._database.executemany(
                "DELETE FROM change WHERE segment_id = ? AND position = ? AND table_id = ?",
                [(each.segment_id, each.position, str(each.table_id)) for each in places],
            )


def read_definitions(path: Path) -> list[Definition]:
    """All definitions of a store, sorted by table and time.

    An agent may write to it meanwhile. Raises DamagedFileError.
    """
    try:
        with closing(open_to_read(path)) as database:
            return _definitions(database)
    except sqlite3.DatabaseError as error:
        raise DamagedFileError(str(error)) from error


def _definitions(database: sqlite3.Connection) -> list[Definition]:
    rows = _selected(database, "SELECT * FROM definition ORDER BY table_id, since_us, types_since_us")
    return [
        Definition(
            table_id=UUID(table_id),
            since_us=since_us,
            types_since_us=types_since_us,
            rows=_decoded(text, crc),
            confirmed_ms=confirmed_ms,
            present=bool(present),
        )
        for table_id, since_us, types_since_us, confirmed_ms, present, text, crc in rows
    ]


def _selected(database: sqlite3.Connection, statement: str) -> list[tuple[Any, ...]]:
    try:
        return database.execute(statement).fetchall()
    except sqlite3.DatabaseError as error:
        raise_unless_damaged(Path(_NAME), error)
        raise DamagedFileError(str(error)) from error


def _decoded(text: str, crc: int) -> Any:
    if zlib.crc32(text.encode()) != crc:
        raise DamagedFileError("a row has another checksum")
    return json.loads(text)
