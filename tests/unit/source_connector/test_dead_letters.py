"""Which topics are read as dead letters: others must get no subscription, which would keep their messages for ever."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulsar
import pytest

from source_connector.errors import DeadLettersError
from source_connector.events import dead_letters as module
from source_connector.events.dead_letters import DeadLetter, dead_letters, resend
from source_connector.events.pulsar_access import PulsarOptions

OPTIONS = PulsarOptions(service_url="pulsar://broker:6650")
LETTER = DeadLetter(topic="events", message_id="1", reason="why", data=b"x").properties
OTHER = {"kind": "row"}
LARGE = b"large"


@dataclass
class Message:
    at: int
    told: Mapping[str, str]

    def data(self) -> bytes:
        return LARGE if self.told.get("message_id") == "large" else b"x"

    def properties(self) -> Mapping[str, str]:
        return self.told

    def message_id(self) -> pulsar.MessageId:
        return pulsar.MessageId(-1, 1, self.at, -1)


@dataclass
class Broker:
    """One topic; `subscriptions` are the durable subscriptions that were made. The object is also each client, reader
    and producer."""

    messages: Sequence[Message]
    is_silent: bool = False
    subscriptions: list[str] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    name: str = "dead"
    producers: list[str] = field(default_factory=list)
    read: int = 0
    received: int = 0

    def get_topic_partitions(self, topic: str) -> list[str]:
        return [topic]

    def create_reader(self, topic: str, start: pulsar.MessageId) -> Broker:
        return self

    def has_message_available(self) -> bool:
        return self.read < len(self.messages)

    def read_next(self, timeout_millis: int) -> Message:
        if self.is_silent:
            raise pulsar.Timeout
        self.read += 1
        return self.messages[self.read - 1]

    def subscribe(self, topic: str, name: str, **settings: object) -> Broker:
        self.subscriptions.append(name)
        return self

    def get_last_message_id(self) -> pulsar.MessageId:
        return self.messages[-1].message_id() if self.messages else pulsar.MessageId(-1, 1, -1, -1)

    def receive(self, timeout_millis: int) -> Message:
        self.received += 1
        return self.messages[self.received - 1]

    def acknowledge(self, message: Message) -> None:
        self.acknowledged.append(message.at)

    def create_producer(self, topic: str, **settings: object) -> Broker:
        self.producers.append(topic)
        if topic == "gone":
            raise pulsar.TopicNotFound("TopicNotFound")
        if topic == "silent":
            raise pulsar.Timeout("Timeout")
        return self

    def send(self, data: bytes, **settings: object) -> None:
        if data == LARGE:
            raise pulsar.MessageTooBig("MessageTooBig")
        self.sent.append(data)

    def close(self) -> None:
        pass


def _broker(monkeypatch: pytest.MonkeyPatch, *told: Mapping[str, str], is_silent: bool = False) -> Broker:
    broker = Broker([Message(at, each) for at, each in enumerate(told)], is_silent)
    monkeypatch.setattr(module, "new_client", lambda options: broker)
    return broker


def _letters_and_error(command: Any, broker: Broker) -> tuple[list[DeadLetter], str]:
    found: list[DeadLetter] = []
    with pytest.raises(DeadLettersError) as raised:
        found.extend(command(OPTIONS, broker.name))
    return found, str(raised.value)


@pytest.mark.parametrize("command", [dead_letters, resend])
def test_a_topic_of_other_messages_gets_no_subscription(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the topic."""
    broker = _broker(monkeypatch, OTHER, OTHER)
    with pytest.raises(
        DeadLettersError, match=r"^data: 2 messages were read: .*is not a dead letter; is it the right"
    ) as raised:
        list(command(OPTIONS, "data"))
    assert "\n" not in str(raised.value)
    assert broker.subscriptions == []


def test_an_empty_topic_gets_no_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic may be a data topic without a record."""
    broker = _broker(monkeypatch)
    assert list(dead_letters(OPTIONS, "data")) == []
    assert broker.subscriptions == []


def test_a_large_topic_of_others_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first messages show what kind of topic it is."""
    broker = _broker(monkeypatch, *[OTHER] * 5_000)
    with pytest.raises(DeadLettersError, match="1,000 messages were read"):
        list(dead_letters(OPTIONS, "data"))
    assert broker.subscriptions == []


def test_dead_letters_are_listed_and_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read by the subscription that retains them."""
    broker = _broker(monkeypatch, LETTER, LETTER)
    assert [each.reason for each in dead_letters(OPTIONS, "dead")] == ["why", "why"]
    assert (broker.subscriptions, broker.acknowledged) == (["resend"], [])
    broker.received = 0
    assert [each.topic for each in resend(OPTIONS, "dead")] == ["events", "events"]
    assert (broker.acknowledged, broker.sent) == ([0, 1], [b"x", b"x"])


def test_a_foreign_message_before_the_letters_does_not_hide_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retention keeps messages that somebody has skipped."""
    broker = _broker(monkeypatch, OTHER, LETTER)
    broker.received = 1  # The first message was skipped.
    assert [each.reason for each in dead_letters(OPTIONS, "dead")] == ["why"]


def test_where_a_reader_gets_no_answer_the_subscription_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message for which the reader waits may be gone."""
    broker = _broker(monkeypatch, LETTER, is_silent=True)
    assert [each.reason for each in dead_letters(OPTIONS, "dead")] == ["why"]
    assert broker.subscriptions == ["resend"]


def test_a_foreign_message_among_the_letters_stays_and_stops_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody wrote it by hand. The error at the end names it, and says how to remove it."""
    listed, error = _letters_and_error(dead_letters, _broker(monkeypatch, LETTER, OTHER, LETTER))
    assert (len(listed), error[:35]) == (2, "dead: 1 messages without the proper")
    broker = _broker(monkeypatch, LETTER, OTHER, LETTER)
    sent, error = _letters_and_error(resend, broker)
    assert (len(sent), broker.acknowledged) == (2, [0, 2])
    assert "`pulsar-admin topics clear-backlog --subscription resend dead` removes them: (1,1,-1,-1)" in error
    assert "\n" not in error


def test_what_a_topic_does_not_take_holds_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deleted topic is tried once for all its dead letters; a topic that has refused a large one gets the others."""
    gone, large = LETTER | {"topic": "gone"}, LETTER | {"message_id": "large"}
    broker = _broker(monkeypatch, gone, large, LETTER, gone, LETTER)
    sent, error = _letters_and_error(resend, broker)
    assert (len(sent), broker.acknowledged, broker.producers) == (2, [2, 4], ["gone", "events"])
    assert error == (
        "dead: 3 dead letters were not sent again and stay, because their topics do not take them; mend the topics, then "
        "resend: gone 1 (TopicNotFound), events large (MessageTooBig), gone 1 (TopicNotFound)"
    )


def test_a_topic_that_does_not_answer_is_tried_again_rather_than_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic is tried once for all its dead letters, because each try takes half a minute."""
    broker = _broker(monkeypatch, *[LETTER | {"topic": "silent"}] * 2, LETTER | {"topic": "gone"}, LETTER)
    sent, error = _letters_and_error(resend, broker)
    assert (len(sent), broker.acknowledged, broker.producers) == (1, [3], ["silent", "gone", "events"])
    assert error == (
        "dead: 1 dead letters were not sent again and stay, because their topics do not take them; mend the topics, then "
        "resend: gone 1 (TopicNotFound); 2 dead letters were not sent again and stay, because the brokers of their topics did "
        "not answer; resend again when they do: silent 1 (Timeout), silent 1 (Timeout)"
    )


def test_letters_that_stay_are_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deleted topic may have any number of them."""
    _broker(monkeypatch, *[LETTER | {"topic": "gone"}] * 100, LETTER)
    before = _living_letters()
    sent = resend(OPTIONS, "dead")
    assert next(sent).topic == "events"
    assert _living_letters() <= before + 2
    with pytest.raises(DeadLettersError, match=r"^dead: 100 dead letters .* and 80 more$"):
        next(sent)


def _living_letters() -> int:
    gc.collect()
    return sum(type(each) is DeadLetter for each in gc.get_objects())


def test_the_error_has_a_few_names_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one line of a log."""
    _, error = _letters_and_error(dead_letters, _broker(monkeypatch, LETTER, *[OTHER] * 30))
    assert error.endswith("(1,20,-1,-1) and 10 more")


class PartitionedBroker:
    """A topic of partitions. As in Pulsar's client, a consumer of the whole topic does not know its last message."""

    def __init__(self, *partitions: Broker) -> None:
        self.topics = {f"dead-partition-{at}": each for at, each in enumerate(partitions)}
        self.topics["dead"] = Whole([])

    def get_topic_partitions(self, topic: str) -> list[str]:
        return list(self.topics)[:-1]

    def create_reader(self, topic: str, start: pulsar.MessageId) -> Broker:
        return self.topics[topic]

    def subscribe(self, topic: str, name: str, **settings: object) -> Broker:
        return self.topics[topic].subscribe(topic, name)

    def create_producer(self, topic: str, **settings: object) -> Broker:
        return self.topics["dead"]

    def close(self) -> None:
        pass


class Whole(Broker):
    """All partitions of a topic as one consumer."""

    def get_last_message_id(self) -> pulsar.MessageId:
        raise pulsar.OperationNotSupported("OperationNotSupported")


def test_each_partition_of_a_topic_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """`allowAutoTopicCreationType=partitioned` makes such a topic with the connector's first dead letter. An empty
    partition is not waited for."""
    first, empty, last = Broker([Message(0, LETTER), Message(1, LETTER)]), Broker([]), Broker([Message(0, LETTER)])
    broker = PartitionedBroker(first, empty, last)
    monkeypatch.setattr(module, "new_client", lambda options: broker)
    assert len(list(dead_letters(OPTIONS, "dead"))) == 3
    for each in (first, last):
        each.read = each.received = 0
    assert len(list(resend(OPTIONS, "dead"))) == 3
    assert (first.acknowledged, last.acknowledged, len(broker.topics["dead"].sent)) == ([0, 1], [0], 3)
    assert (first.subscriptions, empty.subscriptions) == (["resend", "resend"], [])


def test_partitions_without_any_letter_are_of_another_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of all partitions count. If one partition has a dead letter, the others' messages do not matter."""
    others = Broker([Message(0, OTHER)]), Broker([Message(0, OTHER)])
    monkeypatch.setattr(module, "new_client", lambda options: PartitionedBroker(*others))
    with pytest.raises(DeadLettersError, match=r"^dead: 2 messages were read"):
        list(dead_letters(OPTIONS, "dead"))
    assert [each.subscriptions for each in others] == [[], []]
    one, letter = Broker([Message(0, OTHER)]), Broker([Message(0, LETTER)])
    monkeypatch.setattr(module, "new_client", lambda options: PartitionedBroker(one, letter))
    assert len(list(dead_letters(OPTIONS, "dead"))) == 1


@pytest.mark.parametrize("is_silent", [False, True])
def test_letters_behind_many_other_messages_of_a_partition_are_read(
    monkeypatch: pytest.MonkeyPatch, *, is_silent: bool
) -> None:
    """Another partition shows that the topic is right. The first look ends after 1,000 messages or at a pause."""
    first = Pausing([*(Message(at, OTHER) for at in range(1000)), Message(1000, LETTER)])
    first.pauses_at = 5 if is_silent else 1001
    second = Broker([Message(0, LETTER)])
    broker = PartitionedBroker(first, second)
    monkeypatch.setattr(module, "new_client", lambda options: broker)
    sent: list[DeadLetter] = []
    with pytest.raises(DeadLettersError, match=r"^dead: 1000 messages without the property 'topic'"):
        sent.extend(resend(OPTIONS, "dead"))
    assert (len(sent), first.acknowledged, second.acknowledged) == (2, [1000], [0])


class Pausing(Broker):
    """A topic whose reader times out after some messages."""

    pauses_at = 0

    def read_next(self, timeout_millis: int) -> Message:
        if self.read == self.pauses_at:
            raise pulsar.Timeout
        return super().read_next(timeout_millis)
