"""Objects that are opened at a broker by separate threads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import pytest

from source_connector.events.topic_openings import TopicOpenings


class Opening:
    """Openings whose attempts end when a test says so."""

    def __init__(self) -> None:
        self.steps: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.attempts: list[str] = []
        self.failed: list[str] = []
        self.error: Exception | None = None
        self.go_on = threading.Event()
        self.openings = TopicOpenings(self._open, self.steps.put, lambda topic, _: self.failed.append(topic))

    def _open(self, topic: str) -> str:
        self.attempts.append(topic)
        assert self.go_on.wait(10)
        if self.error is not None:
            raise self.error
        return f"producer of {topic}"

    def step(self) -> None:
        self.steps.get(timeout=10)()


def test_who_asks_does_not_wait_and_asks_again_later() -> None:
    """There is one attempt at a time for each topic."""
    opening = Opening()
    assert [opening.openings.get("a") for _ in range(3)] == [None] * 3
    opening.go_on.set()
    opening.step()
    assert (opening.openings.get("a"), opening.attempts) == ("producer of a", ["a"])


def test_a_topic_that_fails_pauses_alone_and_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause grows up to half a minute."""
    now = [100.0]
    monkeypatch.setattr("source_connector.events.topic_openings.time.monotonic", lambda: now[0])
    opening = Opening()
    opening.go_on.set()
    opening.error = ConnectionError("nobody serves it")
    pauses = []
    for _ in range(9):
        assert opening.openings.get("a") is None
        opening.step()
        pauses.append(opening.openings.wait_s("a"))
        assert opening.openings.get("a") is None
        now[0] += pauses[-1] + 0.001
    assert len(opening.attempts) == len(opening.failed) == 9
    assert pauses[0] <= 0.5 and 15 <= pauses[-1] <= 30
    opening.error = None
    now[0] -= 0.1
    assert [opening.openings.get(each) for each in ("a", "b")] == [None, None]
    opening.step()
    assert [opening.openings.get(each) for each in ("a", "b")] == [None, "producer of b"]


def test_many_topics_that_nobody_serves_have_some_threads_at_once() -> None:
    """The others begin when one of these has ended."""
    opening = Opening()
    for topic in "abcdefghijkl":
        opening.openings.get(topic)
    opening.go_on.set()
    for _ in range(8):
        opening.step()
    assert opening.openings.opened.keys() == set("abcdefgh")
    for topic in "ijkl":
        opening.openings.get(topic)
        opening.step()
    assert len(opening.openings.opened) == 12


class Refused:
    """Openings of topics that nobody serves, each of which was tried and may be tried again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, topics: str) -> None:
        self.now = 100.0
        monkeypatch.setattr("source_connector.events.topic_openings.time.monotonic", lambda: self.now)
        self.topics = topics
        self.opening = Opening()
        self.opening.error = ConnectionError("nobody serves it")
        self.opening.go_on.set()
        for topic in topics:
            self.opening.openings.get(topic)
            self.opening.step()
        self.opening.attempts.clear()
        self.now += 31

    def ask(self) -> None:
        for topic in self.topics:
            self.opening.openings.get(topic)


def test_topics_that_nobody_serves_keep_no_other_one_from_being_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for any number of such topics, although they are requested first. A topic that was open before does
    not count as one."""
    refused = Refused(monkeypatch, "abcdefghijklmnopqrst")
    opening = refused.opening
    opening.error = None
    opening.openings.get("was open")
    opening.step()
    opening.openings.drop("was open")
    refused.now += 31
    opening.go_on.clear()
    refused.ask()
    opening.openings.get("good")
    opening.openings.get("was open")
    opening.go_on.set()
    for _ in range(6):
        opening.step()
    assert opening.openings.opened.keys() == {*"abcd", "good", "was open"}


def test_topics_that_nobody_serves_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one of them that is served again would never be opened."""
    refused = Refused(monkeypatch, "abcdefghijkl")
    opening = refused.opening
    for _ in range(6):
        opening.go_on.clear()
        refused.ask()
        opening.go_on.set()
        for _ in range(4):
            opening.step()
        refused.now += 31
    assert sorted(opening.attempts) == sorted("abcdefghijkl" * 2)


def test_what_failed_while_it_was_used_is_opened_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is opened once, however many of its messages failed at the same time."""
    now = [100.0]
    monkeypatch.setattr("source_connector.events.topic_openings.time.monotonic", lambda: now[0])
    opening = Opening()
    opening.go_on.set()
    opening.openings.get("a")
    opening.step()
    for _ in range(50):
        opening.openings.drop("a")
    assert opening.openings.get("a") is None
    assert opening.openings.wait_s("a") <= 0.5
    now[0] += 0.5
    assert opening.openings.get("a") is None
    opening.step()
    assert (opening.openings.get("a"), len(opening.attempts)) == ("producer of a", 2)
