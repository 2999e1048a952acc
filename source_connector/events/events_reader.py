"""Decodes the events of a message with the current schema: the result of `schemas.mutation_event.decode_events`,
faster.

    MutationEvents => node_id segment_id keyspace table table_id key_schema column_sets events
      Array  => {count, items}, 0       a negative count is followed by the block's size in bytes
      Union  => index, value            index 0 is null
      Long   => zigzag, 7 bits a byte, lowest first

Avro specification 1.11, "Binary Encoding". It reads what our agents write. Everything else goes to the reference
decoder, which also raises the errors. Every event is read here, so it is compiled. Pure.

A decoded event takes seven times the memory of its bytes, which is much for a source of many tables. So the first
events of a message can be decoded alone. The others are decoded once for the check, and again when they are taken.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Final, final
from uuid import UUID

from schemas.mutation_event import MutationEvent, MutationEvents, MutationKind, RangeBounds, decode_events

__all__ = ["LaterEvents", "read_events"]

_KINDS: Final[list[MutationKind]] = list(MutationKind)
_DIGEST_LENGTH: Final = 16
# The largest shift within a long.
_MOST_BITS: Final = 63
# So many events are decoded at once for the check.
_CHECKED_TOGETHER: Final = 100


def read_events(data: bytes, first: int) -> tuple[MutationEvents, LaterEvents | None]:
    """Decode a message that was written with MUTATION_EVENTS_SCHEMA: at most `first` of its events.

    The others, if there are any, remain bytes. They are checked, too, so the message is readable as a whole. What only
    the reference decoder reads is decoded whole. Raises MalformedEventsError.
    """
    try:
        return _Reader(data).message(first)
    except (IndexError, ValueError):
        pass
    return decode_events(data), None


@lru_cache(maxsize=1024)
def _uuid(text: str) -> UUID:
    """The UUID: one object for equal texts. Reads compare their nodes, and `==` of two UUIDs calls a function of Python."""
    return UUID(text)


@lru_cache(maxsize=512)
def _names(column_set: bytes) -> tuple[str, ...]:
    """The names of a column set: one tuple for equal bytes.

    A tuple stays in memory as long as the write time of a change (`source_connector.rows.write_times`). A message often
    has one event, so a tuple of its own would be kept for each change. Sets of one table share their names.
    """
    return tuple(map(sys.intern, _Reader(column_set).texts()))


@final
class LaterEvents:
    """Events of a message that are still its bytes. They were checked. `left`: how many are not taken yet."""

    __slots__ = ("_reader", "columns", "left")

    def __init__(self, reader: _Reader, count: int, columns: frozenset[str]) -> None:
        self._reader: Final = reader
        self.left = count
        self.columns: Final = columns
        """All columns that these events name."""

    def take(self, most: int) -> list[MutationEvent]:
        """Decode the next events, at most `most`. Each can be taken only once."""
        events = self._reader.take(most)
        self.left -= len(events)
        return events


@final
class _Reader:
    """Reads a message's bytes in order. Raises IndexError or ValueError for bytes that our agents would not write."""

    __slots__ = ("_at", "_data", "_left", "_length", "_sets")

    def __init__(self, data: bytes) -> None:
        self._data: bytes = data
        self._at: int = 0
        self._length: int = len(data)
        self._sets: list[tuple[str, ...]] = []
        self._left: int = 0
        """Events of the current block that are still to be read; 0 only at the end of the last one."""

    def message(self, first: int) -> tuple[MutationEvents, LaterEvents | None]:
        node_id, segment_id = _uuid(self._text()), self._long()
        keyspace, table = self._text(), self._text()
        table_id, key_schema = _uuid(self._text()), self._text()
        self._sets = self._column_sets()
        self._left = self._count()
        events = self.take(first)
        later = self._later() if self._left else None
        if later is None:
            self._expect_end()
        content = MutationEvents(
            node_id=node_id,
            segment_id=segment_id,
            keyspace=keyspace,
            table=table,
            table_id=table_id,
            key_schema=key_schema,
            events=tuple(events),
        )
        return content, later

    def take(self, most: int) -> list[MutationEvent]:
        """The next events: at most `most`, or all that are left."""
        events: list[MutationEvent] = []
        while self._left and most:
            count = min(self._left, most)
            for _ in range(count):
                events.append(self._event())  # noqa: PERF401  # a comprehension is no faster when compiled
            most -= count
            self._left -= count
            if not self._left:
                self._left = self._count()
        return events

    def _later(self) -> LaterEvents:
        """Check the events that are left, and come back to the first of them."""
        at, left, count = self._at, self._left, 0
        # By id: events share a few tuples, and the hash of a tuple costs as much as it has columns.
        sets: dict[int, tuple[str, ...]] = {}
        while events := self.take(_CHECKED_TOGETHER):
            count += len(events)
            for each in events:
                sets[id(each.columns)] = each.columns
        self._expect_end()
        self._at, self._left = at, left
        return LaterEvents(self, count, frozenset[str]().union(*sets.values()))

    def _expect_end(self) -> None:
        """More bytes than the schema says are a damaged message, or several in one: their events would be lost."""
        if self._at != self._length:
            raise ValueError

    def _event(self) -> MutationEvent:
        position, ordinal, kind = self._int(), self._int(), self._long()
        key, partition_key = self._bytes(), self._bytes()
        clustering: list[bytes | None] = []
        count = self._count()
        while count:
            for _ in range(count):
                clustering.append(self._bytes() if self._is_there() else None)  # noqa: PERF401
            count = self._count()
        digest = self._take(_DIGEST_LENGTH)
        writetime = self._long() if self._is_there() else None
        live = self._long() if self._is_there() else None
        deletion = self._long() if self._is_there() else None
        expiry = self._long() if self._is_there() else None
        bounds = self._bounds() if self._is_there() else None
        column_set = self._int()
        marker_expiry = self._long() if self._is_there() else None
        if kind < 0 or column_set < 0:
            raise IndexError
        return MutationEvent(
            position,
            ordinal,
            _KINDS[kind],
            key,
            partition_key,
            digest,
            tuple(clustering),
            writetime,
            live,
            deletion,
            expiry,
            bounds,
            self._sets[column_set],
            marker_expiry,
        )

    def _bounds(self) -> RangeBounds:
        start, start_inclusive = self._prefix(), self._boolean()
        end, end_inclusive = self._prefix(), self._boolean()
        return RangeBounds(start=start, start_inclusive=start_inclusive, end=end, end_inclusive=end_inclusive)

    def _prefix(self) -> tuple[bytes, ...]:
        found: list[bytes] = []
        count = self._count()
        while count:
            for _ in range(count):
                found.append(self._bytes())  # noqa: PERF401
            count = self._count()
        return tuple(found)

    def _column_sets(self) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = []
        count = self._count()
        while count:
            for _ in range(count):
                start = self._at
                self._pass_texts()
                found.append(_names(self._data[start : self._at]))
            count = self._count()
        return found

    def _pass_texts(self) -> None:
        count = self._count()
        while count:
            for _ in range(count):
                size = self._long()
                if size < 0 or size > self._length - self._at:
                    raise IndexError
                self._at += size
            count = self._count()

    def texts(self) -> list[str]:
        """A list of texts."""
        found: list[str] = []
        count = self._count()
        while count:
            for _ in range(count):
                found.append(self._text())  # noqa: PERF401
            count = self._count()
        return found

    def _count(self) -> int:
        """The number of items in the next block. A block with more items than the message has bytes is damaged."""
        count = self._long()
        if count < 0 or count > self._length:
            raise ValueError
        return count

    def _is_there(self) -> bool:
        index = self._long()
        if index < 0 or index > 1:
            raise ValueError
        return index == 1

    def _boolean(self) -> bool:
        return self._take(1) != b"\0"

    def _text(self) -> str:
        return self._bytes().decode("utf-8")

    def _bytes(self) -> bytes:
        return self._take(self._long())

    def _take(self, size: int) -> bytes:
        start, end = self._at, self._at + size
        if size < 0 or end > self._length:
            raise IndexError
        self._at = end
        return self._data[start:end]

    def _int(self) -> int:
        number = self._long()
        if not -0x8000_0000 <= number <= 0x7FFF_FFFF:
            raise ValueError
        return number

    def _long(self) -> int:
        # Most numbers are lengths of one byte.
        data, at = self._data, self._at
        byte = data[at]
        at += 1
        number, shift = byte & 0x7F, 7
        while byte >= 0x80:
            if shift > _MOST_BITS:
                raise ValueError
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
        if number >> 64:
            raise ValueError
        self._at = at
        return -((number + 1) >> 1) if number & 1 else number >> 1
