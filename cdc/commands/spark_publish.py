"""`cdc spark publish`: publishes a mirror's change log to topics for any consumer."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from cdc.commands.option_types import FiniteRange
from cdc.commands.spark_folders import check_writable
from cdc.commands.spark_options import (
    BROKER_OPTIONS,
    TOPIC_OPTION,
    check_broker,
    check_mirror,
    check_topics,
    may_be_iceberg,
)
from cdc.commands.spark_progress import spark_progress
from cdc.commands.spark_session import SESSION_OPTIONS, SparkJob
from cdc.commands.stop_signals import stopped_by_signals
from spark_bridge.jobs.arguments import MOST_SECONDS

if TYPE_CHECKING:
    from spark_bridge.jobs.publish_state import Kind

__all__ = ["publish_command"]


@click.command(name="publish")
@BROKER_OPTIONS
@TOPIC_OPTION
@click.option("--target", required=True, help="Folder of the table's mirror, which keeps a change log.")
@click.option(
    "--rows", "has_rows", is_flag=True, help="Publish each changed row, and a null for a row that is gone (rows-...)."
)
@click.option(
    "--changes", "has_changes", is_flag=True, help="Publish every change, with the row before and after (changes-...)."
)
@click.option("--rows-topic", help="The topic of --rows; by default rows-KEYSPACE.TABLE beside data-KEYSPACE.TABLE.")
@click.option("--changes-topic", help="The topic of --changes; by default changes-KEYSPACE.TABLE, likewise.")
@click.option(
    "--follow",
    type=FiniteRange(0, MOST_SECONDS),
    metavar="SECONDS",
    help="Keep running, and publish new changes every SECONDS, until SIGTERM or Ctrl-C.",
)
@click.option("--rebuild", is_flag=True, help="Publish the whole table anew first.")
@SESSION_OPTIONS
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object, and nothing else.")
def publish_command(
    *,
    job: SparkJob,
    topic: str,
    target: str,
    has_rows: bool,
    has_changes: bool,
    rows_topic: str | None,
    changes_topic: str | None,
    follow: float | None,
    rebuild: bool,
    as_json: bool,
) -> None:
    """Publish the changes of a mirror to topics for any consumer: each once, in order per key (docs/topics.md).

    \b
    cdc spark publish \\
      --service-url pulsar://broker:6650 --admin-url http://broker:8080 \\
      --topic data-shop.orders --target /lake/orders --rows --changes
    """
    topics: dict[Kind, str | None] = {}
    if has_rows or rows_topic:
        topics["rows"] = rows_topic
    if has_changes or changes_topic:
        topics["changes"] = changes_topic
    if not topics:
        raise click.UsageError("give --rows, --changes, or both: they say what to publish")
    from spark_bridge.jobs.publish import publish

    options = job.read_options(topic=topic)
    check_writable("--target", target)
    check_topics(options)
    check_mirror(target, "--target")
    check_broker(options)

    def show(published: str, records: int, epoch: int) -> None:
        if not as_json and (records or follow is None):
            click.echo(f"{published.removeprefix('persistent://')}: {records:,} records, up to epoch {epoch}", err=True)

    with (
        job.session(iceberg=may_be_iceberg(target), is_short=follow is None) as session,
        spark_progress(session, f"publishing {target}"),
        stopped_by_signals(follow is not None) as stopping,
    ):
        summary = publish(
            session,
            options,
            target,
            topics,
            rebuild=rebuild,
            follow_interval_s=follow,
            stopping=stopping,
            on_batch=show,
            on_note=lambda text: click.echo(text, err=True),
        )
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(summary)))
    else:
        counts = ", ".join(f"{records:,} records to {name}" for name, records in summary.records.items())
        click.echo(f"{target}: {counts}, up to epoch {summary.epoch}, {summary.seconds:.1f} s")
