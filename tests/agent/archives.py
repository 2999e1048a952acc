"""Archives of golden segments, made as an agent makes them, for tests of code that reads archives."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from change_agent.archive.segment_archive import SegmentArchive
from change_agent.schema.schema_history import NodeSchema, SchemaHistory
from tests.golden.make_state import NODE_ID
from tests.golden.segments import GoldenSegment

__all__ = ["BEGAN_MS", "NODE", "archive_of"]

NODE = str(NODE_ID)
BEGAN_MS = 1_000


def archive_of(folder: Path, segments: Sequence[GoldenSegment], *, with_schema: bool = True) -> str:
    """Make an archive of one node with these segments and the schema of the last one; return its folder."""
    archive = SegmentArchive(str(folder), "zstd")
    if with_schema:
        schema = NodeSchema(node_id=NODE_ID, schema=json.loads(segments[-1].schema_file.read_text()))
        with tempfile.TemporaryDirectory() as working:
            history = SchemaHistory(Path(working))
            history.load()
            history.add(schema)
            first = min(int(each.path.stem.split("-")[2]) for each in segments)
            archive.store_schema(replace(history.archived(NODE_ID, BEGAN_MS), first_segment=first))
            history.close()
    for each in segments:
        archive.store(each.path, NODE)
    return str(folder)
