"""UnsyncedPeek: how far behind the reader a segment has nothing that will be published, although it is not synced.

Cassandra gives an index only to segments with a change of a table with CDC. The node's own tables are written all the
time. So without `readUnsynced`, nobody reads their entries until such a change comes; they are checked here, and
nothing is done with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

from change_agent.commitlog.entry import CommitLogEntry
from change_agent.commitlog.reader import SegmentReader
from change_agent.errors import CommitLogReadError

__all__ = ["UnsyncedPeek"]


class Tables(Protocol):
    """Knows which tables are published."""

    def confirm_schema(self) -> bool:
        """Know the tables as they are now; False when the node does not answer."""

    def is_unpublished(self, entry: CommitLogEntry, version: int) -> bool:
        """Whether an entry surely has no change of a table whose changes are published."""


class UnsyncedPeek:
    """Opens the file when it is needed. Used by one thread."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._reader: SegmentReader | None = None
        # Everything before it has nothing for anybody, or was read.
        self._position = 0
        # The end of the first entry behind it that may have a change; 0 when there is none.
        self._blocked_until = 0
        # A change of the schema that is not in this segment was made before its first entry was seen.
        self._is_confirmed = False

    def close(self) -> None:
        """Close the file."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def advance(self, read_position: int, tables: Tables) -> int:
        """The position up to which nothing is to be published that was not read; at least `read_position`."""
        self._position = max(self._position, read_position)
        self._is_confirmed = self._is_confirmed or tables.confirm_schema()
        if read_position < self._blocked_until or not self._is_confirmed:
            return self._position
        try:
            if self._reader is None:
                self._reader = SegmentReader(self._path, self._position)
            self._reader.skip_to(self._position)
            self._pass_over(self._reader, tables)
        except CommitLogReadError:
            # The reader reports the error.
            self.close()
        return self._position

    def _pass_over(self, reader: SegmentReader, tables: Tables) -> None:
        self._blocked_until = 0
        for entry in reader.read_unsynced():
            if not tables.is_unpublished(entry, reader.descriptor.version):
                self._blocked_until = entry.position
                return
            self._position = entry.position
        # Behind the last entry of a section, too.
        self._position = max(self._position, reader.position)
