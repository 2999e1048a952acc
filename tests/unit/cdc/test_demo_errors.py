"""The demo's errors: each error of a client becomes one line with a remedy."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from cdc.demo.line import LineError, connect
from cdc.demo.run import DemoOptions, run_demo
from cdc.rest import rest
from cdc.sandbox import artifacts
from tests.servers.http_brokers import broker

_AGAIN = "; run the demo again, when the machine has less to do"


@pytest.fixture
def url() -> Iterator[str]:
    """The URL of a server that answers 500 to every request."""
    with broker(lambda request: (500, {}, b"no\nroom")) as refusing:
        yield f"{refusing.url}/admin"


def _line(monkeypatch: pytest.MonkeyPatch, step: Callable[[], object]) -> str:
    """Run the demo with this first step, and return the text of its error."""
    monkeypatch.setattr(artifacts, "ensure", lambda _name: step())
    with pytest.raises(LineError) as raised:
        run_demo(DemoOptions(), quiet=True, on_progress=lambda name, step: None)
    return str(raised.value)


def test_a_program_that_does_not_end_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine, `pulsar-admin sources create` takes longer than the demo waits."""
    line = _line(monkeypatch, lambda: subprocess.run(["/usr/bin/env", "sleep", "60"], timeout=1, check=False))
    assert line == f"env did not end within 1 s{_AGAIN}"


def test_an_answer_of_pulsar_that_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """The line has the reason of the answer."""
    line = _line(monkeypatch, lambda: rest().get(url).raise_for_status())
    assert line == f"Pulsar answered GET {url} by 500 no room{_AGAIN}"


def test_a_pulsar_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the request."""
    line = _line(monkeypatch, lambda: rest().get("http://127.0.0.1:9/admin"))
    assert line.startswith("Pulsar did not answer GET http://127.0.0.1:9/admin: ")
    assert line.endswith(_AGAIN)
    assert len(line.splitlines()) == 1


def test_a_cassandra_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line has the node's own error."""

    def step() -> None:
        with connect("127.0.0.1", 9):
            pass

    line = _line(monkeypatch, step)
    assert line.startswith("Cassandra did not do a request: ")
    assert "Connection refused" in line
    assert line.endswith(_AGAIN)
    assert len(line.splitlines()) == 1
