"""UnsyncedPeek: finds how far the entries of a segment that the reader has not read have no change to publish.

Cassandra gives an index only to segments with a change of a table with CDC. The node's own tables are written all the
time. So without `readUnsynced`, the reader does not read their entries until such a change comes. UnsyncedPeek only
inspects these entries; it publishes nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

from change_agent.commitlog.entry import CommitLogEntry
from change_agent.commitlog.reader import SegmentReader
from change_agent.errors import CommitLogReadError

__all__ = ["Tables", "UnsyncedPeek"]


class Tables(Protocol):
    """Knows which tables are published."""

    def confirm_schema(self) -> bool:
        """Use the tables as the node has them now; False when the node does not answer."""

    def is_unpublished(self, entry: CommitLogEntry, version: int) -> bool:
        """True when an entry certainly has no change of a published table."""


class UnsyncedPeek:
    """Opens the file at the first use. Used by one thread."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._reader: SegmentReader | None = None
        # All entries before this position were read, or have no change of a published table.
        self._position = 0
        # The end of the first entry after it that may have a change of a published table; 0 when there is none.
        self._blocked_until = 0
        # One confirmation covers the schema changes of earlier segments; `is_unpublished` handles those of this
        # segment.
        self._is_confirmed = False

    def close(self) -> None:
        """Close the file."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def advance(self, read_position: int, tables: Tables) -> int:
        """The position up to which every unread entry has nothing to publish; at least `read_position`."""
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
        # The reader may be farther than the last entry, at the end of a section.
        self._position = max(self._position, reader.position)
