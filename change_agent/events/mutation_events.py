"""Makes the events of a decoded mutation, in a fixed order.

The events of each table come in this order: partition deletion, range deletions, static row, rows. So a deletion of
many rows comes before rows that may survive it. Tables without `cdc = true`, views and system tables have no events.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast, final

from change_agent.db.values import DeletionTime, Mutation, PartitionUpdate, RangeTombstone, Row
from change_agent.events.avro_key import EventKeys
from change_agent.events.digest import Digests
from schemas.mutation_event import MARKER_STAYS, NO_MARKER, MutationEvent, MutationKind, RangeBounds
from schemas.table_metadata import TableMetadata

__all__ = ["EventKeys", "MutationEventBuilder", "TableEvent", "is_published"]

_SYSTEM_KEYSPACES: Final = frozenset({"system", "system_auth", "system_distributed", "system_schema", "system_traces"})
# Its stub returns a plain tuple, whatever the class.
_new_tuple: Final = cast("Callable[[type[MutationEvent], tuple[object, ...]], MutationEvent]", tuple.__new__)
# Long.MIN_VALUE, which Cassandra never stores as a time of a write.
_NO_TIME: Final = -0x8000_0000_0000_0000


def is_published(table: TableMetadata) -> bool:
    """True when changes of this table become events."""
    return table.cdc and not table.is_view and table.keyspace not in _SYSTEM_KEYSPACES


@final
class TableEvent:
    """An event and the keys of its table."""

    __slots__ = ("event", "keys")

    def __init__(self, keys: EventKeys, event: MutationEvent) -> None:
        self.keys = keys
        self.event = event


class MutationEventBuilder:
    """Builds events. Keeps prepared values of each table, and replaces them when the table's metadata changes."""

    def __init__(self) -> None:
        self._known: Final[dict[bytes, _PublishedTable]] = {}
        self._last: _PublishedTable | None = None
        self._unpublished: frozenset[bytes] = frozenset()

    def leave_out(self, table_ids: frozenset[bytes]) -> None:
        """Build no events of these tables from now on, even if they have `cdc = true`."""
        self._unpublished = table_ids
        self._last = None

    def events_of(self, mutation: Mutation, position: int) -> list[TableEvent]:
        """The events of the entry that ends at `position`. Raises CqlValueError if a key does not fit its types."""
        events: list[TableEvent] = []
        for update in mutation.updates:
            table = self._last
            # Most often the next mutation is of the same table.
            if table is None or table.metadata is not update.table:
                table = self._table(update.table)
            if table is not None:
                _add_changes(events, table, update, position)
        return events

    def keys_of(self, metadata: TableMetadata) -> EventKeys | None:
        """The keys of a table's events; None if the table has no events."""
        table = self._table(metadata)
        return None if table is None else table.keys

    def _table(self, metadata: TableMetadata) -> _PublishedTable | None:
        table_id = metadata.table_id.bytes
        if table_id in self._unpublished or not is_published(metadata):
            return None
        table = self._known.get(table_id)
        if table is None or table.metadata is not metadata:
            table = self._known[table_id] = _PublishedTable(metadata)
        self._last = table
        return table


@final
class _PublishedTable:
    """The common values of the events of one table."""

    __slots__ = ("digests", "keys", "metadata")

    def __init__(self, metadata: TableMetadata) -> None:
        self.metadata = metadata
        self.keys = EventKeys(metadata)
        self.digests = Digests(metadata.table_id)


def _add_changes(events: list[TableEvent], table: _PublishedTable, update: PartitionUpdate, position: int) -> None:
    keys, digests = table.keys, table.digests
    partition_key = update.partition_key
    partition = keys.partition(partition_key)
    if update.partition_deletion is not None:
        deletion = update.partition_deletion
        digest = digests.of_partition_deletion(partition_key, deletion)
        key = keys.key(partition, ())
        events.append(
            TableEvent(keys, _partition_deletion(key, partition_key, digest, deletion, position, len(events)))
        )
    for tombstone in update.range_tombstones:
        digest = digests.of_range_deletion(partition_key, tombstone)
        key = keys.key(partition, ())
        events.append(TableEvent(keys, _range_deletion(key, partition_key, digest, tombstone, position, len(events))))
    static_row = update.static_row
    if static_row is not None:
        _add_row(events, table, partition, partition_key, MutationKind.STATIC_ROW, static_row, position)
    for row in update.rows:
        _add_row(events, table, partition, partition_key, _row_kind(row), row, position)


def _add_row(
    events: list[TableEvent],
    table: _PublishedTable,
    partition: bytes,
    partition_key: bytes,
    kind: MutationKind,
    row: Row,
    position: int,
) -> None:
    keys = table.keys
    digest = table.digests.of_row(kind, partition_key, row)
    key = keys.key(partition, row.clustering)
    events.append(TableEvent(keys, _row_event(key, partition_key, digest, kind, row, position, len(events))))


def _partition_deletion(
    key: bytes, partition_key: bytes, digest: bytes, deletion: DeletionTime, position: int, ordinal: int
) -> MutationEvent:
    return MutationEvent(
        position=position,
        ordinal=ordinal,
        kind=MutationKind.PARTITION_DELETION,
        key=key,
        partition_key=partition_key,
        digest=digest,
        writetime_us=deletion.timestamp,
        deletion_time_us=deletion.timestamp,
    )


def _range_deletion(
    key: bytes, partition_key: bytes, digest: bytes, tombstone: RangeTombstone, position: int, ordinal: int
) -> MutationEvent:
    return MutationEvent(
        position=position,
        ordinal=ordinal,
        kind=MutationKind.RANGE_DELETION,
        key=key,
        partition_key=partition_key,
        digest=digest,
        writetime_us=tombstone.timestamp,
        deletion_time_us=tombstone.timestamp,
        bounds=RangeBounds(
            # RangeBounds has no nulls: an absent value inside a bound becomes empty bytes.
            start=tuple(value or b"" for value in tombstone.start),
            start_inclusive=tombstone.start_inclusive,
            end=tuple(value or b"" for value in tombstone.end),
            end_inclusive=tombstone.end_inclusive,
        ),
    )


def _row_kind(row: Row) -> MutationKind:
    if row.deletion is not None and row.liveness is None and not row.cells and not row.complex_deletions:
        return MutationKind.ROW_DELETION
    return MutationKind.ROW


def _row_event(
    key: bytes, partition_key: bytes, digest: bytes, kind: MutationKind, row: Row, position: int, ordinal: int
) -> MutationEvent:
    deletion, liveness = row.deletion, row.liveness
    writetime = live_writetime = _NO_TIME
    expiry = -1
    # A row marker or live cell without a TTL keeps the row, even when all others expire.
    is_permanent = liveness is not None and liveness.local_expiration_time is None
    marker_expiry = NO_MARKER
    columns: dict[str, None] = {}
    if deletion is not None:
        writetime = deletion.timestamp
    if liveness is not None:
        writetime = max(writetime, liveness.timestamp)
        expiry = -1 if liveness.local_expiration_time is None else liveness.local_expiration_time
        marker_expiry = MARKER_STAYS if liveness.local_expiration_time is None else liveness.local_expiration_time
    for complex_deletion in row.complex_deletions:
        writetime = max(writetime, complex_deletion.timestamp)
        columns[complex_deletion.column.name] = None
    for cell in row.cells:
        columns[cell.column.name] = None
        timestamp = cell.timestamp
        if timestamp > writetime:  # noqa: PLR1730  # a call to max costs three comparisons
            writetime = timestamp
        if cell.value is not None:
            if timestamp > live_writetime:  # noqa: PLR1730
                live_writetime = timestamp
            if not cell.ttl or cell.local_deletion_time is None:
                is_permanent = True
            elif cell.local_deletion_time > expiry:
                expiry = cell.local_deletion_time
    # This bypasses the named tuple's constructor, which is a Python function, and takes half the time.
    return _new_tuple(
        MutationEvent,
        (
            position,
            ordinal,
            kind,
            key,
            partition_key,
            digest,
            row.clustering,
            None if writetime == _NO_TIME else writetime,
            None if live_writetime == _NO_TIME else live_writetime,
            None if deletion is None else deletion.timestamp,
            None if is_permanent or expiry < 0 else expiry,
            None,
            tuple(columns),
            marker_expiry,
        ),
    )
