"""TopicReader: messages that the broker delivers again. Messages are the client's own; the consumer is in memory."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import _pulsar
import pulsar
import pytest

from schemas.mutation_event import encode_events
from source_connector.events.events_message import STALE_AFTER_S, EventsMessage, UnreadableMessage
from source_connector.events.pulsar_access import PulsarConnection, PulsarOptions
from source_connector.events.reader_room import ReaderLimits
from source_connector.events.takeovers import Takeovers
from source_connector.events.topic_reader import ReceivedMessage, Subscription, TopicReader
from tests.unit.source_connector.events import event, pending

VERSION = 3


class Consumer:
    """Gives the messages that a test delivers."""

    def __init__(self) -> None:
        self.delivered: list[pulsar.Message] = []
        self.acknowledged: list[int] = []

    def deliver(self, entry: int, events: int, lacks: int = 0) -> None:
        """Deliver the message of this entry: so many events of one key, which is the entry. Its end `lacks` so many bytes."""
        (waiting,) = pending(event(entry))
        data = encode_events(replace(waiting.message.only(waiting.event), events=(waiting.event,) * events))
        data = data[: len(data) - lacks]
        message = pulsar.Message._wrap(_pulsar.MessageBuilder().content(data).build())
        message.topic_name = lambda: "events-partition-0"
        message.message_id = lambda: pulsar.MessageId(0, 1, entry, -1)
        message.publish_timestamp = lambda: 0
        message._message = SimpleNamespace(int_schema_version=lambda: VERSION, data=lambda: data)
        self.delivered.append(message)

    def receive(self, timeout_millis: int) -> pulsar.Message:
        return self.delivered.pop(0)

    def acknowledge(self, message_id: pulsar.MessageId) -> None:
        self.acknowledged.append(message_id.entry_id())


class Case:
    """A reader. If it `is_shared`, other instances may have had a partition before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_shared: bool) -> None:
        self.now = 100.0
        monkeypatch.setattr("source_connector.events.topic_reader.time.monotonic", lambda: self.now)
        connection = PulsarConnection(PulsarOptions(service_url="pulsar://127.0.0.1:1"))
        self.posted: list[ReceivedMessage | Exception] = []
        subscription = Subscription(name="sub", datastax_type="Key_Shared", is_shared=is_shared)
        self.reader = TopicReader(connection, "events", subscription, ReaderLimits(100), self.posted.append)
        self.reader._schemas[VERSION] = {}
        self.reader._of_today.add(VERSION)
        if is_shared:
            self.reader._takeovers = Takeovers(4, self.now)
        self.consumer = Consumer()
        self.reader._consumer = cast("Any", self.consumer)

    def receive(self, entry: int, events: int = 1, lacks: int = 0) -> None:
        self.consumer.deliver(entry, events, lacks)
        self.reader._receive(cast("Any", self.consumer))

    def taken(self) -> EventsMessage:
        """The one message that was given to the owner."""
        self.reader._post_what_is_due()
        (message,) = self.posted
        assert isinstance(message, EventsMessage)
        self.posted.clear()
        return message


def test_the_records_of_a_message_that_another_instance_may_have_had_meanwhile_are_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker delivered the message again, after a reconnection. Its first copy is still in work, and stays the only
    one."""
    case = Case(monkeypatch, is_shared=True)
    case.receive(1)
    case.now += STALE_AFTER_S
    message = case.taken()
    assert message.overtaken_after == 100 + STALE_AFTER_S
    case.receive(1)
    assert message.overtaken_after == 0.0
    case.now += STALE_AFTER_S
    case.reader._post_what_is_due()
    assert case.posted == []
    message.settle()
    assert case.consumer.acknowledged == [1]
    case.receive(1)
    case.now += STALE_AFTER_S
    assert case.taken().overtaken_after > 0.0


def test_a_message_that_comes_again_to_the_only_instance_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else can have had it."""
    case = Case(monkeypatch, is_shared=False)
    case.receive(1)
    message = case.taken()
    case.receive(1)
    assert (case.posted, message.overtaken_after) == ([], math.inf)


@pytest.mark.parametrize("text", [b'"string"', b'["null","string"]'])
def test_a_schema_that_is_no_record_makes_its_messages_unreadable(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    """Something else writes to the topic."""
    case = Case(monkeypatch, is_shared=False)
    case.reader._schemas.clear()
    case.reader._of_today.clear()
    monkeypatch.setattr(case.reader, "_registered", lambda version: text)
    case.receive(1)
    (message,) = case.posted
    assert isinstance(message, UnreadableMessage)
    assert message.reason == "events: schema version 3 is no Avro schema (it is no record)"


def test_events_that_stay_in_work_leave_room_for_the_others_of_their_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that cannot be read has an event in each message. A message of five events keeps room for one, not for five."""
    case = Case(monkeypatch, is_shared=False)
    for entry in range(30):
        case.receive(entry, events=5)
        case.taken().settle(4)
    assert case.consumer.acknowledged == []
    assert case.reader._room.wait(0) == (True, True)


def test_a_message_with_more_events_than_its_topic_may_hold_is_decoded_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many topics, the objects of all events would take most of the process's memory. All events count, and the
    message is acknowledged with the last one."""
    case = Case(monkeypatch, is_shared=False)
    case.receive(1, events=1000)
    message = case.taken()
    assert (len(message.pending), message.unsettled) == (100, 1000)
    assert case.reader._room.wait(0) == (False, False)
    taken = message.take_events()
    assert (len(taken), message.is_taken) == (1000, True)
    message.settle(999)
    assert case.consumer.acknowledged == []
    message.settle()
    assert case.consumer.acknowledged == [1]


def test_a_message_whose_last_event_is_damaged_is_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first events could be decoded. It becomes one dead letter, and none of its events is published."""
    case = Case(monkeypatch, is_shared=False)
    case.receive(1, events=1000, lacks=10)
    (message,) = case.posted
    assert isinstance(message, UnreadableMessage)
    assert message.unsettled == 1
