"""`cdc spark top`: shows the activity on data topics in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Console

from cdc.commands.option_types import FiniteRange
from cdc.commands.spark_options import (
    BROKER_OPTIONS,
    MORE_OPTIONS,
    WRITTEN,
    check_broker,
    check_topics,
    counted,
    named,
    read_options,
    resolved_ms,
)
from schemas.errors import ConfigError
from spark_bridge.jobs.arguments import MOST_DAYS, MOST_SECONDS

if TYPE_CHECKING:
    from spark_bridge.rows.topic_activity import TopicActivity

__all__ = ["summary_lines", "top_command"]


@click.command(name="top")
@BROKER_OPTIONS
@click.option("--topic", help="One data topic.")
@click.option("--topics-pattern", help="All topics that match, as topicsPattern of the data source.")
@click.option(
    "--minutes",
    default=60.0,
    show_default=True,
    type=FiniteRange(0, MOST_DAYS * 1440, min_open=True),
    help="Count only records that were published in these last minutes.",
)
@click.option(
    "--every",
    type=FiniteRange(0, MOST_SECONDS),
    metavar="SECONDS",
    help="Repeat the report at this interval, until Ctrl-C.",
)
@MORE_OPTIONS
def top_command(
    *,
    service_url: str,
    admin_url: str,
    topic: str | None,
    topics_pattern: str | None,
    minutes: float,
    every: float | None,
    more: tuple[str, ...],
) -> None:
    """Show the changes of each data topic: how many, how fast, how late.

    The command reads the records itself: it starts no Spark and needs no Java.

    \b
    cdc spark top \\
      --service-url pulsar://broker:6650 --admin-url http://broker:8080 \\
      --topic data-shop.orders --minutes 10
    """
    from spark_bridge.topics.options import BridgeOptions
    from spark_bridge.topics.unmatched import unmatched_reason

    _check_choice(topic, topics_pattern, named(more))
    options = read_options(service_url, admin_url, more, topic=topic, topicsPattern=topics_pattern)
    parsed = BridgeOptions.from_mapping(options, {**WRITTEN, "topicsPattern": "--topics-pattern"})
    unmatched = unmatched_reason(parsed)
    if unmatched is not None and every is None:
        raise ConfigError.of("--topics-pattern", unmatched)
    if topic is not None:
        check_topics(options)
    check_broker(options)
    console = Console(highlight=False, soft_wrap=True)
    try:
        while True:
            found = _counted(options, minutes)
            complete = {each.topic: _complete(options, each.topic) for each in found}
            console.print(f"data topics, the last {minutes:g} minutes", style="bold")
            unmatched = None if found else unmatched_reason(parsed)
            for line in [unmatched] if unmatched else summary_lines(found, complete):
                console.print(line)
            if every is None:
                break
            time.sleep(every)
    except KeyboardInterrupt:
        pass


def _check_choice(topic: str | None, topics_pattern: str | None, more: Mapping[str, str]) -> None:
    """Raise ConfigError unless one option names topics. `more`: options of the data source, which may name them, too."""
    is_named = any(name.lower() in ("topic", "topics", "topicspattern") for name in more)
    if topic is None and topics_pattern is None and not is_named:
        raise ConfigError.of("--topic", "is missing (or --topics-pattern)")
    if topic is not None and topics_pattern is not None:
        raise ConfigError.of("--topic", "and --topics-pattern are given; give only one of them")


def _counted(options: Mapping[str, str], minutes: float) -> list[TopicActivity]:
    """The activity of the topics. A terminal's stderr shows the progress of reading."""
    from spark_bridge.rows.topic_activity import count_activity

    if not sys.stderr.isatty():
        return count_activity(options, minutes)
    with Console(stderr=True).status("reading the topics") as status:
        return count_activity(options, minutes, lambda records: status.update(f"reading: {records:,} records"))


def summary_lines(found: Sequence[TopicActivity], complete: Mapping[str, str]) -> Iterator[str]:
    """A few lines for each topic, for a terminal of 80 columns.

    `complete`: the time until which each topic is complete, as text, by topic. A topic's name is alone on its line, and
    is never cut.
    """
    if not found:
        yield "no record"
    for each in found:
        rate = "" if each.per_second is None else f"; {each.per_second:,.1f} a second"
        yield each.topic.removeprefix("persistent://")
        counts = f"{counted(each.updates, 'update')}, {counted(each.deletes, 'delete')}"
        yield f"  {counted(each.records, 'record')}: {counts}{rate}"
        median, high = each.lag_s(0.5), each.lag_s(0.99)
        lag = "" if median is None else f"lag {median:,.3f} s, 99 % {high:,.3f} s; "
        yield f"  {lag}last {each.last:%Y-%m-%d %H:%M:%S} UTC"
        yield f"  complete until {complete[each.topic]}"


def _complete(options: Mapping[str, str], topic: str) -> str:
    from spark_bridge.topics.resolved import utc_text

    others = {name: each for name, each in options.items() if name not in ("topic", "topicsPattern")}
    found = resolved_ms({**others, "topic": topic})
    return "not known" if found is None else f"{utc_text(found).replace('T', ' ').rstrip('Z')} UTC"
