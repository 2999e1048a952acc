"""`cdc connector`: the report of waiting keys, topics that do not exist, and wrong arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import pytest
from click.testing import CliRunner

from cdc.commands.connector import connector, expiries_text
from schemas.errors import ConfigError
from source_connector.errors import AdminError
from source_connector.events.expiry_messages import WaitingExpiries
from source_connector.events.pulsar_access import PulsarOptions
from source_connector.events.pulsar_admin import PulsarAdmin
from tests.servers.pages import Page, page, serving

_NOWHERE: Final = ["--service-url", "pulsar://127.0.0.1:1", "--admin-url", "http://127.0.0.1:1"]
_TOPIC: Final = "/admin/v2/persistent/public/default/{}"


def _pages(*topics: str) -> Mapping[str, Page]:
    """The admin service's pages about these topics, which have no partitions. All others do not exist."""
    found = {f"{_TOPIC.format(each)}/partitions": page({"partitions": 0}) for each in topics}
    return found | {f"{_TOPIC.format(each)}/stats": page({}) for each in topics}


def test_what_waits_is_told_by_number_bytes_and_end() -> None:
    """The end is in UTC. Without waiting keys there is no end."""
    found = WaitingExpiries(keys=1234, messages=5, bytes=98_765, until_s=1_800_000_000)
    assert expiries_text(found) == "1,234 keys wait in 5 messages of 98,765 bytes, until 2027-01-15T08:00:00Z"
    assert expiries_text(WaitingExpiries(keys=0, messages=0, bytes=0, until_s=0)) == "no keys wait for an expiry"


@pytest.mark.parametrize("table", ["t", ".t", "ks."])
def test_a_table_without_its_keyspace_is_refused_before_the_broker_is_asked(table: str) -> None:
    """One line names the option."""
    arguments = ["expiries", *_NOWHERE, "--table", table]
    found = CliRunner().invoke(connector, arguments)
    assert isinstance(found.exception, ConfigError)
    assert str(found.exception) == f"--table: {table!r} is not KEYSPACE.TABLE"


_COMMANDS: Final = [["dead-letters"], ["resend"], ["expiries", "--table", "ks.t"]]


@pytest.mark.parametrize("url", ["foo", "pulsar://", "pulsar://broker:99999"])
@pytest.mark.parametrize("command", _COMMANDS, ids=" ".join)
def test_a_service_url_that_is_none_is_a_wrong_configuration(command: list[str], url: str) -> None:
    """One line has the URL."""
    with serving(_pages("cdc-dead-letters", "cdc-events-expiry-ks.t")) as admin_url:
        found = CliRunner().invoke(connector, [*command, "--service-url", url, "--admin-url", admin_url])
    assert isinstance(found.exception, ConfigError)
    assert str(found.exception).startswith(f"service URL: {url!r} cannot be used (")
    assert "\n" not in str(found.exception)
    without = CliRunner().invoke(connector, [*command, "--service-url", url])
    assert str(without.exception) == str(found.exception)


@pytest.mark.parametrize("name", ["", " ", "a/b", "persistent://public/default/", "persistent://a/b/c/d"])
def test_a_name_that_is_no_topics_is_refused(name: str) -> None:
    """The admin service answers such a path with a page of HTML."""
    done = CliRunner().invoke(connector, ["dead-letters", *_NOWHERE, "--topic", name])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).startswith(f"--topic: {name!r} is no name of a topic, such as cdc-dead-letters or ")


@pytest.mark.parametrize("command", _COMMANDS, ids=" ".join)
def test_a_topic_that_does_not_exist_is_told_and_no_client_reads_it(command: list[str]) -> None:
    """Pulsar would make the topic for a client, here for one that no broker answers."""
    with serving(_pages()) as admin_url:
        arguments = [*command, "--service-url", "pulsar://127.0.0.1:1", "--admin-url", admin_url]
        done = CliRunner().invoke(connector, arguments, catch_exceptions=False)
    said = {
        "expiries": "ks.t: no keys wait for an expiry: "
        "the topic persistent://public/default/cdc-events-expiry-ks.t does not exist",
    }.get(command[0], "no dead letters: the topic persistent://public/default/cdc-dead-letters does not exist")
    assert (done.exit_code, done.output) == (0, f"{said}\n")


def test_no_key_waits_on_an_expiry_topic_that_does_not_exist_for_programs_too() -> None:
    """The object has the same fields as for other tables."""
    with serving(_pages()) as admin_url:
        arguments = ["expiries", "--table", "ks.t", "--json", "--service-url", "pulsar://h:1", "--admin-url", admin_url]
        done = CliRunner().invoke(connector, arguments, catch_exceptions=False)
    topic = "persistent://public/default/cdc-events-expiry-ks.t"
    assert json.loads(done.stdout) == {
        "table": "ks.t",
        "topic": topic,
        "keys": 0,
        "messages": 0,
        "bytes": 0,
        "until_s": 0,
    }


@pytest.mark.parametrize("command", _COMMANDS, ids=" ".join)
def test_a_server_that_is_not_pulsars_does_not_say_that_there_are_none(command: list[str]) -> None:
    """It may answer 404 to everything. The error names the address or the option."""
    topic = _TOPIC.format("cdc-dead-letters"), _TOPIC.format("cdc-events-expiry-ks.t")
    with serving({f"{each}/partitions": Page(b"<h1>no</h1>", 404) for each in topic}) as admin_url:
        done = CliRunner().invoke(connector, [*command, "--service-url", "pulsar://h:1", "--admin-url", admin_url])
    assert isinstance(done.exception, AdminError)
    assert "404" in str(done.exception)
    for other in (Page(b"<h1>log in</h1>", 200), page({"reason": "Namespace not found"}, 404)):
        with serving({f"{each}/partitions": other for each in topic}) as admin_url:
            done = CliRunner().invoke(connector, [*command, "--service-url", "pulsar://h:1", "--admin-url", admin_url])
        assert isinstance(done.exception, AdminError)
        assert ("Namespace not found" if other.status == 404 else "no admin service of Pulsar") in str(done.exception)
    for wrong, said in (
        ("127.0.0.1:1", "is no address"),
        ("http://127.0.0.1:1", "--admin-url: http://127.0.0.1:1 does"),
    ):
        done = CliRunner().invoke(connector, [*command, "--service-url", "pulsar://h:1", "--admin-url", wrong])
        assert said in str(done.exception)


def test_topics_of_earlier_versions_of_pulsar_exist_by_their_statistics() -> None:
    """There, the number of partitions of a topic that does not exist is 0."""
    path = _TOPIC.format("t")
    pages = {f"{path}/partitions": page({"partitions": 0})}
    with serving(pages) as admin_url:
        admin = PulsarAdmin(admin_url, PulsarOptions(service_url="pulsar://h:1"))
        assert not admin.exists("persistent://public/default/t")
        pages[f"{path}/stats"] = page({})
        assert admin.exists("persistent://public/default/t")
        pages[f"{path}/partitions"] = page({"partitions": 4})
        del pages[f"{path}/stats"]
        assert admin.exists("persistent://public/default/t")
