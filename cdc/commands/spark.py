"""`cdc spark`: the Spark jobs, in a session of this process or under spark-submit."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import click

from cdc.commands.spark_top import top_command
from schemas.errors import CdcError, ConfigError
from schemas.topics import DEFAULT_EVENTS_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_bridge.jobs.cassandra_rows import CassandraAccess

__all__ = ["spark"]

_OPTIONS_HELP = "An option of the data source cassandra_cdc, NAME=VALUE (docs/spark.md); may be given many times."

_Command: TypeAlias = Callable[..., Any]


class SparkJobError(CdcError):
    """A Spark job ended with an error; the text is Spark's reason in one line."""


def _together(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Options that several commands share, as one decorator."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


_TOPIC_OPTION = click.option("--topic", required=True, help="The table's data topic.")
_BROKER_OPTIONS = _together(
    click.option("--service-url", required=True, help="The broker: pulsar://host:6650."),
    click.option("--admin-url", required=True, help="The admin service: http://host:8080."),
)
_CASSANDRA_OPTIONS = _together(
    click.option("--table", required=True, metavar="KEYSPACE.TABLE", help="The table in Cassandra."),
    click.option("--contact-point", "contact_points", required=True, multiple=True, help="A node of Cassandra."),
    click.option("--port", default=9042, show_default=True, help="Cassandra's CQL port."),
    click.option("--local-dc", help="The data center to ask."),
    click.option("--username", help="Cassandra's user; the password is read from CDC_CASSANDRA_PASSWORD."),
    click.option("--consistency", default="LOCAL_QUORUM", show_default=True, help="Of the reads."),
)
_SESSION_OPTIONS = _together(
    click.option("--option", "-o", "more", multiple=True, metavar="NAME=VALUE", help=_OPTIONS_HELP),
    click.option(
        "--jars", multiple=True, type=click.Path(path_type=Path, exists=True), help="Jars instead of packages."
    ),
    click.option("--master", help="Spark's master; by default local[*], or what spark-submit says."),
)


@click.group(name="spark")
def spark() -> None:
    """Jobs on data topics: tables in a lakehouse (docs/spark.md)."""


spark.add_command(top_command)


@spark.command(name="mirror")
@_BROKER_OPTIONS
@_TOPIC_OPTION
@click.option(
    "--target", required=True, help="Folder of the Delta tables and the checkpoint; any path Spark can write."
)
@click.option("--changelog", is_flag=True, help="Also keep every insert, update and delete with both images.")
@click.option("--history", is_flag=True, help="Also keep every version of every row with its times.")
@click.option("--static-columns", help="The table's static columns, with commas, where the topic does not name them.")
@click.option("--follow", type=float, metavar="SECONDS", help="Keep running, a micro-batch each so many seconds.")
@click.option("--tombstone-retention-days", default=7.0, show_default=True, help="How long deletion markers are kept.")
@click.option("--compact", is_flag=True, help="OPTIMIZE the tables at the end.")
@_SESSION_OPTIONS
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object, and nothing else.")
def mirror_command(
    *,
    service_url: str,
    admin_url: str,
    topic: str,
    target: str,
    changelog: bool,
    history: bool,
    static_columns: str | None,
    follow: float | None,
    tombstone_retention_days: float,
    compact: bool,
    more: tuple[str, ...],
    jars: tuple[Path, ...],
    master: str | None,
    as_json: bool,
) -> None:
    """Keep Delta tables equal to a Cassandra table, up to the topic's end (or on, with --follow)."""
    from pyspark.errors import PySparkException

    from spark_bridge.jobs.mirror import mirror

    options = {"serviceUrl": service_url, "adminUrl": admin_url, "topic": topic, **_named(more)}
    session = _session(jars, master)
    try:
        summary = mirror(
            session,
            options,
            target,
            changelog=changelog,
            history=history,
            static_columns=tuple(static_columns.split(",")) if static_columns else None,
            follow_interval_s=follow,
            tombstone_retention_days=tombstone_retention_days,
            compact=compact,
            on_batch=lambda counts: None if as_json else click.echo(_counts(counts), err=True),
        )
    except PySparkException as error:
        raise SparkJobError(_reason(str(error))) from error
    finally:
        session.stop()
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(summary)))
    else:
        click.echo(
            f"{target}: {summary.records:,} records in {summary.batches} micro-batches, {summary.inserted:,} rows inserted, "
            f"{summary.updated:,} updated, {summary.deleted:,} deleted, {summary.seconds:.1f} s"
        )


@spark.command(name="verify")
@_BROKER_OPTIONS
@_TOPIC_OPTION
@_CASSANDRA_OPTIONS
@click.option("--mirror", "mirror_target", help="Compare the mirror below this folder instead of the topic.")
@click.option("--ranges", type=click.IntRange(1), help="Token ranges, one task each; by default two a core.")
@click.option(
    "--sample", type=float, metavar="PART", help="Compare about this part of the table (0 to 1), drawn at random."
)
@click.option("--sample-seed", type=int, help="With --sample: draw the part that this number stands for.")
@click.option("--repair", is_flag=True, help="Send the rows that differ through the events topic again.")
@click.option(
    "--events-prefix", default=DEFAULT_EVENTS_PREFIX, help="With --repair: of the events topics, as in the agent."
)
@click.option("--settle", default=30.0, show_default=True, help="Seconds that a difference must stay as it is.")
@_SESSION_OPTIONS
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object, and nothing else.")
def verify_command(
    *,
    service_url: str,
    admin_url: str,
    topic: str,
    table: str,
    contact_points: tuple[str, ...],
    port: int,
    local_dc: str | None,
    username: str | None,
    consistency: str,
    mirror_target: str | None,
    ranges: int | None,
    sample: float | None,
    sample_seed: int | None,
    repair: bool,
    events_prefix: str,
    settle: float,
    more: tuple[str, ...],
    jars: tuple[Path, ...],
    master: str | None,
    as_json: bool,
) -> None:
    """Compare a Cassandra table with its data topic, or a mirror; exit code 1 when rows differ."""
    from pyspark.errors import PySparkException

    from spark_bridge.jobs.verify import verify

    keyspace, name = _table_name(table)
    access = _access(contact_points, port, local_dc, username, consistency)
    options = {"serviceUrl": service_url, "adminUrl": admin_url, "topic": topic, **_named(more)}
    session = _session(jars, master)
    try:
        report = verify(
            session, options, access, keyspace, name, mirror_target=mirror_target, ranges=ranges, sample=sample,
            sample_seed=sample_seed, repair=repair, events_prefix=events_prefix, settle_s=settle,
        )  # fmt: skip
    except PySparkException as error:
        raise SparkJobError(_reason(str(error))) from error
    finally:
        session.stop()
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    else:
        for each in report.differences:
            columns = f" in {', '.join(each.columns)}" if each.columns else ""
            times = f"written {each.cassandra_writetime_us} in Cassandra, {each.topic_writetime_us} beside it"
            click.echo(f"{each.kind}{columns}: {each.key} ({times})")
        for unrepairable in report.unrepairable:
            click.echo(f"not sent again, for the topic does not tell its CQL key: {unrepairable}")
        sent = f", {report.repaired:,} sent again" if repair else ""
        click.echo(
            f"{table}: {report.rows:,} rows in {report.ranges} token ranges, {len(report.differences):,} differ{sent}, "
            f"{report.unsettled:,} still changing, {report.seconds:.1f} s"
        )
    sys.exit(1 if report.differences else 0)


@spark.command(name="backfill")
@_BROKER_OPTIONS
@_CASSANDRA_OPTIONS
@click.option("--where", help="A CQL predicate: only rows for which it holds (ALLOW FILTERING).")
@click.option("--tokens", type=(int, int), metavar="START END", help="Only partitions with a token in (START, END].")
@click.option(
    "--snapshot",
    type=click.Choice(["always", "initial"]),
    default="always",
    show_default=True,
    help="initial: nothing, when the whole table was sent once before, by whomever.",
)
@click.option("--rebuild", "rebuilt", metavar="TOPIC", help="Fill this emptied data topic again.")
@click.option("--events-prefix", default=DEFAULT_EVENTS_PREFIX, help="Of the events topics, as in the agent.")
@click.option("--ranges", default=64, show_default=True, type=click.IntRange(1), help="Token ranges, one task each.")
@click.option("--rows-per-second", type=float, help="No faster than this, over all tasks.")
@click.option("--progress-file", help="Keep finished ranges here, and go on after them.")
@click.option("--dry-run", is_flag=True, help="Send nothing; say about how many rows there are.")
@_SESSION_OPTIONS
def backfill_command(
    *,
    service_url: str,
    admin_url: str,
    table: str,
    contact_points: tuple[str, ...],
    port: int,
    local_dc: str | None,
    username: str | None,
    consistency: str,
    where: str | None,
    tokens: tuple[int, int] | None,
    snapshot: str,
    rebuilt: str | None,
    events_prefix: str,
    ranges: int,
    rows_per_second: float | None,
    progress_file: str | None,
    dry_run: bool,
    more: tuple[str, ...],
    jars: tuple[Path, ...],
    master: str | None,
) -> None:
    """Send an event for every row of a table, so that the connector publishes what was there before it."""
    from pyspark.errors import PySparkException
    from rich.progress import Progress

    from spark_bridge.jobs.backfill import backfill, initial_snapshot, rebuild
    from spark_bridge.jobs.cassandra_rows import ALL_TOKENS

    keyspace, name = _table_name(table)
    partly = {"--where": where, "--tokens": tokens, "--dry-run": dry_run or None}
    wrong = [option for option, value in partly.items() if value is not None]
    if wrong and (snapshot == "initial" or rebuilt):
        raise ConfigError.of(wrong[0], "does not go with --snapshot initial and --rebuild, which send the whole table")
    access = _access(contact_points, port, local_dc, username, consistency)
    options = {"serviceUrl": service_url, "adminUrl": admin_url, **_named(more)}
    session = _session(jars, master)
    try:
        with Progress(transient=True, disable=not sys.stderr.isatty()) as display:
            task = display.add_task(table, total=ranges)
            shared = _Shared(
                ranges=ranges, rows_per_second=rows_per_second, progress_file=progress_file, events_prefix=events_prefix,
                on_progress=lambda done, ranges, rows: display.update(task, completed=done, total=ranges),
            )  # fmt: skip
            if snapshot == "initial":
                report = initial_snapshot(session, options, access, keyspace, name, **shared)
            elif rebuilt is not None:
                report = rebuild(session, {**options, "topic": rebuilt}, access, keyspace, name, **shared)
            else:
                report = backfill(
                    session, options, access, keyspace, name, where=where, tokens=tokens or ALL_TOKENS, dry_run=dry_run,
                    **shared,
                )  # fmt: skip
    except PySparkException as error:
        raise SparkJobError(_reason(str(error))) from error
    finally:
        session.stop()
    if report is None:
        click.echo(f"{table}: sent once before, nothing to do")
    elif dry_run:
        click.echo(f"{table}: about {report.rows:,} rows, {report.seconds:,.0f} s")
    else:
        before = f", {report.ranges_before} before" if report.ranges_before else ""
        rate = report.rows / max(report.seconds, 0.001)
        ranges_done = f"{report.ranges} token ranges{before}"
        click.echo(f"{table}: {report.rows:,} events in {ranges_done}, {report.seconds:.1f} s ({rate:,.0f} rows/s)")


class _Shared(TypedDict):
    """What the ways to send rows have in common."""

    ranges: int
    rows_per_second: float | None
    progress_file: str | None
    events_prefix: str
    on_progress: Callable[[int, int, int], None]


def _table_name(text: str) -> tuple[str, str]:
    keyspace, _, name = text.partition(".")
    if not name:
        raise ConfigError.of("--table", f"{text!r} is not KEYSPACE.TABLE")
    return keyspace, name


def _access(
    contact_points: tuple[str, ...], port: int, local_dc: str | None, username: str | None, consistency: str
) -> CassandraAccess:
    from spark_bridge.jobs.cassandra_rows import CassandraAccess

    return CassandraAccess(
        contact_points=contact_points,
        port=port,
        local_dc=local_dc,
        username=username,
        password=os.environ.get("CDC_CASSANDRA_PASSWORD"),
        consistency=consistency,
    )


def _named(texts: tuple[str, ...]) -> dict[str, str]:
    wrong = [text for text in texts if "=" not in text]
    if wrong:
        raise ConfigError.of("--option", f"{wrong[0]!r} is not NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def _session(jars: tuple[Path, ...], master: str | None) -> SparkSession:
    from spark_bridge import session_builder

    builder = session_builder(jars, delta=True).config("spark.ui.showConsoleProgress", "false")
    if master or "SPARK_ENV_LOADED" not in os.environ:  # spark-submit has set the master
        builder = builder.master(master or "local[*]")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _counts(counts: Mapping[str, int]) -> str:
    parts = [f"{counts.get(name, 0):,} {word}" for name, word in _WORDS.items()]
    return "micro-batch: " + ", ".join(parts)


_WORDS = {"records": "records", "insert": "inserted", "update": "updated", "delete": "deleted"}


def _reason(text: str) -> str:
    """Our own line of a Python traceback that Spark passes on, else Spark's first line."""
    ours = [line for line in text.splitlines() if line.startswith(("spark_bridge.errors.", "schemas.errors."))]
    return ours[-1].split(": ", 1)[1] if ours else text.splitlines()[0]
