"""Pulsar's admin interface, for the policies of data topics. Requests are few, so the standard library suffices."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import urlsplit

from clients.admin_client import UNANSWERED, AdminClient, explained, reason_of, topic_path
from clients.client_credentials import ClientCredentials, IssuedToken, TokenIssueError, issued_token
from clients.tls import tls_context
from schemas.errors import CdcError
from source_connector.errors import AdminError
from source_connector.events.pulsar_access import PulsarOptions

__all__ = ["PulsarAdmin"]

_TIMEOUT_S: Final = 15.0
_MOST_BYTES: Final = 1 << 20


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
    """Returns every answer unchanged. The caller follows redirects and words the errors."""

    def http_response(self, request: urllib.request.Request, response: Any) -> Any:
        return response

    https_response = http_response


class PulsarAdmin(AdminClient[_Answer]):
    """Reads and sets policies with the credentials of the events client. For one thread; each call may wait for Pulsar.

    `written`: the option that gives the URL, for errors. Raises AdminError.
    """

    _unanswered: ClassVar = (*UNANSWERED, http.client.HTTPException)

    def __init__(self, admin_url: str, options: PulsarOptions, written: str = "pulsarAdminUrl") -> None:
        self._url: Final = admin_url.rstrip("/")
        self._written: Final = written
        self._options: Final = options
        self._auth: Final = options.auth(self._issued)
        self._opener: urllib.request.OpenerDirector | None = None

    def set(self, topic: str, path: str, value: object) -> None:
        """Set a policy."""
        self._call("POST", topic, path, value)

    def exists(self, topic: str) -> bool:
        """Return True if a topic, or a partition of a topic, exists. The question does not make it.

        Pulsar answers 404 about the partitions and the statistics of a missing topic. Before 4.0, a topic without
        partitions needs the second question.
        """
        for what in ("partitions", "stats"):
            path = f"{topic_path(topic)}/{what}"
            answer = self._sent("GET", topic, path)
            if answer.status_code == http.client.NOT_FOUND and _is_about_topic(answer):
                return False
            self._check("GET", path, topic, answer)
            try:
                found = dict(answer.json())
            except (ValueError, TypeError):
                raise AdminError(topic, f"{self._written}: {self._url} is no admin service of Pulsar") from None
            if what == "partitions" and found.get("partitions"):
                return True
        return True

    def _sender(self, method: str, body: object) -> Callable[[str], _Answer]:
        headers = {"Content-Type": "application/json", **self._auth.http_headers()}
        data = None if body is None else json.dumps(body).encode()
        opener = self._opened()
        return lambda address: _sent(opener, method, address, headers, data)

    def _answer(self, method: str, path: str, body: object) -> _Answer:
        return super()._answer(method, f"{self._url}/admin/v2{path}", body)

    def _failure(self, topic: str, reason: str) -> AdminError:
        return AdminError(topic, reason)

    def _no_answer(self, topic: str, error: Exception) -> AdminError:
        self._opener = None  # certificates may be replaced
        return AdminError(topic, f"{self._written}: {self._url} does not answer: {_cause(error)}")

    def _check(self, method: str, path: str, topic: str, answer: _Answer) -> None:
        if not answer.is_success:
            raise AdminError(topic, f"{method} {path}: {answer.status_code} {reason_of(answer)}")

    def _opened(self) -> urllib.request.OpenerDirector:
        """The opener, with the certificates of the options or the system's own, which take a while to read."""
        if self._opener is not None:
            return self._opener
        options = self._options
        context = tls_context(
            "tlsTrustCertsFilePath",
            options.trusted_certificates,
            check_hostname=options.hostname_validation,
            allow_insecure=options.allow_insecure,
        )
        self._auth.use_certificate(context)
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _AsItIs)
        return self._opener

    def _issued(self, credentials: ClientCredentials) -> IssuedToken:
        ask = partial(_asked, self._opened(), credentials.issuer_url)
        return issued_token(credentials, ask)


def _is_about_topic(answer: _Answer) -> bool:
    """True if Pulsar says that the topic is missing. It answers 404 about a namespace, too, as does a wrong address."""
    try:
        reason = str(answer.json()["reason"]).lower()
        return "not found" in reason and not reason.startswith(("namespace", "tenant"))
    except (ValueError, KeyError, TypeError):
        return False


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
    """The cause in short. Only errors of the network show their text, because others may quote secret parameters."""
    if isinstance(error, urllib.error.URLError):
        return explained(str(error.reason))
    if isinstance(error, OSError | http.client.HTTPException | CdcError):
        return str(error) or type(error).__name__
    return f"pulsarAuthParams cannot be used, or the answer be understood ({type(error).__name__})"
