"""ParkedMutations: mutations that could not be decoded, stored with everything that a retry needs.

    parked.sqlite, table `parked`: one row for each mutation
      segment_id, position   its place in the log; unique, because a mutation may be parked again after a crash
      table_id               the table that was not known, or else the mutation's first table
      payload, crc           the serialized mutation and its CRC32
      version                the version of the commit log in which it was written
      reason                 why the last try failed

A segment stays in `cdc_raw` while this store has mutations of it. So when the store is damaged, every segment that
still exists must be read again from its beginning. The parked mutations are in these segments, and are parked again.
"""

from __future__ import annotations

import logging
import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from change_agent.sqlite_file import (
    DamagedFileError,
    UnwritableFileError,
    open_database,
    open_to_read,
    raise_unless_damaged,
    set_aside,
    stored_bytes,
    transaction,
)
from schemas.errors import CdcError

__all__ = ["DamagedParkedError", "ParkedMutation", "ParkedMutations", "parked_bytes", "read_parked"]

_log: Final = logging.getLogger(__name__)

_NAME: Final = "parked.sqlite"
_FORMAT: Final = 1
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS parked (
    id INTEGER PRIMARY KEY, segment TEXT NOT NULL, segment_id INTEGER NOT NULL, position INTEGER NOT NULL,
    version INTEGER NOT NULL, table_id TEXT NOT NULL, reason TEXT NOT NULL, payload BLOB NOT NULL, crc INTEGER NOT NULL,
    parked_at_ms INTEGER NOT NULL, tries INTEGER NOT NULL DEFAULT 1,
    UNIQUE (segment_id, position)
)"""
_INSERT: Final = """
INSERT OR IGNORE INTO parked (segment, segment_id, position, version, table_id, reason, payload, crc, parked_at_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_SELECT: Final = (
    "SELECT id, segment, segment_id, position, version, table_id, reason, payload, crc, parked_at_ms, tries FROM parked"
)
# Parked mutations are saved when more than this many bytes are not durable.
_MAX_UNSAVED_BYTES: Final = 1024 * 1024

_Record = tuple[int, str, int, int, int, str, str, bytes, int, int, int]


class DamagedParkedError(CdcError):
    """The stored parked mutations cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedMutation:
    """A parked mutation. `number` is 0 until it is stored; `tries` counts the attempts that failed."""

    segment: str
    segment_id: int
    position: int
    version: int
    table_id: UUID
    reason: str
    payload: bytes
    parked_at_ms: int
    number: int = 0
    tries: int = 1


class ParkedMutations:
    """The parked mutations of a working directory.

    Used by the reader's thread; any thread may read `segment_ids`, `table_ids` and `count`. A damaged file is set aside
    and reported, and a new one is created. Before that, `read_again` is called. It must durably store that all segments
    are read again, because it is not known any more which segments have parked mutations.
    """

    def __init__(self, directory: Path, read_again: Callable[[], None]) -> None:
        self._path: Final = directory / _NAME
        try:
            self._database = _open_whole(self._path)
        except DamagedFileError as error:
            read_again()
            aside = set_aside(self._path)
            _log.error(
                "%s is damaged (%s): set aside as %s; the existing segments are read again from their beginning: parked"
                " mutations are parked again, and other events come twice",
                self._path,
                error,
                aside.name,
            )
            self._database = _open_whole(self._path)
        self._unsaved: list[ParkedMutation] = []
        self._unsaved_bytes = 0
        self._by_segment: Counter[int] = Counter(
            dict(self._database.execute("SELECT segment_id, count(*) FROM parked GROUP BY segment_id"))
        )
        self._by_table: Counter[str] = Counter(
            dict(self._database.execute("SELECT table_id, count(*) FROM parked GROUP BY table_id"))
        )
        self.segment_ids: frozenset[int] = frozenset(self._by_segment)
        self.table_ids: frozenset[UUID] = frozenset(map(UUID, self._by_table))
        self.count: int = self._by_segment.total()

    def close(self) -> None:
        """Save all mutations, and close the file."""
        try:
            self.save()
        except UnwritableFileError as error:
            # The places of these mutations are not acknowledged, so they are read again.
            _log.warning("%s: the next start reads it again", error)
        self._database.close()

    def park(self, mutation: ParkedMutation) -> None:
        """Add a mutation. It is durable after the next :meth:`save`; until then its place must not be acknowledged."""
        self._unsaved.append(mutation)
        self._unsaved_bytes += len(mutation.payload)

    @property
    def must_save(self) -> bool:
        """True when more bytes are not durable than should be kept in memory."""
        return self._unsaved_bytes > _MAX_UNSAVED_BYTES

    def save(self) -> None:
        """Make everything that was parked durable. Raises UnwritableFileError."""
        if self._unsaved:
            added: Counter[int] = Counter()
            of_tables: Counter[str] = Counter()
            with transaction(self._database):
                for each in self._unsaved:
                    place = (each.segment, each.segment_id, each.position, each.version, str(each.table_id))
                    content = (each.reason, each.payload, zlib.crc32(each.payload), each.parked_at_ms)
                    count = self._database.execute(_INSERT, place + content).rowcount
                    added[each.segment_id] += count
                    of_tables[str(each.table_id)] += count
            self._by_segment += added
            self._by_table += of_tables
            self._unsaved.clear()
            self._unsaved_bytes = 0
            self._recount()

    def waiting(self, after: int, limit: int) -> list[ParkedMutation]:
        """Up to `limit` parked mutations with a greater number than `after`, in the order they were parked.

        Raises DamagedParkedError, UnwritableFileError.
        """
        try:
            rows = self._database.execute(f"{_SELECT} WHERE id > ? ORDER BY id LIMIT ?", (after, limit)).fetchall()
            return [_parked(row) for row in rows]
        except sqlite3.DatabaseError as error:
            raise_unless_damaged(self._path, error)
            raise _damaged(self._path, str(error)) from error

    def note_tries(self, reasons: Collection[tuple[str, int]]) -> None:
        """Store the reason and count the try of mutations whose retry failed. `reasons`: reason and number of each."""
        with transaction(self._database):
            self._database.executemany("UPDATE parked SET reason = ?, tries = tries + 1 WHERE id = ?", reasons)

    def remove(self, parked: Collection[ParkedMutation]) -> None:
        """Remove mutations, because the broker has their events."""
        with transaction(self._database):
            self._database.executemany("DELETE FROM parked WHERE id = ?", [(each.number,) for each in parked])
        for each in parked:
            self._by_segment[each.segment_id] -= 1
            self._by_table[str(each.table_id)] -= 1
        self._recount()

    def _recount(self) -> None:
        self._by_segment = +self._by_segment
        self._by_table = +self._by_table
        self.table_ids = frozenset(map(UUID, self._by_table))
        self.segment_ids = frozenset(self._by_segment)
        self.count = self._by_segment.total()


def _open_whole(path: Path) -> sqlite3.Connection:
    """Open the database, and check every row. Raises DamagedFileError, UnwritableFileError."""
    database = open_database(path, _FORMAT, [_TABLE])
    try:
        for row in database.execute(_SELECT):
            _parked(row)
    except (sqlite3.DatabaseError, ValueError) as error:
        database.close()
        raise_unless_damaged(path, error)
        raise DamagedFileError(str(error)) from error
    return database


def parked_bytes(directory: Path) -> int:
    """The size of a working directory's parked mutations on the disk."""
    return stored_bytes(directory / _NAME)


def read_parked(directory: Path) -> Iterator[ParkedMutation]:
    """The parked mutations of a working directory, in order; an agent may be running. Raises DamagedParkedError."""
    path = directory / _NAME
    if not path.exists():
        return
    try:
        with closing(open_to_read(path)) as database:
            for row in database.execute(f"{_SELECT} ORDER BY id"):
                yield _parked(row)
    except sqlite3.DatabaseError as error:
        raise _damaged(path, str(error)) from error


def _parked(row: _Record) -> ParkedMutation:
    number, segment, segment_id, position, version, table_id, reason, payload, crc, parked_at_ms, tries = row
    if zlib.crc32(payload) != crc:
        raise sqlite3.DatabaseError(f"the bytes of {segment}, position {position} have another checksum")
    return ParkedMutation(
        number=number,
        segment=segment,
        segment_id=segment_id,
        position=position,
        version=version,
        table_id=UUID(table_id),
        reason=reason,
        payload=payload,
        parked_at_ms=parked_at_ms,
        tries=tries,
    )


def _damaged(path: Path, reason: str) -> DamagedParkedError:
    return DamagedParkedError(
        f"{path} is damaged ({reason}); its mutations are still in the segments of cdc_raw: at its next start the agent sets"
        f" the file aside and reads them again"
    )
