"""HeldEvents: events of a topic that cannot be used, on disk, so that the other tables can continue.

    <topic's table>.events => {Frame}
      Frame => Length Crc Payload
        Length  => UInt32, of the payload
        Crc     => UInt32, CRC32 of the payload
        Payload => Schema | Events
          Schema => Avro schema (JSON text) of the events after it
          Events => MutationEvents in Avro, as it would have been sent (schemas.mutation_event)

An agent of a version with other fields appends its schema before its events. Events before the first schema frame were
written by the earliest versions, with the first schema. A schema (JSON text) begins with a brace, and events begin with
the length of a node id.

An incomplete write that a crash left at the end was never durable, so its events were never acknowledged: it is cut
off. Bytes that were damaged later are left out and reported, and the file is kept
(change_agent.publishing.held_frames). If they are at the end, a byte that ends no frame separates them from frames that
are appended.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from change_agent.private_files import make_private_folder, open_private, sync_directory
from change_agent.publishing.held_frames import (
    HEADER_BYTES,
    SCHEMA_MARK,
    FrameScan,
    frame_of,
    next_frame,
    read_frame,
    scan_frames,
)
from schemas.mutation_event import (
    FIRST_MUTATION_EVENTS_SCHEMA,
    MUTATION_EVENTS_SCHEMA_TEXT,
    MalformedEventsError,
    MutationEvents,
    decode_events,
)

__all__ = ["HELD_SUFFIX", "TOO_LARGE", "HeldEvents", "TooLargeEvent", "holds_events", "read_too_large"]

HELD_SUFFIX: Final = ".events"
TOO_LARGE: Final = "too-large"
"""Name of the folder, inside the folder of held events, for events that are larger than the broker accepts."""
_DAMAGED_SUFFIX: Final = ".damaged"

_SCHEMA: Final = MUTATION_EVENTS_SCHEMA_TEXT.encode()

WriterSchema = Mapping[str, object]
# Separates damaged bytes from frames that are appended: neither events nor the JSON of a schema end with it.
_PARTING: Final = b"\xff"
# A schema with which no events can be decoded.
_NO_SCHEMA: Final[WriterSchema] = {}


class HeldEvents:
    """A queue of messages in a file. They are appended at its end and read from its front.

    The file is removed when all of them are done.
    """

    def __init__(self, path: Path, size: int | None = None) -> None:
        """`size`: the length of the part that is read, for a process or thread that does not write the file.

        This part is checked only while it is read. Without `size`, the whole file is read and checked now.
        """
        self.path: Final = path
        self._read_position = 0
        # The schema of the events at the read position; None is the schema of the first versions.
        self._read_schema: WriterSchema | None = None
        self._before_last: tuple[int, WriterSchema | None] = (0, None)
        # The broker has all messages before this position. `_done_schema` is the schema of the events at it.
        self._done_position = 0
        self._done_schema: WriterSchema | None = None
        found = self._scan() if size is None else FrameScan(end=size)
        # The schema of the last events in the file.
        self._last_schema = found.last_schema
        self._damaged: Final = found.damaged
        self._ends_damaged = found.end in found.damaged.values()
        self._damage_taken = 0
        self._end = found.end

    @property
    def is_read(self) -> bool:
        """True when there is nothing more to read."""
        return self._read_position >= self._end

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._end

    def take_damage(self) -> int:
        """Return the number of bytes that were found damaged since the last call. The events in them are lost."""
        damaged = sum(end - start for start, end in self._damaged.items())
        taken, self._damage_taken = self._damage_taken, damaged
        return damaged - taken

    def append(self, payloads: Iterable[bytes]) -> None:
        """Append messages. They are durable when this returns. Raises OSError."""
        if self._last_schema != _SCHEMA:
            payloads = [_SCHEMA, *payloads]
        frames = b"".join(frame_of(each) for each in payloads)
        if self._ends_damaged:
            self._part_from_damage()
        is_new = not self.path.exists()
        if is_new:
            make_private_folder(self.path.parent)
        with open_private(self.path, "ab") as file:
            file.truncate(self._end)
            file.write(frames)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_directory(self.path.parent)
        self._end += len(frames)
        self._last_schema = _SCHEMA

    def _part_from_damage(self) -> None:
        """Append the separator.

        The damaged bytes may be a frame without its last bytes. The first bytes of the next frame must not complete it.
        """
        with open_private(self.path, "ab") as file:
            file.truncate(self._end)
            file.write(_PARTING)
        for start, end in self._damaged.items():
            if end == self._end:
                self._damaged[start] = end + len(_PARTING)
        self._end += len(_PARTING)
        self._ends_damaged = False

    def read_next(self) -> MutationEvents | None:
        """Return the next message that can be read; None at the end."""
        self._before_last = (self._read_position, self._read_schema)
        return next((message for message, _ in self._messages()), None)

    def unread(self) -> None:
        """Undo the last `read_next`: the next one returns the same message."""
        self._read_position, self._read_schema = self._before_last

    def note_done(self) -> None:
        """Note that the broker has everything that was read so far.

        This is not stored: the next start of the process reads the file from its beginning.
        """
        self._done_position, self._done_schema = self._read_position, self._read_schema

    def rewind(self) -> None:
        """Continue reading at the first message that the broker is not known to have."""
        self._read_position, self._read_schema = self._done_position, self._done_schema

    def remove(self) -> None:
        """Remove the file, because the broker has all messages. If parts of it could not be read, rename it instead."""
        if self._damaged:
            with suppress(FileNotFoundError):
                self.path.replace(self._free_name())
        else:
            self.path.unlink(missing_ok=True)
        self._damaged.clear()
        self._ends_damaged = False
        self._read_position = self._done_position = self._end = self._damage_taken = 0
        self._read_schema = self._done_schema = self._last_schema = None

    def read_all(self) -> Iterator[tuple[MutationEvents, int]]:
        """Every message and its size in bytes, from the front. For a process that does not write the file."""
        self.rewind()
        yield from self._messages()

    def _messages(self) -> Iterator[tuple[MutationEvents, int]]:
        """Messages and their sizes from the read position on. Each message moves the read position."""
        if self.is_read:
            return
        with self.path.open("rb") as file:
            for payload, start in self._payloads(file):
                try:
                    schema = FIRST_MUTATION_EVENTS_SCHEMA if self._read_schema is None else self._read_schema
                    yield decode_events(payload, schema), len(payload)
                except MalformedEventsError:
                    # The events are of a version that wrote fewer fields than needed, or their schema was damaged.
                    self._damaged[start] = self._read_position

    def _payloads(self, file: BinaryIO) -> Iterator[tuple[bytes, int]]:
        """Payloads of events, and the starts of their frames, from the read position on.

        Each moves the read position.
        """
        while not self.is_read:
            start = self._read_position
            if start in self._damaged:
                self._read_position = self._damaged[start]
                continue
            payload = read_frame(file, start, self._end)
            if payload is None:
                self._note_damage(file, start)
                continue
            self._read_position += HEADER_BYTES + len(payload)
            if payload.startswith(SCHEMA_MARK):
                self._read_schema = _schema_of(payload)
            else:
                yield payload, start

    def _note_damage(self, file: BinaryIO, start: int) -> None:
        """Note that the frame at `start` was damaged after it was written or scanned.

        Later frames can still be read.
        """
        known = min((each for each in self._damaged if each > start), default=self._end)
        behind = next_frame(file, start + 1, known)
        self._damaged[start] = known if behind is None else behind

    def _scan(self) -> FrameScan:
        if not self.path.exists():
            return FrameScan()
        with self.path.open("rb") as file:
            return scan_frames(file, os.fstat(file.fileno()).st_size)

    def _free_name(self) -> Path:
        names = (
            self.path.with_name(f"{self.path.name}{_DAMAGED_SUFFIX}{number or ''}") for number in itertools.count()
        )
        return next(each for each in names if not each.exists())


def _schema_of(payload: bytes) -> WriterSchema:
    """The schema of a frame. If it is not JSON, no events can be read until the next schema."""
    try:
        schema: WriterSchema = json.loads(payload)
    except (ValueError, RecursionError):
        return _NO_SCHEMA
    return schema


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLargeEvent:
    """An event that is larger than the broker accepts.

    `table`: the table's full name; `size`: of the message, in bytes.
    """

    table: str
    segment_id: int
    position: int
    size: int
    digest: bytes


def holds_events(directory: Path) -> bool:
    """True if events wait in a folder of held events. Events that are too large for the broker count, too."""
    return any(directory.rglob(f"*{HELD_SUFFIX}"))


def read_too_large(working_directory: Path) -> Iterator[TooLargeEvent]:
    """Events of a working directory that are larger than the broker's maxMessageSize; an agent may be running."""
    for path in sorted((working_directory / "held" / TOO_LARGE).glob(f"*{HELD_SUFFIX}")):
        for message, size in HeldEvents(path).read_all():
            for event in message.events:
                yield TooLargeEvent(
                    table=f"{message.keyspace}.{message.table}",
                    segment_id=message.segment_id,
                    position=event.position,
                    size=size,
                    digest=event.digest,
                )
