"""Sends one row through its events topic again, so that the connector publishes what Cassandra has."""

from __future__ import annotations

import os
import time
from typing import Final
from uuid import UUID

import pulsar

from cdc.health.line_config import LineConfig
from cdc.health.pulsar_service import NotThereError, PulsarService
from cdc.trace.broker_errors import remedy_of
from cdc.trace.row_key import RowKey
from schemas.errors import CdcError, ConfigError
from schemas.mutation_event import (
    MUTATION_EVENTS_SCHEMA_TEXT,
    SNAPSHOT_SEGMENT_ID,
    MutationEvent,
    MutationEvents,
    MutationKind,
    encode_events,
)
from schemas.row_record import events_key_schema, schema_text
from schemas.topics import events_topic, full_topic_name, partition_of_token
from source_connector.encoding.projection import Projection
from source_connector.events.pulsar_access import new_client, schema_of_bytes

__all__ = ["ResendError", "resend_row"]

_POSITIONS: Final = 1 << 31


class ResendError(CdcError):
    """The event could not be published; the text says why."""


def resend_row(config: LineConfig, key: RowKey, node_id: UUID) -> str:
    """Publish an event for the row, or for the static columns of a partition. Return its place on the topic.

    Raises ConfigError for a partition of a table without static columns, PulsarServiceError, ResendError.
    """
    table = key.table
    if not key.is_row and not table.static_columns:
        asked = " ".join(column.name.upper() for column in table.primary_key)
        raise ConfigError.of("KEY", f"a whole row has to be named: {asked}; {table.full_name} has no static columns")
    topic = full_topic_name(events_topic(table.keyspace, table.name, config.topic_prefix))
    with PulsarService(config) as service:
        try:
            partitions = service.partitions(topic)
        except NotThereError as error:
            text = f"{topic} does not exist: set cdc = true for the table, and see that its agent runs (cdc status)"
            raise ResendError(text) from error
    name = f"{topic}-partition-{partition_of_token(key.token, partitions)}" if partitions else topic
    client = new_client(config.pulsar_options, is_quiet=True, timeout_s=10)
    try:
        schema = schema_of_bytes("AVRO", "MutationEvents", MUTATION_EVENTS_SCHEMA_TEXT)
        message_id = client.create_producer(name, schema=schema).send(encode_events(_message(key, node_id)))
    except pulsar.PulsarException as error:
        raise ResendError(f"{name}: the event was not taken ({error}); {remedy_of(error, 'produce')}") from error
    finally:
        client.close()
    return f"{name.rpartition('/')[2]} {message_id.ledger_id()}:{message_id.entry_id()}"


def _message(key: RowKey, node_id: UUID) -> MutationEvents:
    """A message with the event.

    It has the segment id of events for unchanged rows. Its digest is random, so it is never taken for another
    replica's copy of an event.
    """
    table = key.table
    event = MutationEvent(
        position=time.time_ns() // 1_000 % _POSITIONS,
        ordinal=0,
        kind=MutationKind.ROW if key.is_row else MutationKind.STATIC_ROW,
        key=Projection(table).avro_key(key.parts),
        partition_key=key.partition_key,
        clustering=key.clustering,
        digest=os.urandom(16),
    )
    return MutationEvents(
        node_id=node_id,
        segment_id=SNAPSHOT_SEGMENT_ID,
        keyspace=table.keyspace,
        table=table.name,
        table_id=table.table_id,
        key_schema=schema_text(events_key_schema(table)),
        events=(event,),
    )
