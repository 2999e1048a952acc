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

from source_connector.events.dead_letters import DeadLetter, subscribe
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

    It goes on trying while the broker is away. `post` gets a `DeadLettersWritten` for each call of `write`.
    """

    def __init__(self, options: PulsarOptions, topic: str, post: Callable[[DeadLettersWritten], None]) -> None:
        self._options = options
        self.topic: Final = topic
        self._post = post
        self._waiting: queue.SimpleQueue[tuple[object, Sequence[DeadLetter]]] = queue.SimpleQueue()
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
        while not self._stopping.is_set():
            ticket, letters = self._waiting.get()
            for letter in letters:
                self._write_patiently(letter)
            if not self._stopping.is_set():
                self._post(DeadLettersWritten(ticket=ticket))

    def _write_patiently(self, letter: DeadLetter) -> None:
        attempts = 0
        while not self._stopping.is_set():
            try:
                self._open().send(letter.data, properties=letter.properties)
            except pulsar.PulsarException as error:
                self._notices.say("broker", f"the dead-letter topic {self.topic} takes nothing yet: {error}")
                self._stopping.wait(backoff_s(attempts, 0.5, _LONGEST_PAUSE_S))
                attempts += 1
            else:
                return

    def _open(self) -> pulsar.Producer:
        if self._producer is None:
            if self._client is None:
                self._client = new_client(self._options)
            # What no subscription holds is trimmed at once. Who reads the letters has made it already.
            with suppress(pulsar.ConsumerBusy):
                subscribe(self._client, self.topic).close()
            self._producer = self._client.create_producer(self.topic, batching_enabled=False)
        return self._producer
