"""`cdc decode`: what commit log segments hold, one JSON object a line."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TextIO
from uuid import UUID

import click

from cdc.schema_source import fetch_schema, load_schema, parse_contact_point, save_schema
from change_agent.commitlog.entry import CommitLogEntry
from change_agent.commitlog.reader import SegmentReader
from change_agent.commitlog.section_decoder import SegmentOptions
from change_agent.commitlog_options import load_segment_options
from change_agent.db.mutation import MutationDecoder
from change_agent.db.values import Mutation
from change_agent.decode_format import mutation_json
from change_agent.errors import CommitLogReadError, UnknownTableError
from change_agent.event_format import event_json
from change_agent.mutation_events import MutationEventBuilder
from schemas.errors import ConfigError, ConfigProblem
from schemas.system_schema import tables_of
from schemas.table_metadata import TableMetadata

__all__ = ["decode"]

# segment name, entry, mutation -> lines of output
_Formatter = Callable[[str, CommitLogEntry, Mutation], list[str]]


def _mutation_lines(segment: str, entry: CommitLogEntry, mutation: Mutation) -> list[str]:
    return [mutation_json(segment, entry, mutation)]


_EVENTS: Final = MutationEventBuilder()


def _event_lines(segment: str, entry: CommitLogEntry, mutation: Mutation) -> list[str]:
    return [event_json(segment, each) for each in _EVENTS.events_of(mutation, entry.position)]


_FORMATTERS: Final[Mapping[str, _Formatter]] = {"mutations": _mutation_lines, "events": _event_lines}


@click.command()
@click.argument("segments", metavar="SEGMENT...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--format",
    "output_format",
    type=click.Choice(sorted(_FORMATTERS)),
    default="mutations",
    show_default=True,
    help="What to print: mutations as they stand in the log, or the events that the agent would publish.",
)
@click.option(
    "--schema",
    "schema_file",
    type=click.Path(path_type=Path),
    help="Schema file: rows of system_schema as JSON. Mutations of other tables are skipped and counted.",
)
@click.option("--contact-point", metavar="HOST[:PORT]", help="Read the schema from this node instead of a file.")
@click.option("--username", envvar="CDC_USERNAME", help="User for --contact-point.")
@click.option("--password-file", type=click.Path(path_type=Path), help="File that holds the password of --username.")
@click.option(
    "--commitlog-options",
    "commitlog_options_file",
    type=click.Path(path_type=Path),
    help="cassandra.yaml, or those options of it as JSON that encrypted segments need (docs/commit-log.md).",
)
@click.option(
    "--write-schema",
    type=click.Path(path_type=Path),
    help="Save the schema of --contact-point as a file for --schema; needs no SEGMENT.",
)
def decode(
    segments: tuple[Path, ...],
    output_format: str,
    schema_file: Path | None,
    contact_point: str | None,
    username: str | None,
    password_file: Path | None,
    commitlog_options_file: Path | None,
    write_schema: Path | None,
) -> None:
    """Print what commit log SEGMENTs hold, one JSON object a line.

    The segments are only read. The exit code is 1 when one of them could not be read in full: each fault is one line on
    stderr with segment, position and reason.
    """
    problems = _problems(segments, schema_file, contact_point, username, password_file, write_schema)
    if problems:
        raise ConfigError(problems)
    options = SegmentOptions()
    if commitlog_options_file is not None:
        options = load_segment_options(commitlog_options_file, "--commitlog-options")
    tables = _tables(schema_file, contact_point, _credentials(username, password_file), write_schema)
    printer = _SegmentPrinter(tables, options, _FORMATTERS[output_format], sys.stdout)
    for segment in segments:
        printer.print_segment(segment)
    for line in printer.summary():
        click.echo(f"cdc: {line}", err=True)
    if printer.failed:
        sys.exit(1)


class _SegmentPrinter:
    """Prints segments one after the other. `failed` is True when something in them could not be read."""

    def __init__(
        self, tables: Mapping[UUID, TableMetadata], options: SegmentOptions, formatter: _Formatter, output: TextIO
    ) -> None:
        self._decoder = MutationDecoder(tables)
        self._options = options
        self._formatter = formatter
        self._output = output
        self._unknown_tables: Counter[UUID] = Counter()
        self.failed = False

    def print_segment(self, path: Path) -> None:
        """A bad mutation is reported and the next one printed; at a bad frame the segment ends."""
        try:
            with SegmentReader(path, options=self._options) as reader:
                for entry in reader.read():
                    self._print_entry(reader, entry)
        except CommitLogReadError as error:
            self._report(error)

    def summary(self) -> list[str]:
        """What was skipped, for stderr."""
        count = self._unknown_tables.total()
        if not count:
            return []
        mutations, tables = _counted(count, "mutation"), _counted(len(self._unknown_tables), "table")
        return [f"skipped {mutations}, of {tables} not in the schema"]

    def _print_entry(self, reader: SegmentReader, entry: CommitLogEntry) -> None:
        try:
            mutation = self._decoder.decode(entry.payload, reader.descriptor.version)
        except UnknownTableError as error:
            self._unknown_tables[error.table_id] += 1
        except CommitLogReadError as error:
            self._report(error.with_location(reader.name, entry.position))
        else:
            for line in self._formatter(reader.name, entry, mutation):
                self._output.write(line + "\n")

    def _report(self, error: CommitLogReadError) -> None:
        self.failed = True
        self._output.flush()
        click.echo(f"cdc: {type(error).__name__}: {error}", err=True)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _problems(
    segments: tuple[Path, ...],
    schema_file: Path | None,
    contact_point: str | None,
    username: str | None,
    password_file: Path | None,
    write_schema: Path | None,
) -> list[ConfigProblem]:
    found = []
    if (schema_file is None) == (contact_point is None):
        found.append(("--schema", "give either --schema FILE or --contact-point HOST[:PORT]"))
    if write_schema is not None and contact_point is None:
        found.append(("--write-schema", "saves the schema of a node: give --contact-point too"))
    if not segments and write_schema is None:
        found.append(("SEGMENT", "name at least one commit log segment"))
    if password_file is not None and username is None:
        found.append(("--password-file", "give --username too"))
    if username is not None and password_file is None and contact_point is not None:
        found.append(("--username", "give --password-file too"))
    found += [("SEGMENT", f"{path} is no file") for path in segments if not path.is_file()]
    return [ConfigProblem(option=option, reason=reason) for option, reason in found]


def _credentials(username: str | None, password_file: Path | None) -> tuple[str, str] | None:
    if username is None or password_file is None:
        return None
    try:
        return username, password_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError.of("--password-file", f"cannot read {password_file}: {error}") from error


def _tables(
    schema_file: Path | None,
    contact_point: str | None,
    credentials: tuple[str, str] | None,
    write_schema: Path | None,
) -> Mapping[UUID, TableMetadata]:
    if schema_file is not None:
        return load_schema(schema_file)
    assert contact_point is not None
    schema = fetch_schema(parse_contact_point(contact_point), credentials)
    if write_schema is not None:
        save_schema(schema, write_schema)
    return tables_of(schema)
