"""How the thread that writes dead letters handles refusals of the broker and unexpected errors."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace

import pulsar
import pytest

from source_connector.events.dead_letter_writer import DeadLettersWritten, DeadLetterWriter
from source_connector.events.dead_letters import DeadLetter
from source_connector.events.pulsar_access import PulsarOptions

OPTIONS = PulsarOptions(service_url="pulsar://broker:6650")
GOOD = DeadLetter(topic="events", message_id="(1,2,3,4)", reason="no event", data=b"good")
LATE = DeadLetter(topic="events", message_id="(1,3,3,4)", reason="no event", data=b"late")


class Broker:
    """Keeps the messages that it takes; gives the listed refusals for some bytes first."""

    def __init__(self, refusals: Mapping[bytes, list[Exception]]) -> None:
        self.refusals = refusals
        self.taken: list[tuple[bytes, dict[str, str]]] = []

    def send(self, data: bytes, properties: dict[str, str]) -> None:
        if self.refusals.get(data):
            raise self.refusals[data].pop()
        self.taken.append((data, properties))


class Writing:
    """A writer with a broker, and the callbacks and errors that it has posted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **refusals: list[Exception]) -> None:
        self.broker = Broker({data.encode(): errors for data, errors in refusals.items()})
        client = SimpleNamespace(
            subscribe=lambda *_, **__: SimpleNamespace(close=lambda: None),
            create_producer=lambda *_, **__: self.broker,
        )
        monkeypatch.setattr("source_connector.events.dead_letter_writer.new_client", lambda options: client)
        self.posted: queue.SimpleQueue[DeadLettersWritten | Exception] = queue.SimpleQueue()
        self.written: list[str] = []
        self.writer = DeadLetterWriter(OPTIONS, "dead", self.posted.put)

    def write(self, name: str, *letters: DeadLetter) -> None:
        self.writer.write(letters, partial(self.written.append, name))

    def next_written(self) -> str:
        posted = self.posted.get(timeout=10)
        assert isinstance(posted, DeadLettersWritten), posted
        posted.then()
        return self.written[-1]


def test_a_letter_that_is_not_taken_stands_back_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call is answered once, when the broker has all of its dead letters; none is written twice."""
    writing = Writing(monkeypatch, late=[pulsar.Timeout("refused"), pulsar.Timeout("refused")])
    writing.write("first", GOOD, LATE)
    writing.write("second", GOOD)
    assert [writing.next_written(), writing.next_written()] == ["second", "first"]
    assert [data for data, _ in writing.broker.taken] == [b"good", b"good", b"late"]


def test_a_letter_that_is_too_large_for_its_properties_is_written_without_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Dead letter and log say what is missing and where the original is; it cannot be sent again."""
    letter = DeadLetter(
        topic="events",
        message_id="(1,2,3,4)",
        reason="no event",
        data=b"large",
        message_key="k",
        message_properties={"writetime": "9" * 40},
    )
    writing = Writing(monkeypatch, large=[pulsar.MessageTooBig("too big")])
    writing.write("large", letter)
    assert writing.next_written() == "large"
    ((data, properties),) = writing.broker.taken
    read = DeadLetter.from_message(data, properties)
    assert (read.topic, read.message_id, read.data) == ("events", "(1,2,3,4)", b"large")
    assert (read.message_key, read.message_properties) == ("", {})
    assert (
        read.cut
        == "its key and its 1 properties, 50 bytes, which the broker does not take beside the dead letter's own"
    )
    assert caplog.messages == [
        f"events message (1,2,3,4): the dead letter is written without {read.cut}; it cannot be sent again, so write its row again"
    ]


def test_what_nobody_has_foreseen_ends_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the event of a dead letter that is never written would stay unacknowledged without a report."""
    writing = Writing(monkeypatch, good=[TypeError("unforeseen")])
    writing.write("good", GOOD)
    posted = writing.posted.get(timeout=10)
    assert isinstance(posted, TypeError)
