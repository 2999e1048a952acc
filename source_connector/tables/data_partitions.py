"""Checks the number of partitions of data topics, in its own thread: a call to a broker that is down takes seconds.

Pulsar's producers notice a new number of partitions within a minute (`autoUpdatePartitionsInterval`), and distribute
keys differently from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from runtime.notices import Notices
from runtime.stage import Stage
from source_connector.events.pulsar_access import PulsarConnection

__all__ = ["DataPartitions", "PartitionsAdded"]

_log = logging.getLogger(__name__)

_LOOK_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAdded:
    """The topic of this destination (empty for the source's own topic) had `before` partitions and has `now`."""

    destination: str
    topic: str
    before: int
    now: int


class DataPartitions(Stage):
    """Owns the thread, which starts with the first topic. `post` gets the changes."""

    def __init__(
        self, connection: PulsarConnection, output_topic: str, post: Callable[[PartitionsAdded | Exception], None]
    ) -> None:
        super().__init__("reader of the data topics' partitions", on_failure=post)
        self._connection = connection
        self._output_topic = output_topic
        self._post = post
        self._counts: dict[str, int | None] = {}
        self._notices = Notices(_log)

    def follow(self, destination: str) -> None:
        """Check this topic from now on. It must exist, because a check may create a topic."""
        self._counts.setdefault(destination, None)
        if not self.is_started:
            self.start()

    def run(self) -> None:
        """Check each topic regularly."""
        while not self.stopping.is_set():
            for destination in list(self._counts):
                self._check(destination)
            self.stopping.wait(_LOOK_S)

    def _check(self, destination: str) -> None:
        import pulsar

        topic = destination or self._output_topic
        try:
            names = self._connection.client().get_topic_partitions(topic)
        except pulsar.PulsarException as error:
            if not self.stopping.is_set():
                self._notices.say(
                    topic,
                    f"{topic}: its number of partitions cannot be read, trying again: {error}; see that its broker runs",
                )
            return
        before, now = self._counts[destination], sum("-partition-" in name for name in names)
        self._counts[destination] = now
        if before is not None and now != before:
            self._post(PartitionsAdded(destination=destination, topic=topic, before=before, now=now))
