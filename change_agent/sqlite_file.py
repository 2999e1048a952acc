"""SQLite files of the working directory: one writer, write-ahead log, consistent after kill -9 and a power loss."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from change_agent.errors import StateFormatError
from change_agent.private_files import PRIVATE_FILE, make_private_folder
from schemas.errors import CdcError

__all__ = [
    "DamagedFileError",
    "UnwritableFileError",
    "open_database",
    "open_to_read",
    "raise_unless_damaged",
    "set_aside",
    "stored_bytes",
    "transaction",
]

_BUSY_TIMEOUT_S: Final = 10.0
# Primary error codes of SQLite for a problem of the disk, permissions, locks or memory, not of the content.
_NOT_DAMAGED: Final = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_NOMEM,
    }
)
# The database, its write-ahead log, and the index of that log.
_SUFFIXES: Final = ("", "-wal", "-shm")


class DamagedFileError(CdcError):
    """The file is not a valid database, or its content is damaged."""


class UnwritableFileError(CdcError):
    """The file cannot be written now, for example because the disk is full.

    Nothing of the transaction is stored: retry.
    """


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """A transaction: all statements of the block are stored, or none.

    It is durable at the end. Raises UnwritableFileError.
    """
    try:
        with database:
            yield
    except sqlite3.OperationalError as error:
        _, _, path = database.execute("PRAGMA database_list").fetchone()
        raise UnwritableFileError(f"{path} cannot be written ({error}); trying again") from error


def open_database(path: Path, format_version: int, statements: Sequence[str]) -> sqlite3.Connection:
    """Open and check a database for its only writer. If there is none, create it with these statements.

    A transaction is durable when its commit returns. Only one thread may use the connection at a time. Raises
    DamagedFileError, StateFormatError for the file of a newer version, and UnwritableFileError if the disk is full or
    permissions are missing.
    """
    try:
        make_private_folder(path.parent)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE))
    except OSError as error:
        raise UnwritableFileError(f"{path} cannot be written ({error.strerror}); trying again") from error
    database = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
    try:
        found = str(database.execute("PRAGMA integrity_check(1)").fetchone()[0])
        if found != "ok":
            raise DamagedFileError(" ".join(found.split()))
        stored = int(database.execute("PRAGMA user_version").fetchone()[0])
        if stored not in {0, format_version}:
            database.close()
            raise StateFormatError(str(path), stored, format_version)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        with database:
            for statement in statements:
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {format_version}")
    except (sqlite3.DatabaseError, DamagedFileError) as error:
        database.close()
        raise_unless_damaged(path, error)
        raise DamagedFileError(str(error)) from error
    return database


def raise_unless_damaged(path: Path, error: Exception) -> None:
    """Raise UnwritableFileError if the error comes from the disk or from permissions.

    Return if the content is damaged.
    """
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NOT_DAMAGED:
        raise UnwritableFileError(f"{path} cannot be written ({error}); trying again") from error


def set_aside(path: Path) -> Path:
    """Rename a damaged database and its other files; return the new path. Raises OSError."""
    target = path.with_name(f"{path.name}.damaged")
    for suffix in _SUFFIXES:
        damaged = path.with_name(path.name + suffix)
        if damaged.exists():
            damaged.replace(target.with_name(target.name + suffix))
    return target


def stored_bytes(path: Path) -> int:
    """The size of a database on the disk; 0 when it does not exist."""
    total = 0
    for suffix in _SUFFIXES:
        with suppress(FileNotFoundError):
            total += path.with_name(path.name + suffix).stat().st_size
    return total


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a database that another process may be writing. Raises sqlite3.DatabaseError."""
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S)
