"""Stage: failures, their owner, and stopping in any state."""

from __future__ import annotations

import queue
import threading

import pytest

from runtime.stage import Stage


class _Echo(Stage):
    """A stage that records its items, and raises items that are errors."""

    def __init__(self, **options: object) -> None:
        super().__init__("echo", **options)  # type: ignore[arg-type]
        self.given: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.answers: list[object] = []

    def wake(self) -> None:
        """The wait for an item does not check `stopping`."""
        self.given.put(None)

    def run(self) -> None:
        """Run until an item is None."""
        while (item := self.given.get()) is not None:
            if isinstance(item, Exception):
                raise item
            self.answers.append(item)


def test_a_stage_does_what_it_was_given_before_it_stops() -> None:
    """A second stop has no effect."""
    echo = _Echo()
    echo.start()
    for each in range(100):
        echo.given.put(each)
    echo.stop()
    assert (echo.answers, echo.is_running, echo.failure) == (list(range(100)), False, None)
    echo.stop()


def test_a_stage_that_was_never_started_can_be_stopped() -> None:
    """An agent whose start fails in the middle stops all stages."""
    echo = _Echo()
    echo.stop()
    assert not echo.is_started


def test_an_error_is_kept_logged_and_given_to_the_owner(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the traceback."""
    seen: list[Exception] = []
    echo = _Echo(on_failure=seen.append)
    echo.start()
    error = ValueError("bad item")
    echo.given.put(error)
    echo.join(20)
    assert (echo.failure, seen) == (error, [error])
    assert caplog.messages == ["the echo failed"]
    assert caplog.records[0].exc_info is not None


def test_the_first_failure_is_kept() -> None:
    """Later failures are consequences of it."""
    echo = _Echo()
    first = ValueError("first")
    echo.fail(first)
    echo.fail(ValueError("second"))
    assert echo.failure is first


def test_stages_may_share_what_stops_them() -> None:
    """A wait in another stage ends together with this stage."""
    stopping = threading.Event()
    echo = _Echo(stopping=stopping)
    echo.start()
    echo.stop()
    assert stopping.is_set()
