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
    """A sparse file of `size` bytes. Space is allocated in order, and entries are written in any order."""

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
        """Write bytes at a position."""
        self._file.seek(position)
        self._file.write(content)

    def allocate(self, payload: bytes) -> tuple[int, bytes]:
        """Allocate space for an entry; return its position and its bytes."""
        entry = entry_bytes(payload)
        position, self._free = self._free, self._free + len(entry)
        assert self._free <= self.size
        return position, entry

    def append(self, payloads: Sequence[bytes]) -> int:
        """Write whole entries; return the end of the last one."""
        for payload in payloads:
            self.write(*self.allocate(payload))
        return self._free

    def reserve_marker(self) -> int:
        """Allocate space for the next marker, whose bytes stay zero, and return its position. Cassandra then waits for
        earlier writes."""
        position, self._free = self._free, self._free + 8
        return position

    def mark(self, section_end: int) -> int:
        """Write the marker of the section with this end, and return the end."""
        self.write(self.last_marker, sync_marker_bytes(self._segment_id, self.last_marker, section_end))
        self.last_marker = section_end
        return section_end

    def sync(self) -> int:
        """Sync as Cassandra does, and return the offset for the index."""
        return self.mark(self.reserve_marker())

    def complete(self) -> int:
        """Complete the segment: its last section reaches to the end of the file. Return that end."""
        return self.mark(self.size)
