"""When a row that was read expires, and which of its columns expire before: from Cassandra's own TTLs. Pure.

A column with one cell expires when its TTL is over. `TTL()` gives the seconds that are left, whatever caused the
read; they count from the coordinator's `now()`, for the connector's own clock may be wrong. No function shows these two things:

- Each cell of a collection, or of a user type that is not frozen, has its own TTL. Such a column counts as one that
  stays, unless the newest change that names it is an INSERT whose values all have a TTL.
- An INSERT writes a row marker, which keeps the row without any cell. Only events say so.

In case of doubt, the row may stay. There is one exception: if no event says anything about markers (backfill, repair,
rows that a deletion has left, DataStax's agents), a row whose cells all expire is assumed to expire with the last of
them, like a row that was inserted with a TTL.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from schemas import record_properties as names
from schemas.mutation_event import (
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

__all__ = ["add_expiry"]

_STATIC_ROW: Final = MutationKind.STATIC_ROW
# What the events tell of the row's marker; a number from 1 on is the second when it goes.
_STAYS: Final = 0
_GONE: Final = -1
_UNKNOWN: Final = -2
_NOT_TOLD: Final = -3
# Between the second that an event tells and the one that TTL() comes to: of two writes with one write time, each may have its own TTL.
_SAME_EXPIRY_S: Final = 5


def add_expiry(
    properties: dict[str, str],
    projection: Projection,
    selection: Selection,
    row: RawRow,
    events: Sequence[PendingEvent],
) -> None:
    """Add what the record says of the expiry of its row; nothing for most rows."""
    start, end = selection.ttls_at, selection.ttls_at + len(selection.timed_columns)
    if not any(row[start:end]) and not any((each.event.marker_expiry_s or 0) > 0 for each in events):
        return
    going, lasts = _going_columns(projection, selection, row, events)
    if going:
        fields = projection.field_names
        said = {fields[name]: second for name, second in going.items() if name in fields}
        if said:
            properties[names.COLUMNS_EXPIRE_AT] = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
    if lasts or events[-1].event.kind is _STATIC_ROW:
        return
    marker = _marker(events)
    if marker == _STAYS:
        return
    cells_s = max(going.values(), default=0)
    if cells_s:
        properties[names.CELLS_EXPIRE_AT] = str(cells_s)
    if marker > 0 or (cells_s and marker != _UNKNOWN):
        properties[names.EXPIRES_AT] = str(max(cells_s, marker))
        if marker != _NOT_TOLD:
            properties[names.ROW_MARKER] = "expires"


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
            going[name] = _told_second(events, name, written, read_at_s + int.from_bytes(ttl, "big"))
        elif written is not None:
            lasts = True
    if events[-1].event.kind is not _STATIC_ROW:
        keys = len(selection.key_columns)
        for name, place in projection.multi_cell_places:
            if place >= 0 and row[keys + place] is None:
                continue
            told = _told_of_cells(events, name)
            if told:
                going[name] = told
            else:
                lasts = True
    return going, lasts


def _told_second(events: Sequence[PendingEvent], name: str, written: bytes | None, second: int) -> int:
    """The event's own second where the cell is the event's: it is exact, and the same at each read."""
    written_us = None if written is None else int.from_bytes(written, "big", signed=True)
    for pending in events:
        event = pending.event
        told = event.expiry_time_s
        if told is None or event.live_cell_writetime_us != written_us or name not in event.columns:
            continue
        if abs(told - second) <= _SAME_EXPIRY_S:
            return told
    return second


def _told_of_cells(events: Sequence[PendingEvent], name: str) -> int:
    """When a column of many cells goes, where an INSERT with a TTL was the last to write it; else 0."""
    for pending in reversed(events):
        event = pending.event
        if name in event.columns:
            return event.expiry_time_s or 0 if (event.marker_expiry_s or 0) > 0 else 0
    return 0


def _marker(events: Sequence[PendingEvent]) -> int:
    """What the events tell of the row's marker: of several the one with the latest write time counts."""
    marker, known_us = _NOT_TOLD, -(1 << 63)
    for pending in events:
        event = pending.event
        deleted_us, written_us = event.deletion_time_us, event.writetime_us or 0
        if deleted_us is not None and deleted_us >= known_us:
            marker, known_us = _GONE, deleted_us
        told = event.marker_expiry_s
        if told is None:
            if _is_of_an_older_agent(pending) and _keeps_the_row(event):
                return _STAYS
        elif told == NO_MARKER:
            marker = _UNKNOWN if marker == _NOT_TOLD else marker
        elif written_us >= known_us:
            marker, known_us = _STAYS if told == MARKER_STAYS else told, written_us
    return marker


def _is_of_an_older_agent(pending: PendingEvent) -> bool:
    return pending.message.raw is None and pending.message.segment_id != SNAPSHOT_SEGMENT_ID


def _keeps_the_row(event: MutationEvent) -> bool:
    """True for a write all or part of which has no TTL; not for one that deletes the row, or columns only."""
    if event.kind is not MutationKind.ROW or event.expiry_time_s is not None:
        return False
    return event.live_cell_writetime_us is not None or not event.columns
