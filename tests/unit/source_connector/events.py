"""Short constructors of events and tables for unit tests."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

from cassandra.util import uuid_from_time

from schemas.cql_type import parse_cql_type
from schemas.errors import CdcError
from schemas.mutation_event import NO_MARKER, MutationEvent, MutationEvents, MutationKind, RangeBounds
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata
from source_connector.events.due_rows import DueRow
from source_connector.events.events_message import EventsMessage, PendingEvent
from tests.cql.tables import table_of

__all__ = [
    "NODE",
    "AtOnce",
    "column",
    "due_row",
    "event",
    "event_of",
    "int32",
    "pending",
    "read_at",
    "table",
]


_T = TypeVar("_T")

NODE = UUID("00000000-0000-0000-0000-0000000000aa")


class AtOnce:
    """`SchemaQueries` that ask at once, in the caller's thread."""

    def ask(self, question: Callable[[], _T], then: Callable[[_T | CdcError], None]) -> None:
        try:
            answer: _T | CdcError = question()
        except CdcError as error:
            answer = error
        then(answer)


def read_at(second: int) -> bytes:
    """The CQL bytes of a coordinator's `now()` in this second since the epoch."""
    return bytes(uuid_from_time(float(second)).bytes)


def int32(value: int) -> bytes:
    """The CQL bytes of an int."""
    return struct.pack(">i", value)


def column(
    name: str,
    kind: ColumnKind = ColumnKind.REGULAR,
    cql_type: str = "int",
    *,
    position: int = -1,
    is_desc: bool = False,
) -> ColumnMetadata:
    """A column, an int by default."""
    return ColumnMetadata(name=name, kind=kind, type=parse_cql_type(cql_type, {}), position=position, reversed=is_desc)


def table(
    partition_key: Sequence[str] = ("pk",),
    clustering_key: Sequence[str] = (),
    columns: Sequence[str] = ("v",),
    *,
    descending: Sequence[str] = (),
    clustering_type: str = "int",
    partition_type: str = "int",
    table_id: UUID | None = None,
    static: Sequence[str] = (),
    generation: int | None = None,
) -> TableMetadata:
    """`ks.t` with int columns."""
    return table_of(
        dict.fromkeys(partition_key, partition_type),
        dict.fromkeys(clustering_key, clustering_type),
        static=dict.fromkeys(static, "int"),
        regular=dict.fromkeys(columns, "int"),
        table_id=table_id or UUID(int=1),
        descending=descending,
        generation=generation,
    )


def event(
    partition: int | bytes = 1,
    clustering: int | None = None,
    kind: MutationKind = MutationKind.ROW,
    *,
    digest: int = 0,
    writetime_us: int | None = 10,
    live_us: int | None = 10,
    columns: Sequence[str] = ("v",),
    position: int = 100,
    expiry_time_s: int | None = None,
    bounds: RangeBounds | None = None,
    marker_expiry_s: int | None = None,
) -> MutationEvent:
    """An event of a table with one partition column and perhaps one clustering column."""
    partition_key = int32(partition) if isinstance(partition, int) else partition
    own = () if clustering is None else (int32(clustering),)
    return MutationEvent(
        position=position,
        ordinal=0,
        kind=kind,
        key=partition_key + b"".join(own),
        partition_key=partition_key,
        clustering=own,
        digest=digest.to_bytes(16, "big"),
        writetime_us=writetime_us,
        live_cell_writetime_us=live_us,
        deletion_time_us=writetime_us if kind not in (MutationKind.ROW, MutationKind.STATIC_ROW) else None,
        expiry_time_s=expiry_time_s,
        bounds=bounds,
        columns=tuple(columns),
        marker_expiry_s=marker_expiry_s,
    )


def pending(
    *events: MutationEvent, node: UUID = NODE, table_id: UUID | None = None, segment_id: int = 7
) -> list[PendingEvent]:
    """Events as they come from one message."""
    content = MutationEvents(
        node_id=node,
        segment_id=segment_id,
        keyspace="ks",
        table="t",
        table_id=table_id or UUID(int=1),
        key_schema="",
        events=events,
    )
    return EventsMessage(identity=b"", message_id=None, content=content).take_events()


def due_row(
    *,
    key: bytes = b"k",
    partition_key: bytes = b"k",
    second: int = 1,
    columns: tuple[str, ...] = ("v",),
    digest: bytes = bytes(16),
) -> DueRow:
    """A row of a table without clustering columns, whose column `v` expires."""
    return DueRow(
        is_static=False,
        key=key,
        partition_key=partition_key,
        clustering=(),
        second=second,
        columns=columns,
        digest=digest,
    )


def event_of(row: DueRow) -> MutationEvent:
    """The event that is delivered when the row is due."""
    return MutationEvent(
        position=0,
        ordinal=0,
        kind=MutationKind.STATIC_ROW if row.is_static else MutationKind.ROW,
        key=row.key,
        partition_key=row.partition_key,
        digest=row.digest,
        clustering=row.clustering,
        expiry_time_s=row.second,
        columns=row.columns,
        marker_expiry_s=NO_MARKER,
    )
