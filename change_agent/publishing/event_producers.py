"""EventProducers: one Pulsar producer per topic partition. With copy_topic the only module of the agent that knows pulsar-client."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, Protocol

import _pulsar
import pulsar

from change_agent.configuration.pulsar_auth import PulsarAuth
from change_agent.errors import NodeTakenError, PublishError, TopicLostError
from change_agent.positions.copy_topic import CopyTopic
from change_agent.positions.inflight import Place
from change_agent.publishing.events_topics import EventsTopics
from change_agent.publishing.partition_counts import PartitionCounts
from change_agent.publishing.topic_checks import LostTopic, TopicChecks, TopicState
from change_agent.publishing.topic_policies import TopicPolicies
from clients.pulsar_schema import ReadyBytes
from clients.topic_policies import PolicyQuestions
from schemas.mutation_event import CLEARING_SCHEMA_TEXT, MUTATION_EVENTS_SCHEMA_TEXT
from schemas.progress_record import PROGRESS_SCHEMA_TEXT, UNKNOWN_POSITION, TopicPosition

__all__ = ["EventProducer", "EventProducers", "OnResult", "send_all"]

OnResult = Callable[[str | None], None]
"""Called once per message, by a thread of the client: None when the broker has it, else what went wrong."""

# The agent itself limits the messages in flight, well below this.
_MAX_PENDING_MESSAGES: Final = 1_000
_OPERATION_TIMEOUT_S: Final = 10


class EventProducer(Protocol):
    """Sends to one topic partition, in order."""

    def send(self, payload: bytes, key: str | None, on_result: OnResult) -> bool:
        """Hand a message to the client; never waits for the broker.

        False when the message is larger than the broker takes: then it is not sent, and nothing is called.
        """

    def is_connected(self) -> bool:
        """False while the client looks up its broker."""

    @property
    def last_position(self) -> TopicPosition:
        """Where the broker has put the last message that it acknowledged; UNKNOWN_POSITION before the first."""

    def close(self) -> None:
        """Give up the messages in flight; a result may still come."""


def send_all(
    messages: Sequence[tuple[EventProducer, bytes]], topic: str, timeout_s: float, *, key: str | None = None
) -> None:
    """Send messages by their producers; returns when the broker has all. Raises PublishError, with `topic`.

    `timeout_s`: for how long to wait for each answer.
    """
    results: SimpleQueue[str | None] = SimpleQueue()
    for producer, payload in messages:
        if not producer.send(payload, key, results.put):
            raise PublishError(topic, f"a record of {len(payload)} bytes is larger than the broker takes")
    for _ in messages:
        try:
            problem = results.get(timeout=timeout_s)
        except Empty:
            problem = "the broker does not answer"
        if problem is not None:
            raise PublishError(topic, problem)


_EVENTS_SCHEMA: Final = ReadyBytes.of("MutationEvents", MUTATION_EVENTS_SCHEMA_TEXT)
_CLEARING_SCHEMA: Final = ReadyBytes.of("MutationEvents", CLEARING_SCHEMA_TEXT)


class EventProducers:
    """Owns the Pulsar client. `open` and `open_partition` block, and may be called by several threads."""

    def __init__(
        self,
        topics: EventsTopics,
        counts: PartitionCounts,
        checks: TopicChecks,
        *,
        on_lost: Callable[[LostTopic], None],
        service_url: str,
        auth: PulsarAuth | None,
        trust_certificates: Path | None,
        allow_insecure: bool,
        verify_hostname: bool,
    ) -> None:
        self._topics: Final = topics
        self._counts: Final = counts
        self._checks: Final = checks
        self._policies: Final = TopicPolicies(PolicyQuestions(topics.policy))
        self._on_lost: Final = on_lost
        # Threads that open partitions of one topic make it once.
        self._locks: Final[defaultdict[str, threading.Lock]] = defaultdict(threading.Lock)
        self._auth: Final = auth
        self._held: Final[list[pulsar.Producer]] = []
        self._client: Final = pulsar.Client(
            service_url,
            authentication=_authentication(auth),
            operation_timeout_seconds=_OPERATION_TIMEOUT_S,
            tls_trust_certs_file_path=None if trust_certificates is None else str(trust_certificates),
            tls_allow_insecure_connection=allow_insecure,
            tls_validate_hostname=verify_hostname,
            # We log what matters, in our words. A Python logger would need the interpreter lock in client threads.
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
            stats_interval_in_seconds=0,
        )

    def close(self) -> None:
        """Close all producers and the client without waiting for the broker."""
        self._client.shutdown()
        self._topics.close()

    def open(self, topic: str) -> list[EventProducer]:
        """Producers of all partitions of a topic, which exists then. Raises PublishError."""
        opened = self._open_all(topic, _EVENTS_SCHEMA)
        self._policies.forget(topic)
        self._policies.check(topic)
        return opened

    def open_clearings(self, topic: str) -> list[EventProducer]:
        """Producers of messages with a clearing, of all partitions of a topic, which exists then. Raises PublishError."""
        return self._open_all(topic, _CLEARING_SCHEMA)

    def has_published(self, topic: str) -> bool:
        """Whether this agent has ever opened the topic for events. Raises PublishError."""
        return self._counts.known(topic) is not None

    def _open_all(self, topic: str, schema: ReadyBytes) -> list[EventProducer]:
        partitions = self._partitions(topic)
        names = [f"{topic}-partition-{index}" for index in range(partitions)] or [topic]
        opened: list[EventProducer] = []
        try:
            opened.extend(self._producer(topic, name, schema) for name in names)
        except PublishError:
            for producer in opened:
                producer.close()
            raise
        return opened

    def open_partition(self, topic: str, index: int) -> EventProducer:
        """A new producer of one partition, whose old one failed. Raises PublishError."""
        partitions = self._partitions(topic)
        return self._producer(topic, f"{topic}-partition-{index}" if partitions else topic)

    def open_for(self, topic: str, record_name: str, schema_text: str) -> EventProducer:
        """A producer of the agent's own records, of this Avro schema; the topic exists then. Raises PublishError."""
        partitions = self._topics.ensure(topic).partitions
        name = f"{topic}-partition-0" if partitions else topic
        return self._producer(topic, name, ReadyBytes.of(record_name, schema_text))

    def read_all(self, topic: str) -> list[bytes]:
        """All messages of a topic of the agent's own records; it is created if it does not exist. Raises PublishError."""
        partitions = self._topics.ensure(topic).partitions
        name = f"{topic}-partition-0" if partitions else topic
        found = []
        try:
            reader = self._client.create_reader(name, pulsar.MessageId.earliest)
            try:
                while reader.has_message_available():
                    found.append(bytes(reader.read_next(timeout_millis=_OPERATION_TIMEOUT_S * 1_000).data()))
            finally:
                reader.close()
        except pulsar.PulsarException as error:
            raise PublishError(topic, f"cannot be read ({error})") from error
        return found

    def open_progress(self, topic: str) -> EventProducer:
        """A producer of progress records; the topic exists then, and is compacted. Raises PublishError."""
        self._topics.ensure_compacted(topic)
        return self._producer(topic, topic, ReadyBytes.of("Progress", PROGRESS_SCHEMA_TEXT))

    def hold(self, topic: str) -> None:
        """Be the only one that may produce to this topic, until the end. Raises NodeTakenError, PublishError."""
        try:
            producer = self._client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
        except (pulsar.ProducerFenced, pulsar.ProducerBusy) as error:
            reason = (
                "another agent for this node has it, perhaps on another machine: this one waits until that has ended"
            )
            raise NodeTakenError(topic, reason) from error
        except pulsar.PulsarException as error:
            raise PublishError(topic, str(error)) from error
        self._held.append(producer)

    def copy_topic(self, topic: str) -> CopyTopic:
        """The topic of a node's copy of positions. Raises PublishError."""
        return CopyTopic(self._client, topic)

    def check(self, topic: str, place: Place | None) -> None:
        """Check whether an open topic is still whole. Raises TopicLostError, PublishError.

        `place`: what of the log was acknowledged before the call; None while events of the topic wait on disk.
        """
        lock = self._locks[topic]
        if not lock.acquire(blocking=False):
            # A thread that opens it checks, too; a loss is published once.
            return
        try:
            found = self._topics.check(topic)
            self._checks.compare(topic, found)
            self._counts.check(topic, found.partitions)
            self._checks.note(topic, found, place)
            if self._checks.wants_mark(topic):
                self._topics.mark(topic)
        except TopicLostError as error:
            self._checks.note_lost(topic, error.reason)
            raise
        finally:
            lock.release()
        self._policies.check(topic)

    def check_unopened(self, topic: str) -> None:
        """The same for a topic that is not open, if an earlier agent has found it whole."""
        if self._checks.former_subscription(topic) is not None:
            # The new one is made before anything that it should get is deleted.
            self._partitions(topic)
        elif self._checks.knows(topic):
            self.check(topic, None)

    def hazards(self, topic: str) -> tuple[str, ...]:
        """Policies of Pulsar that would drop unread events of the topic, and what to do; never waits."""
        return self._policies.hazards(topic)

    def end_checks(self) -> None:
        """Make durable what was seen."""
        self._checks.save()

    def _partitions(self, topic: str) -> int:
        with self._locks[topic]:
            lost = self._why_lost(topic)
            found = self._topics.ensure(topic, self._counts.known(topic))
            self._counts.check(topic, found.partitions)
            if lost is not None:
                self._report_lost(topic, lost, found)
            else:
                self._checks.note(topic, found, None)
            self._checks.save()
        return found.partitions

    def _report_lost(self, topic: str, reason: str, found: TopicState) -> None:
        """The topic was made again, and looks whole: what was lost with it must be reported all the same."""
        since = self._checks.renew(topic, found)
        try:
            self._on_lost(
                LostTopic(
                    topic=topic, reason=reason, since=since, on_reported=lambda: self._checks.note_reported(topic)
                )
            )
        except PublishError:
            # The next attempt to open the topic reports it, also that of an agent after this one.
            self._checks.note_lost(topic, reason)
            self._checks.save()
            raise

    def _why_lost(self, topic: str) -> str | None:
        """The reason why a topic that was complete is not any more; it is made again then."""
        if not self._checks.knows(topic):
            return None
        try:
            # After a change of eventsSubscriptionName the topic is whole if it has the former subscription still.
            former = self._checks.former_subscription(topic)
            self._checks.compare(topic, self._topics.check(topic, former))
        except TopicLostError as error:
            self._checks.note_lost(topic, error.reason)
            return error.reason
        return None

    def _producer(self, topic: str, name: str, schema: ReadyBytes = _EVENTS_SCHEMA) -> EventProducer:
        try:
            producer = self._client.create_producer(
                name,
                schema=schema,
                # Never give up on a message by time: the client sends it again, in order, when the broker is back.
                send_timeout_millis=0,
                max_pending_messages=_MAX_PENDING_MESSAGES,
                block_if_queue_full=True,
                # One message carries many events already.
                batching_enabled=False,
            )
        except pulsar.PulsarException as error:
            hint = "" if self._auth is None else self._auth.problem()
            raise PublishError(topic, f"no producer for {name}: {error}{hint}") from error
        return _Producer(producer)


def _authentication(auth: PulsarAuth | None) -> pulsar.Authentication | None:
    if auth is None:
        return None
    if auth.is_oauth2:
        return pulsar.AuthenticationOauth2(auth.params)
    return pulsar.Authentication(auth.plugin, auth.params)


class _Producer:
    def __init__(self, producer: pulsar.Producer) -> None:
        self._producer: Final = producer
        self.last_position = UNKNOWN_POSITION

    def send(self, payload: bytes, key: str | None, on_result: OnResult) -> bool:
        is_too_large = is_queued = False

        def done(result: _pulsar.Result, message_id: _pulsar.MessageId) -> None:
            nonlocal is_too_large
            if result == _pulsar.Result.Ok:
                # UNKNOWN_POSITION of a message that the broker has already: its de-duplication gives no position.
                self.last_position = TopicPosition(message_id.ledger_id(), message_id.entry_id())
                on_result(None)
            elif result == _pulsar.Result.MessageTooBig and not is_queued:
                # The client checks the size before it queues the message, and calls back at once, on this thread.
                is_too_large = True
            else:
                on_result(str(result).removeprefix("Result."))

        try:
            self._producer.send_async(payload, done, partition_key=key)
        except pulsar.PulsarException as error:
            on_result(str(error))
        is_queued = True
        return not is_too_large

    def is_connected(self) -> bool:
        return bool(self._producer.is_connected())

    def close(self) -> None:
        # Closing waits for a broker that may be away; nobody here waits for that. When it fails, nothing is left to close.
        self._producer._producer.close_async(lambda result: None)  # noqa: SLF001  # the wrapper has no such method
