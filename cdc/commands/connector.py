"""`cdc connector`: what a connector has set aside, and how it gets it again; the watch over its instances."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import click

from cdc.health.pulsar_service import PulsarService
from cdc.health.source_keeper import SourceKeeper
from cdc.health.this_line import line_of, line_option
from cdc.health.turns import Turns
from schemas.topics import full_topic_name
from source_connector.events.dead_letters import DeadLetter, dead_letters, resend
from source_connector.events.pulsar_access import PulsarOptions

__all__ = ["connector"]

DEFAULT_TOPIC: Final = "persistent://public/default/cdc-dead-letters"

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _connection(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Options of every command that talks to the broker."""
    for option in reversed(
        (
            click.option("--service-url", required=True, help="The broker, such as pulsar://broker:6650."),
            click.option("--topic", default=DEFAULT_TOPIC, show_default=True, help="The dead-letter topic."),
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


@click.group(name="connector")
def connector() -> None:
    """Dead letters of a source connector, and the watch over sources (docs/connector.md)."""


@connector.command(name="dead-letters")
@_connection
def list_letters(service_url: str, topic: str, auth_plugin: str, auth_params: str, trust_certs: str) -> None:
    """Print the dead letters that were not sent again, one JSON object a line. Changes nothing."""
    options = _options(service_url, auth_plugin, auth_params, trust_certs)
    with closing(dead_letters(options, full_topic_name(topic))) as letters:
        for letter in letters:
            click.echo(json.dumps(_as_object(letter), ensure_ascii=False))


@connector.command(name="resend")
@_connection
def resend_letters(service_url: str, topic: str, auth_plugin: str, auth_params: str, trust_certs: str) -> None:
    """Send the dead letters that are there now to their events topics again.

    The connector then reads each row as it is by now. A letter whose cause still stands comes back as a new one.
    """
    options = _options(service_url, auth_plugin, auth_params, trust_certs)
    count = 0
    with closing(resend(options, full_topic_name(topic))) as letters:
        for letter in letters:
            click.echo(json.dumps(_as_object(letter), ensure_ascii=False))
            count += 1
    click.echo(f"{count} sent again", err=True)


@connector.command(name="watch")
@line_option
@click.option(
    "--interval", default=10.0, show_default=True, type=click.FloatRange(0.1), help="Seconds between two checks."
)
@click.option(
    "--patience", default=90.0, show_default=True, type=click.FloatRange(1), help="Seconds that a start may take."
)
@click.option("--once", is_flag=True, help="Check once, restart at once what is down, and end.")
def watch(path: Path | None, interval: float, patience: float, once: bool) -> None:
    """Restart sources whose instances do not run, and say so, until SIGTERM or Ctrl-C.

    Pulsar's functions worker tries a failed start once and gives the source up. Sources that somebody stopped stay so. One
    watch is enough for a cluster; several do no harm.
    """
    config = line_of(path)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, frame: stopping.set())
    with PulsarService(config) as service:
        keeper = SourceKeeper(
            service, Turns(config).turn, patience_s=0.0 if once else patience, stopping=stopping
        )  # fmt: skip
        click.echo(f"watching the sources of {config.namespace} at {config.pulsar_admin_url}")
        while True:
            for line in keeper.look():
                click.echo(line)
            if once or stopping.wait(interval):
                return


def _options(service_url: str, auth_plugin: str, auth_params: str, trust_certs: str) -> PulsarOptions:
    return PulsarOptions(
        service_url=service_url, auth_plugin=auth_plugin, auth_params=auth_params, trusted_certificates=trust_certs
    )


def _as_object(letter: DeadLetter) -> dict[str, object]:
    return {**letter.properties, "bytes": len(letter.data)}
