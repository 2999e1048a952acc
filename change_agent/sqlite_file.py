"""SQLite files of the working directory: one writer, write-ahead log, whole after kill -9 and after a power loss."""

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
# Primary codes of errors of the disk or of rights, and not of the content.
_NOT_DAMAGED: Final = frozenset({
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM,
})  # fmt: skip
# The database itself, its write-ahead log, and the index of that.
_SUFFIXES: Final = ("", "-wal", "-shm")


class DamagedFileError(CdcError):
    """The file is no whole database."""


class UnwritableFileError(CdcError):
    """The file cannot be written now, as when the disk is full: nothing of the transaction is stored; try again."""


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All or nothing of what is done within, durable behind it. Raises UnwritableFileError."""
    try:
        with database:
            yield
    except sqlite3.OperationalError as error:
        _, _, path = database.execute("PRAGMA database_list").fetchone()
        raise UnwritableFileError(f"{path} cannot be written ({error}); trying again") from error


def open_database(path: Path, format_version: int, statements: Sequence[str]) -> sqlite3.Connection:
    """Open a database for its one writer, check it, and make it, by these statements, where there is none.

    A transaction is durable when its commit returns. Only one thread may use the connection at a time.
    Raises DamagedFileError, StateFormatError for the file of a newer version, and UnwritableFileError when the disk is
    full or the file is not ours.
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
    """Return when the content is what is wrong; raises UnwritableFileError when it is the disk, or a right."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NOT_DAMAGED:
        raise UnwritableFileError(f"{path} cannot be written ({error}); trying again") from error


def set_aside(path: Path) -> Path:
    """Give a damaged database, and what belongs to it, another name, which is returned. Raises OSError."""
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
