"""The bytes of a message with expiries: those that `encode_events` gives, at a tenth of the CPU. Pure.

Every key that waits is packed once more when its row is published, so this is part of what a row costs. An event of an
expiry has no place in a commit log, no write time and no bounds: most of its fields are constant.

    message => header of encode_events, column_sets, events, each an Avro array: count, items, 0
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from schemas.mutation_event import MutationEvent, MutationEvents, MutationKind, encode_events
from source_connector.encoding.avro_transcoder import zigzag

__all__ = ["encode_expiries"]

_END: Final = b"\0"
_NULL: Final = b"\0"
_NOT_NULL: Final = b"\2"
# Position 0, ordinal 0, and the kind's place in the schema's enum.
_ROW: Final = b"\0\0\0"
_STATIC_ROW: Final = b"\0\0\4"
# No column set and no event.
_NOTHING: Final = 2


def encode_expiries(message: MutationEvents) -> bytes:
    """Avro binary by MUTATION_EVENTS_SCHEMA of a message whose events are of rows that expire, one or more."""
    header = encode_events(replace(message, events=()))
    sets: dict[tuple[str, ...], bytes] = {}
    events: list[bytes] = []
    for event in message.events:
        place = sets.get(event.columns)
        if place is None:
            place = sets[event.columns] = zigzag(len(sets))
        events.append(_event(event, place))
    parts = [header[:-_NOTHING], zigzag(len(sets)), *[_names(each) for each in sets], _END]
    return b"".join([*parts, zigzag(len(events)), *events, _END])


def _event(event: MutationEvent, column_set: bytes) -> bytes:
    key, partition_key, second, marker = event.key, event.partition_key, event.expiry_time_s, event.marker_expiry_s
    kind = _STATIC_ROW if event.kind is MutationKind.STATIC_ROW else _ROW
    parts = [kind, zigzag(len(key)), key, zigzag(len(partition_key)), partition_key]
    if event.clustering:
        parts.append(zigzag(len(event.clustering)))
        for value in event.clustering:
            parts += [_NULL] if value is None else [_NOT_NULL, zigzag(len(value)), value]
    # Behind the digest: no write times, no deletion time.
    parts += [_END, event.digest, b"\0\0\0"]
    parts += [_NULL] if second is None else [_NOT_NULL, zigzag(second)]
    parts += [_NULL, column_set]
    parts += [_NULL] if marker is None else [_NOT_NULL, zigzag(marker)]
    return b"".join(parts)


def _names(columns: tuple[str, ...]) -> bytes:
    """One column set: an array of strings."""
    if not columns:
        return _END
    texts = [each.encode() for each in columns]
    return b"".join([zigzag(len(texts)), *[zigzag(len(each)) + each for each in texts], _END])
