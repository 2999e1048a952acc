"""The golden commit log segments of tests/golden/commitlog and commitlog_encoded, for tests without servers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from uuid import UUID

from cdc.schema_source import load_schema
from change_agent.commitlog.entry import CommitLogEntry
from change_agent.commitlog.reader import SegmentReader
from change_agent.commitlog.section_decoder import SegmentOptions
from change_agent.configuration.commitlog_options import load_segment_options
from change_agent.db.mutation import MutationDecoder
from change_agent.errors import CommitLogReadError, UnknownTableError
from change_agent.events.decode_format import mutation_json
from schemas.table_metadata import TableMetadata

__all__ = ["ENCODED_SEGMENTS", "GOLDEN_SEGMENTS", "GoldenSegment", "decoded_and_expected", "read_until_error"]

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


def decoded_and_expected(golden: GoldenSegment) -> tuple[list[str], list[str]]:
    """The lines of the mutations of the keyspace `golden`, from our decoder and from Cassandra's reader."""
    decoder, version, lines = MutationDecoder(golden.tables()), golden.version, []
    for entry in golden.entries():
        with suppress(UnknownTableError):
            lines.append(mutation_json(golden.path.name, entry, decoder.decode(entry.payload, version)))
    if version == 6:
        # In this version Cassandra's reader does not keep the order of the updates.
        return list(map(_by_table, lines)), list(map(_by_table, golden.expected()))
    return lines, golden.expected()


def _by_table(line: str) -> str:
    mutation: dict[str, object] = json.loads(line)
    updates = cast(list[dict[str, object]], mutation["updates"])
    return json.dumps({**mutation, "updates": sorted(updates, key=lambda update: str(update["table_id"]))})


def read_until_error(
    path: Path, options: SegmentOptions | None = None
) -> tuple[list[CommitLogEntry], CommitLogReadError | None]:
    """The entries of a segment up to its error, and the error."""
    entries: list[CommitLogEntry] = []
    try:
        with SegmentReader(path, options=options or SegmentOptions()) as reader:
            entries.extend(reader.read())
    except CommitLogReadError as error:
        return entries, error
    return entries, None
