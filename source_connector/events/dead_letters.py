"""The dead-letter topic: events that could not be published, each with the reason, until they are sent again.

A dead letter holds the bytes of a message of an events topic: a message that could not be decoded, unchanged, or a
message with the one event that could not be published. Its properties say where it came from and why it is here. A
subscription of the topic keeps the dead letters. `resend` sends them again. That is safe at any time, because an event
leads to the row as it is at that time.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Self

import pulsar
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from clients.pulsar_schema import ReadyBytes
from schemas.mutation_event import MUTATION_EVENTS_SCHEMA_TEXT, encode_events
from schemas.topics import RESEND_SUBSCRIPTION
from source_connector.errors import DeadLettersError
from source_connector.events.events_message import PendingEvent, RawMessage, UnreadableMessage
from source_connector.events.pulsar_access import PulsarOptions, new_client, schema_info

__all__ = ["RESEND_SUBSCRIPTION", "DeadLetter", "dead_letters", "new_producer", "resend", "subscribe"]

_LATEST_SCHEMA: Final = -1
_RECEIVE_TIMEOUT_MS: Final = 5_000
# Only one reader may hold the subscription. A list takes a short time, and the connector holds the subscription only
# for a moment when it writes its first letter.
_LONGEST_TURN_S: Final = 10.0
_BUSY_PAUSE_S: Final = 0.2
# After so many messages that are no dead letters, the topic is not a dead-letter topic. Fewer may be written by hand.
_MOST_OTHERS: Final = 1_000
# A reason may quote a whole value.
_LONGEST_REASON: Final = 2_000
_MOST_NAMES: Final = 20
# Errors that mean that the broker does not answer (yet).
_SILENCES: Final = (
    pulsar.Timeout,
    pulsar.ConnectError,
    pulsar.NotConnected,
    pulsar.ServiceUnitNotReady,
    pulsar.TooManyLookupRequestException,
)
# Prefix of the names of properties that the message of a DataStax agent had.
_OWN: Final = "message."


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that is to be sent to its partition of an events topic again, and the reason why it was set aside.

    `schema_version` is the version of the events topic's schema with which `data` was written; None for the schema of
    this version of the connector.
    """

    topic: str
    message_id: str
    reason: str
    data: bytes
    schema_version: int | None = None
    table: str = ""
    place: str = ""
    """Node, segment, position and ordinal of the event; empty for a message that could not be decoded."""
    key: str = ""
    """The partition key's CQL bytes in hex."""
    message_key: str = ""
    """The key of a DataStax agent's message. `message_properties` are the properties of that message."""
    message_properties: Mapping[str, str] = field(default_factory=dict)
    cut: str = ""
    """Names the parts of the message that are missing here. Such a letter cannot be sent again."""

    @classmethod
    def of_event(cls, pending: PendingEvent, reason: str) -> Self:
        """A dead letter of an event that could not be published."""
        event, message = pending.event, pending.message
        raw = message.raw or RawMessage(data=encode_events(message.only(event)))
        return cls(
            topic=message.topic,
            message_id=str(message.message_id),
            reason=reason,
            data=raw.data,
            message_key=raw.key,
            message_properties=raw.properties,
            table=".".join(message.header[:2]),
            place=f"{message.node_text} {message.segment_id}:{event.position}:{event.ordinal}",
            key=event.partition_key.hex(),
        )

    @classmethod
    def of_message(cls, message: UnreadableMessage) -> Self:
        """A dead letter of a message that could not be decoded."""
        return cls(
            topic=message.topic,
            message_id=str(message.message_id),
            reason=message.reason,
            data=message.raw.data,
            schema_version=message.schema_version,
            message_key=message.raw.key,
            message_properties=message.raw.properties,
        )

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the dead letter's message."""
        found = {
            "topic": self.topic,
            "message_id": self.message_id,
            "reason": self.reason[:_LONGEST_REASON],
            "table": self.table,
            "place": self.place,
            "key": self.key,
            "schema_version": "" if self.schema_version is None else str(self.schema_version),
            "message_key": self.message_key,
            "cut": self.cut,
        }
        found |= {f"{_OWN}{name}": text for name, text in self.message_properties.items()}
        return {name: text for name, text in found.items() if text}

    def without_its_properties(self) -> Self:
        """The same dead letter without the message's key and properties, which are too large beside its own."""
        texts = [self.message_key, *itertools.chain.from_iterable(self.message_properties.items())]
        cut = (
            f"its key and its {len(self.message_properties)} properties, {sum(len(each.encode()) for each in texts):,} "
            "bytes, which the broker does not take beside the dead letter's own"
        )
        return replace(self, message_key="", message_properties={}, cut=cut)

    @classmethod
    def from_message(cls, data: bytes, properties: Mapping[str, str]) -> Self:
        """The dead letter in a message. Raises DeadLettersError if the message does not name an events topic."""
        if not _is_letter(properties):
            raise DeadLettersError(
                "a message without the property 'topic' is not a dead letter; is it the right topic?"
            )
        version = properties.get("schema_version", "")
        return cls(
            topic=properties["topic"],
            message_id=properties.get("message_id", ""),
            reason=properties.get("reason", ""),
            data=data,
            schema_version=int(version) if version.removeprefix("-").isdecimal() else None,
            table=properties.get("table", ""),
            place=properties.get("place", ""),
            key=properties.get("key", ""),
            message_key=properties.get("message_key", ""),
            cut=properties.get("cut", ""),
            message_properties={
                name.removeprefix(_OWN): text for name, text in properties.items() if name.startswith(_OWN)
            },
        )


def dead_letters(options: PulsarOptions, topic: str) -> Generator[DeadLetter, None, None]:
    """All dead letters that were not sent again, oldest first; nothing is changed.

    Raises DeadLettersError. For messages that are no dead letters it does so only after all dead letters.
    """
    left = _Left(topic)
    with _Reading(options, topic) as reading:
        for message in reading.messages():
            letter = left.letter_of(message)
            if letter is not None:
                yield letter
    left.report()


def resend(options: PulsarOptions, topic: str) -> Generator[DeadLetter, None, None]:
    """Send all dead letters to their events topics again. Each is yielded when the broker has it.

    Only then a dead letter leaves the dead-letter topic. Raises DeadLettersError. It does so only after all others for
    letters that lack a part of their message, for letters that their topics do not take, and for messages that are no
    dead letters.
    """
    left = _Left(topic)
    with _Reading(options, topic) as reading:
        for message in reading.messages():
            letter = left.letter_of(message)
            if letter is None:
                continue
            if letter.cut:
                left.cut.append(f"{letter.topic} {letter.message_id}")
                continue
            refusal = reading.send(letter)
            if refusal is not None:
                names = left.unanswered if refusal.is_silence else left.refused
                names.add(f"{letter.topic} {letter.message_id} ({refusal.reason})")
                continue
            reading.acknowledge(message)
            yield letter
    left.report()


@dataclass(slots=True)
class _Names:
    """The number of some names, and the first of them: a topic may have any number."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, name: str) -> None:
        self.count += 1
        if self.count <= _MOST_NAMES:
            self.first.append(name)

    @property
    def text(self) -> str:
        """The names for an error message."""
        more = f" and {self.count - _MOST_NAMES:,} more" if self.count > _MOST_NAMES else ""
        return ", ".join(self.first) + more


@dataclass(slots=True)
class _Left:
    """The messages that stay on the dead-letter topic, for the error at the end."""

    topic: str
    cut: list[str] = field(default_factory=list)
    refused: _Names = field(default_factory=_Names)
    unanswered: _Names = field(default_factory=_Names)
    foreign: _Names = field(default_factory=_Names)

    def letter_of(self, message: pulsar.Message) -> DeadLetter | None:
        """The dead letter in a message; None if it is none, because somebody wrote it by hand."""
        if _is_letter(message.properties()):
            return DeadLetter.from_message(message.data(), message.properties())
        self.foreign.add(str(message.message_id()))
        return None

    def report(self) -> None:
        """Raise DeadLettersError if any message stays."""
        problems = []
        if self.cut:
            problems.append(
                f"{len(self.cut)} dead letters were not sent again and stay, because their messages were too large to be kept "
                f"whole (the property 'cut' names what is missing); write their rows again: {', '.join(self.cut)}"
            )
        if self.refused.count:
            problems.append(
                f"{self.refused.count} dead letters were not sent again and stay, because their topics do not take them; "
                f"mend the topics, then resend: {self.refused.text}"
            )
        if self.unanswered.count:
            problems.append(
                f"{self.unanswered.count} dead letters were not sent again and stay, because the brokers of their topics did not "
                f"answer; resend again when they do: {self.unanswered.text}"
            )
        if self.foreign.count:
            problems.append(
                f"{self.foreign.count} messages without the property 'topic' are not dead letters and stay; when no dead letter "
                f"is left, `pulsar-admin topics clear-backlog --subscription {RESEND_SUBSCRIPTION} {self.topic}` removes "
                f"them: {self.foreign.text}"
            )
        if problems:
            raise DeadLettersError(f"{self.topic}: {'; '.join(problems)}")


def _is_letter(properties: Mapping[str, str]) -> bool:
    return bool(properties.get("topic"))


class _Look(NamedTuple):
    """The result of reading a partition's first messages. `others` is the number of messages that are no dead letters.

    `is_cut`: there may be further messages, which were not read.
    """

    may_have_letters: bool
    others: int = 0
    is_cut: bool = False


class _Refusal(NamedTuple):
    """Why a letter was not sent. `is_silence`: the broker did not answer, so the topic itself may be in order.

    The exception is not kept, because its traceback would keep the letters in memory.
    """

    reason: str
    is_silence: bool


class _Reading:
    """A client, and the subscription that keeps the dead letters of the partition that is read."""

    def __init__(self, options: PulsarOptions, topic: str) -> None:
        self._topic = topic
        self._client = new_client(options)
        self._consumer: pulsar.Consumer | None = None
        self._producers: dict[tuple[str, int | None], pulsar.Producer] = {}
        self._refusals: dict[tuple[str, int | None], _Refusal] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._client.close()
        if isinstance(error, pulsar.PulsarException):
            raise DeadLettersError(f"{self._topic}: {error}") from error

    def messages(self) -> Iterator[pulsar.Message]:
        """The messages that are there now, not those that come meanwhile.

        They are read partition by partition, because a consumer of several partitions cannot tell where they end.
        Raises DeadLettersError if there are messages, but none is a dead letter.
        """
        looks = {each: self._look(each) for each in self._client.get_topic_partitions(self._topic)}
        others = sum(each.others for each in looks.values())
        if others and not any(each.may_have_letters for each in looks.values()):
            text = (
                "the property 'topic' is in none, and a message without it is not a dead letter; is it the right topic?"
            )
            raise DeadLettersError(f"{self._topic}: {others:,} messages were read: {text}")
        for partition, look in looks.items():
            if look.may_have_letters or look.is_cut:
                self._consumer = self._subscribe(partition)
                yield from self._messages_of(self._consumer)

    def _messages_of(self, consumer: pulsar.Consumer) -> Iterator[pulsar.Message]:
        last = consumer.get_last_message_id()
        end = last.ledger_id(), last.entry_id()
        while end[1] >= 0:
            message = self._next(consumer)
            if message is None:
                return
            yield message
            at = message.message_id()
            if (at.ledger_id(), at.entry_id()) >= end:
                return

    def _subscribe(self, partition: str) -> pulsar.Consumer:
        attempts = Retrying(
            retry=retry_if_exception_type(pulsar.ConsumerBusy),
            stop=stop_after_delay(_LONGEST_TURN_S),
            wait=wait_fixed(_BUSY_PAUSE_S),
            reraise=True,
        )
        try:
            return attempts(subscribe, self._client, partition)
        except pulsar.ConsumerBusy as error:
            text = (
                f"{self._topic}: somebody else lists or resends these dead letters at the moment; try again afterwards"
            )
            raise DeadLettersError(text) from error

    def _look(self, partition: str) -> _Look:
        """Read the first messages with a reader. On a wrong topic, a subscription would keep all messages for ever."""
        others = 0
        with closing(self._client.create_reader(partition, pulsar.MessageId.earliest)) as reader:
            try:
                while others < _MOST_OTHERS and reader.has_message_available():
                    if _is_letter(reader.read_next(timeout_millis=_RECEIVE_TIMEOUT_MS).properties()):
                        return _Look(may_have_letters=True, others=others)
                    others += 1
            except pulsar.Timeout:
                # The reader does not tell if there are more messages. The subscription does.
                return _Look(may_have_letters=not others, others=others, is_cut=True)
        return _Look(may_have_letters=False, others=others, is_cut=others == _MOST_OTHERS)

    @staticmethod
    def _next(consumer: pulsar.Consumer) -> pulsar.Message | None:
        """The next message; None if all messages up to the end are acknowledged already.

        Raises pulsar.PulsarException if the broker does not answer.
        """
        for _ in range(2):
            try:
                return consumer.receive(timeout_millis=_RECEIVE_TIMEOUT_MS)
            except pulsar.Timeout:
                # A broker that answers this has had the time to send a message.
                consumer.get_last_message_id()
        return None

    def acknowledge(self, message: pulsar.Message) -> None:
        """Remove a letter that is not needed any more."""
        assert self._consumer is not None
        self._consumer.acknowledge(message)

    def send(self, letter: DeadLetter) -> _Refusal | None:
        """Send a letter to its events topic. None when the broker has it.

        A topic that refused an earlier letter is not asked again.
        """
        place = letter.topic, letter.schema_version
        if place in self._refusals:
            return self._refusals[place]
        try:
            if place not in self._producers:
                self._producers[place] = self._producer(letter)
            key, properties = letter.message_key or None, dict(letter.message_properties)
            self._producers[place].send(letter.data, partition_key=key, properties=properties)
        except pulsar.PulsarException as error:
            refusal = _Refusal(str(error), isinstance(error, _SILENCES))
            if not isinstance(error, pulsar.MessageTooBig):  # others of the topic may be smaller
                self._refusals[place] = refusal
            return refusal
        return None

    def _producer(self, letter: DeadLetter) -> pulsar.Producer:
        """A producer that writes bytes as the letter's writer did."""
        if letter.message_key:  # key and value are separate; a message without a version is read by the latest schema
            return new_producer(self._client, letter.topic)
        if letter.schema_version is None:
            schema = ReadyBytes.of("MutationEvents", MUTATION_EVENTS_SCHEMA_TEXT)
        else:
            version = max(letter.schema_version, _LATEST_SCHEMA)
            schema = ReadyBytes(schema_info(self._client, letter.topic, version))
        return new_producer(self._client, letter.topic, schema=schema)


def new_producer(client: pulsar.Client, topic: str, **settings: object) -> pulsar.Producer:
    """A producer that sends large messages in chunks. A message that came compressed or in chunks may need that."""
    return client.create_producer(topic, batching_enabled=False, chunking_enabled=True, **settings)


def subscribe(client: pulsar.Client, topic: str) -> pulsar.Consumer:
    """The subscription that keeps a topic's dead letters. Raises pulsar.ConsumerBusy while another consumer has it."""
    return client.subscribe(
        topic,
        RESEND_SUBSCRIPTION,
        consumer_type=pulsar.ConsumerType.Exclusive,
        initial_position=pulsar.InitialPosition.Earliest,
    )
