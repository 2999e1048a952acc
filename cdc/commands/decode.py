"""`cdc decode`: the content of commit log segments, as JSON lines, as readable text, or as counts."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import UUID

import click

from cdc.commands.given_options import refuse_given, refuse_without
from cdc.schema_source import fetch_schema, load_schema, parse_contact_point, save_schema
from cdc.segment_printer import FORMATS, SegmentPrinter, StartPosition, tables_named
from cdc.segment_stats import SegmentStats
from change_agent.archive.segment_archive import fetch_segment
from change_agent.commitlog.section_decoder import SegmentOptions
from change_agent.configuration.commitlog_options import load_segment_options
from change_agent.decoder import running
from schemas.errors import ConfigError, ConfigProblem
from schemas.system_schema import tables_of
from schemas.table_metadata import TableMetadata

__all__ = ["decode"]

# Parameters of options that are about the output for a segment.
_OF_SEGMENTS: Final = ("output_format", "table_names", "start", "stats", "as_json", "commitlog_options_file")


@click.command()
@click.argument("segments", metavar="SEGMENT...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--format",
    "output_format",
    type=click.Choice(FORMATS),
    default="mutations",
    show_default=True,
    help="mutations: as they are in the log, one JSON object a line; events: those that the agent would publish; pretty:"
    " mutations for people to read.",
)
@click.option(
    "--table",
    "table_names",
    metavar="[KEYSPACE.]TABLE",
    multiple=True,
    help="Only updates of this table; may be given many times.",
)
@click.option(
    "--from",
    "start",
    metavar="SEGMENT:POSITION",
    help="Continue after this position of a segment, given by id or name: earlier SEGMENTs are skipped, later ones are"
    " read whole. Positions are those that `decode` prints.",
)
@click.option("--stats", is_flag=True, help="Count instead of printing: tables, sizes and times of each segment.")
@click.option("--json", "as_json", is_flag=True, help="With --stats: one JSON object a segment.")
@click.option(
    "--schema",
    "schema_file",
    type=click.Path(path_type=Path),
    help="Schema file: rows of system_schema as JSON, an agent's schema.sqlite, or an archive's"
    " schema-history.json. Mutations of other tables are skipped.",
)
@click.option("--contact-point", metavar="HOST[:PORT]", help="Read the schema from this node instead of a file.")
@click.option("--username", envvar="CDC_USERNAME", help="User for --contact-point.")
@click.option("--password-file", type=click.Path(path_type=Path), help="File with the password of --username.")
@click.option(
    "--commitlog-options",
    "commitlog_options_file",
    type=click.Path(path_type=Path),
    help="For encrypted segments: cassandra.yaml, or its options of encryption as JSON (docs/commitlog-format.md).",
)
@click.option(
    "--write-schema",
    type=click.Path(path_type=Path),
    help="Save the schema of --contact-point as a file for --schema; needs no SEGMENT.",
)
def decode(
    segments: tuple[Path, ...],
    output_format: str,
    table_names: tuple[str, ...],
    start: str | None,
    stats: bool,
    as_json: bool,
    schema_file: Path | None,
    contact_point: str | None,
    username: str | None,
    password_file: Path | None,
    commitlog_options_file: Path | None,
    write_schema: Path | None,
) -> None:
    """Print what commit log SEGMENTs hold.

    The segments are only read. The exit code is 1 when one of them could not be read in full: each fault is one line on
    stderr with segment, position and reason.

    \b
    cdc decode cdc_raw/CommitLog-7-1795219249195.log --contact-point 10.0.0.1
    cdc decode cdc_raw/*.log --schema schema.json --format events
    cdc decode cdc_raw/*.log --schema schema.json --stats
    """
    if stats:
        refuse_given("has no effect with --stats, which prints no mutation", "output_format")
    if contact_point is None and username is not None:
        refuse_without("--contact-point", "username", "password_file")
    if not segments and write_schema is not None:
        refuse_without("a SEGMENT", *_OF_SEGMENTS)
    problems = _problems(segments, schema_file, contact_point, username, password_file, write_schema)
    if as_json and not stats:
        problems.append(ConfigProblem(option="--json", reason="is for --stats; --format mutations prints JSON itself"))
    try:
        start_position = None if start is None else StartPosition.parse(start)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    options = SegmentOptions()
    if commitlog_options_file is not None:
        options = load_segment_options(commitlog_options_file, "--commitlog-options")
    tables = _tables(schema_file, contact_point, _credentials(username, password_file), write_schema)
    printer = SegmentPrinter(
        tables,
        options,
        output_format,
        sys.stdout,
        start=start_position,
        only=tables_named(tables, table_names) if table_names else None,
        statistics=stats,
        # In a terminal, long lines are cut, so that each takes one line.
        width=shutil.get_terminal_size().columns if output_format == "pretty" and sys.stdout.isatty() else None,
    )
    for segment in segments:
        with _unpacked(segment) as unpacked:
            counted = printer.print_segment(unpacked)
        if stats and counted is not None:
            _print_stats(counted, as_json=as_json)
    if stats and not as_json:
        click.echo(f"decoder: {running().modules}")
    for line in printer.summary():
        click.echo(f"cdc: {line}", err=True)
    if printer.failed:
        sys.exit(1)


@contextmanager
def _unpacked(segment: Path) -> Iterator[Path]:
    """A context with the path of the segment. A compressed segment is unpacked into a temporary file.

    Raises ArchiveError.
    """
    if segment.suffix != ".zst":
        yield segment
        return
    with tempfile.TemporaryDirectory() as folder:
        yield fetch_segment(str(segment), Path(folder))


def _print_stats(stats: SegmentStats, *, as_json: bool) -> None:
    click.echo(json.dumps(stats.as_json()) if as_json else "\n".join(stats.lines()))


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
