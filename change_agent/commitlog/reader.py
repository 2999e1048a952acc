"""SegmentReader: reads the entries of a segment file from a position on.

In `commitlog`, only this module and `written_end` read files.

Cassandra source: o.a.c.db.commitlog.CommitLogReader and CommitLogSegmentReader. Bad bytes are handled differently:
Cassandra asks a handler, which may continue; here the reader stops with an error and keeps its position.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from change_agent.commitlog.descriptor import (
    MAX_HEADER_SIZE,
    CommitLogDescriptor,
    file_id,
    read_descriptor,
)
from change_agent.commitlog.entry import ENTRY_OVERHEAD, ENTRY_PREFIX, CommitLogEntry, read_entry, read_entry_size
from change_agent.commitlog.section_decoder import SegmentOptions, section_decoder
from change_agent.commitlog.section_source import READ_AHEAD, EncodedSections, PlainSections, SectionSource
from change_agent.commitlog.segment import SYNC_MARKER_SIZE
from change_agent.errors import CommitLogReadError, Damage, MalformedSegmentError, SegmentFileError
from change_agent.native_core import EncodedEntries

__all__ = ["EntriesTaker", "SegmentReader"]

EntriesTaker = Callable[[bytes, int, int, int], EncodedEntries | None]
"""Takes entries before the reader makes objects of them.

The arguments are the window, the offset of the next entry in the window, the position of this entry, and the position
up to which entries may be taken. The window has the complete next entry. The result is None if this entry is not taken.
"""

_DEFAULT_OPTIONS: Final = SegmentOptions()
# Commit log version of Cassandra 4.0, the first that links a segment into `cdc_raw` when it creates the segment.
_FIRST_LINKED_VERSION: Final = 7
# Size of one read for entries that are not synced, which come in small pieces.
_UNSYNCED_WINDOW: Final = 16 * 1024


class _OpenFile:
    """The SegmentFile of section sources. The constructor and all methods raise OSError."""

    def __init__(self, path: Path) -> None:
        self._file: Final = path.open("rb", buffering=0)

    def close(self) -> None:
        self._file.close()

    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def read_at(self, position: int, length: int) -> bytes:
        return os.pread(self._file.fileno(), length, position)


class SegmentReader:
    """Reads the entries of one segment, also while Cassandra still writes it. Owns its file handle; not thread safe.

    Cassandra creates a segment with its full size and fills it through a memory map, so the file's size does not show
    what is written. The offset in the `_cdc.idx` file shows what is synced; it is the `limit` of :meth:`read`. A
    finished segment is read without a limit, to the end of its chain of valid sync markers.

    A compressed or encrypted segment is read like a plain one: all positions are those of the log in Cassandra's
    memory.

    The constructor raises CommitLogReadError if the header cannot be read or its kind is not supported, and
    SegmentKeyError if the segment is encrypted and `options` have no key for it.
    """

    def __init__(self, path: Path, start_position: int = 0, options: SegmentOptions = _DEFAULT_OPTIONS) -> None:
        self._name = path.name
        try:
            self._file: Final = _OpenFile(path)
        except OSError as error:
            raise self._io_error(error, 0)
        try:
            self._descriptor: Final = self._read_descriptor()
            self._source: Final = self._section_source(options)
        except BaseException:
            self._file.close()
            raise
        self._max_size: Final = options.max_segment_size
        self._position = max(start_position, self._descriptor.header_size)
        # End of the open section, and position of the next sync marker.
        self._section_end = self._descriptor.header_size
        # While entries are read before their sync: the position of the sync marker that is not written yet.
        self._unsynced_marker: int | None = None
        self._read_all_marked = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; can be called twice."""
        self._file.close()

    @property
    def descriptor(self) -> CommitLogDescriptor:
        """The segment's header."""
        return self._descriptor

    @property
    def name(self) -> str:
        """Name of the segment file."""
        return self._name

    @property
    def position(self) -> int:
        """Position where the next read starts: after the last entry that was yielded."""
        return self._position

    def read(self, limit: int | None = None) -> Iterator[CommitLogEntry]:
        """The entries from `position` on that end at or before `limit`; without a limit, all of them.

        See :meth:`read_by`.
        """
        for each in self.read_by(None, limit):
            assert isinstance(each, CommitLogEntry)
            yield each

    def read_by(self, take: EntriesTaker | None, limit: int | None = None) -> Iterator[CommitLogEntry | EncodedEntries]:
        """The entries from `position` on that end at or before `limit`; without a limit, all of them.

        For entries that `take` takes, its results are yielded instead, in the same order.

        May be called again with a larger limit, for entries that were written meanwhile. Never blocks. Raises
        CommitLogReadError at the first bad byte and leaves `position` before it; the entries yielded so far are good.
        If a plain file was cut, the complete entries of the cut section come first, then BufferUnderflowError.
        """
        self._leave_unsynced_section()
        try:
            self._source.refresh()
            while self._open_section(limit):
                while (size := self._next_size(limit)) > 0:
                    yield self._take_next(size, take, limit)
                if self._position < self._section_end:
                    return
        except CommitLogReadError as error:
            raise error.with_location(self._name, self._position)
        except OSError as error:
            raise self._io_error(error, self._position)

    def read_unsynced(self) -> Iterator[CommitLogEntry]:
        """See :meth:`read_unsynced_by`."""
        for each in self.read_unsynced_by(None):
            assert isinstance(each, CommitLogEntry)
            yield each

    def read_unsynced_by(self, take: EntriesTaker | None) -> Iterator[CommitLogEntry | EncodedEntries]:
        """The entries from `position` on that are in the file, even those that Cassandra has not synced yet.

        Only for a plain segment that Cassandra writes through a memory map. It allocates the space of its writes in
        order, and fills it in any order. So this ends at the first entry that is not complete (`size`, its checksum,
        payload, its checksum), even if later entries are complete. Bad bytes are not an error here: :meth:`read`
        reports them once the index has passed them. Raises SegmentFileError.
        """
        self._leave_unsynced_section()
        self._read_all_marked = False
        if not self.can_read_unsynced:
            return
        self._source.read_ahead = _UNSYNCED_WINDOW
        try:
            self._source.refresh()
            while self._open_unsynced_section():
                while (size := self._next_size(None)) > 0:
                    yield self._take_next(size, take, None)
                if self._position < self._section_end:
                    break
            self._read_all_marked = self._unsynced_marker is None
        except CommitLogReadError:
            return
        except OSError as error:
            raise self._io_error(error, self._position)

    @property
    def can_read_unsynced(self) -> bool:
        """True for a plain segment of Cassandra 4.0 or later. The file of any other segment has only synced entries."""
        return isinstance(self._source, PlainSections) and self._descriptor.version >= _FIRST_LINKED_VERSION

    def is_complete(self) -> bool:
        """True if :meth:`read_unsynced` has read all sections of the segment, with their markers, to the file's end."""
        return self._read_all_marked and self._section_end + SYNC_MARKER_SIZE > self._source.file_size

    @property
    def unsynced_size(self) -> int:
        """Number of bytes of the entries that were read after the last marker in the file."""
        marker = self._section_end if self._unsynced_marker is None else self._unsynced_marker
        return max(0, self._position - marker - SYNC_MARKER_SIZE)

    def skip_to(self, position: int) -> None:
        """Continue after a bad entry, at the `resume_position` of its ChecksumMismatchError. Never moves back."""
        self._position = max(self._position, position)

    def _open_section(self, limit: int | None) -> bool:
        """Follow the chain of markers to the section of the next entry. Return False if that is not written yet."""
        while self._section_end <= self._position:
            marker = self._section_end
            if limit is not None and marker + SYNC_MARKER_SIZE > limit:
                return False
            section_end = self._source.next_section(marker)
            if section_end is None:
                return False
            self._section_end = section_end
            if section_end > self._position:
                self._position = max(self._position, marker + SYNC_MARKER_SIZE)
        return True

    def _open_unsynced_section(self) -> bool:
        """As `_open_section`, but after the last marker the rest of the file counts as one section, for this read."""
        if self._open_section(None):
            return True
        start = self._section_end + SYNC_MARKER_SIZE
        if start > self._source.file_size or self._unsynced_marker is not None:
            return False
        self._unsynced_marker = self._section_end
        self._section_end = self._source.file_size
        self._position = max(self._position, start)
        return True

    def _leave_unsynced_section(self) -> None:
        self._source.read_ahead = READ_AHEAD
        if self._unsynced_marker is not None:
            self._section_end, self._unsynced_marker = self._unsynced_marker, None

    def _next_size(self, limit: int | None) -> int:
        """Size of the next entry of the open section, which the window has then.

        0 after the section's last entry, at the limit, and at the end of the log.
        """
        source, position = self._source, self._position
        if position >= self._section_end:
            return 0
        size = self._entry_size(position, self._section_end - position)
        if size == 0:
            self._require_end_of_log()
            return 0
        if size > self._max_size:
            raise MalformedSegmentError(
                f"an entry claims a mutation of {size} bytes, and a segment may have {self._max_size}"
                " (commitlog_segment_size of the options raises this)",
                damage=Damage.ENTRY_SIZE,
            )
        end = position + size + ENTRY_OVERHEAD
        if limit is not None and end > limit:
            return 0
        source.fill(position, size + ENTRY_OVERHEAD)
        return size

    def _take_next(self, size: int, take: EntriesTaker | None, limit: int | None) -> CommitLogEntry | EncodedEntries:
        source, position = self._source, self._position
        offset = position - source.window_start
        if take is not None:
            end = self._section_end if limit is None else min(self._section_end, limit)
            taken = take(source.window, offset, position, end)
            if taken is not None:
                self._position = taken.end
                return taken
        entry = read_entry(source.window, offset, position, size)
        self._position = entry.position
        return entry

    def _entry_size(self, position: int, space: int) -> int:
        source = self._source
        if space < ENTRY_PREFIX:
            source.fill(position, space)
            offset = position - source.window_start
            if any(source.window[offset : offset + space]):
                raise MalformedSegmentError(
                    f"{space} bytes are left after the last entry of a section", damage=Damage.ENTRY_SIZE
                )
            return 0
        source.fill(position, ENTRY_PREFIX)
        return read_entry_size(source.window, position - source.window_start, position, space)

    def _require_end_of_log(self) -> None:
        """Raise MalformedSegmentError if a section follows.

        Called at zeros inside a section, which end the log in Cassandra. A section after the zeros means that data was
        lost.
        """
        if self._source.is_written(self._section_end):
            raise MalformedSegmentError(
                "there are zeros instead of an entry, and the log continues after them", damage=Damage.ZEROS
            )

    def _section_source(self, options: SegmentOptions) -> SectionSource:
        descriptor = self._descriptor
        try:
            decoder = section_decoder(descriptor, options.keys)
        except CommitLogReadError as error:
            raise error.with_location(self._name, 0)
        if decoder is None:
            return PlainSections(self._file, descriptor.segment_id)
        return EncodedSections(
            self._file, descriptor.segment_id, descriptor.header_size, decoder, options.max_segment_size
        )

    def _read_descriptor(self) -> CommitLogDescriptor:
        try:
            descriptor = read_descriptor(self._file.read_at(0, MAX_HEADER_SIZE))
            named = file_id(self._name)
            if named is not None and named[1] != descriptor.segment_id:
                raise MalformedSegmentError(
                    f"the header names segment {descriptor.segment_id}", damage=Damage.HEADER, position=0
                )
        except CommitLogReadError as error:
            raise error.with_location(self._name, 0)
        except OSError as error:
            raise self._io_error(error, 0)
        return descriptor

    def _io_error(self, error: OSError, position: int) -> SegmentFileError:
        reason = f"the segment cannot be read: {error.strerror or error}"
        return SegmentFileError(reason, segment=self._name, position=position).because(error)
