"""GapsTopic: the gap records of an events prefix, and the records that close gaps (schemas.gap_record)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Final

import pulsar

from clients.pulsar_schema import ReadyBytes
from schemas.gap_record import (
    GAP_SCHEMA_TEXT,
    GapRecord,
    MalformedGapError,
    decode_gap,
    encode_gap,
    gaps_topic,
    open_gaps,
)
from spark_bridge.errors import EventSendError, PulsarUnreachableError
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.client import open_client
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.positions import BEGINNING, Position

__all__ = ["GapsTopic"]


class GapsTopic:
    """The gaps topic of the options' `eventsTopicPrefix`. Each call opens its own connections. For one thread."""

    def __init__(self, options: BridgeOptions) -> None:
        self._options: Final = options
        self.name: Final = gaps_topic(options.events_topic_prefix)
        # Number of messages that the last `open_gaps` found and that are not gap records.
        self.foreign_messages = 0

    def open_gaps(self) -> list[GapRecord]:
        """The gaps that no record has closed, and that no operator has acknowledged on the connector's subscription.

        Empty if the topic does not exist, because then no agent has reported a gap. Raises PulsarUnreachableError.
        """
        self.foreign_messages = 0
        return open_gaps(self._records())

    def close(self, gaps: Iterable[GapRecord], outcome: str) -> None:
        """Publish a closing record for each gap, and wait until the broker has stored them. Raises EventSendError."""
        closed_ms = int(time.time() * 1000)
        with closing(open_client(self._options)) as client:
            try:
                producer = client.create_producer(
                    self._first_partition(), schema=ReadyBytes.of("Gap", GAP_SCHEMA_TEXT), batching_enabled=False
                )
                for each in gaps:
                    producer.send(encode_gap(each.closed(closed_ms, outcome)))
            except pulsar.PulsarException as error:
                raise EventSendError(
                    self.name, f"the broker did not store the closing records ({error}); run again"
                ) from None

    def _records(self) -> Iterator[GapRecord]:
        acknowledged = self._acknowledged()
        if not acknowledged:
            return
        with closing(open_client(self._options)) as client:
            try:
                for name, position in acknowledged.items():
                    yield from self._records_of(client, name, position)
            except pulsar.PulsarException as error:
                reason = f"the gaps topic {self.name} cannot be read ({error})"
                raise PulsarUnreachableError(self._options.service_url, reason) from None

    def _records_of(self, client: pulsar.Client, name: str, acknowledged: Position) -> Iterator[GapRecord]:
        reader = client.create_reader(name, pulsar.MessageId.earliest, reader_name="gaps")
        while reader.has_message_available():
            message = reader.read_next(timeout_millis=self._options.operation_timeout_seconds * 1000)
            place = message.message_id()
            if Position(place.ledger_id(), place.entry_id()) <= acknowledged:
                continue
            try:
                yield decode_gap(bytes(message.data()))
            except MalformedGapError:
                self.foreign_messages += 1

    def _acknowledged(self) -> dict[str, Position]:
        """By topic partition: the position up to which the connector's subscription has acknowledged everything."""
        subscription = self._options.events_subscription_name
        with PulsarAdmin(self._options) as admin:
            names = admin.existing_partitions(self.name)
            return {name: admin.storage(name)[1].get(subscription, BEGINNING) for name in names}

    def _first_partition(self) -> str:
        """The partition that all agents publish to. Raises EventSendError."""
        with PulsarAdmin(self._options) as admin:
            names = admin.existing_partitions(self.name)
        if not names:
            raise EventSendError(self.name, "the topic was deleted since its gaps were read; run again")
        return names[0]
