"""Frames between the Java host inside Pulsar and this process: the specification, and its Python side.

The host starts the process and owns two pipes: its standard input carries frames from the host, its standard output
frames to the host. Standard error is the log, see `host_connection.LogLines`. End of standard input ends the process at
once.

    Frame  => Length Type Body          all numbers big-endian
      Length => Uint32                  bytes of Type and Body together, 1 .. 67,108,864
      Type   => Uint8
    Text   => Uint32 and that many bytes of UTF-8
    Bytes  => Uint32 and that many bytes
    Rest   => UTF-8 to the end of the frame

    host to child
      0 OPEN    => JSON (Rest): one object, see `OpenRequest`
      1 ACK     => Seq (Uint64) Rest (empty)  the data topic has the record
      2 FAIL    => Seq (Uint64) Rest (empty)  the data topic refused the record
      3 CLOSE   =>                            stop, answer nothing more, end
      4 TAKEN   => Id (Uint64) Rest (empty)   the registry has the schema
      5 REFUSED => Id (Uint64) Reason (Rest)  the registry does not take the schema, and why

    child to host
      6 OPENED =>                             the configuration is right; records will follow
      7 SCHEMA => Id (Uint32) Format (Uint8: 0 key-value-avro, 1 key-value-json, 2 json)
                  Name (Text) KeySchema (Text) ValueSchema (Text)
                  Topic (Text; where its records go; empty for the source's own destination)
      8 RECORD => Seq (Uint64) SchemaId (Uint32) EventTime (Int64, milliseconds, -1 for none)
                  Key (Bytes) HasValue (Uint8: 0, or 1 and then) Value (Bytes)
                  Count (Uint16) Count times: Name (Text) Value (Text)
      9 METRIC => Name (Text) Value (Float64)
      10 ERROR => Text                        why it cannot go on; the host throws it, the process ends

Every SCHEMA is answered by TAKEN or REFUSED. The first RECORD that names its id follows TAKEN. An id stands for one
schema and may be announced again at any time, also with another mark (`source_connector.tables.newest_schema`). Seq
counts up from 1. Every RECORD is answered by exactly one ACK or FAIL, in any order. The Java side is `nar/Frames.java`;
both are tested against the same golden frames.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from source_connector.data_format import DataFormat
from source_connector.errors import HostProtocolError
from source_connector.host.record import DataSchema
from source_connector.host.record_frame import MAX_FRAME_LENGTH

__all__ = [
    "MAX_FRAME_LENGTH",
    "Acks",
    "Close",
    "Fail",
    "FrameDecoder",
    "HostFrame",
    "OpenRequest",
    "SchemaRefused",
    "SchemaTaken",
    "encode_error",
    "encode_metric",
    "encode_opened",
    "encode_schema",
]

_HEADER: Final = struct.Struct(">IB")
_SEQ: Final = struct.Struct(">Q")
_ACK: Final = struct.Struct(">IBQ")
_ACK_KIND: Final = 1
_ACK_LENGTH: Final = 9
_SIZE: Final = struct.Struct(">I")
_FORMATS: Final = (DataFormat.KEY_VALUE_AVRO, DataFormat.KEY_VALUE_JSON, DataFormat.JSON)


class FrameType(IntEnum):
    """The type byte."""

    OPEN = 0
    ACK = 1
    FAIL = 2
    CLOSE = 3
    TAKEN = 4
    REFUSED = 5
    OPENED = 6
    SCHEMA = 7
    RECORD = 8
    METRIC = 9
    ERROR = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """The host's data: the source's options as given, and how the host itself reaches Pulsar.

    JSON: `{"config": {...}, "instance": {"instances": 1, "outputTopic": ..., "guarantee": ...}, "pulsar": {...}}`.
    `config` is nested as the user wrote it, with secrets. `pulsar` has the values of the getters of the host's client
    (never shown, because it holds secrets). Values that the host does not know are null there and left out here.
    """

    config: Mapping[str, object]
    pulsar: Mapping[str, str]
    instance: Mapping[str, str]


class Acks(NamedTuple):
    """The data topic has these records. There is one ACK for every row, so those that came together are one object."""

    seqs: Sequence[int]


@dataclass(frozen=True, slots=True)
class Fail:
    """The data topic refused the record."""

    seq: int


@dataclass(frozen=True, slots=True)
class Close:
    """Pulsar stops the source."""


@dataclass(frozen=True, slots=True)
class SchemaTaken:
    """The data topic's registry has the schema."""

    schema_id: int


@dataclass(frozen=True, slots=True)
class SchemaRefused:
    """The data topic's registry does not take the schema, so no record can be written with it."""

    schema_id: int
    reason: str


HostFrame = OpenRequest | Acks | Fail | Close | SchemaTaken | SchemaRefused

_ANSWERS: Final[Mapping[int, Callable[[int], HostFrame]]] = {
    FrameType.ACK: lambda seq: Acks([seq]),
    FrameType.FAIL: Fail,
    FrameType.TAKEN: SchemaTaken,
    FrameType.REFUSED: lambda schema_id: SchemaRefused(schema_id, ""),
}


class FrameDecoder:
    """Decodes the bytes of standard input, in pieces of any size, to frames from the host."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[HostFrame]:
        """Return the frames that these bytes complete. Raises HostProtocolError."""
        self._buffer += data
        at = 0
        try:
            while len(self._buffer) - at >= _HEADER.size:
                length, kind = _HEADER.unpack_from(self._buffer, at)
                if kind == _ACK_KIND and length == _ACK_LENGTH and len(self._buffer) - at >= _ACK.size:
                    seqs = self._acks(at)  # a fast path with the result of the code below
                    at += _ACK.size * len(seqs)
                    yield Acks(seqs)
                    continue
                if not 1 <= length <= MAX_FRAME_LENGTH:
                    raise HostProtocolError(f"a length of {length}", frame=kind)
                end = at + 4 + length
                if end > len(self._buffer):
                    break
                body = bytes(self._buffer[at + 5 : end])
                at = end
                yield _host_frame(kind, body)
        finally:
            del self._buffer[:at]

    def _acks(self, at: int) -> list[int]:
        """The numbers of the complete ACK frames that begin at `at` and follow each other."""
        end = len(self._buffer) - (len(self._buffer) - at) % _ACK.size
        seqs: list[int] = []
        for length, kind, seq in _ACK.iter_unpack(self._buffer[at:end]):
            if kind != _ACK_KIND or length != _ACK_LENGTH:
                break
            seqs.append(seq)
        return seqs


def _host_frame(kind: int, body: bytes) -> HostFrame:
    if kind == FrameType.OPEN:
        return _open_request(body)
    if kind == FrameType.CLOSE:
        return Close()
    if kind not in _ANSWERS:
        raise HostProtocolError("not a frame that a host sends", frame=kind)
    if len(body) < _SEQ.size or (len(body) > _SEQ.size and kind != FrameType.REFUSED):
        raise HostProtocolError(f"{len(body)} bytes instead of 8", frame=kind)
    (number,) = _SEQ.unpack_from(body)
    if kind == FrameType.REFUSED:
        return SchemaRefused(number, body[_SEQ.size :].decode("utf-8", "replace"))
    return _ANSWERS[kind](number)


def _open_request(body: bytes) -> OpenRequest:
    try:
        document = json.loads(body)
        config, pulsar, instance = document["config"], document["pulsar"], document["instance"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        # Without its cause: a JSON error may quote the document, which contains secrets.
        raise HostProtocolError(f"{len(body)} bytes that are no OPEN document ({type(error).__name__})") from None
    if not all(isinstance(part, dict) for part in (config, pulsar, instance)):
        raise HostProtocolError("config, pulsar and instance must be objects", frame=FrameType.OPEN)
    return OpenRequest(
        config=config,
        pulsar={str(name): str(value) for name, value in pulsar.items() if value is not None},
        instance={str(name): str(value) for name, value in instance.items() if value is not None},
    )


def encode_opened() -> bytes:
    """OPENED."""
    return _frame(FrameType.OPENED, b"")


def encode_schema(schema: DataSchema) -> bytes:
    """SCHEMA: Avro JSON texts of a data topic's key and value, and the topic."""
    head = struct.pack(">IB", schema.schema_id, _FORMATS.index(schema.data_format))
    texts = schema.name, schema.key_schema, schema.value_schema, schema.topic
    return _frame(FrameType.SCHEMA, head + b"".join(map(_text, texts)))


def encode_metric(name: str, value: float) -> bytes:
    """METRIC: one user metric of the source."""
    return _frame(FrameType.METRIC, _text(name) + struct.pack(">d", value))


def encode_error(text: str) -> bytes:
    """ERROR: the last frame of a process that cannot continue."""
    return _frame(FrameType.ERROR, _text(text))


def _frame(kind: FrameType, body: bytes) -> bytes:
    if len(body) >= MAX_FRAME_LENGTH:
        raise HostProtocolError(f"{len(body)} bytes are more than a frame holds", frame=kind)
    return _HEADER.pack(len(body) + 1, kind) + body


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    return _SIZE.pack(len(data)) + data
