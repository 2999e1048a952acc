"""OAuth2's client credentials flow (RFC 6749, 4.4), with the parameters and the key file of Pulsar's clients.

The caller provides the HTTP client. No error shows a secret: parameters and keys are never quoted, and answers of the
issuer only without the client's secret.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from clients.redirects import Answer
from schemas.errors import CdcError, ConfigError, ConfigProblem

__all__ = ["Ask", "ClientCredentials", "ClientKey", "IssuedToken", "TokenIssueError", "issued_token"]

_FORM: Final = (
    'for AuthenticationOAuth2 is JSON: {"issuer_url": "https://...", "private_key": "file:///path/key.json", '
    '"audience": "...", "scope": "..."}'
)
_NEEDED: Final = {
    "issuer_url": ("issuerUrl", "the address of the issuer of tokens"),
    "private_key": ("privateKey", "where the file with client_id and client_secret is"),
}
"""Required parameters: the name in Java's client, and a description."""

_INLINE: Final = "data:application/json;base64,"
_ISSUER: Final = re.compile(r"https?://[^/@\s?#]+(/[^@\s?#]*)?$")  # no user and password, as it is shown
_TOKEN: Final = re.compile(r"[!-~]+")
_MOST_SHOWN: Final = 200
_EARLY_S: Final = 60.0
"""A token is replaced this long before its end."""


Ask = Callable[[str, str, Mapping[str, str] | None], Answer]
"""Sends one request: method, address, fields of a form. Raises TokenIssueError if there is no answer."""


class TokenIssueError(CdcError):
    """The issuer gives no token, now or permanently."""

    def __init__(self, issuer: str, reason: str) -> None:
        self.issuer = issuer
        self.reason = reason
        super().__init__(issuer, reason)

    def __str__(self) -> str:
        return f"the OAuth2 issuer {self.issuer} gives no token: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientKey:
    """The content of a key file."""

    client_id: str
    client_secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken:
    """A token, and the seconds from its request for which it may be used, a bit less than it is valid. 0: only once."""

    text: str = field(repr=False)
    usable_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """Parameters of a token request. `option` is their option, for errors. `private_key` may be the secret itself."""

    option: str
    issuer_url: str
    private_key: str = field(repr=False)
    audience: str = ""
    scope: str = ""

    @classmethod
    def parse(cls, params: str, option: str) -> ClientCredentials:
        """The credentials in the JSON value of `option`. Raises ConfigError with all problems."""
        given = _loaded(params)
        if given is None:
            raise ConfigError.of(option, _FORM)
        reasons = list(_wrong(given))
        if reasons:
            raise ConfigError([ConfigProblem(option=option, reason=each) for each in reasons])
        found = {name: str(given.get(name, "")) for name in ("issuer_url", "private_key", "audience", "scope")}
        return cls(option=option, **found)

    @property
    def params(self) -> str:
        """The JSON for Pulsar's client, with only the parameters that are known here."""
        known = ("issuer_url", "private_key", "audience", "scope")
        return json.dumps({name: getattr(self, name) for name in known if getattr(self, name)})

    def key(self) -> ClientKey:
        """The key, from its file or inline. Raises ConfigError, also for a file that cannot be read."""
        path = self.private_key.removeprefix("file://").removeprefix("file:")
        # A text that is not an absolute path is not shown: it may be a secret in the wrong place.
        where = f"the key file {path}" if path.startswith("/") else "the key that private_key names"
        try:
            if self.private_key.startswith(_INLINE):
                text = base64.b64decode(self.private_key.removeprefix(_INLINE)).decode()
            else:
                text = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = (isinstance(error, OSError) and error.strerror) or "it is no UTF-8 text"
            raise ConfigError.of(self.option, f"{where} cannot be read ({why})") from None
        given = _loaded(text) or {}
        client_id, client_secret = given.get("client_id"), given.get("client_secret")
        if isinstance(client_id, str) and isinstance(client_secret, str) and client_id and client_secret:
            return ClientKey(client_id=client_id, client_secret=client_secret)
        raise ConfigError.of(self.option, f"{where} is not JSON with client_id and client_secret")


def issued_token(credentials: ClientCredentials, ask: Ask) -> IssuedToken:
    """A new token from the issuer, requested as Pulsar's client does.

    Raises ConfigError for the key, and TokenIssueError.
    """
    key = credentials.key()
    issuer, check = credentials.issuer_url.rstrip("/"), f"issuer_url in {credentials.option}"
    described = _content(issuer, ask("GET", f"{issuer}/.well-known/openid-configuration", None), key, check)
    endpoint = str(described.get("token_endpoint", ""))
    if not endpoint.startswith(("http://", "https://")):
        raise TokenIssueError(issuer, f"its openid-configuration names no token_endpoint; check {check}")
    if issuer.startswith("https://") and endpoint.startswith("http://"):
        raise TokenIssueError(
            issuer, f"its token_endpoint {endpoint} is not encrypted, so the secret is not sent there"
        )
    form = {
        "grant_type": "client_credentials",
        "client_id": key.client_id,
        "client_secret": key.client_secret,
        "audience": credentials.audience,
        "scope": credentials.scope,
    }
    asked = ask("POST", endpoint, {name: value for name, value in form.items() if value})
    check = f"the content of the key file, and audience and scope in {credentials.option}"
    answer = _content(issuer, asked, key, check)
    token = str(answer.get("access_token", ""))
    if not _TOKEN.fullmatch(token):
        raise TokenIssueError(issuer, f"the answer of {endpoint} has no access_token that a header can carry")
    return IssuedToken(text=token, usable_s=_usable_s(answer.get("expires_in")))


def _loaded(text: str) -> Mapping[str, object] | None:
    """A JSON object; None for anything else."""
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return loaded if isinstance(loaded, dict) else None


def _wrong(given: Mapping[str, object]) -> Iterator[str]:
    """The errors of parameters, one line for each. No value is quoted."""
    for name, (java, what) in _NEEDED.items():
        if name not in given:
            hint = f" ({java} is the name of Java's client)" if java in given else ""
            yield f"has no {name}, {what}{hint}"
        elif not given[name]:
            yield f"has an empty {name}, {what}"
    texts = {name: given.get(name, "") for name in (*_NEEDED, "audience", "scope")}
    yield from (f"has no text as {name}" for name, value in texts.items() if not isinstance(value, str))
    issuer, key = texts["issuer_url"], texts["private_key"]
    if issuer and isinstance(issuer, str) and not _ISSUER.match(issuer):
        yield "has an issuer_url that is no address such as https://auth.example.com"
    if isinstance(key, str) and ":" in key and not key.startswith(("file:", "/", _INLINE)):
        yield f"has a private_key that is no path, file:///path or {_INLINE}..."


def _content(issuer: str, answer: Answer, key: ClientKey, check: str) -> Mapping[str, object]:
    """The JSON object of an answer.

    Raises TokenIssueError for any other answer, with `check`: what the operator may check.
    """
    try:
        content = answer.json()
    except (ValueError, RecursionError):
        content = None
    found: Mapping[str, object] = content if isinstance(content, dict) else {}
    if not 200 <= answer.status_code < 300:
        said = ": ".join(str(found[name]) for name in ("error", "error_description") if found.get(name))
        said = " ".join(said.split()).replace(key.client_secret, "****")[:_MOST_SHOWN]
        raise TokenIssueError(issuer, f"it answers {answer.status_code}{said and f' ({said})'}; check {check}")
    if not found:
        raise TokenIssueError(issuer, f"its answer is not a JSON object; check {check}")
    return found


def _usable_s(expires_in: Any) -> float:
    try:
        return max(0.0, float(expires_in) - _EARLY_S)
    except (ValueError, TypeError, OverflowError):
        return 0.0
