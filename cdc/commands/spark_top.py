"""`cdc spark top`: what happens on data topics, as a table in the terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from schemas.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Row

__all__ = ["top_command"]

_COLUMNS = ("topic", "records", "updates", "deletes", "per second", "lag p50", "lag p99", "last change (UTC)")


@click.command(name="top")
@click.option("--service-url", required=True, help="The broker: pulsar://host:6650.")
@click.option("--admin-url", required=True, help="The admin service: http://host:8080.")
@click.option("--topic", help="One data topic.")
@click.option("--topics-pattern", help="All topics that match, as topicsPattern of the data source.")
@click.option("--minutes", default=60.0, show_default=True, help="Only records published in the last so many minutes.")
@click.option("--every", type=float, metavar="SECONDS", help="Show it again each so many seconds, until Ctrl-C.")
@click.option("--option", "-o", "more", multiple=True, metavar="NAME=VALUE", help="An option of cassandra_cdc.")
@click.option(
    "--jars", multiple=True, type=click.Path(path_type=Path, exists=True), help="Jars to use instead of packages."
)
@click.option("--master", help="Spark's master; by default local[*].")
def top_command(
    *,
    service_url: str,
    admin_url: str,
    topic: str | None,
    topics_pattern: str | None,
    minutes: float,
    every: float | None,
    more: tuple[str, ...],
    jars: tuple[Path, ...],
    master: str | None,
) -> None:
    """Changes of each data topic: how many, how fast, how late."""
    from spark_bridge import session_builder
    from spark_bridge.rows.activity import recent, topic_summary

    given = {"topic": topic, "topicsPattern": topics_pattern}
    options = {"serviceUrl": service_url, "adminUrl": admin_url, **_named(more)}
    options |= {name: each for name, each in given.items() if each is not None}
    builder = session_builder(jars).master(master or "local[*]").config("spark.ui.showConsoleProgress", "false")
    session = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    console = Console()
    try:
        while True:
            console.print(_table(topic_summary(recent(session, options, minutes)).collect(), minutes))
            if every is None:
                break
            time.sleep(every)
    except KeyboardInterrupt:
        pass
    finally:
        session.stop()


def _named(texts: tuple[str, ...]) -> Mapping[str, str]:
    wrong = [text for text in texts if "=" not in text]
    if wrong:
        raise ConfigError.of("--option", f"{wrong[0]!r} is not NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def _table(rows: list[Row], minutes: float) -> Table:
    table = Table(title=f"data topics, the last {minutes:g} minutes")
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in (_COLUMNS[0], _COLUMNS[-1]) else "right", overflow="fold")
    for row in rows:
        table.add_row(
            row.topic.removeprefix("persistent://"),
            f"{row.records:,}",
            f"{row.updates:,}",
            f"{row.deletes:,}",
            "" if row.per_second is None else f"{row.per_second:,.1f}",
            _seconds(row.lag_p50_s),
            _seconds(row.lag_p99_s),
            f"{row.last.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
        )
    return table


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.3f} s"
