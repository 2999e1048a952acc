"""One set of options for the broker's protocol and the admin service."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import ConfigError
from spark_bridge.topics.authentication import client_authentication, http_certificate, http_headers
from spark_bridge.topics.options import BASIC_PLUGIN, TLS_PLUGIN, TOKEN_PLUGIN, BridgeOptions


def options(plugin: str | None = None, params: str | None = None) -> BridgeOptions:
    given = {"serviceUrl": "pulsar://h:6650", "adminUrl": "http://h:8080", "topic": "t"}
    if plugin is not None and params is not None:
        given |= {"authPluginClassName": plugin, "authParams": params}
    return BridgeOptions.from_mapping(given)


def test_nothing_is_said_without_authentication() -> None:
    """No header, no certificate, no plugin."""
    assert client_authentication(options()) is None
    assert http_headers(options()) == {}
    assert http_certificate(options()) is None


def test_a_token_given_or_in_a_file(tmp_path: Path) -> None:
    """`token:` carries it, `file://` names a file; a last newline is not part of it."""
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
    """AuthenticationTls: the paths of Pulsar's client.conf."""
    assert http_certificate(options(TLS_PLUGIN, "tlsCertFile:/c.pem,tlsKeyFile:/k.pem")) == ("/c.pem", "/k.pem")


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
    """One line for each plugin."""
    given = options(plugin, params)
    with pytest.raises(ConfigError) as error:
        http_certificate(given) if plugin == TLS_PLUGIN else http_headers(given)
    assert str(error.value) == message
