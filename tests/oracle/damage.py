"""Damaged copies of segments, and what two readers read of them.

The mutations of a real node are written again, into small segments of every encoding. These are then cut and
overwritten in the header, sync markers, lengths, checksums and between.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from change_agent.commitlog.entry import CommitLogEntry
from change_agent.commitlog.reader import SegmentReader
from change_agent.commitlog.section_decoder import KeyProvider, SegmentOptions
from change_agent.errors import CommitLogReadError
from tests.agent.segment_writer import (
    COMPRESSORS,
    encoded_segment_bytes,
    encrypted_block_bytes,
    entry_bytes,
    segment_bytes,
)
from tests.commitlog_oracle.oracle import CommitLogOracle
from tests.oracle.variants import CIPHER

__all__ = ["DamagedReading", "read_damaged"]

_SECTIONS: Final = 4
_SECTION_ENTRIES: Final = 8
_MAX_PAYLOAD: Final = 1500
_MARKER: Final = 8
# Number of times for each kind of damage and each encoding.
_ROUNDS: Final = 5
_KEY_ALIAS: Final = "Testing:1"
_IV: Final = bytes(range(16))


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedReading:
    """One copy: `what` is its damage, and both lists have the mutations that a reader saw before its first error.

    A mutation is named by its index in the whole segment, so equal names mean equal bytes.
    """

    what: str
    ours: list[int]
    our_error: CommitLogReadError | None
    theirs: list[int]
    their_error: str | None


def read_damaged(
    sources: Sequence[Path],
    options: SegmentOptions,
    known: Mapping[tuple[str, int], str],
    judge: tuple[CommitLogOracle, Path],
    folder: Path,
) -> list[DamagedReading]:
    """Damage copies of mutations of `sources` in every encoding, and let both readers read them.

    `known` are the printed lines of the entries that both can read, by name of the segment and position. The judge is
    the oracle and the folder of its node. Copies are written below `folder`.
    """
    entries = _chosen(sources, options, known)
    version = int(sources[0].name.split("-")[1])
    copies = list(_copies(entries, options, version, folder / "damaged"))
    oracle, node_folder = judge
    outputs = oracle.read_damaged([path for _, path in copies], node_folder)
    # The first copy is whole: the lines that Cassandra prints of it name the mutations.
    names = {_updates(line): index for index, line in enumerate(outputs[0].lines)}
    assert len(names) == len(entries)
    payloads = {entry.payload: index for index, entry in enumerate(entries)}
    found = []
    for (what, path), output in zip(copies, outputs, strict=True):
        ours, error = _ours(path, options, payloads)
        theirs = [names[_updates(line)] for line in output.lines]
        found.append(DamagedReading(what=what, ours=ours, our_error=error, theirs=theirs, their_error=output.error))
    return found


def _chosen(
    sources: Sequence[Path], options: SegmentOptions, known: Mapping[tuple[str, int], str]
) -> list[CommitLogEntry]:
    """Mutations from all sources, each with a different printed line."""
    chosen: dict[str, CommitLogEntry] = {}
    for path in sources:
        with SegmentReader(path, options=options) as reader:
            for entry in reader.read():
                line = known.get((path.name, entry.position))
                if line is not None and entry.size <= _MAX_PAYLOAD:
                    chosen[_updates(line)] = entry
    count = _SECTIONS * _SECTION_ENTRIES
    return list(chosen.values())[:: len(chosen) // count][:count]


def _copies(
    entries: Sequence[CommitLogEntry], options: SegmentOptions, version: int, folder: Path
) -> Iterator[tuple[str, Path]]:
    """The damage and the path of each copy. The first one is whole and not encoded."""
    rng = random.Random(version)
    # Zstd and Noop came with Cassandra 4.0, which writes version 7.
    compressors = [name for name in COMPRESSORS if version > 6 or name not in {"ZstdCompressor", "NoopCompressor"}]
    encodings = [None, *compressors, *([] if options.keys is None else [CIPHER])]
    for number, encoding in enumerate(encodings):
        segment_id = 10_000 + number
        content, places = _written(entries, encoding, options.keys, segment_id, version)
        for index, (what, damaged) in enumerate(_damages(rng, content, places)):
            path = folder / f"{number}-{index}" / f"CommitLog-{version}-{segment_id}.log"
            path.parent.mkdir(parents=True)
            path.write_bytes(damaged)
            if not _is_circle(path, options, places):
                yield f"{encoding}: {what}", path


def _is_circle(path: Path, options: SegmentOptions, places: Sequence[int]) -> bool:
    """Return whether a marker points back to a marker's own position, which is an endless section for Cassandra."""
    error = _ours(path, options, None)[1]
    return error is not None and any(error.reason == f"a sync marker points back to position {at}" for at in places)


def _written(
    entries: Sequence[CommitLogEntry], encoding: str | None, keys: KeyProvider | None, segment_id: int, version: int
) -> tuple[bytes, list[int]]:
    """The bytes of a segment, and the positions of its fields except payloads."""
    sections = [
        [each.payload for each in entries[at : at + _SECTION_ENTRIES]]
        for at in range(0, len(entries), _SECTION_ENTRIES)
    ]
    if encoding is None:
        content = segment_bytes(segment_id, sections, version=version)
        position = len(segment_bytes(segment_id, [], version=version))
        places = [0, 4, 12, 14, position - 4]
        for payloads in sections:
            places += [position, position + 4]
            position += _MARKER
            for payload in payloads:
                places += [position, position + 4, position + 8 + len(payload)]
                position += len(payload) + 12
        return content, places
    parameters: dict[str, object] = {"compressionClass": encoding, "compressionParameters": {}}
    encode = COMPRESSORS.get(encoding)
    if encode is None:
        assert keys is not None
        parameters = {"encCipher": encoding, "encKeyAlias": _KEY_ALIAS, "encIV": _IV.hex()}
        encode = partial(_encrypted, keys.secret_key(_KEY_ALIAS))
    plain = [b"".join(map(entry_bytes, payloads)) for payloads in sections]
    encoded = [(len(each), encode(each)) for each in plain]
    position = len(encoded_segment_bytes(segment_id, parameters, [], version=version))
    places = [0, 4, 12, 14, position - 4]
    for _, compressed in encoded:
        # The marker, its checksum, the length, and the first bytes of the compressed data.
        places += [position, position + 4, position + 8, position + 12, position + 16]
        position += _MARKER + 4 + len(compressed)
    return encoded_segment_bytes(segment_id, parameters, encoded, version=version), places


def _encrypted(key: bytes, plain: bytes) -> bytes:
    """Encrypt a section in several blocks."""
    return b"".join(encrypted_block_bytes(plain[at : at + 1000], key, _IV) for at in range(0, len(plain), 1000))


def _damages(rng: random.Random, content: bytes, places: Sequence[int]) -> Iterator[tuple[str, bytes]]:
    yield "whole", content
    for _ in range(_ROUNDS):
        at, place, length = rng.randrange(len(content)), rng.choice(places), rng.choice([4, 16, 300])
        inside = place + rng.randrange(4)
        yield f"cut at {at}", content[:at]
        yield f"cut before the field at {place}", content[:place]
        yield f"a bit of byte {at}", _overwritten(content, at, bytes([content[at] ^ 1 << rng.randrange(8)]))
        flipped = bytes([content[inside] ^ 1 << rng.randrange(8)])
        yield f"a bit of byte {inside} of the field at {place}", _overwritten(content, inside, flipped)
        yield f"{length} zeros from {place}", _overwritten(content, place, bytes(length))
        yield f"16 random bytes from {inside}", _overwritten(content, inside, rng.randbytes(16))
        yield f"{length} zeros behind the end", content + bytes(length)


def _overwritten(content: bytes, at: int, new: bytes) -> bytes:
    return (content[:at] + new + content[at + len(new) :])[: len(content)]


def _ours(
    path: Path, options: SegmentOptions, payloads: Mapping[bytes, int] | None
) -> tuple[list[int], CommitLogReadError | None]:
    """Indexes of the mutations that our reader sees, and its error. Raises KeyError for an unwritten mutation."""
    seen: list[int] = []
    try:
        with SegmentReader(path, options=options) as reader:
            seen.extend(payloads[entry.payload] if payloads else 0 for entry in reader.read())
    except CommitLogReadError as error:
        return seen, error
    return seen, None


def _updates(line: str) -> str:
    """The content of a printed mutation, without its position."""
    return json.dumps(json.loads(line)["updates"])
