"""AdminClient: requests to Pulsar's admin service over real HTTP, and the errors that a product gets."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from clients.admin_client import AdminClient, explained, reason_of
from tests.servers.http_brokers import Answering, Request, broker, owner_of_all, redirects_to

_TOPIC = "persistent://public/default/a b"
_PATH = "/admin/v2/persistent/public/default/a%20b"


class _Answer(NamedTuple):
    status_code: int
    headers: dict[str, str]
    url: str
    content: bytes

    def json(self) -> object:
        return json.loads(self.content)


class _FailureError(Exception):
    """The error of a product."""


class _Admin(AdminClient[_Answer]):
    def __init__(self, url: str) -> None:
        self._url = url

    def _sender(self, method: str, body: object) -> Callable[[str], _Answer]:
        def send(address: str) -> _Answer:
            parts = urlsplit(address)
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
            try:
                connection.request(method, parts.path, None if body is None else json.dumps(body))
                answer = connection.getresponse()
                headers = {name.lower(): value for name, value in answer.getheaders()}
                return _Answer(answer.status, headers, address, answer.read())
            finally:
                connection.close()

        return send

    def _answer(self, method: str, path: str, body: object) -> _Answer:
        return super()._answer(method, f"{self._url}/admin/v2{path}", body)

    def _failure(self, topic: str, reason: str) -> Exception:  # type: ignore[override]
        return _FailureError(f"{topic}: {reason}")

    def _no_answer(self, topic: str, error: Exception) -> Exception:  # type: ignore[override]
        return _FailureError(f"{topic}: no answer")

    def _check(self, method: str, path: str, topic: str, answer: _Answer) -> None:
        if answer.status_code not in (200, 204, 409):
            raise _FailureError(f"{topic}: {answer.status_code} {reason_of(answer)}")


def test_the_owner_of_a_topic_is_asked_by_its_quoted_name() -> None:
    """The owner gets the same request after a redirect."""
    with broker(owner_of_all({"partitions": 3})) as owner, broker(redirects_to(owner.url)) as first:
        assert _Admin(first.url).partitions(_TOPIC) == 3
        assert owner.asked == [Request("GET", f"{_PATH}/partitions", None, None)]


@pytest.mark.parametrize(("status", "made"), [(204, True), (409, False)])
def test_a_subscription_that_is_there_is_no_error(status: int, made: bool) -> None:
    """The result says if it was created by this call."""
    with broker(lambda request: (status, {}, None)) as server:
        assert _Admin(server.url).make_subscription(_TOPIC, "a/b") is made
        earliest = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
        assert server.asked == [Request("PUT", f"{_PATH}/subscription/a%2Fb", earliest, None)]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda request: (403, {}, {"reason": "no rights"}), "403 no rights"),
        (lambda request: (307, {"Location": request.path}, None), "redirects to .*: a loop"),
    ],
)
def test_a_failure_becomes_the_products_error(answer: Answering, reason: str) -> None:
    """The error has the topic, and the reason from the service."""
    with broker(answer) as server, pytest.raises(_FailureError, match=f"a b: .*{reason}"):
        _Admin(server.url).partitions(_TOPIC)


def test_nobody_answers() -> None:
    """A closed port is an error of the HTTP client, which the product converts to its own."""
    with pytest.raises(_FailureError, match="a b: no answer"):
        _Admin("http://127.0.0.1:1").last_entry(_TOPIC)


def test_an_answer_that_is_no_json_is_an_error_of_the_product() -> None:
    """A proxy may answer for the service. A long text is cut."""
    answer = _Answer(200, {}, "http://h", b"<html> " + b"x" * 300)
    assert reason_of(answer) == "<html> " + "x" * 193 + "..."

    class Proxied(_Admin):
        def _answer(self, method: str, path: str, body: object) -> _Answer:
            return answer

    with pytest.raises(_FailureError, match=r"answers something else than JSON to /persistent/.*/partitions"):
        Proxied("http://h").partitions(_TOPIC)


def test_a_refused_certificate_is_named_with_the_options() -> None:
    """Other texts are not changed."""
    text = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1006)"
    options = "tlsTrustCertsFilePath and sslHostnameVerificationEnable"
    assert explained(text) == f"certificate verify failed: self-signed certificate; check {options}"
    assert explained("refused") == "refused"
