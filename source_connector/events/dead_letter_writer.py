"""Writes dead letters: the connector's side of the dead-letter topic."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pulsar

from runtime.backoff import Backoff
from runtime.notices import Notices
from runtime.stage import Stage
from source_connector.events.dead_letters import DeadLetter, new_producer, subscribe
from source_connector.events.pulsar_access import PulsarOptions, new_client

__all__ = ["DeadLetterWriter", "DeadLettersWritten"]

_log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(0.5, 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersWritten:
    """The broker has the dead letters of one `write`. The caller's thread gets this from its inbox and calls `then`."""

    then: Callable[[], None]


class DeadLetterWriter(Stage):
    """Writes dead letters in a separate thread, which starts with the first one.

    It keeps trying while the broker is down. `post` gets a `DeadLettersWritten` for each call of `write`, or the
    unexpected error that ended the thread.
    """

    def __init__(
        self, options: PulsarOptions, topic: str, post: Callable[[DeadLettersWritten | Exception], None]
    ) -> None:
        super().__init__("writer of dead letters", on_failure=post)
        self._options = options
        self.topic: Final = topic
        self._post = post
        self._waiting: queue.SimpleQueue[tuple[Sequence[DeadLetter], Callable[[], None]]] = queue.SimpleQueue()
        self._failures = 0
        """Failures since the last letter that was written."""
        self._notices = Notices(_log)
        self._client: pulsar.Client | None = None
        self._producer: pulsar.Producer | None = None

    def write(self, letters: Sequence[DeadLetter], then: Callable[[], None]) -> None:
        """Write dead letters. `then` is called when the broker has them: only then their events may be acknowledged."""
        if not self.is_started:
            self.start()
        self._waiting.put((letters, then))

    def run(self) -> None:
        """Write, and try again. Letters that are not written at the stop are given up; their events come again."""
        while not self.stopping.is_set():
            letters, then = self._waiting.get()
            left = self._write(letters)
            if left:  # they go behind the letters of others, because the first of them may itself be the cause
                self._waiting.put((left, then))
                self.stopping.wait(_BACKOFF.pause_s(self._failures))
            elif not self.stopping.is_set():
                self._post(DeadLettersWritten(then=then))

    def _write(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """Write dead letters. Return those that are not written: the first one that was refused, and all after it."""
        for at, letter in enumerate(letters):
            try:
                self._send(letter)
                self._failures = 0
            except pulsar.PulsarException as error:
                self._failures += 1
                text = f"the dead-letter topic {self.topic} does not take the dead letter of {letter.topic} message "
                self._notices.say("broker", f"{text}{letter.message_id}, which is tried again: {error}")
                return letters[at:]
        return ()

    def _send(self, letter: DeadLetter) -> None:
        producer = self._open()
        try:
            producer.send(letter.data, properties=letter.properties)
        except pulsar.MessageTooBig:  # chunks are made of the payload only
            letter = letter.without_its_properties()
            producer.send(letter.data, properties=letter.properties)
            _log.error(
                "%s message %s: the dead letter is written without %s; it cannot be sent again, so write its row again",
                letter.topic,
                letter.message_id,
                letter.cut,
            )

    def _open(self) -> pulsar.Producer:
        if self._producer is None:
            if self._client is None:
                self._client = new_client(self._options)
            # Messages that no subscription keeps are deleted at once. A reader of dead letters may have created it already.
            with suppress(pulsar.ConsumerBusy):
                subscribe(self._client, self.topic).close()
            self._producer = new_producer(self._client, self.topic)
        return self._producer
