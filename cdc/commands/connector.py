"""`cdc connector`: dead letters and waiting expiries of a connector, and restarts of its instances."""

from __future__ import annotations

import dataclasses
import json
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import click

from cdc.commands.option_types import LONGEST_S, FiniteRange
from cdc.health.pulsar_service import PulsarService
from cdc.health.source_keeper import SourceKeeper
from cdc.health.this_line import line_of, line_option
from cdc.health.turns import Turns
from cdc.helpful_group import HelpfulGroup
from schemas.errors import ConfigError
from schemas.topics import DEFAULT_EVENTS_PREFIX, events_topic, expiry_topic, full_topic_name
from source_connector.errors import ExpiriesError
from source_connector.events.dead_letters import DeadLetter, dead_letters, resend
from source_connector.events.expiry_messages import WaitingExpiries, waiting_expiries
from source_connector.events.pulsar_access import PulsarOptions

__all__ = ["connector"]

DEFAULT_TOPIC: Final = "persistent://public/default/cdc-dead-letters"

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _connection(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Options of every command that reads dead letters."""
    return _broker(
        click.option("--topic", default=DEFAULT_TOPIC, show_default=True, help="The dead-letter topic.")(command)
    )


def _broker(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Options of every command that talks to the broker."""
    for option in reversed(
        (
            click.option("--service-url", required=True, help="The broker, such as pulsar://broker:6650."),
            click.option("--auth-plugin", default="", help="Authentication plug-in, such as token or tls."),
            click.option(
                "--auth-params",
                default="",
                envvar="CDC_PULSAR_AUTH_PARAMS",
                help="Its parameters; better in the environment.",
            ),
            click.option("--trust-certs", default="", help="File of the authorities to trust, for pulsar+ssl://."),
        )
    ):
        command = option(command)
    return command


@click.group(name="connector", cls=HelpfulGroup)
def connector() -> None:
    """Dead letters and waiting expiries of a source connector; restarts of sources (docs/connector.md)."""


@connector.command(name="dead-letters")
@_connection
def list_letters(service_url: str, topic: str, auth_plugin: str, auth_params: str, trust_certs: str) -> None:
    """Print the dead letters that were not sent again, one JSON object a line. Nothing is changed.

    \b
    cdc connector dead-letters --service-url pulsar://broker:6650
    """
    options = _options(service_url, auth_plugin, auth_params, trust_certs)
    with closing(dead_letters(options, full_topic_name(topic))) as letters:
        for letter in letters:
            click.echo(json.dumps(_as_object(letter), ensure_ascii=False))


@connector.command(name="resend")
@_connection
def resend_letters(service_url: str, topic: str, auth_plugin: str, auth_params: str, trust_certs: str) -> None:
    """Send all dead letters to their events topics again.

    The connector then reads each row as it is now. If the cause of a dead letter remains, the event becomes a new one.

    \b
    cdc connector resend --service-url pulsar://broker:6650
    """
    options = _options(service_url, auth_plugin, auth_params, trust_certs)
    count = 0
    try:
        with closing(resend(options, full_topic_name(topic))) as letters:
            for letter in letters:
                click.echo(json.dumps(_as_object(letter), ensure_ascii=False))
                count += 1
    finally:
        click.echo(f"{count} sent again", err=True)


@connector.command(name="expiries")
@_broker
@click.option("--table", "tables", required=True, multiple=True, help="KEYSPACE.TABLE; may be repeated.")
@click.option(
    "--events-prefix", default=DEFAULT_EVENTS_PREFIX, show_default=True, help="The prefix of the events topics."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a table, and nothing else.")
def list_expiries(
    service_url: str,
    auth_plugin: str,
    auth_params: str,
    trust_certs: str,
    tables: tuple[str, ...],
    events_prefix: str,
    *,
    as_json: bool,
) -> None:
    """Show how many rows wait until a value in them expires, and until when. Nothing is changed.

    \b
    cdc connector expiries --service-url pulsar://broker:6650 --table shop.orders
    """
    import pulsar

    options = _options(service_url, auth_plugin, auth_params, trust_certs)
    for table in tables:
        keyspace, dot, name = table.partition(".")
        if not dot or not keyspace or not name:
            raise ConfigError.of("--table", f"{table!r} is not KEYSPACE.TABLE")
        topic = expiry_topic(events_topic(keyspace, name, events_prefix), keyspace, name)
        try:
            found = waiting_expiries(options, topic, time.time())
        except pulsar.PulsarException as error:
            raise ExpiriesError(f"{topic}: {error}") from error
        if as_json:
            click.echo(json.dumps({"table": table, "topic": topic, **dataclasses.asdict(found)}))
        else:
            click.echo(f"{table}: {expiries_text(found)}")


def expiries_text(found: WaitingExpiries) -> str:
    """The waiting expiries as a text for people."""
    if not found.keys:
        return "no keys wait for an expiry"
    until = datetime.fromtimestamp(found.until_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{found.keys:,} keys wait in {found.messages:,} messages of {found.bytes:,} bytes, until {until}"


@connector.command(name="watch")
@line_option
@click.option(
    "--interval", default=10.0, show_default=True, type=FiniteRange(0.1, LONGEST_S), help="Seconds between two checks."
)
@click.option(
    "--patience", default=90.0, show_default=True, type=FiniteRange(1, LONGEST_S), help="Seconds that a start may take."
)
@click.option("--once", is_flag=True, help="Check once, restart the sources that are down at once, and end.")
def watch(path: Path | None, interval: float, patience: float, once: bool) -> None:
    """Restart sources whose instances do not run, and report it, until SIGTERM or Ctrl-C.

    Pulsar's functions worker tries to start a source once, and then gives it up. Sources that somebody stopped stay stopped.
    One watch is enough for a cluster; several do no harm. With --once the exit code is 1 if Pulsar does not answer, or
    refuses a restart.

    \b
    cdc connector watch --config line.yaml
    cdc connector watch --config line.yaml --once
    """
    config = line_of(path)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, frame: stopping.set())
    with PulsarService(config) as service:
        keeper = SourceKeeper(service, Turns(config).turn, patience_s=0.0 if once else patience, stopping=stopping)
        click.echo(f"watching the sources of {config.namespace} at {config.pulsar_admin_url}")
        if once:
            for line in keeper.check_once():
                click.echo(line)
            if keeper.failures:
                raise click.exceptions.Exit(1)
            return
        while True:
            for line in keeper.check():
                click.echo(line)
            if stopping.wait(interval):
                return


def _options(service_url: str, auth_plugin: str, auth_params: str, trust_certs: str) -> PulsarOptions:
    return PulsarOptions(
        service_url=service_url, auth_plugin=auth_plugin, auth_params=auth_params, trusted_certificates=trust_certs
    )


def _as_object(letter: DeadLetter) -> dict[str, object]:
    return {**letter.properties, "bytes": len(letter.data)}
