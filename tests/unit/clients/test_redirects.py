"""Redirects between brokers, over real HTTP with the client that the products use."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from clients.redirects import RedirectError, redirected
from tests.servers.certificates import CertificateAuthority
from tests.servers.http_brokers import Request, broker, owner_of_all, redirects_to

_CREDENTIALS = {"Authorization": "Bearer tell-nobody"}


def _asking(client: httpx.Client, method: str, body: object = None) -> Callable[[str], httpx.Response]:
    return lambda address: client.request(method, address, json=body, headers=_CREDENTIALS)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize(("method", "body"), [("GET", None), ("PUT", {"ledgerId": -1}), ("POST", [1])])
def test_the_owner_gets_method_body_and_credentials(status: int, method: str, body: object) -> None:
    """The owner gets the same request as the first broker, although another port counts as another host."""
    with (
        broker(owner_of_all({"partitions": 3})) as owner,
        broker(redirects_to(owner.url, status)) as first,
        httpx.Client(base_url=first.url) as client,
    ):
        assert redirected(_asking(client, method, body), "/a/b?c=d").json() == {"partitions": 3}
        assert first.asked == owner.asked == [Request(method, "/a/b?c=d", body, "Bearer tell-nobody")]


def test_a_redirect_may_name_a_path_only() -> None:
    """The path then belongs to the server that answered."""
    with broker(lambda request: (307, {"Location": "/b"}, None) if request.path == "/a" else (200, {}, 1)) as one:
        with httpx.Client(base_url=one.url) as client:
            assert redirected(_asking(client, "GET"), "/a").json() == 1
        assert [each.path for each in one.asked] == ["/a", "/b"]


def test_what_names_no_address_is_an_answer() -> None:
    """The caller decides what the answer means."""
    with broker(lambda request: (307, {}, None)) as one, httpx.Client(base_url=one.url) as client:
        assert redirected(_asking(client, "GET"), "/a").status_code == 307


def test_a_loop_is_told_as_such() -> None:
    """Each of two brokers takes the other for the owner."""
    with broker(owner_of_all(None)) as one, broker(redirects_to(one.url)) as two:
        one.answering = redirects_to(two.url)
        with httpx.Client(base_url=one.url) as client, pytest.raises(RedirectError) as raised:
            redirected(_asking(client, "GET"), "/a")
        assert (len(one.asked), len(two.asked)) == (1, 1)
    assert str(raised.value) == (
        f"{two.url}/a redirects to {one.url}/a, which was asked before: a loop; do the brokers agree on who owns the topic?"
    )


def test_redirects_that_lead_on_and_on_have_an_end() -> None:
    """Each redirect names another address."""
    with broker(lambda request: (307, {"Location": request.path + "x"}, None)) as one:
        with (
            httpx.Client(base_url=one.url) as client,
            pytest.raises(RedirectError, match="and 5 redirects were followed before"),
        ):
            redirected(_asking(client, "GET"), "/a")
        assert len(one.asked) == 6


def test_credentials_are_not_sent_in_the_clear_after_tls(tmp_path: Path) -> None:
    """After https, no request is sent to an http address."""
    authority = CertificateAuthority(tmp_path)
    authority.issue("broker", "127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "broker.pem", tmp_path / "broker.key")
    trusting = ssl.create_default_context(cafile=str(authority.trusted))
    with broker(owner_of_all(1)) as clear, broker(redirects_to(clear.url), tls) as first:
        with httpx.Client(base_url=first.url, verify=trusting) as client, pytest.raises(RedirectError) as raised:
            redirected(_asking(client, "GET"), "/a")
        assert (len(first.asked), clear.asked) == (1, [])
    assert str(raised.value) == (
        f"{first.url}/a redirects to {clear.url}/a, which is not encrypted; let the brokers advertise their addresses of "
        "https"
    )


def test_from_the_clear_to_tls_is_no_downgrade(tmp_path: Path) -> None:
    """An http address may redirect to https."""
    authority = CertificateAuthority(tmp_path)
    authority.issue("broker", "127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "broker.pem", tmp_path / "broker.key")
    trusting = ssl.create_default_context(cafile=str(authority.trusted))
    with broker(owner_of_all(1), tls) as owner, broker(redirects_to(owner.url)) as first:
        with httpx.Client(base_url=first.url, verify=trusting) as client:
            assert redirected(_asking(client, "GET"), "/a").json() == 1
        assert owner.asked == [Request("GET", "/a", None, "Bearer tell-nobody")]


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/a", "pulsar://127.0.0.1:6650", "https:/a"])
def test_only_addresses_of_http_are_asked(target: str) -> None:
    """This holds for any target in the answer."""
    with (
        broker(lambda request: (307, {"Location": target}, None)) as one,
        httpx.Client(base_url=one.url) as client,
        pytest.raises(RedirectError, match="which is no address of http or https"),
    ):
        redirected(_asking(client, "GET"), "/a")


def test_what_cannot_be_an_address_is_told() -> None:
    """The library's own error must not be raised."""
    target = "http://127.0.0.1:70000/a"
    with (
        broker(lambda request: (307, {"Location": target}, None)) as one,
        httpx.Client(base_url=one.url) as client,
        pytest.raises(RedirectError, match="which is no address") as raised,
    ):
        redirected(_asking(client, "GET"), "/a")
    assert (raised.value.address, raised.value.target) == (f"{one.url}/a", target)
