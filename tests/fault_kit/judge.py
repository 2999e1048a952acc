"""Runs Cassandra's own reader over the kept segments, each with the schema of its time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cdc.sandbox.cassandra_node import CassandraNode
from tests.commitlog_oracle.oracle import CommitLogOracle
from tests.fault_kit.keeper import KeptSchema, SegmentKeeper

__all__ = ["judged_lines"]

_SEGMENTS_AT_ONCE: Final = 40


def judged_lines(
    keeper: SegmentKeeper, node: CassandraNode, cassandra: str, folder: Path
) -> Iterator[tuple[list[str], list[str]]]:
    """Yield lines and errors of the reader, schema by schema, the oldest first.

    A segment that was open when a table was dropped is read with both schemas, because it may have changes of both
    tables.
    """
    folder.mkdir(parents=True, exist_ok=True)
    oracle = CommitLogOracle(cassandra, folder)
    segments = keeper.segments(node.number)
    first = 0
    for kept in keeper.schemas(node.number):
        until = next((at + 1 for at, path in enumerate(segments) if path.name == kept.newest_segment), len(segments))
        settings = _folder_of(kept, node)
        for start in range(first, until, _SEGMENTS_AT_ONCE):
            output = oracle.read(segments[start : min(start + _SEGMENTS_AT_ONCE, until)], settings)
            yield output.lines, output.errors
        # Several segments may have been open at that time. `Judged` counts an entry that is read twice once.
        first = max(0, until - 3)


def _folder_of(kept: KeptSchema, node: CassandraNode) -> Path:
    """Make a node's folder that has only its configuration and this schema."""
    conf = kept.folder / "conf"
    conf.mkdir()
    (kept.folder / "tmp").mkdir()
    settings = json.loads(node.cassandra_yaml.read_text())
    settings["data_file_directories"] = [str(kept.folder / "data")]
    for name in ("commitlog_directory", "cdc_raw_directory", "hints_directory", "saved_caches_directory"):
        settings[name] = str(kept.folder / "tmp" / name)
    (conf / "cassandra.yaml").write_text(json.dumps(settings))
    return kept.folder
