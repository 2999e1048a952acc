"""`cdc connector expiries`: its report of waiting keys, and wrong arguments of all commands."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from cdc.commands.connector import connector, expiries_text
from schemas.errors import ConfigError
from source_connector.events.expiry_messages import WaitingExpiries


def test_what_waits_is_told_by_number_bytes_and_end() -> None:
    """The end is in UTC. Without waiting keys there is no end."""
    found = WaitingExpiries(keys=1234, messages=5, bytes=98_765, until_s=1_800_000_000)
    assert expiries_text(found) == "1,234 keys wait in 5 messages of 98,765 bytes, until 2027-01-15T08:00:00Z"
    assert expiries_text(WaitingExpiries(keys=0, messages=0, bytes=0, until_s=0)) == "no keys wait for an expiry"


@pytest.mark.parametrize("table", ["t", ".t", "ks."])
def test_a_table_without_its_keyspace_is_refused_before_the_broker_is_asked(table: str) -> None:
    """One line names the option."""
    arguments = ["expiries", "--service-url", "pulsar://127.0.0.1:1", "--table", table]
    found = CliRunner().invoke(connector, arguments)
    assert isinstance(found.exception, ConfigError)
    assert str(found.exception) == f"--table: {table!r} is not KEYSPACE.TABLE"


@pytest.mark.parametrize("url", ["foo", "pulsar://", "pulsar://broker:99999"])
@pytest.mark.parametrize("command", [["dead-letters"], ["resend"], ["expiries", "--table", "ks.t"]], ids=" ".join)
def test_a_service_url_that_is_none_is_a_wrong_configuration(command: list[str], url: str) -> None:
    """One line has the URL."""
    found = CliRunner().invoke(connector, [*command, "--service-url", url])
    assert isinstance(found.exception, ConfigError)
    assert str(found.exception).startswith(f"service URL: {url!r} cannot be used (")
    assert "\n" not in str(found.exception)
