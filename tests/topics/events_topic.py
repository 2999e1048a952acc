"""Reads an events topic for a test: all partitions, from the beginning, without a durable subscription."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

import httpx
import pulsar
import tenacity

from cdc.rest import rest
from schemas.mutation_event import (
    CLEARING_SCHEMA,
    MalformedEventsError,
    MutationEvent,
    MutationEvents,
    decode_events,
)
from tests.servers.interface import PulsarServer

__all__ = ["EventsTopic", "TopicEvent", "partitions_of", "wait_until"]

# long, for a machine under heavy load; a wait ends as soon as its condition holds
_TIMEOUT_S: Final = 180.0
_SHORTEST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.3
_OPERATION_TIMEOUT_S: Final = 30
_PAUSES_AS_LONG: Final = 4
"""A pause is this many times as long as the check of the condition took, within the limits above."""


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = _TIMEOUT_S) -> None:
    """Return when the condition holds. Raises AssertionError with the text `what` after the timeout."""
    deadline = time.monotonic() + timeout_s
    asked_at = time.monotonic()
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"not within {timeout_s:g} s: {what}"
        # Most checks ask a server, which without pauses would do little else.
        time.sleep(min(_LONGEST_PAUSE_S, max(_SHORTEST_PAUSE_S, _PAUSES_AS_LONG * (now - asked_at))))
        asked_at = time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEvent:
    """One event, with its message, its topic partition and the message's key."""

    message: MutationEvents
    event: MutationEvent
    partition: int
    message_key: str
    received_at: float = field(default_factory=time.time)

    @property
    def place(self) -> tuple[str, int, int, int]:
        """The identity of an event: node, segment, position, ordinal."""
        return str(self.message.node_id), self.message.segment_id, self.event.position, self.event.ordinal


class EventsTopic:
    """The events of a topic that were read so far, in the order of each partition. Close it, or use a `with` block."""

    def __init__(self, server: PulsarServer, topic: str) -> None:
        self.topic = topic
        self._admin_url = server.admin_url
        self._client = pulsar.Client(
            server.service_url,
            operation_timeout_seconds=_OPERATION_TIMEOUT_S,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
        )
        self._readers: list[pulsar.Reader] = []
        self.events: list[TopicEvent] = []
        self.clearings: list[tuple[int, MutationEvents, int]] = []
        """Messages with a clearing: partition, message, and how many events of the partition came before."""
        self.messages = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def read(self) -> list[TopicEvent]:
        """Read all messages that are there now, and return all events so far."""
        if not self._readers:
            names = partitions_of(self._admin_url, self.topic)
            self._readers = [self._reader_of(name) for name in names]
        for partition, reader in enumerate(self._readers):
            while reader.has_message_available():
                received = reader.read_next(timeout_millis=60_000)
                self.messages += 1
                message = _decoded(received.data())
                if message.clearing is not None:
                    before = sum(each.partition == partition for each in self.events)
                    self.clearings.append((partition, message, before))
                self.events += [
                    TopicEvent(message=message, event=each, partition=partition, message_key=received.partition_key())
                    for each in message.events
                ]
        return self.events

    # While the broker creates a partition, it may answer a reader with a temporary error. The client logs it, and does
    # not retry: it waits for its timeout. On a busy machine an attempt may need its whole time, too.
    @tenacity.retry(
        retry=tenacity.retry_if_exception_type(pulsar.Timeout), stop=tenacity.stop_after_attempt(4), reraise=True
    )
    def _reader_of(self, partition: str) -> pulsar.Reader:
        return self._client.create_reader(partition, pulsar.MessageId.earliest)

    def wait_for(self, count: int, timeout_s: float = _TIMEOUT_S) -> list[TopicEvent]:
        """Wait until there are `count` events, and return all events."""
        wait_until(lambda: len(self.read()) >= count, f"{count} events on {self.topic}", timeout_s)
        return self.events

    def wait_for_rows(self, count: int, timeout_s: float = _TIMEOUT_S) -> list[TopicEvent]:
        """Wait until there are `count` events with different places, and return all events."""
        wait_until(
            lambda: len({each.place for each in self.read()}) >= count, f"{count} rows on {self.topic}", timeout_s
        )
        return self.events


def _decoded(data: bytes) -> MutationEvents:
    """Decode by the schema of events, or by that of clearings: the first leaves bytes of a message with a clearing."""
    try:
        return decode_events(data)
    except MalformedEventsError:
        return decode_events(data, CLEARING_SCHEMA)


def partitions_of(admin_url: str, topic: str) -> list[str]:
    """The names of a topic's partitions; none while the topic does not exist."""
    path = topic.removeprefix("persistent://")
    response = rest().get(
        f"{admin_url}/admin/v2/persistent/{path}/partitions", params={"checkAllowAutoCreation": "false"}
    )
    if response.status_code == httpx.codes.NOT_FOUND:
        return []
    return [f"{topic}-partition-{index}" for index in range(response.raise_for_status().json()["partitions"])]


def avro_record(schema_text: str, data: bytes) -> dict[str, object]:
    """Decode an Avro record by its schema's JSON, as a consumer does."""
    import json

    import fastavro

    record = fastavro.schemaless_reader(io.BytesIO(data), json.loads(schema_text), None)
    assert isinstance(record, dict)
    return record
