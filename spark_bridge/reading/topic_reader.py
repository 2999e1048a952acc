"""Reads a range of one topic partition, in an executor, with Pulsar's Reader, which leaves no subscription behind.

The caller gets Arrow record batches of bounded size. The range (start, end] is exact: a task that is run again reads
the same messages, and an entry that is a batch is never cut.
"""

from __future__ import annotations

import binascii
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import _pulsar
import pulsar
import pyarrow as pa

from spark_bridge.errors import DataLossError, TopicReadError
from spark_bridge.reading.garbage import few_collections
from spark_bridge.reading.raw_columns import RawRow, to_arrow
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.client import open_client
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.positions import BEGINNING, Position, message_id_fields

__all__ = ["TopicRange", "end_within", "entry_versions", "last_message_properties", "read_range"]

_ROWS_PER_BATCH: Final = 10_000  # Spark's own spark.sql.execution.arrow.maxRecordsPerBatch
_BYTES_PER_BATCH: Final = 8 << 20
_POLL_MS: Final = 1_000
_LEDGER: Final = 1  # fields of MessageIdData
_ENTRY: Final = 2
_BATCH_SIZE: Final = 6

Place = tuple[int, int]
"""Ledger and entry."""


@dataclass(frozen=True)
class TopicRange:
    """The entries (start, end] of one topic partition; `partition` is -1 for a topic without partitions."""

    topic: str
    partition_topic: str
    partition: int
    start: Position
    end: Position
    ledger_ends: tuple[Position, ...] = ()
    """The last entry of the range in each ledger that had entries when the range was planned.

    Without them, no loss is noticed.
    """


def read_range(options: BridgeOptions, span: TopicRange) -> Iterator[pa.RecordBatch]:
    """All messages of the range, as record batches by RAW_SCHEMA. Raises TopicReadError, DataLossError."""
    if span.end.entry < 0 or span.end <= span.start:
        return
    with closing(open_client(options)) as client, few_collections():
        yield from _batches(client, options, span)


def last_message_properties(options: BridgeOptions, span: TopicRange) -> dict[str, str] | None:
    """Properties of the last message of the range's last entry; None if the entry no longer exists."""
    if span.end.entry < 0:
        return None
    last = replace(span, start=Position(span.end.ledger, span.end.entry - 1), ledger_ends=())
    with closing(open_client(options)) as client:
        found = None
        for message, _, _ in _messages(client, options, last):
            found = message.properties()
        return found


def end_within(
    options: BridgeOptions, span: TopicRange, max_rows: int | None, max_bytes: int | None
) -> tuple[Position, int, int]:
    """The part of a range within limits, at least one entry: its last entry, and the part's rows and bytes.

    Raises TopicReadError.
    """
    with closing(open_client(options)) as client:
        end, counted, entry = span.start, (0, 0), None
        rows = size = 0
        for message, at, _ in _messages(client, options, span):
            if at != entry:
                if entry is not None:
                    end, counted = Position(*entry), (rows, size)
                entry = at
            rows += 1
            size += len(message.partition_key()) * 3 // 4 + len(message.data())
            is_over = (max_rows is not None and rows > max_rows) or (max_bytes is not None and size > max_bytes)
            if is_over and end != span.start:
                return end, *counted
        return span.end, rows, size


def entry_versions(options: BridgeOptions, span: TopicRange) -> dict[Position, int]:
    """The schema version of each entry of a range; all messages of an entry share it. Raises TopicReadError."""
    with closing(open_client(options)) as client:
        found = _messages(client, options, span)
        return {Position(*at): message.int_schema_version() for message, at, _ in found}


def _open(client: pulsar.Client, options: BridgeOptions, span: TopicRange) -> pulsar.Reader:
    if span.start == BEGINNING:
        start = pulsar.MessageId.earliest
    else:
        start = pulsar.MessageId(span.partition, span.start.ledger, span.start.entry, -1)
    try:
        return client.create_reader(
            span.partition_topic,
            start,
            receiver_queue_size=options.receiver_queue_size,
            reader_name="spark-bridge",
        )
    except pulsar.AuthenticationError as error:
        reason = (
            f"the broker at {options.service_url} does not let us in, or the issuer of tokens gives none ({error}); check "
            "authPluginClassName and authParams, and that workers reach the issuer"
        )
        raise TopicReadError(span.partition_topic, str(span.start), reason) from None
    except pulsar.PulsarException as error:
        reason = (
            f"the broker at {options.service_url} gives no reader within {options.operation_timeout_seconds} s ({error}); "
            "start it or check the option serviceUrl"
        )
        raise TopicReadError(span.partition_topic, str(span.start), reason) from None


def _batches(client: pulsar.Client, options: BridgeOptions, span: TopicRange) -> Iterator[pa.RecordBatch]:
    rows: list[RawRow] = []
    size = 0
    entry: Place | None = None
    place, version, publish_time_us = "", 0, 0
    for message, at, index in _messages(client, options, span):
        if at != entry:  # all messages of an entry have these in common
            entry, place = at, f"{at[0]}:{at[1]}:{span.partition}"
            version, publish_time_us = message.int_schema_version(), message.publish_timestamp() * 1000
        event_time_ms = message.event_timestamp()
        # For DataStax's connector, a null value and an empty one are the same on the wire: there is no row.
        key, value = _key(message, place, span), message.data() or None
        rows.append(
            (
                key,
                value,
                message.properties(),
                place if index < 0 else f"{place}:{index}",
                version,
                event_time_ms * 1000 if event_time_ms else None,
                publish_time_us,
            )
        )
        size += len(key) + (len(value) if value else 0)
        if len(rows) == _ROWS_PER_BATCH or size >= _BYTES_PER_BATCH:
            yield to_arrow(span.topic, span.partition, rows)
            rows, size = [], 0
    if rows:
        yield to_arrow(span.topic, span.partition, rows)


def _messages(
    client: pulsar.Client, options: BridgeOptions, span: TopicRange
) -> Iterator[tuple[_pulsar.Message, Place, int]]:
    """The messages of the range with their places and batch indexes (-1: no batch).

    A message in chunks belongs to the range with its first chunk, but its place is that of its last chunk. The messages
    are the C++ objects of the client, because its Python wrapper hides the number of the schema version.
    """
    reader = _open(client, options, span)
    # plain tuples, because this runs once for each message
    start, end = (span.start.ledger, span.start.entry), (span.end.ledger, span.end.entry)
    at = start
    last = (start, -1)
    ledger = start[0]
    while (message := _next(reader, options, span, at)) is not None:
        message_id = message.message_id()
        at = (message_id.ledger_id(), message_id.entry_id())
        if at[0] != ledger:
            _refuse_gap(options, span, last[0], _first_chunk(message_id))
            ledger = at[0]
        if at > end:
            if last[0] < _first_chunk(message_id) <= end:
                yield message, at, -1
            return
        if at <= start or (last[0] == start and _first_chunk(message_id) <= start):
            continue
        index = message_id.batch_index()
        if (at, index) <= last:
            continue  # after a reconnect, the client may get messages again
        last = (at, index)
        yield message, at, index
        if at == end and index + 1 >= _batch_size(message_id):
            return
    _refuse_gap(options, span, last[0], None)


def _refuse_gap(options: BridgeOptions, span: TopicRange, after: Place, before: Place | None) -> None:
    """Raise DataLossError if a ledger between two messages was deleted before its planned end was read.

    `before` is None if no message follows. Pulsar deletes whole ledgers, and does not wait for a reader without a
    subscription: the reader continues after them. If the ledger still exists, nothing is lost: its last entry may be
    one of Pulsar's own markers, which readers do not get.
    """
    missed = [
        each
        for each in span.ledger_ends
        if after < (place := (each.ledger, each.entry)) and (not before or place < before)
    ]
    if not missed or not options.fail_on_data_loss:
        return
    with PulsarAdmin(options, patience_s=options.operation_timeout_seconds) as admin:
        left = {each.ledger for each in admin.ledgers(span.partition_topic)}
    if not left.issuperset(each.ledger for each in missed):
        until = Position(*before) if before else span.end
        raise DataLossError(span.partition_topic, str(Position(*after)), str(until))


def _next(reader: pulsar.Reader, options: BridgeOptions, span: TopicRange, at: Place) -> _pulsar.Message | None:
    """The next message after `at`; None if the rest of the range was trimmed and nothing follows it."""
    deadline = None
    while True:
        try:
            # The C++ reader: Python's wrapper of a message doubles the cost, and turns the schema version to text.
            return reader._reader.read_next(_POLL_MS)  # noqa: SLF001
        except pulsar.Timeout:
            now = time.monotonic()
            deadline = deadline or now + options.operation_timeout_seconds
        except pulsar.PulsarException as error:
            raise TopicReadError(span.partition_topic, str(Position(*at)), f"the broker's answer is: {error}") from None
        if _nothing_left(reader):
            return None
        if now > deadline:
            reason = (
                f"no record came for {options.operation_timeout_seconds} s although the range goes to {span.end}; is the "
                "broker up? operationTimeoutSeconds sets how long to wait"
            )
            raise TopicReadError(span.partition_topic, str(Position(*at)), reason)


def _nothing_left(reader: pulsar.Reader) -> bool:
    try:
        return reader.is_connected() and not reader.has_message_available()
    except pulsar.PulsarException:
        return False  # the broker does not answer; `_next` waits for it until the deadline


def _key(message: _pulsar.Message, place: str, span: TopicRange) -> bytes:
    text = message.partition_key()
    try:
        if text:
            return binascii.a2b_base64(text, strict_mode=True)
        problem = "no key"
    except ValueError:  # binascii.Error, or a text that is not ASCII
        problem = "a key that is not base64"
    reason = f"message {place} has {problem}: this is no topic of KEY_VALUE SEPARATED records"
    raise TopicReadError(span.partition_topic, place, reason)


def _first_chunk(message_id: _pulsar.MessageId) -> Place:
    """Place of a message's first chunk.

    In the id of a message in chunks, the first chunk's id follows its own fields.
    """
    numbers = {_LEDGER: -1, _ENTRY: -1}
    for field, value in message_id_fields(message_id.serialize()):
        if field in numbers:
            numbers[field] = value
    return numbers[_LEDGER], numbers[_ENTRY]


def _batch_size(message_id: _pulsar.MessageId) -> int:
    """Number of messages in the id's entry; 0 without a batch. The client has no accessor for it."""
    for field, value in message_id_fields(message_id.serialize()):
        if field == _BATCH_SIZE:
            return value
    return 0
