"""Prints segments as lines of text, one mutation at a time, for `cdc decode`."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO
from uuid import UUID

import click

from cdc.segment_stats import SegmentStats
from change_agent.commitlog.descriptor import file_id
from change_agent.commitlog.entry import CommitLogEntry
from change_agent.commitlog.reader import SegmentReader
from change_agent.commitlog.section_decoder import SegmentOptions
from change_agent.db.mutation import MutationDecoder
from change_agent.db.values import Mutation
from change_agent.errors import CommitLogReadError, UnknownTableError
from change_agent.events.decode_format import event_json, mutation_json
from change_agent.events.mutation_events import MutationEventBuilder
from change_agent.events.pretty_format import pretty_lines
from schemas.cql_value import CqlValueError
from schemas.errors import ConfigError
from schemas.table_metadata import TableMetadata

__all__ = ["FORMATS", "SegmentPrinter", "StartPosition", "tables_named"]

FORMATS: Final = ("events", "mutations", "pretty")
_START: Final = re.compile(r"(?:(?P<id>\d+)|(?P<name>[^:]+)):(?P<position>\d+)")

# segment name, entry, mutation -> lines of output
_Formatter = Callable[[str, CommitLogEntry, Mutation], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPosition:
    """The start of `--from`: a position in a segment. Later segments are printed completely."""

    segment_id: int
    position: int

    @classmethod
    def parse(cls, text: str) -> StartPosition:
        """Parse `SEGMENT:POSITION`, with the segment's id or the name of its file. Raises ConfigError."""
        found = _START.fullmatch(text)
        if found is not None and found["id"]:
            return cls(segment_id=int(found["id"]), position=int(found["position"]))
        named = file_id(found["name"].rpartition("/")[2]) if found is not None else None
        if found is None or named is None:
            raise ConfigError.of(
                "--from", f"{text!r} is not SEGMENT:POSITION, such as CommitLog-7-1795228134954.log:94628"
            )
        return cls(segment_id=named[1], position=int(found["position"]))

    def position_in(self, segment: Path) -> int | None:
        """The position where to start in a segment; None to skip it. A file without an id in its name is read whole."""
        named = file_id(segment.name)
        if named is None or named[1] > self.segment_id:
            return 0
        return self.position if named[1] == self.segment_id else None


def tables_named(tables: Mapping[UUID, TableMetadata], names: Collection[str]) -> frozenset[UUID]:
    """Ids of the tables with these names, as `keyspace.table` or `table`.

    Raises ConfigError with all names that are not in the schema.
    """
    by_name = {
        name: frozenset(each.table_id for each in tables.values() if name in (each.name, each.full_name))
        for name in names
    }
    missing = [name for name, found in by_name.items() if not found]
    if missing:
        raise ConfigError.of("--table", f"not in the schema: {', '.join(missing)}")
    return frozenset().union(*by_name.values())


class SegmentPrinter:
    """Prints segments one after the other. `failed` is True after a part of a segment could not be read.

    With `statistics`, mutations are only counted. `only`: ids of tables; updates of other tables are left out.
    """

    def __init__(
        self,
        tables: Mapping[UUID, TableMetadata],
        options: SegmentOptions,
        output_format: str,
        output: TextIO,
        *,
        start: StartPosition | None = None,
        only: frozenset[UUID] | None = None,
        statistics: bool = False,
        width: int | None = None,
    ) -> None:
        self._decoder: Final = MutationDecoder(tables)
        self._options: Final = options
        self._formatter: Final = _formatter(output_format)
        self._output: Final = output
        self._start: Final = start
        self._only: Final = only
        self._statistics: Final = statistics
        self._width: Final = width
        self._unknown_tables: Final[Counter[UUID]] = Counter()
        self.failed = False

    def print_segment(self, path: Path) -> SegmentStats | None:
        """Print a segment, and return its statistics; None if it is before the start.

        After a bad mutation, which is reported, the next one is printed. After a bad frame, the segment is not read on.
        """
        start = 0 if self._start is None else self._start.position_in(path)
        if start is None:
            return None
        stats, began = SegmentStats(name=path.name), time.perf_counter()
        try:
            with SegmentReader(path, start, options=self._options) as reader:
                stats.file_size = path.stat().st_size
                stats.describe(reader.descriptor)
                try:
                    for entry in reader.read():
                        self._take(reader, entry, stats)
                finally:
                    stats.position = reader.position
        except CommitLogReadError as error:
            self._report(error, stats)
        stats.decode_seconds = time.perf_counter() - began
        return stats

    def summary(self) -> list[str]:
        """A line about the skipped mutations, for stderr."""
        count = self._unknown_tables.total()
        if not count:
            return []
        mutations, tables = _counted(count, "mutation"), _counted(len(self._unknown_tables), "table")
        return [f"skipped {mutations}, of {tables} not in the schema"]

    def _take(self, reader: SegmentReader, entry: CommitLogEntry, stats: SegmentStats) -> None:
        try:
            mutation = self._decoder.decode(entry.payload, reader.descriptor.version)
            if self._only is not None:
                updates = [each for each in mutation.updates if each.table.table_id in self._only]
                if not updates:
                    return
                mutation = Mutation(updates)
            stats.add(entry, mutation)
            lines = [] if self._statistics else self._formatter(reader.name, entry, mutation)
        except UnknownTableError as error:
            self._unknown_tables[error.table_id] += 1
            stats.skipped += 1
        except CommitLogReadError as error:
            self._report(error.with_location(reader.name, entry.position), stats)
        except CqlValueError as error:
            # A value of an event's key does not fit its type.
            reason = CommitLogReadError(str(error), segment=reader.name, position=entry.position)
            self._report(reason.because(error), stats)
        else:
            for line in lines:
                self._output.write(_cut(line, self._width) + "\n")

    def _report(self, error: CommitLogReadError, stats: SegmentStats) -> None:
        self.failed = True
        stats.faults += 1
        self._output.flush()
        kind = type(error if error.__cause__ is None or type(error) is not CommitLogReadError else error.__cause__)
        click.echo(f"cdc: {kind.__name__}: {error}", err=True)


def _formatter(output_format: str) -> _Formatter:
    if output_format == "events":
        builder = MutationEventBuilder()
        return lambda segment, entry, mutation: [
            event_json(segment, each) for each in builder.events_of(mutation, entry.position)
        ]
    if output_format == "pretty":
        return pretty_lines
    return lambda segment, entry, mutation: [mutation_json(segment, entry, mutation)]


def _cut(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else line[: width - 1] + "…"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
