"""`cdc spark`: the Spark jobs, in a session of this process or under spark-submit."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdc.commands.given_options import refuse_without
from cdc.commands.hidden_columns import SOURCE_CONFIG_OPTION, hidden_columns
from cdc.commands.option_types import FiniteRange
from cdc.commands.spark_options import (
    BROKER_OPTIONS,
    TOPIC_OPTION,
    cassandra_options,
    check_broker,
    check_mirror,
    check_table,
    check_topics,
    may_be_iceberg,
)
from cdc.commands.spark_prepare import prepare_command
from cdc.commands.spark_progress import spark_progress
from cdc.commands.spark_publish import publish_command
from cdc.commands.spark_resync import resync_command
from cdc.commands.spark_session import SESSION_OPTIONS, SparkJob, spark_errors
from cdc.commands.spark_tables import TABLE_COMMANDS
from cdc.commands.spark_top import top_command
from cdc.commands.spark_wait import wait_command
from cdc.commands.verify_report import exit_code, report_lines
from cdc.helpful_group import HelpfulGroup
from schemas.errors import ConfigError
from schemas.topics import DEFAULT_EVENTS_PREFIX
from spark_bridge.jobs.arguments import MOST_SECONDS

if TYPE_CHECKING:
    from spark_bridge.jobs.cassandra_rows import CassandraAccess

__all__ = ["spark"]


@click.group(name="spark", cls=HelpfulGroup)
def spark() -> None:
    """Jobs on data topics: tables in a lakehouse (docs/spark.md)."""


for each in (*TABLE_COMMANDS, prepare_command, publish_command, resync_command, top_command, wait_command):
    spark.add_command(each)


@spark.command(name="verify")
@BROKER_OPTIONS
@TOPIC_OPTION
@cassandra_options
@click.option("--mirror", "mirror_target", help="Compare the mirror below this folder instead of the topic.")
@click.option("--ranges", type=click.IntRange(1), help="Token ranges, one task each; by default two for each core.")
@click.option(
    "--sample",
    type=FiniteRange(0, 1, min_open=True),
    metavar="PART",
    help="Compare about this part of the table (0 to 1), chosen at random.",
)
@click.option("--sample-seed", type=int, help="With --sample: the same number chooses the same part again.")
@SOURCE_CONFIG_OPTION
@click.option("--repair", is_flag=True, help="Send the rows that differ through the events topic again.")
@click.option(
    "--events-prefix",
    default=DEFAULT_EVENTS_PREFIX,
    show_default=True,
    help="With --repair: the agent's prefix of the events topics.",
)
@click.option(
    "--settle",
    default=30.0,
    show_default=True,
    type=FiniteRange(0, MOST_SECONDS),
    help="Seconds for which a difference must not change.",
)
@click.option(
    "--give-up",
    default=600.0,
    show_default=True,
    type=FiniteRange(0, MOST_SECONDS),
    help="Seconds after which rows that still change are no longer checked.",
)
@click.option(
    "--max-differences",
    default=100_000,
    show_default=True,
    type=click.IntRange(1),
    help="The most rows to report and to repair.",
)
@SESSION_OPTIONS
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object, and nothing else.")
def verify_command(
    *,
    job: SparkJob,
    topic: str,
    table: str,
    access: CassandraAccess,
    mirror_target: str | None,
    ranges: int | None,
    sample: float | None,
    sample_seed: int | None,
    source_config: Path | None,
    repair: bool,
    events_prefix: str,
    settle: float,
    give_up: float,
    max_differences: int,
    as_json: bool,
) -> None:
    """Compare a Cassandra table with its data topic, or a mirror.

    Exit code 1: rows differ. Exit code 3: no row is known to differ, but some rows were still changing or were left out.

    \b
    cdc spark verify \\
      --service-url pulsar://broker:6650 --admin-url http://broker:8080 \\
      --topic data-shop.orders --table shop.orders --contact-point 10.0.0.1
    """
    if sample is None:
        refuse_without("--sample", "sample_seed")
    if not repair:
        refuse_without("--repair", "events_prefix")
    from spark_bridge.jobs.verify import verify

    keyspace, name = _table_name(table)
    options = job.read_options(topic=topic)
    hidden = hidden_columns(source_config)
    iceberg = mirror_target is not None and may_be_iceberg(mirror_target)
    check_topics(options)
    check_mirror(mirror_target)
    check_table(access, keyspace, name, options)
    check_broker(options)
    with job.session(iceberg=iceberg) as session, spark_progress(session, f"comparing {table}"):
        report = verify(
            session,
            options,
            access,
            keyspace,
            name,
            mirror_target=mirror_target,
            ranges=ranges,
            sample=sample,
            sample_seed=sample_seed,
            repair=repair,
            events_prefix=events_prefix,
            settle_s=settle,
            give_up_s=give_up,
            max_differences=max_differences,
            hidden=hidden,
        )
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    else:
        for line in report_lines(table, report, "topic" if mirror_target is None else "mirror"):
            click.echo(line)
    sys.exit(exit_code(report))


@spark.command(name="backfill")
@BROKER_OPTIONS
@cassandra_options
@click.option("--where", help="A CQL predicate: only rows that match it (ALLOW FILTERING).")
@click.option("--tokens", type=(int, int), metavar="START END", help="Only partitions with a token in (START, END].")
@click.option(
    "--snapshot",
    type=click.Choice(["always", "initial"]),
    default="always",
    show_default=True,
    help="initial: send nothing if any run has already sent the whole table.",
)
@click.option("--rebuild", "rebuilt", metavar="TOPIC", help="Fill this emptied data topic again.")
@click.option(
    "--events-prefix",
    default=DEFAULT_EVENTS_PREFIX,
    show_default=True,
    help="The agent's prefix of the events topics.",
)
@click.option("--ranges", default=64, show_default=True, type=click.IntRange(1), help="Token ranges, one task each.")
@click.option("--rows-per-second", type=FiniteRange(0, min_open=True), help="The highest rate, over all tasks.")
@click.option("--progress-file", help="Keep finished ranges here, and continue after them.")
@click.option("--dry-run", is_flag=True, help="Send nothing; estimate the number of rows.")
@SESSION_OPTIONS
def backfill_command(
    *,
    job: SparkJob,
    table: str,
    access: CassandraAccess,
    where: str | None,
    tokens: tuple[int, int] | None,
    snapshot: str,
    rebuilt: str | None,
    events_prefix: str,
    ranges: int,
    rows_per_second: float | None,
    progress_file: str | None,
    dry_run: bool,
) -> None:
    """Send an event for every row of a table, so that the connector publishes rows that are older than itself.

    \b
    cdc spark backfill \\
      --service-url pulsar://broker:6650 --admin-url http://broker:8080 \\
      --table shop.orders --contact-point 10.0.0.1 --rows-per-second 2000
    """
    from rich.progress import Progress

    from spark_bridge.jobs.backfill import SendSettings, backfill, check_backfill, initial_snapshot, rebuild
    from spark_bridge.jobs.cassandra_rows import ALL_TOKENS

    keyspace, name = _table_name(table)
    partly = {"--where": where, "--tokens": tokens, "--dry-run": dry_run or None}
    wrong = [option for option, value in partly.items() if value is not None]
    if wrong and (snapshot == "initial" or rebuilt):
        raise ConfigError.of(wrong[0], "does not go with --snapshot initial and --rebuild, which send the whole table")
    if snapshot == "initial" and rebuilt:
        why = (
            "does not go with --snapshot initial, which sends nothing if the table was sent once before: leave that out"
        )
        raise ConfigError.of("--rebuild", why)
    options = job.read_options()
    with spark_errors():
        check_backfill(
            options, access, keyspace, name, where=where, tokens=tokens or ALL_TOKENS, events_prefix=events_prefix
        )
    check_broker(options if rebuilt is None else {**options, "topic": rebuilt}, needs_topic=rebuilt is not None)
    with job.session() as session, Progress(transient=True, disable=not sys.stderr.isatty()) as display:
        task = display.add_task(table, total=ranges)
        shared = SendSettings(
            ranges=ranges,
            rows_per_second=rows_per_second,
            progress_file=progress_file,
            events_prefix=events_prefix,
            on_progress=lambda done, ranges, rows: display.update(task, completed=done, total=ranges),
        )
        if snapshot == "initial":
            report = initial_snapshot(session, options, access, keyspace, name, **shared)
        elif rebuilt is not None:
            report = rebuild(session, {**options, "topic": rebuilt}, access, keyspace, name, **shared)
        else:
            report = backfill(
                session,
                options,
                access,
                keyspace,
                name,
                where=where,
                tokens=tokens or ALL_TOKENS,
                dry_run=dry_run,
                **shared,
            )
    if report is None:
        click.echo(f"{table}: sent once before, nothing to do")
    elif dry_run:
        click.echo(f"{table}: about {report.rows:,} rows, {report.seconds:,.0f} s")
    elif not report.ranges:
        click.echo(
            f"{table}: all {report.ranges_before} token ranges were sent before, as {progress_file} says: nothing to do "
            "(delete it to send them again)"
        )
    else:
        before = f", {report.ranges_before} before" if report.ranges_before else ""
        rate = report.rows / max(report.seconds, 0.001)
        ranges_done = f"{report.ranges} token ranges{before}"
        click.echo(f"{table}: {report.rows:,} events in {ranges_done}, {report.seconds:.1f} s ({rate:,.0f} rows/s)")


def _table_name(text: str) -> tuple[str, str]:
    keyspace, _, name = text.partition(".")
    if not keyspace or not name:
        raise ConfigError.of("--table", f"{text!r} is not KEYSPACE.TABLE")
    return keyspace, name
