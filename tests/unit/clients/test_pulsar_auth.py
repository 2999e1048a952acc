"""Credentials in the form of Pulsar's clients, for the broker and for the admin service."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from clients.client_credentials import ClientCredentials, IssuedToken
from clients.pulsar_auth import PulsarAuth
from clients.tls import tls_context
from schemas.errors import ConfigError

_JAVA = "org.apache.pulsar.client.impl.auth.Authentication"


@pytest.mark.parametrize("plugin", ["token", f"{_JAVA}Token"])
@pytest.mark.parametrize("params", ["token:abc", "abc", "file:///{}", "file:{}"])
def test_a_token_stands_in_the_option_or_in_a_file(plugin: str, params: str, tmp_path: Path) -> None:
    """A file is read for each request, because it may be replaced. Its last line break is not part of the token."""
    file = tmp_path / "token"
    file.write_text("abc\n")
    auth = PulsarAuth(plugin, params.format(str(file).removeprefix("/" if "///" in params else "")), "authParams")
    assert auth.http_headers() == {"Authorization": "Bearer abc"}
    file.write_text("new\n")
    assert auth.http_headers() == {"Authorization": f"Bearer {'new' if 'file' in params else 'abc'}"}


def test_a_token_of_oauth2_is_kept_until_shortly_before_its_end() -> None:
    """A token that ends at once is used for one request."""
    issued = [IssuedToken(text="third", usable_s=60), IssuedToken(text="second", usable_s=60)]
    issued.append(IssuedToken(text="first", usable_s=0))

    def issue(credentials: ClientCredentials) -> IssuedToken:
        assert credentials.issuer_url == "https://issuer"
        return issued.pop()

    auth = PulsarAuth("oauth2", '{"issuer_url": "https://issuer", "private_key": "/key"}', "authParams", issue)
    assert [auth.http_headers()["Authorization"] for _ in range(3)] == ["Bearer first", *["Bearer second"] * 2]


@pytest.mark.parametrize(
    ("plugin", "reason"),
    [
        ("basic", 'for AuthenticationBasic is JSON: {"userId": "...", "password": "..."}'),
        ("tls", "for AuthenticationTls is 'tlsCertFile:/path,tlsKeyFile:/path'"),
    ],
)
def test_parameters_of_another_form_are_refused_without_being_shown(plugin: str, reason: str) -> None:
    """The value may be a secret that was given for the wrong option."""
    auth = PulsarAuth(plugin, "geheim", "authParams")
    with pytest.raises(ConfigError) as error:
        auth.user() if plugin == "basic" else auth.use_certificate(ssl.create_default_context())
    assert str(error.value) == f"authParams: {reason}"
    assert "geheim" not in repr(auth)


@pytest.mark.parametrize(
    ("check_hostname", "allow_insecure", "expected"),
    [
        (True, False, (True, ssl.CERT_REQUIRED)),
        (False, False, (False, ssl.CERT_REQUIRED)),
        (True, True, (False, ssl.CERT_NONE)),
    ],
)
def test_a_certificate_is_checked_unless_it_is_told_otherwise(
    check_hostname: bool, allow_insecure: bool, expected: tuple[bool, ssl.VerifyMode]
) -> None:
    """The name and the authority of the certificate are checked."""
    context = tls_context("tls", None, check_hostname=check_hostname, allow_insecure=allow_insecure)
    assert (context.check_hostname, context.verify_mode) == expected


def test_a_file_without_certificates_is_named_with_its_option(tmp_path: Path) -> None:
    """The error is one line."""
    empty = tmp_path / "empty.pem"
    empty.touch()
    with pytest.raises(ConfigError, match=r"^tlsTrustCertsFilePath: .*empty.pem holds no certificates in PEM \("):
        tls_context("tlsTrustCertsFilePath", empty)
