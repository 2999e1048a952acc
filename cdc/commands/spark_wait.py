"""`cdc spark wait`: returns when a table has everything that Cassandra acknowledged up to a time. It starts no Spark."""

from __future__ import annotations

import json
import time

import click

from cdc.commands.option_types import FiniteRange
from cdc.commands.spark_options import BROKER_OPTIONS, TOPIC_OPTION, WRITTEN, check_topics, read_options
from schemas.errors import ConfigError

__all__ = ["wait_command"]

_LOOK_S = 0.5


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
@click.option("--option", "-o", "more", multiple=True, metavar="NAME=VALUE", help="An option of cassandra_cdc.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
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
    parsed = BridgeOptions.from_mapping(options, WRITTEN)
    table = table_of(parsed)
    deadline = time.monotonic() + timeout_s
    resolved_ms = wait_until_resolved(parsed, table, until_ms, timeout_s).resolved_ms
    if target is not None:
        resolved_ms = _wait_for_mirror(target, until_ms, deadline)
    assert resolved_ms is not None
    if as_json:
        click.echo(json.dumps({"table": table, "resolved_ms": resolved_ms, "resolved": utc_text(resolved_ms)}))
    else:
        click.echo(f"{target or table} is complete until {utc_text(resolved_ms)}")


def _wait_for_mirror(target: str, until_ms: int, deadline: float) -> int:
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
            reached = (
                "no run has noted a time" if found is None else f"it is {(until_ms - found) / 1000:.1f} s before it"
            )
            raise UnresolvedError(
                f"{target} is not complete until the given time: {reached}; does cdc spark mirror run?"
            )
        time.sleep(_LOOK_S)
