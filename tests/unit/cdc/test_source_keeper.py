"""SourceKeeper with a single check, as in `cdc doctor --fix` and `cdc connector watch --once`.

The worker is in memory.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from cdc.health.pulsar_service import PulsarService, PulsarServiceError
from cdc.health.source_keeper import SourceKeeper
from cdc.health.sources import SOURCE_CLASS
from tests.servers.worker_requests import source_request


class Worker(threading.Event):
    """Sources by name, each with the start and end of its downtime in seconds.

    Waiting for this event advances the clock.
    """

    url = "http://pulsar"

    def __init__(self, **down_s: tuple[float, float]) -> None:
        super().__init__()
        self.now_s = 0.0
        self.is_away = False
        self.is_ours = True
        self.refusal = ""
        self.error = "UNAVAILABLE: io exception"
        self.request: bytes | None = None
        self.restarted: list[tuple[str, float]] = []
        self._down_s = down_s

    def wait(self, timeout: float | None = None) -> bool:
        self.now_s += timeout or 0.0
        return False

    def sources(self) -> list[str]:
        if self.is_away:
            raise PulsarServiceError(f"{self.url} does not answer (refused)")
        return sorted(self._down_s)

    def source(self, name: str) -> Mapping[str, Any]:
        return {"className": SOURCE_CLASS}

    def source_status(self, name: str) -> Mapping[str, Any]:
        # A process that is starting does not answer either. The worker reports that as an error.
        from_s, to_s = self._down_s[name]
        is_running = not from_s <= self.now_s < to_s
        status = {"running": is_running, "error": "" if is_running else self.error}
        return {"numInstances": 1, "instances": [{"instanceId": 0, "status": status}]}

    def examined(self, topic: str, number: int) -> tuple[bytes, float]:
        if self.request is None:
            raise PulsarServiceError("the role may not read it")
        return self.request, 3_600.0

    def restart_source(self, name: str) -> None:
        if self.refusal:
            raise PulsarServiceError(self.refusal)
        self.restarted.append((name, self.now_s))
        self._down_s[name] = (self.now_s, self.now_s + 10)

    @contextmanager
    def turn(self) -> Iterator[bool]:
        yield self.is_ours

    def keeper(self, patience_s: float) -> SourceKeeper:
        service = cast("PulsarService", self)
        return SourceKeeper(service, self.turn, patience_s=patience_s, clock=lambda: self.now_s, stopping=self)


NEVER = 1e9
NOT, GONE = (NEVER, NEVER), (0, NEVER)


def test_a_source_that_is_merely_starting_is_not_restarted() -> None:
    """It runs before the patience ends."""
    worker = Worker(a=NOT, b=(0, 12))
    assert list(worker.keeper(20).check_once()) == ["waiting 20 s, because these sources may be starting: b"]
    assert worker.restarted == []


def test_a_source_that_was_given_up_is_restarted_once() -> None:
    """It is restarted after the patience. No further attempt is announced."""
    worker = Worker(a=NOT, b=GONE)
    keeper = worker.keeper(20)
    assert list(keeper.check_once()) == [
        "waiting 20 s, because these sources may be starting: b",
        "source b restarted, for it did not run for 20 s: UNAVAILABLE: io exception",
    ]
    assert (worker.restarted, worker.now_s, keeper.failures) == ([("b", 20.0)], 30.0, 0)


def test_a_source_that_somebody_stopped_after_a_failed_start_is_left_alone() -> None:
    """The worker still reports the failure of the start. The last request about the source was to stop it."""
    worker = Worker(b=GONE)
    worker.error = "HTTP 503 Service Unavailable"
    assert list(worker.keeper(20).check_once())[1:]
    worker = Worker(b=GONE)
    worker.error, worker.request = "HTTP 503 Service Unavailable", source_request("b", state=1)
    assert not list(worker.keeper(20).check_once())
    assert not worker.restarted


def test_a_source_that_goes_down_meanwhile_is_left_alone() -> None:
    """It may be starting, like the first one."""
    worker = Worker(a=GONE, b=(5, NEVER))
    list(worker.keeper(20).check_once())
    assert worker.restarted == [("a", 20.0)]


def test_without_patience_it_is_restarted_at_once() -> None:
    """`watch --once` uses no patience."""
    worker = Worker(a=GONE)
    assert list(worker.keeper(0).check_once()) == ["source a restarted, for it did not run: UNAVAILABLE: io exception"]
    assert worker.restarted == [("a", 0.0)]


def test_a_watch_that_has_the_turn_is_named() -> None:
    """The sources are not restarted twice."""
    worker = Worker(a=GONE)
    worker.is_ours = False
    keeper = worker.keeper(0)
    assert list(keeper.check_once()) == ["source a does not run; a watch restarts it now"]
    assert (worker.restarted, keeper.failures) == ([], 0)


def test_a_refused_restart_and_a_pulsar_that_is_away_are_failures() -> None:
    """Each failure is one line."""
    worker = Worker(a=GONE)
    worker.refusal = "403"
    keeper = worker.keeper(0)
    assert list(keeper.check_once()) == ["source a could not be restarted: 403"]
    assert keeper.failures == 1
    worker.is_away = True
    assert list(keeper.check_once()) == ["the sources are not known: http://pulsar does not answer (refused)"]
    assert keeper.failures == 2


def test_a_watch_announces_its_next_attempt() -> None:
    """A watch makes further attempts."""
    worker = Worker(a=GONE)
    keeper = worker.keeper(20)
    assert list(keeper.check()) == []
    worker.now_s = 30
    [line] = keeper.check()
    assert line.endswith("UNAVAILABLE: io exception; next attempt in 20 s unless it runs")


def test_a_watch_that_looks_once_ends_with_1_where_pulsar_does_not_answer(tmp_path: Path) -> None:
    """A script that calls it needs the exit code."""
    line = tmp_path / "line.yaml"
    line.write_text("pulsarAdminUrl: http://127.0.0.1:1\npulsarServiceUrl: pulsar://127.0.0.1:1\n")
    command = [sys.executable, "-m", "cdc.main", "connector", "watch", "--once", "--config", str(line)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout.splitlines()[1].startswith("the sources are not known: http://127.0.0.1:1 does not answer (")
