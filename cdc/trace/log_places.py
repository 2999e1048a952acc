"""The places of a row in the commit log: in the segments that agents on this machine still have, and in archives."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

import fsspec

from cdc.trace.row_key import RowKey
from change_agent.archive.segment_archive import ArchiveError, fetch_segment
from change_agent.cdc_raw.cdc_index import index_name, parse_cdc_index
from change_agent.commitlog.descriptor import file_id
from change_agent.commitlog.reader import SegmentReader
from change_agent.commitlog.section_decoder import SegmentOptions
from change_agent.configuration.config import AgentConfig
from change_agent.db.mutation import MutationDecoder
from change_agent.errors import CommitLogReadError, UnknownTableError
from change_agent.events.mutation_events import MutationEventBuilder
from schemas.cql_value import CqlValueError
from schemas.mutation_event import MutationEvent
from schemas.table_metadata import TableMetadata

__all__ = ["LogPlace", "archived_segments", "local_segments", "places_in"]

_SEGMENTS: Final = "CommitLog-*.log*"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """A change of the row in a segment, or, without `event`, the `fault` at which reading the segment ended."""

    segment: str
    event: MutationEvent | None = None
    fault: str = ""


def local_segments(config: AgentConfig) -> list[str]:
    """Paths of the agent's segments in `cdc_raw` and the spill folder, and of those set aside, sorted by their ids."""
    folders = [config.cdc_raw_directory, config.spill_dir or config.cdc_working_dir / "spill"]
    folders += [config.cdc_working_dir / name for name in ("error", "reprocess")]
    found = [path for folder in folders if folder.is_dir() for path in folder.glob("CommitLog-*.log")]
    return [str(path) for path in sorted(found, key=lambda path: file_id(path.name) or (0, 0))]


def archived_segments(config: AgentConfig) -> list[str]:
    """Paths or URLs of the segments in the agent's archive, of all nodes that write there.

    Raises the errors of the object store.
    """
    if config.archive_url is None:
        return []
    store, root = fsspec.core.url_to_fs(config.archive_url)
    return [str(store.unstrip_protocol(path)) for path in sorted(store.glob(f"{root.rstrip('/')}/*/{_SEGMENTS}"))]


def places_in(
    segments: Sequence[str], tables: Mapping[UUID, TableMetadata], options: SegmentOptions, key: RowKey
) -> Iterator[LogPlace]:
    """Each change of the row, in the order of the segments. The segments are only read."""
    for segment in segments:
        name = segment.rpartition("/")[2]
        try:
            with tempfile.TemporaryDirectory() as folder:
                is_here = segment.endswith(".log") and Path(segment).is_file()
                path = Path(segment) if is_here else fetch_segment(segment, Path(folder))
                for event in _events(path, tables, options, key):
                    yield LogPlace(segment=name, event=event)
        except (CommitLogReadError, CqlValueError, ArchiveError) as error:
            if "://" in segment or Path(segment).exists():  # else the agent has deleted it meanwhile
                yield LogPlace(segment=name, fault=str(error))


def _events(
    path: Path, tables: Mapping[UUID, TableMetadata], options: SegmentOptions, key: RowKey
) -> Iterator[MutationEvent]:
    decoder, builder = MutationDecoder(tables), MutationEventBuilder()
    with SegmentReader(path, 0, options=options) as reader:
        for entry in reader.read(_synced(path)):
            # Decoding takes most of the time. An entry without the key's bytes cannot change the row.
            if key.parts[0] not in bytes(entry.payload):
                continue
            try:
                mutation = decoder.decode(entry.payload, reader.descriptor.version)
            except UnknownTableError:
                continue
            for found in builder.events_of(mutation, entry.position):
                if found.keys.table.table_id == key.table.table_id and key.concerns(found.event):
                    yield found.event


def _synced(path: Path) -> int | None:
    """The position up to which Cassandra has synced a segment that it still writes; None for a complete segment."""
    try:
        index = parse_cdc_index(path.with_name(index_name(path.name)).read_bytes())
    except (OSError, CommitLogReadError):
        return None
    return None if index is None or index.completed else index.offset
