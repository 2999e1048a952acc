"""Pulsar's admin interface, for the policies of data topics: few questions, so the standard library's HTTP client serves."""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from schemas.certificate_refusal import certificate_refusal
from schemas.client_credentials import ClientCredentials, TokenIssueError, issued_token
from schemas.errors import CdcError, ConfigError
from schemas.redirects import RedirectError, redirected
from source_connector.errors import AdminError
from source_connector.events.pulsar_access import PulsarOptions

__all__ = ["PulsarAdmin"]

_TIMEOUT_S: Final = 15.0
_MOST_BYTES: Final = 1 << 20
_MOST_SHOWN: Final = 200
_OPTION: Final = "pulsarAuthParams"


class _Answer(NamedTuple):
    status_code: int
    headers: Mapping[str, str]
    url: str
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def is_success(self) -> bool:
        return self.status_code in (http.client.OK, http.client.NO_CONTENT)


class _AsItIs(urllib.request.HTTPErrorProcessor):
    """Every answer is one: redirects are followed elsewhere, and errors are told in words of ours."""

    def http_response(self, request: urllib.request.Request, response: Any) -> Any:
        return response

    https_response = http_response


class PulsarAdmin:
    """Asks and sets policies with the credentials that events are read with. For one thread; each call may wait for Pulsar."""

    def __init__(self, admin_url: str, options: PulsarOptions) -> None:
        self._url: Final = admin_url.rstrip("/")
        self._options: Final = options
        self._kind: Final = options.auth_plugin.rpartition(".")[2].lower().removeprefix("authentication")
        self._bearer = ""
        self._bearer_ends_at_s = 0.0
        self._opener: urllib.request.OpenerDirector | None = None

    def ask(self, topic: str, path: str) -> Any:
        """What is set there; None for nothing, which has an empty answer. Raises AdminError."""
        answer = self._call("GET", topic, path)
        return json.loads(answer.content) if answer.content else None

    def set(self, topic: str, path: str, value: object) -> None:
        """Set a policy. Raises AdminError."""
        self._call("POST", topic, path, json.dumps(value).encode())

    def _call(self, method: str, topic: str, path: str, body: bytes | None = None) -> _Answer:
        address = f"{self._url}/admin/v2{path}"
        try:
            headers = {"Content-Type": "application/json", **self._credentials()}
            opener = self._opened()
            answer = redirected(lambda asked: _sent(opener, method, asked, headers, body), address)
            if not answer.is_success:
                raise AdminError(topic, f"{method} {path}: {answer.status_code} {_reason(answer)}")
        except (RedirectError, TokenIssueError, ConfigError) as error:
            raise AdminError(topic, str(error)) from None
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            self._opener = None  # certificates may be replaced
            raise AdminError(topic, f"pulsarAdminUrl: {self._url} does not answer: {_cause(error)}") from None
        return answer

    def _opened(self) -> urllib.request.OpenerDirector:
        """With the system's certificates, which take a while to read, or those of the options."""
        if self._opener is not None:
            return self._opener
        context = ssl.create_default_context(cafile=self._options.trusted_certificates or None)
        context.check_hostname = self._options.hostname_validation and not self._options.allow_insecure
        if self._options.allow_insecure:
            context.verify_mode = ssl.CERT_NONE
        if self._kind == "tls":
            params = dict(part.split(":", 1) for part in self._options.auth_params.split(",") if ":" in part)
            context.load_cert_chain(params["tlsCertFile"], params["tlsKeyFile"])
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _AsItIs)
        return self._opener

    def _credentials(self) -> Mapping[str, str]:
        """Raises OSError, ValueError and KeyError for parameters that cannot be used, and TokenIssueError."""
        params = self._options.auth_params
        match self._kind:
            case "token":
                path = re.sub("^file:(//)?", "", params)
                token = params if path == params else Path(path).read_text(encoding="utf-8")
                return {"Authorization": f"Bearer {token.removeprefix('token:').strip()}"}
            case "basic":
                login = json.loads(params)
                text = f"{login['userId']}:{login['password']}"
                return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}
            case "oauth2":
                return {"Authorization": f"Bearer {self._issued_token()}"}
            case _:
                return {}

    def _issued_token(self) -> str:
        if time.monotonic() >= self._bearer_ends_at_s:
            credentials = ClientCredentials.parse(self._options.auth_params, _OPTION)
            ask = partial(_asked, self._opened(), credentials.issuer_url)
            issued = issued_token(credentials, lambda path: Path(path).read_text(encoding="utf-8"), ask)
            self._bearer = issued.text
            self._bearer_ends_at_s = time.monotonic() + issued.usable_s
        return self._bearer


def _sent(
    opener: urllib.request.OpenerDirector, method: str, address: str, headers: Mapping[str, str], body: bytes | None
) -> _Answer:
    if urlsplit(address).scheme not in ("http", "https"):
        raise ValueError("it is no address of http or https")
    request = urllib.request.Request(address, data=body, headers=dict(headers), method=method)  # noqa: S310  (see above)
    with opener.open(request, timeout=_TIMEOUT_S) as response:
        return _Answer(response.status, response.headers, address, response.read(_MOST_BYTES))


def _asked(
    opener: urllib.request.OpenerDirector, issuer: str, method: str, address: str, form: Mapping[str, str] | None
) -> _Answer:
    body = None if form is None else urllib.parse.urlencode(form).encode()
    try:
        return _sent(opener, method, address, {}, body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise TokenIssueError(issuer.rstrip("/"), f"it does not answer ({_cause(error)})") from None


def _cause(error: Exception) -> str:
    """In a word, without what stands in parameters: only errors of the network show their text."""
    if isinstance(error, urllib.error.URLError):
        reason = str(error.reason)
        refusal = certificate_refusal(reason)
        return f"{refusal}; check tlsTrustCertsFilePath and sslHostnameVerificationEnable" if refusal else reason
    if isinstance(error, OSError | http.client.HTTPException | CdcError):
        return str(error) or type(error).__name__
    return f"pulsarAuthParams cannot be used, or the answer be understood ({type(error).__name__})"


def _reason(answer: _Answer) -> str:
    try:
        reason = str(answer.json()["reason"])
    except (ValueError, KeyError, TypeError):
        reason = " ".join(answer.content.decode("utf-8", "replace").split())
    return reason[:_MOST_SHOWN]
