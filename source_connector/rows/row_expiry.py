"""When a row that was read expires, and which of its columns expire before: from Cassandra's own TTLs. Pure.

A column with one cell expires when its TTL is over. `TTL()` gives the seconds that are left, whatever caused the
read; they count from the coordinator's `now()`, for the connector's own clock may be wrong. No function shows these two things:

- Each cell of a collection, or of a user type that is not frozen, has its own TTL. Such a column counts as one that
  stays, unless the newest change that names it is an INSERT whose values all have a TTL.
- An INSERT writes a row marker, which keeps the row without any cell. Only events say so.

In case of doubt, the row may stay. There is one exception: if no event says anything about markers (backfill, repair,
rows that a deletion has left, DataStax's agents), a row whose cells all expire is assumed to expire with the last of
them, like a row that was inserted with a TTL.

So the second of a marker is stored when the change that wrote it is published, beside the first second of a column: the
row goes then, if nothing else keeps it by that time. A later INSERT may write another marker. So an expiry says nothing
about the marker.
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
from source_connector.encoding.projection import Projection
from source_connector.encoding.selection import Selection
from source_connector.events.events_message import PendingEvent
from source_connector.rows.raw_page import RawRow

__all__ = ["EXTENDED", "GONE", "NextExpiry", "add_expiry", "after_expiry", "is_of_expiry"]

_STATIC_ROW: Final = MutationKind.STATIC_ROW
# `json.dumps` with options makes an encoder each time.
_as_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# The row's marker, by the events; a number from 1 on is the second at which it expires.
_STAYS: Final = 0
_GONE: Final = -1
_UNKNOWN: Final = -2
_NOT_KNOWN: Final = -3
# Between the second that an event has and the one that TTL() comes to: of two writes with one write time, each may have its own TTL.
_SAME_EXPIRY_S: Final = 5
GONE: Final = -1.0
"""What was to expire has."""
EXTENDED: Final = 0.0
"""It was written anew, and the event of that has published it."""
# A node's clock may be behind; nothing shows how much, where no TTL can be read.
_READ_AGAIN_S: Final = 1.0
# The coordinator answers whole seconds.
_WITHIN_SECOND_S: Final = 0.2


@final
class NextExpiry:
    """The second in which parts of a row go: these columns, or (without any) its row marker.

    `digest` stands for the values of those columns that have many cells.
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
    """Add what the record says of the expiry of its row; nothing for most rows.

    Answers what goes first, if anything does, and the seconds that no later read will show: of a marker, and of elements of
    collections.
    """
    start, end = selection.ttls_at, selection.ttls_at + len(selection.timed_columns)
    if not any(row[start:end]) and not any((each.event.marker_expiry_s or 0) > 0 for each in events):
        return _of_elements(projection, selection, row, events, {})
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
    """True when none of the events is of a change."""
    return all(each.message.segment_id == EXPIRY_SEGMENT_ID for each in events)


def after_expiry(
    projection: Projection, selection: Selection, row: RawRow, events: Sequence[PendingEvent], reads: int
) -> float:
    """Of a row that is there although events say that parts of it expire: `GONE`, `EXTENDED`, or seconds until another read.

    `reads` counts the reads before this one. Until the last one a node that is behind with its clock may show what is over.
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
    """Also of a row that a cell keeps: when that cell is deleted, nothing says any more when the marker goes."""
    seconds = {marker} if marker > 0 else set()
    for pending in events:
        if pending.message.segment_id == EXPIRY_SEGMENT_ID:  # of an earlier version: it says when to look next
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
    """For each change that wrote cells of a collection with a TTL: only its event says when they expire."""
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
    """Of the values of those columns whose cells' write times cannot be read."""
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
    """The second at which each of the columns goes that do, and whether a cell stays or may stay."""
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
    """The event's own second where the cell is the event's: it is exact, and the same at each read."""
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
    """When a column of many cells goes, where an INSERT with a TTL was the last to write it; else 0."""
    for pending in reversed(events):
        event = pending.event
        if name in event.columns and pending.message.segment_id != EXPIRY_SEGMENT_ID:
            return event.expiry_time_s or 0 if (event.marker_expiry_s or 0) > 0 else 0
    return 0


def _published_marker(events: Sequence[PendingEvent]) -> int:
    """The row's marker, by the changes among the events."""
    changes = [each for each in events if each.message.segment_id != EXPIRY_SEGMENT_ID]
    return _marker(changes) if changes else _UNKNOWN


def _marker(events: Sequence[PendingEvent]) -> int:
    """The row's marker, by the events: of several events the one with the latest write time counts."""
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
    return marker


def _is_of_an_older_agent(pending: PendingEvent) -> bool:
    return pending.message.raw is None and pending.message.segment_id not in (SNAPSHOT_SEGMENT_ID, EXPIRY_SEGMENT_ID)


def _keeps_the_row(event: MutationEvent) -> bool:
    """True for a write all or part of which has no TTL; not for one that deletes the row, or columns only."""
    if event.kind is not MutationKind.ROW or event.expiry_time_s is not None:
        return False
    return event.live_cell_writetime_us is not None or not event.columns
