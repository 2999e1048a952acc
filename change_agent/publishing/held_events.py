"""HeldEvents: events of one topic that cannot be used, on disk, so that the other tables go on.

    <topic's table>.events => {Frame}
      Frame => Length Crc Payload
        Length  => UInt32, of the payload
        Crc     => UInt32, CRC32 of the payload
        Payload => Schema | Events
          Schema => Avro schema, JSON text: that of the events behind it
          Events => MutationEvents in Avro, as it would have been sent (schemas.mutation_event)

A version that has other fields goes on behind its own schema; before the first one stands what the first versions wrote,
whose events are of the first schema. A text of JSON begins with a brace, and events with the length of a node id.

What stands behind the last whole frame was never durable, so it was never acknowledged: it is cut off.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from change_agent.positions.offsets import sync_directory
from schemas.mutation_event import MUTATION_EVENTS_SCHEMA_TEXT, MutationEvents, decode_events

__all__ = ["HELD_SUFFIX", "TOO_LARGE", "HeldEvents", "TooLargeEvent", "read_too_large"]

HELD_SUFFIX: Final = ".events"
TOO_LARGE: Final = "too-large"
"""Folder, in that of held events, of events that no broker took for their size."""

_HEADER: Final = struct.Struct(">II")
_SCHEMA_MARK: Final = b"{"

WriterSchema = Mapping[str, object]


class HeldEvents:
    """A queue in a file, of whole messages: appended at its end, read from its front, removed when all of it is done."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._read_position = 0
        # Of the events at the read position, and of the last ones in the file; None is the first versions' one.
        self._read_schema: WriterSchema | None = None
        self._last_schema: str | None = None
        self._end = self._find_end()

    @property
    def is_read(self) -> bool:
        """True when there is nothing (more) to read."""
        return self._read_position >= self._end

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._end

    def append(self, payloads: Iterable[bytes]) -> None:
        """Messages behind all others; durable when this returns."""
        if self._last_schema != MUTATION_EVENTS_SCHEMA_TEXT:
            payloads = [MUTATION_EVENTS_SCHEMA_TEXT.encode(), *payloads]
        frames = b"".join(_HEADER.pack(len(each), zlib.crc32(each)) + each for each in payloads)
        is_new = not self.path.exists()
        if is_new:
            self.path.parent.mkdir(exist_ok=True, parents=True)
        with self.path.open("ab") as file:
            file.truncate(self._end)
            file.write(frames)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_directory(self.path.parent)
        self._end += len(frames)
        self._last_schema = MUTATION_EVENTS_SCHEMA_TEXT

    def read_next(self) -> MutationEvents | None:
        """The next message; None at the end. Raises MalformedEventsError for one of a schema that has too little."""
        if self.is_read:
            return None
        with self.path.open("rb") as file:
            file.seek(self._read_position)
            payload = _read_frame(file.read(_HEADER.size), file.read)
            while payload is not None and payload.startswith(_SCHEMA_MARK):
                self._read_position += _HEADER.size + len(payload)
                self._read_schema = json.loads(payload)
                payload = _read_frame(file.read(_HEADER.size), file.read)
        if payload is None:
            return None
        self._read_position += _HEADER.size + len(payload)
        return decode_events(payload, self._read_schema)

    def rewind(self) -> None:
        """Read all of it again."""
        self._read_position = 0
        self._read_schema = None

    def remove(self) -> None:
        """All of it is with the broker."""
        self.path.unlink(missing_ok=True)
        self._read_position = self._end = 0
        self._read_schema = self._last_schema = None

    def read_all(self) -> Iterator[tuple[MutationEvents, int]]:
        """Every message and its bytes, from the front; for another process than the one that writes."""
        position = 0
        schema: WriterSchema | None = None
        while position < self._end:
            with self.path.open("rb") as file:
                file.seek(position)
                payload = _read_frame(file.read(_HEADER.size), file.read)
            if payload is None:  # removed and begun anew meanwhile
                return
            position += _HEADER.size + len(payload)
            if payload.startswith(_SCHEMA_MARK):
                schema = json.loads(payload)
            else:
                yield decode_events(payload, schema), len(payload)

    def _find_end(self) -> int:
        if not self.path.exists():
            return 0
        end, schema = 0, None
        with self.path.open("rb") as file:
            while (payload := _read_frame(file.read(_HEADER.size), file.read)) is not None:
                if payload.startswith(_SCHEMA_MARK):
                    schema = payload.decode()
                else:
                    # A schema without events behind it is what a crash has left: it is written again.
                    self._last_schema, end = schema, file.tell()
        return end


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLargeEvent:
    """An event that no broker took; `table` is its full name, `size` are the bytes of the message."""

    table: str
    segment_id: int
    position: int
    size: int
    digest: bytes


def read_too_large(working_directory: Path) -> Iterator[TooLargeEvent]:
    """What is kept in a working directory because it is larger than the broker's maxMessageSize; an agent may be running."""
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


def _read_frame(header: bytes, read: Callable[[int], bytes]) -> bytes | None:
    """The payload of a whole frame, else None."""
    if len(header) < _HEADER.size:
        return None
    length, crc = _HEADER.unpack(header)
    payload = read(length)
    return payload if len(payload) == length and zlib.crc32(payload) == crc else None
