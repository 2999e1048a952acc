"""The values and stages that the tables of a source share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from source_connector.encoding.projection import Projection
from source_connector.events.dead_letter_writer import DeadLetterWriter
from source_connector.events.dead_letters import DeadLetter
from source_connector.events.events_message import PendingEvent, UnreadableMessage
from source_connector.events.expiry_topics import ExpiryTopics
from source_connector.events.mutation_cache import MutationCache
from source_connector.metrics import Metrics
from source_connector.rows.cassandra_client import CassandraClient
from source_connector.rows.last_rows import LastRows
from source_connector.rows.outbox import Outbox
from source_connector.rows.read_request import ReadRequest
from source_connector.rows.row_fetcher import Answer, ReadOver
from source_connector.rows.task import Reading, Task
from source_connector.rows.write_times import WriteTimes
from source_connector.tables.followed_table import SchemaStages
from source_connector.timers import Timers

__all__ = ["Limits", "Stages"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits and options: what is published, how rows are read, pauses between attempts, and the number of attempts."""

    range_deletions: bool
    backoff_s: float
    max_backoff_s: float
    max_failures: int
    reading: Reading


class Fetcher(Protocol):
    """The interface of `source_connector.rows.row_fetcher.RowFetcher`."""

    @property
    def has_room(self) -> bool:
        """False when enough reads wait."""

    @property
    def has_bytes(self) -> bool:
        """False when the rows of the waiting reads may be too large together."""

    @property
    def in_flight_limit(self) -> int:
        """How many statements may be under way now."""

    def prepare(self, projection: Projection) -> None:
        """Prepare for a projection."""

    def start(self, task: Task, request: ReadRequest) -> None:
        """Queue a read."""

    def flush(self) -> list[ReadOver]:
        """Send the reads that may be sent. Return those that failed before they were sent."""

    def answered(self, answer: Answer) -> list[ReadOver]:
        """Return the reads that this answer finishes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The stages that the tables of a source share."""

    client: CassandraClient
    fetcher: Fetcher
    cache: MutationCache
    outbox: Outbox
    timers: Timers
    dead_letters: DeadLetterWriter
    metrics: Metrics
    last_rows: LastRows | None
    write_times: WriteTimes = field(default_factory=WriteTimes)
    expiries: ExpiryTopics | None = None
    """None if expiries are not published."""
    limits: Limits
    schemas: SchemaStages
    output_topic: str = ""
    """The source's own topic, for tables without a destination."""
    is_shared: bool = False
    """True when other instances of the source write to the same topics."""

    def set_events_aside(self, events: Sequence[PendingEvent], reason: str, then: Callable[[], None]) -> None:
        """Write a dead letter for each event. `then` is called when they are written."""
        dead_letters = [DeadLetter.of_event(each, reason) for each in events]

        def written() -> None:
            self.metrics.counters["events_dead_lettered"] += len(dead_letters)
            then()

        self.dead_letters.write(dead_letters, written)

    def set_aside(self, message: UnreadableMessage) -> None:
        """Write a dead letter for a message that can never be read as an event."""
        _log.error(
            "%s message %s goes to the dead-letter topic %s: %s",
            message.topic,
            message.message_id,
            self.dead_letters.topic,
            message.reason,
        )
        self.metrics.counters["messages_dead_lettered"] += 1
        self.dead_letters.write([DeadLetter.of_message(message)], message.settle)
