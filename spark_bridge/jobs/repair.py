"""Sends single rows through a table's events topic again, so that the connector publishes what Cassandra has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from uuid import UUID

from pyspark.sql import Row

from schemas.cql_bytes import UnwritableKeyError
from schemas.cql_type import NativeType
from schemas.table_metadata import TableMetadata
from schemas.topics import events_topic
from spark_bridge.jobs.cassandra_rows import CassandraAccess
from spark_bridge.jobs.row_events import RowEvents, events_partitions
from spark_bridge.jobs.row_keys import RowKey, RowKeys, token_of
from spark_bridge.jobs.row_sender import node_id_of
from spark_bridge.jobs.table_comparison import ID
from spark_bridge.topics.options import BridgeOptions

__all__ = ["RepairTarget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairTarget:
    """The events topic of a table, with its partitions."""

    options: BridgeOptions
    table: TableMetadata
    partitions: tuple[str, ...]
    node_id: UUID
    hides_key: bool

    @classmethod
    def find(
        cls,
        options: BridgeOptions,
        access: CassandraAccess,
        table: TableMetadata,
        events_prefix: str,
        *,
        hides_key: bool = False,
    ) -> RepairTarget:
        """The events topic of a table. `hides_key`: keys on the data topic are not those of the table.

        Raises TopicError when there is no events topic, PulsarUnreachableError, CassandraReadError.
        """
        events = options.of_topic(events_topic(table.keyspace, table.name, events_prefix))
        partitions = tuple(events_partitions(events, table.keyspace, table.name))
        return cls(options=events, table=table, partitions=partitions, node_id=node_id_of(access), hides_key=hides_key)

    def send(self, rows: Sequence[Row]) -> tuple[str, ...]:
        """Send an event for each row of a comparison. Return the keys (JSON) for which no event could be made.

        The broker has the events when this returns. They have no write time, so the connector proves its read of the
        row by a second read. Raises EventSendError.
        """
        keys, unwritable = RowKeys(self.table), []
        with closing(RowEvents(self.options, self.table, self.partitions, self.node_id)) as events:
            for row in rows:
                try:
                    key = self._key_of(row, keys)
                except UnwritableKeyError:
                    unwritable.append((row.cassandra or row.topic).key)
                    continue
                token = token_of(key.parts[: len(self.table.partition_key)])
                events.add(key.avro, key.parts, token, key.has_row, None)
            events.flush()
        return tuple(unwritable)

    def _key_of(self, row: Row, keys: RowKeys) -> RowKey:
        """The key of a row: Cassandra's own bytes if it has the row, else the topic's key.

        Raises UnwritableKeyError.
        """
        is_static = row[ID].startswith("static:")
        if row.cassandra is not None:
            parts = tuple(None if each is None else bytes(each) for each in row.cassandra.key_parts)
            avro = keys.avro_of(parts) if self.hides_key else bytes(row.cassandra.key_bytes)
            return RowKey(avro=avro, parts=parts, has_row=not is_static)
        if self.hides_key:
            raise UnwritableKeyError(NativeType("text"), "of a hidden key column")
        avro = bytes(row.topic.key_bytes)
        return keys.static_row_of(avro) if is_static else keys.row_of(avro)
