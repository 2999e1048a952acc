"""Reads segments of an archive into mutations, with the agent's decoder; with its compiled form if the worker has it.

Except for the modules that name the decoder's values, this is the only module of the bridge that knows the agent.
Archived segments have the agent's own format, and a second decoder could contradict the first.
"""

from __future__ import annotations

import logging
import tempfile
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from change_agent.archive.segment_archive import ArchiveError, fetch_segment
from change_agent.commitlog.entry import CommitLogEntry
from change_agent.commitlog.reader import SegmentReader
from change_agent.commitlog.section_decoder import SegmentOptions
from change_agent.configuration.commitlog_options import load_segment_options
from change_agent.db.mutation import MutationDecoder
from change_agent.db.values import Mutation
from change_agent.decoder import running
from change_agent.errors import (
    ChecksumMismatchError,
    CommitLogReadError,
    SegmentKeyError,
    UnsupportedEncodingError,
    UnsupportedVersionError,
)
from change_agent.format_version import version_rules
from change_agent.positions.segment_ids import SegmentIds
from change_agent.schema.schema_moments import SchemaMoments
from change_agent.schema.schema_store import LogPlace
from change_agent.schema.table_versions import TableVersion, TableVersions
from schemas.archived_schema import ArchivedSchema
from schemas.errors import ConfigError
from schemas.system_schema import tables_of
from schemas.table_metadata import TableMetadata
from spark_bridge.commitlog.archive import ArchivedSegment
from spark_bridge.errors import ArchiveReadError

__all__ = [
    "Fault",
    "KnownSchema",
    "ReadMutation",
    "check_segment_options",
    "known_schema",
    "read_segment",
    "refuse_newer_versions",
]

_log: Final = logging.getLogger(__name__)
_NEVER_US: Final = -(1 << 63)
_LAST_MS: Final = (1 << 63) // 1000 - 1
_reported_slow = False


class ReadMutation(NamedTuple):
    """One mutation. `position`: the end of its entry, as Cassandra counts positions. `size`: number of its bytes."""

    position: int
    size: int
    mutation: Mutation


class Fault(NamedTuple):
    """A part of a segment that cannot be read: one mutation, or everything after the position."""

    position: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSchema:
    """The tables of one node.

    `tables`: newest definitions. `versions`: all definitions of tables that need more than one.
    """

    tables: Mapping[UUID, TableMetadata]
    versions: Mapping[UUID, TableVersions]
    places: tuple[LogPlace, ...]


def refuse_newer_versions(segments: Iterable[ArchivedSegment]) -> None:
    """Raise ArchiveReadError if a segment has a version that this decoder does not know. It names the first one."""
    for each in segments:
        try:
            version_rules(each.version)
        except UnsupportedVersionError as error:
            raise ArchiveReadError(each.url, f"{error.reason}; read it with a newer version of this package") from error


def check_segment_options(path: Path | None) -> None:
    """Raise ConfigError if the file of `commitlogOptions`, or its key store, is not usable."""
    _segment_options(path)


@lru_cache(maxsize=4)
def known_schema(text: bytes, *, keep_dropped: bool) -> KnownSchema:
    """The schema that decodes a node's segments, from the text of its schema history.

    With `keep_dropped`, cells of columns that were dropped later stay.
    """
    schema = ArchivedSchema.of_text(text)
    made = {table_id: TableVersions(each) for table_id, each in _definitions(schema, keep_dropped).items()}
    return KnownSchema(
        tables={table_id: each.newest for table_id, each in made.items()},
        versions={table_id: each for table_id, each in made.items() if each.differ},
        places=tuple(
            LogPlace(segment_id=each.segment_id, position=each.position, table_id=each.table_id, since_us=each.since_us)
            for each in schema.places
        ),
    )


def _definitions(schema: ArchivedSchema, keep_dropped: bool) -> Mapping[UUID, list[TableVersion]]:
    """Every definition of every table, by table id, oldest first."""
    found: dict[UUID, list[TableVersion]] = defaultdict(list)
    for each in sorted(schema.definitions, key=lambda each: each.key):
        # Tables with and without `cdc = true` are read, so `cdc` must not make definitions differ.
        table = replace(tables_of(each.rows)[each.table_id], cdc=False)
        if keep_dropped:
            dropped = tuple(replace(column, dropped_time_us=_NEVER_US) for column in table.dropped_columns)
            table = replace(table, dropped_columns=dropped)
        found[each.table_id].append(TableVersion(table=table, since_us=each.since_us, confirmed_us=None))
    return found


def read_segment(
    segment: ArchivedSegment,
    schema: KnownSchema,
    *,
    archived_ids: Iterable[int],
    wanted: frozenset[UUID] | None,
    options_file: Path | None,
) -> Generator[ReadMutation | Fault, None, None]:
    """The mutations of a segment, and its parts that cannot be read.

    `wanted`: ids of tables (None: all). Mutations without one of them are left out. `archived_ids`: ids of the node's
    segments in the archive. Raises ArchiveReadError if nothing can be read because of a missing key, or an unknown
    version or encoding.
    """
    _say_when_slow()
    options = _segment_options(options_file)
    decoding = _Decoding(schema, SegmentIds.of(archived_ids), segment.segment_id, wanted)
    with tempfile.TemporaryDirectory(prefix="cdc-commitlog-") as folder:
        try:
            path = fetch_segment(segment.url, Path(folder))
            with SegmentReader(path, options=options) as reader:
                yield from decoding.read(reader)
        except ArchiveError as error:
            yield Fault(None, str(error))
        except (UnsupportedVersionError, UnsupportedEncodingError, SegmentKeyError) as error:
            raise ArchiveReadError(segment.url, error.reason) from error
        except CommitLogReadError as error:
            yield Fault(error.position, error.reason)


class _Decoding:
    """Decodes the entries of one segment to mutations."""

    def __init__(
        self, schema: KnownSchema, archived: SegmentIds, segment_id: int, wanted: frozenset[UUID] | None
    ) -> None:
        self._wanted: Final = None if wanted is None else frozenset(each.bytes for each in wanted)
        self._decoder: Final = MutationDecoder(schema.tables)
        self._moments: Final = SchemaMoments(archived)
        self._moments.use(schema)
        self._moments.begin(segment_id, _LAST_MS, 0)

    def read(self, reader: SegmentReader) -> Iterator[ReadMutation | Fault]:
        version = reader.descriptor.version
        while True:
            try:
                for entry in reader.read():
                    found = self._interpreted(entry, version)
                    if found is not None:
                        yield found
                return
            except ChecksumMismatchError as error:
                yield Fault(error.position, error.reason)
                if error.resume_position is None:
                    return
                reader.skip_to(error.resume_position)
            except CommitLogReadError as error:
                yield Fault(error.position, error.reason)
                return

    def _interpreted(self, entry: CommitLogEntry, version: int) -> ReadMutation | Fault | None:
        payload, wanted = entry.payload, self._wanted
        is_single = payload[:1] == b"\1"
        # Only decoding finds the ids in a mutation of several tables. So the whole payload is searched for their bytes.
        if wanted is not None and not (
            payload[1:17] in wanted if is_single else any(each in payload for each in wanted)
        ):
            return None
        try:
            if is_single and payload[1:17] not in self._moments.ids:
                return ReadMutation(entry.position, len(payload), self._decoder.decode(payload, version))
            return ReadMutation(entry.position, len(payload), self._moments.decode(payload, entry.position, version))
        except CommitLogReadError as error:
            return Fault(entry.position, error.reason)


@lru_cache(maxsize=4)
def _segment_options(path: Path | None) -> SegmentOptions:
    if path is None:
        return SegmentOptions()
    try:
        return load_segment_options(path, "commitlogOptions")
    except OSError as error:
        raise ConfigError.of("commitlogOptions", f"{path} cannot be read ({error.strerror})") from error


def _say_when_slow() -> None:
    global _reported_slow  # noqa: PLW0603  # once a process
    found = running()
    if not found.is_compiled and not _reported_slow:
        _reported_slow = True
        _log.warning("commit log segments are decoded by %s on this worker", found.modules)
