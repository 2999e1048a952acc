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
from functools import reduce, wraps
from pathlib import Path
from typing import Final

import click

from cdc.commands.given_options import refuse_given, refuse_without
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
from source_connector.events.pulsar_admin import PulsarAdmin

__all__ = ["connector"]

DEFAULT_TOPIC: Final = "persistent://public/default/cdc-dead-letters"

_NO_EXPIRIES: Final = WaitingExpiries(keys=0, messages=0, bytes=0, until_s=0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Pulsar:
    """The values of `_BROKER_OPTIONS`."""

    service_url: str
    admin_url: str
    auth_plugin: str
    auth_params: str
    trust_certs: str

    @property
    def options(self) -> PulsarOptions:
        """The options of the client."""
        return PulsarOptions(
            service_url=self.service_url,
            auth_plugin=self.auth_plugin,
            auth_params=self.auth_params,
            trusted_certificates=self.trust_certs,
        )

    def has(self, topic: str) -> bool:
        """Return True if the topic exists, or without an admin URL. Raises AdminError.

        Pulsar may make a topic when its client reads it.
        """
        if not self.admin_url:
            return True
        if not self.admin_url.startswith(("http://", "https://")):
            raise ConfigError.of("--admin-url", f"{self.admin_url!r} is no address, such as http://broker:8080")
        return PulsarAdmin(self.admin_url, self.options, "--admin-url").exists(topic)


_BROKER_OPTIONS: Final = (
    click.option("--service-url", required=True, help="The broker: pulsar://host:6650."),
    click.option(
        "--admin-url",
        default="",
        help="The admin service: http://host:8080. Without it, reading a missing topic creates it.",
    ),
    click.option("--auth-plugin", default="", help="Authentication plug-in, such as token or tls."),
    click.option(
        "--auth-params",
        default="",
        envvar="CDC_PULSAR_AUTH_PARAMS",
        help="Its parameters; better in the environment, as CDC_PULSAR_AUTH_PARAMS.",
    ),
    click.option("--trust-certs", default="", help="File of the authorities to trust, for pulsar+ssl:// and https://."),
)
_TOPIC_OPTION: Final = click.option("--topic", default=DEFAULT_TOPIC, show_default=True, help="The dead-letter topic.")


def _broker(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every command that talks to the broker. The command gets them as `pulsar`."""

    @wraps(command)
    def with_pulsar(
        *, service_url: str, admin_url: str, auth_plugin: str, auth_params: str, trust_certs: str, **others: object
    ) -> None:
        if not auth_plugin:
            refuse_without("--auth-plugin", "auth_params")
        pulsar = _Pulsar(
            service_url=service_url,
            admin_url=admin_url,
            auth_plugin=auth_plugin,
            auth_params=auth_params,
            trust_certs=trust_certs,
        )
        command(pulsar=pulsar, **others)

    return reduce(lambda made, option: option(made), reversed(_BROKER_OPTIONS), with_pulsar)


@click.group(name="connector", cls=HelpfulGroup)
def connector() -> None:
    """Dead letters and waiting expiries of a source connector; restarts of sources (docs/connector.md)."""


@connector.command(name="dead-letters")
@_broker
@_TOPIC_OPTION
def list_letters(*, pulsar: _Pulsar, topic: str) -> None:
    """Print the dead letters that were not sent again, one JSON object a line. Nothing is changed.

    \b
    cdc connector dead-letters \\
      --service-url pulsar://broker:6650 --admin-url http://broker:8080
    """
    full_name = _full_name(topic)
    if _is_missing(pulsar, full_name):
        return
    with closing(dead_letters(pulsar.options, full_name)) as letters:
        for letter in letters:
            click.echo(json.dumps(_as_object(letter), ensure_ascii=False))


@connector.command(name="resend")
@_broker
@_TOPIC_OPTION
def resend_letters(*, pulsar: _Pulsar, topic: str) -> None:
    """Send all dead letters to their events topics again.

    The connector then reads each row as it is now. If the cause of a dead letter remains, the event becomes a new one.

    \b
    cdc connector resend \\
      --service-url pulsar://broker:6650 --admin-url http://broker:8080
    """
    full_name = _full_name(topic)
    if _is_missing(pulsar, full_name):
        return
    count = 0
    try:
        with closing(resend(pulsar.options, full_name)) as letters:
            for letter in letters:
                click.echo(json.dumps(_as_object(letter), ensure_ascii=False))
                count += 1
    finally:
        click.echo(f"{count} sent again", err=True)


def _full_name(topic: str) -> str:
    """The dead-letter topic with tenant and namespace. Raises ConfigError."""
    full = full_topic_name(topic.strip())
    if full.count("/") != 4 or not all(full.split("/")[2:]):
        text = f"{topic!r} is no name of a topic, such as cdc-dead-letters or persistent://tenant/namespace/name"
        raise ConfigError.of("--topic", text)
    return full


def _is_missing(pulsar: _Pulsar, topic: str) -> bool:
    """Return True, and say so, if the dead-letter topic does not exist: the first dead letter makes it."""
    if pulsar.has(topic):
        return False
    click.echo(f"no dead letters: the topic {topic} does not exist", err=True)
    return True


@connector.command(name="expiries")
@_broker
@click.option(
    "--table",
    "tables",
    required=True,
    multiple=True,
    metavar="KEYSPACE.TABLE",
    help="The table in Cassandra; may be given many times.",
)
@click.option(
    "--events-prefix", default=DEFAULT_EVENTS_PREFIX, show_default=True, help="The prefix of the events topics."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a table, and nothing else.")
def list_expiries(*, pulsar: _Pulsar, tables: tuple[str, ...], events_prefix: str, as_json: bool) -> None:
    """Show how many rows wait until a value in them expires, and until when. Nothing is changed.

    \b
    cdc connector expiries \\
      --service-url pulsar://broker:6650 --admin-url http://broker:8080 \\
      --table shop.orders
    """
    for table in tables:
        keyspace, dot, name = table.partition(".")
        if not dot or not keyspace or not name:
            raise ConfigError.of("--table", f"{table!r} is not KEYSPACE.TABLE")
        topic = expiry_topic(events_topic(keyspace, name, events_prefix), keyspace, name)
        found = _expiries(pulsar, topic)
        if as_json:
            click.echo(json.dumps({"table": table, "topic": topic, **dataclasses.asdict(found or _NO_EXPIRIES)}))
        elif found is None:
            click.echo(f"{table}: no keys wait for an expiry: the topic {topic} does not exist")
        else:
            click.echo(f"{table}: {expiries_text(found)}")


def _expiries(access: _Pulsar, topic: str) -> WaitingExpiries | None:
    """What waits on an expiry topic; None if it does not exist. Raises AdminError, ExpiriesError."""
    import pulsar

    if not access.has(topic):
        return None
    try:
        return waiting_expiries(access.options, topic, time.time())
    except pulsar.PulsarException as error:
        raise ExpiriesError(f"{topic}: {error}") from error


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
    if once:
        refuse_given("has no effect with --once, which checks once and waits for no start", "interval", "patience")
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


def _as_object(letter: DeadLetter) -> dict[str, object]:
    return {**letter.properties, "bytes": len(letter.data)}
