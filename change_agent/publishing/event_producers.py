"""EventProducers: one Pulsar producer per topic partition.

In the agent, only this module and copy_topic use pulsar-client.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

import _pulsar
import pulsar

from change_agent.configuration.connections import PulsarAuth
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
"""Called once per message, by a thread of the client: with None when the broker has it, otherwise with the error."""

# The agent itself limits the messages in flight, well below this.
_MAX_PENDING_MESSAGES: Final = 1_000
_OPERATION_TIMEOUT_S: Final = 10
# How long a stop waits for an acknowledgement of a record, and how often the wait looks for a stop.
_LAST_WAIT_S: Final = 1.0


class EventProducer:
    """Sends to one topic partition, in order."""

    def __init__(self, producer: pulsar.Producer) -> None:
        self._producer: Final = producer
        self.last_position = UNKNOWN_POSITION
        """The position of the last acknowledged message; UNKNOWN_POSITION if there is none, or the broker gave none."""

    def send(self, payload: bytes, key: str | None, on_result: OnResult) -> bool:
        """Hand a message to the client; never waits for the broker.

        False when the message is larger than the broker accepts: then it is not sent, and `on_result` is not called.
        """
        is_too_large = is_queued = False

        def done(result: _pulsar.Result, message_id: _pulsar.MessageId) -> None:
            nonlocal is_too_large
            if result == _pulsar.Result.Ok:
                # UNKNOWN_POSITION for a message that the broker already had: its de-duplication returns no position.
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
        """False while the client looks up its broker."""
        return bool(self._producer.is_connected())

    def close(self) -> None:
        """Give up the messages in flight; a result may still come."""
        # `close` would wait for the broker, which may be down. If closing fails, nothing is left to close.
        self._producer._producer.close_async(lambda result: None)  # noqa: SLF001  # the wrapper has no such method


def send_all(
    messages: Sequence[tuple[EventProducer, bytes]],
    topic: str,
    timeout_s: float,
    *,
    key: str | None = None,
    stopping: threading.Event | None = None,
) -> None:
    """Send each message with its producer, and wait until the broker has all. Raises PublishError, with `topic`.

    `timeout_s`: how long to wait for each acknowledgement. When `stopping` is set, the wait ends after a second: a
    broker that answers does so within milliseconds.
    """
    results: SimpleQueue[str | None] = SimpleQueue()
    for producer, payload in messages:
        if not producer.send(payload, key, results.put):
            raise PublishError(topic, f"a record of {len(payload)} bytes is larger than the broker takes")
    for _ in messages:
        problem = _result(results, timeout_s, stopping)
        if problem is not None:
            raise PublishError(topic, problem)


def _result(results: SimpleQueue[str | None], timeout_s: float, stopping: threading.Event | None) -> str | None:
    """The next result. Without one in time, the problem that the broker does not answer."""
    end_s = time.monotonic() + timeout_s
    while (left_s := end_s - time.monotonic()) > 0:
        is_stopping = stopping is not None and stopping.is_set()
        try:
            return results.get(timeout=min(left_s, _LAST_WAIT_S))
        except Empty:
            if is_stopping:
                break
    return "the broker does not answer"


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
        # When several threads open partitions of one topic, only one of them creates the topic.
        self._locks: Final[defaultdict[str, threading.Lock]] = defaultdict(threading.Lock)
        self._auth: Final = auth
        self._claimed: Final[list[pulsar.Producer]] = []
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
        """Make sure that the topic exists, and return producers of all its partitions. Raises PublishError."""
        opened = self._open_all(topic, _EVENTS_SCHEMA)
        self._policies.forget(topic)
        self._policies.check(topic)
        return opened

    def open_clearings(self, topic: str) -> list[EventProducer]:
        """The same, with producers of messages with a clearing. Raises PublishError."""
        return self._open_all(topic, _CLEARING_SCHEMA)

    def has_topic(self, topic: str) -> bool:
        """True if the broker has the topic. Creates nothing. Raises PublishError."""
        return self._topics.exists(topic)

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
        """Return a new producer of a partition whose producer has failed. Raises PublishError."""
        partitions = self._partitions(topic)
        return self._producer(topic, f"{topic}-partition-{index}" if partitions else topic)

    def open_for(self, topic: str, record_name: str, schema_text: str) -> EventProducer:
        """Make sure that the topic exists, and return a producer of the agent's own records, with this Avro schema.

        Raises PublishError.
        """
        partitions = self._topics.ensure(topic).partitions
        name = f"{topic}-partition-0" if partitions else topic
        return self._producer(topic, name, ReadyBytes.of(record_name, schema_text))

    def read_all(self, topic: str) -> list[bytes]:
        """Make sure that a topic of the agent's own records exists, and return all its messages.

        Raises PublishError.
        """
        partitions = self._topics.ensure(topic).partitions
        name = f"{topic}-partition-0" if partitions else topic
        found = []
        try:
            with closing(self._client.create_reader(name, pulsar.MessageId.earliest)) as reader:
                while reader.has_message_available():
                    found.append(bytes(reader.read_next(timeout_millis=_OPERATION_TIMEOUT_S * 1_000).data()))
        except pulsar.PulsarException as error:
            raise PublishError(topic, f"cannot be read ({error})") from error
        return found

    def open_progress(self, topic: str) -> EventProducer:
        """Make sure that the compacted topic exists, and return a producer of progress records. Raises PublishError."""
        self._topics.ensure_compacted(topic)
        return self._producer(topic, topic, ReadyBytes.of("Progress", PROGRESS_SCHEMA_TEXT))

    def claim(self, topic: str) -> None:
        """Become the exclusive producer of this topic, until the client is closed.

        Raises NodeTakenError, PublishError.
        """
        try:
            producer = self._client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
        except (pulsar.ProducerFenced, pulsar.ProducerBusy) as error:
            reason = (
                "another agent for this node has it, perhaps on another machine: this one waits until that has ended"
            )
            raise NodeTakenError(topic, reason) from error
        except pulsar.PulsarException as error:
            raise PublishError(topic, str(error)) from error
        self._claimed.append(producer)

    def copy_topic(self, topic: str) -> CopyTopic:
        """The topic of a node's copy of positions. Raises PublishError."""
        return CopyTopic(self._client, topic)

    def check(self, topic: str, place: Place | None) -> None:
        """Check that an open topic is still complete. Raises TopicLostError, PublishError.

        `place`: up to where the log was acknowledged before the call; None while events of the topic wait on disk.
        """
        lock = self._locks[topic]
        if not lock.acquire(blocking=False):
            # Another thread is opening the topic, and checks it, too. A loss must be published only once.
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
        """Check a topic that is not open, if it was found complete before. Raises TopicLostError, PublishError."""
        if self._checks.former_subscription(topic) is not None:
            # The new subscription must be created before messages that it should get are deleted.
            self._partitions(topic)
        elif self._checks.knows(topic):
            self.check(topic, None)

    def hazards(self, topic: str) -> tuple[str, ...]:
        """Policies of Pulsar that would delete unread events of the topic, and what to do; never waits."""
        return self._policies.hazards(topic)

    def end_checks(self) -> None:
        """Store the results of the checks."""
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
        """Report the loss of a topic that was created again. It is complete now, so a check would not find the loss."""
        since = self._checks.renew(topic, found)
        try:
            self._on_lost(
                LostTopic(
                    topic=topic, reason=reason, since=since, on_reported=lambda: self._checks.note_reported(topic)
                )
            )
        except PublishError:
            # The next attempt to open the topic reports the loss, also after a restart.
            self._checks.note_lost(topic, reason)
            self._checks.save()
            raise

    def _why_lost(self, topic: str) -> str | None:
        """Return why a topic that was complete is not complete now; None if it is, or if it is not known."""
        if not self._checks.knows(topic):
            return None
        try:
            # After a change of eventsSubscriptionName, the topic is complete if it still has the former subscription.
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
                # Messages have no timeout: the client sends them again, in order, when the broker is back.
                send_timeout_millis=0,
                max_pending_messages=_MAX_PENDING_MESSAGES,
                block_if_queue_full=True,
                # One message carries many events already.
                batching_enabled=False,
            )
        except pulsar.PulsarException as error:
            hint = "" if self._auth is None else self._auth.problem()
            raise PublishError(topic, f"no producer for {name}: {error}{hint}") from error
        return EventProducer(producer)


def _authentication(auth: PulsarAuth | None) -> pulsar.Authentication | None:
    if auth is None:
        return None
    if auth.kind == "oauth2":  # the client has another constructor for it
        return pulsar.AuthenticationOauth2(auth.params)
    return pulsar.Authentication(auth.plugin, auth.params)
