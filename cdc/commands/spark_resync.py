"""`cdc spark resync`: publishes the changes again that gaps may have lost, and closes the gaps."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdc.commands.given_options import refuse_given
from cdc.commands.hidden_columns import SOURCE_CONFIG_OPTION, hidden_columns
from cdc.commands.option_types import FiniteRange
from cdc.commands.spark_options import (
    BROKER_OPTIONS,
    WRITTEN,
    check_broker,
    check_mirror,
    check_table,
    cluster_options,
    may_be_iceberg,
)
from cdc.commands.spark_session import SESSION_OPTIONS, SparkJob
from schemas.errors import ConfigError
from schemas.topics import DEFAULT_DATA_PREFIX, DEFAULT_EVENTS_PREFIX

if TYPE_CHECKING:
    from spark_bridge.jobs.cassandra_rows import CassandraAccess
    from spark_bridge.jobs.resync import ResyncReport

__all__ = ["report_lines", "resync_command"]


@click.command(name="resync")
@BROKER_OPTIONS
@cluster_options
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="KEYSPACE.TABLE",
    help="Only gaps of this table; may be given many times. By default every table that open gaps name.",
)
@click.option("--topic", help="The data topic of the one --table, if it is not --data-prefix and the table's name.")
@click.option(
    "--data-prefix",
    default=DEFAULT_DATA_PREFIX,
    show_default=True,
    help="The prefix of the data topics.",
)
@click.option("--mirror", "mirror_target", help="Compare the one --table with its mirror below this folder.")
@click.option(
    "--events-prefix",
    default=DEFAULT_EVENTS_PREFIX,
    show_default=True,
    help="The agent's prefix of the events topics.",
)
@SOURCE_CONFIG_OPTION
@click.option(
    "--margin",
    default=300.0,
    show_default=True,
    type=FiniteRange(0),
    help="Seconds by which clocks of clients, nodes and agents may differ.",
)
@click.option(
    "--connector-timeout",
    default=600.0,
    show_default=True,
    type=FiniteRange(0),
    help="Seconds for the connector to publish what was sent; after them the gaps stay open.",
)
@click.option(
    "--max-differences",
    default=100_000,
    show_default=True,
    type=click.IntRange(1),
    help="The most rows of a table to send because they differ.",
)
@click.option("--ranges", type=click.IntRange(1), help="Token ranges, one task each; by default two for each core.")
@click.option(
    "--rows-per-second",
    type=FiniteRange(0, min_open=True),
    help="The highest rate of sending rows of the window, over all tasks.",
)
@SESSION_OPTIONS
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object, and nothing else.")
def resync_command(
    *,
    job: SparkJob,
    access: CassandraAccess,
    tables: tuple[str, ...],
    topic: str | None,
    data_prefix: str,
    mirror_target: str | None,
    events_prefix: str,
    source_config: Path | None,
    margin: float,
    connector_timeout: float,
    max_differences: int,
    ranges: int | None,
    rows_per_second: float | None,
    as_json: bool,
) -> None:
    """Publish again what the open gaps may have lost, and close them.

    Exit code 1 when a gap stays open. It may be run at any time, and by a timer: without an open gap it does nothing.

    \b
    cdc spark resync \\
      --service-url pulsar://broker:6650 --admin-url http://broker:8080 \\
      --contact-point 10.0.0.1
    """
    from spark_bridge.jobs.mirror_state import MirrorTables
    from spark_bridge.jobs.resync import ResyncReport, resync
    from spark_bridge.topics.gaps import GapsTopic
    from spark_bridge.topics.options import BridgeOptions

    for option, value in (("--mirror", mirror_target), ("--topic", topic)):
        if value is not None and len(tables) != 1:
            raise ConfigError.of(option, "belongs to one table: give one --table")
    if topic is not None:
        refuse_given("has no effect with --topic, which names the data topic", "data_prefix")
    wrong = [each for each in tables if "." not in each.strip(".")]
    if wrong:
        raise ConfigError.of("--table", f"{wrong[0]!r} is not KEYSPACE.TABLE")
    options = job.read_options(eventsTopicPrefix=events_prefix)
    hidden = hidden_columns(source_config)
    # Asked before Spark starts, because the start takes longer than a run with nothing to do.
    gaps = GapsTopic(BridgeOptions.without_topic(options, WRITTEN))
    lossy = {each.table_name for each in gaps.open_gaps()}
    for table in tables:
        if table not in lossy:  # a table of a gap may have been dropped, which closes the gap
            keyspace, _, name = table.partition(".")
            check_table(access, keyspace, name)
    if lossy.isdisjoint(tables or lossy):
        _print(ResyncReport(tables=(), foreign_messages=gaps.foreign_messages, seconds=0.0), as_json=as_json)
        return
    check_mirror(mirror_target)
    check_broker(options, needs_topic=False)
    with job.session(iceberg=mirror_target is not None and may_be_iceberg(mirror_target)) as session:
        if mirror_target is not None:
            MirrorTables(session, mirror_target).refuse_none()
        report = resync(
            session,
            options,
            access,
            tables=tables or None,
            mirror_target=mirror_target,
            data_topic=topic,
            data_prefix=data_prefix,
            ranges=ranges,
            rows_per_second=rows_per_second,
            margin_s=margin,
            connector_timeout_s=connector_timeout,
            max_differences=max_differences,
            hidden=hidden,
            on_table=lambda table: click.echo(f"resyncing {table} ...", err=True),
        )
    _print(report, as_json=as_json)
    sys.exit(1 if report.left_open else 0)


def report_lines(report: ResyncReport) -> Iterator[str]:
    """A line for each table and outcome, and one for foreign messages."""
    if not report.tables:
        yield "no gap is open: nothing to do"
    for each in report.tables:
        yield f"{each.table}: {each.gaps:,} gap{'' if each.gaps == 1 else 's'} {each.outcome.value}: {each.reason}"
    if report.foreign_messages:
        yield f"messages of the gaps topic that are not gap records, and were skipped: {report.foreign_messages:,}"


def _print(report: ResyncReport, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), default=lambda outcome: outcome.value))
        return
    for line in report_lines(report):
        click.echo(line)
