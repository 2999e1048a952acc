"""Publishes records with an Avro key and an Avro value (KEY_VALUE, SEPARATED) to one topic partition, each once.

Each record has a number, which grows within the partition. The broker remembers the highest number of each producer
name, and sends it to a producer that connects. Records up to this number were taken before, and are not sent again. So
the batches after a restart may differ from those before it. This needs the topic's de-duplication. Without it, the
broker sends -1, and records may be published twice.

The producer is the only one of its topic partition (exclusive access).
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

import tenacity

from clients.tls import certificate_refusal
from runtime.backoff import Backoff
from spark_bridge.errors import PublishError
from spark_bridge.topics.authentication import ended
from spark_bridge.topics.broker_connection import BrokerConnection, BrokerRefusedError, Command, connection_of_topic
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.protobuf import encoded, first_bytes, first_int, first_text

__all__ = ["KeyValueSchema", "KeyedProducer", "KeyedRecord", "register_schema"]

_Answer = TypeVar("_Answer")

_BATCH_RECORDS: Final = 1_000
_BATCH_BYTES: Final = 128 << 10
_PENDING_BATCHES: Final = 64
_KEY_VALUE: Final = 15
_EXCLUSIVE: Final = 1
_BACKOFF: Final = Backoff(0.2, 2)
_PASSING: Final = frozenset({0, 1, 2, 6, 7, 14, 16, 25})
"""Codes of `ServerError` that are worth a retry.

The broker starts, or hands the topic over, or has not noticed yet that an earlier producer has ended.
"""
_HELD: Final = (16, 25)
_NOT_KNOWN: Final = 3
_NOT_ALLOWED: Final = 4


@dataclass(frozen=True, slots=True)
class KeyValueSchema:
    """JSON texts of the Avro schemas of key and value."""

    key: str
    value: str

    @classmethod
    def of(cls, key: Mapping[str, object], value: Mapping[str, object]) -> KeyValueSchema:
        """The texts of parsed schemas. The same schema gives the same text, so that the registry recognizes it."""
        return cls(*[json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in (key, value)])

    def encoded(self) -> bytes:
        """The schema as `Schema` of PulsarApi.proto, for the registry."""
        parts = [each.encode() for each in (self.key, self.value)]
        data = b"".join(struct.pack(">I", len(each)) + each for each in parts)
        properties = {
            "key.schema.name": "",
            "key.schema.type": "AVRO",
            "key.schema.properties": "{}",
            "value.schema.name": "",
            "value.schema.type": "AVRO",
            "value.schema.properties": "{}",
            "kv.encoding.type": "SEPARATED",
        }
        pairs = [(5, encoded((1, name), (2, value))) for name, value in properties.items()]
        return encoded((1, "KeyValue"), (3, data), (4, _KEY_VALUE), *pairs)


class KeyedRecord(NamedTuple):
    """A record to publish. `value` is None if the key has no row. `event_time_ms`: milliseconds since the epoch."""

    number: int
    key: bytes
    value: bytes | None
    event_time_ms: int | None
    properties: Mapping[str, str]


@dataclass(slots=True)
class _Batch:
    records: list[KeyedRecord] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)

    def add(self, record: KeyedRecord) -> None:
        value = record.value or b""
        metadata = encoded(
            *[(1, encoded((1, name), (2, text))) for name, text in record.properties.items()],
            (2, base64.b64encode(record.key)),
            (3, len(value)),
            (5, record.event_time_ms),
            (6, 1),
            (8, record.number),
            (9, 1 if record.value is None else None),
        )
        self.data += struct.pack(">I", len(metadata)) + metadata + value
        self.records.append(record)


class KeyedProducer:
    """Publishes records. Use it in a `with` block: its end without an error waits until all records are stored.

    Raises PublishError, ConfigError.
    """

    def __init__(self, options: BridgeOptions, topic: str, name: str, schema: KeyValueSchema) -> None:
        """`topic`: an existing topic partition.

        `name`: name of the producer, which must be the same after a restart.
        """
        self._options = options
        self._topic = topic
        self._name = name
        self._schema = schema
        self._connection: BrokerConnection | None = None
        self._schema_version: bytes = b""
        self._batch = _Batch()
        self._pending: deque[_Batch] = deque()
        self.sent = 0
        self.last_number = -1
        self.last_number = self._patiently(self._connect)
        """The highest number that the broker took before; -1 if there is none, or without de-duplication."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if error is None:
                self.flush()
        finally:
            self.close()

    def send(self, record: KeyedRecord) -> None:
        """Send a record.

        Records must come in the order of their numbers. Those that the broker took before are skipped.
        """
        if record.number <= self.last_number:
            return
        if self._batch.records and (
            len(self._batch.records) >= _BATCH_RECORDS
            or len(self._batch.data) + len(record.value or b"") + len(record.key) > _BATCH_BYTES
        ):
            self._send_batch()
        self._batch.add(record)
        self.sent += 1

    def flush(self) -> None:
        """Wait until all sent records are stored."""
        self._send_batch()
        self._patiently(lambda: self._await_receipts(0))

    def _send_batch(self) -> None:
        if not self._batch.records:
            return
        batch, self._batch = self._batch, _Batch()
        limit = (self._connection.max_message_bytes if self._connection else 5 << 20) - 1_024
        if len(batch.data) > limit:
            raise PublishError(
                self._topic,
                f"a record of {len(batch.data):,} bytes is larger than the broker takes; raise maxMessageSize of broker and bookies",
            )
        self._pending.append(batch)
        is_written = False

        def go_on() -> None:
            nonlocal is_written
            if self._connection is None:
                self._connect()  # this sends all pending batches
            elif not is_written:
                self._write(batch)
            is_written = True
            self._await_receipts(_PENDING_BATCHES - 1)

        self._patiently(go_on)

    def _connect(self) -> int:
        """Connect, and send all pending batches again. Return the highest number that the broker has taken.

        The broker may have taken a batch that it has not stored yet, and may fail to store it. So each batch waits for
        a receipt. For a stored batch, the broker sends the receipt at once. For a batch that is on its way to the
        bookies, it sends an error that is worth a retry.

        The highest number may be that of a record that the bookies did not store in the end (`getLastPublishedSequenceId`
        in MessageDeduplication). Then the broker answers the next connect with a lower number. Records between both were
        skipped and are not stored, so this raises PublishError: the next run sends them.
        """
        connection = connection_of_topic(self._options, self._topic)
        try:
            answer = connection.ask(
                Command.PRODUCER,
                (1, self._topic),
                (2, 1),
                (4, self._name),
                (7, self._schema.encoded()),
                (8, 0),
                (9, 1),
                (10, _EXCLUSIVE),
                request_field=3,
            )
            stored = first_int(answer, 3, -1)
            if stored < self.last_number:
                raise PublishError(
                    self._topic,
                    f"the broker had taken records up to number {self.last_number}, and has lost those after {stored}; run again:"
                    " the next run sends them",
                )
            self._schema_version = first_bytes(answer, 4)
            self._connection = connection
            for batch in self._pending:
                self._write(batch)
        except BaseException:
            self._connection = None
            connection.close()
            raise
        return stored

    def _write(self, batch: _Batch) -> None:
        assert self._connection is not None
        first, last, count = batch.records[0].number, batch.records[-1].number, len(batch.records)
        metadata = encoded(
            (1, self._name),
            (2, first),
            (3, time.time_ns() // 1_000_000),
            (9, len(batch.data)),
            (11, count),
            (16, self._schema_version),
            (24, last),
        )
        command = encoded((1, 1), (2, first), (3, count), (6, last))
        self._connection.write(Command.SEND, command, struct.pack(">I", len(metadata)) + metadata + bytes(batch.data))

    def _await_receipts(self, most: int) -> None:
        """Wait until at most `most` batches are without a receipt. Receipts that have arrived are always taken."""
        if self._connection is None:
            self._connect()
        assert self._connection is not None
        while self._pending and (len(self._pending) > most or self._connection.has_more()):
            kind, fields = self._connection.read(self._options.operation_timeout_seconds)
            match kind:
                case Command.SEND_RECEIPT:
                    if first_int(fields, 2) == self._pending[0].records[0].number:
                        self._pending.popleft()
                case Command.SEND_ERROR:
                    raise BrokerRefusedError(first_int(fields, 3), first_text(fields, 4))
                case Command.CLOSE_PRODUCER:
                    raise ConnectionResetError("the broker closed the producer")
                case _:
                    pass

    def _patiently(self, act: Callable[[], _Answer]) -> _Answer:
        """Return the result of `act`. On an error, retry it with a new connection until the operation timeout.

        Raises PublishError.
        """

        def attempt() -> _Answer:
            try:
                return act()
            except (OSError, ValueError, BrokerRefusedError):
                self._drop()
                raise

        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_delay(self._options.operation_timeout_seconds),
            wait=lambda state: _BACKOFF.pause_s(state.attempt_number),
            retry=tenacity.retry_if_exception(_may_pass),
            reraise=True,
        )
        try:
            return retrying(attempt)
        except BrokerRefusedError as error:
            raise PublishError(self._topic, _refusal(error, self._options)) from None
        except (OSError, ValueError) as error:
            refusal = certificate_refusal(str(error))
            check = "start it and run again"
            if refusal is not None:
                check = "check tlsTrustCertsFilePath and tlsHostnameVerificationEnable"
            where = self._options.service_url
            raise PublishError(
                self._topic, f"the broker does not answer at {where} ({refusal or error}); {check}"
            ) from None

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Close the producer. Records that were not flushed may be lost.

        The broker is told, so that it accepts the next producer at once. It also notices a lost connection.
        """
        if self._connection is not None:
            with suppress(OSError, ValueError, BrokerRefusedError):
                self._connection.ask(Command.CLOSE_PRODUCER, (1, 1), request_field=2)
        self._drop()


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, ssl.SSLCertVerificationError):
        return False
    return isinstance(error, OSError | ValueError) or (isinstance(error, BrokerRefusedError) and error.code in _PASSING)


def _refusal(error: BrokerRefusedError, options: BridgeOptions) -> str:
    said = re.sub(r"^[\w.$]*Exception: ", "", error.reason.partition("\n")[0]) or f"error {error.code}"
    if error.code in _HELD:
        return (
            f"somebody else writes to it ({said}); a topic of this job has no other writer: stop that one, or give this job another "
            "topic (--rows-topic, --changes-topic)"
        )
    if error.code == _NOT_KNOWN:
        return f"the broker refuses ({ended(options) or said}); check authPluginClassName and authParams"
    if error.code == _NOT_ALLOWED:
        return f"the broker refuses ({said}); give this role the right to produce there"
    return f"the broker refuses ({said})"


def register_schema(options: BridgeOptions, topic: str, name: str, schema: KeyValueSchema) -> None:
    """Register the schema for the topic of a topic partition, if it is not registered.

    Raises PublishError, ConfigError.
    """
    with KeyedProducer(options, topic, name, schema):
        pass
