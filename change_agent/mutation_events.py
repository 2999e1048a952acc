"""From a decoded mutation to the events that are published about it, in a fixed order.

Of each table: its partition deletion, its range deletions, its static row, its rows; what deletes many rows stands
before what may live on. Tables without `cdc = true`, views and system tables have none. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, final

from change_agent.db.values import Clustering, DeletionTime, Mutation, PartitionUpdate, RangeTombstone, Row
from change_agent.digest import partition_deletion_digest, range_deletion_digest, row_digest
from schemas.avro_names import avro_names
from schemas.cql_value import AvroValue, split_partition_key, value_reader
from schemas.mutation_event import MutationEvent, MutationKind, RangeBounds
from schemas.row_record import events_key_schema, record_writer, schema_text
from schemas.table_metadata import TableMetadata

__all__ = ["EventKeys", "MutationEventBuilder", "TableEvent", "is_published"]

_SYSTEM_KEYSPACES: Final = frozenset({
    "system", "system_auth", "system_distributed", "system_schema", "system_traces",
})  # fmt: skip


# Long.MIN_VALUE, which Cassandra never stores as a time of a write.
_NO_TIME: Final = -0x8000_0000_0000_0000


def is_published(table: TableMetadata) -> bool:
    """True when changes of this table become events."""
    return table.cdc and not table.is_view and table.keyspace not in _SYSTEM_KEYSPACES


@final
class EventKeys:
    """Writes the Avro keys of one table's events; `schema` is the Avro schema they are written with, as JSON."""

    __slots__ = ("_clustering", "_no_clustering", "_partition", "_write", "schema", "table")

    def __init__(self, table: TableMetadata) -> None:
        self.table: Final = table
        avro = events_key_schema(table)
        self.schema: Final = schema_text(avro)
        self._write: Final = record_writer(avro)
        names = avro_names([each.name for each in table.primary_key])
        readers = [(name, value_reader(each.type)) for name, each in zip(names, table.primary_key, strict=True)]
        self._partition: Final = readers[: len(table.partition_key)]
        self._clustering: Final = readers[len(table.partition_key) :]
        self._no_clustering: Final[dict[str, AvroValue]] = dict.fromkeys(name for name, _ in self._clustering)

    def partition(self, partition_key: bytes) -> dict[str, AvroValue]:
        """The values of a partition key by the columns' names in Avro. Raises CqlValueError."""
        values = split_partition_key(partition_key, len(self._partition))
        return {name: read(value) for (name, read), value in zip(self._partition, values, strict=True)}

    def key(self, partition: dict[str, AvroValue], clustering: Clustering) -> bytes:
        """The Avro key of a row, or of a partition where `clustering` is empty. Raises CqlValueError."""
        if not clustering:
            return self._write(partition | self._no_clustering)
        record = partition.copy()
        for (name, read), value in zip(self._clustering, clustering, strict=True):
            record[name] = None if value is None else read(value)
        return self._write(record)


class TableEvent(NamedTuple):
    """An event and the keys of its table."""

    keys: EventKeys
    event: MutationEvent


class MutationEventBuilder:
    """Builds events; keeps what it worked out per table, and notices when a table's metadata changed."""

    def __init__(self) -> None:
        self._keys: Final[dict[bytes, EventKeys]] = {}
        self._unpublished: frozenset[bytes] = frozenset()

    def leave_out(self, table_ids: frozenset[bytes]) -> None:
        """No events of these tables from now on, whatever their options say."""
        self._unpublished = table_ids

    def events_of(self, mutation: Mutation, position: int) -> list[TableEvent]:
        """The events of the entry that ends at `position`. Raises CqlValueError for a key that its types refuse."""
        events: list[TableEvent] = []
        for update in mutation.updates:
            table = update.table
            if is_published(table) and table.table_id.bytes not in self._unpublished:
                keys = self._keys_of(update.table)
                changes = _changes(keys, update, position, len(events))
                events.extend([TableEvent(keys, change) for change in changes])
        return events

    def _keys_of(self, table: TableMetadata) -> EventKeys:
        keys = self._keys.get(table.table_id.bytes)
        if keys is None or keys.table is not table:
            keys = self._keys[table.table_id.bytes] = EventKeys(table)
        return keys


def _changes(keys: EventKeys, update: PartitionUpdate, position: int, ordinal: int) -> Iterator[MutationEvent]:
    partition_key = update.partition_key
    partition = keys.partition(partition_key)
    table_id = update.table.table_id
    if update.partition_deletion is not None:
        deletion = update.partition_deletion
        digest = partition_deletion_digest(table_id, partition_key, deletion)
        yield _partition_deletion(keys.key(partition, ()), partition_key, digest, deletion, position, ordinal)
        ordinal += 1
    for tombstone in update.range_tombstones:
        digest = range_deletion_digest(table_id, partition_key, tombstone)
        yield _range_deletion(keys.key(partition, ()), partition_key, digest, tombstone, position, ordinal)
        ordinal += 1
    rows = update.rows if update.static_row is None else [update.static_row, *update.rows]
    for row in rows:
        kind = _row_kind(row, row is update.static_row)
        digest = row_digest(table_id, kind, partition_key, row)
        yield _row_event(keys.key(partition, row.clustering), partition_key, digest, kind, row, position, ordinal)
        ordinal += 1


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
            # A null inside a bound ends the prefix that it stands for, as an absent component does.
            start=tuple(value or b"" for value in tombstone.start),
            start_inclusive=tombstone.start_inclusive,
            end=tuple(value or b"" for value in tombstone.end),
            end_inclusive=tombstone.end_inclusive,
        ),
    )


def _row_kind(row: Row, is_static: bool) -> MutationKind:
    if is_static:
        return MutationKind.STATIC_ROW
    if row.deletion is not None and row.liveness is None and not row.cells and not row.complex_deletions:
        return MutationKind.ROW_DELETION
    return MutationKind.ROW


def _row_event(
    key: bytes, partition_key: bytes, digest: bytes, kind: MutationKind, row: Row, position: int, ordinal: int
) -> MutationEvent:
    deletion, liveness = row.deletion, row.liveness
    writetime = live_writetime = _NO_TIME
    expiry = -1
    # What is written without a TTL keeps the row, whatever expires beside it.
    is_permanent = liveness is not None and liveness.local_expiration_time is None
    columns: dict[str, None] = {}
    if deletion is not None:
        writetime = deletion.timestamp
    if liveness is not None:
        writetime = max(writetime, liveness.timestamp)
        expiry = -1 if liveness.local_expiration_time is None else liveness.local_expiration_time
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
    return MutationEvent(
        position=position,
        ordinal=ordinal,
        kind=kind,
        key=key,
        partition_key=partition_key,
        clustering=row.clustering,
        digest=digest,
        writetime_us=None if writetime == _NO_TIME else writetime,
        live_cell_writetime_us=None if live_writetime == _NO_TIME else live_writetime,
        deletion_time_us=None if deletion is None else deletion.timestamp,
        expiry_time_s=None if is_permanent or expiry < 0 else expiry,
        columns=tuple(columns),
    )
