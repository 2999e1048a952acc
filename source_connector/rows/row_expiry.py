"""Finds out when a row that was read expires, and which columns expire before, from Cassandra's own TTLs. Pure.

A column with one cell expires when its TTL is over. `TTL()` gives the seconds that are left, at every read. They count
from the coordinator's `now()`, because the connector's own clock may be wrong. No function shows these two things:

- Each cell of a collection, or of a user type that is not frozen, has its own TTL. Such a column counts as one that
  stays, unless the newest change that names it is an INSERT whose values all have a TTL.
- An INSERT writes a row marker, which keeps the row even without any cell. Only events tell about markers.

In case of doubt, the row is assumed to stay. There is one exception: if no event says anything about markers (backfill,
repair, rows that a deletion has left, DataStax's agents), a row whose cells all expire is assumed to expire with the
last of them, like a row that was inserted with a TTL.

When a change is published, two seconds are stored: the first in which a column expires, and the second in which the
change's marker expires. The row goes with its marker, if nothing else keeps the row by that time. A later INSERT may
write another marker, so an expiry says nothing about the marker.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Final, final

from schemas import record_properties as names
from schemas.mutation_event import (
    EXPIRY_SEGMENT_ID,
    MARKER_STAYS,
    NO_MARKER,
    SNAPSHOT_SEGMENT_ID,
    MutationEvent,
    MutationKind,
)
from source_connector.encoding.native_rows import has_any
from source_connector.encoding.projection import Projection
from source_connector.encoding.selection import Selection
from source_connector.events.events_message import PendingEvent
from source_connector.rows.raw_page import RawRow

__all__ = ["EXTENDED", "GONE", "NextExpiry", "add_expiry", "after_expiry", "is_of_expiry"]

_STATIC_ROW: Final = MutationKind.STATIC_ROW
# `json.dumps` with options makes an encoder each time.
_as_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# What the events say about the row's marker; a positive number is the second in which it expires. `_STAYS`: it has no
# TTL. `_GONE`: a deletion of the row was last. `_UNKNOWN`: the events wrote none, so an earlier one may be there.
# `_NOT_KNOWN`: no event tells.
_STAYS: Final = 0
_GONE: Final = -1
_UNKNOWN: Final = -2
_NOT_KNOWN: Final = -3
# If the second of an event and the second by TTL() differ by no more, they are of the same write. Equal write times are
# not enough: two writes with the same write time may have different TTLs.
_SAME_EXPIRY_S: Final = 5
GONE: Final = -1.0
"""The part of the row has expired."""
EXTENDED: Final = 0.0
"""The part of the row was written again. The event of that write publishes it."""
# Pause before the second read if no TTL can be read: a node's clock may be behind by an unknown time.
_READ_AGAIN_S: Final = 1.0
# Added to a TTL, because the coordinator answers whole seconds.
_WITHIN_SECOND_S: Final = 0.2


@final
class NextExpiry:
    """The second in which parts of a row expire: `columns`, or the row marker if there are none.

    `digest` is a hash of the values of those columns that have many cells.
    """

    __slots__ = ("columns", "digest", "second")

    def __init__(self, second: int, columns: tuple[str, ...], digest: bytes) -> None:
        self.second: Final = second
        self.columns: Final = columns
        self.digest: Final = digest


def add_expiry(
    properties: dict[str, str],
    projection: Projection,
    selection: Selection,
    row: RawRow,
    events: Sequence[PendingEvent],
) -> Sequence[NextExpiry]:
    """Add the properties that tell when the record's row expires; none for most rows.

    Return the first expiry of a column, if any, and the expiries that no later read will show: of a marker, and of
    elements of collections.
    """
    if not has_any(row, selection.ttls_at, selection.ttls_end) and not any(
        (each.event.marker_expiry_s or 0) > 0 for each in events
    ):
        return _of_elements(projection, selection, row, events, {}) if projection.multi_cell_places else ()
    going, lasts = _going_columns(projection, selection, row, events)
    if going:
        fields = projection.field_names
        said = {fields[name]: second for name, second in going.items() if name in fields}
        if said:
            properties[names.COLUMNS_EXPIRE_AT] = _as_json(said)
    marker = _published_marker(events)
    first = _first(projection, selection, row, going)
    _add_markers(first, projection, selection, row, events, marker)
    if projection.multi_cell_places:
        first += _of_elements(projection, selection, row, events, going)
    if lasts or events[-1].event.kind is _STATIC_ROW or marker == _STAYS:
        return first
    cells_s = max(going.values(), default=0)
    if cells_s:
        properties[names.CELLS_EXPIRE_AT] = str(cells_s)
    if marker > 0 or (cells_s and marker != _UNKNOWN):
        properties[names.EXPIRES_AT] = str(max(cells_s, marker))
        if marker != _NOT_KNOWN:
            properties[names.ROW_MARKER] = "expires"
    return first


def is_of_expiry(events: Sequence[PendingEvent]) -> bool:
    """True when all events are expiries, so that none of them is a change."""
    return all(each.message.segment_id == EXPIRY_SEGMENT_ID for each in events)


def after_expiry(
    projection: Projection, selection: Selection, row: RawRow, events: Sequence[PendingEvent], reads: int
) -> float:
    """Judge a row that is there although events say that parts of it expire.

    Return `GONE`, `EXTENDED`, or the seconds until another read. `reads` is the number of reads before this one. A node
    whose clock is behind may still show an expired value.
    """
    wait_s = EXTENDED
    for pending in events:
        event = pending.event
        due_s = (event.expiry_time_s or 0) + _SAME_EXPIRY_S
        shows_nothing = not event.columns
        for name in event.columns:
            at = selection.timed_places.get(name)
            if at is None:
                shows_nothing = True
                continue
            if row[at] is None:
                return GONE
            ttl = row[at + len(selection.timed_columns)]
            if ttl is not None:
                left_s = int.from_bytes(ttl, "big")
                if selection.read_at_s(row) + left_s <= due_s:
                    wait_s = max(wait_s, left_s + _WITHIN_SECOND_S)
        if shows_nothing:
            if event.digest != _digest(projection, selection, row, event.columns):
                return GONE
            if reads == 0:
                wait_s = max(wait_s, _READ_AGAIN_S)
    return wait_s


def _first(projection: Projection, selection: Selection, row: RawRow, going: dict[str, int]) -> list[NextExpiry]:
    if not going:
        return []
    second = min(going.values())
    columns = tuple([name for name, each in going.items() if each == second])
    return [NextExpiry(second, columns, _digest(projection, selection, row, columns))]


def _add_markers(
    found: list[NextExpiry],
    projection: Projection,
    selection: Selection,
    row: RawRow,
    events: Sequence[PendingEvent],
    marker: int,
) -> None:
    """Add expiries of markers, also if a cell keeps the row: after a deletion of that cell nothing shows them."""
    seconds = {marker} if marker > 0 else set()
    for pending in events:
        if pending.message.segment_id == EXPIRY_SEGMENT_ID:  # earlier versions stored the marker's second in an expiry
            event = pending.event
            if (event.marker_expiry_s or 0) > (event.expiry_time_s or 0):
                seconds.add(event.marker_expiry_s or 0)
    for second in seconds:
        if not found or second != found[0].second:
            found.append(NextExpiry(second, (), _digest(projection, selection, row, ())))


def _of_elements(
    projection: Projection,
    selection: Selection,
    row: RawRow,
    events: Sequence[PendingEvent],
    going: dict[str, int],
) -> list[NextExpiry]:
    """Expiries of changes that wrote elements of a collection with a TTL: only their events tell when they expire."""
    found: list[NextExpiry] = []
    keys = len(selection.key_columns)
    for pending in events:
        event = pending.event
        second = event.expiry_time_s
        if second is None or event.kind is _STATIC_ROW or pending.message.segment_id == EXPIRY_SEGMENT_ID:
            continue
        for name, place in projection.multi_cell_places:
            if place >= 0 and name in event.columns and row[keys + place] is not None and going.get(name) != second:
                digest = _digest(projection, selection, row, (name,))
                found.append(NextExpiry(second, (name,), digest))
    return found


def _digest(projection: Projection, selection: Selection, row: RawRow, columns: Sequence[str]) -> bytes:
    """Hash of the values of those `columns` that have many cells, whose write times cannot be read."""
    digest = hashlib.md5(b"expiry", usedforsecurity=False)
    keys = len(selection.key_columns)
    for name, place in projection.multi_cell_places:
        if place >= 0 and name in columns:
            value = row[keys + place]
            digest.update(b"\0" if value is None else b"\1" + len(value).to_bytes(4, "big") + value)
    return digest.digest()


def _going_columns(
    projection: Projection, selection: Selection, row: RawRow, events: Sequence[PendingEvent]
) -> tuple[dict[str, int], bool]:
    """The columns that expire, with their seconds, and True if another cell stays or may stay."""
    going: dict[str, int] = {}
    lasts = False
    ttl_at = selection.ttls_at
    written_at = ttl_at - len(selection.timed_columns)
    read_at_s = 0
    for name in selection.timed_columns:
        written, ttl = row[written_at], row[ttl_at]
        written_at += 1
        ttl_at += 1
        if ttl is not None:
            read_at_s = read_at_s or selection.read_at_s(row)
            going[name] = _event_second(events, name, written, read_at_s + int.from_bytes(ttl, "big"))
        elif written is not None:
            lasts = True
    if events[-1].event.kind is not _STATIC_ROW:
        keys = len(selection.key_columns)
        for name, place in projection.multi_cell_places:
            if place >= 0 and row[keys + place] is None:
                continue
            going_s = _cells_second(events, name)
            if going_s:
                going[name] = going_s
            else:
                lasts = True
    return going, lasts


def _event_second(events: Sequence[PendingEvent], name: str, written: bytes | None, second: int) -> int:
    """The event's own second if the event wrote the cell (it is exact, and the same at each read), else `second`."""
    written_us = None if written is None else int.from_bytes(written, "big", signed=True)
    for pending in events:
        event = pending.event
        own_s = event.expiry_time_s
        if own_s is None or event.live_cell_writetime_us != written_us or name not in event.columns:
            continue
        if abs(own_s - second) <= _SAME_EXPIRY_S:
            return own_s
    return second


def _cells_second(events: Sequence[PendingEvent], name: str) -> int:
    """The second in which a column of many cells expires if an INSERT with a TTL was its last write; else 0."""
    for pending in reversed(events):
        event = pending.event
        if name in event.columns and pending.message.segment_id != EXPIRY_SEGMENT_ID:
            return event.expiry_time_s or 0 if (event.marker_expiry_s or 0) > 0 else 0
    return 0


def _published_marker(events: Sequence[PendingEvent]) -> int:
    """What the changes among the events say about the row's marker."""
    changes = [each for each in events if each.message.segment_id != EXPIRY_SEGMENT_ID]
    return _marker(changes) if changes else _UNKNOWN


def _marker(events: Sequence[PendingEvent]) -> int:
    """What the events say about the row's marker. The event with the latest write time counts."""
    marker, known_us = _NOT_KNOWN, -(1 << 63)
    for pending in events:
        event = pending.event
        deleted_us, written_us = event.deletion_time_us, event.writetime_us or 0
        if deleted_us is not None and deleted_us >= known_us:
            marker, known_us = _GONE, deleted_us
        expiry_s = event.marker_expiry_s
        if expiry_s is None:
            if _is_of_an_older_agent(pending) and _keeps_the_row(event):
                return _STAYS
        elif expiry_s == NO_MARKER:
            marker = _UNKNOWN if marker == _NOT_KNOWN else marker
        elif written_us >= known_us:
            marker, known_us = _STAYS if expiry_s == MARKER_STAYS else expiry_s, written_us
    if marker == _GONE and not any(each.event.live_cell_writetime_us is not None for each in events):
        # A row that is there in spite of the deletion may have another marker, of a write without an event here.
        return _NOT_KNOWN
    return marker


def _is_of_an_older_agent(pending: PendingEvent) -> bool:
    return pending.message.raw is None and pending.message.segment_id not in (SNAPSHOT_SEGMENT_ID, EXPIRY_SEGMENT_ID)


def _keeps_the_row(event: MutationEvent) -> bool:
    """True for a write that has at least one part without a TTL. False for a deletion of the row or of columns."""
    if event.kind is not MutationKind.ROW or event.expiry_time_s is not None:
        return False
    return event.live_cell_writetime_us is not None or not event.columns
