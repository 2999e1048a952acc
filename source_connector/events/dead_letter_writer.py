"""Writes dead letters: the connector's side of the dead-letter topic."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pulsar

from source_connector.events.dead_letters import DeadLetter, new_producer, subscribe
from source_connector.events.pulsar_access import PulsarOptions, new_client
from source_connector.notices import Notices
from source_connector.timers import backoff_s

__all__ = ["DeadLetterWriter", "DeadLettersWritten"]

_log = logging.getLogger(__name__)

_LONGEST_PAUSE_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersWritten:
    """The broker has the letters that were given with this ticket."""

    ticket: object


class DeadLetterWriter:
    """Writes letters, in a thread of its own that starts with the first one.

    It goes on trying while the broker is away. `post` gets a `DeadLettersWritten` for each call of `write`, or the
    error that nobody has foreseen, which ended the thread.
    """

    def __init__(
        self, options: PulsarOptions, topic: str, post: Callable[[DeadLettersWritten | Exception], None]
    ) -> None:
        self._options = options
        self.topic: Final = topic
        self._post = post
        self._waiting: queue.SimpleQueue[tuple[object, Sequence[DeadLetter]]] = queue.SimpleQueue()
        self._failures = 0
        """One behind the other."""
        self._thread: threading.Thread | None = None
        self._notices = Notices(_log)
        self._stopping = threading.Event()
        self._client: pulsar.Client | None = None
        self._producer: pulsar.Producer | None = None

    def write(self, ticket: object, letters: Sequence[DeadLetter]) -> None:
        """Write letters; whoever wrote what they hold must not forget it before the answer."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dead-letters", daemon=True)
            self._thread.start()
        self._waiting.put((ticket, letters))

    def close(self) -> None:
        """Give up what is not written yet: its events are not acknowledged."""
        self._stopping.set()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                ticket, letters = self._waiting.get()
                left = self._write(letters)
                if left:  # behind those of others: what is refused may be this letter's fault
                    self._waiting.put((ticket, left))
                    self._stopping.wait(backoff_s(self._failures - 1, 0.5, _LONGEST_PAUSE_S))
                elif not self._stopping.is_set():
                    self._post(DeadLettersWritten(ticket=ticket))
        except Exception as error:  # noqa: BLE001  # the top of a thread: whoever owns it decides
            self._post(error)

    def _write(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """Those that are still to be written, from the first one on that is not taken."""
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
                "%s message %s: the dead letter is written without %s", letter.topic, letter.message_id, letter.cut
            )

    def _open(self) -> pulsar.Producer:
        if self._producer is None:
            if self._client is None:
                self._client = new_client(self._options)
            # What no subscription holds is trimmed at once. Who reads the letters has made it already.
            with suppress(pulsar.ConsumerBusy):
                subscribe(self._client, self.topic).close()
            self._producer = new_producer(self._client, self.topic)
        return self._producer
