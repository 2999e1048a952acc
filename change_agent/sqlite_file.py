"""SQLite files of the working directory: one writer, write-ahead log, whole after kill -9 and after a power loss."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from schemas.errors import CdcError

__all__ = ["DamagedFileError", "UnwritableFileError", "open_database", "open_to_read", "transaction"]

_BUSY_TIMEOUT_S: Final = 10.0
# Row data may be in these files.
_MODE: Final = 0o600


class DamagedFileError(CdcError):
    """The file is no whole database, or of a format that this version does not know."""


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
    Raises DamagedFileError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE))
    database = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
    try:
        found = str(database.execute("PRAGMA integrity_check(1)").fetchone()[0])
        if found != "ok":
            raise DamagedFileError(" ".join(found.split()))
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        stored = int(database.execute("PRAGMA user_version").fetchone()[0])
        if stored not in {0, format_version}:
            raise DamagedFileError(f"format {stored}, this version knows {format_version}")
        with database:
            for statement in statements:
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {format_version}")
    except (sqlite3.DatabaseError, DamagedFileError) as error:
        database.close()
        raise DamagedFileError(str(error)) from error
    return database


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a database that another process may be writing. Raises sqlite3.DatabaseError."""
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S)
