"""`cdc trace` and `cdc resend`: show where the changes of one row went, and publish the row once more."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import click

from cdc.commands.status import report
from cdc.health.findings import Finding, Level, Section, failure, level_of, ok
from cdc.health.line_config import LineConfig
from cdc.health.this_line import line_of, line_option, unnamed_line
from schemas.errors import CdcError, ConfigError

__all__ = ["resend", "trace"]

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
# The consistency levels at which a row can be read.
_LEVELS: Final = (
    "ONE",
    "TWO",
    "THREE",
    "QUORUM",
    "ALL",
    "LOCAL_QUORUM",
    "LOCAL_ONE",
    "EACH_QUORUM",
    "SERIAL",
    "LOCAL_SERIAL",
)
# A negative number in a key is not taken for an option.
_KEYS: Final = {"ignore_unknown_options": True}


class _KeyCommand(click.Command):
    """A command that takes unknown options for words of the key, except words that begin with `--` and a letter."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does. Words behind `--` are no options. Raises click.NoSuchOption."""
        known = [name for each in self.get_params(ctx) for name in (*each.opts, *each.secondary_opts)]
        for word in itertools.takewhile(lambda each: each != "--", args):
            name = word.partition("=")[0]
            if re.match(r"--[A-Za-z]", name) and name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"Did you mean '{near[0]}'? " if near else ""
                text = f"No such option: {name}. {hint}A value that begins so goes behind --"
                raise click.NoSuchOption(name, text, ctx=ctx)
        return super().parse_args(ctx, args)


def _seconds(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if found is None:
        raise ConfigError.of("--since", f"{text!r} is no duration, such as 30m, 12h or 7d")
    return float(found[1]) * _UNITS[found[2]]


def _level(context: click.Context, parameter: click.Parameter, text: str) -> str:
    name = text.upper()
    if name not in _LEVELS:
        raise ConfigError.of("--consistency", f"{text!r} is no level of reads, which are {', '.join(_LEVELS)}")
    return name


def _step(name: str) -> None:
    """Print the name of the part that is read, for a user at a terminal."""
    if sys.stderr.isatty():
        click.echo(f"reading {name}", err=True)


@contextmanager
def _told_without_line(path: Path | None) -> Iterator[None]:
    """After an error, say on stderr that no line.yaml was given: the servers may be the wrong ones."""
    try:
        yield
    except CdcError:
        if (unnamed := unnamed_line(path)) is not None:
            click.echo(f"line.yaml: {unnamed.text}; {unnamed.remedy}", err=True)
        raise


@click.command(name="trace", cls=_KeyCommand, context_settings=_KEYS)
@click.argument("table", metavar="KEYSPACE.TABLE")
@click.argument("key", metavar="KEY...", nargs=-1, required=True)
@line_option
@click.option(
    "--since", callback=_seconds, metavar="DURATION", help="Read only messages of this last time, such as 12h."
)
@click.option("--archive", "with_archive", is_flag=True, help="Also read the agents' archives, which may take long.")
@click.option(
    "--limit",
    default=20,
    show_default=True,
    type=click.IntRange(1),
    help="The number of places of each kind to show, the newest ones.",
)
@click.option(
    "--consistency",
    default="LOCAL_QUORUM",
    show_default=True,
    callback=_level,
    help="The consistency level at which the row is read.",
)
@click.option("--data-topic", help="The data topic, if it is not the one of the table's source.")
@click.option("--mirrors/--no-mirrors", default=True, help="Also read the mirrors of line.yaml, which starts Spark.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
@click.pass_context
def trace(
    context: click.Context,
    table: str,
    key: tuple[str, ...],
    path: Path | None,
    since: float | None,
    with_archive: bool,
    limit: int,
    consistency: str,
    data_topic: str | None,
    mirrors: bool,
    as_json: bool,
) -> None:
    """Show where the changes of one row went: commit log, events, records, dead letters, the row now, and differences.

    KEY is a value for each column of the primary key, in its order. With the values of the partition key alone, the whole
    partition is shown. Nothing is changed. Exit code 1: Cassandra and the newest record differ, or something could not be
    read.

    \b
    cdc trace shop.orders 17 2026-11-24
    cdc trace shop.orders 17 2026-11-24 --since 12h --json
    """
    from cdc.trace.current_row import table_named
    from cdc.trace.report import TraceOptions
    from cdc.trace.report import trace as sections_of
    from cdc.trace.row_key import RowKey

    config = line_of(path)
    with _told_without_line(path):
        found, nodes = table_named(config, table)
    row_key = RowKey.of_words(found, key)
    options = TraceOptions(
        with_archive=with_archive, since_s=since, limit=limit, consistency=consistency, data_topic=data_topic
    )
    sections = sections_of(config, row_key, nodes[0].data_center, options, _step)
    if (unnamed := unnamed_line(path)) is not None:
        sections.insert(0, Section(title="line.yaml", findings=[unnamed]))
    if mirrors and config.mirrors and row_key.is_row:
        sections.insert(-1, Section(title="mirrors", findings=_of_mirrors(config, row_key)))
    report(sections, as_json=as_json)
    context.exit(int(level_of(each for section in sections for each in section.findings) is Level.FAILURE))


def _of_mirrors(config: LineConfig, key: object) -> list[Finding]:
    from cdc.commands.spark_options import may_be_iceberg
    from cdc.commands.spark_session import SparkJobError, open_session
    from cdc.trace.mirror_row import mirror_row
    from cdc.trace.row_key import RowKey

    assert isinstance(key, RowKey)
    _step("mirrors")
    try:
        spark = open_session((), None, iceberg=any(may_be_iceberg(each) for each in config.mirrors), is_short=True)
    except ImportError as error:
        return [failure("", f"{error.name} is not installed", "pip install 'cassandra-cdc[spark]', or --no-mirrors")]
    except SparkJobError as error:
        return [failure("", f"mirrors are not read: {error}", "correct it, or --no-mirrors")]
    findings = []
    for target in config.mirrors:
        try:
            row = mirror_row(spark, target, key)
        except Exception as error:  # noqa: BLE001  # whatever Spark raises for a folder that cannot be read
            findings.append(failure(target, f"cannot be read ({_first_line(error)})", "correct mirrors"))
        else:
            findings.append(ok(target, "has no such row" if row is None else row))
    spark.stop()
    return findings


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


@click.command(name="resend", cls=_KeyCommand, context_settings=_KEYS)
@click.argument("table", metavar="KEYSPACE.TABLE")
@click.argument("key", metavar="KEY...", nargs=-1, required=True)
@line_option
def resend(table: str, key: tuple[str, ...], path: Path | None) -> None:
    """Publish one row once more: send an event to the events topic, so that the connector reads the row as it is now.

    It is safe at any time. KEY is as for `cdc trace`. With the values of the partition key alone, the partition's static
    columns are published.

    \b
    cdc resend shop.orders 17 2026-11-24
    """
    from cdc.trace.current_row import table_named
    from cdc.trace.resending import resend_row
    from cdc.trace.row_key import RowKey

    config = line_of(path)
    with _told_without_line(path):
        found, nodes = table_named(config, table)
    row_key = RowKey.of_words(found, key)
    place = resend_row(config, row_key, nodes[0].host_id)
    click.echo(f"{table} with {row_key.text}: sent as {place}; `cdc trace` shows its record")
