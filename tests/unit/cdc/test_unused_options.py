"""Options that have no effect are refused, in one line that names the option that is missing or replaces them."""

from __future__ import annotations

from typing import Final

import pytest
from click.testing import CliRunner

from cdc.main import cli
from schemas.errors import ConfigError

_PULSAR: Final = ["--service-url", "pulsar://127.0.0.1:1", "--admin-url", "http://127.0.0.1:1"]
_NODE: Final = ["--contact-point", "127.0.0.1"]
_VERIFY: Final = ["spark", "verify", *_PULSAR, *_NODE, "--topic", "t", "--table", "k.t"]
_MIRROR: Final = ["spark", "mirror", *_PULSAR, "--topic", "t", "--target", "x"]
_LATEST: Final = ["spark", "latest", *_PULSAR, "--topic", "t"]
_DECODE: Final = ["decode", "CommitLog-7-1.log", "--schema", "x"]


def _refused(arguments: list[str]) -> str:
    done = CliRunner().invoke(cli, arguments)
    assert isinstance(done.exception, ConfigError), done.output
    return str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "option", "needed"),
    [
        ([*_VERIFY, "--sample-seed", "7"], "--sample-seed", "--sample"),
        ([*_VERIFY, "--events-prefix", "e-"], "--events-prefix", "--repair"),
        ([*_MIRROR, "--username", "u"], "--username", "--contact-point"),
        ([*_MIRROR, "--consistency", "LOCAL_QUORUM"], "--consistency", "--contact-point"),
        ([*_MIRROR, "--tls"], "--tls", "--contact-point"),
        ([*_LATEST, "--output-format", "json"], "--output-format", "--output"),
        (["status", "--interval", "5"], "--interval", "--watch"),
        (["connector", "dead-letters", *_PULSAR, "--auth-params", "token:x"], "--auth-params", "--auth-plugin"),
        ([*_DECODE, "--username", "u", "--password-file", "f"], "--username", "--contact-point"),
        (["decode", *_NODE, "--write-schema", "f", "--stats"], "--stats", "a SEGMENT"),
    ],
)
def test_an_option_without_the_one_that_it_belongs_to_is_refused(
    arguments: list[str], option: str, needed: str
) -> None:
    """A user who forgot the other one would take the result for another one: that of a sample, or of a written folder."""
    assert _refused(arguments) == f"{option}: has no effect without {needed}: give both, or leave it out"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([*_LATEST, "--output", "x", "--limit", "5"], "--limit: has no effect with --output, which writes every row"),
        (
            ["spark", "resync", *_PULSAR, *_NODE, "--table", "k.t", "--topic", "t", "--data-prefix", "d-"],
            "--data-prefix: has no effect with --topic, which names the data topic",
        ),
        (
            ["connector", "watch", "--once", "--patience", "90"],
            "--patience: has no effect with --once, which checks once and waits for no start",
        ),
        (
            ["resolved", "--json", "--listen", "127.0.0.1:0"],
            "--json: has no effect with --listen, which serves the metrics of Prometheus",
        ),
        (["resolved", "--json", "--prometheus"], "--json: has no effect with --prometheus, which prints no JSON"),
        ([*_DECODE, "--stats", "--format", "events"], "--format: has no effect with --stats, which prints no mutation"),
        (
            ["agent", "resume-progress", "--working-dir", ".", "--list", "k.t"],
            "--list: prints the stops of all tables: leave TABLE out",
        ),
    ],
)
def test_an_option_that_another_one_replaces_is_refused(arguments: list[str], text: str) -> None:
    """Otherwise one of them would be ignored."""
    assert _refused(arguments) == text


def test_credentials_of_the_environment_may_be_there_for_other_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only options of the command line are refused."""
    monkeypatch.setenv("CDC_USERNAME", "u")
    monkeypatch.setenv("CDC_PULSAR_AUTH_PARAMS", "token:x")
    assert "SEGMENT: CommitLog-7-1.log is no file" in _refused(_DECODE)
    listed = CliRunner().invoke(cli, ["connector", "dead-letters", *_PULSAR])
    assert "--auth-params" not in str(listed.exception)
