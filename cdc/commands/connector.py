"""`cdc connector`: what a connector has set aside, and how it gets it again."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Final, ParamSpec, TypeVar

import click

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
                help="Its parameters; better by environment.",
            ),
            click.option("--trust-certs", default="", help="File of the authorities to trust, for pulsar+ssl://."),
        )
    ):
        command = option(command)
    return command


@click.group(name="connector")
def connector() -> None:
    """What a source connector has set aside: changes that it could not publish (docs/connector.md)."""


@connector.command(name="dead-letters")
@_connection
def list_letters(service_url: str, topic: str, auth_plugin: str, auth_params: str, trust_certs: str) -> None:
    """Print the dead letters that nobody has sent again, one JSON object a line. Changes nothing."""
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


def _options(service_url: str, auth_plugin: str, auth_params: str, trust_certs: str) -> PulsarOptions:
    return PulsarOptions(
        service_url=service_url, auth_plugin=auth_plugin, auth_params=auth_params, trusted_certificates=trust_certs
    )


def _as_object(letter: DeadLetter) -> dict[str, object]:
    return {**letter.properties, "bytes": len(letter.data)}
