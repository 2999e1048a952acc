"""Decodes the payload of a commit log entry to a Mutation.

    Mutation        => Vint count, {PartitionUpdate}
    PartitionUpdate => TableId PartitionKey Flags [Header [DeletionTime] [StaticRow] [RowEstimate] {Unfiltered}]
      TableId       => 16 bytes
      PartitionKey  => Vint length, bytes
      RowEstimate   => Vint

An update does not have its length: only reading it finds its end. So an unknown table makes the rest of the mutation
unreadable.

Cassandra source: o.a.c.db.Mutation.MutationSerializer, o.a.c.db.partitions.PartitionUpdate.PartitionUpdateSerializer,
o.a.c.db.rows.UnfilteredRowIteratorSerializer. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final
from uuid import UUID

from change_agent.data_input import DataInput
from change_agent.db.rows import read_deletion_time, read_static_row, read_unfiltereds
from change_agent.db.serialization_header import TableLayout, read_header
from change_agent.db.values import Mutation, PartitionUpdate
from change_agent.errors import MalformedMutationError, UnknownTableError
from change_agent.format_version import version_rules
from schemas.table_metadata import TableMetadata

__all__ = ["MutationDecoder", "decode_mutation"]

_IS_EMPTY: Final = 0x01
_IS_REVERSED: Final = 0x02
_HAS_PARTITION_DELETION: Final = 0x04
_HAS_STATIC_ROW: Final = 0x08
_HAS_ROW_ESTIMATE: Final = 0x10


@final
class MutationDecoder:
    """Decodes mutations of one set of tables. It caches their layouts, so a changed schema needs a new decoder."""

    def __init__(self, tables: Mapping[UUID, TableMetadata]) -> None:
        self._tables = tables
        self._layouts: dict[bytes, TableLayout] = {}
        # The commit log version of the last mutation, which may change with the segment, and its rule.
        self._version = -1
        self._unsigned_deletion_times = False

    def decode(self, payload: bytes, version: int) -> Mutation:
        """The complete mutation of an entry, from a segment of this version.

        Raises UnknownTableError, UnknownColumnError, MalformedMutationError, BufferUnderflowError,
        UnsupportedVersionError, all without segment and position (CommitLogReadError.with_location adds them).
        """
        if version != self._version:
            self._unsigned_deletion_times = version_rules(version).unsigned_deletion_times
            self._version = version
        data = DataInput(payload)
        count = data.read_length()
        if count == 0:
            raise MalformedMutationError("a mutation without updates")
        updates = [self._read_update(data) for _ in range(count)]
        if data.remaining():
            raise MalformedMutationError(f"{data.remaining()} bytes are left after the mutation")
        if count > 1 and len({update.table.table_id for update in updates}) != count:
            raise MalformedMutationError("a mutation updates the same table twice")
        return Mutation(updates)

    def _read_update(self, data: DataInput) -> PartitionUpdate:
        layout = self._layout(data.read_bytes(16))
        partition_key = data.read_with_vint_length()
        flags = data.read_unsigned_byte()
        if flags & _IS_EMPTY:
            return PartitionUpdate(layout.table, partition_key, None, None, [], [])
        if flags & _IS_REVERSED or not flags & _HAS_ROW_ESTIMATE:
            raise MalformedMutationError(f"a partition update has flags {flags:#x}")
        header = read_header(data, layout, flags & _HAS_STATIC_ROW != 0, self._unsigned_deletion_times)
        partition_deletion = read_deletion_time(data, header) if flags & _HAS_PARTITION_DELETION else None
        static_row = read_static_row(data, header) if flags & _HAS_STATIC_ROW else None
        if static_row is not None and static_row.is_empty():
            static_row = None
        data.read_unsigned_vint()  # the row estimate only sizes Cassandra's buffers
        rows, range_tombstones = read_unfiltereds(data, header)
        return PartitionUpdate(layout.table, partition_key, partition_deletion, static_row, rows, range_tombstones)

    def _layout(self, table_id: bytes) -> TableLayout:
        layout = self._layouts.get(table_id)
        if layout is None:
            table = self._tables.get(UUID(bytes=table_id))
            if table is None:
                raise UnknownTableError(UUID(bytes=table_id))
            layout = self._layouts[table_id] = TableLayout(table)
        return layout


def decode_mutation(payload: bytes, version: int, tables: Mapping[UUID, TableMetadata]) -> Mutation:
    """Decode a single mutation. Use MutationDecoder to decode many."""
    return MutationDecoder(tables).decode(payload, version)
