"""WrittenEnd: how far Cassandra has written a plain segment that it fills through a memory map, synced or not.

Cassandra creates such a file with its full size. It allocates the space of its writes in order, and fills it in any
order. So nothing has been written after the last byte that is not zero: that part has no write that was answered before
the check.

The file is sparse. If the file system reports holes reliably (`SEEK_DATA`), only the last pages are read; otherwise the
whole rest of the file.

Cassandra source: o.a.c.db.commitlog.MemoryMappedSegment.createBuffer, CommitLogSegment.allocate, CommitLog.add.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final, Self

from change_agent.commitlog.descriptor import MAX_HEADER_SIZE, read_descriptor

__all__ = ["WrittenEnd"]

# From this version of the commit log on (Cassandra 4.0), a segment is in `cdc_raw` as soon as it is created.
_FIRST_LINKED_VERSION: Final = 7
_BLOCK: Final = 64 * 1024
# A file that is written without a memory map ends with the block of its last byte, and file systems have smaller blocks
# than this. So a file with more room after its last byte is mapped.
_ROOM: Final = 128 * 1024
# In these file systems, a page counts as data as soon as a process may write to it through a memory map.
_REPORT_HOLES: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs"})
_MOUNTS: Final = Path("/proc/self/mountinfo")


class WrittenEnd:
    """Owns a handle of the segment's file. Used by one thread. The constructor raises OSError and CommitLogReadError."""

    def __init__(self, path: Path) -> None:
        self._file: Final = path.open("rb", buffering=0)
        try:
            descriptor = read_descriptor(os.pread(self._file.fileno(), MAX_HEADER_SIZE, 0))
            self._reports_holes: Final = _file_system(self._file.fileno()) in _REPORT_HOLES
        except BaseException:
            self._file.close()
            raise
        is_plain = descriptor.compression is None and descriptor.encryption is None
        self._may_be_mapped: Final = is_plain and descriptor.version >= _FIRST_LINKED_VERSION
        self._is_mapped = False
        self.is_written = False
        """True if the file had a second name, in Cassandra's own folder, at the last `find`.

        Without that name Cassandra does not write to the file.
        """
        self._end: int = descriptor.header_size
        self.header_size: Final = descriptor.header_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def find(self) -> int | None:
        """The position after the last byte that is not zero; None if the node writes this segment only at its syncs.

        All bytes that were written before the call count. Raises OSError.
        """
        if not self._may_be_mapped:
            return None
        handle = self._file.fileno()
        found = os.fstat(handle)
        size, self.is_written = found.st_size, found.st_nlink > 1
        self._end = self._last_byte(handle, size) + 1
        # Once True, it stays True: the node's way of writing is fixed when it starts.
        self._is_mapped = self._is_mapped or size - self._end > _ROOM
        return self._end if self._is_mapped else None

    def _last_byte(self, handle: int, size: int) -> int:
        """Position of the last byte that is not zero.

        Bytes never become zero again, so bytes before the last end are not read again.
        """
        for start, end in reversed(self._data(handle, size)):
            for block_end in range(end, start, -_BLOCK):
                block = max(start, block_end - _BLOCK)
                found = os.pread(handle, block_end - block, block).rstrip(b"\0")
                if found:
                    return block + len(found) - 1
        return self._end - 1

    def _data(self, handle: int, size: int) -> list[tuple[int, int]]:
        """Ranges after the last end that may have bytes other than zero, in order."""
        if not self._reports_holes:
            return [(self._end, size)]
        found: list[tuple[int, int]] = []
        position = self._end
        while position < size:
            try:
                start = os.lseek(handle, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    # The rest of the file is a hole.
                    break
                raise
            position = min(size, os.lseek(handle, start, os.SEEK_HOLE))
            found.append((start, position))
        return found


def _file_system(handle: int) -> str:
    """The type of the file system, such as `ext4`; empty when that is not known."""
    device = os.fstat(handle).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        mount, _, rest = line.partition(" - ")
        if mount.split()[2:3] == [wanted]:
            return rest.split(" ", 1)[0]
    return ""
