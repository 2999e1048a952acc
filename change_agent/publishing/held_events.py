"""HeldEvents: events of a topic that cannot be used, on disk, so that the other tables can continue.

    <topic's table>.events => {Frame}
      Frame => Length Crc Payload
        Length  => UInt32, of the payload
        Crc     => UInt32, CRC32 of the payload
        Payload => Schema | Events
          Schema => Avro schema, JSON text: that of the events behind it
          Events => MutationEvents in Avro, as it would have been sent (schemas.mutation_event)

An agent version with other fields appends its schema first. Before the first schema are the events of the earliest
versions, which have the first schema. A schema (JSON text) begins with a brace, and events begin with the length of a
node id.

An incomplete write that a crash left at the end was never durable, so its events were never acknowledged: it is cut
off. Bytes that were damaged later are left out and reported, and the file is kept
(change_agent.publishing.held_frames). If they are at the end, a byte that ends no frame separates them from what is
appended.
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
"""Folder, in that of held events, of events that no broker took for their size."""
_DAMAGED_SUFFIX: Final = ".damaged"

_SCHEMA: Final = MUTATION_EVENTS_SCHEMA_TEXT.encode()

WriterSchema = Mapping[str, object]
# Neither events nor the JSON of a schema end so.
_PARTING: Final = b"\xff"
# By it no bytes are events.
_NO_SCHEMA: Final[WriterSchema] = {}


class HeldEvents:
    """A queue in a file, of whole messages: appended at its end, read from its front, removed when all of it is done."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._read_position = 0
        # Of the events at the read position; None is the first versions' one.
        self._read_schema: WriterSchema | None = None
        self._before_last: tuple[int, WriterSchema | None] = (0, None)
        # Everything before it is with the broker; and the schema there.
        self._done_position = 0
        self._done_schema: WriterSchema | None = None
        found = self._scan()
        # Of the last events in the file.
        self._last_schema = found.last_schema
        self._damaged: Final = found.damaged
        self._ends_damaged = found.end in found.damaged.values()
        self._damage_taken = 0
        self._end = found.end

    @property
    def is_read(self) -> bool:
        """True when there is nothing (more) to read."""
        return self._read_position >= self._end

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._end

    def take_damage(self) -> int:
        """Bytes that turned out to be damaged since the last call: the events in them are lost."""
        damaged = sum(end - start for start, end in self._damaged.items())
        taken, self._damage_taken = self._damage_taken, damaged
        return damaged - taken

    def append(self, payloads: Iterable[bytes]) -> None:
        """Messages behind all others; durable when this returns."""
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
        """There may be a frame without its last bytes, which the first ones of the next frame must not take the place of."""
        with open_private(self.path, "ab") as file:
            file.truncate(self._end)
            file.write(_PARTING)
        for start, end in self._damaged.items():
            if end == self._end:
                self._damaged[start] = end + len(_PARTING)
        self._end += len(_PARTING)
        self._ends_damaged = False

    def read_next(self) -> MutationEvents | None:
        """The next message that can be read; None at the end."""
        self._before_last = (self._read_position, self._read_schema)
        return next((message for message, _ in self._messages()), None)

    def unread(self) -> None:
        """The last `read_next` gives the same message again."""
        self._read_position, self._read_schema = self._before_last

    def note_done(self) -> None:
        """The broker has everything that was read so far. The next start of the process reads it again all the same."""
        self._done_position, self._done_schema = self._read_position, self._read_schema

    def rewind(self) -> None:
        """Read again what is not known to be with the broker."""
        self._read_position, self._read_schema = self._done_position, self._done_schema

    def remove(self) -> None:
        """All of it is with the broker; where some of it could not be read, the file is kept under another name."""
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
        """Every message and its bytes, from the front; for another process than the one that writes."""
        self.rewind()
        yield from self._messages()

    def _messages(self) -> Iterator[tuple[MutationEvents, int]]:
        """From the read position on, which goes with them."""
        if self.is_read:
            return
        with self.path.open("rb") as file:
            for payload, start in self._payloads(file):
                try:
                    schema = FIRST_MUTATION_EVENTS_SCHEMA if self._read_schema is None else self._read_schema
                    yield decode_events(payload, schema), len(payload)
                except MalformedEventsError:
                    # Of a version that wrote less than this one needs, or of a schema that was damaged.
                    self._damaged[start] = self._read_position

    def _payloads(self, file: BinaryIO) -> Iterator[tuple[bytes, int]]:
        """Payloads of events from the read position on, which goes with them, and where their frames begin."""
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
        """The frame at `start` went bad after it was written or scanned. The frames behind it can still be read."""
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
    """The schema of a frame; if it is not JSON, nothing behind it can be read until the next one."""
    try:
        schema: WriterSchema = json.loads(payload)
    except (ValueError, RecursionError):
        return _NO_SCHEMA
    return schema


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLargeEvent:
    """An event that no broker took; `table` is its full name, `size` are the bytes of the message."""

    table: str
    segment_id: int
    position: int
    size: int
    digest: bytes


def holds_events(directory: Path) -> bool:
    """Whether events wait in a folder of held events, those that are too large for the broker among them."""
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
