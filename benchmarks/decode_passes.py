"""Runs our decoder over segments: the counterpart of java/ReaderBenchmark.java, started by benchmarks.decode.

It makes one pass for each line on stdin, `mutations` (entry to mutation) or `events` (entry to event), and answers with
one line of JSON.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path

import psutil

from cdc.schema_source import load_schema
from change_agent.commitlog.reader import SegmentReader
from change_agent.db.mutation import MutationDecoder
from change_agent.events.mutation_events import MutationEventBuilder


def _mutations(decoder: MutationDecoder, segments: list[Path]) -> dict[str, int]:
    mutations = size = 0
    for path in segments:
        with SegmentReader(path) as reader:
            version = reader.descriptor.version
            for entry in reader.read():
                decoder.decode(entry.payload, version)
                mutations += 1
                size += entry.size
    return {"mutations": mutations, "bytes": size}


def _events(decoder: MutationDecoder, segments: list[Path]) -> dict[str, int]:
    builder, events = MutationEventBuilder(), 0
    for path in segments:
        with SegmentReader(path) as reader:
            version = reader.descriptor.version
            for entry in reader.read():
                events += len(builder.events_of(decoder.decode(entry.payload, version), entry.position))
    return {"events": events}


def main() -> None:
    """Answer each line on stdin. Command line arguments: schema file, segment files."""
    decoder = MutationDecoder(load_schema(Path(sys.argv[1])))
    segments = [Path(each) for each in sys.argv[2:]]
    # As the agent does.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    for line in sys.stdin:
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        counts = (_events if line.strip() == "events" else _mutations)(decoder, segments)
        cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
        rss = psutil.Process().memory_info().rss
        print(json.dumps({**counts, "wall_ns": wall, "cpu_ns": cpu, "rss_bytes": rss}), flush=True)


if __name__ == "__main__":
    main()
