"""GrowingSegment: a segment as Cassandra fills it through its memory map, step by step.

Cassandra source: o.a.c.db.commitlog.CommitLogSegment (allocate, sync), o.a.c.db.commitlog.CommitLog.add.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.agent.segment_writer import entry_bytes, header_bytes, sync_marker_bytes

__all__ = ["GrowingSegment"]


class GrowingSegment:
    """A sparse file of `size` bytes. Space is taken in order, entries are written in any order."""

    def __init__(self, path: Path, segment_id: int, size: int = 64 * 1024) -> None:
        header = header_bytes(segment_id)
        self.path: Final = path
        self.size: Final = size
        self._segment_id: Final = segment_id
        self._file: Final = path.open("w+b", buffering=0)
        self._file.write(header)
        self._file.truncate(size)
        self.last_marker = len(header)
        self._free = len(header) + 8

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def write(self, position: int, content: bytes) -> None:
        """Bytes at a place."""
        self._file.seek(position)
        self._file.write(content)

    def allocate(self, payload: bytes) -> tuple[int, bytes]:
        """Take space for an entry: where it goes, and its bytes."""
        entry = entry_bytes(payload)
        position, self._free = self._free, self._free + len(entry)
        assert self._free <= self.size
        return position, entry

    def append(self, payloads: Sequence[bytes]) -> int:
        """Whole entries; where the last one ends."""
        for payload in payloads:
            self.write(*self.allocate(payload))
        return self._free

    def reserve_marker(self) -> int:
        """Take space for the next marker, whose bytes stay zero; where it is. Cassandra then waits for writes before it."""
        position, self._free = self._free, self._free + 8
        return position

    def mark(self, section_end: int) -> int:
        """Write the marker of the section that ends there; where it ends."""
        self.write(self.last_marker, sync_marker_bytes(self._segment_id, self.last_marker, section_end))
        self.last_marker = section_end
        return section_end

    def sync(self) -> int:
        """What the index says then."""
        return self.mark(self.reserve_marker())

    def complete(self) -> int:
        """The last section reaches to the end of the file."""
        return self.mark(self.size)
