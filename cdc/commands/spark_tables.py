"""`cdc spark mirror`, `changelog`, `history` and `latest`: data topics as tables."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import click

from cdc.commands.given_options import refuse_given, refuse_without
from cdc.commands.hidden_columns import SOURCE_CONFIG_OPTION, hidden_columns
from cdc.commands.option_types import FiniteRange
from cdc.commands.spark_folders import check_output, check_writable
from cdc.commands.spark_options import (
    BROKER_OPTIONS,
    TOPIC_OPTION,
    WRITTEN,
    check_broker,
    check_mirror,
    check_topics,
    counted,
    may_be_iceberg,
    named,
    optional_cluster_options,
    resolved_ms,
    together,
)
from cdc.commands.spark_progress import spark_progress
from cdc.commands.spark_session import SESSION_OPTIONS, SparkJob
from cdc.commands.stop_signals import stopped_by_signals
from schemas.errors import ConfigError
from spark_bridge.jobs.arguments import MOST_DAYS, MOST_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from schemas.hidden_columns import HiddenColumns
    from spark_bridge.jobs.cassandra_rows import CassandraAccess
    from spark_bridge.jobs.lake_table import TableFormat
    from spark_bridge.jobs.mirror import MirrorSummary

__all__ = ["TABLE_COMMANDS"]

_Kept: TypeAlias = Literal["rows", "changes", "history"]
_FORMATS: Final = ("delta", "iceberg")

_STATIC_COLUMNS = click.option(
    "--static-columns", help="The table's static columns, separated by commas, if the topic does not name them."
)
_JOB_OPTIONS = together(
    BROKER_OPTIONS,
    TOPIC_OPTION,
    click.option("--target", required=True, help="Folder of the tables and the checkpoint; any path Spark can write."),
    _STATIC_COLUMNS,
    click.option(
        "--follow",
        type=FiniteRange(0, MOST_SECONDS),
        metavar="SECONDS",
        help="Keep running, with a micro-batch every SECONDS, until SIGTERM or Ctrl-C.",
    ),
    click.option(
        "--tombstone-retention-days",
        default=7.0,
        show_default=True,
        type=FiniteRange(0, MOST_DAYS),
        help="How long deletion markers are kept.",
    ),
    click.option("--compact", is_flag=True, help="Compact small files at the end, and every 100 micro-batches."),
    click.option(
        "--format",
        "table_format",
        type=click.Choice(_FORMATS),
        help="Format of the tables; by default that of existing tables, else delta.",
    ),
    click.option("--rebuild", is_flag=True, help="Read the topic, which was made again, from its beginning."),
    SESSION_OPTIONS,
    click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object, and nothing else."),
)


@click.command(name="mirror")
@click.option(
    "--changelog", is_flag=True, help="Also keep every insert, update and delete, with the row before and after."
)
@click.option("--history", is_flag=True, help="Also keep every version of every row with its times.")
@click.option(
    "--resync",
    is_flag=True,
    help="At the end, send again what open gaps of the table may have lost (cdc spark resync).",
)
@optional_cluster_options
@SOURCE_CONFIG_OPTION
@_JOB_OPTIONS
def mirror_command(
    *,
    changelog: bool,
    history: bool,
    resync: bool,
    access: CassandraAccess | None,
    source_config: Path | None,
    **given: object,
) -> None:
    """Keep tables equal to a Cassandra table, up to the topic's end (with --follow, continuously).

    \b
    cdc spark mirror \\
      --service-url pulsar://broker:6650 --admin-url http://broker:8080 \\
      --topic data-shop.orders --target /lake/orders --follow 10
    """
    for option, value in (("--contact-point", access), ("--source-config", source_config)):
        if value is not None and not resync:
            raise ConfigError.of(option, "is read by --resync, which is not given")
    if resync and access is None:
        raise ConfigError.of("--resync", "reads Cassandra: give --contact-point")
    if resync and given["follow"] is not None:
        raise ConfigError.of("--resync", "does not go with --follow: run cdc spark resync by a timer beside it")
    healing = _Healing(access=access, hidden=hidden_columns(source_config)) if resync else _Healing()
    _run("rows", given, healing, changelog=changelog, history=history)


@click.command(name="changelog")
@click.option("--history", is_flag=True, help="Also keep every version of every row with its times.")
@_JOB_OPTIONS
def changelog_command(*, history: bool, **given: object) -> None:
    """Keep every insert, update and delete, with the row before and after (TARGET/changes), and the mirror that they come from.

    \b
    cdc spark changelog \\
      --service-url pulsar://broker:6650 --admin-url http://broker:8080 \\
      --topic data-shop.orders --target /lake/orders
    """
    _run("changes", given, changelog=True, history=history)


@click.command(name="history")
@click.option(
    "--changelog", is_flag=True, help="Also keep every insert, update and delete, with the row before and after."
)
@_JOB_OPTIONS
def history_command(*, changelog: bool, **given: object) -> None:
    """Keep every version of every row with its times (TARGET/history), and the mirror that they come from.

    \b
    cdc spark history \\
      --service-url pulsar://broker:6650 --admin-url http://broker:8080 \\
      --topic data-shop.orders --target /lake/orders
    """
    _run("history", given, changelog=changelog, history=True)


@click.command(name="latest")
@BROKER_OPTIONS
@TOPIC_OPTION
@_STATIC_COLUMNS
@click.option(
    "--as-of", help="A time with its zone: the table from the topic's records up to then (2026-11-21T05:00:00Z)."
)
@click.option("--mirror", "target", help="Folder of a mirror: its rows, and the topic's newer records over them.")
@click.option("--output", help="Write the rows to this folder; without it, some rows are printed.")
@click.option(
    "--output-format", default="parquet", show_default=True, help="The format of --output: parquet, json, delta, ..."
)
@click.option("--limit", default=20, show_default=True, type=click.IntRange(0), help="The number of rows to print.")
@SESSION_OPTIONS
def latest_command(
    *,
    job: SparkJob,
    topic: str,
    static_columns: str | None,
    as_of: str | None,
    target: str | None,
    output: str | None,
    output_format: str,
    limit: int,
) -> None:
    """Print the table as it is now, or as of a time, as JSON lines, or write it into a folder: from the topic, or with a mirror.

    \b
    cdc spark latest \\
      --service-url pulsar://broker:6650 --admin-url http://broker:8080 \\
      --topic data-shop.orders --limit 10
    """
    if as_of is not None and target is not None:
        raise click.UsageError("--as-of reads the topic alone: leave --mirror out, or query the mirror's history")
    if output is None:
        refuse_without("--output", "output_format")
    else:
        refuse_given("has no effect with --output, which writes every row", "limit")
    from spark_bridge import fresh_table
    from spark_bridge.jobs.latest import latest_on_read
    from spark_bridge.jobs.mirror_state import MirrorTables
    from spark_bridge.topics.options import BridgeOptions
    from spark_bridge.topics.positions import parse_time_ms

    if as_of is not None and parse_time_ms(as_of) is None:
        raise ConfigError.of("--as-of", f"{as_of!r} is no time with its zone, such as 2026-11-21T05:00:00Z")
    options = job.read_options(topic=topic)
    statics = _columns(static_columns)
    check_output(output, output_format, has_own_jars=bool(job.jars))
    check_topics(options)
    check_mirror(target)
    check_broker(options)
    lines: list[str] = []
    with job.session(iceberg=target is not None and may_be_iceberg(target), is_short=True) as session:
        with spark_progress(session, f"reading {topic}"):
            complete_until = None if as_of is not None else _complete_read(session, options, target)
            if target is None:
                rows = latest_on_read(session, options, as_of=as_of, static_columns=statics)
            else:
                mirrored = MirrorTables(session, target)
                mirrored.refuse_none()
                mirrored.refuse_other_topic(BridgeOptions.from_mapping(options, WRITTEN).only_topic, "mirror")
                rows = fresh_table(session, options, target, static_columns=statics)
            if output is None:
                # not toJSON, which warns that its result will change
                lines += [row.line for row in rows.limit(limit).selectExpr("to_json(struct(*)) AS line").collect()]
            else:
                rows.write.format(output_format).mode("errorifexists").save(output)
                lines.append(f"{output}: {session.read.format(output_format).load(output).count():,} rows")
        if complete_until is not None:
            click.echo(complete_until, err=True)
        for line in lines:
            click.echo(line)


TABLE_COMMANDS: Final = (mirror_command, changelog_command, history_command, latest_command)
"""Subcommands of `cdc spark`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _JobOptions:
    """The values of `_JOB_OPTIONS`."""

    job: SparkJob
    topic: str
    target: str
    static_columns: str | None
    follow: float | None
    tombstone_retention_days: float
    compact: bool
    table_format: TableFormat | None
    rebuild: bool
    as_json: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Healing:
    """For --resync: the connection to Cassandra, and the columns that the source hides."""

    access: CassandraAccess | None = None
    hidden: HiddenColumns | None = None


_NO_HEALING: Final = _Healing()


def _run(
    kept: _Kept, given: Mapping[str, object], healing: _Healing = _NO_HEALING, *, changelog: bool, history: bool
) -> None:
    from spark_bridge.jobs.mirror import mirror

    asked = _JobOptions(**given)  # type: ignore[arg-type]  # click has made them what the options say
    job, target, is_following = asked.job, asked.target, asked.follow is not None
    options = {"serviceUrl": job.service_url, "adminUrl": job.admin_url, "topic": asked.topic, **named(job.more)}
    iceberg = asked.table_format == "iceberg" or (asked.table_format is None and may_be_iceberg(target))
    stored = {**options, "checkpointLocation": f"{target}/checkpoint"}  # as `mirror` sets it
    check_writable("--target", target)
    check_topics(stored)
    check_broker(stored)
    with (
        job.session(iceberg=iceberg, is_short=not is_following) as session,
        spark_progress(session, f"mirroring {asked.topic}"),
        stopped_by_signals(is_following) as stopping,
    ):
        summary = mirror(
            session,
            options,
            target,
            changelog=changelog,
            history=history,
            static_columns=_columns(asked.static_columns),
            follow_interval_s=asked.follow,
            stopping=stopping,
            tombstone_retention_days=asked.tombstone_retention_days,
            compact=asked.compact,
            table_format=asked.table_format,
            rebuild=asked.rebuild,
            resync_from=healing.access,
            hidden=healing.hidden,
            on_batch=lambda counts: None if asked.as_json else click.echo(_counts(counts), err=True),
        )
    click.echo(json.dumps(dataclasses.asdict(summary)) if asked.as_json else _summary_text(f"{target}/{kept}", summary))


def _summary_text(table: str, summary: MirrorSummary) -> str:
    batches = "1 micro-batch" if summary.batches == 1 else f"{summary.batches:,} micro-batches"
    return (
        f"{table}: {counted(summary.records, 'record')} in {batches}, {counted(summary.inserted, 'row')} inserted, "
        f"{summary.updated:,} updated, {summary.deleted:,} deleted, {summary.seconds:.1f} s; {_complete(summary.resolved_ms)}"
    )


def _complete_read(session: SparkSession, options: Mapping[str, str], target: str | None) -> str:
    """Until when the rows of a read are complete. To be called before the read. Raises ConfigError, StateFileError."""
    from spark_bridge.jobs.completeness import lack_of_read
    from spark_bridge.jobs.mirror_state import MirrorTables
    from spark_bridge.topics.options import BridgeOptions

    mirror = None if target is None else MirrorTables(session, target).applied()
    lack = lack_of_read(BridgeOptions.from_mapping(options, WRITTEN), mirror)
    if lack is not None:
        return f"complete until: not known ({lack}, so records may be missing)"
    return _complete(resolved_ms(options))


def _complete(resolved_ms: int | None) -> str:
    from spark_bridge.topics.resolved import utc_text

    return (
        "complete until: not known (cdc status)" if resolved_ms is None else f"complete until {utc_text(resolved_ms)}"
    )


def _columns(text: str | None) -> tuple[str, ...] | None:
    return tuple(text.split(",")) if text else None


def _counts(counts: Mapping[str, int]) -> str:
    parts = [f"{counts.get(name, 0):,} {word}" for name, word in _WORDS.items()]
    return f"micro-batch: {', '.join([counted(counts.get('records', 0), 'record'), *parts])}"


_WORDS = {"insert": "inserted", "update": "updated", "delete": "deleted"}
