"""Writes a message of events in Avro without fastavro: the same bytes as `schemas.mutation_event.encode_events`.

    MutationEvents => node_id segment_id keyspace table table_id key_schema column_sets events
      Array  => {count, items}, 0       of one block, or only 0 when it is empty
      Union  => index, value            index 0 is null
      Long   => zigzag, 7 bits a byte, lowest first

Avro specification 1.11, "Binary Encoding". The module is compiled because every event may pass it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from schemas.mutation_event import MutationEvent, MutationKind, RangeBounds

__all__ = ["write_events", "write_head"]

_NULL: Final = b"\x00"
_VALUE: Final = b"\x02"
_END: Final = b"\x00"
_FALSE: Final = b"\x00"
_TRUE: Final = b"\x01"


def _short(zigzag: int) -> bytes:
    """The last bytes of a number: its highest bits, which are below 2**14."""
    return bytes((zigzag,)) if zigzag < 0x80 else bytes((zigzag & 0x7F | 0x80, zigzag >> 7))


# Encoded forms of 14 bits: as the last bytes of a number, and as two earlier bytes, which have continuation bits.
_ENDS: Final = [_short(each) for each in range(0x4000)]
_PAIRS: Final = [bytes((each & 0x7F | 0x80, each >> 7 | 0x80)) for each in range(0x4000)]
_KINDS: Final[dict[str, bytes]] = {kind.value: _short(2 * index) for index, kind in enumerate(MutationKind)}
_ROW: Final = MutationKind.ROW
_ROW_BYTES: Final = _KINDS[_ROW.value]


def write_events(
    *,
    node_id: UUID,
    segment_id: int,
    keyspace: str,
    table: str,
    table_id: UUID,
    key_schema: str,
    events: Sequence[MutationEvent],
) -> bytes:
    """A message that carries these events of one table and one segment."""
    column_sets: dict[tuple[str, ...], bytes] = {}
    body: list[bytes] = []
    for event in events:
        columns = event.columns
        column_set = column_sets.get(columns)
        if column_set is None:
            column_set = column_sets[columns] = _long(len(column_sets))
        _add_event(body, event, column_set)
    head = [write_head(node_id, segment_id, keyspace, table, table_id, key_schema)]
    if column_sets:
        head.append(_long(len(column_sets)))
        for names in column_sets:
            if names:
                head.append(_long(len(names)))
                for name in names:
                    _add_text(head, name)
            head.append(_END)
    head.append(_END)
    if events:
        head.append(_long(len(events)))
        body.append(_END)
    else:
        head.append(_END)
    return b"".join(head) + b"".join(body)


def write_head(node_id: UUID, segment_id: int, keyspace: str, table: str, table_id: UUID, key_schema: str) -> bytes:
    """The fields of a message before its column sets."""
    head: list[bytes] = []
    _add_text(head, str(node_id))
    head.append(_long(segment_id))
    _add_text(head, keyspace)
    _add_text(head, table)
    _add_text(head, str(table_id))
    _add_text(head, key_schema)
    return b"".join(head)


def _add_event(out: list[bytes], event: MutationEvent, column_set: bytes) -> None:
    (
        position,
        ordinal,
        kind,
        key,
        partition_key,
        digest,
        clustering,
        writetime,
        live,
        deletion_time,
        expiry_time,
        bounds,
        _,
        marker_expiry,
    ) = event
    _add_long(out, position)
    _add_long(out, ordinal)
    # Keys are the enum's values: hashing an enum member calls a Python function.
    out.append(_ROW_BYTES if kind is _ROW else _KINDS[kind.value])
    _add_bytes(out, key)
    _add_bytes(out, partition_key)
    if clustering:
        _add_long(out, len(clustering))
        for value in clustering:
            if value is None:
                out.append(_NULL)
            else:
                out.append(_VALUE)
                _add_bytes(out, value)
    out.append(_END)
    out.append(digest)
    if writetime is not None and writetime == live:
        written = _VALUE + _long(writetime)
        out.append(written)
        out.append(written)
    else:
        _add_optional(out, writetime)
        _add_optional(out, live)
    _add_optional(out, deletion_time)
    _add_optional(out, expiry_time)
    if bounds is None:
        out.append(_NULL)
    else:
        out.append(_VALUE)
        _add_bounds(out, bounds)
    out.append(column_set)
    _add_optional(out, marker_expiry)


def _add_bounds(out: list[bytes], bounds: RangeBounds) -> None:
    _add_prefix(out, bounds.start)
    out.append(_TRUE if bounds.start_inclusive else _FALSE)
    _add_prefix(out, bounds.end)
    out.append(_TRUE if bounds.end_inclusive else _FALSE)


def _add_prefix(out: list[bytes], values: tuple[bytes, ...]) -> None:
    if values:
        _add_long(out, len(values))
        for value in values:
            _add_bytes(out, value)
    out.append(_END)


def _add_optional(out: list[bytes], number: int | None) -> None:
    if number is None:
        out.append(_NULL)
    else:
        out.append(_VALUE)
        _add_long(out, number)


def _add_text(out: list[bytes], text: str) -> None:
    _add_bytes(out, text.encode())


def _add_bytes(out: list[bytes], value: bytes) -> None:
    _add_long(out, len(value))
    out.append(value)


def _add_long(out: list[bytes], number: int) -> None:
    zigzag = number << 1 if number >= 0 else ((-number) << 1) - 1
    while zigzag > 0x3FFF:
        out.append(_PAIRS[zigzag & 0x3FFF])
        zigzag >>= 14
    out.append(_ENDS[zigzag])


def _long(number: int) -> bytes:
    out: list[bytes] = []
    _add_long(out, number)
    return b"".join(out)
