"""Answers of an admin service that is there and does not help; those of a real one are integration tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from spark_bridge.errors import PulsarUnreachableError, TopicError
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.options import TOKEN_PLUGIN, BridgeOptions


class AnsweringServer(HTTPServer):
    """Gives the answers in order, the last one for ever, and keeps what it was asked."""

    def __init__(self, answers: list[tuple[int, str]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers
        self.asked: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, AnsweringServer)
        server.asked.append((self.path, self.headers["Authorization"]))
        status, body = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (http.server's name)
        """Say nothing."""


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[AnsweringServer]:
    """A server with the answers that the test is parametrized with."""
    with AnsweringServer(list(request.param)) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def options(server: AnsweringServer) -> BridgeOptions:
    return BridgeOptions.from_mapping(
        {
            "serviceUrl": "pulsar://h:6650",
            "adminUrl": server.url,
            "topic": "t",
            "authPluginClassName": TOKEN_PLUGIN,
            "authParams": "token:tell-nobody",
        }
    )


@pytest.mark.parametrize("server", [[(401, '{"reason": "Token expired"}')]], indirect=True)
def test_a_refused_token_is_no_missing_topic(server: AnsweringServer) -> None:
    """The token is sent, its refusal is passed on with the options to look at, and the token is not shown."""
    with PulsarAdmin(options(server)) as admin, pytest.raises(PulsarUnreachableError) as error:
        admin.topic_partitions()
    assert server.asked == [("/admin/v2/persistent/public/default/t/partitions", "Bearer tell-nobody")]
    assert str(error.value) == (
        f"Pulsar at {server.url}: refuses to tell about persistent://public/default/t (Token expired); "
        "check authPluginClassName and authParams"
    )


@pytest.mark.parametrize("server", [[(503, "starting"), (503, "starting"), (200, '{"partitions": 2}')]], indirect=True)
def test_a_service_that_is_starting_is_asked_again(server: AnsweringServer) -> None:
    """A broker that hands the topic over answers 5xx for a moment."""
    with PulsarAdmin(options(server)) as admin:
        assert admin.topic_partitions() == [
            "persistent://public/default/t-partition-0",
            "persistent://public/default/t-partition-1",
        ]
    assert len(server.asked) == 3


@pytest.mark.parametrize("server", [[(503, "starting")]], indirect=True)
def test_patience_ends(server: AnsweringServer) -> None:
    """After `patience_s` the last answer is the error."""
    with (
        PulsarAdmin(options(server), patience_s=0.3) as admin,
        pytest.raises(PulsarUnreachableError, match="answers 503"),
    ):
        admin.topic_partitions()


@pytest.mark.parametrize("server", [[(404, '{"reason": "Namespace not found"}')]], indirect=True)
def test_what_is_missing_is_named(server: AnsweringServer) -> None:
    """Pulsar's own reason tells a missing namespace from a missing topic."""
    with PulsarAdmin(options(server)) as admin, pytest.raises(TopicError) as error:
        admin.topic_partitions()
    assert str(error.value) == (
        "topic persistent://public/default/t: does not exist (Namespace not found); create it or check the option topic"
    )
