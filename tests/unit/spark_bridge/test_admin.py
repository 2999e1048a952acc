"""Answers of an admin service that runs but refuses or fails; integration tests use a real one."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.errors import ConfigError
from spark_bridge.errors import AccessRefusedError, PulsarUnreachableError, TopicError
from spark_bridge.jobs.row_events import events_partitions
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.clearings import TopicClearings
from spark_bridge.topics.options import TOKEN_PLUGIN, BridgeOptions
from spark_bridge.topics.positions import Position
from tests.servers.certificates import CertificateAuthority
from tests.servers.http_brokers import Answering, Broker, Request, broker, in_order, owner_of_all, redirects_to


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A server with the answers that the test is parametrized with."""
    with broker(in_order(request.param)) as running:
        yield running


def options(server: Broker, **more: str) -> BridgeOptions:
    return BridgeOptions.from_mapping(
        {
            "serviceUrl": "pulsar://h:6650",
            "adminUrl": server.url,
            "topic": "t",
            "authPluginClassName": TOKEN_PLUGIN,
            "authParams": "token:tell-nobody",
            **more,
        }
    )


@pytest.mark.parametrize("server", [[(401, '{"reason": "Token expired"}')]], indirect=True)
def test_a_refused_token_is_no_missing_topic(server: Broker) -> None:
    """The token is sent. Its refusal becomes an error that names the options to check, and does not show the token."""
    with PulsarAdmin(options(server)) as admin, pytest.raises(PulsarUnreachableError) as error:
        admin.topic_partitions()
    assert [(each.path, each.authorization) for each in server.asked] == [
        ("/admin/v2/persistent/public/default/t/partitions", "Bearer tell-nobody")
    ]
    assert str(error.value) == (
        f"Pulsar at {server.url}: refuses access to persistent://public/default/t (Token expired); "
        "check authPluginClassName and authParams"
    )


@pytest.mark.parametrize("server", [[(401, '{"reason": "Token expired"}'), (404, '{"reason": "no"}')]], indirect=True)
def test_an_error_names_the_options_that_the_user_has_written(server: Broker) -> None:
    """They may be of a file with other names. The copy of the options for another topic keeps them."""
    names = {"authPluginClassName": "plugin", "authParams": "params", "topic": "--topic", "adminUrl": "--admin-url"}
    given = BridgeOptions.from_mapping(options(server).as_texts(), names).of_whole_topic("u")
    with PulsarAdmin(given) as admin:
        with pytest.raises(PulsarUnreachableError, match=r"\(Token expired\); check plugin and params$"):
            admin.topic_partitions()
        with pytest.raises(
            TopicError, match=r"does not exist \(no\); check the option --topic; the connector creates "
        ):
            admin.topic_partitions()
    away = BridgeOptions.from_mapping({**options(server).as_texts(), "adminUrl": "http://127.0.0.1:1"}, names)
    with (
        PulsarAdmin(away, patience_s=0) as admin,
        pytest.raises(PulsarUnreachableError, match=r"; start it or check the option --admin-url$"),
    ):
        admin.topic_partitions()
    with pytest.raises(ConfigError, match=r"^--admin-url: must be the admin service's address"):
        BridgeOptions.from_mapping({**options(server).as_texts(), "adminUrl": "h:1"}, names)


@pytest.mark.parametrize("server", [[(503, "starting"), (503, "starting"), (200, '{"partitions": 2}')]], indirect=True)
def test_a_service_that_is_starting_is_asked_again(server: Broker) -> None:
    """A broker that hands over a topic answers 5xx for a moment."""
    with PulsarAdmin(options(server)) as admin:
        assert admin.topic_partitions() == [
            "persistent://public/default/t-partition-0",
            "persistent://public/default/t-partition-1",
        ]
    assert len(server.asked) == 3


@pytest.mark.parametrize("server", [[(503, "starting")]], indirect=True)
def test_patience_ends(server: Broker) -> None:
    """After `patience_s` the last answer is the error."""
    with (
        PulsarAdmin(options(server), patience_s=0.3) as admin,
        pytest.raises(PulsarUnreachableError, match="answers 503"),
    ):
        admin.topic_partitions()


@pytest.mark.parametrize("server", [[(404, '{"reason": "Namespace not found"}')]], indirect=True)
def test_what_is_missing_is_named(server: Broker) -> None:
    """Pulsar's own reason distinguishes a missing namespace from a missing topic."""
    with PulsarAdmin(options(server)) as admin, pytest.raises(TopicError) as error:
        admin.topic_partitions()
    assert str(error.value) == (
        "topic persistent://public/default/t: does not exist (Namespace not found); check the option topic; the"
        " connector creates a data topic with its first record"
    )


@pytest.mark.parametrize("server", [[(404, '{"reason": "Topic not found"}')]], indirect=True)
def test_a_backfill_of_a_table_without_cdc_is_told_the_statement(server: Broker) -> None:
    """The events topic must not be made by hand: the agent makes it, with its partitions and subscription."""
    with pytest.raises(
        TopicError, match=r'an agent makes it when shop\."Orders" has CDC\. Run ALTER TABLE shop\."Orders" WITH'
    ):
        events_partitions(options(server), "shop", "Orders")


TOPIC = "persistent://public/default/t"
STORAGE = {
    "ledgers": [{"ledgerId": 7, "entries": 3, "size": 30}],
    "currentLedgerEntries": 0,
    "cursors": {"s": {"markDeletePosition": "7:1"}},
}


def test_the_broker_that_owns_a_topic_is_asked() -> None:
    """Without a proxy, each broker redirects to the owner of a topic; the owner gets the credentials, too."""
    with broker(owner_of_all(STORAGE)) as owner, broker(redirects_to(owner.url)) as first:
        with PulsarAdmin(options(first)) as admin:
            assert admin.storage(TOPIC)[1] == {"s": Position(7, 1)}
            admin.keep_subscription(TOPIC, "s", Position(7, 2))
        path = "/admin/v2/persistent/public/default/t"
        earliest = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
        moved = {"ledgerId": 7, "entryId": 2, "partitionIndex": -1}
        assert owner.asked == [
            Request("GET", f"{path}/internalStats", None, "Bearer tell-nobody"),
            Request("PUT", f"{path}/subscription/s", earliest, "Bearer tell-nobody"),
            Request("POST", f"{path}/subscription/s/resetcursor", moved, "Bearer tell-nobody"),
        ]


def test_a_cursor_has_the_name_of_its_subscription() -> None:
    """Pulsar URL-encodes the name of the cursor."""
    cursors = {"team%2Fsub+one%7E": {"markDeletePosition": "7:1"}}
    with broker(owner_of_all(STORAGE | {"cursors": cursors})) as owner, PulsarAdmin(options(owner)) as admin:
        assert admin.storage(TOPIC)[1] == {"team/sub one~": Position(7, 1)}


@pytest.mark.parametrize("is_trusted", [True, False])
def test_an_encrypted_owner_is_asked_with_the_certificates_that_are_trusted(tmp_path: Path, is_trusted: bool) -> None:
    """This also holds if the first broker is not encrypted."""
    authority = CertificateAuthority(tmp_path)
    authority.issue("broker", "127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "broker.pem", tmp_path / "broker.key")
    trusted = {"tlsTrustCertsFilePath": str(authority.trusted)} if is_trusted else {}
    with (
        broker(owner_of_all(STORAGE), tls) as owner,
        broker(redirects_to(owner.url)) as first,
        PulsarAdmin(options(first, **trusted), patience_s=0.1) as admin,
    ):
        if is_trusted:
            assert admin.storage(TOPIC)[1] == {"s": Position(7, 1)}
        else:
            with pytest.raises(PulsarUnreachableError, match=r"certificate verify failed.*check tlsTrustCertsFilePath"):
                admin.storage(TOPIC)
        assert [each.authorization for each in owner.asked] == ["Bearer tell-nobody"] * is_trusted


@pytest.mark.parametrize(
    ("answering", "reason"),
    [
        (redirects_to("ftp://127.0.0.1"), "which is no address of http or https; check what the brokers advertise"),
        (lambda request: (307, {}, None), "answers 307 to /persistent/public/default/t/lastMessageId (HTTP 307)"),
        (
            redirects_to("http://127.0.0.1:1"),
            "redirects to http://127.0.0.1:1, which does not answer ([",
        ),
    ],
    ids=["no address", "no target", "nobody there"],
)
def test_a_redirect_that_leads_nowhere_is_no_answer(answering: Answering, reason: str) -> None:
    """An empty body is no position: the error says at which address the redirects ended."""
    with (
        broker(answering) as first,
        PulsarAdmin(options(first), patience_s=0.1) as admin,
        pytest.raises(PulsarUnreachableError) as raised,
    ):
        admin.last_position(TOPIC)
    assert str(raised.value).startswith(f"Pulsar at {first.url}: ") and reason in str(raised.value)


def test_brokers_that_disagree_for_a_moment_are_asked_again() -> None:
    """While a topic moves, two brokers may each redirect to the other one."""
    with broker(owner_of_all(None)) as one, broker(redirects_to(one.url)) as two:

        def until_the_third(request: Request) -> tuple[int, dict[str, str], object]:
            if len(one.asked) > 2:
                return 200, {}, {"ledgerId": 7, "entryId": 2}
            return 307, {"Location": two.url + request.path}, None

        one.answering = until_the_third
        with PulsarAdmin(options(one)) as admin:
            assert admin.last_position(TOPIC) == Position(7, 2)


@pytest.mark.parametrize("server", [[(404, '{"reason": "Topic not found"}')]], indirect=True)
def test_without_a_topic_of_schema_changes_there_is_nothing_to_follow(server: Broker) -> None:
    with TopicClearings(options(server)) as clearings:
        assert clearings.read() == ()
    assert server.asked[0].path == "/admin/v2/persistent/public/default/cdc-events-schema-changes/partitions"
    asked = len(server.asked)
    with TopicClearings(options(server, schemaChangesTopic="none")) as clearings:
        assert clearings.read() == ()
    assert len(server.asked) == asked


@pytest.mark.parametrize("server", [[(403, '{"reason": "not yours"}')]], indirect=True)
def test_a_refused_topic_of_schema_changes_is_an_error_if_it_was_named(
    server: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the job continues, and one line says so: it worked before it read this topic."""
    with TopicClearings(options(server)) as clearings:
        assert [clearings.read(), clearings.read()] == [(), ()]
    assert [each.getMessage().partition(":")[0] for each in caplog.records] == [
        "truncations and drops are not followed"
    ]
    with (
        TopicClearings(options(server, schemaChangesTopic="changes")) as clearings,
        pytest.raises(AccessRefusedError, match="refuses access to persistent://public/default/changes"),
    ):
        clearings.read()
