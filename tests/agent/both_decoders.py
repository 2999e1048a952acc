"""Prints the results of this process's decoder for good and bad bytes, to compare native, compiled and plain.

CDC_DECODER=native python -m tests.agent.both_decoders > native.txt
CDC_DECODER=compiled python -m tests.agent.both_decoders > compiled.txt
CDC_DECODER=python python -m tests.agent.both_decoders > python.txt
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from change_agent.commitlog.entry import CommitLogEntry
from change_agent.commitlog.reader import SegmentReader
from change_agent.db.mutation import MutationDecoder
from change_agent.errors import CommitLogReadError
from change_agent.events.decode_format import event_json, mutation_json
from change_agent.events.mutation_events import MutationEventBuilder, TableEvent
from change_agent.native_core import native_core
from schemas.errors import CdcError
from tests.agent.both_ways import BothWays
from tests.golden.segments import ENCODED_SEGMENTS, GOLDEN_SEGMENTS, GoldenSegment

Natively = Callable[[CommitLogEntry], list[TableEvent] | None]
_BAD_MUTATIONS = 6
_BAD_SEGMENTS = 25


def _lines() -> Iterator[str]:
    for golden in (*GOLDEN_SEGMENTS, *ENCODED_SEGMENTS):
        # The same bad bytes in each process.
        choice = random.Random(golden.line)
        yield from _mutations(golden, choice)
        yield from _segments(golden, choice)


def _mutations(golden: GoldenSegment, choice: random.Random) -> Iterator[str]:
    decoder, version, core = MutationDecoder(golden.tables()), golden.version, native_core()
    natively = None if core is None else BothWays(core, golden.tables(), version).events
    for entry in golden.entries():
        for payload in (entry.payload, *(_damaged(entry.payload, choice) for _ in range(_BAD_MUTATIONS))):
            damaged = CommitLogEntry(entry.position, payload)
            yield f"{golden.line} {entry.position} {_decoded(decoder, natively, damaged, version)}"


def _decoded(decoder: MutationDecoder, natively: Natively | None, entry: CommitLogEntry, version: int) -> str:
    """Decode as the agent does: the decoder takes the entries that the core refuses."""
    try:
        events = None if natively is None else natively(entry)
        mutation = decoder.decode(entry.payload, version)
        if events is None:
            events = MutationEventBuilder().events_of(mutation, entry.position)
    except CdcError as error:
        return f"{type(error).__name__} {error}"
    return " ".join([mutation_json("", entry, mutation), *(event_json("", each) for each in events)])


def _segments(golden: GoldenSegment, choice: random.Random) -> Iterator[str]:
    content, options = golden.path.read_bytes(), golden.options()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / golden.path.name
        for _ in range(_BAD_SEGMENTS):
            path.write_bytes(_damaged(content, choice))
            read = []
            try:
                with SegmentReader(path, options=options) as reader:
                    read += [f"{entry.position}:{entry.size}" for entry in reader.read()]
            except CommitLogReadError as error:
                read.append(f"{type(error).__name__} {error}")
            yield f"{golden.line} {' '.join(read)}"


def _damaged(data: bytes, choice: random.Random) -> bytes:
    """Damage bytes: flip a bit, change a byte, leave bytes out, cut off the end, or put in the largest numbers."""
    damaged, at = bytearray(data), choice.randrange(len(data))
    match choice.randrange(5):
        case 0:
            damaged[at] ^= 1 << choice.randrange(8)
        case 1:
            damaged[at] = choice.randrange(256)
        case 2:
            del damaged[at : at + choice.randrange(1, 9)]
        case 3:
            del damaged[at:]
        case _:
            damaged[at : at + 9] = b"\xff" * 9
    return bytes(damaged)


if __name__ == "__main__":
    sys.stdout.writelines(line + "\n" for line in _lines())
