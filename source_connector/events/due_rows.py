"""Rows that wait for the second in which a part of them expires: the queue to the storing thread, and their encoding.

A waiting key is packed each time that its row is published, so this adds to the cost of a row. `encode_due_rows` gives
the same bytes as `encode_events` at a tenth of the CPU time. An event of an expiry has no place in a commit log, no
write time and no bounds, so most of its fields are constant.

    message => header of encode_events, column_sets, events, each an Avro array: count, items, 0
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, final

from schemas.mutation_event import NO_MARKER, MutationEvents, encode_events
from source_connector.encoding.avro_transcoder import zigzag
from source_connector.events.events_message import EventsMessage

__all__ = ["DueRow", "DueRows", "divided", "encode_due_rows"]

_END: Final = b"\0"
_NULL: Final = b"\0"
_NOT_NULL: Final = b"\2"
# Position 0, ordinal 0, and the index of the kind in the schema's enum.
_ROW: Final = b"\0\0\0"
_STATIC_ROW: Final = b"\0\0\4"
# The fields after the digest: no write times, no deletion time, and the second is not null.
_SECOND: Final = b"\0\0\0\2"
# The bytes of no column set and no event, at the end of a message without events.
_NOTHING: Final = 2
# Nothing is known of the row's marker: a later INSERT may have written another one.
_NO_MARKER: Final = _NOT_NULL + zigzag(NO_MARKER)
# The most bytes of a second and the constant fields, with some reserve.
_FIXED_BYTES: Final = 80
# A second, columns, and their digest.
_What = tuple[int, tuple[str, ...], bytes]


Arrived = tuple[Callable[[], None], str, EventsMessage, "DueRow"]
"""The function to call when the row is stored, the expiry topic, the message of the event, the row."""


@final
class DueRow:
    """A row or static row. Its fields are those of the `MutationEvent` (ROW or STATIC_ROW) that comes in `second`."""

    __slots__ = ("clustering", "columns", "digest", "is_static", "key", "partition_key", "second")

    def __init__(
        self,
        *,
        is_static: bool,
        key: bytes,
        partition_key: bytes,
        clustering: tuple[bytes | None, ...],
        second: int,
        columns: tuple[str, ...],
        digest: bytes,
    ) -> None:
        self.is_static: Final = is_static
        self.key: Final = key
        self.partition_key: Final = partition_key
        self.clustering: Final = clustering
        self.second: Final = second
        self.columns: Final = columns
        self.digest: Final = digest

    def size(self) -> int:
        """An upper bound of its bytes in a message, without `columns`."""
        size = len(self.key) + len(self.partition_key) + _FIXED_BYTES
        for value in self.clustering:
            size += 4 if value is None else len(value) + 4
        return size

    def encoded(self, column_set: bytes) -> bytes:
        """Avro binary of its event. `column_set` is the encoded index of its columns in the message's column sets."""
        key, partition_key = self.key, self.partition_key
        kind = _STATIC_ROW if self.is_static else _ROW
        parts = [kind, zigzag(len(key)), key, zigzag(len(partition_key)), partition_key]
        if self.clustering:
            parts.append(zigzag(len(self.clustering)))
            for value in self.clustering:
                if value is None:
                    parts.append(_NULL)
                else:
                    parts += [_NOT_NULL, zigzag(len(value)), value]
        parts += [_END, self.digest, _SECOND, zigzag(self.second), _NULL, column_set, _NO_MARKER]
        return b"".join(parts)


@final
class DueRows:
    """The queue of rows from the source's thread (`is_known`, `add`) to the thread that stores them (`take`, `forget`).

    The last rows are known, in two generations: a row that does not come again during a generation is forgotten at its
    end.
    """

    def __init__(self, max_known: int) -> None:
        self._most_young: Final = max(1, max_known // 2)
        self._young: dict[bytes, _What] = {}
        self._old: dict[bytes, _What] = {}
        self._is_emptied = False
        self._arrived: Final[deque[Arrived]] = deque()

    def is_known(self, table_id: bytes, row: DueRow) -> bool:
        """True when the row came before with the same second, columns and digest. From now on it is known."""
        if self._is_emptied:
            self._is_emptied = False
            self._young, self._old = {}, {}
        key, what = table_id + row.key, (row.second, row.columns, row.digest)
        known = self._young.get(key) or self._old.get(key)
        self._young[key] = what
        if len(self._young) > self._most_young:
            self._young, self._old = {}, self._young
        return known == what

    def add(self, then: Callable[[], None], topic: str, message: EventsMessage, row: DueRow) -> None:
        """Store the row on this expiry topic. `then` is called when the broker has it.

        In its second, its event will come to the topic partition of `message`, which is the message of the key's newest
        event.
        """
        self._arrived.append((then, topic, message, row))

    def take(self) -> list[Arrived]:
        """All rows that have arrived, once."""
        return [self._arrived.popleft() for _ in range(len(self._arrived))]

    def forget(self) -> None:
        """Forget all known rows, because a topic was deleted: its rows must be stored again."""
        self._is_emptied = True


def divided(rows: Sequence[DueRow], most_rows: int, most_bytes: int) -> list[tuple[int, int]]:
    """Divide the rows into messages of a limited size, in order. Return the indexes of each one's first row and end."""
    found: list[tuple[int, int]] = []
    first = size = 0
    for at, row in enumerate(rows):
        own = row.size()
        if at > first and (at - first == most_rows or size + own > most_bytes):
            found.append((first, at))
            first, size = at, 0
        size += own
    return [*found, (first, len(rows))]


def encode_due_rows(message: MutationEvents, rows: Sequence[DueRow]) -> bytes:
    """Avro binary, by MUTATION_EVENTS_SCHEMA, of a message without events, with these rows (at least one) added."""
    header = encode_events(message)
    sets: dict[tuple[str, ...], bytes] = {}
    events: list[bytes] = []
    for row in rows:
        place = sets.get(row.columns)
        if place is None:
            place = sets[row.columns] = zigzag(len(sets))
        events.append(row.encoded(place))
    parts = [header[:-_NOTHING], zigzag(len(sets)), *[_names(each) for each in sets], _END]
    return b"".join([*parts, zigzag(len(events)), *events, _END])


def _names(columns: tuple[str, ...]) -> bytes:
    """One column set: an array of strings."""
    if not columns:
        return _END
    texts = [each.encode() for each in columns]
    return b"".join([zigzag(len(texts)), *[zigzag(len(each)) + each for each in texts], _END])
