"""Hostile segments: real bytes, changed at random. The checksums are recomputed, so that every layer is reached.

Each run has its own seed, which is shown when a test fails. CDC_TEST_SEED repeats it.
"""

from __future__ import annotations

import os
import random
import secrets
import struct
import tracemalloc
import zlib
from collections import Counter
from pathlib import Path

import pytest

from change_agent.commitlog.reader import SegmentReader
from change_agent.db.mutation import MutationDecoder
from change_agent.errors import CommitLogReadError
from change_agent.events.decode_format import event_json, mutation_json
from change_agent.events.mutation_events import MutationEventBuilder
from schemas.errors import CdcError
from tests.agent.segment_writer import (
    COMPRESSORS,
    encoded_segment_bytes,
    entry_bytes,
    header_bytes,
    segment_bytes,
    sync_marker_bytes,
)
from tests.golden.segments import ENCODED_SEGMENTS, GOLDEN_SEGMENTS, GoldenSegment, read_until_error

pytestmark = pytest.mark.exhaustive

SEED = int(os.environ.get("CDC_TEST_SEED") or secrets.randbelow(10**6))
SEGMENT_ID = 7_000_000_001
# Segments for each version, and changed mutations in each segment.
ROUNDS, MUTATIONS = 150, 50
# Far more than a mutation of some hundred bytes needs, and far less than a length of 32 bits could request.
MAX_MEMORY = 20_000_000

# 2^64 - 1, 2^32 - 1, 2^31, 2^63
LARGE_VINTS = ("ff" * 9, "f0ffffffff", "f080000000", "ff80" + "00" * 7)
LYING_SIZES = (-(2**31), -1, 0, 1, 9, 10, 11, 4096, 2**31 - 13, 2**31 - 1)

plain_segments = pytest.mark.parametrize("golden", GOLDEN_SEGMENTS, ids=lambda golden: golden.line)


@pytest.fixture(autouse=True)
def seed() -> None:
    """Print the seed. pytest shows the output of a failed test."""
    print(f"CDC_TEST_SEED={SEED}")


def _payloads(golden: GoldenSegment) -> list[bytes]:
    tables = golden.tables()
    known = {table_id.bytes for table_id in tables}
    return [entry.payload for entry in golden.entries() if entry.payload[1:17] in known]


def _changed(rng: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Change the content in a few ways that parsers often handle wrongly."""
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at, length = rng.randrange(len(changed) + 1), rng.choice([1, 1, 2, 4, 8, 30])
        match rng.randrange(7):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(changed):
                changed[at] = rng.choice([0, 1, 0x20, 0x7F, 0x80, 0xF0, 0xFE, 0xFF])
            case 2:
                changed[at:at] = rng.randbytes(length)
            case 3:
                del changed[at : at + length]
            case 4:
                changed[at:at] = changed[at : at + length]
            case 5:
                changed[at : at + 1] = bytes.fromhex(rng.choice(LARGE_VINTS))
            case _:
                other = rng.choice(others)
                start = rng.randrange(len(other))
                changed[at : at + length] = other[start : start + length]
    return bytes(changed) if len(changed) >= 10 else content


@plain_segments
def test_mutations_with_wrong_bytes_under_right_checksums_are_read_or_refused(
    golden: GoldenSegment, tmp_path: Path
) -> None:
    """The bytes go through the reader, the decoder, both output formats and the event builder; plain and compressed."""
    rng, originals, version = random.Random(SEED), _payloads(golden), golden.version
    decoder, events, outcomes = MutationDecoder(golden.tables()), MutationEventBuilder(), Counter[str]()
    path = tmp_path / f"CommitLog-{version}-{SEGMENT_ID}.log"
    for _ in range(ROUNDS):
        payloads = [_changed(rng, rng.choice(originals), originals) for _ in range(MUTATIONS)]
        compressor = rng.choice([None, *COMPRESSORS])
        if compressor is None:
            path.write_bytes(segment_bytes(SEGMENT_ID, [payloads], version=version))
        else:
            plain = b"".join(map(entry_bytes, payloads))
            section = len(plain), COMPRESSORS[compressor](plain)
            path.write_bytes(encoded_segment_bytes(SEGMENT_ID, {"compressionClass": compressor}, [section]))
        with SegmentReader(path) as reader:
            entries = list(reader.read())
        assert [entry.payload for entry in entries] == payloads
        for entry in entries:
            try:
                mutation = decoder.decode(entry.payload, version)
                mutation_json(path.name, entry, mutation)
                for event in events.events_of(mutation, entry.position):
                    event_json(path.name, event)
                outcomes["read"] += 1
            except CdcError:
                outcomes["refused"] += 1
    assert outcomes["read"] > 100
    assert outcomes["refused"] > 1000


@plain_segments
def test_a_wrong_mutation_takes_no_memory_for_what_it_claims(golden: GoldenSegment) -> None:
    """Counts and lengths are checked against the remaining bytes before memory is allocated."""
    rng, originals, version = random.Random(SEED), _payloads(golden), golden.version
    decoder = MutationDecoder(golden.tables())
    tracemalloc.start()
    try:
        for _ in range(300):
            payload = _changed(rng, rng.choice(originals), originals)
            try:
                decoder.decode(payload, version)
            except CommitLogReadError:
                continue
        assert tracemalloc.get_traced_memory()[1] < MAX_MEMORY
    finally:
        tracemalloc.stop()


def test_a_segment_whose_lengths_lie_under_right_checksums_ends(tmp_path: Path) -> None:
    """Every returned entry was written. Then the segment ends, or a typed error follows."""
    rng, outcomes = random.Random(SEED), Counter[str]()
    path = tmp_path / f"CommitLog-7-{SEGMENT_ID}.log"
    for _ in range(3000):
        payloads, content = _lying_segment(rng)
        path.write_bytes(content)
        seen, error = read_until_error(path)
        assert [each.payload for each in seen] == payloads[: len(seen)]
        outcomes[type(error).__name__] += 1
        assert error is None or (error.segment == path.name and error.position is not None)
    assert (
        min(outcomes[name] for name in ("MalformedSegmentError", "ChecksumMismatchError", "BufferUnderflowError")) > 10
    )


def _lying_segment(rng: random.Random) -> tuple[list[bytes], bytes]:
    """Return all payloads, and a segment with a wrong marker or a wrong size of an entry."""
    content, payloads = header_bytes(SEGMENT_ID), []
    sections, lie = rng.randint(1, 4), rng.random()
    for _ in range(sections):
        body = b""
        for _ in range(rng.randint(0, 4)):
            payload = rng.randbytes(rng.randint(10, 40))
            payloads.append(payload)
            body += entry_bytes(payload)
            if lie < 0.5 and rng.random() < 0.2:
                size = struct.pack(">i", rng.choice([*LYING_SIZES, rng.randint(1, 100)]))
                body += size + struct.pack(">I", zlib.crc32(size)) + rng.randbytes(rng.randint(0, 40))
        start, end = len(content), len(content) + 8 + len(body)
        if lie > 0.5 and rng.random() < 0.3:
            end = rng.choice([*LYING_SIZES, start, start + 7, start + 8, rng.randint(0, end + 50)])
        content += sync_marker_bytes(SEGMENT_ID, start, end) + body
    return payloads, content + bytes(rng.choice([0, 3, 8, 100]))


@pytest.mark.parametrize("golden", GOLDEN_SEGMENTS + ENCODED_SEGMENTS, ids=lambda golden: golden.line)
def test_files_with_wrong_bytes_yield_what_was_written_and_end(golden: GoldenSegment, tmp_path: Path) -> None:
    """Only the checksum of the header is recomputed."""
    rng, options, whole = random.Random(SEED), golden.options(), golden.entries()
    content = golden.path.read_bytes()
    payloads = [entry.payload for entry in whole]
    path = tmp_path / golden.path.name
    stopped = 0
    for _ in range(300):
        changed = _changed(rng, content, [content])
        if rng.random() < 0.3:
            changed = _with_header_checksum(changed)
        path.write_bytes(changed)
        seen, error = read_until_error(path, options)
        assert [each.payload for each in seen] == payloads[: len(seen)]
        stopped += error is not None
        assert error is None or error.segment == path.name
    assert stopped > 100


def _with_header_checksum(content: bytes) -> bytes:
    """Recompute the checksum of a changed header."""
    version, low_high, length = struct.unpack_from(">IqH", content)
    end = 14 + length
    if end + 4 > len(content):
        return content
    halves = low_high & 0xFFFFFFFF, (low_high >> 32) & 0xFFFFFFFF
    crc = zlib.crc32(content[14:end], zlib.crc32(struct.pack(">IIII", version, *halves, length)))
    return content[:end] + struct.pack(">I", crc) + content[end + 4 :]
