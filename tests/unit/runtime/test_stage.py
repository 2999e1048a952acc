"""Stage: what ends it, who learns of it, and that it can always be stopped."""

from __future__ import annotations

import queue
import threading

import pytest

from runtime.stage import Stage


class _Echo(Stage):
    """Answers what it is given; raises what is an error."""

    def __init__(self, **options: object) -> None:
        super().__init__("echo", **options)  # type: ignore[arg-type]
        self.given: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.answers: list[object] = []

    def wake(self) -> None:
        """A wait for a message does not look at `stopping`."""
        self.given.put(None)

    def run(self) -> None:
        """Until None comes."""
        while (item := self.given.get()) is not None:
            if isinstance(item, Exception):
                raise item
            self.answers.append(item)


def test_a_stage_does_what_it_was_given_before_it_stops() -> None:
    """And a second stop does nothing."""
    echo = _Echo()
    echo.start()
    for each in range(100):
        echo.given.put(each)
    echo.stop()
    assert (echo.answers, echo.is_running, echo.failure) == (list(range(100)), False, None)
    echo.stop()


def test_a_stage_that_was_never_started_can_be_stopped() -> None:
    """An agent whose start failed midway stops everything."""
    echo = _Echo()
    echo.stop()
    assert not echo.is_started


def test_an_error_is_kept_logged_and_given_to_the_owner(caplog: pytest.LogCaptureFixture) -> None:
    """With its traceback."""
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
    """Later ones follow from it."""
    echo = _Echo()
    first = ValueError("first")
    echo.fail(first)
    echo.fail(ValueError("second"))
    assert echo.failure is first


def test_stages_may_share_what_stops_them() -> None:
    """A wait elsewhere ends with the stage."""
    stopping = threading.Event()
    echo = _Echo(stopping=stopping)
    echo.start()
    echo.stop()
    assert stopping.is_set()
