"""One set of options authenticates at the broker and at the admin service."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import ConfigError
from spark_bridge.errors import PulsarUnreachableError, TopicReadError
from spark_bridge.reading.topic_reader import TopicRange, read_range
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.authentication import client_authentication, http_certificate, http_headers, verification
from spark_bridge.topics.options import BASIC_PLUGIN, OAUTH2_PLUGIN, TLS_PLUGIN, TOKEN_PLUGIN, BridgeOptions
from spark_bridge.topics.positions import Position
from tests.servers.certificates import CertificateAuthority
from tests.servers.http_brokers import broker, owner_of_all
from tests.servers.token_issuer import CLIENT_SECRET, CONFIGURATION_PATH, TOKEN_PATH, Issuer, key_file, token_issuer


def options(plugin: str | None = None, params: str | None = None, **more: str) -> BridgeOptions:
    given = {"serviceUrl": "pulsar://h:6650", "adminUrl": "http://h:8080", "topic": "t", **more}
    if plugin is not None and params is not None:
        given |= {"authPluginClassName": plugin, "authParams": params}
    return BridgeOptions.from_mapping(given)


def test_nothing_is_said_without_authentication() -> None:
    """No header, no certificate, no plugin."""
    assert client_authentication(options()) is None
    assert http_headers(options()) == {}
    assert http_certificate(options()) is None


def test_a_token_given_or_in_a_file(tmp_path: Path) -> None:
    """`token:` contains the token, `file://` names a file with it; a final newline is ignored."""
    file = tmp_path / "token"
    file.write_text("abc\n")
    for params in ("token:abc", f"file://{file}"):
        assert http_headers(options(TOKEN_PLUGIN, params)) == {"Authorization": "Bearer abc"}
        assert client_authentication(options(TOKEN_PLUGIN, params)) is not None


def test_user_and_password() -> None:
    """AuthenticationBasic: RFC 7617 for the admin service."""
    params = '{"userId": "Aladdin", "password": "open sesame"}'
    assert http_headers(options(BASIC_PLUGIN, params)) == {"Authorization": "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="}
    assert client_authentication(options(BASIC_PLUGIN, params)) is not None


def test_a_certificate_and_its_key() -> None:
    """AuthenticationTls takes the paths as in Pulsar's client.conf."""
    assert http_certificate(options(TLS_PLUGIN, "tlsCertFile:/c.pem,tlsKeyFile:/k.pem")) == ("/c.pem", "/k.pem")


def test_a_certificate_that_is_not_there_is_one_line() -> None:
    """This also holds for connections that the client library does not make."""
    with pytest.raises(ConfigError, match=r"^authParams: the client certificate cannot be used \(.*No such file"):
        verification(options(TLS_PLUGIN, "tlsCertFile:/nowhere/c.pem,tlsKeyFile:/nowhere/k.pem"))


@pytest.mark.parametrize(
    ("plugin", "params", "message"),
    [
        (TOKEN_PLUGIN, "secret", "authParams: for AuthenticationToken begins with 'token:' or 'file:'"),
        (
            TOKEN_PLUGIN,
            "file:///nowhere",
            "authParams: the token file /nowhere cannot be read (No such file or directory)",
        ),
        (TLS_PLUGIN, "secret", "authParams: for AuthenticationTls is 'tlsCertFile:/path,tlsKeyFile:/path'"),
        (BASIC_PLUGIN, "secret", 'authParams: for AuthenticationBasic is JSON: {"userId": "...", "password": "..."}'),
    ],
)
def test_wrong_parameters_say_the_right_form_and_not_the_secret(plugin: str, params: str, message: str) -> None:
    """The error is one line for each plugin."""
    given = options(plugin, params)
    with pytest.raises(ConfigError) as error:
        http_certificate(given) if plugin == TLS_PLUGIN else http_headers(given)
    assert str(error.value) == message


def oauth2(issuer_url: str, private_key: str, **more: str) -> BridgeOptions:
    params = {"issuer_url": issuer_url, "private_key": private_key, "audience": "urn:pulsar"}
    return options(OAUTH2_PLUGIN, json.dumps(params), **more)


def test_a_token_of_oauth2_is_asked_for_once_until_it_ends(tmp_path: Path) -> None:
    """Every micro-batch asks the admin service, and issuers count tokens. The broker's client gets its own."""
    with token_issuer() as issuer, broker(owner_of_all({"partitions": 2})) as admin_service:
        given = oauth2(issuer.url, key_file(tmp_path / "key.json", "reader"), adminUrl=admin_service.url)
        for _ in range(2):
            with PulsarAdmin(given) as admin:
                assert len(admin.topic_partitions()) == 2
        assert [each.authorization for each in admin_service.asked] == ["Bearer reader-1"] * 2
        issuer.expires_in = 30
        short = oauth2(issuer.url, key_file(tmp_path / "short.json", "short"))
        assert [http_headers(short)["Authorization"] for _ in range(2)] == ["Bearer short-2", "Bearer short-3"]
        assert {form["audience"][0] for form in issuer.forms} == {"urn:pulsar"}
        assert client_authentication(given) is not None


def test_an_issuer_is_trusted_as_the_broker_is(tmp_path: Path) -> None:
    """`tlsTrustCertsFilePath` counts for the issuer. If it is missing or has no certificates, the error names it."""
    authority = CertificateAuthority(tmp_path)
    authority.issue("issuer", "127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "issuer.pem", tmp_path / "issuer.key")
    with token_issuer(tls=tls) as issuer:
        key = key_file(tmp_path / "key.json", "reader")
        trusting = oauth2(issuer.url, key, tlsTrustCertsFilePath=str(authority.trusted))
        assert http_headers(trusting) == {"Authorization": "Bearer reader-1"}
        with pytest.raises(
            PulsarUnreachableError, match=r"certificate verify failed: .*; check tlsTrustCertsFilePath$"
        ):
            http_headers(oauth2(issuer.url, key))
        with pytest.raises(ConfigError, match=r"^tlsTrustCertsFilePath: /nowhere holds no certificates in PEM \("):
            http_headers(oauth2(issuer.url, key, tlsTrustCertsFilePath="/nowhere"))


def _is_away(issuer: Issuer) -> None:
    issuer.shutdown()
    issuer.server_close()


def _refuses(issuer: Issuer) -> None:
    issuer.answers[TOKEN_PATH] = (401, b'{"error": "invalid_client"}')


def _is_a_page(issuer: Issuer) -> None:
    issuer.answers[CONFIGURATION_PATH] = (200, b"<html>")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (_is_away, "it does not answer ([Errno 111] Connection refused); start it or check issuer_url in authParams"),
        (
            _refuses,
            "it answers 401 (invalid_client); check the content of the key file, and audience and scope in authParams",
        ),
        (_is_a_page, "its answer is not a JSON object; check issuer_url in authParams"),
    ],
)
def test_an_issuer_that_gives_no_token_is_told(changed: Callable[[Issuer], None], reason: str, tmp_path: Path) -> None:
    """The error comes before a request to the admin service, in one line with both addresses."""
    with token_issuer() as issuer:
        changed(issuer)
        given = oauth2(issuer.url, key_file(tmp_path / "key.json", "refused"))
        with pytest.raises(PulsarUnreachableError) as error:
            PulsarAdmin(given, patience_s=0.1)
    assert str(error.value) == (
        f"Pulsar at http://h:8080: is not asked, for the OAuth2 issuer {issuer.url} gives no token: {reason}"
    )


def test_an_issuer_that_is_starting_is_asked_again(tmp_path: Path) -> None:
    """The issuer is retried for as long as the admin service would be; then its last answer becomes the error."""
    with token_issuer() as issuer:
        issuer.answers[TOKEN_PATH] = (503, b"")
        given = oauth2(issuer.url, key_file(tmp_path / "key.json", "patient"))
        with pytest.raises(PulsarUnreachableError, match="it answers 503"):
            http_headers(given, patience_s=0.5)
        assert len(issuer.forms) > 1


def test_a_key_file_that_is_not_there_is_told_for_broker_and_admin_service() -> None:
    """The client itself would only report that it cannot authenticate. The file must be on every worker."""
    given = oauth2("http://127.0.0.1:1", "file:///nowhere/key.json")
    for ask in (client_authentication, http_headers):
        with pytest.raises(ConfigError) as error:
            ask(given)
        assert str(error.value) == (
            "authParams: the key file /nowhere/key.json cannot be read (No such file or directory)"
        )


def test_a_task_that_gets_no_token_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The client in a worker asks for its own token: the error names the options, and no line shows the secret."""
    with token_issuer() as issuer, socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"pulsar://127.0.0.1:{listening.getsockname()[1]}"
        key = key_file(tmp_path / "key.json", "reader", "another secret")
        given = oauth2(issuer.url, key, serviceUrl=address, operationTimeoutSeconds="5")
        span = TopicRange("t", "t-partition-0", 0, Position(1, 0), Position(1, 9))
        with pytest.raises(TopicReadError) as error:
            list(read_range(given, span))
        assert [form["client_secret"] for form in issuer.forms[:1]] == [["another secret"]]
    assert str(error.value) == (
        f"topic partition t-partition-0 after position 1:0: the broker at {address} does not let us in, or the issuer of "
        "tokens gives none (Pulsar error: AuthenticationError); check authPluginClassName and authParams, and that workers "
        "reach the issuer"
    )
    assert "secret" not in "".join(capfd.readouterr())


def test_no_secret_of_oauth2_prints(tmp_path: Path) -> None:
    """Neither the secret of an inline key nor a token is shown."""
    params = json.dumps({"issuer_url": "https://h", "private_key": f"data:application/json;base64,{CLIENT_SECRET}"})
    given = options(OAUTH2_PLUGIN, params)
    assert CLIENT_SECRET not in f"{given!r} {given}"
    with pytest.raises(ConfigError) as error:
        client_authentication(given)
    assert CLIENT_SECRET not in str(error.value)
