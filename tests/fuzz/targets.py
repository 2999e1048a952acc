"""The fuzz targets: each is a function that takes any bytes and raises only for a defect.

A target refuses bytes with an error of ours and continues. Anything else is a finding: another exception, a result that
contradicts the bytes, or memory that was allocated for a length that the bytes only claim (an error that was caused by
a MemoryError).
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from uuid import UUID

from change_agent.cdc_raw.cdc_index import parse_cdc_index
from change_agent.commitlog.entry import CommitLogEntry
from change_agent.commitlog.reader import SegmentReader
from change_agent.commitlog.section_decoder import SegmentOptions
from change_agent.configuration.config import AgentConfig
from change_agent.db.mutation import MutationDecoder
from change_agent.events.avro_key import EventKeys
from change_agent.events.decode_format import event_json, mutation_json
from change_agent.events.mutation_events import MutationEventBuilder
from change_agent.native_core import native_core
from change_agent.publishing.held_events import HeldEvents
from schemas.cql_value import CqlValueError
from schemas.errors import CdcError
from schemas.mutation_event import decode_events
from schemas.table_metadata import DroppedColumn, TableMetadata
from source_connector.configuration.config import SourceConfig
from source_connector.data_format import DataFormat
from source_connector.encoding.avro_transcoder import RecordTranscoder
from source_connector.encoding.native_rows import RawRow, native_rows
from source_connector.encoding.projection import Projection
from source_connector.encoding.row_encoder import row_encoder
from source_connector.events.datastax_events import DataStaxSchema, as_mutation_events
from source_connector.host.host_protocol import Acks, FrameDecoder, HostFrame
from source_connector.rows.raw_page import RawPage
from tests.agent.both_ways import BothWays
from tests.agent.segment_writer import COMPRESSORS, encoded_segment_bytes, entry_bytes, segment_bytes
from tests.fuzz import shapes
from tests.fuzz.instrumented_core import load_instrumented_core
from tests.fuzz.names import CORE_VARIABLE
from tests.golden.segments import GOLDEN_SEGMENTS

__all__ = ["TARGETS", "FuzzTarget"]

_MAX_SEGMENT: Final = 64 * 1024
_OUTCOMES_KEPT: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzTarget:
    """`seeds` are the first inputs; `prepare` returns a function from an input to its outcome as text."""

    name: str
    seeds: Callable[[], Iterator[bytes]]
    prepare: Callable[[], Callable[[bytes], str]]


def refused(error: CdcError | CqlValueError) -> str:
    """The outcome for bytes that are refused. Checks that no MemoryError is the cause."""
    cause: BaseException | None = error
    while cause is not None:
        assert not isinstance(cause, MemoryError), f"memory was asked for what the bytes claim: {error}"
        cause = cause.__cause__ or cause.__context__
    return f"{type(error).__name__} {str(error)[:_OUTCOMES_KEPT]}"


def _folder() -> Path:
    """A folder in memory if possible, because each input is written to a file."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="cdc-fuzz-", dir=memory if os.access(memory, os.W_OK) else None))


# mutation: Golden (UInt8, which golden schema and version), Payload


def _mutation_seeds() -> Iterator[bytes]:
    for index, golden in enumerate(GOLDEN_SEGMENTS):
        known = {table_id.bytes for table_id in golden.tables()}
        yield from (bytes([index]) + each.payload for each in golden.entries() if each.payload[1:17] in known)


def _mutation() -> Callable[[bytes], str]:
    readers = [(MutationDecoder(golden.tables()), golden.version) for golden in GOLDEN_SEGMENTS]
    events = MutationEventBuilder()

    def take(data: bytes) -> str:
        decoder, version = readers[data[0] % len(readers)] if data else readers[0]
        entry = CommitLogEntry(100, data[1:])
        try:
            mutation = decoder.decode(entry.payload, version)
            published = events.events_of(mutation, entry.position)
        except CdcError as error:
            return refused(error)
        return " ".join([mutation_json("", entry, mutation), *(event_json("", each) for each in published)])

    return take


# native: Schema (UInt8, which golden schema and version, and whether its columns were dropped), Payload; by both ways

# Between the write times of the golden statements: cells before it belong to no column.
_DROPPED_US: Final = 1_700_000_000_000_003


def _native() -> Callable[[bytes], str]:
    instrumented = os.environ.get(CORE_VARIABLE)
    core = native_core() if instrumented is None else load_instrumented_core(Path(instrumented))
    if core is None:
        return lambda data: "there is no native core here to compare with"
    ways = [
        BothWays(core, tables, golden.version) for golden in GOLDEN_SEGMENTS for tables in _schemas(golden.tables())
    ]
    return lambda data: ways[data[0] % len(ways)].outcome(data[1:]) if data else ways[0].outcome(b"")


def _native_seeds() -> Iterator[bytes]:
    for seed in _mutation_seeds():
        yield from (bytes([2 * seed[0] + dropped]) + seed[1:] for dropped in range(2))


def _schemas(tables: Mapping[UUID, TableMetadata]) -> Iterator[Mapping[UUID, TableMetadata]]:
    """The tables with CDC, as they are, and with all columns dropped and added again."""
    published = {table_id: replace(table, cdc=True, is_view=False) for table_id, table in tables.items()}
    yield published
    yield {
        table_id: replace(
            table,
            dropped_columns=tuple(
                DroppedColumn(name=each.name, kind=each.kind, type=each.type, dropped_time_us=_DROPPED_US)
                for each in table.value_columns
            ),
        )
        for table_id, table in published.items()
    }


# segment: a file as it is; framing: Way (UInt8) Claim (UInt8) {Size (UInt8) Payload}, under checksums that fit


def _segment_seeds() -> Iterator[bytes]:
    for golden in GOLDEN_SEGMENTS:
        payloads = [each.payload for each in golden.entries()][:3]
        yield segment_bytes(shapes.SEGMENT_ID, [payloads[:1], payloads[1:]], version=golden.version) + bytes(12)
    for name, compress in COMPRESSORS.items():
        plain = entry_bytes(bytes(12))
        yield encoded_segment_bytes(shapes.SEGMENT_ID, {"compressionClass": name}, [(len(plain), compress(plain))])


def _segment() -> Callable[[bytes], str]:
    folder = _folder()

    def take(data: bytes) -> str:
        path = folder / f"CommitLog-{7 if len(data) < 4 else data[3]}-{shapes.SEGMENT_ID}.log"
        path.write_bytes(data)
        try:
            return _read(path, data, SegmentOptions(max_segment_size=_MAX_SEGMENT))
        finally:
            path.unlink()

    return take


def _read(path: Path, content: bytes, options: SegmentOptions) -> str:
    seen: list[str] = []
    try:
        with SegmentReader(path, options=options) as reader:
            descriptor = reader.descriptor
            is_plain = descriptor.compression is None and descriptor.encryption is None
            for entry in reader.read():
                assert not is_plain or _is_under_its_checksum(content, entry), f"a wrong entry at {entry.position}"
                seen.append(f"{entry.position}:{zlib.crc32(entry.payload):08x}")
    except CdcError as error:
        seen.append(refused(error).replace(path.name, "SEGMENT"))
    return " ".join(seen)


def _is_under_its_checksum(content: bytes, entry: CommitLogEntry) -> bool:
    """Return whether the file has the entry: Size Crc(Size) Payload Crc(Size Payload), ending at its position. Does not
    use the reader."""
    framed = entry_bytes(entry.payload)
    return content[entry.position - len(framed) : entry.position] == framed


def _framing_seeds() -> Iterator[bytes]:
    for way in range(len(COMPRESSORS) + 2):
        for payloads in ([b"\1" * 20], [b"\2" * 30, b"\3" * 11, b"\4" * 99]):
            yield bytes([way, 0]) + b"".join(bytes([len(each)]) + each for each in payloads)


def _framing() -> Callable[[bytes], str]:
    folder, keys = _folder(), shapes.OneKey()
    path = folder / f"CommitLog-7-{shapes.SEGMENT_ID}.log"
    options = SegmentOptions(keys=keys, max_segment_size=_MAX_SEGMENT)

    def take(data: bytes) -> str:
        way, claim = (data[0], data[1]) if len(data) > 1 else (0, 0)
        content = shapes.framed_segment(way, claim, data[2:])
        path.write_bytes(content)
        return _read(path, content, options)

    return take


def _index() -> Callable[[bytes], str]:
    def take(data: bytes) -> str:
        try:
            found = parse_cdc_index(data)
        except CdcError as error:
            return refused(error)
        if found is not None:
            digits, _, rest = data.partition(b"\n")
            assert found.offset == int(digits), "another offset than the digits say"
            assert found.completed == (rest.strip() == b"COMPLETED"), "completed without the word"
        return str(found)

    return take


def _frames() -> Callable[[bytes], str]:
    def take(data: bytes) -> str:
        at_once, cut = _frames_of([data]), _frames_of([data[at : at + 3] for at in range(0, len(data), 3)])
        assert at_once == cut, "frames depend on how the pipe cuts them"
        return at_once

    return take


def _frames_of(parts: list[bytes]) -> str:
    decoder, frames = FrameDecoder(), list[HostFrame]()
    try:
        for part in parts:
            for frame in decoder.feed(part):
                frames += [Acks([seq]) for seq in frame.seqs] if isinstance(frame, Acks) else [frame]
    except CdcError as error:
        return refused(error)
    return repr(frames)[: _OUTCOMES_KEPT * 100]


# key: Table (UInt8) {Present (UInt8: 255 absent, else the size) Value}, a value for each column of the primary key


def _key() -> Callable[[bytes], str]:
    tables = shapes.keyed_tables()
    keys = [(table, EventKeys(table), Projection(table)) for table in tables]
    schemas = [shapes.parsed(each.schema) for _, each, _ in keys]

    def take(data: bytes) -> str:
        which = data[0] % len(keys) if data else 0
        table, writer, projection = keys[which]
        partition_key, clustering = shapes.key_parts(table, data[1:])
        try:
            written = writer.key(writer.partition(partition_key), clustering)
        except CqlValueError as error:
            return refused(error)
        assert shapes.reads_whole(written, schemas[which]), "bytes behind the key, or too few of them"
        values = projection.row_key_values(partition_key, clustering)
        assert projection.avro_key(values) == written, "agent and connector write another key"
        return written.hex()

    return take


def _events() -> Callable[[bytes], str]:
    def take(data: bytes) -> str:
        try:
            return repr(decode_events(data))[:_OUTCOMES_KEPT]
        except CdcError as error:
            return refused(error)

    return take


# datastax: 0 Key (the rest is one), or 1 Schema (the rest is one)


def _datastax() -> Callable[[bytes], str]:
    schema, projection, value, properties = shapes.datastax_topic()

    def take(data: bytes) -> str:
        try:
            if data[:1] == b"\1":
                return str(DataStaxSchema(data[1:]))[:5]
            event = schema.decode(data[1:], value, properties)
            return repr(as_mutation_events(event, projection))
        except CdcError as error:
            return refused(error)

    return take


# held: 0 File (the rest is one), or 1 {Size (UInt16) Payload}, under checksums that fit


def _held() -> Callable[[bytes], str]:
    path = _folder() / "ks.t.events"

    def take(data: bytes) -> str:
        content = data[1:] if data[:1] != b"\1" else shapes.held_file(data[1:])
        path.write_bytes(content)
        try:
            held = HeldEvents(path)
            found = list(held.read_all())
            damaged = held.take_damage()
            assert 0 <= damaged <= held.size <= len(content), "more is damaged than there is"
            written = shapes.held_messages(content)
            assert all(message in written.get(size, ()) for message, size in found), "no whole frame has this message"
            # The next run continues: messages that were read remain, and the appended one comes last.
            again = HeldEvents(path)
            again.append([shapes.HELD_PAYLOAD])
            own = decode_events(shapes.HELD_PAYLOAD), len(shapes.HELD_PAYLOAD)
            assert list(HeldEvents(path).read_all()) == [*found, own], "appending loses messages"
            return f"{len(found)} messages, {damaged} of {held.size} bytes damaged"
        finally:
            path.unlink()

    return take


def _agent_options() -> Callable[[bytes], str]:
    path = _folder() / "agent.yaml"

    def take(data: bytes) -> str:
        path.write_bytes(data)
        try:
            return str(sorted(AgentConfig.load(path, {}).model_fields_set))
        except CdcError as error:
            return refused(error)

    return take


def _source_options() -> Callable[[bytes], str]:
    pulsar: Mapping[str, str] = {"getServiceUrl": "pulsar://localhost:6650"}

    def take(data: bytes) -> str:
        frame = (len(data) + 1).to_bytes(4, "big") + b"\0" + data
        try:
            (request,) = FrameDecoder().feed(frame)
            config, warnings = SourceConfig.from_mapping(getattr(request, "config"), pulsar)  # noqa: B009
            return f"{config.selection} {config.topics} {len(warnings)}"
        except CdcError as error:
            return refused(error)

    return take


# rows: Type (UInt8, of each of the page's two columns), Rows (UInt8), Page; by both ways


def _rows() -> Callable[[bytes], str]:
    if native_rows() is None:
        return lambda data: "there is no native core here to compare with"
    encoders = [
        row_encoder(DataFormat.KEY_VALUE_AVRO, each, each.value_columns).transcoder for each in shapes.page_tables()
    ]

    def take(data: bytes) -> str:
        head, page = (data + bytes(2))[:2], RawPage(data[2:], (data + bytes(2))[1], 2, None)
        transcoder = encoders[head[0] % len(encoders)]
        assert transcoder is not None
        try:
            expected = page._tuples()
        except IndexError:
            assert _ends_too_early(page.rows)
            assert _ends_too_early(lambda: page.rows_by_key(1))
            return "ends too early"
        assert page.rows() == expected
        assert page.rows_by_key(1) == {row[:1]: row[1:] for row in expected}
        records = [_record(transcoder, row) for row in expected]
        assert [_record(transcoder, row) for row in page.rows()] == records
        return " ".join(records)

    return take


def _ends_too_early(cut: Callable[[], object]) -> bool:
    try:
        cut()
    except IndexError:
        return True
    return False


def _record(transcoder: RecordTranscoder, row: RawRow) -> str:
    try:
        return transcoder.write(row, 0).hex()
    except (CqlValueError, ValueError, TypeError, OverflowError) as error:
        return f"{type(error).__name__} {error}"


def _index_seeds() -> Iterator[bytes]:
    yield from (b"", b"7", b"12345\n", b"12345\nCOMPL", b"2147483647\nCOMPLETED\n", b" 1 \r\nCOMPLETED")


TARGETS: Final = {
    target.name: target
    for target in (
        FuzzTarget(name="mutation", seeds=_mutation_seeds, prepare=_mutation),
        FuzzTarget(name="native", seeds=_native_seeds, prepare=_native),
        FuzzTarget(name="segment", seeds=_segment_seeds, prepare=_segment),
        FuzzTarget(name="framing", seeds=_framing_seeds, prepare=_framing),
        FuzzTarget(name="index", seeds=_index_seeds, prepare=_index),
        FuzzTarget(name="frames", seeds=shapes.frame_seeds, prepare=_frames),
        FuzzTarget(name="key", seeds=shapes.key_seeds, prepare=_key),
        FuzzTarget(name="rows", seeds=shapes.page_seeds, prepare=_rows),
        FuzzTarget(name="events", seeds=shapes.events_seeds, prepare=_events),
        FuzzTarget(name="datastax", seeds=shapes.datastax_seeds, prepare=_datastax),
        FuzzTarget(name="held", seeds=shapes.held_seeds, prepare=_held),
        FuzzTarget(name="agent-options", seeds=shapes.agent_options_seeds, prepare=_agent_options),
        FuzzTarget(name="source-options", seeds=shapes.source_options_seeds, prepare=_source_options),
    )
}
"""Targets by name; `python -m tests.fuzz.run NAME` fuzzes one of them."""
