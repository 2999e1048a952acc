"""Writes events as an agent does, for tests of the connector that make their own events."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import cast
from uuid import UUID

import _pulsar
import pulsar
from cassandra.cluster import Session

from cdc.rest import rest
from schemas.mutation_event import (
    CLEARING_SCHEMA_TEXT,
    MUTATION_EVENTS_SCHEMA_TEXT,
    Clearing,
    ClearingKind,
    MutationEvent,
    MutationEvents,
    MutationKind,
    RangeBounds,
    encode_clearing,
    encode_events,
)
from schemas.row_record import events_key_schema, schema_text
from schemas.system_schema import SELECTS, tables_of
from schemas.table_metadata import TableMetadata
from schemas.topics import DEFAULT_EVENTS_PREFIX, events_topic
from schemas.truncation import truncations_of
from source_connector.encoding.projection import Projection
from tests.servers.interface import PulsarServer
from tests.topics.client import quiet_client

__all__ = ["EventsWriter", "table_metadata"]

_LISTS = ("tables", "columns", "types", "dropped_columns")
_SEND_TIMEOUT_MS = 120_000


def table_metadata(session: Session, keyspace: str, table: str) -> TableMetadata:
    """The metadata of a table, from the node's system tables."""
    schema = {}
    for name in _LISTS:
        rows = session.execute(SELECTS[name] + " WHERE keyspace_name = %s", (keyspace,))
        schema[name] = [
            {column: value.hex() if isinstance(value, bytes) else value for column, value in row._asdict().items()}
            for row in rows
        ]
    return next(each for each in tables_of(schema).values() if each.name == table)


class _AvroBytes(pulsar.schema.Schema):  # type: ignore[misc]  # the client has no types
    """Registers the schema of events, or another one, and sends bytes as they are."""

    def __init__(self, schema: str = MUTATION_EVENTS_SCHEMA_TEXT) -> None:
        super().__init__(bytes, _pulsar.SchemaType.AVRO, {"type": "record"}, "AVRO")
        self._schema_info = _pulsar.SchemaInfo(_pulsar.SchemaType.AVRO, "MutationEvents", schema)

    def encode(self, obj: bytes) -> bytes:
        return obj


class EventsWriter:
    """One table's events. Creates the topic and the connector's subscription, as an agent does. Close it."""

    def __init__(
        self,
        session: Session,
        server: PulsarServer,
        keyspace: str,
        table: str,
        *,
        partitions: int = 2,
        prefix: str = DEFAULT_EVENTS_PREFIX,
    ) -> None:
        self.table = table_metadata(session, keyspace, table)
        self.topic = events_topic(keyspace, table, prefix)
        self._session = session
        self._node = cast("UUID", session.execute("SELECT host_id FROM system.local").one().host_id)
        self._positions = itertools.count(100, 100)
        path = f"{server.admin_url}/admin/v2/{self.topic.replace('://', '/')}"
        rest().put(
            f"{path}/partitions", content=str(partitions), headers={"content-type": "application/json"}
        ).raise_for_status()
        rest().put(f"{path}/subscription/sub", json={"ledgerId": -1, "entryId": -1}).raise_for_status()
        self.partitions = partitions
        self._client = quiet_client(server.service_url)
        self._producers = [self._producer(index, _AvroBytes()) for index in range(partitions)]

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def refresh(self) -> None:
        """Read the table's metadata again."""
        self.table = table_metadata(self._session, self.table.keyspace, self.table.name)

    def event(
        self,
        *key: bytes,
        kind: MutationKind = MutationKind.ROW,
        writetime_us: int = 1,
        columns: Sequence[str] = (),
        is_live: bool = True,
        digest: bytes | None = None,
        bounds: RangeBounds | None = None,
    ) -> MutationEvent:
        """Make an event. `key`: the CQL bytes of the partition columns, then those of the clustering columns."""
        position = next(self._positions)
        width = len(self.table.partition_key)
        partition, clustering = key[:width], key[width:]
        deletes = kind not in (MutationKind.ROW, MutationKind.STATIC_ROW)
        return MutationEvent(
            position=position,
            ordinal=0,
            kind=kind,
            key=Projection(self.table).avro_key(key),
            partition_key=_partition_key(partition),
            clustering=clustering,
            digest=digest or hashlib.md5(f"{position}{key!r}".encode()).digest(),
            writetime_us=writetime_us,
            live_cell_writetime_us=writetime_us if is_live and columns else None,
            deletion_time_us=writetime_us if deletes else None,
            columns=tuple(columns),
            bounds=bounds,
        )

    def send(
        self,
        *events: MutationEvent,
        partition: int = 0,
        table_id: UUID | None = None,
        node: UUID | None = None,
        segment_id: int = 7,
    ) -> None:
        """Publish events in one message, and wait until the broker has stored it."""
        message = MutationEvents(
            node_id=node or self._node,
            segment_id=segment_id,
            keyspace=self.table.keyspace,
            table=self.table.name,
            table_id=table_id or self.table.table_id,
            key_schema=schema_text(events_key_schema(self.table)),
            events=events,
        )
        self._producers[partition].send(encode_events(message))

    def truncate(self) -> None:
        """Truncate the table, and publish the message of the truncation to every partition."""
        self._session.execute(f"TRUNCATE {self.table.keyspace}.{self.table.name}")
        noted = truncations_of(self._session.execute("SELECT truncated_at FROM system.local").one().truncated_at)
        place = noted[self.table.table_id]
        message = MutationEvents(
            node_id=self._node,
            segment_id=place.segment_id,
            keyspace=self.table.keyspace,
            table=self.table.name,
            table_id=self.table.table_id,
            key_schema=schema_text(events_key_schema(self.table)),
            events=(),
            clearing=Clearing(ClearingKind.TRUNCATION, place.position, place.time_ms),
        )
        for index in range(self.partitions):
            self._producer(index, _AvroBytes(CLEARING_SCHEMA_TEXT)).send(encode_clearing(message))

    def send_bytes(self, data: bytes, partition: int = 0) -> None:
        """Publish other bytes instead of events."""
        self._producers[partition].send(data)

    def send_in_chunks(self, data: bytes) -> None:
        """Publish bytes of any size, in chunks, to the first partition."""
        self._producer(0, _AvroBytes(), chunking_enabled=True).send(data)

    def _producer(self, partition: int, schema: _AvroBytes, **settings: object) -> pulsar.Producer:
        # The default of 30 s for `send` is too short, too.
        return self._client.create_producer(
            f"{self.topic}-partition-{partition}", schema=schema, send_timeout_millis=_SEND_TIMEOUT_MS, **settings
        )


def _partition_key(components: Sequence[bytes]) -> bytes:
    if len(components) == 1:
        return components[0]
    return b"".join(len(each).to_bytes(2, "big") + each + b"\0" for each in components)
