"""Events for rows without a change: they make the connector read and publish the row as it is now.

The segment id is the one for snapshots, so the connector's records carry `snapshot=true`. Each event has its own
digest, so that none is dropped as another replica's copy.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import pulsar

from clients.pulsar_schema import ReadyBytes
from schemas.cql_bytes import joined_partition_key
from schemas.cql_identifier import cql_identifier
from schemas.cql_type import is_multi_cell
from schemas.mutation_event import (
    MUTATION_EVENTS_SCHEMA_TEXT,
    SNAPSHOT_SEGMENT_ID,
    MutationEvent,
    MutationEvents,
    MutationKind,
    encode_events,
)
from schemas.row_record import events_key_schema, schema_text
from schemas.table_metadata import TableMetadata
from schemas.topics import partition_of_token
from spark_bridge.errors import EventSendError, TopicError
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.client import open_client
from spark_bridge.topics.options import BridgeOptions

__all__ = ["RowEvents", "events_partitions"]

_EVENTS_PER_MESSAGE: Final = 500


def events_partitions(options: BridgeOptions, keyspace: str, table: str) -> list[str]:
    """Topic partitions of a table's events topic, which is the topic of `options`.

    Raises TopicError if there is no such topic, with advice on how to get it; PulsarUnreachableError.
    """
    with PulsarAdmin(options) as admin:
        try:
            return list(admin.topic_partitions())
        except TopicError as error:
            name = f"{cql_identifier(keyspace)}.{cql_identifier(table)}"
            reason = (
                f"does not exist: an agent makes it when {name} has CDC. Run ALTER TABLE {name} WITH cdc = true, and see "
                "that agents run (cdc status); with another topicPrefix of theirs, give --events-prefix"
            )
            raise TopicError(error.place, reason) from None


class RowEvents:
    """Publishes events to the topic partitions of one table's events topic; owns its Pulsar client.

    Nothing is sure to be published before `flush` has returned.
    """

    def __init__(self, options: BridgeOptions, table: TableMetadata, partitions: Sequence[str], node_id: UUID) -> None:
        """`partitions` in order; `node_id` is the host id of a node of the cluster. Raises EventSendError."""
        self._table = table
        self._node_id = node_id
        self._key_schema = schema_text(events_key_schema(table))
        self._columns = tuple(each.name for each in table.regular_columns if not is_multi_cell(each.type))
        self._waiting: list[list[MutationEvent]] = [[] for _ in partitions]
        self._failures: list[str] = []
        self._client = open_client(options)
        self._topic = partitions[0]
        schema = ReadyBytes.of("MutationEvents", MUTATION_EVENTS_SCHEMA_TEXT)
        try:
            self._producers = [
                self._client.create_producer(each, schema=schema, block_if_queue_full=True) for each in partitions
            ]
        except pulsar.PulsarException as error:
            self._client.close()
            raise EventSendError(self._topic, f"the broker gives no producer ({error})") from None
        self._sent = 0

    def add(
        self, key: bytes, key_parts: Sequence[bytes | None], token: int, has_row: bool, live_writetime_us: int | None
    ) -> None:
        """Add an event for one row, by its key in Avro and the CQL bytes of the key's columns.

        `has_row` false: the event is for the static columns. `live_writetime_us`: the newest write time of the row's
        regular columns, by which the connector proves its read.
        """
        width = len(self._table.partition_key)
        self._sent += 1
        event = MutationEvent(
            position=self._sent % (1 << 31),
            ordinal=0,
            kind=MutationKind.ROW if has_row else MutationKind.STATIC_ROW,
            key=key,
            partition_key=joined_partition_key([each or b"" for each in key_parts[:width]]),
            clustering=tuple(key_parts[width:]) if has_row else (),
            digest=os.urandom(16),
            writetime_us=live_writetime_us,
            live_cell_writetime_us=live_writetime_us,
            columns=self._columns if live_writetime_us is not None else (),
        )
        partition = partition_of_token(token, len(self._producers))
        self._waiting[partition].append(event)
        if len(self._waiting[partition]) >= _EVENTS_PER_MESSAGE:
            self._send(partition)

    def flush(self) -> None:
        """Return when the broker has all events that were added. Raises EventSendError."""
        for partition in range(len(self._producers)):
            self._send(partition)
        try:
            for producer in self._producers:
                producer.flush()
        except pulsar.PulsarException as error:
            self._failures.append(str(error))
        if self._failures:
            raise EventSendError(self._topic, f"{len(self._failures)} messages were refused ({self._failures[0]})")

    def close(self) -> None:
        """Close the client. Events that were not flushed are given up."""
        self._client.close()

    def _send(self, partition: int) -> None:
        events, self._waiting[partition] = self._waiting[partition], []
        if not events:
            return
        message = MutationEvents(
            node_id=self._node_id,
            segment_id=SNAPSHOT_SEGMENT_ID,
            keyspace=self._table.keyspace,
            table=self._table.name,
            table_id=self._table.table_id,
            key_schema=self._key_schema,
            events=tuple(events),
        )
        self._producers[partition].send_async(encode_events(message), self._sent_or_failed)

    def _sent_or_failed(self, result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            self._failures.append(str(result))
