"""The golden commit log segments of tests/golden/commitlog, for tests without servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from cdc.schema_source import load_schema
from change_agent.commitlog.entry import CommitLogEntry
from change_agent.commitlog.reader import SegmentReader
from schemas.table_metadata import TableMetadata

__all__ = ["GOLDEN_SEGMENTS", "GoldenSegment"]

_FOLDER = Path(__file__).parent / "golden" / "commitlog"


@dataclass(frozen=True, slots=True)
class GoldenSegment:
    """A segment that a real node wrote."""

    line: str
    """The folder: a Cassandra line, perhaps with its mode."""

    @property
    def path(self) -> Path:
        """The segment file."""
        (path,) = (_FOLDER / self.line).glob("*.log")
        return path

    @property
    def schema_file(self) -> Path:
        """Its schema, for `cdc decode --schema`."""
        return _FOLDER / self.line / "schema.json"

    def tables(self) -> Mapping[UUID, TableMetadata]:
        """The tables of its keyspace `golden`."""
        return load_schema(self.schema_file)

    def expected(self) -> list[str]:
        """What Cassandra's reader sees, as `cdc decode` prints it."""
        return (_FOLDER / self.line / "mutations.jsonl").read_text().splitlines()

    @property
    def version(self) -> int:
        """Version of the commit log."""
        with SegmentReader(self.path) as reader:
            return reader.descriptor.version

    def entries(self) -> list[CommitLogEntry]:
        """All entries, also those of system tables."""
        with SegmentReader(self.path) as reader:
            return list(reader.read())


GOLDEN_SEGMENTS = [GoldenSegment(path.name) for path in sorted(_FOLDER.iterdir()) if path.is_dir()]
