"""`cdc spark wait`: returns when a table has everything that Cassandra acknowledged up to a time. It starts no Spark."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

import click
from rich.console import Console

from cdc.commands.option_types import FiniteRange
from cdc.commands.spark_options import (
    BROKER_OPTIONS,
    MORE_OPTIONS,
    TOPIC_OPTION,
    WRITTEN,
    check_broker,
    check_mirror,
    check_topics,
    has_no_mirror,
    read_options,
)
from schemas.errors import ConfigError

__all__ = ["wait_command"]

_LOOK_S: Final = 0.5

_Look: TypeAlias = Callable[[int | None], None]
"""A function that is given the resolved timestamp after a look, in milliseconds since 1970; None if it is not known."""


@click.command(name="wait")
@BROKER_OPTIONS
@TOPIC_OPTION
@click.option("--until", default="now", show_default=True, help="A time with its zone (2026-11-21T05:00:00Z), or now.")
@click.option("--mirror", "target", help="Wait for the mirror below this folder, which another run brings up to date.")
@click.option(
    "--timeout",
    "timeout_s",
    default=300.0,
    show_default=True,
    type=FiniteRange(0),
    help="Seconds after which the command gives up.",
)
@MORE_OPTIONS
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
def wait_command(
    *,
    service_url: str,
    admin_url: str,
    topic: str,
    until: str,
    target: str | None,
    timeout_s: float,
    more: tuple[str, ...],
    as_json: bool,
) -> None:
    """Return when the data topic, or a mirror, has every write that Cassandra acknowledged up to a time.

    The exit code is 1 when it does not in time.

    \b
    cdc spark wait \\
      --service-url pulsar://broker:6650 --admin-url http://broker:8080 \\
      --topic data-shop.orders --until now
    """
    from spark_bridge.topics.options import BridgeOptions
    from spark_bridge.topics.positions import parse_time_ms
    from spark_bridge.topics.resolved import table_of, utc_text, wait_until_resolved

    until_ms = int(time.time() * 1000) if until == "now" else parse_time_ms(until)
    if until_ms is None:
        raise ConfigError.of(
            "--until", f"{until!r} is neither now nor a time with its zone, such as 2026-11-21T05:00:00Z"
        )
    options = read_options(service_url, admin_url, more, topic=topic)
    check_topics(options)
    check_broker(options)
    parsed = BridgeOptions.from_mapping(options, WRITTEN)
    table = table_of(parsed)
    deadline = time.monotonic() + timeout_s
    if target is not None and has_no_mirror(target):
        click.echo(f"there is no mirror below {target} yet: waiting for the first run of `cdc spark mirror`", err=True)
    with _display(table, until_ms) as show:
        resolved_ms = wait_until_resolved(parsed, table, until_ms, timeout_s, show).resolved_ms
    if target is not None:
        with _display(target, until_ms) as show:
            resolved_ms = _wait_for_mirror(target, until_ms, deadline, show)
    assert resolved_ms is not None
    if as_json:
        click.echo(json.dumps({"table": table, "resolved_ms": resolved_ms, "resolved": utc_text(resolved_ms)}))
    else:
        click.echo(f"{target or table} is complete until {utc_text(resolved_ms)}")


@contextmanager
def _display(what: str, until_ms: int) -> Iterator[_Look]:
    """Yield the function that shows a terminal's user how far `what` is. Without a terminal, it shows nothing."""
    if not sys.stderr.isatty():
        yield lambda resolved_ms: None
        return
    with Console(stderr=True).status(f"waiting for {what}") as status:
        yield lambda resolved_ms: status.update(f"waiting for {what}: {_reached(resolved_ms, until_ms)}")


def _reached(resolved_ms: int | None, until_ms: int) -> str:
    if resolved_ms is None:
        return "until when it is complete is not known"
    return f"it is {(until_ms - resolved_ms) / 1000:,.1f} s behind"


def _wait_for_mirror(target: str, until_ms: int, deadline: float, show: _Look) -> int:
    from spark_bridge.errors import UnresolvedError
    from spark_bridge.jobs.resolved import mirror_resolved_ms

    while True:
        try:
            found = mirror_resolved_ms(target)
        except (OSError, ValueError) as error:
            raise ConfigError.of("--mirror", f"{target} cannot be read ({error})") from error
        if found is not None and found > until_ms:
            return found
        if time.monotonic() >= deadline:
            reason = _reached(found, until_ms) if found is not None else _why_no_time(target)
            raise UnresolvedError(
                f"{target} is not complete until the given time: {reason}; does cdc spark mirror run?"
            )
        show(found)
        time.sleep(_LOOK_S)


def _why_no_time(target: str) -> str:
    """Why a mirror has no resolved timestamp. Raises ConfigError if the folder is no mirror's."""
    check_mirror(target)
    return "no run has noted a time"
