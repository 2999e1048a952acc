"""What the tables of a source share. Values and the stages themselves, no work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from schemas.errors import CdcError
from source_connector.data_format import DataFormat
from source_connector.encoding.projection import Projection
from source_connector.events.dead_letter_writer import DeadLetterWriter
from source_connector.events.dead_letters import DeadLetter
from source_connector.events.events_message import UnreadableMessage
from source_connector.events.mutation_cache import MutationCache
from source_connector.host.record import DataSchema
from source_connector.metrics import Metrics
from source_connector.rows.cassandra_client import CassandraClient
from source_connector.rows.last_rows import LastRows
from source_connector.rows.outbox import Outbox
from source_connector.rows.read_request import ReadRequest, Rows
from source_connector.rows.row_fetcher import Answer
from source_connector.rows.row_task import Reading
from source_connector.tables.data_partitions import DataPartitions
from source_connector.tables.schema_changes import SchemaChangeTopic
from source_connector.tables.schema_looks import SchemaLooks
from source_connector.timers import Timers

__all__ = ["Limits", "Stages"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is published in which format, how long between attempts, and how many of them before an event is set aside."""

    columns: str
    range_deletions: bool
    data_format: DataFormat
    backoff_s: float
    max_backoff_s: float
    max_failures: int
    reading: Reading


class Fetcher(Protocol):
    """What `source_connector.rows.row_fetcher.RowFetcher` is to the others."""

    @property
    def has_room(self) -> bool:
        """False when enough reads wait."""

    @property
    def has_bytes(self) -> bool:
        """False when the rows that reads wait for may be too large together."""

    @property
    def in_flight_limit(self) -> int:
        """How many statements may be under way now."""

    def prepare(self, projection: Projection) -> None:
        """Prepare for a projection."""

    def start(self, ticket: object, request: ReadRequest) -> None:
        """Queue a read."""

    def flush(self) -> list[tuple[object, Rows | CdcError]]:
        """Send what may be sent; reads that failed before."""

    def answered(self, answer: Answer) -> list[tuple[object, Rows | CdcError]]:
        """The reads that are over with this answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """What the tables of a source share."""

    client: CassandraClient
    fetcher: Fetcher
    cache: MutationCache
    outbox: Outbox
    looks: SchemaLooks
    timers: Timers
    letters: DeadLetterWriter
    changes: SchemaChangeTopic
    data_partitions: DataPartitions
    metrics: Metrics
    last_rows: LastRows | None
    limits: Limits
    send: Callable[[bytes], None]
    """To the host."""
    look_at_schema: Callable[[DataSchema], None]
    """Whether it is its topic's newest one; answered by a `SchemaLookedAt`."""
    new_schema_id: Callable[[], int]

    def set_aside(self, message: UnreadableMessage) -> None:
        """A message that is no event, now or ever."""
        _log.error(
            "%s message %s goes to the dead-letter topic %s: %s",
            message.topic, message.message_id, self.letters.topic, message.reason,
        )  # fmt: skip
        self.metrics.counters["messages_dead_lettered"] += 1
        self.letters.write(message, [DeadLetter.of_message(message)])
