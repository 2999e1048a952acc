"""Properties of the records that are published for an event, by `schemas.record_properties`. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Final

from schemas import record_properties as names
from schemas.mutation_event import EXPIRY_SEGMENT_ID, SNAPSHOT_SEGMENT_ID, MutationKind, RangeBounds
from source_connector.encoding.projection import Projection
from source_connector.events.events_message import PendingEvent
from source_connector.rows.range_bounds import expressible

__all__ = [
    "event_time_ms",
    "event_time_of",
    "gone_properties",
    "latest_writetime_us",
    "marker_properties",
    "row_properties",
    "survivor_properties",
]

_ROW: Final = MutationKind.ROW
_STATIC_ROW: Final = MutationKind.STATIC_ROW
_KINDS: Final = {kind: kind.value.lower() for kind in MutationKind}
# Nearly every record is of this kind, and a lookup by a member of an enumeration calls a function of Python.
_OF_ROW: Final = _KINDS[_ROW]
# The names that every record has: a constant of this module is compiled, that of another one is looked up.
_KIND: Final = names.KIND
_TABLE_ID: Final = names.TABLE_ID
_TABLE_GENERATION: Final = names.TABLE_GENERATION
_NODE: Final = names.NODE
_SEGPOS: Final = names.SEGPOS
_WRITETIME: Final = names.WRITETIME


def row_properties(projection: Projection, events: Sequence[PendingEvent]) -> dict[str, str]:
    """Properties of a row or static row: those of the newest event, with the latest write time of all events."""
    newest, latest_us = events[-1], latest_writetime_us(events)
    message, generation = newest.message, projection.generation_text
    is_usual = newest.kind is _ROW and latest_us is not None and message.segment_id >= 0
    if is_usual and generation and message.table_id_text == projection.table_id_text:
        # Nearly always. One literal makes the dictionary in its final size.
        return {
            _KIND: _OF_ROW,
            _TABLE_ID: message.table_id_text,
            _NODE: message.node_text,
            _SEGPOS: f"{message.segment_id}:{newest.event.position}",
            _TABLE_GENERATION: generation,
            _WRITETIME: str(latest_us),
        }
    properties = _common(projection, newest)
    if latest_us is not None:
        properties[_WRITETIME] = str(latest_us)
    if newest.kind is _STATIC_ROW:
        properties[names.STATIC_COLUMNS] = _json(projection.static_names)
    return properties


def latest_writetime_us(events: Sequence[PendingEvent]) -> int | None:
    """The latest write time of the events; None if none has one."""
    latest_us = events[-1].event.writetime_us
    if len(events) == 1:  # nearly always
        return latest_us
    for pending in events:
        writetime_us = pending.event.writetime_us
        if writetime_us is not None and (latest_us is None or writetime_us > latest_us):
            latest_us = writetime_us
    return latest_us


def survivor_properties(
    projection: Projection, pending: PendingEvent, writetime_us: int | None, *, is_static: bool = False
) -> dict[str, str]:
    """Properties of a row or static row that a deletion of many rows has left; with its own write time, if known."""
    properties = _common(projection, pending)
    properties[names.KIND] = _KINDS[MutationKind.STATIC_ROW if is_static else MutationKind.ROW]
    if is_static:
        properties[names.STATIC_COLUMNS] = _json(projection.static_names)
    if writetime_us is not None:
        properties[names.WRITETIME] = str(writetime_us)
    return properties


def gone_properties(projection: Projection, pending: PendingEvent, *, is_static: bool = False) -> dict[str, str]:
    """Properties of a row or static row that was published after a deletion of many rows, and has gone since."""
    properties = survivor_properties(projection, pending, None, is_static=is_static)
    if not is_static:
        properties[names.KIND] = _KINDS[MutationKind.ROW_DELETION]
    return properties


def marker_properties(projection: Projection, pending: PendingEvent) -> dict[str, str]:
    """Properties of the record that marks a deletion of many rows. Raises RowConversionError."""
    event = pending.event
    properties = _common(projection, pending)
    if event.writetime_us is not None:
        properties[names.WRITETIME] = str(event.writetime_us)
    if event.deletion_time_us is not None:
        properties[names.DELETION_TIME] = str(event.deletion_time_us)
    if event.bounds is not None:
        properties |= _bounds(projection, event.partition_key, expressible(projection.table, event.bounds))
    return properties


def event_time_ms(properties: dict[str, str]) -> int | None:
    """The write time of these properties as Pulsar's event time; None without one, or if it is not positive."""
    writetime = properties.get(_WRITETIME)
    return event_time_of(None if writetime is None else int(writetime))


def event_time_of(writetime_us: int | None) -> int | None:
    """A write time as Pulsar's event time, in milliseconds; None without one, or if it is not positive."""
    milliseconds = 0 if writetime_us is None else writetime_us // 1000
    return milliseconds if milliseconds > 0 else None


def _common(projection: Projection, pending: PendingEvent) -> dict[str, str]:
    event, message = pending.event, pending.message
    properties = {
        _KIND: _OF_ROW if pending.kind is _ROW else _KINDS[pending.kind],
        _TABLE_ID: message.table_id_text,
        _NODE: message.node_text,
        _SEGPOS: f"{message.segment_id}:{event.position}",
    }
    if projection.generation_text and message.table_id_text == projection.table_id_text:
        properties[_TABLE_GENERATION] = projection.generation_text
    if message.segment_id == SNAPSHOT_SEGMENT_ID:
        properties[names.SNAPSHOT] = "true"
    elif message.segment_id == EXPIRY_SEGMENT_ID:
        properties[names.EXPIRY] = "true"
    return properties


def _bounds(projection: Projection, partition_key: bytes, bounds: RangeBounds) -> dict[str, str]:
    properties = {
        names.RANGE_START_INCLUSIVE: str(bounds.start_inclusive).lower(),
        names.RANGE_END_INCLUSIVE: str(bounds.end_inclusive).lower(),
    }
    for name, prefix in ((names.RANGE_START, bounds.start), (names.RANGE_END, bounds.end)):
        if prefix:
            key = projection.avro_key(projection.row_key_values(partition_key, prefix))
            properties[name] = base64.b64encode(key).decode()
    if projection.reversed_names:
        properties[names.RANGE_REVERSED] = _json(projection.reversed_names)
    if projection.unshown_types:
        properties[names.RANGE_TYPES] = _json(projection.unshown_types)
    return properties


def _json(texts: Sequence[str] | Mapping[str, str]) -> str:
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
