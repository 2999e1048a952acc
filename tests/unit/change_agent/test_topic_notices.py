"""The log names a reason once for all topics that have it, and says once when it is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from change_agent.publishing.topic_notices import TopicNotices
from tests.topics.events_topic import wait_until
from tests.unit.change_agent.memory_broker import HEADERS, TOPIC_A, MemoryBroker, PublisherLine

_PREFIX = "persistent://public/default/cdc-events-ks"
_TOPICS = [f"{_PREFIX}.t{number}" for number in range(100, 400)]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """The lines of the log so far; the test may clear it."""
    caplog.set_level("INFO", "change_agent.publishing")
    lines: list[str] = []
    original = caplog.handler.emit
    caplog.handler.emit = lambda record: (lines.append(record.getMessage()), original(record))[1]  # type: ignore[method-assign]
    yield lines
    caplog.handler.emit = original  # type: ignore[method-assign]


def _refuse(notices: TopicNotices, reason: str, attempt: int) -> None:
    for topic in _TOPICS:
        notices.refused(topic, reason.format(topic=topic), attempt)


def test_topics_with_one_reason_are_one_line(log: list[str]) -> None:
    """The reason has the topic's name, or that of its partition. The line comes at each doubling of the attempts."""
    notices = TopicNotices()
    for attempt in range(1, 10):
        _refuse(notices, f"no producer for {{topic}}-partition-{attempt % 4}: ConnectError", attempt)
    many = "300 topics (cdc-events-ks.t100, cdc-events-ks.t101, cdc-events-ks.t102, ...)"
    shared = "no producer for persistent://public/default/*: ConnectError"
    assert log == [
        f"waiting for {_TOPICS[0]}: no producer for {_TOPICS[0]}-partition-1: ConnectError (attempt 1)",
        *(f"waiting for {many}: {shared} (attempt {attempt})" for attempt in (2, 4, 8)),
    ]
    log.clear()
    for topic in _TOPICS:
        notices.recovered(topic, 9)
    assert log == ["300 topics take events again, after up to 9 attempts"]
    # The next outage is a new one.
    notices.refused(_TOPICS[0], "ConnectError", 1)
    assert log[1:] == [f"waiting for {_TOPICS[0]}: ConnectError (attempt 1)"]


def test_two_reasons_in_turns_are_not_told_at_each_change(log: list[str]) -> None:
    """While a broker starts, it refuses connections, then requests, then connections again."""
    notices = TopicNotices()
    for attempt in range(1, 9):
        _refuse(notices, "503 Service Unavailable" if attempt % 3 == 0 else "connection refused", attempt)
    assert [line.partition(": ")[2] for line in log] == [
        "connection refused (attempt 1)",
        "connection refused (attempt 2)",
        "503 Service Unavailable (attempt 3)",
        "connection refused (attempt 4)",
        "connection refused (attempt 8)",
    ]


def test_a_topic_that_has_its_own_reason_does_not_hide_that_the_others_are_back(log: list[str]) -> None:
    """It keeps the reason of the outage until its next attempt."""
    notices = TopicNotices()
    _refuse(notices, "connection refused", 1)
    for topic in _TOPICS[1:]:
        notices.recovered(topic, 1)
    notices.refused(_TOPICS[0], "IncompatibleSchema", 2)
    assert log[1:] == [
        "299 topics take events again, after up to 1 attempts",
        f"waiting for {_TOPICS[0]}: IncompatibleSchema (attempt 2)",
    ]
    notices.recovered(_TOPICS[0], 2)
    assert log[3:] == [f"{_TOPICS[0]} takes events again, after 2 attempts"]


def test_the_topic_that_is_back_is_named_when_the_other_one_has_another_reason(log: list[str]) -> None:
    """The other one is not back."""
    notices = TopicNotices()
    for topic in _TOPICS[:2]:
        notices.refused(topic, "connection refused", 1)
    notices.recovered(_TOPICS[0], 3)
    notices.refused(_TOPICS[1], "IncompatibleSchema", 4)
    assert log[1:] == [
        f"{_TOPICS[0]} takes events again, after 3 attempts",
        f"waiting for {_TOPICS[1]}: IncompatibleSchema (attempt 4)",
    ]


def test_a_topic_that_is_refused_long_after_another_one_is_named(log: list[str]) -> None:
    """The other one has the same reason, or this one had it in an earlier outage that ended with another reason."""
    first, second = _TOPICS[:2]
    notices = TopicNotices()
    for attempt in range(1, 101):
        notices.refused(first, f"{first} does not exist", attempt)
    log.clear()
    for attempt in range(1, 101):
        notices.refused(second, f"{second} does not exist", attempt)
    assert log[0] == f"waiting for {second}: {second} does not exist (attempt 1)"
    assert len(log) == 7 and log[1].startswith("waiting for 2 topics (")
    notices.refused(second, "connection refused", 101)
    notices.recovered(second, 101)
    log.clear()
    notices.refused(second, f"{second} does not exist", 1)
    assert log == [f"waiting for {second}: {second} does not exist (attempt 1)"]
    for topic in _TOPICS[2:]:
        notices.refused(topic, f"{topic} does not exist", 1)
    assert len(log) == 1


def test_each_topic_that_does_not_exist_is_named(log: list[str]) -> None:
    """With `createTopics: false`, somebody has to create it."""
    notices = TopicNotices()
    for topic in _TOPICS:
        for attempt in (1, 2, 3):
            notices.refused(topic, "does not exist; create it", attempt, is_own=True)
    assert log == [
        f"waiting for {topic}: does not exist; create it (attempt {attempt})" for topic in _TOPICS for attempt in (1, 2)
    ]
    log.clear()
    for topic in _TOPICS:
        notices.recovered(topic, 3)
    assert log == [f"{topic} takes events again, after 3 attempts" for topic in _TOPICS]


def test_reasons_with_a_number_are_not_remembered_without_end() -> None:
    """A text may have the id of a request."""
    notices = TopicNotices()
    for attempt in range(1, 1_000):
        notices.refused(_TOPICS[0], f"request {attempt} failed", attempt)
    assert len(notices._reasons) <= 101


def test_an_outage_of_all_topics_is_a_few_lines(log: list[str], tmp_path: Path) -> None:
    """A publisher with twelve tables, whose broker is away for five seconds."""
    broker = MemoryBroker()
    tables = list(HEADERS)[:12]
    broker.refused_topics = {TOPIC_A.replace("ks.a", f"ks.{table}") for table in tables}
    line = PublisherLine(broker, tmp_path)
    line.publisher.start()
    for table in tables:
        line.publish(table, 1)
    wait_until(lambda: len(line.publisher.statuses) == 12, "all are refused", 20)
    wait_until(lambda: all(each.attempts >= 4 for each in line.publisher.statuses.values()), "again and again", 20)
    broker.refused_topics.clear()
    wait_until(lambda: line.acknowledged() == 12, "all are published", 20)
    line.publisher.stop()
    waiting = [each for each in log if each.startswith("waiting for ")]
    assert len(waiting) <= 5
    assert waiting[0].endswith("is refused (attempt 1)") and " topics (events-ks.a, " in waiting[-1]
    [over] = [each for each in log if "again" in each]
    assert over.startswith("12 topics take events again, after up to ")
    assert not [each for each in log if "is open" in each]


def test_topics_that_are_held_together_share_one_line(log: list[str], tmp_path: Path) -> None:
    """While the broker of many topics is down, each of them would have a line of its own."""
    usable, *tables = list(HEADERS)[:13]
    broker = MemoryBroker()
    broker.refused_topics |= {TOPIC_A.removesuffix("a") + table for table in tables}
    line = PublisherLine(broker, tmp_path, hold_events=5, hold_s=1.5)
    line.publisher.start()
    for table in tables:
        line.publish(table, 1)
    line.publish(usable, 1)
    wait_until(lambda: line.acknowledged() == 13, "they are held", 20)
    line.publisher.stop()
    [held] = [each for each in log if "are held in" in each]
    assert held.startswith("12 topics (events-ks.b, events-ks.c, events-ks.d, ...) cannot be used for up to ")
    assert "their events are held in" in held


def test_a_topic_without_events_has_no_problem_once_it_can_be_used(log: list[str], tmp_path: Path) -> None:
    """It was lost and created again. No event is there whose acknowledgement would show that."""
    broker = MemoryBroker()
    line = PublisherLine(broker, tmp_path, check_s=0.2)
    line.publisher.start()
    line.publish("a", 1)
    wait_until(lambda: line.acknowledged() == 1, "it is published", 20)
    broker.lost_topics.add(TOPIC_A)
    wait_until(lambda: any("waiting for " in each for each in log), "it is lost", 20)
    broker.lost_topics.clear()
    wait_until(lambda: "takes events again" in log[-1], "it can be used", 20)
    wait_until(lambda: line.publisher.statuses["ks.a"].problem is None, "the status says so", 20)
    line.publisher.stop()
