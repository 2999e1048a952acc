"""Section sources: from a position in the segment to the bytes of its entries, plain or encoded.

    plain      SyncMarker Entries
    compressed SyncMarker Length(Int32) Compressed
    encrypted  SyncMarker Length(Int32) {Block}

All positions that Cassandra gives (entries, index, limits) are positions in its in-memory log: header, marker,
entries, marker, ... In a plain file they are positions in the file. In an encoded file, markers point to positions in
the file, and a section takes its `Length` in the log. So an encoded segment is always decoded from its start, even to
resume in its middle.

Cassandra source: o.a.c.db.commitlog.CommitLogSegmentReader (NoOpSegmenter, CompressedSegmenter, EncryptedSegmenter).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Protocol

from change_agent.commitlog.section_decoder import SectionDecoder
from change_agent.commitlog.segment import SYNC_MARKER_SIZE, read_sync_marker
from change_agent.errors import BufferUnderflowError, CommitLogReadError, MalformedSegmentError

__all__ = ["READ_AHEAD", "EncodedSections", "PlainSections", "SectionSource", "SegmentFile"]

# Size of one read from the file: large enough to need few calls, small compared with any segment.
READ_AHEAD: Final = 256 * 1024
_LENGTH_SIZE: Final = 4
# An encoded section may have at most this many times the maximum size of a segment.
_MAX_GROWTH: Final = 2
_MAX_POSITION: Final = 0x7FFF_FFFF


class SegmentFile(Protocol):
    """The bytes of a segment file."""

    def size(self) -> int:
        """Bytes in the file now."""

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from this position of the file."""


class SectionSource(ABC):
    """Reads the sections of a segment, one after the other.

    `window` holds bytes of the section that was opened last, from position `window_start` on. `file_size` is the size
    at the last `refresh`. `read_ahead` is the size of one read from a plain segment.
    """

    def __init__(self, file: SegmentFile, segment_id: int) -> None:
        self._file: Final = file
        self._segment_id: Final = segment_id
        self.file_size = 0
        self.read_ahead = READ_AHEAD
        self.window = b""
        self.window_start = 0

    def refresh(self) -> None:
        """Update `file_size`: Cassandra may have written to the file."""
        self.file_size = self._file.size()

    @abstractmethod
    def next_section(self, position: int) -> int | None:
        """Open the section whose marker is at `position`, the end of the previous section.

        Return the section's end; None if there is no marker yet.
        """

    @abstractmethod
    def is_written(self, position: int) -> bool:
        """True if there is a marker at `position`, the end of the open section."""

    @abstractmethod
    def fill(self, position: int, length: int) -> None:
        """Read these bytes of the open section into the window, if they are not there.

        Raises BufferUnderflowError if the file ends before them.
        """

    def _marker(self, file_position: int) -> int | None:
        # No room for a marker: the segment is full.
        if file_position + SYNC_MARKER_SIZE > self.file_size:
            return None
        marker = self._read_whole(file_position, SYNC_MARKER_SIZE)
        return read_sync_marker(marker, self._segment_id, file_position)

    def _read_whole(self, file_position: int, length: int) -> bytes:
        found = self._file.read_at(file_position, length)
        if len(found) < length:
            raise BufferUnderflowError("the segment became shorter while it was read")
        return found


class PlainSections(SectionSource):
    """Sections of a plain file, whose positions are those of the log. The window is a part of the file."""

    def refresh(self) -> None:
        """As SectionSource, and drop the window: Cassandra may have written to bytes that were read ahead."""
        super().refresh()
        self.window = b""

    def next_section(self, position: int) -> int | None:
        """See SectionSource."""
        return self._marker(position)

    def is_written(self, position: int) -> bool:
        """See SectionSource."""
        return self._marker(position) is not None

    def fill(self, position: int, length: int) -> None:
        """See SectionSource."""
        offset = position - self.window_start
        if offset >= 0 and offset + length <= len(self.window):
            return
        if position + length > self.file_size:
            raise BufferUnderflowError(f"the segment is cut: it ends at position {self.file_size}", position=position)
        self.window = self._file.read_at(position, max(length, self.read_ahead))
        self.window_start = position
        if len(self.window) < length:
            raise BufferUnderflowError("the segment became shorter while it was read", position=position)

    def _read_whole(self, file_position: int, length: int) -> bytes:
        self.fill(file_position, length)
        offset = file_position - self.window_start
        return self.window[offset : offset + length]


class EncodedSections(SectionSource):
    """Sections of a compressed or encrypted file. The window is the whole open section, decoded.

    A section does not change after it was written.
    """

    def __init__(
        self, file: SegmentFile, segment_id: int, header_size: int, decoder: SectionDecoder, max_segment_size: int
    ) -> None:
        super().__init__(file, segment_id)
        self._decoder: Final = decoder
        self._max_segment_size: Final = min(max_segment_size, _MAX_POSITION)
        # Position in the file of the marker after the open section.
        self._next_marker = header_size

    def next_section(self, position: int) -> int | None:
        """See SectionSource. Raises MalformedSegmentError when it cannot be decoded."""
        # Free the previous section first: two of them take a lot of memory.
        self.window = b""
        try:
            file_end = self._marker(self._next_marker)
            if file_end is None:
                return None
            self.window = self._decoded(self._next_marker + SYNC_MARKER_SIZE, file_end, position + SYNC_MARKER_SIZE)
        except CommitLogReadError as error:
            # The start of the section, as a position in the log and not in the file.
            error.position = position
            raise
        self.window_start = position + SYNC_MARKER_SIZE
        self._next_marker = file_end
        return self.window_start + len(self.window)

    def is_written(self, position: int) -> bool:
        """See SectionSource."""
        return self._marker(self._next_marker) is not None

    def fill(self, position: int, length: int) -> None:
        """See SectionSource."""
        offset = position - self.window_start
        assert offset >= 0 and offset + length <= len(self.window)

    def _decoded(self, file_start: int, file_end: int, position: int) -> bytes:
        if file_end < file_start + _LENGTH_SIZE:
            raise MalformedSegmentError("a section has no room for its length")
        if file_end > self.file_size:
            raise BufferUnderflowError(
                f"the segment is cut: the file ends at {self.file_size}, a section at {file_end}"
            )
        if file_end - file_start > _MAX_GROWTH * self._max_segment_size:
            raise MalformedSegmentError(
                f"a section claims {file_end - file_start} encoded bytes, and a segment may have"
                f" {self._max_segment_size} (commitlog_segment_size of the options raises this)"
            )
        encoded = self._read_whole(file_start, file_end - file_start)
        length = int.from_bytes(encoded[:_LENGTH_SIZE], "big", signed=True)
        if not 0 <= length <= self._max_segment_size - position:
            raise MalformedSegmentError(
                f"a section claims {length} bytes, and a segment may have {self._max_segment_size}"
                " (commitlog_segment_size of the options raises this)"
            )
        return self._decoder(encoded[_LENGTH_SIZE:], length)
