"""The golden commit log segments of tests/golden/commitlog and commitlog_encoded, for tests without servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from cdc.schema_source import load_schema
from change_agent.commitlog.entry import CommitLogEntry
from change_agent.commitlog.reader import SegmentReader
from change_agent.commitlog.section_decoder import SegmentOptions
from change_agent.configuration.commitlog_options import load_segment_options
from schemas.table_metadata import TableMetadata

__all__ = ["ENCODED_SEGMENTS", "GOLDEN_SEGMENTS", "GoldenSegment"]

_FOLDER = Path(__file__).parent / "commitlog"
_ENCODED_FOLDER = _FOLDER.with_name("commitlog_encoded")


@dataclass(frozen=True, slots=True)
class GoldenSegment:
    """A segment that a real node wrote."""

    line: str
    """The folder's name: a Cassandra line, perhaps its mode, and the encoding if there is one."""

    parent: Path = _FOLDER
    """The folder that contains this one."""

    @property
    def path(self) -> Path:
        """The segment file."""
        (path,) = (self.parent / self.line).glob("*.log")
        return path

    @property
    def schema_file(self) -> Path:
        """The schema file, for `cdc decode --schema`."""
        return self.parent / self.line / "schema.json"

    @property
    def options_file(self) -> Path:
        """The file for `cdc decode --commitlog-options` of an encrypted segment."""
        return self.parent / self.line / "commitlog-options.json"

    def options(self) -> SegmentOptions:
        """The options that a SegmentReader needs for the segment."""
        return load_segment_options(self.options_file, "golden") if self.options_file.exists() else SegmentOptions()

    def tables(self) -> Mapping[UUID, TableMetadata]:
        """The tables of its keyspace `golden`."""
        return load_schema(self.schema_file)

    def expected(self) -> list[str]:
        """The lines of Cassandra's reader, as `cdc decode` prints them."""
        return (self.parent / self.line / "mutations.jsonl").read_text().splitlines()

    @property
    def version(self) -> int:
        """Version of the commit log."""
        with SegmentReader(self.path, options=self.options()) as reader:
            return reader.descriptor.version

    def entries(self) -> list[CommitLogEntry]:
        """All entries, including those of system tables."""
        with SegmentReader(self.path, options=self.options()) as reader:
            return list(reader.read())


GOLDEN_SEGMENTS = [GoldenSegment(path.name) for path in sorted(_FOLDER.iterdir()) if path.is_dir()]
ENCODED_SEGMENTS = [
    GoldenSegment(path.name, _ENCODED_FOLDER) for path in sorted(_ENCODED_FOLDER.iterdir()) if path.is_dir()
]
