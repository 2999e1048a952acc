"""Inputs that random fuzzing would hardly find: segments with right checksums, tables with keys, seeds."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, cast
from uuid import UUID

import fastavro

from change_agent.publishing.held_frames import frame_of
from schemas.cql_type import CqlType, ListType, MapType, NativeType, SetType, TupleType, UserType, VectorType
from schemas.mutation_event import (
    FIRST_MUTATION_EVENTS_SCHEMA,
    MUTATION_EVENTS_SCHEMA,
    MUTATION_EVENTS_SCHEMA_TEXT,
    MalformedEventsError,
    MutationEvent,
    MutationEvents,
    MutationKind,
    RangeBounds,
    decode_events,
    encode_events,
)
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata
from source_connector.encoding.projection import Projection
from source_connector.events.datastax_events import DataStaxSchema
from tests.agent.segment_writer import (
    COMPRESSORS,
    encoded_segment_bytes,
    encrypted_block_bytes,
    entry_bytes,
    segment_bytes,
)
from tests.cql.native_types import NATIVE_TYPES
from tests.cql.tables import table_of

__all__ = [
    "HELD_PAYLOAD",
    "SEGMENT_ID",
    "OneKey",
    "agent_options_seeds",
    "datastax_seeds",
    "datastax_topic",
    "events_seeds",
    "frame_seeds",
    "framed_segment",
    "held_file",
    "held_messages",
    "held_seeds",
    "key_parts",
    "key_seeds",
    "keyed_tables",
    "page_seeds",
    "page_tables",
    "parsed",
    "reads_whole",
    "source_options_seeds",
]

SEGMENT_ID: Final = 7_000_000_001
_GOLDEN: Final = Path(__file__).parents[1] / "golden"
_KEY, _IV = bytes(range(16)), bytes(16)
_ENCRYPTION: Final = {"encCipher": "AES/CBC/PKCS5Padding", "encKeyAlias": "k", "encIV": _IV.hex()}
# Lengths that a section claims, in place of the real one.
_CLAIMS: Final = (0, 1, -1, -(2**31), 2**31 - 1, 2**31 - 13, 64 * 1024, 16 * 1024)
_INT, _TEXT = NativeType("int"), NativeType("text")
_KEY_TYPES: Final[tuple[CqlType, ...]] = (
    *map(NativeType, NATIVE_TYPES),
    ListType(_TEXT),
    SetType(_INT),
    MapType(_TEXT, ListType(_INT)),
    TupleType((_INT, _TEXT)),
    UserType("ks", "u", ("a", "b"), (_INT, SetType(NativeType("inet")))),
    VectorType(_INT, 2),
)
_PAGE_TYPES: Final = (*_KEY_TYPES, *(ListType(NativeType(each)) for each in NATIVE_TYPES), ListType(ListType(_INT)))
_ABSENT: Final = 255


class OneKey:
    """A key provider with one key for every encrypted segment here."""

    def secret_key(self, alias: str) -> bytes:
        """The key, for any alias."""
        return _KEY


def framed_segment(way: int, claim: int, data: bytes) -> bytes:
    """A segment of valid markers and entries. `way` selects the encoding, `claim` the false lengths of its section."""
    payloads = []
    while data:
        payloads.append(data[1 : 1 + data[0]])
        data = data[1 + data[0] :]
    ways = [None, *COMPRESSORS, "encrypted"]
    chosen = ways[way % len(ways)]
    if chosen is None:
        return segment_bytes(SEGMENT_ID, [payloads[::2], payloads[1::2]], version=(6, 7, 8)[claim % 3])
    plain = b"".join(map(entry_bytes, payloads)) if way < 128 else b"".join(payloads)
    lie = _CLAIMS[claim % len(_CLAIMS)] if claim else len(plain)
    if chosen == "encrypted":
        inner = _CLAIMS[claim // 16 % len(_CLAIMS)] if claim > 16 else len(plain)
        block = encrypted_block_bytes(plain, _KEY, _IV, length=inner)
        return encoded_segment_bytes(SEGMENT_ID, _ENCRYPTION, [(lie, block)])
    # From 128 on, the bytes are in the place of a compressor's output.
    encoded = COMPRESSORS[chosen](plain) if way < 128 else plain
    return encoded_segment_bytes(SEGMENT_ID, {"compressionClass": chosen}, [(lie, encoded)])


def keyed_tables() -> list[TableMetadata]:
    """Two tables for each type: it is the partition key of one, and among others in both parts of the other's key."""
    made = []
    for key_type in _KEY_TYPES:
        made += [_table([key_type], []), _table([key_type, _TEXT], [key_type, _INT])]
    return made


def _table(partition: list[CqlType], clustering: list[CqlType]) -> TableMetadata:
    return table_of(
        {f"p{at}": each for at, each in enumerate(partition)},
        {f"c{at}": each for at, each in enumerate(clustering)},
        regular={"v": _INT},
    )


def key_parts(table: TableMetadata, data: bytes) -> tuple[bytes, tuple[bytes | None, ...]]:
    """A serialized partition key and clustering values, each from a size and bytes; missing ones are empty."""
    values: list[bytes | None] = []
    for _ in table.primary_key:
        size = data[0] if data else 0
        values.append(None if size == _ABSENT else data[1 : 1 + size])
        data = data[1:] if size == _ABSENT else data[1 + size :]
    count = len(table.partition_key)
    partition = [each or b"" for each in values[:count]]
    if count == 1:
        return partition[0], tuple(values[1:])
    return b"".join(struct.pack(">H", len(each)) + each + b"\0" for each in partition), tuple(values[count:])


def key_seeds() -> Iterator[bytes]:
    """Values of several lengths for every table."""
    for at in range(2 * len(_KEY_TYPES)):
        for value in (b"", b"\0\0\0\1", b"\x80\0\0\0\0\0\0\1", b"\0\0\0\1\0\0\0\4\0\0\0\7", b"a\x7f\0\1" * 4):
            yield bytes([at]) + 4 * (bytes([len(value)]) + value)


def page_tables() -> list[TableMetadata]:
    """Tables with two value columns of one type, for every type."""
    tables = [_table([_INT], []) for _ in _PAGE_TYPES]
    return [
        replace(
            each,
            regular_columns=tuple(
                ColumnMetadata(name=name, kind=ColumnKind.REGULAR, type=cql_type, position=-1) for name in ("v", "w")
            ),
        )
        for each, cql_type in zip(tables, _PAGE_TYPES, strict=True)
    ]


def page_seeds() -> Iterator[bytes]:
    """Pages of one and two rows of every type: numbers, texts, lists and nulls."""
    values = (b"", b"\0\0\0\1", b"\x80\0\0\0\0\0\0\1", b"\0\0\0\1\0\0\0\4\0\0\0\7", b"a\x7f\0\1" * 4)
    for at in range(len(_PAGE_TYPES)):
        for value in values:
            cell = len(value).to_bytes(4, "big") + value
            yield bytes([at, 2]) + cell + b"\xff\xff\xff\xff" + cell + cell


def parsed(text: str) -> Mapping[str, object]:
    """A schema for fastavro, without namespaces: unlike Java's Avro, it looks for no name outside a namespace."""

    def plain(node: dict[str, object]) -> dict[str, object]:
        return {name: value for name, value in node.items() if name not in {"namespace", "logicalType"}}

    return cast("Mapping[str, object]", fastavro.parse_schema(json.loads(text, object_hook=plain)))


def reads_whole(data: bytes, schema: Mapping[str, object]) -> bool:
    """Return whether the bytes are exactly one record of the schema."""
    source = io.BytesIO(data)
    try:
        fastavro.schemaless_reader(source, dict(schema), None)
    except (EOFError, ValueError, IndexError, TypeError):
        return False
    return source.read() == b""


def frame_seeds() -> Iterator[bytes]:
    """One frame of each kind that a host sends, and several in one input."""
    opened = b'{"config":{"events":{"topic":["a","b"]}},"instance":{"id":0},"pulsar":{}}'
    frames = [
        (len(opened) + 1).to_bytes(4, "big") + b"\0" + opened,
        *map(bytes.fromhex, ("00000009010000000000000102", "00000009020000000000000001", "0000000103")),
        *map(bytes.fromhex, ("00000009040000000000000007", "0000000b050000000000000007c3a9")),
    ]
    yield from frames
    yield b"".join(frames[1:])
    yield b"\x7f\xff\xff\xff\2"


def events_seeds() -> Iterator[bytes]:
    """Messages of the agent with one event of each kind."""
    bounds = RangeBounds(start=(b"\0\0\0\1",), start_inclusive=True, end=(), end_inclusive=False)
    for kind in MutationKind:
        event = MutationEvent(
            position=100,
            ordinal=1,
            kind=kind,
            key=b"\2",
            partition_key=b"\0\0\0\1",
            digest=bytes(16),
            clustering=(b"x", None),
            writetime_us=5,
            expiry_time_s=7,
            bounds=bounds,
            columns=("a", "b"),
        )
        yield encode_events(
            MutationEvents(
                node_id=UUID(int=1),
                segment_id=7,
                keyspace="ks",
                table="t",
                table_id=UUID(int=2),
                key_schema="{}",
                events=(event, event._replace(columns=())),
            )
        )


def _held_payloads() -> list[bytes]:
    """Messages as the first versions wrote them, then the schema, then messages after it."""
    messages = list(events_seeds())
    return [_first_version(messages[0]), MUTATION_EVENTS_SCHEMA_TEXT.encode(), *messages[1:3]]


def _first_version(message: bytes) -> bytes:
    """The message in the bytes of the first versions, which had fewer fields."""
    record = fastavro.schemaless_reader(io.BytesIO(message), dict(MUTATION_EVENTS_SCHEMA), None)
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, dict(FIRST_MUTATION_EVENTS_SCHEMA), record)
    return stream.getvalue()


HELD_PAYLOAD: Final = encode_events(
    MutationEvents(
        node_id=UUID(int=9), segment_id=1, keyspace="ks", table="t", table_id=UUID(int=9), key_schema="{}", events=()
    )
)
"""A message that no input contains; it is appended to held events."""


def held_file(data: bytes) -> bytes:
    """A file of held events with valid frames of these payloads; each payload follows its size."""
    frames = []
    while len(data) > 2:
        size = int.from_bytes(data[:2], "big")
        frames.append(data[2 : 2 + size])
        data = data[2 + size :]
    return b"".join(frame_of(each) for each in frames if each)


def held_messages(content: bytes) -> Mapping[int, Sequence[MutationEvents]]:
    """Messages that may be read from a file of held events, by their length in bytes: wherever length and checksum fit.

    They are found without the reader. The schema of a message depends on the frames before it, so each schema is tried:
    those in the file, and that of the first versions, which wrote none.
    """
    payloads = []
    for at in range(len(content) - 8):
        length, crc = struct.unpack_from(">II", content, at)
        payload = content[at + 8 : at + 8 + length]
        if 0 < length == len(payload) and zlib.crc32(payload) == crc:
            payloads.append(payload)
    schemas: list[Mapping[str, object]] = [FIRST_MUTATION_EVENTS_SCHEMA]
    for payload in payloads:
        with suppress(ValueError, RecursionError):
            schemas += [json.loads(payload)] if payload.startswith(b"{") else []
    found: dict[int, list[MutationEvents]] = defaultdict(list)
    for payload in payloads:
        for schema in schemas:
            with suppress(MalformedEventsError):
                found[len(payload)].append(decode_events(payload, schema))
    return found


def held_seeds() -> Iterator[bytes]:
    """Whole files, files that are cut, files with damage in the middle, and the same payloads with right checksums."""
    payloads = _held_payloads()
    whole = b"".join(map(frame_of, payloads))
    start = len(frame_of(payloads[0])) + 100
    yield from (b"\0" + each for each in (whole, whole[:-5], whole + bytes(40), frame_of(payloads[0]) * 2))
    yield b"\0" + whole[:start] + b"damaged" + whole[start + 7 :]
    yield b"\0" + whole[:start] + whole[start + 7 :]
    yield b"\1" + b"".join(len(each).to_bytes(2, "big") + each for each in payloads)
    yield b"\1" + b"".join(len(each).to_bytes(2, "big") + each for each in (b'{"type": "int"}', payloads[0]))


def datastax_topic() -> tuple[DataStaxSchema, Projection, bytes, Mapping[str, str]]:
    """The captured topic: its schema, the projection of its table, and one value with its properties."""
    *messages, last = _captured()
    texts = [json.dumps(json.loads(last["data"])[part]).encode() for part in ("key", "value")]
    schema = DataStaxSchema(b"".join(len(text).to_bytes(4, "big") + text for text in texts))
    table = _table(
        [_TEXT],
        [NativeType("text")],
    )
    return (
        schema,
        Projection(table),
        bytes.fromhex(messages[0]["data"]),
        cast("Mapping[str, str]", messages[0]["props"]),
    )


def datastax_seeds() -> Iterator[bytes]:
    """Captured keys and the captured schema."""
    *messages, last = _captured()
    yield from (b"\0" + base64.b64decode(each["key"]) for each in messages)
    texts = [json.dumps(json.loads(last["data"])[part]).encode() for part in ("key", "value")]
    yield b"\1" + b"".join(len(text).to_bytes(4, "big") + text for text in texts)


def _captured() -> list[dict[str, str]]:
    lines = (_GOLDEN / "datastax" / "statements-events.txt").read_text().splitlines()
    return [json.loads(line) for line in lines]


def agent_options_seeds() -> Iterator[bytes]:
    """Small configuration files of an agent, valid and invalid ones."""
    right = "cdcRawDirectory: /tmp\ncdcWorkingDir: /work\n"
    yield right.encode()
    yield (right + "contactPoints: [10.0.0.1]\nusername: u\npassword: p\nincludeTables: 'ks.*'\n").encode()
    yield b'{"cdcRawDirectory": "/tmp", "port": 70000, "topicPrefx": 1, "eventsTopicPartitions": "4"}'
    yield b"a: &x [1, 2.5, 2026-01-01, 0x10, ~]\nb: *x\n"
    # Values that YAML's own constructors refuse, and nesting that they cannot finish.
    yield from (
        b"a: 2026-13-45",
        b"a: !!int x",
        b"a: !!timestamp x",
        b"a: 0x_",
        b"a: !!float x",
        b"a: 1:99:x",
        b"? [1]\n: 2",
    )
    yield from (b"a: " + b"[" * 400, b"{a: " * 400, b"a: " + b"9" * 4090, b"a: 0b", b"!!binary x", b"a: !!bool x")


def source_options_seeds() -> Iterator[bytes]:
    """OPEN documents of a host."""
    config = {
        "contactPoints": "10.0.0.1",
        "keyspace": "ks",
        "table": "t",
        "port": "9042",
        "columns": "a|b",
        "loadBalancing": {"localDc": "dc1"},
        "query.backoffInMs": 5,
        "outputFormat": "json",
        "auth.provider": "plain",
    }
    for each in (config, {"tables": "ks.*,a.b", "destination": "d-{keyspace}-{table}"}, {"datastax-java-driver.x": 1}):
        yield json.dumps({"config": each, "instance": {"id": 0}, "pulsar": {"getServiceUrl": "pulsar://h:1"}}).encode()
