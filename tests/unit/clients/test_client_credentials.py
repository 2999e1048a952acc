"""OAuth2 client credentials: their parameters, the requests to the issuer, and errors for its refusals."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import pytest

from clients.client_credentials import ClientCredentials, IssuedToken, TokenIssueError, issued_token
from schemas.errors import ConfigError
from tests.servers.certificates import CertificateAuthority
from tests.servers.token_issuer import CLIENT_SECRET, CONFIGURATION_PATH, TOKEN_PATH, Issuer, key_file, token_issuer

_GIVEN = {"issuer_url": "https://auth.example.com", "private_key": "file:///key.json"}
_INLINE = "data:application/json;base64,"


def _credentials(**given: str) -> ClientCredentials:
    return ClientCredentials.parse(json.dumps(given), "authParams")


def _issued(credentials: ClientCredentials, verify: ssl.SSLContext | bool = True) -> IssuedToken:
    with httpx.Client(verify=verify) as client:

        def ask(method: str, address: str, form: Mapping[str, str] | None) -> httpx.Response:
            return client.request(method, address, data=form)

        return issued_token(credentials, ask)


@pytest.mark.parametrize(
    ("params", "problems"),
    [
        (
            "tell-nobody",
            [
                'for AuthenticationOAuth2 is JSON: {"issuer_url": "https://...", "private_key": "file:///path/key.json", '
                '"audience": "...", "scope": "..."}'
            ],
        ),
        ('["tell-nobody"]', ["for AuthenticationOAuth2 is JSON: "]),
        ("[" * 100_000, ["for AuthenticationOAuth2 is JSON: "]),
        (
            '{"issuerUrl": "https://h", "client_secret": "tell-nobody"}',
            [
                "has no issuer_url, the address of the issuer of tokens (issuerUrl is the name of Java's client)",
                "has no private_key, where the file with client_id and client_secret is",
            ],
        ),
        (
            '{"issuer_url": "auth.example.com", "private_key": "", "audience": null, "scope": ["tell-nobody"]}',
            [
                "has an empty private_key, where the file with client_id and client_secret is",
                "has no text as audience",
                "has no text as scope",
                "has an issuer_url that is no address such as https://auth.example.com",
            ],
        ),
        (
            '{"issuer_url": "https://u:tell-nobody@h", "private_key": "{\\"client_secret\\": \\"tell-nobody\\"}"}',
            [
                "has an issuer_url that is no address such as https://auth.example.com",
                "has a private_key that is no path, file:///path or data:application/json;base64,...",
            ],
        ),
    ],
)
def test_wrong_parameters_are_all_told_and_never_quoted(params: str, problems: list[str]) -> None:
    """One line for each problem, with the option's name."""
    with pytest.raises(ConfigError) as error:
        ClientCredentials.parse(params, "authParams")
    assert len(error.value.problems) == len(problems)
    for found, wanted in zip(error.value.problems, problems, strict=True):
        assert str(found).startswith(f"authParams: {wanted}")
    assert "tell-nobody" not in str(error.value)


def test_a_client_is_given_what_is_known_only() -> None:
    """Other parameters may be for another client or another flow."""
    given = _credentials(**_GIVEN, type="client_credentials", audience="a", tokenEndpointAuthMethod="tls_client_auth")
    assert json.loads(given.params) == {**_GIVEN, "audience": "a"}


def test_no_secret_prints() -> None:
    """A private key may be inline, and a token may be among a traceback's variables."""
    key = base64.b64encode(json.dumps({"client_id": "writer", "client_secret": CLIENT_SECRET}).encode()).decode()
    given = _credentials(**{**_GIVEN, "private_key": f"{_INLINE}{key}"})
    assert given.key().client_secret == CLIENT_SECRET
    shown = f"{given!r} {given.key()!r} {IssuedToken(text='tell-nobody', usable_s=1)!r}"
    assert [secret for secret in (CLIENT_SECRET, key, "tell-nobody") if secret in shown] == []


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_a_key_file_is_named_as_pulsar_does(form: str, tmp_path: Path) -> None:
    """The name is a path, or a file URL."""
    key_file(tmp_path / "key.json", "writer")
    found = _credentials(**{**_GIVEN, "private_key": form.format(tmp_path / "key.json")}).key()
    assert (found.client_id, found.client_secret) == ("writer", CLIENT_SECRET)


@pytest.mark.parametrize(
    ("place", "content", "problem"),
    [
        ("file://{}/none.json", None, "the key file {}/none.json cannot be read (No such file or directory)"),
        ("tell-nobody", None, "the key that private_key names cannot be read (No such file or directory)"),
        ("{}/key", b"\xff", "the key file {}/key cannot be read (it is no UTF-8 text)"),
        ("{}/key", b"tell-nobody", "the key file {}/key is not JSON with client_id and client_secret"),
        ("{}/key", b"[1]", "the key file {}/key is not JSON with client_id and client_secret"),
        (
            "{}/key",
            b'{"client_id": "", "client_secret": "tell-nobody"}',
            "the key file {}/key is not JSON with client_id and client_secret",
        ),
        (f"{_INLINE}x", None, "the key that private_key names cannot be read (it is no UTF-8 text)"),
        (f"{_INLINE}e30=", None, "the key that private_key names is not JSON with client_id and client_secret"),
    ],
)
def test_a_key_that_cannot_be_used_is_one_line(place: str, content: bytes | None, problem: str, tmp_path: Path) -> None:
    """The line has the path of the file, but not its content."""
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    given = _credentials(**{**_GIVEN, "private_key": place.format(tmp_path)})
    with pytest.raises(ConfigError) as error:
        given.key()
    assert str(error.value) == f"authParams: {problem.format(tmp_path)}"


def test_an_issuer_is_asked_as_pulsars_client_asks(tmp_path: Path) -> None:
    """The URL of the issuer may end in a slash. Missing parameters are not sent.

    The token may be used until a minute before its end.
    """
    with token_issuer() as issuer:
        key = key_file(tmp_path / "key.json", "writer")
        whole = _credentials(issuer_url=f"{issuer.url}/", private_key=key, audience="urn:pulsar", scope="read write")
        found = _issued(whole)
        assert (found.text, found.usable_s) == ("writer-1", 3540)
        _issued(_credentials(issuer_url=issuer.url, private_key=key))
    form = {"grant_type": ["client_credentials"], "client_id": ["writer"], "client_secret": [CLIENT_SECRET]}
    assert issuer.forms == [{**form, "audience": ["urn:pulsar"], "scope": ["read write"]}, form]


@pytest.mark.parametrize("expires_in", [None, "soon", 30, -1, [1], 10**400])
def test_a_token_of_no_known_life_is_used_once(expires_in: object, tmp_path: Path) -> None:
    """The same holds for a token that ends within a minute."""
    with token_issuer() as issuer:
        issuer.expires_in = expires_in
        given = _credentials(issuer_url=issuer.url, private_key=key_file(tmp_path / "key.json", "writer"))
        assert _issued(given).usable_s == 0


def _says(path: str, status: int, content: bytes) -> Callable[[Issuer], None]:
    return lambda issuer: issuer.answers.update({path: (status, content)})


_CHECK_KEY = "check the content of the key file, and audience and scope in authParams"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (_says(CONFIGURATION_PATH, 404, b""), "it answers 404; check issuer_url in authParams"),
        (
            _says(CONFIGURATION_PATH, 200, b"<html>"),
            "its answer is not a JSON object; check issuer_url in authParams",
        ),
        (
            _says(CONFIGURATION_PATH, 200, b"[" * 100_000),
            "its answer is not a JSON object; check issuer_url in authParams",
        ),
        (
            _says(CONFIGURATION_PATH, 200, b'{"token_endpoint": "/token"}'),
            "its openid-configuration names no token_endpoint; check issuer_url in authParams",
        ),
        (
            _says(TOKEN_PATH, 403, b'{"error": "access_denied", "error_description": "unknown\\naudience"}'),
            f"it answers 403 (access_denied: unknown audience); {_CHECK_KEY}",
        ),
        (
            _says(TOKEN_PATH, 400, b'{"error": ["tell-nobody"], "error_description": 1}'),
            f"it answers 400 (['****']: 1); {_CHECK_KEY}",
        ),
        (_says(TOKEN_PATH, 200, b"tell-nobody"), f"its answer is not a JSON object; {_CHECK_KEY}"),
        (_says(TOKEN_PATH, 200, b'{"access_token": "tell-nobody\\n"}'), "has no access_token that a header can carry"),
        (_says(TOKEN_PATH, 200, b'{"expires_in": 1}'), "has no access_token that a header can carry"),
    ],
)
def test_an_issuer_that_gives_no_token_is_one_line(
    changed: Callable[[Issuer], None], reason: str, tmp_path: Path
) -> None:
    """The line has the issuer's URL, its reason, and the options to check."""
    with token_issuer() as issuer:
        changed(issuer)
        given = _credentials(issuer_url=issuer.url, private_key=key_file(tmp_path / "key.json", "writer"))
        with pytest.raises(TokenIssueError) as error:
            _issued(given)
    text = str(error.value)
    assert text.startswith(f"the OAuth2 issuer {issuer.url} gives no token: ")
    assert text.endswith(reason)
    assert "\n" not in text and CLIENT_SECRET not in text


def test_an_issuer_that_repeats_the_secret_is_not_quoted(tmp_path: Path) -> None:
    """Some issuers return the secret in their error."""
    with token_issuer() as issuer:
        key = key_file(tmp_path / "key.json", "writer", "another secret")
        with pytest.raises(TokenIssueError) as error:
            _issued(_credentials(issuer_url=issuer.url, private_key=key))
    assert error.value.reason == f"it answers 401 (invalid_client: no client has the secret ****); {_CHECK_KEY}"


def test_a_secret_is_not_sent_in_the_clear_after_tls(tmp_path: Path) -> None:
    """An issuer with https names a token endpoint with http."""
    authority = CertificateAuthority(tmp_path)
    authority.issue("issuer", "127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "issuer.pem", tmp_path / "issuer.key")
    with token_issuer() as clear, token_issuer(tls=tls) as issuer:
        described = json.dumps({"token_endpoint": f"{clear.url}{TOKEN_PATH}"}).encode()
        issuer.answers[CONFIGURATION_PATH] = (200, described)
        given = _credentials(issuer_url=issuer.url, private_key=key_file(tmp_path / "key.json", "writer"))
        with pytest.raises(TokenIssueError, match="is not encrypted, so the secret is not sent there"):
            _issued(given, ssl.create_default_context(cafile=str(authority.trusted)))
        assert clear.forms == []
