"""Measures CPU and memory of storing positions when many segments are finished, as ratios to a thousand finished
segments.

python -m benchmarks.finished_ids
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Container, Mapping
from pathlib import Path
from typing import Final

import psutil

from change_agent.metrics import AgentMetrics
from change_agent.positions.inflight import InflightPositions
from change_agent.positions.offsets import OffsetStore, StoredPositions
from change_agent.positions.positions_writer import PositionsWriter
from change_agent.positions.segment_ids import SegmentIds
from change_agent.schema.schema_moments import SchemaMoments

_COUNTS: Final = (1_000, 1_000_000, 10_000_000)
_STORES: Final = 200
_FIRST: Final = 1_795_000_000_000


class _NoFiles:
    """Stands for segments whose files are all deleted."""

    def let_go(self, finished: Container[int], lost: Container[int], faulty: Mapping[int, str]) -> frozenset[int]:
        return frozenset()

    def present(self) -> Collection[int]:
        return ()


def _measure(count: int) -> None:
    """Print the CPU of storing positions once in microseconds, and the process's memory in MiB.

    One more segment finishes before each time.
    """
    ids = SegmentIds([(_FIRST, _FIRST + count - 1)])
    moments = SchemaMoments(ids)
    positions = InflightPositions(max_events=10, max_bytes=10)
    with tempfile.TemporaryDirectory() as folder:
        store = OffsetStore(Path(folder))
        store.load()
        writer = PositionsWriter(
            store, StoredPositions(finished=ids), positions, _NoFiles(), AgentMetrics(), lambda: None, 1.0
        )
        began = time.process_time()
        for segment_id in range(_FIRST + count, _FIRST + count + _STORES):
            moments.begin(segment_id, 1, 1)
            positions.open(segment_id, 0)
            positions.finish(segment_id)
            moments.end(segment_id)
            writer._store_and_let_go()  # noqa: SLF001  # what its thread does at each interval
        cpu_us = (time.process_time() - began) / _STORES * 1e6
        store.close()
    print(cpu_us, psutil.Process().memory_info().rss / 2**20)


def main() -> None:
    """Measure each count in its own process."""
    if len(sys.argv) > 1:
        _measure(int(sys.argv[1]))
        return
    first: tuple[float, float] | None = None
    for count in _COUNTS:
        command = [sys.executable, "-m", "benchmarks.finished_ids", str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        cpu_us, rss = map(float, done.stdout.split())
        first = first or (cpu_us, rss)
        print(
            f"{count:>10,} finished: {cpu_us:,.0f} us CPU a store ({cpu_us / first[0]:.2f}), "
            f"{rss:.0f} MiB ({rss / first[1]:.2f})"
        )


if __name__ == "__main__":
    main()
